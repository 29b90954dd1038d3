//! Untrusted text made safe to show, and fitted to a width.
//!
//! Prompts, model output and daemon messages may hold escape sequences that would move the
//! cursor, retitle the window or worse. Whatever goes to a terminal passes [`sanitise`].

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Shown in the place of a character that could steer the terminal.
pub const REPLACEMENT: char = '\u{fffd}';

/// `text` without characters that could steer a terminal: control characters (but for newline
/// and tab) and marks that reorder text become [`REPLACEMENT`]; a CR before LF is dropped.
#[must_use]
pub fn sanitise(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\r' if characters.peek() == Some(&'\n') => {}
            other => clean.push(safe_char(other)),
        }
    }
    clean
}

/// The same for one line: newlines and tabs become spaces.
#[must_use]
pub fn sanitise_line(text: &str) -> String {
    sanitise(text).replace(['\n', '\t'], " ")
}

/// The character itself, or [`REPLACEMENT`] if it could steer a terminal.
#[must_use]
pub fn safe_char(character: char) -> char {
    match character {
        '\n' | '\t' => character,
        // Overrides and isolates reorder what follows them, beyond the text they came in.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => REPLACEMENT,
        // Line and paragraph separators would break a line that was measured as one.
        '\u{2028}' | '\u{2029}' => REPLACEMENT,
        other if other.is_control() => REPLACEMENT,
        other => other,
    }
}

/// Width of `text` in terminal columns.
#[must_use]
pub fn width(text: &str) -> usize {
    text.width()
}

/// Width of a character in terminal columns; 0 for control characters and combining marks.
#[must_use]
pub fn char_width(character: char) -> usize {
    character.width().unwrap_or(0)
}

/// As much of the start of `text` as fits into `columns`, with an ellipsis where it was cut.
#[must_use]
pub fn clip(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut clipped = String::new();
    let mut used = 0;
    for character in text.chars() {
        used += char_width(character);
        if used >= columns {
            break;
        }
        clipped.push(character);
    }
    // A variation selector can widen the character before it, so the sum of widths may be too small.
    while width(&clipped) >= columns.max(1) {
        clipped.pop();
    }
    if columns > 0 {
        clipped.push('…');
    }
    clipped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_lose_their_teeth() {
        let hostile = "a\x1b]0;title\x07b\u{9b}31mc\r\nd\te\x7f\rf\u{202e}g";
        let shown = sanitise(hostile);
        assert_eq!(
            shown,
            "a\u{fffd}]0;title\u{fffd}b\u{fffd}31mc\nd\te\u{fffd}\u{fffd}f\u{fffd}g"
        );
        assert!(
            shown
                .chars()
                .all(|c| !c.is_control() || c == '\n' || c == '\t')
        );
    }

    #[test]
    fn ordinary_text_of_any_script_is_left_alone() {
        for text in [
            "naïve café",
            "日本語",
            "עברית",
            "🦀 👩\u{200d}🚀",
            "line\nline",
        ] {
            assert_eq!(sanitise(text), text);
        }
    }

    #[test]
    fn clipping_counts_columns_not_characters() {
        assert_eq!(clip("hello", 5), "hello");
        assert_eq!(clip("hello", 4), "hel…");
        assert_eq!(clip("日本語", 5), "日本…");
        assert_eq!(clip("日本語", 4), "日…");
        let hearts = "❤\u{fe0f}".repeat(10);
        assert!(width(&clip(&hearts, 8)) <= 8);
        assert_eq!(clip("hello", 1), "…");
        assert_eq!(clip("hello", 0), "");
    }
}
