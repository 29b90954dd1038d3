//! How far something is that goes byte by byte.

use std::time::{Duration, Instant};

use sluice_shared::units;

/// Over how long a rate is taken.
const RATE_WINDOW: Duration = Duration::from_secs(5);

/// A line that says how much is done, and, where the rate is known, how long the rest takes.
pub(super) fn advance(verb: &str, done: u64, total: u64, bytes_per_second: Option<f64>) -> String {
    let mut line = format!(
        "{verb} {} {} of {}",
        bar(done, total),
        units::bytes(done),
        units::bytes(total)
    );
    if let Some(rate) = bytes_per_second.filter(|rate| *rate >= 1.0) {
        let left = total.saturating_sub(done) as f64 / rate;
        line += &format!(
            ", {}/s, {} left",
            units::bytes(rate as u64),
            units::about_ms(left * 1000.0)
        );
    }
    line
}

/// Columns of the bar.
const BAR_COLUMNS: u64 = 24;

/// How much of something is done.
pub(super) fn bar(part: u64, whole: u64) -> String {
    let filled = match whole {
        0 => 0,
        whole => (u128::from(part.min(whole)) * u128::from(BAR_COLUMNS) / u128::from(whole)) as u64,
    };
    let filled = "━".repeat(filled as usize);
    format!("{filled:─<0$}", BAR_COLUMNS as usize)
}

/// How fast bytes come, over the last seconds.
#[derive(Default)]
pub(super) struct Rate {
    seen: Vec<(Instant, u64)>,
}

impl Rate {
    pub(super) fn see(&mut self, now: Instant, bytes: u64) {
        // A file that had to be begun anew has fewer than before.
        if self.seen.last().is_some_and(|(_, last)| *last > bytes) {
            self.seen.clear();
        }
        self.seen.push((now, bytes));
        let first = self
            .seen
            .iter()
            .position(|(at, _)| now.duration_since(*at) <= RATE_WINDOW);
        self.seen.drain(..first.unwrap_or(0));
    }

    /// `None` until there is something to tell from.
    pub(super) fn bytes_per_second(&self) -> Option<f64> {
        let ((begun, first), (now, last)) = (self.seen.first()?, self.seen.last()?);
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
        let mut rate = Rate::default();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        rate.see(at(0), 0);
        assert_eq!(rate.bytes_per_second(), None);
        for (second, bytes) in [(1, 1000), (10, 5000), (12, 7000)] {
            rate.see(at(second), bytes);
        }
        assert_eq!(rate.bytes_per_second(), Some(1000.0));
        rate.see(at(13), 0);
        assert_eq!(rate.bytes_per_second(), None);
    }

    #[test]
    fn the_bar_has_one_width() {
        assert_eq!(bar(0, 0).chars().count(), 24);
        assert_eq!(bar(1, 2), "━".repeat(12) + &"─".repeat(12));
        assert_eq!(bar(9, 2), "━".repeat(24));
        assert_eq!(bar(u64::MAX, u64::MAX), "━".repeat(24));
    }
}
