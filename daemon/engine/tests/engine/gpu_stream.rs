//! Weights on their way to a GPU, beside its work: against the stand-in, whose GPU runs streams in whatever order marks
//! allow, and has a clock that knows the sizes of copies and of work. Each test runs in a process of its own, since the
//! environment says how the GPU is.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use sluice_checkpoint::{Checkpoint, Source};
use sluice_cuda::{Gpu, GpuMemory, StreamMark};
use sluice_engine::residency::{LoadOutcome, Residency, StreamStats, WeightReader};
use sluice_formats::DType;
use sluice_ops::{
    device::{Device, DeviceChoice},
    ledger::Ledger,
};
use sluice_plan::{BLOCK_DEFAULT, Machine, Plan, PlanError, PlanInput, WorkingMemory, Workload};
use sluice_shared::level::Level;
use sluice_weights::{TensorPlan, WeightGroup, WeightGroupPlan};
use tempfile::TempDir;
use testkit::apart;

use crate::small;

/// A model of which as much is streamed as can be.
pub(crate) struct Streamed {
    pub(crate) weights: Residency,
    pub(crate) plan: Plan,
    checkpoint: Arc<Checkpoint>,
    pub(crate) gpu: Gpu,
    /// What the work of a pass makes: copies of all weights it was given.
    out: GpuMemory,
    pub(crate) file: PathBuf,
    _folder: TempDir,
}

/// What the host may keep in pinned memory, of 13 weight groups of a quarter to half a MiB.
const ALL: u64 = u64::MAX;
const SOME: u64 = 2 << 20;
const NOTHING: u64 = 0;

impl Streamed {
    fn new(pin_limit_bytes: u64) -> Self {
        Self::beside(pin_limit_bytes, &Ledger::default())
    }

    /// One whose memory stands in this account.
    fn beside(pin_limit_bytes: u64, ledger: &Ledger) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = small::write(folder.path(), 4);
        Self::open(folder, model, 0, pin_limit_bytes, ledger)
    }

    /// The model in this folder, with so many bytes more than the least that it needs.
    pub(crate) fn open(
        folder: TempDir,
        model: PathBuf,
        more_bytes: u64,
        pin_limit_bytes: u64,
        ledger: &Ledger,
    ) -> Self {
        let never = AtomicBool::new(false);
        let file = model.join("model.safetensors");
        let checkpoint = Arc::new(Checkpoint::open(&Source::Folder(model)).unwrap());
        let shape = checkpoint.model().unwrap().shape;
        let sources = checkpoint.sources(shape.tensors()).unwrap();
        let device = Device::open(DeviceChoice::Cuda(0), Some(DType::Bf16), 1).unwrap();
        let device = device.device;
        let machine = Machine {
            page_cache_bytes: u64::MAX,
            pinned_memory_limit_bytes: pin_limit_bytes,
            ..Machine::unmeasured(device.profile(), 0)
        };
        let plan = |budget_bytes| {
            Plan::new(&PlanInput {
                shape: &shape,
                sources: &sources,
                choices: Level::Standard.into(),
                budget_bytes,
                workload: Workload::new(16, BLOCK_DEFAULT, 1),
                working: WorkingMemory::default(),
                machine: &machine,
            })
        };
        let Err(PlanError::BudgetTooSmall { least_bytes, .. }) = plan(0) else {
            panic!("nothing fits no budget");
        };
        let plan = plan(least_bytes + more_bytes).unwrap();
        let reader = WeightReader::new(Arc::clone(&checkpoint), &sources)
            .with_pinned_memory_limit(pin_limit_bytes);
        let loaded = Residency::load(
            &plan,
            Arc::new(reader),
            &device,
            ledger,
            &never,
            &mut |_| {},
        );
        let LoadOutcome::Done(weights) = loaded.unwrap() else {
            panic!("nobody cancels");
        };
        let gpu = device.gpu().unwrap().clone();
        let bytes = groups(&plan).map(|group| group.bytes()).sum::<u64>();
        Self {
            weights,
            out: gpu.allocate(bytes as usize).unwrap(),
            plan,
            checkpoint,
            gpu,
            file,
            _folder: folder,
        }
    }

    /// Reads every weight of the first `count` groups.
    fn pass(&self, count: usize) {
        let mut at = 0;
        for group in groups(&self.plan).take(count) {
            let guard = self.weights.acquire(group.group).unwrap();
            for tensor in &group.tensors {
                let from = guard.weight(tensor.part).span();
                let to = self.out.span().part(at, from.bytes());
                self.gpu.copy(to, from).unwrap();
                at += from.bytes();
            }
        }
    }

    /// A pass, and what it read is what the files have.
    fn checked_pass(&self) {
        self.pass(usize::MAX);
        let mut found = vec![0; self.out.span().bytes()];
        self.gpu.download(self.out.span(), &mut found).unwrap();
        let sources = groups(&self.plan).flat_map(|group| &group.tensors);
        let mut rest = &found[..];
        for tensor in sources {
            let bytes = tensor.bytes() as usize;
            let (these, others) = rest.split_at(bytes);
            rest = others;
            assert!(these == self.in_file(tensor), "{tensor:?}");
        }
    }

    pub(crate) fn in_file(&self, tensor: &TensorPlan) -> Vec<u8> {
        let shape = self.plan_names();
        let name = &shape[tensor.tensor];
        let entry = self.checkpoint.tensor(name).unwrap();
        let start = tensor.storage.bytes(tensor.first_row, tensor.width);
        let mut bytes = vec![0; tensor.bytes() as usize];
        let range = start..start + tensor.bytes();
        self.checkpoint.read_part(entry, range, &mut bytes).unwrap();
        bytes
    }

    fn plan_names(&self) -> Vec<String> {
        let config = self.checkpoint.model().unwrap();
        let specs = config.shape.tensors();
        specs.into_iter().map(|spec| spec.name).collect()
    }

    pub(crate) fn stats(&self) -> StreamStats {
        self.weights.stream_stats()
    }

    fn mark(&self) -> StreamMark {
        self.gpu.mark().unwrap()
    }
}

