//! Experts that the CPU computes beside a GPU, on the stand-in.

use std::sync::{Arc, mpsc};

use sluice_checkpoint::{Checkpoint, Source};
use sluice_engine::{
    Engine, EngineError, EngineOptions, Generate, ModelId, Outcome, PlanOptions, Work,
    check::{fixture_forwards, fixture_logits, streamed},
    event::{Event, GenerationResult},
    model::dry_run::DryRun,
};
use sluice_formats::{DType, Format};
use sluice_machine::{LinearRate, MemoryKind, Rates};
use sluice_ops::{
    Ops,
    device::{Device, DeviceChoice},
    ledger::Ledger,
};
use sluice_plan::{ExpertSplit, Plan, PlanError, Workload};
use sluice_shared::{
    level::{CpuExperts, KvCacheFormat, Level},
    options::Budget,
    sampling::EosPolicy,
};
use sluice_weights::{Shape, SourceTensor};
use testkit::{apart, here};

use crate::{checkpoints::fixture, loading::apply};

fn operations(dtype: DType) -> Ops {
    here::open_stand_in();
    let opened = Device::open(DeviceChoice::Cuda(0), Some(dtype), 2).unwrap();
    assert!(opened.device.is_gpu());
    Ops::new(opened.device, Ledger::default()).unwrap()
}

/// Few experts on the GPU, half of them, or none; and only those with few rows on the CPU.
const SPLITS: [ExpertSplit; 4] = [
    split(1, usize::MAX),
    split(4, usize::MAX),
    split(0, usize::MAX),
    split(2, 3),
];

const fn split(on_gpu: usize, rows_max: usize) -> ExpertSplit {
    ExpertSplit { on_gpu, rows_max }
}

/// A plan with all experts in the cache and this split.
fn planned(
    ops: &Ops,
    split: ExpertSplit,
    pin_limit: u64,
) -> impl Fn(&Shape, &[SourceTensor]) -> Result<Option<Plan>, PlanError> {
    let profile = ops.device().profile();
    move |shape, sources| {
        let plan = streamed(profile, shape, sources, Level::Standard, pin_limit)?;
        assert!(plan.staging.expert_buffers > 0);
        Ok(Some(Plan {
            cpu_experts: Some(split),
            ..plan
        }))
    }
}

/// The logits are the references', wherever experts are computed, from pinned memory and without.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn logits_are_the_references_wherever_experts_are_computed() {
    for (name, splits, pin_limits) in [
        ("qwen3-moe-tiny", &SPLITS[..], &[u64::MAX, 100_000, 0][..]),
        ("llada2-tiny", &SPLITS[..1], &[u64::MAX]),
        ("sdar-moe-tiny", &SPLITS[..1], &[u64::MAX]),
    ] {
        for (split, pin_limit) in splits.iter().zip(pin_limits.iter().cycle()) {
            let ops = operations(DType::F32);
            let plan = planned(&ops, *split, *pin_limit);
            let checks = fixture_logits(&fixture(name), &ops, &plan).unwrap();
            assert!(!checks.is_empty());
            let failed: Vec<_> = checks.iter().filter(|check| !check.passes()).collect();
            assert!(failed.is_empty(), "{split:?}, {pin_limit}: {failed:#?}");
        }
    }
}

/// In 16 bits the sums differ from the GPU's; from one run to another they don't, whatever is pinned.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn the_same_is_computed_every_time() {
    let found = |split, pin_limit| {
        let ops = operations(DType::Bf16);
        let plan = planned(&ops, split, pin_limit);
        let forwards = fixture_forwards(&fixture("llada2-tiny"), &ops, &plan).unwrap();
        let logits = forwards.into_iter().map(|forward| forward.found);
        logits.collect::<Vec<_>>()
    };
    let all = found(split(usize::MAX, usize::MAX), u64::MAX);
    for split in [SPLITS[0], SPLITS[3]] {
        let once = found(split, u64::MAX);
        assert_ne!(once, all, "{split:?}");
        assert_eq!(once, found(split, 0), "{split:?}");
    }
}

