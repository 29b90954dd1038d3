//! Quantities in a form for people.

use std::time::Duration;

/// Bytes in binary units with three significant digits: `512 B`, `1.50 KiB`, `14.9 GiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        // 999.5 and more would round to four digits.
        if value < 999.5 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let decimals = match value {
        // Limits lie where rounding would add a fourth digit.
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

/// Parses an amount of bytes as people write it: `4GiB`, `512 MiB`, `6.5GB`, `4G` (binary, as cgroups and systemd have
/// it), or plain bytes.
///
/// # Errors
/// What is wrong with the text, and an example.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    const EXAMPLES: &str = "write it like 4GiB, 512MiB or 6.5GB";
    let wrong = || format!("{text:?} is not an amount of memory; {EXAMPLES}");
    let trimmed = text.trim();
    let end = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let unit: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024f64.powi(2),
        "g" | "gib" => 1024f64.powi(3),
        "t" | "tib" => 1024f64.powi(4),
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return Err(wrong()),
    };
    let bytes = number * unit;
    // More than any machine has, so a typing error, and more than an `f64` counts exactly with a fraction.
    if bytes > 2f64.powi(50) {
        return Err(format!("{text:?} is more than any machine has; {EXAMPLES}"));
    }
    Ok(bytes as u64)
}

/// Parses a bandwidth as people write it: `500MB/s`, `1.5 GiB/s`, or without the `/s`.
///
/// # Errors
/// What is wrong with the text, and an example.
pub fn parse_bandwidth(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let amount = trimmed.strip_suffix("/s").unwrap_or(trimmed);
    let wrong = |_| format!("{text:?} is not a bandwidth; write it like 500MB/s or 1GiB/s");
    parse_bytes(amount).map_err(wrong)
}

/// Parses a duration as people write it: `90s`, `15m`, `1.5h`, `2d`.
///
/// # Errors
/// What is wrong with the text, and an example.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write it like 90s, 15m or 2h");
    let trimmed = text.trim();
    let end = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let unit = match unit.trim().to_ascii_lowercase().as_str() {
        "ms" => 0.001,
        "s" | "sec" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    let seconds = number * unit;
    // Also refuses what `Duration::from_secs_f64` would panic on.
    if seconds > 366.0 * 86_400.0 {
        return Err(format!("{text:?} is more than a year"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// The smallest amount of at least `count` bytes that is easy to type, in the form that [`parse_bytes`] reads: whole
/// MiB from 1 MiB on, else whole KiB.
#[must_use]
pub fn bytes_to_type(count: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    if count.is_multiple_of(GIB) && count > 0 {
        format!("{}GiB", count / GIB)
    } else if count > MIB - KIB {
        format!("{}MiB", count.div_ceil(MIB))
    } else {
        format!("{}KiB", count.div_ceil(KIB))
    }
}

/// Milliseconds as an estimate for people, in one unit and without false precision: `40 s`, `3 min`, `2 h`.
#[must_use]
pub fn about_ms(ms: f64) -> String {
    let seconds = ms / 1000.0;
    // From 95 s on, rounding to tens would say 100 s.
    if seconds < 95.0 {
        format!("{:.0} s", (seconds / 10.0).round().max(1.0) * 10.0)
    } else if seconds < 5700.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.0} h", seconds / 3600.0)
    }
}

/// An amount as people write it, if that is read back as the same, else its bytes: `4GiB`.
#[must_use]
pub fn bytes_exactly(bytes: u64) -> String {
    let rounded = bytes_to_type(bytes);
    match parse_bytes(&rounded) == Ok(bytes) {
        true => rounded,
        false => bytes.to_string(),
    }
}

/// Milliseconds as a duration of two significant parts: `35 ms`, `2.4 s`, `3 min 05 s`, `2 h 10 min`.
#[must_use]
pub fn duration_ms(ms: f64) -> String {
    let seconds = ms / 1000.0;
    // Limits lie where rounding would reach the next unit: 999.5 ms would read 1000 ms.
    if seconds < 0.9995 {
        format!("{ms:.0} ms")
    } else if seconds < 59.95 {
        format!("{seconds:.1} s")
    } else if seconds < 3600.0 {
        let whole = seconds.round() as u64;
        format!("{} min {:02} s", whole / 60, whole % 60)
    } else {
        let minutes = (seconds / 60.0).round() as u64;
        format!("{} h {:02} min", minutes / 60, minutes % 60)
    }
}

/// A count with its digits in groups: `126,464`.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// So many of something that has a regular plural: `1 source`, `2,048 rows`.
#[must_use]
pub fn several(value: u64, what: &str) -> String {
    let end = if value == 1 { "" } else { "s" };
    format!("{} {what}{end}", count(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, seconds) in [
            ("90s", 90.0),
            ("15m", 900.0),
            (" 1.5 h", 5400.0),
            ("250ms", 0.25),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs_f64(seconds)));
        }
        for wrong in ["", "15", "m", "-1m", "1w", "1e9h", "1.2.3s", "9999d"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("500MB/s", 500_000_000),
            (" 1.5 GiB/s ", 3 << 29),
            ("2g", 2 << 30),
        ] {
            assert_eq!(parse_bandwidth(text), Ok(bytes));
        }
        for wrong in ["", "/s", "fast", "500MB/h", "-1MB/s"] {
            assert!(parse_bandwidth(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bytes_keep_three_digits() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536, "1.50 KiB"),
            (10 << 20, "10.0 MiB"),
            (1023 << 20, "1.00 GiB"),
            (16_031_162_368, "14.9 GiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn bytes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4GiB", 4 << 30),
            ("512 MiB", 512 << 20),
            ("6.5GB", 6_500_000_000),
            ("2g", 2 << 30),
            ("1000", 1000),
            ("0", 0),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "-1",
            "4 apples",
            "1e9",
            "nan",
            "GiB",
            "1.2.3G",
            "99999999TiB",
        ] {
            let error = parse_bytes(text).unwrap_err();
            assert!(error.contains("4GiB"), "{error}");
        }
    }

    #[test]
    fn an_amount_to_type_is_enough_and_reads_back() {
        for (count, text) in [
            (0, "0KiB"),
            (1, "1KiB"),
            (1025, "2KiB"),
            ((1 << 20) - 1, "1MiB"),
            ((1 << 20) + 1, "2MiB"),
            (3 << 30, "3GiB"),
            ((3 << 30) + 1, "3073MiB"),
        ] {
            assert_eq!(bytes_to_type(count), text);
            let read = parse_bytes(text).unwrap();
            assert!(read >= count && read - count < 1 << 20, "{text}");
        }
    }

    #[test]
    fn estimates_claim_no_precision() {
        for (ms, text) in [
            (400.0, "10 s"),
            (34_000.0, "30 s"),
            (94_000.0, "90 s"),
            (185_000.0, "3 min"),
            (7_800_000.0, "2 h"),
        ] {
            assert_eq!(about_ms(ms), text);
        }
    }

    #[test]
    fn durations_pick_their_unit() {
        for (ms, text) in [
            (0.4, "0 ms"),
            (35.2, "35 ms"),
            (999.6, "1.0 s"),
            (2_430.0, "2.4 s"),
            (185_000.0, "3 min 05 s"),
            (7_800_000.0, "2 h 10 min"),
        ] {
            assert_eq!(duration_ms(ms), text);
        }
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!(count(7), "7");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(126_464), "126,464");
    }
}
