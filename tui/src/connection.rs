//! Finding the daemon and speaking to its services.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use sluice_proto::{
    PROTOCOL, PROTOCOL_HEADER,
    client::{self, ConnectOptions, TlsFiles},
    v1::{
        GetSnapshotRequest, Snapshot, embedding_service_client::EmbeddingServiceClient,
        generation_service_client::GenerationServiceClient,
        memory_service_client::MemoryServiceClient, model_service_client::ModelServiceClient,
        operation_service_client::OperationServiceClient,
        optimizer_service_client::OptimizerServiceClient,
        telemetry_service_client::TelemetryServiceClient,
    },
};
use sluice_shared::address::{self, DaemonAddress, Surroundings, socket_path};
use tokio::time::sleep;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

use crate::output::{CLOSED_HINT, Failure};

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

/// Whether the service has a folder for its socket that this user can't look into, so that another place was tried.
fn service_is_closed() -> bool {
    let socket = std::fs::symlink_metadata(address::SYSTEM_SOCKET);
    socket.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// How long a command waits for the daemon without a word.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// Names the file that holds the token of this user, which says to a daemon who calls.
pub const TOKEN_FILE: &str = "SLUICE_TOKEN_FILE";
/// Bytes of that file.
const TOKEN_FILE_BYTES_MAX: u64 = 4096;

/// Names the file with certificates of authorities that are trusted beside the system's.
pub const CA_FILE: &str = "SLUICE_CA_FILE";
/// Names the file with this user's certificate.
pub const CLIENT_CERTIFICATE: &str = "SLUICE_CLIENT_CERTIFICATE";
/// Names the file with the private key of that.
pub const CLIENT_KEY: &str = "SLUICE_CLIENT_KEY";

/// The path in a variable; `None` where it is empty, as shells leave those that are not set.
fn path_in(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).filter(|path| !path.is_empty());
    path.map(PathBuf::from)
}

/// A connection to a daemon, cheap to clone.
#[derive(Clone)]
pub struct DaemonConnection {
    socket: PathBuf,
    channel: DaemonChannel,
}

/// Calls with the user's token, if there is one, and the client's protocol.
pub type DaemonChannel = InterceptedService<Channel, Token>;

/// A token, as the header that brings it along.
#[derive(Clone, Default)]
pub struct Token(Option<MetadataValue<Ascii>>);

impl Token {
    /// The token in the file that [`TOKEN_FILE`] names, if it names one.
    fn of_process() -> Result<Self, Failure> {
        path_in(TOKEN_FILE).map_or_else(|| Ok(Self::default()), |path| Self::read(&path))
    }

    fn read(path: &Path) -> Result<Self, Failure> {
        let failed = |problem: &dyn std::fmt::Display| {
            Failure::new(format!("the token file {}: {problem}", path.display()))
                .with_hint(format!("${TOKEN_FILE} names it; it holds the token alone"))
        };
        let mut text = String::new();
        File::open(path)
            .and_then(|file| file.take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut text))
            .map_err(|error| failed(&error))?;
        let token = text.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(failed(&"it holds no token"));
        }
        let mut header: MetadataValue<Ascii> = format!("Bearer {token}")
            .parse()
            .map_err(|error| failed(&error))?;
        header.set_sensitive(true);
        Ok(Self(Some(header)))
    }
}

impl Token {
    /// Keeps a token from being sent where others could read it.
    fn check_way(&self, socket: &Path) -> Result<(), Failure> {
        let is_private = |address: DaemonAddress| address.is_private();
        // What is no address is told when it is connected to.
        if self.0.is_none() || DaemonAddress::read(socket).map_or(true, is_private) {
            return Ok(());
        }
        let address = socket.display();
        Err(Failure::new(format!(
            "the token in ${TOKEN_FILE} is not sent to {address}: everybody on the way could read it"
        ))
        .with_hint("use https://, or a tunnel to a port of this machine"))
    }
}

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        if let Some(header) = &self.0 {
            metadata.insert("authorization", header.clone());
        }
        // A daemon that speaks another refuses the call, and says which of both is older.
        metadata.insert(PROTOCOL_HEADER, PROTOCOL.into());
        Ok(request)
    }
}

