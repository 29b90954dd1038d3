//! A limit of the read rate, for when others need the disk.

use std::time::{Duration, Instant};

/// Computes when reads are due. Idle time is lost: it does not let later reads be faster.
#[derive(Debug)]
pub(super) struct ReadPace {
    bytes_per_s: u64,
    /// When the last bytes were due.
    last_due: Option<Instant>,
}

impl ReadPace {
    pub(super) fn new(bytes_per_s: u64) -> Self {
        Self {
            // A rate of 0 would make the time below infinite, on which `from_secs_f64` panics.
            bytes_per_s: bytes_per_s.max(1),
            last_due: None,
        }
    }

    /// When so many bytes are due, if their read began at `begun`.
    pub(super) fn due(&mut self, begun: Instant, bytes: u64) -> Instant {
        // Not earlier than the read began: a pause must not be made up for by a burst.
        let free = self.last_due.map_or(begun, |last| last.max(begun));
        let due = free + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        self.last_due = Some(due);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_due_one_after_the_other_and_never_in_a_burst() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pace = ReadPace::new(1000);
        assert_eq!(pace.due(at(0), 100), at(100));
        // A read that begins late, one that begins early, and one after a rest of ten seconds.
        assert_eq!(pace.due(at(150), 100), at(250));
        assert_eq!(pace.due(at(200), 200), at(450));
        assert_eq!(pace.due(at(10_450), 100), at(10_550));
        assert_eq!(pace.due(at(10_451), 100), at(10_650));
    }

    #[test]
    fn no_rate_is_too_low_to_wait_for() {
        let start = Instant::now();
        assert_eq!(
            ReadPace::new(0).due(start, 2),
            start + Duration::from_secs(2)
        );
    }
}
