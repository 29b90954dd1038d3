//! What a thread that reads weights shares with those who ask it for them.

use std::{
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// A state under a lock, a signal that it has changed, and a flag that cancels the present read.
#[derive(Debug)]
pub(super) struct Monitor<S> {
    state: Mutex<S>,
    changed: Condvar,
    /// Set to cancel the present read.
    pub(super) abandon: AtomicBool,
}

impl<S> Monitor<S> {
    pub(super) fn new(state: S) -> Self {
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            abandon: AtomicBool::new(false),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, S> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all who wait.
    pub(super) fn notify(&self) {
        self.changed.notify_all();
    }

    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, S>) -> MutexGuard<'a, S> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for so long at most.
    pub(super) fn wait_for<'a>(
        &self,
        state: MutexGuard<'a, S>,
        most: Duration,
    ) -> MutexGuard<'a, S> {
        let waited = self.changed.wait_timeout(state, most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until `due`; false if the present read is cancelled before.
    pub(super) fn wait_until(&self, due: Instant) -> bool {
        let mut state = self.state();
        // The lock is held while the flag is read. Cancels are set under it, so none falls between this look and the
        // wait.
        while !self.abandon.load(Ordering::Relaxed) {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let waited = self.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        false
    }
}
