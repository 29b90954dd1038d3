//! What a model is calibrated on: texts of the request, or of our own.

use std::collections::HashSet;

use sluice_checkpoint::calibration::{POSITIONS_MIN, text_mark};
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

/// The texts that passes and choices are made of, and those that the result is measured on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextSplit {
    /// What a mix is calibrated and chosen by.
    pub work: Vec<Vec<u32>>,
    /// What it is measured on.
    pub test: Vec<Vec<u32>>,
    /// There were too few texts, or the calibration has seen all: some serve for both.
    pub is_shared: bool,
}

impl TextSplit {
    /// One text of so many is kept for the measurement of the result.
    const TEST_SHARE: usize = 5;

    /// Splits samples so that no text of the measurement is among the others, nor among `calibrated`, the marks of those that an
    /// earlier calibration was made of. The same samples are split in the same way, so that a calibration of a text leaves out
    /// what a mix by the same text is measured on.
    #[must_use]
    pub fn new(samples: Vec<Vec<u32>>, calibrated: &[u32]) -> Self {
        let calibrated: HashSet<u32> = calibrated.iter().copied().collect();
        let is_new = |sample: &&Vec<u32>| !calibrated.contains(&text_mark(sample));
        let fifth = samples.iter().step_by(Self::TEST_SHARE);
        let mut test: Vec<_> = fifth.clone().filter(is_new).cloned().collect();
        if test.is_empty() {
            let new = samples.iter().filter(is_new);
            test = new.step_by(Self::TEST_SHARE).cloned().collect();
        }
        // Also where a line stands twice in the text.
        let tested: HashSet<&Vec<u32>> = test.iter().collect();
        let work = samples.iter().filter(|sample| !tested.contains(sample));
        let work: Vec<_> = work.cloned().collect();
        let positions = work.iter().map(Vec::len).sum::<usize>() as u64;
        if !test.is_empty() && samples.len() >= Self::TEST_SHARE && positions >= POSITIONS_MIN {
            return Self {
                work,
                test,
                is_shared: false,
            };
        }
        let test = match samples.len() < Self::TEST_SHARE {
            true => samples.clone(),
            false => fifth.cloned().collect(),
        };
        Self {
            work: samples,
            test,
            is_shared: true,
        }
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
    use sluice_checkpoint::calibration::text_marks;

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

    #[test]
    fn texts_of_the_result_are_in_no_calibration() {
        // Each long enough that those that are left are a calibration's.
        let samples: Vec<Vec<u32>> = (0..23).map(|id| vec![id; 60]).collect();
        let first = TextSplit::new(samples.clone(), &[]);
        assert_eq!((first.test.len(), first.work.len()), (5, 18));
        assert!(!first.is_shared);
        assert!(first.test.iter().all(|sample| !first.work.contains(sample)));
        // A calibration of the same text changes nothing.
        assert_eq!(
            TextSplit::new(samples.clone(), &text_marks(&first.work)),
            first
        );

        // One of other lines, with some of these: those are not measured on.
        let known = &samples[..11];
        let second = TextSplit::new(samples.clone(), &text_marks(known));
        assert_eq!(second.test, [samples[15].clone(), samples[20].clone()]);
        // Of all lines that are measured on otherwise.
        let third = TextSplit::new(samples.clone(), &text_marks(&first.test));
        assert_eq!(third.test.len(), 4);
        assert!(third.test.iter().all(|sample| !first.test.contains(sample)));
        assert!(!second.is_shared && !third.is_shared);

        // A line that stands twice is on one side.
        let twice = [&samples[..], &samples[3..7]].concat();
        let split = TextSplit::new(twice, &[]);
        assert!(split.test.iter().all(|sample| !split.work.contains(sample)));
        // All that there is serves for both where there is too little, or nothing new.
        for (few, calibrated) in [
            (&samples[..4], &[][..]),
            (&samples[..9], &[]),
            (&samples, &text_marks(&samples)),
        ] {
            let split = TextSplit::new(few.to_vec(), calibrated);
            assert!(split.is_shared && split.work == few && !split.test.is_empty());
        }
    }
}
