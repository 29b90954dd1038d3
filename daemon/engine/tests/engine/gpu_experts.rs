//! A mixture's experts on their way to a GPU and in its cache, beside what every pass needs: against the stand-in, each
//! test in a process of its own, since the environment says how the GPU is.

use std::{cell::Cell, collections::HashMap, fs};

use sluice_cuda::GpuMemory;
use sluice_ops::ledger::Ledger;
use sluice_weights::{WeightData, WeightGroup, WeightGroupPlan};
use testkit::apart;

use crate::{checkpoints::fixture, gpu_stream::Streamed};

/// What the host may keep in pinned memory, of 32 experts of 16 KiB and of other groups of as much or more.
const ALL: u64 = u64::MAX;
const SOME: u64 = 400 << 10;
const NOTHING: u64 = 0;

/// Room for what a dozen passes read.
const LOG_BYTES: usize = 16 << 20;

/// A mixture, and what its passes have read.
struct Mixture {
    streamed: Streamed,
    /// Whatever is read, one after another.
    log: GpuMemory,
    logged: Cell<usize>,
    /// State of a generator of numbers that only have to differ.
    random: Cell<u64>,
}

/// What was read, and where in the log it begins.
type Reads = Vec<(WeightGroup, usize)>;

impl Mixture {
    /// One with room for so many bytes of experts besides the least.
    fn new(more_bytes: u64, pin_limit_bytes: u64, ledger: &Ledger) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        fs::create_dir(&model).unwrap();
        for name in ["config.json", "model.safetensors"] {
            fs::copy(fixture("qwen3-moe-tiny").join(name), model.join(name)).unwrap();
        }
        let streamed = Streamed::open(folder, model, more_bytes, pin_limit_bytes, ledger);
        Self {
            log: streamed.gpu.allocate(LOG_BYTES).unwrap(),
            streamed,
            logged: Cell::new(0),
            random: Cell::new(1),
        }
    }

    fn random(&self) -> u64 {
        let next = self.random.get().wrapping_mul(0x5851_F42D_4C95_7F2D) + 1;
        self.random.set(next);
        next >> 33
    }

    /// Sends copies of a group's weights.
    fn read(&self, group: &WeightGroupPlan, reads: &mut Reads, how: How) -> bool {
        let weights = &self.streamed.weights;
        let guard = match how {
            How::Waits => weights.acquire(group.group).unwrap(),
            How::IfThere => match weights.try_acquire(group.group) {
                Some(guard) => guard,
                None => return false,
            },
        };
        reads.push((group.group, self.logged.get()));
        for tensor in &group.tensors {
            let from = guard.weight(tensor.part).span();
            let at = self.logged.get();
            let to = self.log.span().part(at, from.bytes());
            self.streamed.gpu.copy(to, from).unwrap();
            self.logged.set(at + from.bytes());
        }
        true
    }

    /// A group's weights in host memory are what the files have, while copies of others are on their way.
    fn check_on_host(&self, group: &WeightGroupPlan) {
        let guard = self.streamed.weights.acquire_on_host(group.group).unwrap();
        for tensor in &group.tensors {
            let WeightData::Host(bytes) = guard.weight(tensor.part).data else {
                panic!("{:?} is not in host memory", group.group);
            };
            assert!(bytes == self.streamed.in_file(tensor), "{tensor:?}");
        }
    }

    /// A pass, in which the chosen experts of each layer are used as the network does; now and then one is given up, or comes out of
    /// turn.
    fn pass(&self, reads: &mut Reads, chooses: impl Fn(usize, usize) -> bool) {
        let mut experts: HashMap<usize, Vec<&WeightGroupPlan>> = HashMap::new();
        for group in &self.streamed.plan.groups {
            if let WeightGroup::Expert(layer, _) = group.group {
                experts.entry(layer).or_default().push(group);
            }
        }
        for group in &self.streamed.plan.groups {
            match group.group {
                WeightGroup::Embedding => {}
                WeightGroup::Expert(layer, 0) => {
                    let of_layer = &experts[&layer];
                    let chosen = (0..of_layer.len()).filter(|&expert| chooses(layer, expert));
                    let chosen: Vec<usize> = chosen.collect();
                    // The CPU computes some of them.
                    let seed = self.random();
                    let is_of_cpu =
                        |expert: usize| seed.is_multiple_of(4) && expert.is_multiple_of(3);
                    let touched = chosen.iter().copied();
                    (self.streamed.weights).want_experts(layer, touched, is_of_cpu);
                    let (of_cpu, chosen): (Vec<usize>, Vec<usize>) =
                        chosen.into_iter().partition(|&expert| is_of_cpu(expert));
                    for expert in of_cpu {
                        self.check_on_host(of_layer[expert]);
                    }
                    let ends = match self.random() % 8 {
                        0 => chosen.len() / 2,
                        _ => chosen.len(),
                    };
                    for &expert in &chosen[..ends] {
                        if !self.read(of_layer[expert], reads, How::IfThere) {
                            self.read(of_layer[expert], reads, How::Waits);
                        }
                    }
                    if self.random().is_multiple_of(4) {
                        let any = self.random() as usize % of_layer.len();
                        self.read(of_layer[any], reads, How::Waits);
                    }
                }
                WeightGroup::Expert(..) => {}
                _ => assert!(self.read(group, reads, How::Waits)),
            }
        }
    }

    /// Passes of which each chooses nearly what the one before did, and what they read is what the files have.
    fn checked_passes(&self, count: usize) {
        let mut reads = Vec::new();
        let mut seeds = [self.random(), self.random()];
        self.logged.set(0);
        for _ in 0..count {
            self.pass(&mut reads, |layer, expert| {
                seeds[layer % 2] >> (expert % 31) & 1 == 1
            });
            seeds[0] ^= 1 << (self.random() % 31);
            if self.random().is_multiple_of(4) {
                seeds[1] = self.random();
            }
        }
        let mut found = vec![0; self.logged.get()];
        let log = self.log.span().part(0, found.len());
        self.streamed.gpu.download(log, &mut found).unwrap();
        let groups = self.streamed.plan.groups.iter();
        let tensors: HashMap<_, _> = groups.map(|group| (group.group, &group.tensors)).collect();
        for (group, mut at) in reads {
            for tensor in tensors[&group] {
                let expected = self.streamed.in_file(tensor);
                assert!(
                    found[at..at + expected.len()] == expected,
                    "{group:?} {tensor:?}"
                );
                at += expected.len();
            }
        }
    }

    /// A pass over all experts, of which none is given up.
    fn whole_pass(&self) {
        self.logged.set(0);
        for group in &self.streamed.plan.groups {
            if group.group != WeightGroup::Embedding {
                self.read(group, &mut Vec::new(), How::Waits);
            }
        }
    }
}

