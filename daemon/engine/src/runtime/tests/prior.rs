//! Requests that use the learned prior of a latent thought model: their latents are what the sampler alone gives, its memory
//! is in plan and ledger, and others go on between its steps.

use std::{fs, path::PathBuf};

use sluice_checkpoint::Checkpoint;
use sluice_machine::MemoryKind;
use sluice_ops::{Ops, device::Device, ledger::Ledger};
use sluice_shared::{
    prior::{PriorSampling, PriorSolver},
    sampling::EosPolicy,
};
use tempfile::TempDir;

use super::*;
use crate::{
    ModelId, RequestError,
    event::{ThoughtReport, ThoughtStep},
    posterior::Posterior,
    prior::{Prior, Sampler},
    request::Thinking,
    schedule::RequestTicket,
};

const LATENTS: [usize; 2] = [16, 64];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// A folder with the tiny model, and its prior where it is to have one.
fn folder(has_prior: bool) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let copy = |from: &str, name: &str| {
        fs::copy(fixtures().join(from).join(name), folder.path().join(name)).unwrap();
    };
    copy("ltm-tiny", "config.json");
    copy("ltm-tiny", "model.safetensors");
    if has_prior {
        copy("prior-tiny", "prior.json");
        copy("prior-tiny", "prior.safetensors");
    }
    folder
}

fn load_from(engine: &Engine, folder: &TempDir) -> Result<Arc<LoadedModel>, EngineError> {
    let settings = PlanSettings {
        level: Level::Off,
        ..PlanSettings::default()
    };
    engine.load_now(Source::Folder(folder.path().to_owned()), settings)
}

fn loaded(has_prior: bool) -> World {
    let engine = start();
    let model = load_from(&engine, &folder(has_prior)).unwrap();
    World { engine, model }
}

fn sampling(solver: PriorSolver, steps: u32) -> Option<PriorSampling> {
    Some(PriorSampling { solver, steps })
}

fn request(model: ModelId, prompt: &[u32], thinking: Thinking) -> Generate {
    Generate {
        seed: 5,
        thinking: Some(Box::new(thinking)),
        ..Generate::greedy(model, prompt.to_vec(), 12)
    }
}

fn thinking(steps: usize, prior: Option<PriorSampling>) -> Thinking {
    Thinking {
        steps,
        start: None,
        prior,
        returns_posterior: true,
    }
}

/// What a request was told, on one channel for several.
type Told = (u64, Event);

fn submit(world: &World, id: u64, request: Generate, told: &mpsc::Sender<Told>) -> RequestTicket {
    let told = told.clone();
    let sink = Box::new(move |event| drop(told.send((id, event))));
    (world.engine)
        .submit(Default::default(), Work::Generate(request), sink)
        .unwrap()
}

/// The thoughts and tokens of a request.
fn run(world: &World, request: Generate) -> Result<(Vec<ThoughtReport>, Vec<u32>), EngineError> {
    let (send, told) = mpsc::channel();
    submit(world, 0, request, &send);
    let mut thoughts = Vec::new();
    loop {
        match told.recv().unwrap().1 {
            Event::Thought(thought) => thoughts.push(*thought),
            Event::Finished(Ok(Outcome::Generated(generated))) => {
                return Ok((thoughts, generated.tokens));
            }
            Event::Finished(Err(error)) => return Err(error),
            _ => {}
        }
    }
}

/// The latents of a sample, by the sampler alone.
fn sampled(sampling: PriorSampling, seed: u64) -> Vec<f32> {
    let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
    let folder = folder(true);
    let checkpoint = Checkpoint::open(&Source::Folder(folder.path().to_owned())).unwrap();
    let file = checkpoint.prior(LATENTS).unwrap().unwrap();
    let prior = Prior::read(&file, &ops).unwrap();
    let mut sampler = Sampler::new(&prior.noise(seed), sampling);
    while !sampler.is_done() {
        let denoise = &mut |x: &[f32], sigma| prior.denoise(&ops, x, sigma);
        sampler.step(denoise).unwrap();
    }
    prior.latents(sampler.sample())
}

