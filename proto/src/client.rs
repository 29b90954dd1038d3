//! Connecting to a daemon, and telling apart the ways in which that fails.

mod gathered;
mod retry;
mod tls;

use std::{io, path::Path, sync::Arc, time::Duration};

use gathered::{FirstBytes, GatheredStream};
use hyper_util::rt::TokioIo;
use retry::CONNECT_WAIT;
pub use retry::when_there_is_room;
use sluice_shared::address::DaemonAddress;
pub use tls::TlsFiles;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt;

/// Largest message either side takes: a canvas of 4,096 positions stays well below it.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// How to connect.
#[derive(Debug, Clone, Default)]
pub struct ConnectOptions {
    /// For who watches much at once: after the socket was read empty it is left alone for as long, by which answers may come
    /// later, and what gathers meanwhile is read at once.
    pub rest: Duration,
    /// For addresses that begin with `https://`.
    pub tls: TlsFiles,
}

/// A connection to the daemon that listens on `socket`: a path, `http://HOST:PORT` or `https://HOST:PORT`. Reconnects by itself
/// when a later call finds it broken.
///
/// # Errors
/// When nothing answers on the socket.
pub async fn connect(socket: &Path) -> Result<Channel, ConnectError> {
    connect_with(socket, ConnectOptions::default()).await
}

/// The same with options.
///
/// # Errors
/// When nothing answers on the socket.
pub async fn connect_with(socket: &Path, options: ConnectOptions) -> Result<Channel, ConnectError> {
    let shown = socket.display().to_string();
    let address = DaemonAddress::read(socket).map_err(|cause| ConnectError {
        socket: shown.clone(),
        cause,
        hint: None,
        is_denied: false,
        is_busy: false,
    })?;
    let failed = |error: tonic::transport::Error| ConnectError::of(shown.clone(), &error);
    let (name, scheme) = match (address.authority(), &address) {
        (Some(name), DaemonAddress::Port { is_tls: true, .. }) => (name, "https"),
        // For a path the name is never resolved: the connector below opens the socket.
        (name, _) => (name.unwrap_or_else(|| "localhost".to_owned()), "http"),
    };
    let opener = Arc::new(Opener {
        address,
        tls: options.tls,
    });
    let connector = tower::service_fn(move |_| {
        let opener = opener.clone();
        async move {
            let open = retry::while_busy(|| opener.open());
            let (wire, first) = tokio::time::timeout(CONNECT_WAIT, open).await??;
            Ok::<_, io::Error>(TokioIo::new(GatheredStream::new(wire, first, options.rest)))
        }
    });
    let endpoint = Endpoint::from_shared(format!("{scheme}://{name}")).map_err(failed)?;
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

/// What opens connections to one daemon.
struct Opener {
    address: DaemonAddress,
    tls: TlsFiles,
}

impl Opener {
    /// A connection, and the first bytes that went over it. A server speaks first in HTTP/2: one that closes before it has
    /// said anything has no place, and one that says nothing is stopped.
    async fn open(&self) -> io::Result<(Box<dyn Wire>, FirstBytes)> {
        let mut first = FirstBytes::default();
        let mut wire: Box<dyn Wire> = match &self.address {
            DaemonAddress::Socket(path) => Box::new(UnixStream::connect(path).await?),
            DaemonAddress::Port { host, port, is_tls } => {
                let mut stream = TcpStream::connect((host.as_str(), *port)).await?;
                // Calls are small messages that somebody waits for, which Nagle's algorithm would hold back.
                stream.set_nodelay(true)?;
                match is_tls {
                    true => Box::new(self.tls.shake_hands(host, stream).await?),
                    false => {
                        // A port that speaks TLS waits for the client, and answers this.
                        stream.write_all(PREFACE).await?;
                        first.written = PREFACE.len();
                        Box::new(stream)
                    }
                }
            }
        };
        let mut bytes = vec![0; 256];
        let read = match wire.read(&mut bytes).await {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
            read => read?,
        };
        if read == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        bytes.truncate(read);
        if tls::is_wanted(&bytes) {
            return Err(tls::wanted());
        }
        first.read = bytes;
        Ok((wire, first))
    }
}

/// What every client of HTTP/2 says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

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
    /// What to do about it, where that is known.
    pub hint: Option<String>,
    /// Whether a daemon may listen there, but not for this user.
    pub is_denied: bool,
    /// Whether a daemon listens there that has no place, or does not answer.
    pub is_busy: bool,
}

impl ConnectError {
    fn of(socket: String, error: &tonic::transport::Error) -> Self {
        let io = io_error(error);
        let is = |kind| io.is_some_and(|io| io.kind() == kind);
        let is_busy = is(io::ErrorKind::WouldBlock) || is(io::ErrorKind::TimedOut);
        let (cause, hint) = match io {
            _ if is_busy => (BUSY.to_owned(), None),
            Some(_) if is(io::ErrorKind::NotFound) => ("no such socket".to_owned(), None),
            Some(io) => tls::told(io).unwrap_or_else(|| (io.to_string(), None)),
            None => (error.to_string(), None),
        };
        Self {
            socket,
            cause,
            hint,
            is_denied: is(io::ErrorKind::PermissionDenied),
            is_busy,
        }
    }
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
