//! Packed passes beside each request's own, and what they take beside what a dry run says.

mod canvases;
mod pruned;

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use sluice_checkpoint::{Checkpoint, Source, family::ModelConfig};

use sluice_formats::{DType, Format, noise::Noise};
use sluice_machine::{GpuProfile, MemoryKind, Profile};
use sluice_ops::{
    Activation, KvCacheShape, LmHeadGroup, LmHeadRow, Ops, RankingScore, SamplingParams,
    device::Device, ledger::Ledger,
};
use sluice_plan::{Machine, Plan, PlanInput, WorkingMemory, Workload, resolve_kv_cache_format};
use sluice_shared::{
    level::{KvCacheFormat, Level},
    options::ResolvedPlanSettings,
};
use sluice_weights::{SourceTensor, TensorPart, TensorSpec, weight_groups};

use super::{
    dry_run::DryRun,
    network::{Interrupt, Network, Sequence, VisibleKeys},
    sequence_memory::{SequenceMemory, SequenceShape},
};
use crate::residency::{LoadOutcome, Residency, WeightReader};

const MLP_ROWS: usize = 16;

/// A tiny model, on a device or in a dry run of one.
struct World {
    ops: Ops,
    model: Network,
    weights: Residency,
    config: ModelConfig,
    sources: Vec<SourceTensor>,
    profile: Profile,
}

impl World {
    fn new(name: &str) -> Self {
        Self::on(name, Profile::cpu(2), false)
    }