/// What the CPU takes is what was planned, to the byte: experts' rows have room wherever they go.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn host_memory_is_what_was_planned() {
    let name = "llada-moe-tiny";
    let ops = operations(DType::Bf16);
    let checkpoint = Checkpoint::open(&Source::Folder(fixture(name))).unwrap();
    let config = checkpoint.model().unwrap();
    let sources = checkpoint.model_sources(&config.shape).unwrap();
    let dry_run = DryRun::new(config, &sources, None, ops.device().profile());
    let workload = Workload::new(64, 64, 4);
    let working = dry_run
        .working(&workload, dry_run.mlp_rows(), KvCacheFormat::Auto)
        .unwrap();
    let host = ops.host().unwrap();
    host.reserve(working.host.activation_bytes).unwrap();
    let plan = planned(&ops, split(0, usize::MAX), u64::MAX);
    fixture_forwards(&fixture(name), &ops, &plan).unwrap();
    let peak = |kind: MemoryKind| host.ledger().report().kinds[kind as usize].peak_bytes;
    assert!(host.activation_bytes() > 0);
    // Nothing beside what was reserved.
    assert_eq!(peak(MemoryKind::Activations), working.host.activation_bytes);
    assert_eq!(peak(MemoryKind::Scratch), working.host.scratch_bytes);
}

/// A model whose experts have no room on the GPU, behind a bus that is slower than any memory.
struct Served {
    engine: Arc<Engine>,
    model: ModelId,
    budget_bytes: u64,
}

impl Served {
    fn new(cpu_experts: CpuExperts) -> Self {
        let engine = Engine::start(EngineOptions {
            device: DeviceChoice::Cuda(0),
            compute_dtype: Some(DType::Bf16),
            threads: 2,
            rates: Some(slow_bus()),
            ..EngineOptions::default()
        })
        .unwrap();
        let options = |budget_bytes| PlanOptions {
            budget: Some(Budget::Bytes(budget_bytes)),
            cpu_experts: Some(cpu_experts),
            ..PlanOptions::default()
        };
        let source = Source::Folder(fixture("llada-moe-tiny"));
        let model = engine
            .load_now(source, PlanOptions::default().into())
            .unwrap()
            .id;
        let workload = engine.in_force().unwrap().plan.workload;
        let refused = engine.plan(&options(1), workload).unwrap_err();
        let EngineError::Plan(PlanError::BudgetTooSmall { least_bytes, .. }) = refused else {
            panic!("{refused}");
        };
        let budget_bytes = least_bytes + (64 << 10);
        apply(&engine, options(budget_bytes)).unwrap();
        Self {
            engine: Arc::new(engine),
            model,
            budget_bytes,
        }
    }

    fn generate(&self, seed: u64, prompt: u32) -> GenerationResult {
        self.generate_with(seed, prompt, |_| ())
    }

    /// The same, with a look at each event.
    fn generate_with(
        &self,
        seed: u64,
        prompt: u32,
        mut look: impl FnMut(&Event) + Send + 'static,
    ) -> GenerationResult {
        let request = Generate {
            steps: 4,
            temperature: 1.0,
            seed,
            eos: EosPolicy::Suppress,
            ..Generate::greedy(self.model, (prompt..prompt + 20).collect(), 8)
        };
        let (send, finished) = mpsc::channel();
        let sink = Box::new(move |event| {
            look(&event);
            if let Event::Finished(result) = event {
                send.send(result).unwrap();
            }
        });
        let work = Work::Generate(request);
        self.engine.submit(Default::default(), work, sink).unwrap();
        match finished.recv().unwrap().unwrap() {
            Outcome::Generated(generated) => generated,
            other => panic!("asked to generate: {other:?}"),
        }
    }

    /// Bytes of host memory in which the CPU computes, now and at most.
    fn host_bytes(&self) -> (u64, u64) {
        let report = self.engine.ledger_beside_gpu().report();
        let activations = report.kinds[MemoryKind::Activations as usize];
        (activations.bytes, activations.peak_bytes)
    }
}

/// Whether the CPU computes experts, from the next plan on.
fn cpu_experts(value: CpuExperts) -> PlanOptions {
    PlanOptions {
        cpu_experts: Some(value),
        ..PlanOptions::default()
    }
}

