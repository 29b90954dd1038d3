//! Against the reference implementations' outputs: logits within 5e-4, every token list and
//! every number of passes equal. `tests/fixtures` holds the checkpoints; caches come later.

use std::{
    path::{Path, PathBuf},
    sync::{atomic::AtomicBool, mpsc},
};

use safetensors::SafeTensors;
use serde_json::Value;
use sluice_engine::{
    Engine, Event, Generate, LoadEvent, ModelId, Options, Outcome, Settings, Slot, Work,
    checkpoint::{Checkpoint, Source},
    device::Device,
    ledger::Ledger,
    model::llada::{Config, Llada, Sequence},
    ops::Ops,
    residency::{Group, Part},
};
use sluice_shared::{
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

/// Logits of all rows; all batch rows are packed into one pass.
fn check_logits(name: &str) {
    let checkpoint = Checkpoint::open(&Source::Folder(folder(name))).unwrap();
    let config = Config::read(&checkpoint.config().unwrap(), None).unwrap();
    let ledger = Ledger::default();
    let model = Llada::load(config, &checkpoint, &ledger, &mut |_, _| {}).unwrap();
    let ops = Ops::new(Device::cpu(2).unwrap(), ledger).unwrap();
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
        let hidden = model.forward(&ops, &sequences, &never).unwrap();
        let hidden = model.final_norm(&ops, &hidden).unwrap();
        let head = model.weights().acquire(0, Group::Head);
        let logits = ops.linear(&hidden, &head.weight(Part::Head)).unwrap();

        let case = case["name"].as_str().unwrap();
        let tensor = tensors.tensor(&format!("forward.{case}.logits")).unwrap();
        let reference: Vec<f32> = tensor
            .data()
            .chunks_exact(4)
            .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
            .collect();
        assert_eq!(reference.len(), logits.values().len(), "{name} {case}");
        let worst = reference
            .iter()
            .zip(logits.values())
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(worst <= TOLERANCE, "{name} {case}: off by {worst}");
    }
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
    engine.load(Source::Folder(folder.to_owned()), Settings::default(), report);
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