    fn on(name: &str, profile: Profile, is_dry_run: bool) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let checkpoint = Checkpoint::open(&Source::Folder(folder.join(name))).unwrap();
        let specs = checkpoint.model().unwrap().shape.tensors();
        Self::of(checkpoint, specs, profile, is_dry_run)
    }

    /// The model with these tensors, which may be pruned.
    fn of(
        checkpoint: Checkpoint,
        specs: Vec<TensorSpec>,
        profile: Profile,
        is_dry_run: bool,
    ) -> Self {
        let config = checkpoint.model().unwrap();
        let sources = checkpoint.sources(specs).unwrap();
        let ops = match is_dry_run {
            true => Ops::new(Device::dry_run(profile), Ledger::dry_run()),
            false => Ops::new(Device::cpu(2).unwrap(), Ledger::default()),
        };
        let ops = ops.unwrap();
        let mut model = Network::new(config.clone(), &ops).unwrap();
        model.set_mlp_rows(MLP_ROWS);
        let weights = match is_dry_run {
            true => Residency::dry_run(&weight_groups(&sources)),
            false => resident(checkpoint, &config, &sources, &ops),
        };
        Self {
            ops,
            model,
            weights,
            config,
            sources,
            profile,
        }
    }

    fn memory(&self, capacity: usize) -> SequenceMemory {
        let format = resolve_kv_cache_format(KvCacheFormat::Auto, &self.profile).unwrap();
        let shape = SequenceShape::of(&self.config.shape, format);
        SequenceMemory::new(&self.ops, shape, capacity).unwrap()
    }

    fn forward(&self, sequences: &mut [Sequence<'_>]) -> Activation {
        let never = AtomicBool::new(false);
        let Self { ops, weights, .. } = self;
        finished(self.model.forward(ops, weights, sequences, &never))
    }

    /// What passes of this workload are said to take.
    fn dry_run(&self, workload: &Workload) -> WorkingMemory {
        let dry_run = DryRun::new(self.config.clone(), &self.sources, None, self.profile);
        dry_run
            .working(workload, MLP_ROWS, KvCacheFormat::Auto)
            .unwrap()
    }

    /// What was taken so far of activations, of which so much was reserved, of KV caches or states, and for the LM head.
    fn taken(&self, reserved: u64) -> [u64; 3] {
        let peak = |kind: MemoryKind| self.ops.ledger().report().kinds[kind as usize].peak_bytes;
        let beside = peak(MemoryKind::Activations) - reserved;
        let activations = self.ops.activation_bytes() + beside;
        [
            activations,
            peak(MemoryKind::KvCache) + peak(MemoryKind::State),
            peak(MemoryKind::Logits),
        ]
    }

    /// A pass over canvases of these lengths, of each of which so many rows are read.
    fn denoise(&self, canvases: &[(usize, usize)]) {
        let (ops, weights) = (&self.ops, &self.weights);
        let tokens = [1; 100];
        let places: Vec<usize> = (0..100).collect();
        let row = |&position: &usize| LmHeadRow {
            position,
            may_end: true,
            target: None,
            watched: Vec::new(),
            is_check: false,
        };
        let head_rows: Vec<LmHeadRow> = places.iter().map(row).collect();
        let choice = SamplingParams {
            temperature: 0.0,
            noise: Noise::new(0),
            pass: 0,
            guidance: None,
            vocab_size: self.config.vocab_size,
            mask_token_id: Some(0),
            end_tokens: &[],
            suppressed: &[],
            ranking: RankingScore::Confidence,
            top: false,
            scaling: None,
        };
        let mut sequences: Vec<_> = (canvases.iter())
            .map(|&(length, read)| Sequence {
                tokens: &tokens[..length],
                positions: &places[..length],
                wanted: &places[..read],
                sees: VisibleKeys::Each { checks: 0 },
            })
            .collect();
        let groups: Vec<_> = (canvases.iter())
            .map(|&(_, read)| LmHeadGroup {
                rows: &head_rows[..read],
                sampling: choice.clone(),
                distributions: None,
                soft: None,
            })
            .collect();
        let never = AtomicBool::new(false);
        let hidden = finished(self.model.forward(ops, weights, &mut sequences, &never));
        let x = self.model.final_norm(ops, weights, &hidden).unwrap();
        drop(hidden);
        let part_rows = weights.lm_head_part_rows();
        let mut reduction = ops.start_lm_head(groups, part_rows).unwrap();
        for (group, first) in weights.lm_head_parts() {
            let head = weights.acquire(group).unwrap();
            let part = head.weight(TensorPart::LmHead);
            ops.reduce_lm_head(&mut reduction, &x, &part, first)
                .unwrap();
        }
    }

    /// Passes over prompts of these lengths, in memories with room for one more, and then one for a token of each.
    fn continue_prompts(&self, prompts: &[usize]) {
        let (ops, weights) = (&self.ops, &self.weights);
        let mut memories: Vec<_> = prompts.iter().map(|len| self.memory(len + 1)).collect();
        let rows = self.config.shape.padded_vocab_size;
        let mut logits = ops.logits_rows(prompts.len(), rows).unwrap();
        let tokens = [1; MLP_ROWS];
        let places: Vec<usize> = (0..4096).collect();
        let mut left = prompts.to_vec();
        loop {
            // As many rows as go through the layers at once, the first requests' first; in the end one of each.
            let mut room = MLP_ROWS;
            let shares = left.iter_mut().map(|left| {
                let share = room.min(*left);
                room -= share;
                *left -= share;
                share
            });
            let mut shares: Vec<usize> = shares.collect();
            let ends = shares.iter().all(|share| *share == 0);
            if ends {
                shares.fill(1);
            }
            let mut next: Vec<_> = (memories.iter_mut().zip(&shares))
                .map(|(memory, &share)| Sequence {
                    tokens: &tokens[..share],
                    positions: &places[memory.len()..][..share],
                    wanted: if share > 0 { &[0] } else { &[] },
                    sees: memory.sees(),
                })
                .collect();
            let hidden = self.forward(&mut next);
            if !ends {
                continue;
            }
            let x = self.model.final_norm(ops, weights, &hidden).unwrap();
            for (group, first) in weights.lm_head_parts() {
                let head = weights.acquire(group).unwrap();
                let part = head.weight(TensorPart::LmHead);
                ops.take_logits(&mut logits, &x, &part, first).unwrap();
            }
            return;
        }
    }
}

/// All weights, in memory.
fn resident(
    checkpoint: Checkpoint,
    config: &ModelConfig,
    sources: &[SourceTensor],
    ops: &Ops,
) -> Residency {
    let plan = Plan::new(&PlanInput {
        shape: &config.shape,
        sources,
        choices: ResolvedPlanSettings::from(Level::Off),
        budget_bytes: u64::MAX,
        workload: Workload::default(),
        working: WorkingMemory::default(),
        machine: &Machine::unmeasured(Profile::cpu(2), u64::MAX),
    });
    let reader = Arc::new(WeightReader::new(Arc::new(checkpoint), sources));
    let never = AtomicBool::new(false);
    let (device, ledger) = (ops.device(), ops.ledger());
    let loaded = Residency::load(&plan.unwrap(), reader, device, ledger, &never, &mut |_| {});
    match loaded.unwrap() {
        LoadOutcome::Done(weights) => weights,
        LoadOutcome::Cancelled => unreachable!("nobody cancels"),
    }
}

fn finished(pass: Result<Activation, Interrupt>) -> Activation {
    pass.unwrap_or_else(|interrupt| match interrupt {
        Interrupt::Failed(error) => panic!("{error}"),
        Interrupt::Cancelled => unreachable!("nobody cancels"),
    })
}

