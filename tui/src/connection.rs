//! Finding the daemon and speaking to its services.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use sluice_proto::{
    client,
    v1::{
        GetSnapshotRequest, Snapshot, generation_service_client::GenerationServiceClient,
        model_service_client::ModelServiceClient, operation_service_client::OperationServiceClient,
        optimizer_service_client::OptimizerServiceClient,
        telemetry_service_client::TelemetryServiceClient,
    },
};
use sluice_shared::address::{Surroundings, socket_path};
use tonic::{Status, transport::Channel};

use crate::output::Failure;

/// The socket to use: the flag, or the rule that the daemon follows too.
#[must_use]
pub fn socket(flag: Option<&Path>) -> PathBuf {
    socket_path(
        flag,
        &Surroundings {
            variable: &|name| std::env::var_os(name),
            exists: &|path| path.exists(),
            temporary: std::env::temp_dir(),
            user_id: rustix::process::getuid().as_raw(),
        },
    )
}

/// A daemon that answered.
#[derive(Clone)]
pub struct DaemonConnection {
    socket: PathBuf,
    channel: Channel,
}

impl DaemonConnection {
    /// Connects to the daemon that listens on `socket`.
    ///
    /// # Errors
    /// With exit code 69 when nothing answers there.
    pub async fn connect(socket: PathBuf) -> Result<Self, Failure> {
        Self::connect_at_rest(socket, Duration::ZERO).await
    }

    /// The same for who watches much at once: see [`client::connect_at_rest`].
    ///
    /// # Errors
    /// With exit code 69 when nothing answers there.
    pub async fn connect_at_rest(socket: PathBuf, rest: Duration) -> Result<Self, Failure> {
        match client::connect_at_rest(&socket, rest).await {
            Ok(channel) => Ok(Self { socket, channel }),
            Err(error) => Err(Failure::unreachable(&error)),
        }
    }

    /// Generation and requests.
    #[must_use]
    pub fn generation(&self) -> GenerationServiceClient<Channel> {
        GenerationServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// Operations of all kinds.
    #[must_use]
    pub fn operations(&self) -> OperationServiceClient<Channel> {
        OperationServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// Models.
    #[must_use]
    pub fn models(&self) -> ModelServiceClient<Channel> {
        ModelServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// Plans, levels and budgets.
    #[must_use]
    pub fn optimizer(&self) -> OptimizerServiceClient<Channel> {
        OptimizerServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// Snapshots.
    #[must_use]
    pub fn telemetry(&self) -> TelemetryServiceClient<Channel> {
        TelemetryServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// The present state of the daemon, once.
    ///
    /// # Errors
    /// The daemon doesn't answer, or with nothing in it.
    pub async fn snapshot(&self) -> Result<Snapshot, Failure> {
        let answer = self.telemetry().get_snapshot(GetSnapshotRequest {}).await;
        answer
            .map_err(|status| self.failure(status))?
            .into_inner()
            .snapshot
            .ok_or_else(|| Failure::new("the daemon's snapshot is empty"))
    }

    /// What a failed call means to the user.
    #[must_use]
    pub fn failure(&self, status: Status) -> Failure {
        Failure::from_status(status, &self.socket)
    }
}
