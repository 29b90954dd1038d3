//! Whole models on a GPU, through the stand-in for NVIDIA's libraries that runs the GPU's own kernels on the CPU
//! (`daemon/cuda/stand-in`).

use std::{
    fs,
    sync::{Arc, mpsc},
    time::Duration,
};

use sluice_checkpoint::Source;
use sluice_engine::{
    Engine, EngineOptions, Event, Generate, Outcome, PlanSettings, Work,
    check::{CheckResult, fixture_latents, fixture_logits, fixture_tokens, resident, streamed},
    event::ThoughtStep,
    request::Thinking,
    saved_state::StateOptions,
};
use sluice_formats::DType;
use sluice_machine::{MemoryKind, Profile};
use sluice_ops::{
    Ops,
    device::{Device, DeviceChoice},
    ledger::Ledger,
};
use sluice_plan::{Plan, PlanError};
use sluice_shared::{
    decoding::Decoding,
    level::Level,
    prior::{PriorSampling, PriorSolver},
    sampling::EosPolicy,
};
use sluice_weights::{Shape, SourceTensor};
use testkit::here;

use crate::checkpoints::fixture;

fn gpu(number: DType) -> Device {
    let opened = Device::open(DeviceChoice::Cuda(0), Some(number), 2).unwrap();
    assert!(opened.device.is_gpu() && opened.gpu_unavailable.is_none());
    opened.device
}

