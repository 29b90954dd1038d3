//! The text of an autoregressive answer as it may be shown: whole characters, and nothing that may turn out to be the
//! beginning of a stop string.

/// The text of an answer while it grows.
#[derive(Debug, Clone, Default)]
pub struct VisibleText {
    text: Vec<u8>,
    stops: Vec<Vec<u8>>,
    /// Bytes that may be shown.
    visible_len: usize,
    stopped: bool,
}

impl VisibleText {
    /// An empty text that ends where any of `stops` begins. Empty stop strings are ignored.
    #[must_use]
    pub fn new(stops: &[Vec<u8>]) -> Self {
        Self {
            stops: stops
                .iter()
                .filter(|stop| !stop.is_empty())
                .cloned()
                .collect(),
            ..Self::default()
        }
    }

    /// Adds the bytes of a token, which may be part of a character. After a stop nothing is added.
    pub fn push(&mut self, piece: &[u8]) {
        if self.stopped {
            return;
        }
        self.text.extend_from_slice(piece);
        // Shown bytes cannot be part of a stop string, so the search begins behind them.
        let from = self.visible_len;
        let tail = &self.text[from..];
        let found = self.stops.iter().filter_map(|stop| find(tail, stop)).min();
        if let Some(at) = found {
            self.stopped = true;
            self.text.truncate(from + at);
            self.visible_len = self.text.len();
            return;
        }
        let begun = self.stops.iter().map(|stop| begun(tail, stop)).max();
        // Both may hold back the same bytes, so the longer counts, not their sum.
        let held_back = begun.unwrap_or(0).max(unfinished(tail));
        self.visible_len = self.text.len() - held_back;
    }

    /// Whether a stop string was met.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.stopped
    }

    /// What may be shown so far; it only grows.
    #[must_use]
    pub fn shown(&self) -> &[u8] {
        &self.text[..self.visible_len]
    }

    /// Everything but an incomplete character at the end, for a text that was cut.
    #[must_use]
    pub fn whole(&self) -> &[u8] {
        &self.text[..self.text.len() - unfinished(&self.text)]
    }

    /// Everything, once nothing more comes.
    #[must_use]
    pub fn all(&self) -> &[u8] {
        &self.text
    }
}

/// Where `stop` begins in `text`; `None` where it does not occur.
fn find(text: &[u8], stop: &[u8]) -> Option<usize> {
    text.windows(stop.len()).position(|window| window == stop)
}

/// Bytes at the end of the text that are the beginning of `stop`.
fn begun(text: &[u8], stop: &[u8]) -> usize {
    // One byte less than the stop string, which would have been found as a whole. Stop strings are never empty.
    let longest = text.len().min(stop.len() - 1);
    let is_begun = |len: &usize| text.ends_with(&stop[..*len]);
    (1..=longest).rev().find(is_begun).unwrap_or(0)
}

/// Bytes at the end of the text that belong to an incomplete character.
fn unfinished(text: &[u8]) -> usize {
    // UTF-8: a character has at most 4 bytes, so an incomplete one has at most 3.
    let back = text.iter().rev().take(3);
    for (before, &byte) in back.enumerate() {
        let len = match byte {
            0b1100_0000..=0b1101_1111 => 2,
            0b1110_0000..=0b1110_1111 => 3,
            0b1111_0000..=0b1111_0111 => 4,
            // The middle of a character.
            0b1000_0000..=0b1011_1111 => continue,
            _ => return 0,
        };
        return match before + 1 < len {
            true => before + 1,
            false => 0,
        };
    }
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn visible(stops: &[&str]) -> VisibleText {
        let stops: Vec<_> = stops.iter().map(|stop| stop.as_bytes().to_vec()).collect();
        VisibleText::new(&stops)
    }

    #[test]
    fn half_a_character_waits_for_its_other_half() {
        let mut text = visible(&[]);
        let mut shown = Vec::new();
        for byte in "aé€😀".bytes() {
            text.push(&[byte]);
            shown.push(String::from_utf8(text.shown().to_vec()).unwrap());
        }
        let expected = [
            "a",
            "a",
            "aé",
            "aé",
            "aé",
            "aé€",
            "aé€",
            "aé€",
            "aé€",
            "aé€😀",
        ];
        assert_eq!(shown, expected);
        // What no character begins with is shown as it is.
        text.push(&[0xFF, 0x80]);
        assert_eq!(text.shown().len(), "aé€😀".len() + 2);
    }

    #[test]
    fn what_may_begin_a_stop_waits_and_a_stop_is_not_shown() {
        let mut text = visible(&["\nUser:", "END"]);
        text.push(b"hello\nUs");
        assert_eq!(text.shown(), b"hello");
        text.push(b"ual E");
        assert_eq!(text.shown(), b"hello\nUsual ");
        text.push(b"N");
        text.push(b"DEN and more");
        assert!(text.has_stopped());
        assert_eq!(
            (text.shown(), text.all()),
            (&b"hello\nUsual "[..], &b"hello\nUsual "[..])
        );
        text.push(b"nothing");
        assert_eq!(text.all(), b"hello\nUsual ");
    }

    #[test]
    fn a_text_that_is_cut_has_whole_characters() {
        let mut text = visible(&["END"]);
        text.push("a€ EN".as_bytes());
        assert_eq!(text.whole(), "a€ EN".as_bytes());
        text.push(&"€".as_bytes()[..2]);
        assert_eq!(text.whole(), "a€ EN".as_bytes());
        text.push(&"€".as_bytes()[2..]);
        assert_eq!(text.whole(), "a€ EN€".as_bytes());
    }

    #[test]
    fn at_the_end_all_is_shown() {
        let mut text = visible(&["END", ""]);
        text.push(b"the EN");
        assert_eq!((text.shown(), text.all()), (&b"the "[..], &b"the EN"[..]));
        assert!(!text.has_stopped());
    }

    proptest! {
        #[test]
        fn pieces_don_t_matter(text in "[ab€]{0,30}", cuts in prop::collection::vec(1usize..5, 1..40)) {
            let mut whole = visible(&["aab", "b€a"]);
            whole.push(text.as_bytes());
            let mut pieced = visible(&["aab", "b€a"]);
            let mut rest = text.as_bytes();
            for cut in cuts.into_iter().cycle() {
                if rest.is_empty() { break; }
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                let before = pieced.shown().to_vec();
                pieced.push(piece);
                prop_assert!(pieced.shown().starts_with(&before));
                rest = after;
            }
            let first = ["aab", "b€a"].iter().filter_map(|stop| text.find(stop)).min();
            prop_assert_eq!(whole.has_stopped(), first.is_some());
            // In pieces, the stop that is complete first ends the text.
            prop_assert_eq!(pieced.has_stopped(), first.is_some());
            prop_assert!(whole.all().starts_with(pieced.shown()) || pieced.all().starts_with(whole.shown()));
        }
    }
}
