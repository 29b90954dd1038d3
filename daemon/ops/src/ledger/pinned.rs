//! Pinned host memory, from which a GPU copies and which no other program gets. One count serves all models, so that
//! the old one and the new one keep to a limit together during a switch.

use std::{fmt, sync::atomic::Ordering};

use super::Ledger;

/// A reservation of pinned memory; dropping it gives the bytes back.
pub struct PinnedEntry {
    bytes: u64,
    ledger: Ledger,
}

impl fmt::Debug for PinnedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedEntry({} bytes)", self.bytes)
    }
}

impl Drop for PinnedEntry {
    fn drop(&mut self) {
        let counters = &self.ledger.counters;
        counters.pinned.fetch_sub(self.bytes, Ordering::Relaxed);
        if let Some(share) = &counters.share {
            share.unpin(self.bytes);
        }
    }
}

impl Ledger {
    /// Bytes of the host's memory that are pinned for a GPU to copy weights from; no other figure contains them.
    #[must_use]
    pub fn pinned_bytes(&self) -> u64 {
        self.counters.pinned.load(Ordering::Relaxed)
    }

    /// Reserves bytes that are about to be pinned; `None` if the total would exceed this limit, or with those of other
    /// ledgers the budget's.
    pub fn pin(&self, bytes: u64, limit_bytes: u64) -> Option<PinnedEntry> {
        let more = |pinned: u64| {
            let now = pinned.checked_add(bytes);
            now.filter(|&now| now <= limit_bytes)
        };
        let pinned = &self.counters.pinned;
        let entered = pinned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        entered.ok()?;
        let share = self.counters.share.as_ref();
        if share.is_some_and(|share| share.pin(bytes).is_err()) {
            pinned.fetch_sub(bytes, Ordering::Relaxed);
            return None;
        }
        Some(PinnedEntry {
            bytes,
            ledger: self.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pinned_keeps_to_the_limit_whoever_pins_it() {
        let ledger = Ledger::default();
        let other = ledger.clone();
        let first = ledger.pin(60, 100).unwrap();
        assert!(other.pin(41, 100).is_none());
        let second = other.pin(40, 100).unwrap();
        assert_eq!(ledger.pinned_bytes(), 100);
        // Under a lower limit, as of another model, what is there stays.
        assert!(ledger.pin(1, 50).is_none());
        drop(first);
        assert_eq!(other.pinned_bytes(), 40);
        assert!(ledger.pin(u64::MAX, u64::MAX).is_none());
        drop(second);
        assert_eq!((ledger.pinned_bytes(), ledger.used_bytes()), (0, 0));
    }
}
