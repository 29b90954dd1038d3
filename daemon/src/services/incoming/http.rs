//! Connections of HTTP/1.1. What they say is looked at by the front that serves them, which has a patience of its own.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::stream::{self, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{Admission, Door, Peer, Port, Wire};

/// Accepted connections of a port that serves HTTP.
pub(in crate::services) fn http_connections(
    port: Port,
    admission: Admission,
) -> impl Stream<Item = HttpConnection> {
    let door = Door::new(port, &admission);
    stream::unfold((door, admission), |(mut door, admission)| async {
        loop {
            match door.accept().await {
                Ok((wire, visitor)) => {
                    if let Some(peer) = admission.admit(visitor) {
                        let connection = HttpConnection::new(wire, peer);
                        return Some((connection, (door, admission)));
                    }
                }
                Err(error) => admission.failed(&error).await,
            }
        }
    })
}

/// A connection that gives its place back when it ends, and ends when another gets its place.
#[derive(Debug)]
pub(in crate::services) struct HttpConnection {
    wire: Wire,
    peer: Arc<Peer>,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl HttpConnection {
    fn new(wire: Wire, peer: Arc<Peer>) -> Self {
        Self {
            wire,
            closing: Box::pin(peer.closing.clone().cancelled_owned()),
            peer,
        }
    }

    /// Whose connection it is.
    pub(in crate::services) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// What was done, unless the connection is to end.
    fn unless_closing<T>(
        &mut self,
        cx: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.closing.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if done.is_ready() {
            self.peer.touch();
        }
        done
    }
}

impl Drop for HttpConnection {
    fn drop(&mut self) {
        self.peer.leave();
    }
}

impl AsyncRead for HttpConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.wire).poll_read(cx, buf);
        self.unless_closing(cx, done)
    }
}

impl AsyncWrite for HttpConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.wire).poll_write(cx, bytes);
        self.unless_closing(cx, done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.wire).poll_flush(cx);
        self.unless_closing(cx, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.wire).poll_shutdown(cx);
        self.unless_closing(cx, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.wire).poll_write_vectored(cx, pieces);
        self.unless_closing(cx, done)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
