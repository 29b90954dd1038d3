//! How fast something goes that goes byte by byte.

use std::time::{Duration, Instant};

/// Over how long a rate is taken.
const AVERAGING_TIME: Duration = Duration::from_secs(5);

/// How fast bytes come, over the last seconds.
#[derive(Debug, Default)]
pub struct Bandwidth {
    samples: Vec<(Instant, u64)>,
}

impl Bandwidth {
    /// Takes what is done by now.
    pub fn record(&mut self, now: Instant, bytes: u64) {
        // A file that had to be begun anew has fewer than before.
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

    /// `None` until there is something to tell from.
    #[must_use]
    pub fn bytes_per_second(&self) -> Option<f64> {
        let ((begun, first), (now, last)) = (self.samples.first()?, self.samples.last()?);
        let seconds = now.duration_since(*begun).as_secs_f64();
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
