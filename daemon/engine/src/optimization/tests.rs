//! Optimizations of the demonstration model: within its budget, in force while requests run, and undone bit for bit.

use std::{
    path::{Path, PathBuf},
    sync::{atomic::Ordering, mpsc},
};

use sluice_checkpoint::{
    Source,
    compression::{
        self, CompressError, CompressOptions, CompressionMethod, Glob, SourceCheck, TensorFilter,
        compress_checked,
    },
    synth::{SynthDType, SynthOptions, SynthRouter},
};
use sluice_plan::Workload;
use sluice_shared::options::{Budget, PlanOptions};
use sluice_weights::{LayerKind, Shape, TensorNaming};
use tempfile::TempDir;

use super::*;
use crate::{
    calibration::{CalibrationOptions, calibrate},
    command::ApplyEvent,
    event::GenerationResult,
    request::Generate,
    runtime::EngineOptions,
};

/// Large enough that pages and tables are nothing beside its weights.
fn source() -> Source {
    Source::Folder(Path::new(env!("CARGO_MANIFEST_DIR")).join("../model"))
}

struct World {
    engine: Engine,
    folder: TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::start(EngineOptions {
            threads: 2,
            weight_cache: Some(folder.path().join("weights")),
            ..EngineOptions::default()
        });
        let world = Self {
            engine: engine.unwrap(),
            folder,
        };
        let settings = PlanSettings {
            level: Level::Standard,
            ..PlanSettings::default()
        };
        world.engine.load_now(source(), settings).unwrap();
        world
    }

    fn weight_cache(&self) -> PathBuf {
        self.folder.path().join("weights")
    }

    fn options(&self, budget_bytes: u64) -> OptimizeOptions {
        let sample = |first: u32| {
            let ids = (0..40 + first).map(move |at| (first * 31 + at * 7) % 240 + 3);
            ids.collect::<Vec<_>>()
        };
        OptimizeOptions {
            share: ShareKey::default(),
            model_name: "tiny".to_owned(),
            samples: (0..14).map(sample).collect(),
            test_samples: (20..24).map(sample).collect(),
            text_hash: 1,
            seed: 5,
            calibration: None,
            goal: OptimizeGoal::Fit {
                budget_bytes,
                max_pass_s: None,
            },
            threads: 2,
        }
    }

    fn calibrated(&self, options: OptimizeOptions) -> OptimizeOptions {
        let target = self.folder.path().join("tiny.calibration.safetensors");
        let of_calibration = CalibrationOptions {
            share: ShareKey::default(),
            model_name: "tiny".to_owned(),
            samples: options.samples.clone(),
            text_hash: 1,
            seed: 5,
            positions_max: 1500,
            is_full: true,
            memory_bytes: 1 << 30,
            threads: 1,
            target: target.clone(),
            may_replace: false,
        };
        calibrate(
            &self.engine,
            &of_calibration,
            &AtomicBool::new(false),
            &mut |_| {},
        )
        .unwrap();
        OptimizeOptions {
            calibration: Some(target),
            ..options
        }
    }

    fn optimize(&self, options: &OptimizeOptions) -> Result<OptimizeSummary, OptimizeError> {
        optimize(&self.engine, options, &AtomicBool::new(false), &mut |_| {})
    }

    /// A budget with room for so many bits per weight of all matrices, and nothing to stream.
    fn budget(&self, bits: f64) -> u64 {
        let of = |level| PlanOptions {
            level: Some(level),
            budget: Some(Budget::Bytes(1 << 40)),
            ..PlanOptions::default()
        };
        let plan = self
            .engine
            .plan(&of(Level::Standard), Workload::new(256, 32, 1));
        let planner = self.engine.planner().unwrap();
        let groups = groups(&planner.sources());
        let weights: u64 = groups.iter().map(|group| group.weights).sum();
        // The checkpoint is in bf16.
        plan.unwrap().peak_bytes() - 2 * weights + (weights as f64 * bits / 8.0) as u64
    }

    fn apply(&self, change: PlanOptions) -> Result<(), EngineError> {
        let (send, ended) = mpsc::channel();
        let report = Box::new(move |event| {
            if let ApplyEvent::Finished(result) = event {
                drop(send.send(result.map(drop)));
            }
        });
        self.engine.apply(change, report);
        ended.recv().unwrap()
    }

    fn generate(&self) -> GenerationResult {
        let id = self.engine.model().unwrap().id;
        let request = Generate::greedy(id, vec![5, 6, 7], 40);
        match self.engine.run(Work::Generate(request)).unwrap() {
            Outcome::Generated(generated) => generated,
            other => panic!("{other:?}"),
        }
    }
}

