//! What commands that work without a daemon have in common: an end on a signal, and a line that tells how far they are.

use std::{
    io::{self, IsTerminal, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use sluice_report::progress::advance;
use sluice_shared::bandwidth::Bandwidth;
use tokio::signal::unix::{SignalKind, signal};

/// How often the progress line changes.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The system refused what the work needs around it.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation}: {cause}")]
pub struct SystemError {
    /// What could not be done, as a verb: `start the runtime`.
    pub operation: &'static str,
    /// The system's error.
    pub cause: io::Error,
}

/// Runs the work with a flag that SIGINT and SIGTERM set, so that nothing half-written is left.
pub(crate) fn until_signalled<T>(work: impl FnOnce(&AtomicBool) -> T) -> Result<T, SystemError> {
    let cancel = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&cancel);
    with_signals(
        move || flag.store(true, Ordering::Relaxed),
        || work(&cancel),
    )
}

/// Runs the work; SIGINT and SIGTERM, whenever one comes meanwhile, call `signalled` in another thread.
///
/// # Errors
/// Where signals can't be listened for.
pub fn with_signals<T>(
    signalled: impl Fn() + Send + Sync + 'static,
    work: impl FnOnce() -> T,
) -> Result<T, SystemError> {
    let system = |operation| move |cause| SystemError { operation, cause };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(system("start the runtime"))?;
    let signalled = Arc::new(signalled);
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let context = runtime.enter();
        let mut signal = signal(kind).map_err(system("listen for signals"))?;
        drop(context);
        let signalled = Arc::clone(&signalled);
        runtime.spawn(async move {
            while signal.recv().await.is_some() {
                signalled();
            }
        });
    }
    let result = work();
    runtime.shutdown_background();
    Ok(result)
}

/// Writes what was asked for to standard output.
pub(crate) fn print(text: &str) -> Result<(), SystemError> {
    match io::stdout().write_all(text.as_bytes()) {
        // A reader that has seen enough is no failure.
        Err(cause) if cause.kind() != io::ErrorKind::BrokenPipe => Err(SystemError {
            operation: "write",
            cause,
        }),
        _ => Ok(()),
    }
}

/// A line on standard error that the next one replaces; nothing unless that is a terminal.
pub(crate) struct ProgressLine {
    /// What is done, as `writing`.
    verb: &'static str,
    terminal: bool,
    begun: Instant,
    shown: Option<Instant>,
    bandwidth: Bandwidth,
}

impl ProgressLine {
    pub(crate) fn new(verb: &'static str) -> Self {
        Self {
            verb,
            terminal: io::stderr().is_terminal(),
            begun: Instant::now(),
            shown: None,
            bandwidth: Bandwidth::default(),
        }
    }

    /// How long the work has taken so far.
    pub(crate) fn elapsed_ms(&self) -> f64 {
        self.begun.elapsed().as_secs_f64() * 1000.0
    }

    pub(crate) fn show(&mut self, done: u64, total: u64) {
        let fresh = self
            .shown
            .is_some_and(|shown| shown.elapsed() < PROGRESS_INTERVAL);
        if !self.terminal || fresh {
            return;
        }
        let now = Instant::now();
        self.shown = Some(now);
        self.bandwidth.record(now, done);
        let line = advance(self.verb, done, total, self.bandwidth.bytes_per_second());
        // A line that wraps could not be replaced.
        let size = rustix::termios::tcgetwinsize(io::stderr());
        let columns = size.map_or(80, |size| usize::from(size.ws_col));
        let line: String = line.chars().take(columns.saturating_sub(1)).collect();
        // A terminal that went away is no reason to stop.
        let _ = write!(io::stderr(), "\r{line}\x1b[K");
    }

    pub(crate) fn clear(&self) {
        if self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
