//! Failing reservations, for tests: any reservation may be made to fail.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Ledger;

/// Makes one reservation fail that would have succeeded, where a test asks for it.
#[derive(Default)]
pub(super) struct Faults {
    /// Reservations until one fails; 0: none will.
    left: AtomicU64,
}

impl Faults {
    pub(super) fn strikes(&self) -> bool {
        let counted = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
        counted == Ok(1)
    }
}

impl Ledger {
    /// Lets the reservation with this number, counted from 1 from now on, fail; 0: none.
    pub fn fail_at(&self, number: u64) {
        self.counters.faults.left.store(number, Ordering::Relaxed);
    }

    /// Whether the reservation that was to fail has been met.
    pub fn has_failed(&self) -> bool {
        self.counters.faults.left.load(Ordering::Relaxed) == 0
    }
}
