//! What a file, or a folder, says of how its tokens are chosen: taken as far as it makes sense.

use std::{fs, path::Path};

use sluice_checkpoint::{Checkpoint, RecommendedSettings, Source};
use sluice_formats::Format;
use sluice_shared::sampling::{Sampling, SamplingOptions};

use super::{
    convert::{Dialect, converted},
    writer::Value,
};
use crate::checkpoints::fixture;

fn recommended(path: &Path) -> RecommendedSettings {
    let checkpoint = Checkpoint::open(&Source::Folder(path.to_owned())).unwrap();
    checkpoint.recommended()
}

/// What a checkpoint with this `generation_config.json` says.
fn of(config: &str) -> RecommendedSettings {
    let folder = tempfile::tempdir().unwrap();
    let weights = "model.safetensors";
    fs::copy(
        fixture("llada-tiny").join(weights),
        folder.path().join(weights),
    )
    .unwrap();
    fs::write(folder.path().join("generation_config.json"), config).unwrap();
    recommended(folder.path())
}

#[test]
fn what_a_generation_config_says_is_one_piece_of_advice() {
    let qwen = r#"{"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
        "repetition_penalty": 1.05, "eos_token_id": [1, 2]}"#;
    let drawing = of(qwen).whole();
    assert_eq!(drawing.temperature, Some(0.7));
    let expected = Sampling {
        top_k: Some(20),
        top_p: Some(0.8),
        min_p: Some(0.0),
        repetition_penalty: Some(1.05),
    };
    assert_eq!(drawing.sampling, expected);
    // Nobody's other defaults come in between.
    let drawing = of(r#"{"top_p": 0.9}"#).whole();
    assert_eq!(drawing.temperature, Some(1.0));
    assert_eq!(drawing.sampling.repetition_penalty, Some(1.0));
    let greedy = of(r#"{"do_sample": false, "temperature": 0.7, "repetition_penalty": 1.2}"#);
    let greedy = greedy.whole();
    assert_eq!(greedy.temperature, Some(0.0));
    assert_eq!(greedy.sampling.repetition_penalty, Some(1.2));
}

#[test]
fn ids_alone_say_nothing_of_it() {
    for config in [
        "{}",
        r#"{"eos_token_id": 2}"#,
        r#"{"temperature": null, "do_sample": true}"#,
    ] {
        assert_eq!(of(config).whole(), SamplingOptions::default(), "{config}");
    }
}

#[test]
fn what_makes_no_sense_in_a_generation_config_is_passed_over_and_told() {
    for (config, told) in [
        (
            r#"{"temperature": -1}"#,
            "temperature must be between 0 and 1000, not -1",
        ),
        (
            r#"{"temperature": 1e300}"#,
            "temperature must be between 0 and 1000",
        ),
        (r#"{"temperature": "hot"}"#, "temperature is not a number"),
        (
            r#"{"top_p": 7}"#,
            "top_p must be above 0 and at most 1, not 7",
        ),
        (r#"{"top_k": 1.5}"#, "top_k must be a whole number, not 1.5"),
        (r#"{"top_k": 1e30}"#, "top_k must be a whole number"),
        (r#"{"min_p": [1]}"#, "min_p is not a number"),
        (
            r#"{"repetition_penalty": 0}"#,
            "repetition_penalty must be above 0",
        ),
        (
            r#"{"block_length": 0}"#,
            "block_length must be at least 1, not 0",
        ),
        (
            r#"{"block_length": 7.5}"#,
            "block_length must be a whole number, not 7.5",
        ),
        ("[1, 2]", "generation_config.json"),
    ] {
        let read = of(config);
        assert_eq!(
            (read.whole(), read.block_length),
            (SamplingOptions::default(), None),
            "{config}"
        );
        let [problem] = &read.problems[..] else {
            panic!("{config}: {:?}", read.problems);
        };
        assert!(problem.contains(told), "{problem}");
    }
    // The rest holds.
    let read = of(r#"{"temperature": -1, "top_k": -1, "top_p": 0.5, "block_length": 4}"#);
    assert_eq!(read.block_length, Some(4));
    let drawing = read.whole();
    assert_eq!(
        (drawing.temperature, drawing.sampling.top_k),
        (Some(1.0), Some(0))
    );
    assert_eq!(
        (drawing.sampling.top_p, read.problems.len()),
        (Some(0.5), 1)
    );
}

#[test]
fn a_files_advice_on_choosing_tokens_is_taken_as_far_as_it_makes_sense() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut file = converted("llada-tiny", Dialect::LlamaCpp, Format::Q8_0);
    fs::write(&path, file.bytes()).unwrap();
    assert_eq!(recommended(&path).drawing, Default::default());
    file.set("general.sampling.temp", Value::F32(0.5));
    file.set(
        "general.sampling.top_k",
        Value::Raw(5, (-1_i32).to_le_bytes().to_vec()),
    );
    file.set("general.sampling.top_p", Value::F32(f32::NAN));
    file.set("general.sampling.min_p", "little".into());
    file.set("general.sampling.penalty_repeat", Value::F32(1.25));
    fs::write(&path, file.bytes()).unwrap();
    let said = recommended(&path);
    let drawing = said.drawing;
    assert_eq!(drawing.temperature, Some(0.5));
    assert_eq!(drawing.sampling.top_k, Some(0));
    assert_eq!(drawing.sampling.repetition_penalty, Some(1.25));
    assert_eq!(
        (drawing.sampling.top_p, drawing.sampling.min_p),
        (None, None)
    );
    let [top_p, min_p] = &said.problems[..] else {
        panic!("{:?}", said.problems);
    };
    assert!(top_p.contains("general.sampling.top_p must be above 0 and at most 1, not NaN"));
    assert!(
        min_p.contains("general.sampling.min_p is not a number"),
        "{min_p}"
    );
}
