//! The results so far. They are printed once, as one JSON object on standard output: when all is done, or when a signal
//! ends the program in the middle of something long.

use std::{
    error::Error,
    io::{self, Write},
    mem, process,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::{Map, Value, json};
use sluice_daemon::offline::{SystemError, with_signals};
use sluice_shared::exit;

use super::scratch;

/// How long running work may continue after the first signal.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether a signal came: nothing new begins.
static IS_SIGNALLED: AtomicBool = AtomicBool::new(false);

/// Results by name, as they are found.
#[derive(Debug, Default)]
pub(super) struct Report(Mutex<Found>);

#[derive(Debug, Default)]
struct Found {
    figures: Map<String, Value>,
    is_told: bool,
}

/// Whether a signal asked this program to end.
pub(super) fn is_signalled() -> bool {
    IS_SIGNALLED.load(Ordering::Relaxed)
}

/// Does the work with a report that is also printed when a signal ends it: soon after the first one, at once after the
/// second.
pub(super) fn reporting<T>(work: impl FnOnce(&Report) -> T) -> Result<T, SystemError> {
    let report = Arc::new(Report::default());
    let found = Arc::clone(&report);
    let signalled = move || {
        if IS_SIGNALLED.swap(true, Ordering::Relaxed) {
            end(&found);
        }
        let words = "asked to end: what was found is told soon, or at once if asked again";
        // Standard error may be closed.
        drop(writeln!(io::stderr(), "{words}"));
        let found = Arc::clone(&found);
        let ends = thread::Builder::new().name("sluice-end".to_owned());
        let ends = ends.spawn(move || {
            thread::sleep(PATIENCE);
            end(&found);
        });
        // If no thread can start, the program ends when the work does, or at the second signal.
        drop(ends);
    };
    with_signals(signalled, || work(&report))
}

/// Prints the results while the work still runs.
fn end(report: &Report) -> ! {
    report.set("stopped", json!(true));
    report.tell();
    scratch::remove_all();
    process::exit(exit::FAILURE.into());
}

impl Report {
    /// Sets a value.
    pub(super) fn set(&self, name: &str, value: Value) {
        self.lock().figures.insert(name.to_owned(), value);
    }

    /// Adds a value to a list.
    pub(super) fn add(&self, name: &str, value: Value) {
        let mut found = self.lock();
        let list = found.figures.entry(name).or_insert(json!([]));
        if let Value::Array(list) = list {
            list.push(value);
        }
    }

    /// Prints the report, once, and returns whether that succeeded; an empty report is not printed.
    pub(super) fn tell(&self) -> bool {
        // Held while writing: whoever else prints the report ends the program afterwards, perhaps in the middle of
        // this.
        let mut found = self.lock();
        if found.is_told || found.figures.is_empty() {
            return true;
        }
        found.is_told = true;
        let report = Value::Object(mem::take(&mut found.figures));
        let mut output = io::stdout().lock();
        let written = writeln!(output, "{report:#}").and_then(|()| output.flush());
        written.is_ok()
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Failures, printed at once and in the report.
pub(super) struct Failures<'a> {
    report: &'a Report,
    count: usize,
}

impl<'a> Failures<'a> {
    pub(super) fn new(report: &'a Report) -> Self {
        Self { report, count: 0 }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn add(&mut self, what: &str, cause: &dyn Error) {
        eprintln!("FAILED {what}: {cause}");
        let failure = json!({ "what": what, "cause": cause.to_string() });
        self.report.add("failures", failure);
        self.count += 1;
    }
}
