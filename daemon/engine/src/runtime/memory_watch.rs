//! A watch over a GPU's memory, as its driver reports it beside the ledgers of all engines: a difference is reported once,
//! and memory that other programs have taken since the first engine started is left out of plans.

use std::time::{Duration, Instant};

use sluice_ops::{device::Device, ledger::SharedBudget};
use sluice_shared::units;

use super::state::EngineState;

/// A look is valid for this long: asking the driver takes time, and NVML more of it.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Differences up to this are the driver's own: kernels, local memory, rounding, page tables of pinned memory, and what it
/// keeps of freed memory (64 MiB on an H100).
const TOLERANCE_BYTES: u64 = 128 << 20;
const TOLERANCE_PERCENT: u64 = 2;

/// Looks at a GPU's memory between passes.
#[derive(Default)]
pub(super) struct GpuMemoryWatch {
    /// The figures at the start; `None` on the CPU, whose memory the system shares out.
    start: Option<StartFigures>,
    looked: Option<Instant>,
    /// Whether others have taken memory, so that something gave way to them and may not have come back yet.
    is_limited: bool,
    /// Whether the user was told that they leave too little; reset when they have gone.
    has_told_others: bool,
    /// Whether the driver's count has differed from the ledger's.
    has_differed: bool,
}

/// The figures when the first engine on a GPU started.
#[derive(Clone, Copy)]
pub(super) struct StartFigures {
    /// Bytes held by others, and for this process without an entry in the ledger.
    others_bytes: u64,
    /// Free bytes to keep: half of what the default budget leaves, so that plans within it stay clear of the limit.
    margin_bytes: u64,
}

impl StartFigures {
    /// The figures now, with what the default budget leaves free; `None` on the CPU.
    pub(super) fn read(device: &Device, budget: &SharedBudget, spare_bytes: u64) -> Option<Self> {
        let figures = MemoryFigures::read(device, budget)?;
        Some(Self {
            others_bytes: figures.others_bytes(),
            margin_bytes: spare_bytes / 2,
        })
    }
}

/// The findings of a look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryFindings {
    /// Bytes missing from the free-memory margin because other processes use the GPU.
    pub(super) missing_bytes: u64,
    /// Whether others have freed memory, so that what gave way can come back.
    pub(super) is_relieved: bool,
    /// Notices for the user.
    pub(super) notices: Vec<String>,
}

/// A GPU's memory at one moment.
#[derive(Debug, Clone, Copy)]
struct MemoryFigures {
    free_bytes: u64,
    /// Bytes taken by any process.
    taken_bytes: u64,
    /// Bytes of all ledgers, and what the arena has mapped beyond its parts.
    counted_bytes: u64,
}

impl MemoryFigures {
    fn read(device: &Device, budget: &SharedBudget) -> Option<Self> {
        let gpu = device.gpu()?;
        // Entries are made before memory is taken, and removed after it is freed; other threads may load meanwhile, so
        // the larger of two counts is used.
        let before = budget.used_bytes();
        let memory = gpu.memory().ok()?;
        let counted_bytes = before.max(budget.used_bytes());
        let arena = gpu.arena();
        // The arena maps larger pieces than it hands out, and the driver counts them whole.
        let slack = arena.map_or(0, |arena| arena.mapped_bytes - arena.used_bytes);
        Some(Self {
            free_bytes: memory.free_bytes,
            taken_bytes: memory.total_bytes.saturating_sub(memory.free_bytes),
            counted_bytes: counted_bytes + slack,
        })
    }

    fn others_bytes(&self) -> u64 {
        self.taken_bytes.saturating_sub(self.counted_bytes)
    }

    fn tolerance_bytes(&self) -> u64 {
        TOLERANCE_BYTES.max(self.counted_bytes / 100 * TOLERANCE_PERCENT)
    }
}

impl GpuMemoryWatch {
    /// Begins to watch.
    pub(super) fn new(start: Option<StartFigures>) -> Self {
        Self {
            start,
            ..Self::default()
        }
    }

    /// Looks at the GPU, if the last look is long enough ago, and sets what plans may count on.
    pub(super) fn look(
        &mut self,
        (device, budget): (&Device, &SharedBudget),
        state: &EngineState,
    ) -> MemoryFindings {
        let is_fresh = |looked: Instant| looked.elapsed() < LOOK_INTERVAL;
        match self.looked.is_some_and(is_fresh) {
            true => MemoryFindings::default(),
            false => self.look_now((device, budget), state),
        }
    }

    /// Looks at the GPU, however recent the last look is.
    pub(super) fn look_now(
        &mut self,
        (device, budget): (&Device, &SharedBudget),
        state: &EngineState,
    ) -> MemoryFindings {
        let Some((start, figures)) = self.start.zip(MemoryFigures::read(device, budget)) else {
            return MemoryFindings::default();
        };
        self.looked = Some(Instant::now());
        let mut found = MemoryFindings::default();
        let grown = figures.others_bytes().saturating_sub(start.others_bytes);
        // Whoever holds the difference: it is not available.
        if grown > figures.tolerance_bytes() {
            // What is held stays ours, so plans may use it and what is free.
            let all = state.used_bytes() + figures.free_bytes;
            state.set_available_bytes(Some(all.saturating_sub(start.margin_bytes)));
            found.missing_bytes = start.margin_bytes.saturating_sub(figures.free_bytes);
            self.is_limited = true;
            if !self.has_told_others && found.missing_bytes > 0 {
                self.has_told_others = true;
                found.notices.push(format!(
                    "other processes use {} more of the GPU's memory; {} are free",
                    units::bytes(grown),
                    units::bytes(figures.free_bytes)
                ));
            }
        } else {
            state.set_available_bytes(None);
            found.is_relieved = self.is_limited;
            self.has_told_others = false;
        }
        found.notices.extend(self.compare(device, &figures));
        found
    }

    /// What gave way to others is on its way back.
    pub(super) fn settle(&mut self) {
        self.is_limited = false;
    }

    /// The driver's count of this process's memory, the first time that it differs from the ledger by more than the
    /// tolerance.
    fn compare(&mut self, device: &Device, figures: &MemoryFigures) -> Option<String> {
        let differs =
            |bytes: u64| bytes.abs_diff(figures.counted_bytes) > figures.tolerance_bytes();
        // NVML is slow, and need not be asked where all taken memory is accounted for.
        let others_bytes = self.start.map_or(0, |start| start.others_bytes);
        if self.has_differed || !differs(figures.taken_bytes.saturating_sub(others_bytes)) {
            return None;
        }
        let driver_bytes = device.gpu()?.held_bytes()?;
        self.has_differed = differs(driver_bytes);
        self.has_differed.then(|| {
            format!(
                "the GPU driver reports {} for this process; the ledger has {}",
                units::bytes(driver_bytes),
                units::bytes(figures.counted_bytes)
            )
        })
    }
}