#[test]
fn a_seeds_latents_are_what_the_sampler_gives() {
    let world = loaded(true);
    assert!(world.model.info.has_prior);
    for (solver, steps) in [
        (PriorSolver::DpmSolverPp2m, 7),
        (PriorSolver::Heun, 4),
        (PriorSolver::AdaptiveHeun, 9),
    ] {
        let prior = sampling(solver, steps);
        let asked = || request(world.model.id, &[3], thinking(0, prior));
        let (thoughts, tokens) = run(&world, asked()).unwrap();
        let levels: Vec<f64> = (thoughts.iter())
            .map(|thought| match thought.found {
                ThoughtStep::Sampled { noise_level } => noise_level,
                ThoughtStep::Inferred { .. } => panic!("nothing was to be inferred"),
            })
            .collect();
        assert!(levels.is_sorted_by(|a, b| a >= b), "{solver:?}: {levels:?}");
        let (last, before) = thoughts.split_last().unwrap();
        assert!(last.is_last && levels.ends_with(&[0.0]));
        assert!(last.step <= steps as usize && last.steps_max == steps as usize);
        if solver != PriorSolver::AdaptiveHeun {
            let taken: Vec<_> = thoughts.iter().map(|thought| thought.step).collect();
            assert_eq!(taken, Vec::from_iter(1..=steps as usize));
        }
        assert!((before.iter()).all(|thought| !thought.is_last && thought.posterior.is_none()));
        let posterior = last.posterior.clone().unwrap();
        assert_eq!(posterior.mu, sampled(prior.unwrap(), 5));

        let again = run(&world, asked()).unwrap();
        assert_eq!(again.1, tokens);
        assert_eq!(again.0.last().unwrap().posterior, last.posterior);
        let other = Generate { seed: 6, ..asked() };
        let (other, _) = run(&world, other).unwrap();
        assert_ne!(other.last().unwrap().posterior, last.posterior);

        // Saved and given back, they are the same latents.
        let given = Thinking {
            start: Some(posterior),
            ..thinking(0, None)
        };
        let given = run(&world, request(world.model.id, &[3], given)).unwrap();
        assert_eq!((given.0.len(), given.1), (0, tokens));
    }
}

#[test]
fn inference_begins_at_the_sample() {
    let world = loaded(true);
    let prompt: Vec<u32> = (0..20).map(|id| id * 11 % 250).collect();
    let prior = sampling(PriorSolver::DpmSolverPp2m, 5);
    let asked = |prior| request(world.model.id, &prompt, thinking(3, prior));
    let (thoughts, tokens) = run(&world, asked(prior)).unwrap();
    assert_eq!(thoughts.len(), 5 + 4);
    let inference = world.model.info.inference.unwrap();
    let start = Posterior::start(16 * 64, inference.initial_log_variance, 5);
    let begin = |mu: Vec<f32>| Posterior {
        mu,
        ..start.clone()
    };
    let first_kl = |thoughts: &[ThoughtReport]| match thoughts[0].found {
        ThoughtStep::Inferred { kl, .. } => kl,
        ThoughtStep::Sampled { .. } => panic!("a step of the sampler"),
    };
    let expected = begin(sampled(prior.unwrap(), 5)).kl();
    assert_eq!(first_kl(&thoughts[5..]), expected);
    assert!(thoughts[4].is_last && thoughts[4].posterior.is_none());
    assert!(thoughts[8].is_last && thoughts[8].posterior.is_some());
    assert_eq!(run(&world, asked(prior)).unwrap().1, tokens);
    // Without it, it begins as the model was trained.
    for none in [None, Some(PriorSampling::of(PriorSolver::None))] {
        let (thoughts, _) = run(&world, asked(none)).unwrap();
        assert_eq!(thoughts.len(), 4);
        assert_eq!(first_kl(&thoughts), start.kl());
    }
}

#[test]
fn its_weights_are_in_plan_and_ledger_and_go_with_the_model() {
    let weights = |report: &ledger::LedgerReport| report.kinds[MemoryKind::Weights as usize].bytes;
    let [with, without] = [true, false].map(loaded);
    let file = fs::metadata(fixtures().join("prior-tiny/prior.safetensors")).unwrap();
    let more = weights(&with.engine.memory()) - weights(&without.engine.memory());
    // The file has a header besides.
    assert!(more > file.len() / 2 && more < file.len(), "{more}");
    let plans = [&with, &without].map(|world| world.engine.in_force().unwrap().plan);
    let planned = plans.each_ref().map(|plan| {
        let (_, bytes) = plan.bytes_by_kind()[MemoryKind::Weights as usize];
        bytes
    });
    assert_eq!(planned[0] - planned[1], more);
    assert_eq!(planned[0], weights(&with.engine.memory()));

    // In the memory of the model alone, as much of the model leaves the device.
    let alone = plans[1].peak_bytes();
    let settings = PlanSettings {
        level: Level::Off,
        budget: Some(alone).into(),
        ..PlanSettings::default()
    };
    let folder = folder(true);
    let engine = start();
    let model = (engine.load_now(Source::Folder(folder.path().to_owned()), settings)).unwrap();
    let world = World { engine, model };
    let resident = world.engine.in_force().unwrap().plan.resident_bytes();
    assert!(resident + more <= plans[0].resident_bytes());
    let asked = thinking(2, sampling(PriorSolver::Heun, 3));
    let prompt = Vec::from_iter(0..20);
    run(&world, request(world.model.id, &prompt, asked)).unwrap();
    let peak = world.engine.memory().peak_bytes;
    assert!(peak <= alone, "{peak} of {alone}");
    let scratch = MemoryKind::Scratch as usize;
    let (_, planned) = world.engine.in_force().unwrap().plan.bytes_by_kind()[scratch];
    let found = world.engine.memory().kinds[scratch].peak_bytes;
    assert!(found <= planned, "{found} of {planned}");

    let before = start().memory();
    let (send, went) = mpsc::channel();
    let done = Box::new(move |goes| send.send(goes).unwrap());
    world.engine.unload(world.model.id, false, done);
    assert!(went.recv().unwrap());
    assert_eq!(weights(&world.engine.memory()), weights(&before));
    assert_eq!(world.engine.memory().used_bytes, before.used_bytes);
}