fn at(level: Level) -> PlanOptions {
    PlanOptions {
        level: Some(level),
        ..PlanOptions::default()
    }
}

#[test]
fn a_mix_fits_its_budget_and_is_undone_bit_for_bit() {
    let world = World::new();
    let before = world.generate();
    let budget_bytes = world.budget(5.0);
    let options = world.calibrated(world.options(budget_bytes));
    let made = world.optimize(&options).unwrap();
    assert!(made.bits < 5.0 && made.bits > 4.7, "{}", made.bits);
    assert_eq!(made.groups.len(), 5 * 5 + 1);
    let prediction = made.prediction.as_ref().unwrap();
    assert!(prediction.kl_nats <= prediction.uniform_kl_nats);
    assert!(
        (prediction.curve)
            .windows(2)
            .all(|pair| { pair[0].bytes < pair[1].bytes && pair[0].kl_nats >= pair[1].kl_nats })
    );
    assert!(made.measured.mean_kl > 0.0);
    let change = PlanOptions {
        budget: Some(Budget::Bytes(budget_bytes)),
        mix: Some(made.mix),
        ..at(Level::Optimized)
    };
    // In force in the middle of a request, which goes on.
    let id = world.engine.model().unwrap().id;
    let (send, events) = mpsc::channel();
    let sink = Box::new(move |event| drop(send.send(event)));
    let request = Work::Generate(Generate::greedy(id, vec![5, 6, 7], 64));
    world
        .engine
        .submit(ShareKey::default(), request, sink)
        .unwrap();
    world.apply(change).unwrap();
    let ended = events.iter().find_map(|event| match event {
        crate::Event::Finished(result) => Some(result),
        _ => None,
    });
    assert!(
        matches!(ended, Some(Ok(Outcome::Generated(_)))),
        "{ended:?}"
    );
    let in_force = world.engine.in_force().unwrap();
    assert_eq!(in_force.plan.level, Level::Optimized);
    // A request that runs may take more than the usual one does, which the budget is for.
    let usual = world
        .engine
        .plan(&change, Workload::new(256, 32, 1))
        .unwrap();
    assert_eq!(usual.streamed_bytes(), 0);
    assert!(in_force.plan.peak_bytes() <= budget_bytes);
    assert!(!world.generate().is_lossless);
    // And back.
    world
        .apply(PlanOptions {
            budget: Some(Budget::Default),
            ..at(Level::Standard)
        })
        .unwrap();
    let after = world.generate();
    assert!(after.is_lossless);
    assert_eq!(after.tokens, before.tokens);
}

#[test]
fn mixes_replace_each_other_and_the_latest_is_the_default() {
    let world = World::new();
    let loose = world.optimize(&world.options(world.budget(5.5))).unwrap();
    let tight = world.optimize(&world.options(world.budget(2.5))).unwrap();
    assert_ne!(loose.mix, tight.mix);
    let with = |mix| PlanOptions {
        mix: Some(mix),
        ..at(Level::Optimized)
    };
    let bytes = || world.engine.in_force().unwrap().plan.weight_bytes();
    world.apply(at(Level::Optimized)).unwrap();
    let latest = bytes();
    world.apply(with(loose.mix)).unwrap();
    let more = bytes();
    world.apply(with(tight.mix)).unwrap();
    assert_eq!(bytes(), latest);
    assert!(more > latest + latest / 4, "{more} {latest}");
    let unknown = MixId::of_hash(1);
    let error = world.apply(with(unknown)).unwrap_err();
    assert!(matches!(error, EngineError::NoMix(Some(mix)) if mix == unknown));
    assert_eq!(bytes(), latest);
}