/// The devices that a pass is planned for: the CPU, and a GPU, which has tables in its memory besides.
fn profiles() -> [Profile; 2] {
    let card = GpuProfile {
        total_bytes: 1 << 40,
        dtype: DType::Bf16,
        context_bytes: 0,
        workspace_bytes: 0,
    };
    [
        Profile::cpu(2),
        Profile {
            gpu: Some(card),
            ..Profile::cpu(2)
        },
    ]
}

fn together(workloads: impl IntoIterator<Item = Workload>) -> Workload {
    let all = workloads.into_iter();
    let sum = all.reduce(|sum, one| sum.with(&one));
    sum.expect("there is a request")
}

#[test]
fn rows_of_several_sequences_are_those_of_each_alone() {
    let world = World::new("llama-tiny");
    let texts: Vec<Vec<u32>> = [60, 9, 33]
        .map(|len| (0..len).map(|place| (place * 37 + len) % 250 + 3).collect())
        .to_vec();
    // What each sequence takes in each of four passes, and which rows are wanted.
    let passes: [[(usize, &[usize]); 3]; 4] = [
        [(40, &[0, 39]), (3, &[]), (0, &[])],
        [(17, &[5]), (4, &[0, 1, 2, 3]), (30, &[])],
        [(1, &[0]), (1, &[0]), (1, &[0])],
        [(2, &[1]), (1, &[]), (2, &[1, 0])],
    ];
    let places: Vec<usize> = (0..60).collect();
    let shape = KvCacheShape::of(&world.config.shape, Format::F32);
    let caches = || {
        texts
            .iter()
            .map(|text| world.ops.kv_cache(shape, text.len()).unwrap())
    };
    let mut packed: Vec<_> = caches().collect();
    let mut alone: Vec<_> = caches().collect();
    for pass in passes {
        let mut expected = Vec::new();
        for ((cache, text), (count, wanted)) in alone.iter_mut().zip(&texts).zip(pass) {
            let tokens = &text[cache.len()..][..count];
            let next = Sequence {
                tokens,
                positions: &places[cache.len()..][..count],
                wanted,
                sees: VisibleKeys::Before { cache },
            };
            let rows = world.forward(&mut [next]);
            expected.extend(world.ops.read(&rows).unwrap());
        }
        let sequences = packed.iter_mut().zip(&texts).zip(pass);
        let mut next: Vec<_> = sequences
            .map(|((cache, text), (count, wanted))| Sequence {
                tokens: &text[cache.len()..][..count],
                positions: &places[cache.len()..][..count],
                wanted,
                sees: VisibleKeys::Before { cache },
            })
            .collect();
        // A pass that does not come to its end leaves no trace.
        let cancelled = AtomicBool::new(true);
        let (ops, weights) = (&world.ops, &world.weights);
        let length = |sequence: &Sequence<'_>| match &sequence.sees {
            VisibleKeys::Before { cache } => cache.len(),
            _ => unreachable!("causal"),
        };
        let lengths = |next: &[Sequence<'_>]| -> Vec<_> { next.iter().map(length).collect() };
        let before = lengths(&next);
        let given_up = world.model.forward(ops, weights, &mut next, &cancelled);
        assert!(matches!(given_up, Err(Interrupt::Cancelled)));
        assert_eq!(lengths(&next), before);

        let rows = world.forward(&mut next);
        let found = ops.read(&rows).unwrap();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            let near = 3e-5 * expected.abs().max(1.0);
            assert!((found - expected).abs() <= near, "{found} for {expected}");
        }
    }
    for (packed, alone) in packed.iter().zip(&alone) {
        assert!(packed.len() == alone.len() && packed.len() > 8);
    }
}

#[test]
fn canvases_of_one_length_take_what_was_rehearsed() {
    for (canvas, block, requests) in [(20, 8, 1), (20, 8, 3), (7, 32, 2), (33, 1, 5)] {
        let world = World::new("llada-tiny");
        let working = world.dry_run(&Workload::new(canvas, block, requests));
        world.ops.reserve(working.activation_bytes).unwrap();
        world.denoise(&vec![(canvas, block.min(canvas)); requests]);
        let said = [working.activation_bytes, 0, working.logits_bytes];
        assert_eq!(
            world.taken(working.activation_bytes),
            said,
            "{canvas}, {block}, {requests}"
        );
    }
}

