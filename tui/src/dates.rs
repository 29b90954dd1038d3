//! Days of the calendar, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds of a day.
const DAY: u64 = 86_400;
/// Days from the first of March of the year 0 to the first of January 1970.
const DAYS_TO_1970: u64 = 719_468;

/// A time of the calendar.
struct CalendarTime {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl CalendarTime {
    fn of(seconds: u64) -> Self {
        // Years that begin in March have their leap day at the end (Hinnant, "chrono-compatible low-level date algorithms").
        let days = seconds / DAY + DAYS_TO_1970;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let from_march = (5 * day + 2) / 153;
        let month = match from_march {
            0..10 => from_march + 3,
            _ => from_march - 9,
        };
        let time = seconds % DAY;
        Self {
            year: era * 400 + year + u64::from(month <= 2),
            month,
            day: day - (153 * from_march + 2) / 5 + 1,
            hour: time / 3_600,
            minute: time / 60 % 60,
            second: time % 60,
        }
    }
}

/// Seconds since 1970, now.
#[must_use]
pub fn now() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |time| time.as_secs())
}

/// Seconds since 1970 as a date and time of day that sort by name: `20260102-030405`.
#[must_use]
pub fn stamp(seconds: u64) -> String {
    let CalendarTime {
        year,
        month,
        day,
        hour,
        minute,
        second,
    } = CalendarTime::of(seconds);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// The same for people: `2026-01-02 03:04:05`.
#[must_use]
pub fn time(seconds: u64) -> String {
    let CalendarTime {
        hour,
        minute,
        second,
        ..
    } = CalendarTime::of(seconds);
    format!("{} {hour:02}:{minute:02}:{second:02}", date(seconds))
}

/// The day alone: `2026-01-02`.
#[must_use]
pub fn date(seconds: u64) -> String {
    let CalendarTime {
        year, month, day, ..
    } = CalendarTime::of(seconds);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The beginning of a day that is written as [`date`] writes it, in seconds since 1970; `None` for what is no such day.
#[must_use]
pub fn parse_date(text: &str) -> Option<u64> {
    let mut parts = text.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let is_known = (1970..10_000).contains(&year) && (1..=12).contains(&month);
    if !is_known || !(1..=31).contains(&day) {
        return None;
    }
    let year = year - u64::from(month <= 2);
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + of_year;
    let seconds = days.checked_sub(DAYS_TO_1970)? * DAY;
    // What a month does not have, such as the 30th of February, would be a day of the next.
    (CalendarTime::of(seconds).day == day).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(stamp(0), "19700101-000000");
        assert_eq!(stamp(951_782_399), "20000228-235959");
        assert_eq!(stamp(951_782_400), "20000229-000000");
        assert_eq!(stamp(951_868_800), "20000301-000000");
        assert_eq!(stamp(1_767_323_045), "20260102-030405");
        assert_eq!(time(1_767_323_045), "2026-01-02 03:04:05");
        let _ = stamp(u64::MAX);
    }

    #[test]
    fn days_are_read_back() {
        for days in (0..60_000).step_by(13) {
            assert_eq!(parse_date(&date(days * DAY)), Some(days * DAY));
        }
        for none in [
            "",
            "2026",
            "2026-02-29",
            "2026-13-01",
            "2026-01-32",
            "1969-12-31",
            "x-1-1",
        ] {
            assert_eq!(parse_date(none), None, "{none}");
        }
    }
}