#[test]
fn a_choice_that_is_made_again_is_the_latest_and_says_for_what() {
    let world = World::new();
    let at_rate = |bits| OptimizeOptions {
        goal: OptimizeGoal::Rate(bits),
        ..world.options(0)
    };
    let first = world.optimize(&at_rate(3.0)).unwrap();
    let second = world.optimize(&at_rate(4.0)).unwrap();
    let kept = || kept_mixes(&world.engine).unwrap();
    let names = |kept: &[KeptMix]| kept.iter().map(|kept| kept.mix).collect::<Vec<_>>();
    let before = kept();
    assert_eq!(names(&before), [first.mix, second.mix]);
    assert_eq!(world.optimize(&at_rate(3.0)).unwrap().mix, first.mix);
    let after = kept();
    assert_eq!(names(&after), [second.mix, first.mix]);
    let chosen = |kept: &KeptMix| kept.choice.as_ref().unwrap().chosen_unix_ms;
    assert!(chosen(&after[1]) > chosen(&before[0]));
    assert!((after[1].bits - 3.0).abs() < 1e-3, "{}", after[1].bits);
    // It is what the level takes when nobody names a mix.
    world.apply(at(Level::Optimized)).unwrap();
    let bytes = || world.engine.in_force().unwrap().plan.weight_bytes();
    let latest = bytes();
    world
        .apply(PlanOptions {
            mix: Some(second.mix),
            ..at(Level::Optimized)
        })
        .unwrap();
    assert!(bytes() > latest);

    // The same rates by another budget: the record is that of the later choice, with its curve.
    let budget_bytes = world.budget(5.0);
    let fitted = world.optimize(&world.options(budget_bytes)).unwrap();
    let larger = world.optimize(&world.options(budget_bytes + 1)).unwrap();
    assert_eq!(fitted.mix, larger.mix);
    assert_eq!(larger.record.budget_bytes, Some(budget_bytes + 1));
    let last = kept().pop().unwrap();
    let choice = last.choice.unwrap();
    assert_eq!(last.mix, larger.mix);
    assert_eq!(choice.record.budget_bytes, Some(budget_bytes + 1));
    assert_eq!(choice.record.groups.len(), larger.groups.len());
    let curve = |prediction: Option<LossPrediction>| prediction.unwrap().curve.len();
    assert_eq!(curve(choice.prediction), curve(larger.prediction));
    // Read from text, so to its last digit but one.
    let measured = choice.measured_kl_nats / larger.measured.mean_kl;
    assert!((measured - 1.0).abs() < 1e-12, "{measured}");

    // Where nothing can be written beside it, the mix is there, and the reason.
    let beside = |mix: MixId| {
        let planner = world.engine.planner().unwrap();
        let path = planner.mixes.files().unwrap().path(mix);
        path.with_extension("choice.json")
    };
    assert_eq!(larger.not_kept, None);
    let choice = beside(first.mix);
    std::fs::remove_file(&choice).unwrap();
    std::fs::create_dir(&choice).unwrap();
    let again = world.optimize(&at_rate(3.0)).unwrap();
    assert_eq!(again.mix, first.mix);
    assert!(again.not_kept.is_some());
    std::fs::remove_dir(&choice).unwrap();

    // What lies beside a mix may be anybody's: then the file's own record counts.
    let folder = world.weight_cache();
    for file in std::fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        if path.to_string_lossy().ends_with(".choice.json") {
            std::fs::write(path, "{}").unwrap();
        }
    }
    let unknown = kept();
    assert_eq!(unknown.len(), 3);
    assert!(
        unknown
            .iter()
            .all(|kept| kept.choice.is_none() && kept.bits > 2.9)
    );
}

