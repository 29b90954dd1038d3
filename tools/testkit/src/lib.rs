//! What tests of several crates share. It depends on no other crate of the workspace, so that a change to a crate
//! rebuilds only the tests above it.

pub mod apart;
pub mod certificates;
pub mod here;
pub mod hub;
pub mod stand_in;
pub mod terminal;

use std::{
    io::Write,
    thread,
    time::{Duration, Instant},
};

/// How long a test waits: only a failure takes as long, since machines may be busy.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Says that the calling test, or a part of it, passes without having run. `cargo ci` and `.ci/run` count these lines.
pub fn not_run(why: &str) {
    let thread = thread::current();
    // The test harness names the threads of tests after them.
    let test = thread.name().unwrap_or("a test");
    // One write, and a line of its own whatever others have begun to write. The harness keeps what `eprintln!` says in
    // tests that pass, and lets this through.
    let line = format!("\nnot run: {test}: {why}\n");
    let written = std::io::stderr().write_all(line.as_bytes());
    written.expect("somebody counts these lines");
}
