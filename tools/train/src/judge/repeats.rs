//! What stands twice in a row, which passes that fill several positions at once are prone to.

/// The longest run of tokens that is looked for: a name takes two to four.
const RUN_MAX: usize = 4;

/// How often up to four tokens are followed by the same tokens again ("was was", "ros·es·es", "Gre·ta Gre·ta"). The
/// language itself hardly ever does it: a letter of a name, "pulled and pulled and".
#[must_use]
pub fn repeats(tokens: &[u32]) -> usize {
    let (mut count, mut at) = (0, 0);
    while at < tokens.len() {
        let rest = &tokens[at..];
        let run =
            (1..=RUN_MAX).find(|&run| rest.len() >= 2 * run && rest[..run] == rest[run..2 * run]);
        count += usize::from(run.is_some());
        at += run.unwrap_or(1);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_twice_in_a_row_is_counted_once_and_thrice_twice() {
        assert_eq!(repeats(&[]), 0);
        assert_eq!(repeats(&[1, 2, 3, 1, 2, 4]), 0);
        assert_eq!(repeats(&[1, 2, 2, 3]), 1);
        assert_eq!(repeats(&[1, 2, 2, 2, 3]), 2);
        assert_eq!(repeats(&[5, 1, 2, 1, 2, 5]), 1);
        assert_eq!(repeats(&[1, 2, 3, 4, 1, 2, 3, 4]), 1);
        assert_eq!(repeats(&[1, 2, 3, 4, 5, 1, 2, 3, 4, 5]), 0);
    }

    #[test]
    fn the_language_hardly_says_anything_twice_in_a_row() {
        use crate::{corpus, corpus::Split, vocabulary::Vocabulary};
        let vocabulary = Vocabulary::train(1, 1024, 2_000).expect("train");
        let (mut found, mut tokens) = (0, 0);
        for number in 0..1_000 {
            let sample = corpus::sample(Split::HeldOut, 8, number);
            let answer = vocabulary.encode(&sample.answer).expect("encode");
            found += repeats(&answer);
            tokens += answer.len();
        }
        assert!(found * 200 < tokens, "{found} in {tokens} tokens");
    }
}