/// A bus of 200 kB/s, between a GPU and a CPU that are as fast as each other.
fn slow_bus() -> Rates {
    let linear = Format::ALL.map(|format| LinearRate {
        format,
        points: [(1, 1e-9), (8, 1e-9), (64, 1e-9)],
    });
    Rates {
        copy_bytes_per_s: 1e9,
        link_bytes_per_s: Some(2e5),
        linear: linear.to_vec(),
        host_linear: linear.to_vec(),
        decompress: Vec::new(),
        others_share: 0.0,
        convert: Vec::new(),
        compress_s: 0.0,
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn the_same_seed_gives_the_same_text_whatever_came_before() {
    let name = "the_same_seed_gives_the_same_text_whatever_came_before";
    apart::run(name, &[], || {
        let served = Served::new(CpuExperts::Auto);
        let plan = served.engine.in_force().unwrap().plan;
        assert!(plan.cpu_experts.is_some() && plan.cpu_expert_bytes() > 0);
        let first = served.generate(1, 1);
        assert!(!first.is_lossless, "no such answer is exact");
        let passes = served.engine.in_force().unwrap().passes;
        let counts = passes.experts;
        assert!(
            counts.computed_by_cpu > 0 && counts.cpu_bytes > 0,
            "{counts:?}"
        );
        let elsewhere = counts.hits + counts.fetched_ahead + counts.missed;
        assert_eq!(counts.touched, elsewhere + counts.computed_by_cpu);
        // The cache has other experts then.
        for prompt in [40, 90] {
            served.generate(2, prompt);
        }
        assert_eq!(served.generate(1, 1).tokens, first.tokens);
        let passes = served.engine.in_force().unwrap().passes;
        assert!(passes.peak_bytes <= served.budget_bytes);

        // From now on the GPU computes them all.
        apply(&served.engine, cpu_experts(CpuExperts::Off)).unwrap();
        assert!(served.generate(1, 1).is_lossless);
        let later = served.engine.in_force().unwrap().passes;
        let by_cpu = passes.experts.computed_by_cpu;
        assert_eq!(later.experts.computed_by_cpu, by_cpu);
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn the_gpu_computes_all_experts_unless_it_is_told_otherwise() {
    let name = "the_gpu_computes_all_experts_unless_it_is_told_otherwise";
    apart::run(name, &[], || {
        let served = Served::new(CpuExperts::Off);
        assert_eq!(served.engine.in_force().unwrap().plan.cpu_experts, None);
        assert!(served.generate(1, 1).is_lossless);
        let counts = served.engine.in_force().unwrap().passes.experts;
        assert!(
            counts.missed > 0 && counts.computed_by_cpu == 0,
            "{counts:?}"
        );
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_plan_that_comes_into_force_during_a_request_has_its_host_memory() {
    let name = "a_plan_that_comes_into_force_during_a_request_has_its_host_memory";
    apart::run(name, &[], || {
        let served = Served::new(CpuExperts::Off);
        assert_eq!(served.host_bytes(), (0, 0));
        let engine = Arc::clone(&served.engine);
        let during = served.generate_with(1, 1, move |event| {
            if matches!(event, Event::Pass(pass) if pass.passes == 1) {
                engine.apply(cpu_experts(CpuExperts::Auto), Box::new(drop));
            }
        });
        assert!(!during.is_lossless);
        let passes = served.engine.in_force().unwrap().passes;
        assert!(passes.experts.computed_by_cpu > 0);
        // As much as for a request that finds the plan in force, and nothing beside.
        let of_first = served.host_bytes();
        assert!(of_first.1 > 0);
        served.generate(1, 1);
        assert_eq!(served.host_bytes(), of_first);
        assert_eq!(of_first.0, 0);
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn without_host_memory_the_gpu_computes_all_experts() {
    let name = "without_host_memory_the_gpu_computes_all_experts";
    apart::run(name, &[], || {
        let served = Served::new(CpuExperts::Off);
        let on_gpu = served.generate(1, 1);
        let mut refused = 0;
        for which in 1.. {
            apply(&served.engine, cpu_experts(CpuExperts::Auto)).unwrap();
            assert!(served.engine.in_force().unwrap().plan.cpu_experts.is_some());
            served.engine.ledger_beside_gpu().fail_at(which);
            let (send, notices) = mpsc::channel();
            let generated = served.generate_with(1, 1, move |event| {
                if let Event::Notice(notice) = event {
                    send.send(notice.clone()).unwrap();
                }
            });
            let has_failed = served.engine.ledger_beside_gpu().has_failed();
            served.engine.ledger_beside_gpu().fail_at(0);
            if !has_failed {
                assert!(!generated.is_lossless);
                break;
            }
            refused += 1;
            let told = "host memory is short: the GPU computes all experts";
            assert_eq!(notices.iter().collect::<Vec<_>>(), [told]);
            assert_eq!(generated.tokens, on_gpu.tokens);
            assert!(generated.is_lossless);
            let plan = served.engine.in_force().unwrap().plan;
            assert_eq!((plan.cpu_experts, plan.cpu_expert_bytes()), (None, 0));
        }
        // Scratch memory of two threads and of both, and the activations.
        assert_eq!(refused, 4);
    });
}
