//! The rate of a transfer that is counted in bytes.

use std::time::{Duration, Instant};

/// The span over which a rate is averaged.
const AVERAGING_TIME: Duration = Duration::from_secs(5);

/// The bandwidth of a transfer over the last seconds.
#[derive(Debug, Default)]
pub struct Bandwidth {
    samples: Vec<(Instant, u64)>,
}

impl Bandwidth {
    /// Records how many bytes are done by now.
    pub fn record(&mut self, now: Instant, bytes: u64) {
        // A file that was begun anew has fewer bytes than before.
        if self.samples.last().is_some_and(|(_, last)| *last > bytes) {
            self.samples.clear();
        }
        self.samples.push((now, bytes));
        let first = self
            .samples
            .iter()
            .position(|(at, _)| now.duration_since(*at) <= AVERAGING_TIME);
        self.samples.drain(..first.unwrap_or(0));
    }

    /// Bytes a second over the last seconds; `None` for less than half a second of samples.
    #[must_use]
    pub fn bytes_per_second(&self) -> Option<f64> {
        let ((begun, first), (now, last)) = (self.samples.first()?, self.samples.last()?);
        let seconds = now.duration_since(*begun).as_secs_f64();
        // Shorter spans say little: bytes come in large pieces.
        (seconds >= 0.5).then(|| (last - first) as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let start = Instant::now();
        let mut rate = Bandwidth::default();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        rate.record(at(0), 0);
        assert_eq!(rate.bytes_per_second(), None);
        for (second, bytes) in [(1, 1000), (10, 5000), (12, 7000)] {
            rate.record(at(second), bytes);
        }
        assert_eq!(rate.bytes_per_second(), Some(1000.0));
        rate.record(at(13), 0);
        assert_eq!(rate.bytes_per_second(), None);
    }
}
