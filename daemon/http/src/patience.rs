//! A connection that is not waited for without end: neither for the headers of a request, nor for the next one, nor for a
//! client that takes nothing of what is written.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use crate::limits::{HEADER_TIMEOUT, KEEP_ALIVE_TIMEOUT, WRITE_TIMEOUT};

/// How a connection is used, as both its stream and its requests know it.
#[derive(Debug)]
pub(crate) struct Usage {
    /// Requests whose headers have come and whose answers are not written.
    requests: AtomicUsize,
    /// Requests whose headers have come so far.
    begun: AtomicUsize,
    /// Of the requests, those whose bodies are read.
    unread_bodies: AtomicUsize,
    /// When the last one ended, or the connection began.
    idle_since: Mutex<Instant>,
    /// Who waits for bytes while a request is under way, and has to wait less long once it ended.
    reader: AtomicWaker,
}

impl Usage {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            requests: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            unread_bodies: AtomicUsize::new(0),
            idle_since: Mutex::new(Instant::now()),
            reader: AtomicWaker::new(),
        })
    }

    /// Counts a request until the result is dropped.
    pub(crate) fn request(self: &Arc<Self>) -> RequestUnderWay {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed);
        RequestUnderWay(self.clone())
    }

    /// Counts a request's body as unread until the result is dropped.
    pub(crate) fn unread_body(self: &Arc<Self>) -> UnreadBody {
        self.unread_bodies.fetch_add(1, Ordering::Relaxed);
        UnreadBody(self.clone())
    }

    /// Whether a request is answered, and nothing more of it has to come.
    pub(crate) fn is_answered(&self) -> bool {
        self.has_requests() && self.unread_bodies.load(Ordering::Relaxed) == 0
    }

    fn has_requests(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0
    }

    fn idle_since(&self) -> Instant {
        *self
            .idle_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct RequestUnderWay(Arc<Usage>);

impl Drop for RequestUnderWay {
    fn drop(&mut self) {
        let mut idle_since = (self.0.idle_since.lock()).unwrap_or_else(PoisonError::into_inner);
        *idle_since = Instant::now();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
        // The HTTP library need not read again by itself, and nothing else would end the wait.
        self.0.reader.wake();
    }
}

/// A body that has not been read to its end.
#[derive(Debug)]
pub(crate) struct UnreadBody(Arc<Usage>);

impl Drop for UnreadBody {
    fn drop(&mut self) {
        self.0.unread_bodies.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream that ends when its peer is too slow.
#[derive(Debug)]
pub(crate) struct PatientStream<S> {
    stream: S,
    usage: Arc<Usage>,
    /// When the first byte of the present request's headers came.
    head_since: Option<Instant>,
    /// Requests before the present one.
    requests: usize,
    /// Since when nothing of what is written is taken.
    unread_since: Option<Instant>,
    alarm: Pin<Box<Sleep>>,
}

impl<S> PatientStream<S> {
    pub(crate) fn new(stream: S, usage: Arc<Usage>) -> Self {
        Self {
            stream,
            usage,
            head_since: None,
            requests: 0,
            unread_since: None,
            alarm: Box::pin(sleep_until(Instant::now())),
        }
    }

    /// Whether this time has come. If not, the task is woken then.
    fn is_past(&mut self, until: Instant, cx: &mut Context<'_>) -> bool {
        self.alarm.as_mut().reset(until);
        self.alarm.as_mut().poll(cx).is_ready()
    }

    /// Ends a write that waits for a peer who takes nothing.
    fn unless_unread<T>(
        &mut self,
        cx: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.unread_since = None;
            return done;
        }
        let since = *self.unread_since.get_or_insert_with(Instant::now);
        match self.is_past(since + WRITE_TIMEOUT, cx) {
            true => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            false => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PatientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let own = &mut *self;
        let requests = own.usage.begun.load(Ordering::Relaxed);
        if std::mem::replace(&mut own.requests, requests) != requests {
            own.head_since = None;
        }
        let read = Pin::new(&mut own.stream).poll_read(cx, buf);
        // A body has a time of its own, and an answer takes as long as it takes.
        if own.usage.has_requests() {
            own.usage.reader.register(cx.waker());
            // It may have ended before it was told whom to wake.
            if own.usage.has_requests() {
                return read;
            }
        }
        if read.is_ready() {
            own.head_since.get_or_insert_with(Instant::now);
            return read;
        }
        let until = match own.head_since {
            Some(begun) => begun + HEADER_TIMEOUT,
            None => own.usage.idle_since() + KEEP_ALIVE_TIMEOUT,
        };
        match own.unread_since.is_none() && own.is_past(until, cx) {
            // The end of the stream, as if the client had closed it.
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PatientStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.unless_unread(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(cx);
        self.unless_unread(cx, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.unless_unread(cx, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.unless_unread(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        time::timeout,
    };

    use super::*;

    fn pair() -> (DuplexStream, PatientStream<DuplexStream>, Arc<Usage>) {
        let (client, server) = duplex(64);
        let usage = Usage::new();
        (client, PatientStream::new(server, usage.clone()), usage)
    }

    /// Reads until the end, and how long that took.
    async fn end(stream: &mut PatientStream<DuplexStream>) -> Duration {
        let begun = Instant::now();
        stream.read_to_end(&mut Vec::new()).await.unwrap();
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_was_begun_has_less_time_than_the_next_request() {
        let (mut client, mut stream, _) = pair();
        client.write_all(b"GET /").await.unwrap();
        assert!(end(&mut stream).await <= HEADER_TIMEOUT * 2);
        let (_silent, mut stream, usage) = pair();
        let waited = end(&mut stream).await;
        assert!(waited >= KEEP_ALIVE_TIMEOUT && waited < KEEP_ALIVE_TIMEOUT * 2);
        drop(usage);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_under_way_is_waited_for_and_its_end_begins_the_wait_anew() {
        let (mut client, mut stream, usage) = pair();
        client.write_all(b"GET / HTTP/1.1").await.unwrap();
        let mut head = [0; 14];
        stream.read_exact(&mut head).await.unwrap();
        let request = usage.request();
        let wait = timeout(KEEP_ALIVE_TIMEOUT * 10, end(&mut stream)).await;
        assert!(wait.is_err(), "it was closed in the middle of a request");
        drop(request);
        assert!(end(&mut stream).await >= KEEP_ALIVE_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_closed() {
        let (_client, mut stream, usage) = pair();
        let _request = usage.request();
        let begun = Instant::now();
        let error = stream.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= WRITE_TIMEOUT);
    }
}