#[test]
fn a_mix_in_force_that_nobody_named_stays_when_another_is_made() {
    let world = World::new();
    let make = |bits| {
        let at_rate = OptimizeOptions {
            goal: OptimizeGoal::Rate(bits),
            ..world.options(0)
        };
        world.optimize(&at_rate).unwrap().mix
    };
    let bytes = || world.engine.in_force().unwrap().plan.weight_bytes();
    let in_force = || world.engine.settings().effective_mix();
    let first = make(3.0);
    world.apply(at(Level::Optimized)).unwrap();
    let few = bytes();
    assert_eq!(in_force(), Some(first));
    let second = make(4.0);
    // Another plan, with as much room.
    let budget = |bytes| PlanOptions {
        budget: Some(Budget::Bytes(bytes)),
        ..PlanOptions::default()
    };
    let workload = Workload::new(256, 32, 1);
    let change = budget(1 << 40);
    let asked = world.engine.plan(&change, workload).unwrap();
    world.apply(change).unwrap();
    assert_eq!((asked.weight_bytes(), bytes()), (few, few));
    assert_eq!(in_force(), Some(first));
    // Asked for again, it is the latest, as predicted.
    let asked = world.engine.plan(&at(Level::Optimized), workload).unwrap();
    world.apply(at(Level::Optimized)).unwrap();
    assert_eq!(asked.weight_bytes(), bytes());
    assert!(bytes() > few);
    assert_eq!(in_force(), Some(second));
    // Another level has none, and a load takes the latest.
    world.apply(at(Level::Standard)).unwrap();
    assert_eq!(in_force(), None);
    let settings = PlanSettings {
        level: Level::Optimized,
        resolved_mix: Some(first),
        ..PlanSettings::default()
    };
    world.engine.load_now(source(), settings).unwrap();
    assert_eq!(in_force(), Some(second));
    let loaded_with = world.engine.loaded_with().unwrap();
    assert_eq!(loaded_with.effective_mix(), Some(second));
}

#[test]
fn what_is_impossible_is_refused_and_what_was_done_is_found_again() {
    let world = World::new();
    let error = world.apply(at(Level::Optimized)).unwrap_err();
    assert!(matches!(error, EngineError::NoMix(None)), "{error}");
    let small = world.optimize(&world.options(world.budget(1.0)));
    let Err(OptimizeError::Engine(EngineError::Plan(PlanError::BudgetTooSmall {
        least_bytes,
        ..
    }))) = small
    else {
        panic!("{small:?}")
    };
    assert!(least_bytes > world.budget(1.0) && least_bytes < world.budget(2.2));
    // Stopped in the middle of the measurements.
    let options = world.options(world.budget(4.0));
    let stop = AtomicBool::new(false);
    let stopped = optimize(&world.engine, &options, &stop, &mut |step| {
        if matches!(step, OptimizeProgress::Measuring { done: 4.., .. }) {
            stop.store(true, Ordering::Relaxed);
        }
    });
    assert!(
        matches!(stopped, Err(OptimizeError::Cancelled)),
        "{stopped:?}"
    );
    let mut first = None;
    let mut quantized = 0;
    let made = optimize(
        &world.engine,
        &options,
        &AtomicBool::new(false),
        &mut |step| match step {
            OptimizeProgress::Measuring { done, .. } => _ = first.get_or_insert(done),
            OptimizeProgress::Quantizing { is_final, .. } if !is_final => quantized += 1,
            OptimizeProgress::Quantizing { .. } => {}
        },
    );
    made.unwrap();
    assert_eq!((first, quantized), (Some(4), 0));
}

#[test]
fn what_more_bytes_gain_are_the_checkpoints_own_weights() {
    let world = World::new();
    let nothing = world.optimize(&world.options(1 << 40));
    assert!(
        matches!(nothing, Err(OptimizeError::NothingToQuantize)),
        "{nothing:?}"
    );
    let budget_bytes = world.budget(10.0);
    let made = world.optimize(&world.options(budget_bytes)).unwrap();
    let own = made.record.groups.iter().filter(|group| group.is_original);
    let count = own.clone().count();
    assert!(count > 0 && count < made.groups.len(), "{count}");
    assert!(
        own.clone()
            .all(|group| group.bits == 16.0 && group.predicted_kl_nats == Some(0.0))
    );
    assert!(made.bits > 9.5 && made.bits <= 10.0, "{}", made.bits);
    let prediction = made.prediction.unwrap();
    assert!(prediction.gap_kl_nats < 0.1 * prediction.kl_nats);
    world
        .apply(PlanOptions {
            budget: Some(Budget::Bytes(budget_bytes)),
            mix: Some(made.mix),
            ..at(Level::Optimized)
        })
        .unwrap();
    let plan = &world.engine.in_force().unwrap().plan;
    assert!(plan.peak_bytes() <= budget_bytes && plan.streamed_bytes() == 0);
    assert!(!world.generate().is_lossless);
}