/// All weight groups but the embedding, which no pass needs whole.
fn groups(plan: &Plan) -> impl Iterator<Item = &WeightGroupPlan> {
    plan.groups
        .iter()
        .filter(|group| group.group != WeightGroup::Embedding)
}

/// Every pass sees the weights that the files have, however streams run.
fn check_passes(name: &str, pin_limit_bytes: u64) {
    for streams in ["lazy", "eager", "random:1", "random:2", "random:3"] {
        apart::run(name, &[("STAND_IN_STREAMS", streams)], || {
            let streamed = Streamed::new(pin_limit_bytes);
            for _ in 0..4 {
                streamed.checked_pass();
            }
            // Nothing waits for the GPU between these.
            for _ in 0..3 {
                streamed.pass(usize::MAX);
            }
            streamed.checked_pass();
        });
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn weights_come_whole_from_pinned_memory() {
    check_passes("weights_come_whole_from_pinned_memory", ALL);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn weights_come_whole_where_some_are_kept() {
    check_passes("weights_come_whole_where_some_are_kept", SOME);
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn weights_come_whole_where_none_are_kept() {
    check_passes("weights_come_whole_where_none_are_kept", NOTHING);
}

/// Passes that are given up after any weight group, the next one follows at once.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_pass_that_is_given_up_leaves_nothing_half_filled() {
    for streams in ["lazy", "eager", "random:1", "random:2"] {
        let name = "a_pass_that_is_given_up_leaves_nothing_half_filled";
        apart::run(name, &[("STAND_IN_STREAMS", streams)], || {
            for pin_limit_bytes in [ALL, SOME, NOTHING] {
                let streamed = Streamed::new(pin_limit_bytes);
                for count in [1, 5, 2, 9, 0, 12, 3, 3] {
                    streamed.pass(count);
                }
                streamed.checked_pass();
            }
        });
    }
}

/// Where the system pins nothing at all, or stops to, weights come as well.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn memory_that_can_not_be_pinned_is_done_without() {
    // The first allocation is the GPU's own; then come weight groups, then buffers that are read to.
    for which in ["2", "3", "5"] {
        let name = "memory_that_can_not_be_pinned_is_done_without";
        apart::run(name, &[("STAND_IN_FAIL_PINNED", which)], || {
            for pin_limit_bytes in [ALL, NOTHING] {
                let streamed = Streamed::new(pin_limit_bytes);
                for _ in 0..3 {
                    streamed.checked_pass();
                }
            }
        });
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn what_is_kept_stays_within_its_limit_and_is_read_once() {
    let name = "what_is_kept_stays_within_its_limit_and_is_read_once";
    apart::run(name, &[], || {
        for limit in [ALL, SOME, NOTHING] {
            let streamed = Streamed::new(limit);
            streamed.checked_pass();
            streamed.checked_pass();
            let kept = streamed.stats().pinned_bytes;
            assert_eq!(kept, streamed.plan.pinned_bytes);
            assert!(kept <= limit);
            if limit == ALL {
                // No pass reads the file again.
                fs::write(&streamed.file, b"short").unwrap();
                streamed.pass(usize::MAX);
            }
        }
    });
}

/// Two models, of which one takes the other's place, keep to the limit together; in the end it is the new one's.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn models_keep_to_the_limit_together() {
    let name = "models_keep_to_the_limit_together";
    apart::run(name, &[], || {
        let ledger = Ledger::default();
        let before = Streamed::beside(SOME, &ledger);
        before.checked_pass();
        let pinned_bytes = ledger.pinned_bytes();
        assert!(
            pinned_bytes > before.stats().pinned_bytes,
            "and staging buffers"
        );
        assert!(pinned_bytes <= SOME);

        let after = Streamed::beside(SOME, &ledger);
        for _ in 0..2 {
            before.checked_pass();
            after.checked_pass();
            assert!(ledger.pinned_bytes() <= SOME);
        }
        assert_eq!(before.stats().pinned_bytes, before.plan.pinned_bytes);
        assert!(after.stats().pinned_bytes < after.plan.pinned_bytes);

        drop(before);
        assert!(ledger.pinned_bytes() < pinned_bytes);
        for _ in 0..2 {
            after.checked_pass();
        }
        assert_eq!(after.stats().pinned_bytes, after.plan.pinned_bytes);
        assert_eq!(ledger.pinned_bytes(), pinned_bytes);
        drop(after);
        assert_eq!(ledger.pinned_bytes(), 0);
    });
}

/// Passes by the GPU's clock: how long each takes, and what copies and work alone would.
struct Times {
    pass: Duration,
    copies: Duration,
    waited: Duration,
}

fn time(passes: u32) -> Times {
    let streamed = Streamed::new(ALL);
    streamed.checked_pass();
    let before = streamed.stats();
    let start = streamed.mark();
    for _ in 0..passes {
        streamed.pass(usize::MAX);
    }
    let end = streamed.mark();
    end.wait().unwrap();
    let stats = streamed.stats();
    Times {
        pass: end.since(&start).unwrap().unwrap() / passes,
        copies: (stats.copied - before.copied) / passes,
        waited: (stats.waited - before.waited) / passes,
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn the_bus_never_rests_where_it_is_slower() {
    let name = "the_bus_never_rests_where_it_is_slower";
    let clock = [
        ("STAND_IN_CLOCK", "simulated"),
        ("STAND_IN_LINK_BYTES_PER_S", "2000000000"),
        ("STAND_IN_MEMORY_BYTES_PER_S", "8000000000"),
    ];
    apart::run(name, &clock, || {
        let times = time(20);
        let efficiency = times.copies.as_secs_f64() / times.pass.as_secs_f64();
        assert!(efficiency >= 0.95, "{efficiency}");
        assert!(times.waited > times.pass / 2);
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn work_never_waits_where_it_is_slower() {
    let name = "work_never_waits_where_it_is_slower";
    let clock = [
        ("STAND_IN_CLOCK", "simulated"),
        ("STAND_IN_LINK_BYTES_PER_S", "8000000000"),
        ("STAND_IN_MEMORY_BYTES_PER_S", "2000000000"),
    ];
    apart::run(name, &clock, || {
        let times = time(20);
        assert!(times.waited < times.pass / 20, "{:?}", times.waited);
    });
}