#[test]
fn another_level_keeps_it() {
    let world = loaded(true);
    let prior = sampling(PriorSolver::DpmSolverPp2m, 4);
    let asked = || request(world.model.id, &[3], thinking(0, prior));
    let posterior = |world: &World| {
        let (thoughts, _) = run(world, asked()).unwrap();
        thoughts.last().unwrap().posterior.clone().unwrap()
    };
    let before = posterior(&world);
    let change = PlanOptions {
        level: Some(Level::Moderate),
        ..PlanOptions::default()
    };
    let plan = world.apply(change).recv().unwrap().unwrap();
    assert_eq!(plan.level, Level::Moderate);
    assert_eq!(posterior(&world), before);
}

#[test]
fn others_write_between_its_steps_and_it_is_cancelled_between_two() {
    let world = loaded(true);
    let held = || world.engine.memory().used_bytes;
    let before = held();
    let (send, told) = mpsc::channel();
    let endless = request(
        world.model.id,
        &[3],
        thinking(0, sampling(PriorSolver::Heun, 1000)),
    );
    let ticket = submit(&world, 1, endless, &send);
    let is_step = |event: &Event| matches!(event, Event::Thought(_));
    while !matches!(told.recv().unwrap(), (1, event) if is_step(&event)) {}
    let writing = request(world.model.id, &[7, 8, 9], thinking(0, None));
    submit(&world, 2, writing, &send);
    let mut steps_between = 0;
    let mut passes = 0;
    loop {
        match told.recv().unwrap() {
            (1, Event::Thought(thought)) => {
                assert!(!thought.is_last);
                steps_between += usize::from(passes > 0);
            }
            (1, Event::Finished(_)) => panic!("it has 1000 steps"),
            (2, Event::Pass(_)) => passes += 1,
            (2, Event::Finished(result)) => {
                assert!(matches!(result, Ok(Outcome::Generated(_))));
                break;
            }
            _ => {}
        }
    }
    assert!(
        passes >= 12 && steps_between >= passes - 1,
        "{steps_between} of {passes}"
    );
    world.engine.cancel(ticket);
    loop {
        if let (1, Event::Finished(result)) = told.recv().unwrap() {
            let Ok(Outcome::Generated(generated)) = result else {
                panic!("{result:?}");
            };
            assert!(generated.tokens.is_empty());
            assert_eq!(
                generated.finish_reason,
                crate::event::FinishReason::Cancelled
            );
            break;
        }
    }
    assert!(world.engine.memory().used_bytes >= before);
    // What is left beside the model is the other's prefix cache; of the sample, nothing.
    let kept = world.engine.memory().kinds[MemoryKind::KvCache as usize].bytes;
    assert_eq!(held(), before + kept);
}

#[test]
fn a_step_that_panics_ends_its_request_alone() {
    let world = loaded(true);
    let sampled = |seed| Generate {
        seed,
        ..request(
            world.model.id,
            &[3],
            thinking(0, sampling(PriorSolver::Heun, 30)),
        )
    };
    let (_, expected) = run(&world, sampled(5)).unwrap();
    let (send, told) = mpsc::channel();
    submit(&world, 1, sampled(5), &send);
    submit(&world, 2, sampled(panics::IN_STEP), &send);
    let mut ends = [None, None];
    while ends.iter().any(Option::is_none) {
        if let (id, Event::Finished(result)) = told.recv().unwrap() {
            ends[id as usize - 1] = Some(result);
        }
    }
    let [Some(Ok(Outcome::Generated(first))), Some(Err(second))] = ends else {
        panic!("{ends:?}");
    };
    assert_eq!(first.tokens, expected);
    assert!(matches!(second, EngineError::Panicked), "{second}");
    assert_eq!(run(&world, sampled(5)).unwrap().1, expected);
}