#[test]
fn a_limit_of_time_is_kept_by_the_plan_or_refused_with_the_shortest() {
    let world = World::new();
    let budget_bytes = world.budget(8.0);
    let limited = |max_pass_s| OptimizeOptions {
        goal: OptimizeGoal::Fit {
            budget_bytes,
            max_pass_s: Some(max_pass_s),
        },
        ..world.options(0)
    };
    let pass_s = |made: &OptimizeSummary| {
        let change = PlanOptions {
            budget: Some(Budget::Bytes(budget_bytes)),
            mix: Some(made.mix),
            ..at(Level::Optimized)
        };
        let plan = world.engine.plan(&change, Workload::new(256, 32, 1));
        plan.unwrap().pass.unwrap().total_s()
    };
    let Err(OptimizeError::PassTime { limit_s, least_s }) = world.optimize(&limited(1e-7)) else {
        panic!("no pass is so short")
    };
    assert!(
        (limit_s - 1e-7).abs() < 1e-12 && least_s > 1e-6,
        "{least_s}"
    );
    // Passes at the level teach how long they really are.
    let free = world.optimize(&limited(1e3)).unwrap();
    world
        .apply(PlanOptions {
            mix: Some(free.mix),
            ..at(Level::Optimized)
        })
        .unwrap();
    for _ in 0..3 {
        world.generate();
    }
    let longest = pass_s(&free);
    let shortest = match world.optimize(&limited(1e-7)) {
        Err(OptimizeError::PassTime { least_s, .. }) => least_s,
        other => panic!("{other:?}"),
    };
    assert!(shortest < longest, "{shortest} {longest}");
    let limit_s = (shortest + longest) / 2.0;
    let made = world.optimize(&limited(limit_s)).unwrap();
    let found = pass_s(&made);
    assert!(found <= 1.001 * limit_s, "{found} of {limit_s}");
    let loss = |made: &OptimizeSummary| made.prediction.as_ref().unwrap().kl_nats;
    assert!(loss(&made) >= loss(&free));
}

#[test]
fn a_mix_in_a_file_computes_what_it_does_in_force() {
    let world = World::new();
    let made = world.optimize(&world.options(world.budget(6.5))).unwrap();
    world
        .apply(PlanOptions {
            mix: Some(made.mix),
            ..at(Level::Optimized)
        })
        .unwrap();
    let expected = world.generate();
    let target = world.folder.path().join("mix.sluice");
    let compress = |mix, folder: Option<&Path>| {
        let options = CompressOptions {
            method: CompressionMethod::Mix(mix),
            tile: 512,
            tensors: TensorFilter::default(),
            all: false,
            threads: 1,
            replace: false,
        };
        let check = SourceCheck {
            remembered: folder,
            progress: &mut |_| {},
        };
        let never = AtomicBool::new(false);
        compress_checked(&source(), &target, &options, check, &never, &mut |_, _| {})
    };
    let weights = world.weight_cache();
    for (mix, folder) in [(MixId::of_hash(1), Some(&*weights)), (made.mix, None)] {
        let refused = compress(mix, folder);
        assert!(
            matches!(refused, Err(CompressError::NoMix { .. })),
            "{refused:?}"
        );
        assert!(!target.exists());
    }
    let written = compress(made.mix, Some(&weights)).unwrap();
    // Quantized matrices, others without loss, and the embedding as it is.
    assert!(
        written.bytes < written.original_bytes * 6 / 10,
        "{written:?}"
    );
    let settings = PlanSettings {
        level: Level::Standard,
        ..PlanSettings::default()
    };
    world
        .engine
        .load_now(Source::Folder(target), settings)
        .unwrap();
    let found = world.generate();
    assert_eq!(found.tokens, expected.tokens);
    assert!(!found.is_lossless);
}

