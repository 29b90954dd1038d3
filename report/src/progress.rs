//! How far something is.

use sluice_proto::v1::ProgressUnit;
use sluice_shared::units;

/// A line that says how much is done, and, where the rate is known, how long the rest takes.
#[must_use]
pub fn advance(verb: &str, done: u64, total: u64, bytes_per_second: Option<f64>) -> String {
    let mut line = format!(
        "{verb} {} {} of {}",
        bar(done, total),
        units::bytes(done),
        units::bytes(total)
    );
    // Below a byte a second the transfer stands still, and the time that is left would be nonsense.
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

/// As [`advance`], of what is counted and not measured in bytes.
#[must_use]
pub fn counted(verb: &str, done: u64, total: u64, unit: ProgressUnit) -> String {
    format!(
        "{verb} {} {} of {} {unit}",
        bar(done, total),
        units::count(done),
        units::count(total)
    )
}

/// Columns of the bar.
const BAR_COLUMNS: u64 = 24;

/// How much of something is done.
#[must_use]
pub fn bar(part: u64, whole: u64) -> String {
    let filled = match whole {
        0 => 0,
        // In 128 bits, so that no count of bytes overflows.
        whole => (u128::from(part.min(whole)) * u128::from(BAR_COLUMNS) / u128::from(whole)) as u64,
    };
    let filled = "━".repeat(filled as usize);
    format!("{filled:─<0$}", BAR_COLUMNS as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_has_one_width() {
        assert_eq!(bar(0, 0).chars().count(), 24);
        assert_eq!(bar(1, 2), "━".repeat(12) + &"─".repeat(12));
        assert_eq!(bar(9, 2), "━".repeat(24));
        assert_eq!(bar(u64::MAX, u64::MAX), "━".repeat(24));
    }
}