#[derive(Clone, Copy)]
enum How {
    Waits,
    IfThere,
}

/// Passes read what the files have, however streams run, from caches of few slots and of more.
fn check_passes(name: &str, pin_limit_bytes: u64) {
    for streams in ["lazy", "eager", "random:1", "random:2", "random:3"] {
        apart::run(name, &[("STAND_IN_STREAMS", streams)], || {
            // With the last, experts alone go through a cache.
            for (more_bytes, count) in [(0, 3), (64 << 10, 3), (300 << 10, 0)] {
                let mixture = Mixture::new(more_bytes, pin_limit_bytes, &Ledger::default());
                let staging = &mixture.streamed.plan.staging;
                assert_eq!(staging.count, count, "{staging:?}");
                assert!(staging.expert_buffers >= 3 && staging.expert_buffers < 32);
                for passes in [8, 1, 12] {
                    mixture.checked_passes(passes);
                }
                let stats = mixture.streamed.stats().experts;
                assert!(stats.hits > 0 && stats.missed > 0, "{stats:?}");
                assert!(stats.computed_by_cpu > 0, "{stats:?}");
            }
        });
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn experts_come_whole_from_pinned_memory() {
    check_passes("experts_come_whole_from_pinned_memory", ALL);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn experts_come_whole_where_some_are_kept() {
    check_passes("experts_come_whole_where_some_are_kept", SOME);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn experts_come_whole_where_none_are_kept() {
    check_passes("experts_come_whole_where_none_are_kept", NOTHING);
}

/// Both links keep what the plan says, within one limit, and what is kept is read once.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn experts_and_all_else_are_kept_as_planned() {
    let name = "experts_and_all_else_are_kept_as_planned";
    apart::run(name, &[], || {
        for limit in [ALL, SOME, NOTHING] {
            let ledger = Ledger::default();
            let mixture = Mixture::new(0, limit, &ledger);
            for _ in 0..2 {
                mixture.whole_pass();
                assert!(ledger.pinned_bytes() <= limit);
            }
            let streamed = &mixture.streamed;
            assert_eq!(streamed.stats().pinned_bytes, streamed.plan.pinned_bytes);
            let kept = |is_expert| {
                let groups = streamed.plan.streamed();
                let groups = groups.filter(|group| group.group.is_expert() == is_expert);
                groups.map(WeightGroupPlan::staging_bytes).sum::<u64>()
            };
            match limit {
                ALL => {
                    assert_eq!(ledger.pinned_bytes(), kept(true) + kept(false));
                    // No pass reads the file again.
                    fs::write(&streamed.file, b"short").unwrap();
                    mixture.whole_pass();
                }
                // Both have buffers to stage what is not kept.
                SOME => assert!(ledger.pinned_bytes() > streamed.plan.pinned_bytes),
                _ => assert_eq!(ledger.pinned_bytes(), 0),
            }
            drop(mixture);
            assert_eq!(ledger.pinned_bytes(), 0);
        }
    });
}

/// How long copies took, and work waited for them, is the GPU's clock's to say.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn times_of_experts_are_the_gpus() {
    const BYTES_PER_S: u64 = 100_000_000;
    let name = "times_of_experts_are_the_gpus";
    let clock = [
        ("STAND_IN_CLOCK", "simulated"),
        ("STAND_IN_LINK_BYTES_PER_S", "100000000"),
    ];
    apart::run(name, &clock, || {
        let mixture = Mixture::new(300 << 10, ALL, &Ledger::default());
        for _ in 0..4 {
            mixture.whole_pass();
        }
        mixture.streamed.gpu.synchronize().unwrap();
        let stats = mixture.streamed.stats();
        let least_s = stats.bytes as f64 / BYTES_PER_S as f64;
        let copied_s = stats.copied.as_secs_f64();
        assert!(stats.bytes > 0 && copied_s > 0.99 * least_s && copied_s < 1.5 * least_s);
        assert!(stats.waited > stats.copied / 4, "{stats:?}");
    });
}
