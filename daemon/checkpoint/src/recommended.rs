//! Generation settings that a checkpoint's authors recommend: `generation_config.json`, or the keys
//! `general.sampling.*` of a GGUF file. They are advice: invalid values are ignored, and reported.

use serde_json::{Map, Value};
use sluice_shared::sampling::{Sampling, SamplingOptions};

use super::Checkpoint;

/// Names of the files, for messages.
const GENERATION: &str = "generation_config.json";
const GGUF: &str = "the GGUF file";

/// Names of each setting: ours, Hugging Face's and llama.cpp's.
const NUMBERS: [(&str, &str, &str); 5] = [
    ("temperature", "temperature", "general.sampling.temp"),
    ("top_k", "top_k", "general.sampling.top_k"),
    ("top_p", "top_p", "general.sampling.top_p"),
    ("min_p", "min_p", "general.sampling.min_p"),
    (
        "repetition_penalty",
        "repetition_penalty",
        "general.sampling.penalty_repeat",
    ),
];

/// Positions that are decoded together, by the name in LLaDA's `generate`; GGUF has no key for it.
const BLOCK_LENGTH: &str = "block_length";

/// The settings that a checkpoint recommends.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecommendedSettings {
    /// The sampling options that it gives, key by key.
    pub drawing: SamplingOptions,
    /// Positions that a masked diffusion model decodes together, at least one.
    pub block_length: Option<u32>,
    /// Where the settings come from: the name of the file, for messages.
    pub place: &'static str,
    /// Values that were ignored, with reasons.
    pub problems: Vec<String>,
}

impl RecommendedSettings {
    /// The settings as one complete recommendation: if any is given, the others have no effect, and the temperature is
    /// 1.
    #[must_use]
    pub fn whole(&self) -> SamplingOptions {
        let rest = SamplingOptions {
            temperature: Some(1.0),
            ..SamplingOptions::greedy()
        };
        match self.drawing == SamplingOptions::default() {
            true => SamplingOptions::default(),
            false => self.drawing.or(rest),
        }
    }
}

impl Checkpoint {
    /// The settings that the checkpoint recommends.
    #[must_use]
    pub fn recommended(&self) -> RecommendedSettings {
        match &self.gguf {
            Some(gguf) => read(GGUF, |names| gguf.number(names.2), true),
            None => match self.generation_config() {
                Ok(Some(config)) => {
                    // transformers doesn't sample by default; a file that gives a temperature without this key is taken
                    // to mean it.
                    let draws = config.get("do_sample") != Some(&Value::Bool(false));
                    let mut read = read(GENERATION, |names| number(&config, names.1), draws);
                    match block_length(&config) {
                        Ok(length) => read.block_length = length,
                        Err(problem) => {
                            read.problems
                                .push(passed_over(GENERATION, BLOCK_LENGTH, &problem));
                        }
                    }
                    read
                }
                Ok(None) => RecommendedSettings::default(),
                // A broken file must not keep a model from loading.
                Err(error) => RecommendedSettings {
                    problems: vec![error.to_string()],
                    ..RecommendedSettings::default()
                },
            },
        }
    }
}

/// A key's number, if the key is present.
fn number(config: &Map<String, Value>, key: &str) -> Result<Option<f64>, String> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err("is not a number".to_owned()),
        },
    }
}

fn block_length(config: &Map<String, Value>) -> Result<Option<u32>, String> {
    match number(config, BLOCK_LENGTH)? {
        None => Ok(None),
        Some(length) if length >= 1.0 => Ok(Some(whole(length)?)),
        Some(length) => Err(format!("must be at least 1, not {length}")),
    }
}

fn whole(number: f64) -> Result<u32, String> {
    match number.fract() == 0.0 && number <= f64::from(u32::MAX) {
        true => Ok(number as u32),
        false => Err(format!("must be a whole number, not {number}")),
    }
}

fn passed_over(place: &str, key: &str, problem: &str) -> String {
    format!("{place}: {key} {problem}; ignored")
}

fn read(
    place: &'static str,
    number: impl Fn((&str, &str, &str)) -> Result<Option<f64>, String>,
    draws: bool,
) -> RecommendedSettings {
    let mut said = SamplingOptions::default();
    let mut problems = Vec::new();
    for names in NUMBERS {
        // Problems are reported by the key that the file has.
        let key = if place == GGUF { names.2 } else { names.1 };
        let taken = match number(names) {
            Ok(None) => continue,
            Ok(Some(number)) => take(&mut said, names.0, number),
            Err(problem) => Err(problem),
        };
        if let Err(problem) = taken {
            problems.push(passed_over(place, key, &problem));
        }
    }
    if !draws {
        // As transformers does without sampling: the most probable token, with the repetition penalty if there is one.
        said = SamplingOptions {
            temperature: Some(0.0),
            sampling: Sampling {
                repetition_penalty: said.sampling.repetition_penalty,
                ..Sampling::default()
            },
        };
    }
    RecommendedSettings {
        drawing: said,
        block_length: None,
        place,
        problems,
    }
}

/// Takes over one value if the result is valid.
fn take(said: &mut SamplingOptions, name: &str, number: f64) -> Result<(), String> {
    // Tried on a copy: an invalid value must not spoil the valid ones.
    let mut next = *said;
    match name {
        "temperature" => next.temperature = Some(number),
        "top_p" => next.sampling.top_p = Some(number),
        "min_p" => next.sampling.min_p = Some(number),
        "repetition_penalty" => next.sampling.repetition_penalty = Some(number),
        // Zero, and in llama.cpp every negative value, means all tokens.
        _ if number <= 0.0 => next.sampling.top_k = Some(0),
        _ => next.sampling.top_k = Some(whole(number)?),
    }
    if let Some((_, problem)) = next.problem() {
        return Err(problem);
    }
    *said = next;
    Ok(())
}
