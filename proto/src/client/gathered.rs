//! A socket that is read now and then: what comes in between is read at once.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// A stream that rests after it was read empty. A daemon that tells a thousand things a second wakes whoever reads each of
/// them a thousand times; to read what gathered in the meantime costs a fraction.
pub(super) struct GatheredStream<T> {
    inner: T,
    /// Bytes that were read before, and how many of them were handed on.
    first: (Vec<u8>, usize),
    /// Bytes that were written before, of those that are still to be written.
    written: usize,
    rest: Duration,
    until: Pin<Box<Sleep>>,
}

/// What went over a connection before it became a [`GatheredStream`].
#[derive(Debug, Default)]
pub(super) struct FirstBytes {
    pub(super) read: Vec<u8>,
    /// So many of the bytes that whoever uses the stream will write.
    pub(super) written: usize,
}

impl<T> GatheredStream<T> {
    /// How many bytes of these went out before.
    fn skip(&mut self, bytes: usize) -> Option<usize> {
        let skipped = self.written.min(bytes);
        self.written -= skipped;
        (skipped > 0).then_some(skipped)
    }

    /// `rest` is what an answer may come later for it.
    pub(super) fn new(inner: T, first: FirstBytes, rest: Duration) -> Self {
        Self {
            inner,
            first: (first.read, 0),
            written: first.written,
            rest,
            until: Box::pin(sleep(Duration::ZERO)),
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for GatheredStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (first, handed) = &mut self.first;
        if *handed < first.len() {
            let now = buffer.remaining().min(first.len() - *handed);
            buffer.put_slice(&first[*handed..][..now]);
            *handed += now;
            return Poll::Ready(Ok(()));
        }
        // Most clients have no rest, since they wait for single answers.
        if !self.rest.is_zero() {
            ready!(self.until.as_mut().poll(context));
        }
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        // A full buffer says that there is more to be had.
        if buffer.remaining() > 0 && !self.rest.is_zero() {
            // Read empty: what comes during the rest gathers in the socket's buffer and is read at once.
            let end = Instant::now() + self.rest;
            self.until.as_mut().reset(end);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for GatheredStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(skipped) = self.skip(bytes.len()) {
            return Poll::Ready(Ok(skipped));
        }
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(skipped) = self.skip(slices.iter().map(|slice| slice.len()).sum()) {
            return Poll::Ready(Ok(skipped));
        }
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixStream,
    };

    use super::*;

    #[tokio::test]
    async fn what_came_while_it_rested_is_read_at_once() {
        let (mut writer, reader) = UnixStream::pair().expect("a pair");
        let rest = Duration::from_millis(30);
        let mut gathered = GatheredStream::new(reader, FirstBytes::default(), rest);
        let mut buffer = [0; 64];
        writer.write_all(b"one").await.expect("written");
        let start = Instant::now();
        assert_eq!(gathered.read(&mut buffer).await.expect("read"), 3);
        writer.write_all(b"two").await.expect("written");
        writer.write_all(b"three").await.expect("written");
        assert_eq!(gathered.read(&mut buffer).await.expect("read"), 8);
        assert!(start.elapsed() >= rest);
        drop(writer);
        assert_eq!(gathered.read(&mut buffer).await.expect("read"), 0);
    }

    #[tokio::test]
    async fn what_was_written_before_is_not_written_again() {
        let (mut reader, writer) = UnixStream::pair().expect("a pair");
        let first = FirstBytes {
            read: Vec::new(),
            written: 5,
        };
        let mut gathered = GatheredStream::new(writer, first, Duration::ZERO);
        for bytes in [&b"one"[..], b"two", b"three"] {
            gathered.write_all(bytes).await.expect("written");
        }
        drop(gathered);
        let mut came = String::new();
        reader.read_to_string(&mut came).await.expect("read");
        assert_eq!(came, "othree");
    }
}
