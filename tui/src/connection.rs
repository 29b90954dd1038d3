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

/// A connection to a daemon, cheap to clone.
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

    /// The same with a pause between reads, for clients that read several streams: see [`client::connect_at_rest`].
    ///
    /// # Errors
    /// With exit code 69 when nothing answers there.
    pub async fn connect_at_rest(socket: PathBuf, rest: Duration) -> Result<Self, Failure> {
        match client::connect_at_rest(&socket, rest).await {
            Ok(channel) => Ok(Self { socket, channel }),
            Err(error) => Err(Failure::unreachable(&error)),
        }
    }

    /// Client of the service that generates text and scores it.
    #[must_use]
    pub fn generation(&self) -> GenerationServiceClient<Channel> {
        GenerationServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// Client of the service that lists, follows and cancels operations.
    #[must_use]
    pub fn operations(&self) -> OperationServiceClient<Channel> {
        OperationServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// Client of the service for loading, downloading and listing models.
    #[must_use]
    pub fn models(&self) -> ModelServiceClient<Channel> {
        ModelServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// Client of the service for plans, levels, budgets and work on files.
    #[must_use]
    pub fn optimizer(&self) -> OptimizerServiceClient<Channel> {
        OptimizerServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// Client of the service for snapshots.
    #[must_use]
    pub fn telemetry(&self) -> TelemetryServiceClient<Channel> {
        TelemetryServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// Asks for one snapshot of the daemon's present state.
    ///
    /// # Errors
    /// When the daemon does not answer, or answers without a snapshot.
    pub async fn snapshot(&self) -> Result<Snapshot, Failure> {
        let answer = self.telemetry().get_snapshot(GetSnapshotRequest {}).await;
        answer
            .map_err(|status| self.failure(status))?
            .into_inner()
            .snapshot
            .ok_or_else(|| Failure::new("the daemon's snapshot is empty"))
    }

    /// The failure to report for a call that failed.
    #[must_use]
    pub fn failure(&self, status: Status) -> Failure {
        Failure::from_status(status, &self.socket)
    }
}
