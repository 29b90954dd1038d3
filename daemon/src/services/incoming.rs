//! Accepting connections, a bounded number at a time.

mod authority;
mod hpack;
mod local;
mod opening;

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::stream::{self, Stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tonic::transport::server::Connected;

use authority::Authorities;
pub(super) use local::LocalNames;
use opening::Opening;

/// Pause after a failed accept, most likely for want of file descriptors: without it the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes read from a connection at once.
const READ_BYTES: usize = 8 << 10;

/// Where connections come from.
#[derive(Debug)]
pub struct Listeners {
    /// The Unix socket, which is always there.
    pub unix: UnixListener,
    /// A port of the loopback interface, where one was asked for.
    pub tcp: Option<TcpListener>,
}

/// The transport of a call, found among the request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Unix,
    Tcp,
}

/// Accepted connections of both listeners; with `max` of them open, the next waits in the system's backlog.
pub(super) fn connections(
    listeners: Listeners,
    max: usize,
) -> impl Stream<Item = io::Result<Connection>> {
    let places = Arc::new(Semaphore::new(max));
    stream::unfold((listeners, places), |(listeners, places)| async {
        // Before accepting, so that a connection without a place costs no descriptor.
        let place = places.clone().acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        let stream = loop {
            match accept(&listeners).await {
                Ok(stream) => break stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        };
        Some((Ok(Connection::new(stream, place)), (listeners, places)))
    })
}

async fn accept(listeners: &Listeners) -> io::Result<Wire> {
    let tcp = async {
        match &listeners.tcp {
            Some(tcp) => tcp.accept().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        accepted = listeners.unix.accept() => accepted.map(|(stream, _)| Wire::Unix(stream)),
        accepted = tcp => {
            let (stream, _) = accepted?;
            // A pass's event is small: Nagle's algorithm would hold it back for the next one.
            stream.set_nodelay(true)?;
            Ok(Wire::Tcp(stream))
        }
    }
}

/// A connection that gives its place back when it ends.
#[derive(Debug)]
pub(super) struct Connection {
    wire: Wire,
    opening: Opening,
    /// Rewrites `:authority`, on the Unix socket alone: on TCP it is checked against DNS rebinding.
    authorities: Option<Authorities>,
    /// Bytes read from the wire. Those from `handed` on are not handed to the HTTP/2 library yet.
    taken: Vec<u8>,
    handed: usize,
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Wire {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Connection {
    fn new(wire: Wire, place: OwnedSemaphorePermit) -> Self {
        let authorities = match wire {
            Wire::Unix(_) => Some(Authorities::new()),
            Wire::Tcp(_) => None,
        };
        Self {
            wire,
            opening: Opening::default(),
            authorities,
            taken: Vec::new(),
            handed: 0,
            _place: place,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Transport;

    fn connect_info(&self) -> Transport {
        match self.wire {
            Wire::Unix(_) => Transport::Unix,
            Wire::Tcp(_) => Transport::Tcp,
        }
    }
}

/// The same call on either kind of stream.
macro_rules! on_wire {
    ($connection:ident, $stream:ident => $call:expr) => {
        match &mut $connection.wire {
            Wire::Unix($stream) => $call,
            Wire::Tcp($stream) => $call,
        }
    };
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let own = &mut *self;
        // A loop, since all that was read may be held back until the rest of a frame comes, and returning no bytes would mean
        // the connection's end.
        while own.handed == own.taken.len() {
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(on_wire!(own, stream => Pin::new(stream).poll_read(cx, &mut read)))?;
            let came = read.filled();
            if came.is_empty() {
                return Poll::Ready(Ok(()));
            }
            own.opening.see(came);
            own.taken.clear();
            own.handed = 0;
            match &mut own.authorities {
                Some(authorities) => authorities.feed(came, &mut own.taken),
                None => own.taken.extend_from_slice(came),
            }
        }
        let left = &own.taken[own.handed..];
        let count = left.len().min(buf.remaining());
        buf.put_slice(&left[..count]);
        own.handed += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        on_wire!(self, stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_wire!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_wire!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_wire!(self, stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.wire {
            Wire::Unix(stream) => stream.is_write_vectored(),
            Wire::Tcp(stream) => stream.is_write_vectored(),
        }
    }
}
