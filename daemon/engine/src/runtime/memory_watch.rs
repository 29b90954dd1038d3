//! What a card's driver says of its memory, beside what the ledger says: a difference is told once, and what other programs
//! have taken since the engine started is planned with no more.

use std::time::{Duration, Instant};

use sluice_ops::{device::Device, ledger::Ledger};
use sluice_shared::units;

use super::state::EngineState;

/// So long a look at the card is as good as a new one: the driver takes its time, and NVML more of it.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Differences up to this are the driver's own: for kernels, for local memory, and for how it rounds.
const TOLERANCE_BYTES: u64 = 64 << 20;
const TOLERANCE_PERCENT: u64 = 2;

/// A card's memory, looked at between passes.
#[derive(Default)]
pub(super) struct GpuMemoryWatch {
    /// None on the CPU, whose memory the system shares out.
    start: Option<StartFigures>,
    looked: Option<Instant>,
    /// Others have taken memory, and what gave way to them may not have come back yet.
    is_limited: bool,
    /// That they leave too little, until they have gone.
    has_told_others: bool,
    /// Once the driver counted otherwise.
    has_differed: bool,
}

/// How it was when the engine started.
#[derive(Clone, Copy)]
struct StartFigures {
    /// Held by others, and for this process without standing in the ledger.
    others_bytes: u64,
    /// Free memory is to stay above this: half of what the default budget leaves, so that plans within it are far enough.
    margin_bytes: u64,
}

/// What was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryFindings {
    /// What is too little for the card to have as much free as it should, because of others.
    pub(super) missing_bytes: u64,
    /// Others have gone that took room, and what gave way can come back.
    pub(super) is_relieved: bool,
    /// What people should hear of.
    pub(super) notices: Vec<String>,
}

/// A card's memory at one moment.
#[derive(Debug, Clone, Copy)]
struct MemoryFigures {
    free_bytes: u64,
    /// Taken by whoever it is.
    taken_bytes: u64,
    /// By the ledger, and what the arena has besides.
    counted_bytes: u64,
}

impl MemoryFigures {
    fn read(device: &Device, ledger: &Ledger) -> Option<Self> {
        let gpu = device.gpu()?;
        // Memory is entered before it is taken, and freed before its entry goes; others load meanwhile.
        let before = ledger.used_bytes();
        let memory = gpu.memory().ok()?;
        let counted_bytes = before.max(ledger.used_bytes());
        let arena = gpu.arena();
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
    /// From now on, with what the default budget leaves free.
    pub(super) fn new(device: &Device, ledger: &Ledger, spare_bytes: u64) -> Self {
        let start = MemoryFigures::read(device, ledger).map(|figures| StartFigures {
            others_bytes: figures.others_bytes(),
            margin_bytes: spare_bytes / 2,
        });
        Self {
            start,
            ..Self::default()
        }
    }

    /// Looks at the card, if the last look is long enough ago, and sets what plans may count on.
    pub(super) fn look(
        &mut self,
        device: &Device,
        ledger: &Ledger,
        state: &EngineState,
    ) -> MemoryFindings {
        let is_fresh = |looked: Instant| looked.elapsed() < LOOK_INTERVAL;
        match self.looked.is_some_and(is_fresh) {
            true => MemoryFindings::default(),
            false => self.look_now(device, ledger, state),
        }
    }

    /// The same, however long ago the last look is.
    pub(super) fn look_now(
        &mut self,
        device: &Device,
        ledger: &Ledger,
        state: &EngineState,
    ) -> MemoryFindings {
        let Some((start, figures)) = self.start.zip(MemoryFigures::read(device, ledger)) else {
            return MemoryFindings::default();
        };
        self.looked = Some(Instant::now());
        let mut found = MemoryFindings::default();
        let grown = figures.others_bytes().saturating_sub(start.others_bytes);
        // What makes up the difference is no matter: it can't be had.
        if grown > figures.tolerance_bytes() {
            let all = ledger.used_bytes() + figures.free_bytes;
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

    /// What the driver gave this process beside what it has counted, where it tells, the first time that they differ.
    fn compare(&mut self, device: &Device, figures: &MemoryFigures) -> Option<String> {
        let differs =
            |bytes: u64| bytes.abs_diff(figures.counted_bytes) > figures.tolerance_bytes();
        // NVML needn't be asked where what is taken is what was counted.
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