#[test]
fn what_cannot_be_sampled_is_refused() {
    let with = loaded(true);
    let refused = |world: &World, thinking: Thinking| {
        let asked = request(world.model.id, &[3, 4], thinking);
        let error = run_refused(world, asked);
        assert!(matches!(
            error,
            EngineError::Request(RequestError::Sampling { .. })
        ));
        error.to_string()
    };
    for steps in [0, 1001, 1_000_000] {
        let problem = refused(&with, thinking(0, sampling(PriorSolver::Heun, steps)));
        assert!(
            problem.contains("between 1 and 1000") && problem.contains(&steps.to_string()),
            "{problem}"
        );
    }
    let both = Thinking {
        start: Some(Arc::new(Posterior::prior(16 * 64))),
        ..thinking(4, Some(PriorSampling::default()))
    };
    let problem = refused(&with, both);
    assert!(problem.contains("leave out one"), "{problem}");
    let without = loaded(false);
    let problem = refused(&without, thinking(0, Some(PriorSampling::default())));
    assert!(problem.contains("sluice-train prior"), "{problem}");
    // N(0, I) needs none.
    let none = Some(PriorSampling::of(PriorSolver::None));
    run(
        &without,
        request(without.model.id, &[3, 4], thinking(0, none)),
    )
    .unwrap();
}

fn run_refused(world: &World, request: Generate) -> EngineError {
    let sink = Box::new(|_| {});
    let submitted = (world.engine).submit(Default::default(), Work::Generate(request), sink);
    submitted.err().unwrap()
}

#[test]
fn broken_priors_are_no_absent_ones() {
    let refused = |spoil: &dyn Fn(&Path)| {
        let folder = folder(true);
        spoil(folder.path());
        let engine = start();
        let error = load_from(&engine, &folder).unwrap_err();
        assert!(matches!(error, EngineError::Checkpoint(_)));
        assert_eq!(engine.memory().used_bytes, start().memory().used_bytes);
        error.to_string()
    };
    let weights = |folder: &Path| folder.join("prior.safetensors");
    let problem = refused(&|folder| fs::remove_file(weights(folder)).unwrap());
    assert!(problem.contains("prior.safetensors"), "{problem}");
    let problem = refused(&|folder| {
        let bytes = fs::read(weights(folder)).unwrap();
        fs::write(weights(folder), &bytes[..bytes.len() / 2]).unwrap();
    });
    assert!(problem.contains("prior.safetensors"), "{problem}");
    let problem = refused(&|folder| {
        let config = fs::read_to_string(folder.join("prior.json")).unwrap();
        let config = config.replace("\"vectors\": 16", "\"vectors\": 8");
        fs::write(folder.join("prior.json"), config).unwrap();
    });
    assert!(problem.contains("the prior of another model"), "{problem}");
    let problem = refused(&|folder| spoil_end(folder, f32::NAN));
    assert!(problem.contains("not finite"), "{problem}");
}

/// Sets the last elements of the weights.
fn spoil_end(folder: &Path, value: f32) {
    let path = folder.join("prior.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    for place in bytes[end - 256..].chunks_exact_mut(4) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn samples_that_are_not_finite_are_told() {
    let folder = folder(true);
    spoil_end(folder.path(), f32::MAX);
    let engine = start();
    let model = load_from(&engine, &folder).unwrap();
    let world = World { engine, model };
    let prior = sampling(PriorSolver::Heun, 3);
    let error = run(&world, request(world.model.id, &[3], thinking(0, prior))).unwrap_err();
    assert!(matches!(error, EngineError::PriorNotFinite), "{error}");
    // The model itself is whole.
    run(&world, request(world.model.id, &[3], thinking(0, None))).unwrap();
}

#[test]
fn a_failed_sample_is_told_while_others_write() {
    let folder = folder(true);
    spoil_end(folder.path(), f32::MAX);
    let engine = start();
    let model = load_from(&engine, &folder).unwrap();
    let world = World { engine, model };
    let (send, told) = mpsc::channel();
    let writer = Generate {
        eos: EosPolicy::Suppress,
        thinking: Some(Box::new(thinking(0, None))),
        ..Generate::greedy(world.model.id, vec![7, 8, 9], 60)
    };
    submit(&world, 1, writer, &send);
    while !matches!(told.recv().unwrap(), (1, Event::Pass(_))) {}
    let prior = sampling(PriorSolver::Heun, 3);
    submit(
        &world,
        2,
        request(world.model.id, &[3], thinking(0, prior)),
        &send,
    );
    let mut ends = Vec::new();
    while ends.len() < 2 {
        if let (id, Event::Finished(result)) = told.recv().unwrap() {
            ends.push((id, result.is_ok()));
        }
    }
    assert_eq!(ends, [(2, false), (1, true)]);
}
