//! What a model is calibrated on: texts of the request, or of our own.

use sluice_engine::calibration::PASS_TOKENS_MAX;
use sluice_tokenizer::Patience;

use super::{RequestSize, TEXT_BYTES_MAX, TextEncoder, empty};
use crate::{failure::Failure, model_name::EMBEDDED_NAME, models::ServingModel};

/// Stories for the demonstration model, of the same generator as its training text, with a seed of their own
/// (`sluice-train corpus --seed 1123`). What docs and tests measure with is in none of them: figures of a calibrated model
/// on its calibration text would flatter it.
const STORIES: &str = include_str!("../../model/calibration.txt");
/// English prose for other models: our own documentation.
const PROSE: [&str; 11] = [
    include_str!("../../../docs/compression.md"),
    include_str!("../../../docs/daemon.md"),
    include_str!("../../../docs/decoding.md"),
    include_str!("../../../docs/families.md"),
    include_str!("../../../docs/levels.md"),
    include_str!("../../../docs/library.md"),
    include_str!("../../../docs/plans.md"),
    include_str!("../../../docs/requests.md"),
    include_str!("../../../docs/settings.md"),
    include_str!("../../../docs/streaming.md"),
    include_str!("../../../docs/tokenizer.md"),
];
/// Shortest paragraph of prose that is taken.
const PARAGRAPH_BYTES_MIN: usize = 120;

/// The lines of texts as ids, in pieces that a pass holds. Without texts, those of our own that suit the model.
/// Tokenizing takes time: not for async code.
///
/// # Errors
/// When the texts are too long, the model has no tokenizer, or nothing is left of them.
pub fn calibration_samples(
    texts: Vec<String>,
    serving: &ServingModel,
    patience: &Patience,
) -> Result<Vec<Vec<u32>>, Failure> {
    let texts = match texts.is_empty() {
        true => built_in(&serving.name.name),
        false => texts,
    };
    let size = RequestSize {
        text_bytes: texts.iter().map(String::len).sum(),
        ids: 0,
    };
    size.check("texts", TEXT_BYTES_MAX)?;
    let tokens_max = PASS_TOKENS_MAX.min(serving.loaded.info.context_length);
    let mut encoder = TextEncoder::new(serving, patience);
    let mut samples = Vec::new();
    let lines = texts.iter().flat_map(|text| text.lines());
    for line in lines.filter(|line| !line.trim().is_empty()) {
        let ids = encoder.raw(line)?;
        samples.extend(ids.chunks(tokens_max).map(<[u32]>::to_vec));
    }
    match samples.is_empty() {
        true => Err(empty("texts", "the text has no tokens").into()),
        false => Ok(samples),
    }
}

fn built_in(model: &str) -> Vec<String> {
    match model == EMBEDDED_NAME {
        true => vec![STORIES.to_owned()],
        false => PROSE.iter().flat_map(|page| paragraphs(page)).collect(),
    }
}

/// The paragraphs of a page, each on a line: without headings, tables, lists and code.
fn paragraphs(page: &str) -> impl Iterator<Item = String> + '_ {
    let starts_prose = |text: &&str| text.starts_with(|first: char| first.is_alphabetic());
    let blocks = page.split("\n\n").map(str::trim).filter(starts_prose);
    let lines = blocks.map(|block| block.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|text| text.len() >= PARAGRAPH_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{CONTEXT, serving},
        *,
    };

    fn samples(texts: &[&str]) -> Result<Vec<Vec<u32>>, Failure> {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        calibration_samples(texts, &serving(true), &Patience::default())
    }

    #[test]
    fn long_lines_are_cut_into_pieces_and_nothing_is_lost() {
        let serving = serving(true);
        let line = "the fox ".repeat(CONTEXT);
        let pieces = samples(&[&line, "a fox\n\n  \na bird"]).unwrap();
        let tokenizer = serving.tokenizer().unwrap();
        let expected: Vec<u32> = [line.as_str(), "a fox", "a bird"]
            .iter()
            .flat_map(|text| tokenizer.encode(text).unwrap())
            .collect();
        assert_eq!(pieces.concat(), expected);
        let most = PASS_TOKENS_MAX.min(CONTEXT);
        assert!(pieces.iter().all(|piece| piece.len() <= most));
    }

    #[test]
    fn texts_of_our_own_are_long_enough_and_hold_no_markup() {
        let stories = built_in(EMBEDDED_NAME).concat();
        assert!(stories.len() > 50_000 && stories.lines().count() > 100);
        let test_text = include_str!("../../model/sample.txt");
        let mut both = stories.lines().filter(|line| test_text.contains(line));
        assert_eq!(both.next(), None);
        let prose = built_in("another");
        let bytes: usize = prose.iter().map(String::len).sum();
        assert!((20_000..60_000).contains(&bytes), "{bytes}");
        for paragraph in &prose {
            let has_markup = paragraph.starts_with(['|', '#']) || paragraph.contains("```");
            assert!(!has_markup, "{paragraph}");
        }
    }

    #[test]
    fn what_can_not_be_calibrated_on_is_refused() {
        let huge = "x".repeat(TEXT_BYTES_MAX + 1);
        let message = samples(&[&huge]).unwrap_err().to_string();
        assert!(message.contains("1048577 bytes of text"), "{message}");
        let none = calibration_samples(Vec::new(), &serving(false), &Patience::default());
        assert!(matches!(none.unwrap_err(), Failure::NoTokenizer { .. }));
    }
}
