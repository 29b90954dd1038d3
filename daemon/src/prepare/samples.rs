//! What a level is measured on: lines of text become samples of ids.

use sluice_engine::MeasureFidelity;
use sluice_proto::model::{InvalidField, Measuring, Samples};

use sluice_tokenizer::Patience;

use super::{RequestSize, TEXT_BYTES_MAX, TextEncoder, check_generates, draw_seed, empty};
use crate::{failure::Failure, models::ServingModel};

/// Samples when nobody says how many: of stories, about a thousand masked positions.
const SAMPLES_DEFAULT: usize = 64;
/// Longest sample that is cut from a text: more of one line says little that other lines don't.
const SAMPLE_TOKENS_MAX: usize = 256;

/// Turns a checked measurement into the engine's. Tokenizing takes time: not for async code.
///
/// # Errors
/// What the request asks for that cannot be done with this model.
pub fn measuring(
    request: Measuring,
    serving: &ServingModel,
    patience: &Patience,
) -> Result<MeasureFidelity, Failure> {
    check_generates(serving)?;
    let samples_max = request
        .max_samples
        .map_or(SAMPLES_DEFAULT, |max| max as usize);
    let samples = match request.samples {
        Samples::Tokens(samples) => {
            let size = RequestSize {
                text_bytes: 0,
                ids: samples.iter().map(Vec::len).sum(),
            };
            size.check("ids", TEXT_BYTES_MAX)?;
            check_lengths(&samples, serving.loaded.info.context_length)?;
            spread(samples, samples_max)
        }
        Samples::Texts(texts) => {
            let size = RequestSize {
                text_bytes: texts.iter().map(String::len).sum(),
                ids: 0,
            };
            size.check("texts", TEXT_BYTES_MAX)?;
            from_lines(&texts, samples_max, serving, patience)?
        }
    };
    Ok(MeasureFidelity {
        model: serving.loaded.id,
        level: request.level,
        samples,
        seed: request.seed.map_or_else(draw_seed, Ok)?,
    })
}

/// What a caller has cut is not cut again.
fn check_lengths(samples: &[Vec<u32>], context: usize) -> Result<(), InvalidField> {
    for (index, sample) in samples.iter().enumerate() {
        let count = sample.len();
        if count > context {
            return Err(InvalidField {
                field: "tokens",
                problem: format!(
                    "sample {index} of {count} tokens exceeds the model's context length of {context}"
                ),
            });
        }
    }
    Ok(())
}

fn from_lines(
    texts: &[String],
    samples_max: usize,
    serving: &ServingModel,
    patience: &Patience,
) -> Result<Vec<Vec<u32>>, Failure> {
    let tokens_max = SAMPLE_TOKENS_MAX.min(serving.loaded.info.context_length);
    let lines = texts.iter().flat_map(|text| text.lines());
    let lines: Vec<_> = lines.filter(|line| !line.trim().is_empty()).collect();
    let mut encoder = TextEncoder::new(serving, patience);
    let mut samples = Vec::new();
    for line in spread(lines, samples_max) {
        let mut ids = encoder.raw(line)?;
        ids.truncate(tokens_max);
        // A tokenizer may leave nothing of a line, and an autoregressive model cannot score a single token.
        let least = if serving.loaded.info.mask.is_some() {
            1
        } else {
            2
        };
        if ids.len() >= least {
            samples.push(ids);
        }
    }
    if samples.is_empty() {
        return Err(empty("texts", "the text has no tokens, or no two in a line").into());
    }
    Ok(samples)
}

/// At most so many of all, at equal distances, the first one always.
pub fn spread<T>(all: Vec<T>, most: usize) -> Vec<T> {
    let count = all.len();
    if count <= most {
        return all;
    }
    let chosen = all.into_iter().enumerate().filter(|(index, _)| {
        // Each share of `count / most` begins with one that is chosen.
        index * most % count < most
    });
    chosen.map(|(_, item)| item).collect()
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1;

    use super::{
        super::{
            TEXT_BYTES_MAX,
            tests::{CONTEXT, serving},
        },
        *,
    };

    fn request(texts: &[&str]) -> v1::MeasureFidelityRequest {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        v1::MeasureFidelityRequest {
            samples: Some(v1::measure_fidelity_request::Samples::Texts(
                v1::SampleTexts { texts },
            )),
            seed: Some(3),
            ..Default::default()
        }
    }

    fn measured(request: v1::MeasureFidelityRequest) -> Result<MeasureFidelity, Failure> {
        measuring(
            Measuring::try_from(request).unwrap(),
            &serving(true),
            &Patience::default(),
        )
    }

    #[test]
    fn each_line_that_is_not_blank_is_a_sample() {
        let work = measured(request(&["Once upon\r\n\n \nthere was", "a fox\n"])).unwrap();
        let serving = serving(true);
        let text = serving.tokenizer().unwrap();
        let expected: Vec<_> = ["Once upon", "there was", "a fox"]
            .map(|line| text.encode(line).unwrap())
            .into();
        assert_eq!(work.samples, expected);
        assert_eq!((work.level, work.seed), (None, 3));
    }

    #[test]
    fn a_long_line_is_cut_to_the_context() {
        let line = "the fox ".repeat(CONTEXT);
        let work = measured(request(&[&line])).unwrap();
        assert_eq!(work.samples.len(), 1);
        assert_eq!(work.samples[0].len(), CONTEXT);
    }

    #[test]
    fn of_many_lines_some_are_taken_evenly() {
        assert_eq!(spread((0..10).collect(), 5), [0, 2, 4, 6, 8]);
        assert_eq!(spread((0..10).collect(), 3), [0, 4, 7]);
        assert_eq!(spread((0..10).collect(), 1), [0]);
        assert_eq!(spread((0..3).collect(), 3), [0, 1, 2]);
        for (count, most) in [(1000, 64), (65, 64), (257, 256), (999, 7)] {
            assert_eq!(spread((0..count).collect(), most).len(), most);
        }
        let lines = "a fox\n".repeat(100);
        let mut few = request(&[&lines]);
        assert_eq!(
            measured(few.clone()).unwrap().samples.len(),
            SAMPLES_DEFAULT
        );
        few.max_samples = Some(7);
        assert_eq!(measured(few).unwrap().samples.len(), 7);
    }

    #[test]
    fn what_can_not_be_measured_on_is_refused() {
        let huge = "x".repeat(TEXT_BYTES_MAX + 1);
        let message = measured(request(&[&huge])).unwrap_err().to_string();
        assert!(message.contains("1048577 bytes of text"), "{message}");
        let plain = serving(false);
        let checked = Measuring::try_from(request(&["a fox"])).unwrap();
        let error = measuring(checked, &plain, &Patience::default()).unwrap_err();
        assert!(matches!(error, Failure::NoTokenizer { .. }));
    }
}
