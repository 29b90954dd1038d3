//! Times as RFC 3339 writes them.

use std::time::{SystemTime, UNIX_EPOCH};

/// The present time in UTC.
pub(super) fn now() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let (seconds, nanos) = now.map_or((0, 0), |now| (now.as_secs(), now.subsec_nanos()));
    written(seconds, nanos)
}

fn written(seconds: u64, nanos: u32) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

/// Year, month and day of so many days after 1970 began. Years begin with March here, so that a leap day is their last
/// (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + later, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, time) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (951_868_800, "2000-03-01T00:00:00"),
            (1_709_164_800, "2024-02-29T00:00:00"),
            (4_107_542_400, "2100-03-01T00:00:00"),
            (1_795_702_937, "2026-11-26T14:22:17"),
        ] {
            assert_eq!(written(seconds, 5), format!("{time}.000000005Z"));
        }
    }
}
