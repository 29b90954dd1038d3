//! Choosing words of an answer to rewrite.

use std::ops::Range;

use crate::text::char_width;

/// A choice of consecutive words of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WordChoice {
    /// Index of the turn.
    pub turn: usize,
    /// Byte ranges of the turn's words.
    pub words: Vec<Range<usize>>,
    /// Index of the word under the cursor.
    pub at: usize,
    /// Index of the word at which the span was begun; `None` before that.
    pub from: Option<usize>,
}

impl WordChoice {
    /// The words of a turn's text, with the cursor on the first; `None` where there are none.
    #[must_use]
    pub fn of(turn: usize, text: &str) -> Option<Self> {
        let words = words(text);
        (!words.is_empty()).then_some(Self {
            turn,
            words,
            at: 0,
            from: None,
        })
    }

    /// The chosen bytes: from the word at which the span was begun to the cursor's, both included.
    #[must_use]
    pub fn span(&self) -> Option<Range<usize>> {
        let from = self.from.unwrap_or(self.at);
        let first = self.words.get(from.min(self.at))?;
        let last = self.words.get(from.max(self.at))?;
        Some(first.start..last.end)
    }

    /// Moves the cursor by this many words.
    pub(in super::super) fn step(&mut self, by: isize) {
        let last = self.words.len() - 1;
        self.at = self.at.saturating_add_signed(by).min(last);
    }
}

/// Byte ranges of words: text between spaces, and each character of scripts that are written without spaces.
fn words(text: &str) -> Vec<Range<usize>> {
    let mut words: Vec<Range<usize>> = Vec::new();
    let mut is_open = false;
    for (at, character) in text.char_indices() {
        let end = at + character.len_utf8();
        let is_alone = char_width(character) > 1;
        match words.last_mut() {
            _ if character.is_whitespace() => is_open = false,
            Some(word) if is_open && !is_alone => word.end = end,
            _ => {
                words.push(at..end);
                is_open = !is_alone;
            }
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_between_spaces_or_single_wide_characters() {
        let of = |text: &'static str| -> Vec<&str> {
            words(text).into_iter().map(|word| &text[word]).collect()
        };
        assert_eq!(of("  a, b\n\tcd "), ["a,", "b", "cd"]);
        assert_eq!(of("ab日本c"), ["ab", "日", "本", "c"]);
        assert_eq!(WordChoice::of(0, " \n"), None);
    }
}