impl DaemonConnection {
    /// Connects to the daemon that listens on `socket`.
    ///
    /// # Errors
    /// With exit code 69 when nothing answers there.
    pub async fn connect(socket: PathBuf) -> Result<Self, Failure> {
        let notice = format!(
            "waiting for sluiced at {}: it does not answer yet",
            socket.display()
        );
        let connecting = Self::connect_at_rest(socket, Duration::ZERO);
        tokio::pin!(connecting);
        tokio::select! {
            connected = &mut connecting => connected,
            () = sleep(SILENCE_MAX) => {
                eprintln!("{notice}");
                connecting.await
            }
        }
    }

    /// The same with a pause between reads, for clients that read several streams: see [`ConnectOptions`].
    ///
    /// # Errors
    /// With exit code 69 when nothing answers there.
    pub async fn connect_at_rest(socket: PathBuf, rest: Duration) -> Result<Self, Failure> {
        let token = Token::of_process()?;
        token.check_way(&socket)?;
        let tls = TlsFiles {
            ca: path_in(CA_FILE),
            certificate: path_in(CLIENT_CERTIFICATE),
            key: path_in(CLIENT_KEY),
        };
        match client::connect_with(&socket, ConnectOptions { rest, tls }).await {
            Ok(channel) => Ok(Self {
                socket,
                channel: InterceptedService::new(channel, token),
            }),
            Err(error) => {
                let failure = Failure::unreachable(&error);
                let is_elsewhere = !error.is_denied && !error.is_busy;
                Err(match is_elsewhere && service_is_closed() {
                    true => failure.with_hint(CLOSED_HINT),
                    false => failure,
                })
            }
        }
    }

    /// Client of the service that generates text and scores it.
    #[must_use]
    pub fn generation(&self) -> GenerationServiceClient<DaemonChannel> {
        GenerationServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// Client of the service that makes vectors of texts.
    #[must_use]
    pub fn embedding(&self) -> EmbeddingServiceClient<DaemonChannel> {
        EmbeddingServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// Client of the service that remembers texts and finds them again.
    #[must_use]
    pub fn memory(&self) -> MemoryServiceClient<DaemonChannel> {
        MemoryServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// Client of the service that lists, follows and cancels operations.
    #[must_use]
    pub fn operations(&self) -> OperationServiceClient<DaemonChannel> {
        OperationServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// Client of the service for loading, downloading and listing models.
    #[must_use]
    pub fn models(&self) -> ModelServiceClient<DaemonChannel> {
        ModelServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// Client of the service for plans, levels, budgets and work on files.
    #[must_use]
    pub fn optimizer(&self) -> OptimizerServiceClient<DaemonChannel> {
        OptimizerServiceClient::new(self.channel.clone())
            .max_decoding_message_size(client::MESSAGE_BYTES_MAX)
    }

    /// Client of the service for snapshots.
    #[must_use]
    pub fn telemetry(&self) -> TelemetryServiceClient<DaemonChannel> {
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_token_goes_with_each_call_and_is_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(Token::read(&path).is_err());
        for bad in ["", "\n", "two words"] {
            fs::write(&path, bad).unwrap();
            assert!(Token::read(&path).is_err(), "{bad:?}");
        }
        fs::write(&path, "0123456789abcdef\n").unwrap();
        let mut token = Token::read(&path).unwrap();
        let request = token.call(Request::new(())).unwrap();
        let header = request.metadata().get("authorization").unwrap();
        assert_eq!(header.to_str().unwrap(), "Bearer 0123456789abcdef");
        assert!(!format!("{request:?}").contains("0123456789abcdef"));

        let open = Path::new("http://sluice.example:50051");
        let refused = token.check_way(open).unwrap_err();
        let told = format!("{refused:?}");
        assert!(told.contains("https://") && !told.contains("0123456789abcdef"));
        for private in ["/s", "http://127.0.0.1:7", "https://sluice.example"] {
            token.check_way(Path::new(private)).unwrap();
        }
        Token::default().check_way(open).unwrap();
    }
}