fn all_pass(checks: &[CheckResult]) {
    let failed: Vec<_> = checks.iter().filter(|check| !check.passes()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

fn check_fixture(name: &str, cases: usize) {
    check_logits_of(name, &[u64::MAX, 100_000, 0]);
    let options = EngineOptions {
        device: DeviceChoice::Cuda(0),
        compute_dtype: Some(DType::F32),
        threads: 2,
        ..EngineOptions::default()
    };
    let checks = fixture_tokens(&fixture(name), options).unwrap();
    assert_eq!(checks.len(), cases);
    all_pass(&checks);
}

/// Logits of a resident model, and of one that is streamed with each of these limits of pinned memory.
fn check_logits_of(name: &str, pin_limits: &[u64]) {
    here::open_stand_in();
    // With the embedding on the GPU, and without.
    for level in [Level::Off, Level::Standard] {
        let ops = Ops::new(gpu(DType::F32), Ledger::default()).unwrap();
        let profile = ops.device().profile();
        let plan =
            |shape: &Shape, sources: &[_]| resident(profile, shape, sources, level).map(Some);
        let checks = fixture_logits(&fixture(name), &ops, &plan).unwrap();
        assert!(!checks.is_empty());
        all_pass(&checks);
    }
    for &pin_limit in pin_limits {
        let ops = Ops::new(gpu(DType::F32), Ledger::default()).unwrap();
        let profile = ops.device().profile();
        let plan = |shape: &Shape, sources: &[_]| {
            let plan = streamed(profile, shape, sources, Level::Standard, pin_limit)?;
            assert!(plan.streamed().count() > plan.staging.count);
            Ok(Some(plan))
        };
        let checks = fixture_logits(&fixture(name), &ops, &plan).unwrap();
        assert!(!checks.is_empty());
        all_pass(&checks);
    }
}

/// What the references computed in is `f32`; in shorter dtypes logits are near.
fn check_logits(number: DType) {
    here::open_stand_in();
    for name in [
        "llada-tiny",
        "llada-tiny-bf16",
        "rwkv7-tiny",
        "ltm-tiny",
        "llada2-tiny",
        "qwen3-moe-tiny",
        "diffusion-gemma-tiny",
    ] {
        let ops = Ops::new(gpu(number), Ledger::default()).unwrap();
        let profile = ops.device().profile();
        let plan =
            |shape: &Shape, sources: &[_]| resident(profile, shape, sources, Level::Off).map(Some);
        let checks = fixture_logits(&fixture(name), &ops, &plan).unwrap();
        assert!(!checks.is_empty());
        all_pass(&checks);
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn logits_in_f16() {
    check_logits(DType::F16);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn logits_in_bf16() {
    check_logits(DType::Bf16);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_model_with_many_heads_in_f32() {
    check_fixture("llada-tiny", 31);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_model_with_grouped_heads_in_bf16_shards() {
    check_fixture("llada-tiny-bf16", 30);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn mixtures_of_experts() {
    check_fixture("qwen3-moe-tiny", 3);
    for name in [
        "llada-moe-tiny",
        "llada2-tiny",
        "sdar-moe-tiny",
        "rnd1-tiny",
    ] {
        check_logits_of(name, &[100_000]);
    }
}

/// To the bit: which experts are multiplied together follows from which are there.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn experts_compute_the_same_from_the_cache() {
    here::open_stand_in();
    for name in ["llada-moe-tiny", "llada2-tiny", "diffusion-gemma-tiny"] {
        let distances = |plan_of: PlanOf| {
            let ops = Ops::new(gpu(DType::Bf16), Ledger::default()).unwrap();
            let profile = ops.device().profile();
            let plan = |shape: &Shape, sources: &[_]| plan_of(profile, shape, sources).map(Some);
            let checks = fixture_logits(&fixture(name), &ops, &plan).unwrap();
            checks.iter().map(|check| check.error).collect::<Vec<_>>()
        };
        let kept =
            distances(|profile, shape, sources| resident(profile, shape, sources, Level::Standard));
        let cached = distances(|profile, shape, sources| {
            let plan = streamed(profile, shape, sources, Level::Standard, u64::MAX)?;
            assert!(plan.staging.expert_buffers > 0);
            Ok(plan)
        });
        assert!(!kept.is_empty());
        assert_eq!(kept, cached, "{name}");
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_model_that_denoises_canvases() {
    check_fixture("diffusion-gemma-tiny", 5);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn block_diffusion_models() {
    for name in [
        "qwen3-tiny",
        "sdar-tiny",
        "fast-dllm-v2-tiny",
        "nemotron-ld-tiny",
    ] {
        check_logits_of(name, &[]);
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_causal_model_with_kept_keys_and_values() {
    check_fixture("llama-tiny", 3);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_model_with_states() {
    check_fixture("rwkv7-tiny", 3);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_model_with_windows_and_latents() {
    check_fixture("ltm-tiny", 2);
}

type PlanOf = fn(Profile, &Shape, &[SourceTensor]) -> Result<Plan, PlanError>;

/// Bounds and gradients for latents and, in `f32`, runs of inference.
fn check_latents(number: DType, plan: PlanOf, count: usize) {
    here::open_stand_in();
    let ops = Ops::new(gpu(number), Ledger::default()).unwrap();
    let profile = ops.device().profile();
    let plan = |shape: &Shape, sources: &[_]| plan(profile, shape, sources).map(Some);
    let checks = fixture_latents(&fixture("ltm-tiny"), &ops, &plan).unwrap();
    assert_eq!(checks.len(), count);
    all_pass(&checks);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn posteriors_of_latents() {
    let all = |profile, shape: &_, sources: &_| resident(profile, shape, sources, Level::Off);
    check_latents(DType::F32, all, 14);
    check_latents(DType::F16, all, 10);
    check_latents(DType::Bf16, all, 10);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn posteriors_of_latents_while_weights_are_streamed() {
    let some = |profile, shape: &_, sources: &_| {
        streamed(profile, shape, sources, Level::Standard, 100_000)
    };
    check_latents(DType::F32, some, 14);
}

/// An engine with two threads that computes in this dtype where a GPU has it.
fn started(device: DeviceChoice, number: DType) -> Engine {
    Engine::start(EngineOptions {
        device,
        compute_dtype: Some(number),
        threads: 2,
        ..EngineOptions::default()
    })
    .unwrap()
}

/// What inference finds of a prompt at first and in the end, in nats, with weights in block formats.
fn thoughts(number: DType, level: Level) -> [f64; 2] {
    let engine = started(DeviceChoice::Cuda(0), number);
    let settings = PlanSettings {
        level,
        ..PlanSettings::default()
    };
    let source = Source::Folder(fixture("ltm-tiny"));
    let model = engine.load_now(source, settings).unwrap().id;
    let request = Generate {
        thinking: Some(Box::new(Thinking {
            steps: 4,
            start: None,
            prior: None,
            returns_posterior: false,
        })),
        ..Generate::greedy(model, (3..33).collect(), 2)
    };
    let (send, events) = mpsc::channel();
    let sink = Box::new(move |event| drop(send.send(event)));
    engine
        .submit(Default::default(), Work::Generate(request), sink)
        .unwrap();
    let found: Vec<_> = (events.iter())
        .filter_map(|event| match event {
            Event::Thought(report) => match report.found {
                ThoughtStep::Inferred { nll, .. } => Some(nll),
                ThoughtStep::Sampled { .. } => None,
            },
            Event::Finished(Err(error)) => panic!("{error}"),
            _ => None,
        })
        .collect();
    [found[0], found[found.len() - 1]]
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn thoughts_go_through_weights_of_every_level() {
    here::open_stand_in();
    let whole = thoughts(DType::F32, Level::Off);
    for (number, level) in [
        (DType::Bf16, Level::Standard),
        (DType::F16, Level::Moderate),
        (DType::F32, Level::Aggressive),
        (DType::Bf16, Level::Aggressive),
    ] {
        let found = thoughts(number, level);
        assert!(found[1] < found[0], "{level:?}: {found:?}");
        // Random weights suffer from four bits.
        for (found, expected) in found.into_iter().zip(whole) {
            let off = (found / expected - 1.0).abs();
            assert!(off < 0.05, "{level:?}: {found} for {expected}");
        }
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_model_with_biases_and_shifted_logits() {
    check_fixture("dream-tiny", 10);
}

/// What a small model writes on a device in these ways.
fn written(device: DeviceChoice, ways: &[&str]) -> Vec<Vec<u32>> {
    let engine = started(device, DType::F32);
    let settings = PlanSettings {
        level: Level::Off,
        ..PlanSettings::default()
    };
    let source = Source::Folder(fixture("llada-tiny"));
    let model = engine.load_now(source, settings).unwrap().id;
    let texts = ways.iter().map(|caching| {
        let request = Generate {
            block_length: 8,
            steps: 24,
            guidance: 0.5,
            eos: EosPolicy::Suppress,
            decoding: Decoding {
                kv_cache: caching.parse().unwrap(),
                ..Decoding::default()
            },
            ..Generate::greedy(model, (1..40).collect(), 32)
        };
        match engine.run(Work::Generate(request)).unwrap() {
            Outcome::Generated(generated) => generated.tokens,
            other => panic!("asked to generate: {other:?}"),
        }
    });
    texts.collect()
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn keys_are_chosen_as_on_the_cpu() {
    here::open_stand_in();
    let ways = ["dual", "dual:keep=0.3", "dual:keep=0.6,refresh=3"];
    let on_gpu = written(DeviceChoice::Cuda(0), &ways);
    assert_eq!(on_gpu, written(DeviceChoice::Cpu, &ways));
    // And what is left out matters.
    assert_ne!(on_gpu[0], on_gpu[1]);
}

/// Two answers to a prompt, the second from the state that was kept before its last token, one to a prompt that begins
/// with the first answer, and the first in two halves, with a state between that was saved and given back.
fn answers_from_states(device: DeviceChoice) -> Vec<Vec<u32>> {
    let engine = started(device, DType::F32);
    let source = Source::Folder(fixture("rwkv7-tiny"));
    let model = engine.load_now(source, PlanSettings::default()).unwrap().id;
    let generate = |prompt: &[u32], length: usize, state: StateOptions| {
        let request = Generate {
            eos: EosPolicy::Suppress,
            state,
            ..Generate::greedy(model, prompt.to_vec(), length)
        };
        match engine.run(Work::Generate(request)).unwrap() {
            Outcome::Generated(generated) => generated,
            other => panic!("asked to generate: {other:?}"),
        }
    };
    let answer = |prompt: &[u32]| generate(prompt, 6, StateOptions::default()).tokens;
    let prompt: Vec<u32> = (3..40).collect();
    let first = answer(&prompt);
    let second = answer(&prompt);
    let third = answer(&[&prompt[..], &first, &[9, 8, 7]].concat());
    let saving = StateOptions {
        returns_state: true,
        ..StateOptions::default()
    };
    let half = generate(&prompt, 2, saving);
    let state = half.state.unwrap();
    let unread = state.unread_token.unwrap();
    let going_on = StateOptions {
        start: Some(Arc::new(*state)),
        ..StateOptions::default()
    };
    let rest = generate(&[unread], 4, going_on);
    vec![first, second, third, [half.tokens, rest.tokens].concat()]
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn answers_go_on_from_states_as_on_the_cpu() {
    here::open_stand_in();
    let on_gpu = answers_from_states(DeviceChoice::Cuda(0));
    assert_eq!(on_gpu, answers_from_states(DeviceChoice::Cpu));
    assert_eq!(on_gpu[0], on_gpu[1]);
    assert_ne!(on_gpu[0], on_gpu[2]);
    assert_eq!(on_gpu[0], on_gpu[3]);
}

/// The latents that are sampled and what is written with them, then the bytes of weights in plan and ledger, with the
/// model's learned prior beside it or without.
fn sample(device: DeviceChoice, has_prior: bool) -> (Option<Vec<f32>>, Vec<u32>, [u64; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let files = [
        ("ltm-tiny", "config.json"),
        ("ltm-tiny", "model.safetensors"),
        ("prior-tiny", "prior.json"),
        ("prior-tiny", "prior.safetensors"),
    ];
    for (from, name) in &files[..if has_prior { 4 } else { 2 }] {
        fs::copy(fixture(from).join(name), folder.path().join(name)).unwrap();
    }
    let engine = started(device, DType::F32);
    let settings = PlanSettings {
        level: Level::Off,
        ..PlanSettings::default()
    };
    let source = Source::Folder(folder.path().to_owned());
    let model = engine.load_now(source, settings).unwrap();
    assert_eq!(model.info.has_prior, has_prior);
    let request = Generate {
        seed: 5,
        thinking: Some(Box::new(Thinking {
            steps: 0,
            start: None,
            prior: has_prior.then_some(PriorSampling {
                solver: PriorSolver::Heun,
                steps: 6,
            }),
            returns_posterior: true,
        })),
        ..Generate::greedy(model.id, vec![3], 12)
    };
    let (send, events) = mpsc::channel();
    let sink = Box::new(move |event| drop(send.send(event)));
    engine
        .submit(Default::default(), Work::Generate(request), sink)
        .unwrap();
    let (mut latents, mut tokens) = (None, Vec::new());
    for event in events {
        match event {
            Event::Thought(report) => {
                latents = report.posterior.map(|posterior| posterior.mu.clone());
            }
            Event::Finished(Ok(Outcome::Generated(generated))) => tokens = generated.tokens,
            Event::Finished(other) => panic!("{other:?}"),
            _ => {}
        }
    }
    let weights = MemoryKind::Weights as usize;
    let (_, planned) = engine.in_force().unwrap().plan.bytes_by_kind()[weights];
    (
        latents,
        tokens,
        [planned, engine.memory().kinds[weights].bytes],
    )
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_learned_prior_is_sampled_on_the_host() {
    here::open_stand_in();
    let (latents, tokens, held) = sample(DeviceChoice::Cuda(0), true);
    let on_cpu = sample(DeviceChoice::Cpu, true);
    assert!(latents.is_some() && tokens.len() == 12);
    assert_eq!((latents, tokens), (on_cpu.0, on_cpu.1));
    // Nothing of it is the GPU's memory.
    let (latents, _, without) = sample(DeviceChoice::Cuda(0), false);
    assert_eq!((latents, without), (None, held));
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn the_parts_of_a_pass_on_a_gpu_come_to_its_time() {
    here::open_stand_in();
    let engine = Engine::start(EngineOptions {
        device: DeviceChoice::Cuda(0),
        compute_dtype: Some(DType::F32),
        threads: 1,
        ..EngineOptions::default()
    })
    .unwrap();
    for name in ["llada-tiny", "llama-tiny", "rwkv7-tiny"] {
        let source = Source::Folder(fixture(name));
        let model = engine.load_now(source, PlanSettings::default()).unwrap().id;
        let request = Generate::greedy(model, vec![1, 2, 3], 4);
        let (send, events) = mpsc::channel();
        let sink = Box::new(move |event| drop(send.send(event)));
        engine
            .submit(Default::default(), Work::Generate(request), sink)
            .unwrap();
        let costs: Vec<_> = (events.iter())
            .filter_map(|event| match event {
                Event::Pass(report) => Some(report.cost),
                _ => None,
            })
            .collect();
        assert!(!costs.is_empty());
        for cost in costs {
            let phases = cost.phases.expect("a card's clock runs");
            let known = phases.attention + phases.matmul + phases.lm_head;
            assert_eq!(known + phases.other, cost.time, "{name}");
            for part in [phases.attention, phases.matmul, phases.lm_head] {
                assert!(part > Duration::ZERO, "{name}: {phases:?}");
            }
            assert_eq!((cost.waited, phases.decompress), Default::default());
        }
    }
}
