//! Against the reference implementations' outputs: logits within 5e-4, every token list and
//! every number of passes equal. `tests/fixtures` holds the checkpoints; caches come later.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool, mpsc},
};

use safetensors::SafeTensors;
use serde_json::Value;
use sluice_engine::{
    Engine, Event, Generate, LoadEvent, ModelId, Options, Outcome, Settings, Slot, Work,
    checkpoint::{Checkpoint, Source},
    device::{Device, Profile},
    ledger::Ledger,
    model::{
        llada::{Config, Llada, Sequence, logits},
        shape::Shape,
    },
    ops::Ops,
    plan::{self, Machine, Plan, PlanError, Question, Working, Workload},
    residency::{LoadOutcome, Reader, Residency},
};
use sluice_shared::{
    level::Level,
    policy::PolicyChoice,
    sampling::{EosPolicy, Remasking},
};

/// The fixtures' own tolerance for logits: an independent `f64` implementation differs by 1.4e-4.
const TOLERANCE: f32 = 5e-4;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(folder(name).join("expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    let number = |id: &Value| id.as_u64().unwrap() as u32;
    value.as_array().unwrap().iter().map(number).collect()
}

/// The weights as a plan for this share of what all of them take has them; `None` where that is too little.
fn weights(
    checkpoint: Checkpoint,
    shape: &Shape,
    share: f64,
    cache: u64,
    ops: &Ops,
) -> Option<Residency> {
    let sources = plan::sources(&checkpoint, shape.tensors()).unwrap();
    let workload = Workload {
        canvas: 16,
        ..Workload::default()
    };
    let machine = Machine::unmeasured(Profile::cpu(2), cache);
    let mut question = Question {
        shape,
        sources: &sources,
        choices: Level::Standard.into(),
        budget_bytes: u64::MAX,
        workload,
        working: Working::default(),
        machine: &machine,
    };
    let whole = Plan::new(&question).unwrap().peak_bytes();
    question.budget_bytes = (whole as f64 * share) as u64;
    let plan = match Plan::new(&question) {
        Ok(plan) => plan,
        Err(PlanError::BudgetTooSmall { .. }) => return None,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(plan.streamed().next().is_some(), share < 1.0);
    let reader = Arc::new(Reader::new(Arc::new(checkpoint), &sources));
    let never = AtomicBool::new(false);
    let (device, ledger) = (ops.device(), ops.ledger());
    match Residency::load(&plan, reader, device, ledger, &never, &mut |_| {}).unwrap() {
        LoadOutcome::Done(weights) => Some(weights),
        LoadOutcome::Cancelled => unreachable!("nobody cancels"),
    }
}

/// Logits of all rows; all batch rows are packed into one pass. Weights are resident, streamed from files that the
/// system caches, or past its cache.
fn check_logits(name: &str) {
    let mut met = 0;
    for (share, cache) in [
        (1.0, 0),
        (0.9, u64::MAX),
        (0.7, 0),
        (0.5, 0),
        (0.4, u64::MAX),
    ] {
        met += usize::from(check_logits_with(name, share, cache));
    }
    assert!(met > 2, "only {met} plans were possible");
}

fn check_logits_with(name: &str, share: f64, cache: u64) -> bool {
    let checkpoint = Checkpoint::open(&Source::Folder(folder(name))).unwrap();
    let config = Config::read(&checkpoint.config().unwrap(), None).unwrap();
    let shape = Shape::of(&config);
    let ledger = Ledger::default();
    let ops = Ops::new(Device::cpu(2).unwrap(), ledger).unwrap();
    let model = Llada::new(config, &ops).unwrap();
    let Some(weights) = weights(checkpoint, &shape, share, cache, &ops) else {
        return false;
    };
    let bytes = std::fs::read(folder(name).join("expected.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();

    for case in expected(name)["forward"].as_array().unwrap() {
        let rows: Vec<Vec<u32>> = case["input_ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(ids)
            .collect();
        let all: Vec<usize> = (0..rows[0].len()).collect();
        let sequences: Vec<_> = rows
            .iter()
            .map(|tokens| Sequence {
                tokens,
                wanted: &all,
            })
            .collect();
        let never = AtomicBool::new(false);
        let hidden = model.forward(&ops, &weights, &sequences, &never).unwrap();
        let hidden = model.final_norm(&ops, &weights, &hidden).unwrap();
        let logits = logits(&ops, &weights, &hidden).unwrap();

        let case = case["name"].as_str().unwrap();
        let tensor = tensors.tensor(&format!("forward.{case}.logits")).unwrap();
        let reference: Vec<f32> = tensor
            .data()
            .chunks_exact(4)
            .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
            .collect();
        assert_eq!(reference.len(), logits.len(), "{name} {case}");
        let worst = reference
            .iter()
            .zip(&logits)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(
            worst <= TOLERANCE,
            "{name} {case} at {share}: off by {worst}"
        );
    }
    true
}

#[test]
fn logits_multi_head_f32() {
    check_logits("llada-tiny");
}

#[test]
fn logits_grouped_heads_bf16_shards() {
    check_logits("llada-tiny-bf16");
}

/// Every case of the samplers without a cache, through the engine's thread.
fn check_tokens(name: &str, cases: usize) {
    let engine = Engine::start(Options {
        threads: 2,
        queue_max: 4,
        ..Options::default()
    })
    .unwrap();
    let model = load(&engine, &folder(name));
    let mut checked = 0;
    for case in expected(name)["generate"].as_array().unwrap() {
        let policy = match case["algorithm"].as_str().unwrap() {
            "LLaDA plain" => PolicyChoice::default(),
            "Fast-dLLM without cache" => fast_dllm_policy(&case["params"]),
            _ => continue,
        };
        let prompts = case["prompt_ids"].as_array().unwrap();
        let answers = case["generated"].as_array().unwrap();
        for (prompt, answer) in prompts.iter().zip(answers) {
            let params = &case["params"];
            let size = |key: &str| params[key].as_u64().unwrap() as usize;
            let request = Generate {
                model,
                prompt: ids(prompt),
                canvas: vec![Slot::Masked; size("gen_length")],
                block_length: size("block_length"),
                steps: size("steps"),
                temperature: 0.0,
                guidance: params["cfg_scale"].as_f64().unwrap_or(0.0),
                remasking: Remasking::LowConfidence,
                eos: EosPolicy::Keep,
                policy,
                seed: 0,
            };
            let generated = run(&engine, request);
            let case_name = &case["name"];
            assert_eq!(generated.tokens, ids(answer), "{name} {case_name}");
            assert_eq!(
                generated.passes as u64,
                case["forward_calls"].as_u64().unwrap(),
                "{name} {case_name}"
            );
        }
        checked += 1;
    }
    assert_eq!(checked, cases, "{name}");
}

fn fast_dllm_policy(params: &Value) -> PolicyChoice {
    let parameter = |key: &str| params[key].as_f64();
    match (parameter("threshold"), parameter("factor")) {
        (Some(t), None) => PolicyChoice::new("threshold", [("t", t)]).unwrap(),
        (None, Some(f)) => PolicyChoice::new("factor", [("f", f)]).unwrap(),
        (None, None) => PolicyChoice::default(),
        (Some(_), Some(_)) => panic!("a case has one rule"),
    }
}

fn load(engine: &Engine, folder: &Path) -> ModelId {
    let (send, receive) = mpsc::channel();
    let report = Box::new(move |event| {
        if let LoadEvent::Finished(result) = event {
            send.send(result.unwrap().id).unwrap();
        }
    });
    engine.load(
        Source::Folder(folder.to_owned()),
        Settings::default(),
        report,
    );
    receive.recv().unwrap()
}

fn run(engine: &Engine, request: Generate) -> sluice_engine::event::Generated {
    let (send, receive) = mpsc::channel();
    let sink = Box::new(move |event| {
        if let Event::Finished(result) = event {
            send.send(result.unwrap()).unwrap();
        }
    });
    engine.submit(Work::Generate(request), sink).unwrap();
    match receive.recv().unwrap() {
        Outcome::Generated(generated) => generated,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tokens_multi_head_f32() {
    check_tokens("llada-tiny", 17);
}

#[test]
fn tokens_grouped_heads_bf16_shards() {
    check_tokens("llada-tiny-bf16", 17);
}
