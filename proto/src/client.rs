//! Connecting to a daemon, and telling apart the ways in which that fails.

mod gathered;
mod retry;

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use gathered::GatheredStream;
use hyper_util::rt::TokioIo;
use retry::CONNECT_WAIT;
pub use retry::when_there_is_room;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt;

/// Largest message either side takes: a canvas of 4,096 positions stays well below it.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// A connection to the daemon that listens on `socket`, a path or `http://HOST:PORT`. Reconnects by itself when a later call
/// finds it broken.
///
/// # Errors
/// When nothing answers on the socket.
pub async fn connect(socket: &Path) -> Result<Channel, ConnectError> {
    connect_at_rest(socket, Duration::ZERO).await
}

/// The same for who watches much at once: after the socket was read empty it is left alone for as long as `rest`, by which
/// answers may come later, and what gathers meanwhile is read at once.
///
/// # Errors
/// When nothing answers on the socket.
pub async fn connect_at_rest(socket: &Path, rest: Duration) -> Result<Channel, ConnectError> {
    let failed = |error: tonic::transport::Error| {
        let io = io_error(&error);
        let is = |kind| io.is_some_and(|io| io.kind() == kind);
        let is_busy = is(io::ErrorKind::WouldBlock) || is(io::ErrorKind::TimedOut);
        ConnectError {
            socket: socket.display().to_string(),
            cause: match io {
                _ if is_busy => BUSY.to_owned(),
                Some(_) if is(io::ErrorKind::NotFound) => "no such socket".to_owned(),
                Some(io) => io.to_string(),
                None => error.to_string(),
            },
            is_denied: is(io::ErrorKind::PermissionDenied),
            is_busy,
        }
    };
    let address = socket.to_str().filter(|name| name.starts_with("http://"));
    // For a path the name is never resolved: the connector below opens the socket.
    let name = address.unwrap_or("http://localhost").to_owned();
    let place = match address {
        Some(address) => {
            DaemonAddress::Port(address["http://".len()..].trim_end_matches('/').to_owned())
        }
        None => DaemonAddress::Socket(socket.to_owned()),
    };
    let connector = tower::service_fn(move |_| {
        let place = place.clone();
        async move {
            let open = retry::while_busy(|| place.open());
            let (wire, first) = tokio::time::timeout(CONNECT_WAIT, open).await??;
            Ok::<_, io::Error>(TokioIo::new(GatheredStream::new(wire, first, rest)))
        }
    });
    let endpoint = Endpoint::from_shared(name).map_err(failed)?;
    let mut attempts = 1;
    loop {
        match endpoint.connect_with_connector(connector.clone()).await {
            Err(error) if attempts < HANDSHAKES_MAX && is_cut(&error) => attempts += 1,
            connected => return connected.map_err(failed),
        }
    }
}

/// How often a connection is begun that the daemon cuts before it is established, such as to give its place to another.
const HANDSHAKES_MAX: u32 = 4;

fn is_cut(error: &tonic::transport::Error) -> bool {
    let kind = io_error(error).map(io::Error::kind);
    matches!(
        kind,
        Some(io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
    )
}

/// Where a daemon listens.
#[derive(Clone)]
enum DaemonAddress {
    Socket(PathBuf),
    /// A host and a port.
    Port(String),
}

impl DaemonAddress {
    /// A connection, and the first bytes that came over it. A server speaks first in HTTP/2: one that closes before it has
    /// said anything has no place, and one that says nothing is stopped.
    async fn open(&self) -> io::Result<(Box<dyn Wire>, Vec<u8>)> {
        let mut wire: Box<dyn Wire> = match self {
            Self::Socket(path) => Box::new(UnixStream::connect(path).await?),
            Self::Port(address) => {
                let stream = TcpStream::connect(address).await?;
                // Calls are small messages that somebody waits for, which Nagle's algorithm would hold back.
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
        };
        let mut first = vec![0; 256];
        let read = match wire.read(&mut first).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
            read => read?,
        };
        if read == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        first.truncate(read);
        Ok((wire, first))
    }
}

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Nothing answers where the daemon was looked for.
#[derive(Debug, thiserror::Error)]
#[error("cannot reach sluiced at {socket}: {cause}")]
pub struct ConnectError {
    /// The socket that was tried.
    pub socket: String,
    /// What the system said.
    pub cause: String,
    /// Whether a daemon may listen there, but not for this user.
    pub is_denied: bool,
    /// Whether a daemon listens there that has no place, or does not answer.
    pub is_busy: bool,
}

/// What [`ConnectError::cause`] says of a daemon that is busy.
const BUSY: &str = "it does not answer: all its connections are taken, or it is stopped";

/// The system's error, which lies beneath the transport's.
fn io_error<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e io::Error> {
    let mut source = Some(error);
    while let Some(error) = source {
        if let Some(io) = error.downcast_ref() {
            return Some(io);
        }
        source = error.source();
    }
    None
}

/// A failed call, read back from a [`Status`].
#[derive(Debug, Clone)]
pub struct CallError {
    /// The gRPC code.
    pub code: Code,
    /// What was wrong.
    pub message: String,
    /// What to do about it, when the daemon said.
    pub hint: Option<String>,
    /// Short stable name of the reason, such as `QUEUE_FULL`.
    pub reason: Option<String>,
}

impl CallError {
    /// The daemon went away or was never there.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        // A daemon's own UNAVAILABLE names its reason; the transport's does not.
        self.code == Code::Unavailable && self.reason.is_none()
    }

    /// The daemon is older than this client and does not know the call.
    #[must_use]
    pub fn is_older_daemon(&self) -> bool {
        self.code == Code::Unimplemented && self.reason.is_none()
    }

    /// The daemon answered with bytes that this client's schema does not have, which `prost` says in these words.
    #[must_use]
    pub fn is_of_another_schema(&self) -> bool {
        self.code == Code::Internal
            && self.reason.is_none()
            && self
                .message
                .starts_with("failed to decode Protobuf message")
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        let info = status.get_details_error_info();
        let hint = info
            .as_ref()
            .and_then(|info| info.metadata.get("hint").cloned());
        Self {
            code: status.code(),
            message: status.message().to_owned(),
            hint,
            reason: info.map(|info| info.reason),
        }
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CallError {}
