//! Whole words in a text.

/// Whether a text contains a word, or several words in a row, as a whole: "Ann" is not in "Anna".
#[must_use]
pub fn has_word(text: &str, word: &str) -> bool {
    occurrences(text, word).next().is_some()
}

/// Where a word stands in a text as a whole, counted in bytes.
pub fn occurrences<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = usize> + 't {
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            let before = text[..at].chars().next_back();
            let after = text[at + word.len()..].chars().next();
            ![before, after]
                .into_iter()
                .flatten()
                .any(char::is_alphanumeric)
        })
}
