//! Whether a client is still there while its request is answered.
//!
//! The HTTP library looks for a connection's end only while it holds no bytes that it has not used, such as a line end behind a
//! request, or the next request. So the end is looked for here, beside the library: what comes before it is kept, and handed to the
//! library when that reads.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{limits::BUFFER_BYTES_MAX, patience::UnreadBody};

/// A stream that can be looked at beside its reader.
#[derive(Debug)]
pub(crate) struct WatchedStream<S>(Arc<Mutex<ReadAhead<S>>>);

/// Looks for the end of a [`WatchedStream`].
#[derive(Debug)]
pub(crate) struct ClientWatch<S>(Arc<Mutex<ReadAhead<S>>>);

#[derive(Debug)]
struct ReadAhead<S> {
    stream: S,
    /// What came while the reader did not read.
    bytes: Vec<u8>,
}

/// A stream, and what looks for its end.
pub(crate) fn watched<S>(stream: S) -> (WatchedStream<S>, ClientWatch<S>) {
    let bytes = Vec::new();
    let stream = Arc::new(Mutex::new(ReadAhead { stream, bytes }));
    (WatchedStream(stream.clone()), ClientWatch(stream))
}

fn lock<S>(stream: &Mutex<ReadAhead<S>>) -> MutexGuard<'_, ReadAhead<S>> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: AsyncRead + Unpin> ClientWatch<S> {
    /// Whether the client has gone, or has sent more ahead than is kept for it. To be asked while a request is answered alone: what
    /// is read here beyond that is not read by who waits for it.
    pub(crate) fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        let ahead = &mut *lock(&self.0);
        while ahead.bytes.len() < BUFFER_BYTES_MAX {
            let mut piece = [0; 1 << 10];
            let mut read = ReadBuf::new(&mut piece);
            let end = ready!(Pin::new(&mut ahead.stream).poll_read(cx, &mut read));
            if end.is_err() || read.filled().is_empty() {
                break;
            }
            ahead.bytes.extend_from_slice(read.filled());
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let ahead = &mut *lock(&self.0);
        if ahead.bytes.is_empty() {
            return Pin::new(&mut ahead.stream).poll_read(cx, buf);
        }
        let count = ahead.bytes.len().min(buf.remaining());
        buf.put_slice(&ahead.bytes[..count]);
        ahead.bytes.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut lock(&self.0).stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.0).stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.0).stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut lock(&self.0).stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        lock(&self.0).stream.is_write_vectored()
    }
}

/// The body of a request, which counts as unread until its end or until nobody wants it.
#[derive(Debug)]
pub(crate) struct RequestBody<B> {
    body: B,
    unread: Option<UnreadBody>,
}

impl<B: HttpBody> RequestBody<B> {
    pub(crate) fn new(body: B, unread: UnreadBody) -> Self {
        let unread = Some(unread).filter(|_| !body.is_end_stream());
        Self { body, unread }
    }
}

impl<B: HttpBody + Unpin> HttpBody for RequestBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.unread = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::timeout,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_end_is_seen_behind_bytes_which_the_reader_gets() {
        let (mut client, server) = duplex(1 << 20);
        let (mut stream, watch) = watched(server);
        let mut gone = poll_fn(|cx| watch.poll_gone(cx));
        client.write_all(b"\r\nGET /").await.unwrap();
        let there = timeout(Duration::from_secs(1), &mut gone).await;
        assert!(there.is_err(), "bytes are no end");
        client.write_all(b" more").await.unwrap();
        drop(client);
        gone.await;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "\r\nGET / more");
    }

    #[tokio::test]
    async fn who_sends_too_much_ahead_counts_as_gone() {
        let (mut client, server) = duplex(1 << 20);
        let (_stream, watch) = watched(server);
        client.write_all(&[b'a'; BUFFER_BYTES_MAX]).await.unwrap();
        poll_fn(|cx| watch.poll_gone(cx)).await;
    }
}
