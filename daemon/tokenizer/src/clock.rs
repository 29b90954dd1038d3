//! The date, for templates that tell the model what day it is. In UTC: the engine does not
//! read the environment, where the time zone is.

use std::time::{SystemTime, UNIX_EPOCH};

// 1970-01-01 was a Thursday.
const DAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

pub(super) fn seconds_now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs())
}

/// The conversions that templates use; others are left as they stand.
pub(super) fn strftime(format: &str, seconds: u64) -> String {
    let (year, month, day) = civil(seconds / 86_400);
    let weekday = DAYS[(seconds / 86_400 % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);

    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        match characters.next() {
            Some('Y') => text.push_str(&year.to_string()),
            Some('y') => text.push_str(&format!("{:02}", year % 100)),
            Some('m') => text.push_str(&format!("{month:02}")),
            Some('B') => text.push_str(month_name),
            Some('b' | 'h') => text.push_str(&month_name[..3]),
            Some('d') => text.push_str(&format!("{day:02}")),
            Some('A') => text.push_str(weekday),
            Some('a') => text.push_str(&weekday[..3]),
            Some('H') => text.push_str(&format!("{hour:02}")),
            Some('M') => text.push_str(&format!("{minute:02}")),
            Some('S') => text.push_str(&format!("{second:02}")),
            Some('F') => text.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => text.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('%') | None => text.push('%'),
            Some(other) => text.extend(['%', other]),
        }
    }
    text
}

/// Days since 1970-01-01 as year, month and day (Howard Hinnant, `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    // Days since 0000-03-01: in years that begin with March the leap day comes last, and months follow one formula.
    let shifted = days + 719_468;
    // The calendar repeats every 400 years, which have 146,097 days.
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    // Leap days are taken out: one in 4 years (1,460 days), none in 100 (36,524), one in 400 (146,096).
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // From March on, five months have 153 days: 31, 30, 31, 30 and 31.
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // date -u -d @N
        assert_eq!(strftime("%A %d %B %Y", 0), "Thursday 01 January 1970");
        assert_eq!(
            strftime("%a %d %b %y %T", 951_827_696),
            "Tue 29 Feb 00 12:34:56"
        );
        assert_eq!(
            strftime("%F %H:%M:%S 100%% %Q %", 1_735_689_599),
            "2024-12-31 23:59:59 100% %Q %"
        );
    }
}
