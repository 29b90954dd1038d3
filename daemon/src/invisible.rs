//! Characters that a text has and a reader doesn't see.

/// Characters without a width, and those that turn a line's direction.
pub(crate) fn is_invisible(char: char) -> bool {
    matches!(
        char,
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
    )
}
