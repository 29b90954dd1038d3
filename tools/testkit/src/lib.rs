//! What tests of several crates share. It depends on no other crate of this workspace, so that a change to one of them
//! rebuilds the tests of those above it alone.

pub mod apart;
pub mod here;
pub mod hub;
pub mod stand_in;
pub mod terminal;

use std::{
    io::Write,
    thread,
    time::{Duration, Instant},
};

/// How long something may take; only a failure takes as long, and machines may be busy.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Says that a test passes without having run, in a line that `cargo ci` and `.ci/run` count: what begins with `not run: `.
///
/// It bypasses what the test harness keeps of a test that passes, which `eprintln!` doesn't.
pub fn not_run(why: &str) {
    let mut stderr = std::io::stderr().lock();
    // One write, and a line of its own whatever others have begun to write. Without anybody to read it, nobody counts.
    let _ = stderr.write_all(format!("\nnot run: {why}\n").as_bytes());
}
