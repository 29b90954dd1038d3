//! Accepting connections, a bounded number at a time, and closing those that say nothing.

mod authority;
mod credentials;
mod frames;
mod handshakes;
mod hpack;
#[cfg(feature = "http")]
mod http;
mod local;
mod opening;
mod peers;
mod port;
mod rare;
mod wire;

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures_util::stream::{self, Stream};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixListener,
    sync::mpsc,
    time::{Sleep, sleep},
};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::server::Connected;

use authority::Authorities;
use frames::{Flood, Frames, Progress};
#[cfg(feature = "http")]
pub(super) use http::http_connections;
pub(super) use local::LocalNames;
use opening::Opening;
pub(super) use peers::{CallPlace, Peer};
use peers::{Peers, Visitor};
use port::Door;
pub use port::Port;
use rare::RareWarning;
use wire::Wire;

use crate::{
    access::AccessRules,
    caller::User,
    limits::{FIRST_CALL_TIMEOUT, FRAME_TIMEOUT, IDLE_TIMEOUT},
};

/// Pause after a failed accept, most likely for want of file descriptors: without it the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What is told where connections cannot be accepted.
const NOT_ACCEPTED: &str = "cannot accept a connection";
/// Bytes read from a connection at once.
const READ_BYTES: usize = 8 << 10;

/// Where connections come from.
#[derive(Debug)]
pub struct Listeners {
    /// The Unix socket, which is always there.
    pub unix: UnixListener,
    /// Listeners that take the Unix socket's place, one after another.
    pub replacements: mpsc::Receiver<UnixListener>,
    /// The port of gRPC, where one was asked for.
    pub port: Option<Port>,
}

/// Who is let in, and into which places, by whichever door they come. Clones share the places.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    access: Arc<AccessRules>,
    peers: Arc<Peers>,
    failures: Arc<RareWarning>,
}

impl Admission {
    pub(super) fn new(access: Arc<AccessRules>) -> Self {
        Self {
            access,
            peers: Arc::default(),
            failures: Arc::default(),
        }
    }

    /// A place for a connection. Without one it is to be closed at once, so that whoever comes next need not wait behind it.
    fn admit(&self, visitor: Visitor) -> Option<Arc<Peer>> {
        let peer = self.peers.take(visitor);
        if peer.is_none() {
            let reason = "all places of connections have calls under way";
            self.failures.tell(NOT_ACCEPTED, &reason);
        }
        peer
    }

    /// Says that a connection could not be accepted, and rests.
    async fn failed(&self, error: &io::Error) {
        self.failures.tell(NOT_ACCEPTED, error);
        sleep(ACCEPT_PAUSE).await;
    }
}

/// Accepted connections of gRPC.
pub(super) fn connections(
    listeners: Listeners,
    admission: Admission,
) -> impl Stream<Item = io::Result<Connection>> {
    let acceptor = Acceptor {
        unix: listeners.unix,
        replacements: listeners.replacements,
        door: listeners.port.map(|port| Door::new(port, &admission)),
        admission,
    };
    stream::unfold(acceptor, |mut acceptor| async {
        let connection = acceptor.next().await;
        Some((Ok(connection), acceptor))
    })
}

struct Acceptor {
    unix: UnixListener,
    replacements: mpsc::Receiver<UnixListener>,
    door: Option<Door>,
    admission: Admission,
}

impl Acceptor {
    /// The next connection that gets a place.
    async fn next(&mut self) -> Connection {
        loop {
            match self.accept().await {
                Ok((wire, visitor)) => {
                    if let Some(peer) = self.admission.admit(visitor) {
                        return Connection::new(wire, peer);
                    }
                }
                Err(error) => self.admission.failed(&error).await,
            }
        }
    }

    /// The next connection, and whose it is.
    async fn accept(&mut self) -> io::Result<(Wire, Visitor)> {
        let Self {
            unix,
            replacements,
            door,
            admission,
        } = self;
        let through_door = async {
            match door {
                Some(door) => door.accept().await,
                None => std::future::pending().await,
            }
        };
        let mut through_door = std::pin::pin!(through_door);
        loop {
            tokio::select! {
                accepted = unix.accept() => {
                    let (stream, _) = accepted?;
                    let peer = stream.peer_cred()?;
                    let user = User::Unix { uid: peer.uid() };
                    // Where the others can't be had, only rules about users and primary groups count.
                    let mut groups = credentials::groups(&stream).unwrap_or_default();
                    groups.push(peer.gid());
                    let visitor = Visitor {
                        user,
                        role: admission.access.role(user, &groups),
                        from: None,
                        needs_local_name: false,
                    };
                    return Ok((Wire::Unix(stream), visitor));
                }
                accepted = &mut through_door => return accepted,
                Some(replacement) = replacements.recv() => *unix = replacement,
            }
        }
    }
}