#[test]
fn kept_distributions_are_rehearsed() {
    for (rows, requests) in [(8, 1), (3, 2)] {
        let world = World::new("llada-tiny");
        let workload = Workload::new(20, 8, 1).comparing(rows);
        let working = world.dry_run(&together((0..requests).map(|_| workload)));
        world.ops.reserve(working.activation_bytes).unwrap();
        let head_rows = world.config.shape.padded_vocab_size;
        let kept: Vec<_> = (0..requests)
            .map(|_| world.ops.distributions(rows, head_rows).unwrap())
            .collect();
        world.denoise(&vec![(20, 8); requests]);
        let [_, _, head] = world.taken(working.activation_bytes);
        assert_eq!(head, working.logits_bytes);
        drop(kept);
    }
}

#[test]
fn canvases_of_several_lengths_take_no_more_than_was_rehearsed() {
    for canvases in [
        &[(20, 8), (33, 1), (7, 7)][..],
        &[(1, 1), (90, 32), (2, 0), (17, 5), (64, 64)],
        &[(5, 2), (6, 3)],
    ] {
        let world = World::new("llada-tiny");
        let requests = canvases.iter();
        let workload = together(requests.map(|&(len, read)| Workload::new(len, read, 1)));
        let working = world.dry_run(&workload);
        world.ops.reserve(working.activation_bytes).unwrap();
        world.denoise(canvases);
        let [activations, _, head] = world.taken(working.activation_bytes);
        assert_eq!(activations, working.activation_bytes);
        assert!(head <= working.logits_bytes);
        // And on any device, by its dry run.
        for profile in profiles() {
            let world = World::on("llada-tiny", profile, true);
            world.ops.reserve(0).unwrap();
            let working = world.dry_run(&workload);
            world.denoise(canvases);
            let [activations, _, head] = world.taken(0);
            assert!(activations <= working.activation_bytes && head <= working.logits_bytes);
        }
    }
}

#[test]
fn prompts_take_no_more_than_was_rehearsed() {
    check_prompts("llama-tiny");
}

#[test]
fn prompts_of_a_model_with_states_take_no_more_than_was_rehearsed() {
    check_prompts("rwkv7-tiny");
}

fn check_prompts(name: &str) {
    for prompts in [
        &[30][..],
        &[19, 19, 19],
        &[40, 3, 11],
        &[2, 1, 1, 50],
        &[1, 1],
    ] {
        let requests = prompts.iter();
        let workload = together(requests.map(|len| Workload::new(len + 1, 32, 1)));
        let world = World::new(name);
        let working = world.dry_run(&workload);
        world.ops.reserve(working.activation_bytes).unwrap();
        world.continue_prompts(prompts);
        let kept_bytes = |working: &WorkingMemory| working.kv_cache_bytes + working.state_bytes;
        let [activations, kept, head] = world.taken(working.activation_bytes);
        assert!(activations <= working.activation_bytes && kept <= kept_bytes(&working));
        assert_eq!(head, working.logits_bytes);
        if workload.is_uniform() && workload.rows() > MLP_ROWS {
            assert_eq!(
                (activations, kept),
                (working.activation_bytes, kept_bytes(&working))
            );
        }
        for profile in profiles() {
            let world = World::on(name, profile, true);
            world.ops.reserve(0).unwrap();
            let working = world.dry_run(&workload);
            world.continue_prompts(prompts);
            let said = [
                working.activation_bytes,
                kept_bytes(&working),
                working.logits_bytes,
            ];
            for (taken, said) in world.taken(0).into_iter().zip(said) {
                assert!(taken <= said, "{taken} of {said} for {prompts:?}");
            }
        }
    }
}

#[test]
fn kv_caches_of_any_lengths_take_no_more_than_was_planned() {
    let world = World::new("llama-tiny");
    let dry_run = DryRun::new(world.config.clone(), &world.sources, None, world.profile);
    let formats = [
        (KvCacheFormat::Bf16, Format::Bf16),
        (KvCacheFormat::Q5_0, Format::Q5_0),
        (KvCacheFormat::Q4_0, Format::Q4_0),
    ];
    for lengths in [
        &[1000, 100, 100, 100][..],
        &[100, 100, 100, 1000],
        &[2000, 1, 1, 1],
        &[97, 96, 95],
        &[64, 300],
        &[500],
    ] {
        let requests = lengths.iter();
        let workload = together(requests.map(|&len| Workload::new(len, 32, 1)));
        for (kept, format) in formats {
            let working = dry_run.working(&workload, MLP_ROWS, kept).unwrap();
            let planned = working.kv_cache_bytes;
            let shape = KvCacheShape::of(&world.config.shape, format);
            let cache = |&len: &usize| world.ops.kv_cache(shape, len).unwrap().bytes();
            let taken: u64 = lengths.iter().map(cache).sum();
            assert!(taken <= planned, "{taken} of {planned} for {lengths:?}");
        }
    }
}
