//! Whether the engine counts as stuck, and in which words that is said.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sluice_engine::heartbeat::Activity;
use sluice_shared::units;

/// The engine's thread is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// What it began to do.
    pub activity: Activity,
    /// How long it had not got on when that was found.
    pub quiet: Duration,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.activity {
            Activity::Idle => "the engine does not begin with what waits",
            Activity::Passes => "a pass does not get on",
            Activity::Change => "a load or a change does not get on",
            Activity::Turn => "no engine has the turn, for which one waits",
        };
        let quiet = units::duration_ms(self.quiet.as_secs_f64() * 1000.0);
        write!(f, "stuck: {what}, for {quiet} so far")
    }
}

/// Whether the engine is stuck, as last judged.
#[derive(Debug, Default)]
pub struct StallReport(Mutex<Option<Stall>>);

impl StallReport {
    /// Why it counts as stuck; `None` while it gets on.
    #[must_use]
    pub fn get(&self) -> Option<Stall> {
        *self.lock()
    }

    /// Sets it; whether the engine has got stuck or loose by that.
    pub(crate) fn set(&self, stall: Option<Stall>) -> bool {
        let mut present = self.lock();
        let changes = present.is_some() != stall.is_some();
        // The first finding stays: otherwise each look would tell another time.
        if changes {
            *present = stall;
        }
        changes
    }

    fn lock(&self) -> MutexGuard<'_, Option<Stall>> {
        // A panic cannot leave a single assignment half-done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