/// A connection that gives its place back when it ends.
#[derive(Debug)]
pub(super) struct Connection {
    wire: Wire,
    peer: Arc<Peer>,
    opening: Opening,
    frames: Frames,
    /// When the present frame, or the connection, was begun.
    begun: Instant,
    /// Wakes the connection when its patience may be over.
    alarm: Pin<Box<Sleep>>,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Rewrites `:authority`, on the Unix socket alone: on TCP it is checked against DNS rebinding.
    authorities: Option<Authorities>,
    /// Bytes read from the wire. Those from `handed` on are not handed to the HTTP/2 library yet.
    taken: Vec<u8>,
    handed: usize,
}

impl Connection {
    fn new(wire: Wire, peer: Arc<Peer>) -> Self {
        let authorities = match wire {
            Wire::Unix(_) => Some(Authorities::new()),
            Wire::Tcp(_) | Wire::Tls(_) => None,
        };
        Self {
            wire,
            opening: Opening::default(),
            frames: Frames::new(),
            begun: Instant::now(),
            alarm: Box::pin(sleep(FRAME_TIMEOUT)),
            closing: Box::pin(peer.closing.clone().cancelled_owned()),
            peer,
            authorities,
            taken: Vec::new(),
            handed: 0,
        }
    }

    /// Until when it may go on saying nothing; `None`: for ever, since a call is under way.
    fn patience(&self) -> Option<Instant> {
        if self.frames.is_unfinished() {
            return Some(self.begun + FRAME_TIMEOUT);
        }
        if self.peer.has_calls() {
            return None;
        }
        match self.peer.has_called() {
            true => Some(self.peer.silent_since() + IDLE_TIMEOUT),
            false => Some(self.begun + FIRST_CALL_TIMEOUT),
        }
    }

    /// Whether the connection is to end: another got its place, or its patience is over. Wakes the task when that may be.
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        if self.closing.as_mut().poll(cx).is_ready() {
            return true;
        }
        while self.alarm.as_mut().poll(cx).is_ready() {
            let next = match self.patience() {
                Some(until) if until <= Instant::now() => return true,
                Some(until) => until,
                None => Instant::now() + FRAME_TIMEOUT,
            };
            self.alarm.as_mut().reset(next.into());
        }
        // A frame that was begun has less time than the alarm may have been set to.
        if let Some(until) = self.patience()
            && until < self.alarm.deadline().into_std()
        {
            self.alarm.as_mut().reset(until.into());
            return self.is_over(cx);
        }
        false
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.peer.leave();
    }
}

impl Connected for Connection {
    type ConnectInfo = Arc<Peer>;

    fn connect_info(&self) -> Arc<Peer> {
        self.peer.clone()
    }
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
            // Also while there is something to read: who goes on sending is closed all the same.
            if own.peer.is_closing() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            match Pin::new(&mut own.wire).poll_read(cx, &mut read) {
                // The end of the stream, as if the client had closed it.
                Poll::Pending if own.is_over(cx) => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(done) => done?,
            }
            let came = read.filled();
            if came.is_empty() {
                return Poll::Ready(Ok(()));
            }
            own.opening.see(came);
            own.peer.touch();
            match own.frames.see(came) {
                Ok(Progress::Begun) => own.begun = Instant::now(),
                Ok(Progress::Same) => {}
                Err(Flood) => {
                    own.peer.warn("a flood of control frames");
                    return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
                }
            }
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

/// Ends a write that waits for a peer whose connection is over: nothing else would, where the peer doesn't read.
fn unless_over<T>(
    connection: &mut Connection,
    cx: &mut Context<'_>,
    done: Poll<io::Result<T>>,
) -> Poll<io::Result<T>> {
    match done.is_pending() && connection.is_over(cx) {
        true => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
        false => done,
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.wire).poll_flush(cx);
        unless_over(&mut self, cx, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.wire).poll_shutdown(cx);
        unless_over(&mut self, cx, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.wire).poll_write_vectored(cx, bufs);
        if let Poll::Ready(Ok(bytes)) = written {
            self.peer.sent(bytes);
        }
        unless_over(&mut self, cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
