//! What a report measures fidelity on: a text of the user's, or one that suits the model.

use std::path::Path;

use sluice_proto::v1::{
    Model, SampleTexts, SampleTokens, TokenSample, measure_fidelity_request::Samples,
};

use crate::{commands::input, output::Failure};

/// Stories that the demonstration model was not trained on.
const STORIES: &str = include_str!("../../../../daemon/model/sample.txt");
/// English prose for other models: pages of our documentation that no calibration takes (`daemon/src/prepare/calibration.rs`),
/// since a model's figures on its own calibration text flatter it.
const PROSE: [&str; 4] = [
    include_str!("../../../../docs/attacks.md"),
    include_str!("../../../../docs/client.md"),
    include_str!("../../../../docs/peers.md"),
    include_str!("../../../../docs/testing.md"),
];
/// Shortest paragraph of prose that is taken.
const PARAGRAPH_BYTES_MIN: usize = 120;
/// Samples and tokens of each for a model without a tokenizer, such as one with random weights.
const TOKEN_SAMPLES: u32 = 16;
const TOKENS_EACH: u32 = 64;

/// The user's text, if there is one.
pub(super) fn text(path: Option<&Path>) -> Result<Option<String>, Failure> {
    let Some(path) = path else {
        return Ok(None);
    };
    let (text, name) = input::file(Some(path))?;
    match text.trim().is_empty() {
        true => Err(Failure::new(format!("{name} holds no text"))),
        false => Ok(Some(text)),
    }
}

/// The samples for a model.
pub(super) fn of_model(text: Option<String>, model: &Model) -> Samples {
    let shape = model.shape.clone().unwrap_or_default();
    match text {
        Some(text) => texts(text),
        None if model.is_demonstration => texts(STORIES.to_owned()),
        None if shape.has_tokenizer => texts(prose()),
        None => Samples::Tokens(SampleTokens {
            samples: (0..TOKEN_SAMPLES)
                .map(|sample| TokenSample {
                    ids: ids(sample, shape.vocab_size, shape.mask_token_id),
                })
                .collect(),
        }),
    }
}

fn texts(text: String) -> Samples {
    Samples::Texts(SampleTexts { texts: vec![text] })
}

/// Paragraphs, a line each: no tables, lists, headings or code.
fn prose() -> String {
    let paragraphs = PROSE.iter().flat_map(|page| page.split("\n\n"));
    let paragraphs = paragraphs.filter(|paragraph| {
        paragraph.len() >= PARAGRAPH_BYTES_MIN && paragraph.starts_with(char::is_alphabetic)
    });
    let lines: Vec<_> = paragraphs.map(|text| text.replace('\n', " ")).collect();
    lines.join("\n")
}

/// Ids spread over the vocabulary, the same in every report.
fn ids(sample: u32, vocab_size: u32, mask: Option<u32>) -> Vec<u32> {
    let first = sample * TOKENS_EACH;
    // A factor without small divisors visits a vocabulary in no obvious order.
    let spread = |index: u32| index.wrapping_mul(40_503) % vocab_size.max(1);
    let ids = (first..first + TOKENS_EACH).map(spread);
    ids.map(|id| match Some(id) == mask {
        true => id.saturating_sub(1),
        false => id,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::ModelShape;

    use super::*;

    #[test]
    fn a_model_gets_samples_that_it_can_read() {
        let lines = |samples: Samples| match samples {
            Samples::Texts(texts) => texts.texts[0].lines().map(str::to_owned).collect(),
            Samples::Tokens(_) => Vec::new(),
        };
        let demonstration = Model {
            is_demonstration: true,
            ..Default::default()
        };
        assert!(lines(of_model(None, &demonstration)).len() >= 16);
        let mut other = Model {
            shape: Some(ModelShape {
                has_tokenizer: true,
                vocab_size: 100,
                mask_token_id: Some(7),
                ..Default::default()
            }),
            ..Default::default()
        };
        let prose = lines(of_model(None, &other));
        assert!(prose.len() >= 16, "{}", prose.len());
        assert!(
            prose
                .iter()
                .all(|line| !line.starts_with(['|', '#', '-', '`']))
        );
        assert_eq!(lines(of_model(Some("One.".into()), &other)), ["One."]);
        other.shape.as_mut().unwrap().has_tokenizer = false;
        let Samples::Tokens(tokens) = of_model(None, &other) else {
            panic!("tokens");
        };
        let ids: Vec<u32> = tokens
            .samples
            .into_iter()
            .flat_map(|sample| sample.ids)
            .collect();
        assert!(ids.iter().all(|id| *id < 100 && *id != 7));
    }
}
