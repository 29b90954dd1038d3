//! How long a caller waits for a process apart.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How often a wait looks whether anybody still waits.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// What a caller waits who says nothing else.
const WAIT_DEFAULT: Duration = Duration::from_secs(30);

/// How long a caller waits: until a moment, or until it is gone.
#[derive(Debug, Clone)]
pub struct Patience {
    until: Instant,
    gone: Arc<AtomicBool>,
}

impl Default for Patience {
    /// Half a minute from now on.
    fn default() -> Self {
        Self::new(WAIT_DEFAULT, Arc::default())
    }
}

impl Patience {
    /// Waits so long, but not for a caller who is `gone`.
    #[must_use]
    pub fn new(wait: Duration, gone: Arc<AtomicBool>) -> Self {
        Self {
            until: Instant::now() + wait,
            gone,
        }
    }

    /// What is left of the time.
    ///
    /// # Errors
    /// When nothing is left, or nobody waits any more.
    pub fn left(&self) -> Result<Duration, WaitEnded> {
        if self.gone.load(Ordering::Relaxed) {
            return Err(WaitEnded::Gone);
        }
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(WaitEnded::TimeUp),
            left => Ok(left),
        }
    }
}

/// Why a caller waits no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WaitEnded {
    /// The time is up.
    #[error("the time is up")]
    TimeUp,
    /// Nobody waits any more.
    #[error("the caller is gone")]
    Gone,
}

impl WaitEnded {
    /// Whether it is this that ended a [`Patient`]'s read or write.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

/// A stream whose reads and writes wait as long as somebody waits for them.
#[derive(Debug)]
pub struct Patient {
    /// A [`Process`](crate::Process)'s socket, or one of [`Patient::pair`]'s.
    pub stream: UnixStream,
    /// How long they wait.
    pub patience: Patience,
}

impl Patient {
    /// How often a wait looks whether anybody still waits.
    pub const LOOK_INTERVAL: Duration = LOOK_INTERVAL;

    /// A pair of sockets, the first of them for a `Patient`.
    ///
    /// # Errors
    /// When the system has no sockets left.
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(LOOK_INTERVAL))?;
        ours.set_write_timeout(Some(LOOK_INTERVAL))?;
        Ok((ours, theirs))
    }

    fn retry<T>(
        &mut self,
        mut transfer: impl FnMut(&mut UnixStream) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            self.patience.left().map_err(io::Error::other)?;
            match transfer(&mut self.stream) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                done => return done,
            }
        }
    }
}

impl Read for &mut Patient {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.retry(|stream| stream.read(bytes))
    }
}

impl Write for &mut Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether an error says that the other end is closed.
#[must_use]
pub fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}