#[test]
fn a_tied_lm_head_is_quantized_in_a_file_as_it_is_in_force() {
    let world = World::new();
    let folder = world.folder.path().join("tied");
    let shape = Shape {
        naming: TensorNaming::HuggingFace,
        layers: 2,
        // Smaller matrices stay as they are in a file.
        hidden_size: 256,
        attention_heads: 4,
        kv_heads: 4,
        head_dim: 64,
        intermediate_size: 512,
        padded_vocab_size: 640,
        context_length: 128,
        causal: true,
        tied: true,
        biases: false,
        qk_norms: false,
        layer_kind: LayerKind::Attention,
    };
    let never = AtomicBool::new(false);
    let synthesis = SynthOptions {
        shape,
        dtype: SynthDType::Bf16,
        seed: 3,
        family: None,
        router: SynthRouter::default(),
        threads: 2,
    };
    synthesis.write(&folder, &never, &mut |_, _| {}).unwrap();
    let source = Source::Folder(folder);
    let settings = PlanSettings {
        level: Level::Standard,
        ..PlanSettings::default()
    };
    world.engine.load_now(source.clone(), settings).unwrap();
    let original = world.generate();
    let made = world.optimize(&OptimizeOptions {
        goal: OptimizeGoal::Rate(3.0),
        ..world.options(0)
    });
    let mix = made.unwrap().mix;
    world
        .apply(PlanOptions {
            mix: Some(mix),
            ..at(Level::Optimized)
        })
        .unwrap();
    let expected = world.generate();
    assert_ne!(expected.tokens, original.tokens);
    let bytes = world.engine.in_force().unwrap().plan.weight_bytes();
    let weights = world.weight_cache();
    let target = |name: &str| world.folder.path().join(name);
    let write = |name: &str, keep: &[&str]| {
        let options = CompressOptions {
            method: CompressionMethod::Mix(mix),
            tile: 512,
            tensors: TensorFilter {
                keep: keep.iter().copied().map(Glob::new).collect(),
                ..TensorFilter::default()
            },
            all: false,
            threads: 1,
            replace: false,
        };
        let check = SourceCheck {
            remembered: Some(&*weights),
            progress: &mut |_| {},
        };
        let target = target(name);
        compress_checked(&source, &target, &options, check, &never, &mut |_, _| {}).unwrap();
        Source::Folder(target)
    };
    let with_head = write("mix.sluice", &[]);
    world.engine.load_now(with_head, settings).unwrap();
    assert_eq!(world.generate().tokens, expected.tokens);
    let found = world.engine.in_force().unwrap().plan.weight_bytes();
    assert!(found.abs_diff(bytes) < bytes / 50, "{found} {bytes}");
    // The way back has no file for it.
    let container = compression::open(&target("mix.sluice")).unwrap();
    assert!(container.tensor("lm_head.weight").is_some());
    let back = target("back");
    compression::decompress(&container, &back, 1, &never, &mut |_, _| {}).unwrap();
    world
        .engine
        .load_now(Source::Folder(back), settings)
        .unwrap();
    // One that is to stay as it is does.
    let without = write("kept.sluice", &["lm_head*"]);
    world.engine.load_now(without, settings).unwrap();
    let found = world.engine.in_force().unwrap().plan.weight_bytes();
    assert!(found > bytes + bytes / 10, "{found} {bytes}");
}

#[test]
fn one_rate_for_all_matrices_needs_no_measurements_of_each() {
    let world = World::new();
    let options = OptimizeOptions {
        goal: OptimizeGoal::Rate(3.5),
        ..world.options(0)
    };
    let never = AtomicBool::new(false);
    let made = optimize(&world.engine, &options, &never, &mut |step| {
        assert!(matches!(
            step,
            OptimizeProgress::Quantizing { is_final: true, .. }
        ));
    });
    let made = made.unwrap();
    assert!(made.prediction.is_none() && made.bits == 3.5);
    assert!(made.measured.mean_kl > 0.0);
    world
        .apply(PlanOptions {
            mix: Some(made.mix),
            ..at(Level::Optimized)
        })
        .unwrap();
    assert!(!world.generate().is_lossless);
}
