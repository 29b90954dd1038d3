//! `sluice edit`: finds the span and makes the request that rewrites it.

use std::ops::Range;

use sluice_proto::v1::{ChatRole, GenerateRequest, TextEdit as WireEdit, generate_request::Input};

use super::{input, message};
use crate::{cli::Edit, output::Failure};

/// The request that the arguments ask for.
pub(super) fn request(arguments: &Edit) -> Result<GenerateRequest, Failure> {
    let text = input::text(&arguments.text)?;
    let (start, end) = match (&arguments.replace, arguments.span) {
        (Some(words), _) => {
            let span = find_once(&text, words)?;
            // Command lines and input are bounded far below 4 GiB, so offsets fit 32 bits.
            let offset = |at: usize| u32::try_from(at).expect("the text is bounded");
            (offset(span.start), offset(span.end))
        }
        (None, Some(span)) => span,
        (None, None) => unreachable!("clap asks for one of the two"),
    };
    let prompt = arguments.prompt.as_deref();
    let mut request = GenerateRequest {
        model: arguments.asked.name(),
        input: Some(Input::Edit(WireEdit {
            messages: prompt
                .map(|text| message(ChatRole::User, text))
                .into_iter()
                .collect(),
            text,
            span_start_bytes: start,
            span_end_bytes: end,
            span_tokens: arguments.span_length,
        })),
        ..Default::default()
    };
    arguments.decoding.apply(&mut request);
    Ok(request)
}

/// The byte range of `words` in `text`, if they occur exactly once.
fn find_once(text: &str, words: &str) -> Result<Range<usize>, Failure> {
    if words.is_empty() {
        return Err(Failure::new("the words to replace are empty")
            .with_hint("to insert words, use --span N..N with --tokens"));
    }
    // Overlapping occurrences count, too: "aa" in "aaa" is ambiguous.
    let starts = text.char_indices().map(|(at, _)| at);
    let places: Vec<usize> = starts.filter(|at| text[*at..].starts_with(words)).collect();
    match places[..] {
        [] => Err(Failure::new(format!(
            "'{words}' does not occur in the text"
        ))),
        [start] => Ok(start..start + words.len()),
        [first, second, ..] => Err(Failure::new(format!(
            "'{words}' occurs {} times in the text, first at bytes {first} and {second}",
            places.len()
        ))
        .with_hint(format!(
            "include more of the surrounding words, or give the byte range: --span {first}..{}",
            first + words.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str, words: &str) -> String {
        format!("{:?}", find_once(text, words).unwrap_err())
    }

    #[test]
    fn words_that_occur_once_are_found_in_bytes() {
        assert_eq!(find_once("the cat sat", "cat").unwrap(), 4..7);
        assert_eq!(find_once("né à né!", "à").unwrap(), 4..6);
        assert_eq!(find_once("cat", "cat").unwrap(), 0..3);
    }

    #[test]
    fn words_absent_or_ambiguous_are_refused() {
        assert!(problem("the cat sat", "dog").contains("does not occur"));
        assert!(problem("a cat, a cat", "cat").contains("occurs 2 times"));
        assert!(problem("aaa", "aa").contains("occurs 2 times"));
        assert!(problem("abc", "").contains("empty"));
    }
}
