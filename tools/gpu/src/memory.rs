//! The engine's ledger of a GPU's memory, compared with the driver's figures.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use sluice_machine::MemoryKind;
use sluice_ops::{device, ledger::LedgerReport};
use sluice_shared::units;

/// The driver's allocation granularity.
const GRANULE_BYTES: u64 = 2 << 20;
/// Allowance for partly filled pieces: of weights and staging buffers, where they lie side by side, and of allocations
/// beside them: activations, the cuBLAS workspace, indices, decompressed weights.
const PARTIAL_PIECES: u64 = 8;
/// Relative difference allowed between plan and driver, where that is more than the rounding.
const TOLERANCE: f64 = 0.02;
/// Memory of the rate measurement besides what is copied and multiplied: rows, and decompressed weights.
const MEASURING_BYTES: u64 = 144 << 20;
/// Memory that the first model leaves behind: kernels, cuBLAS's own state, and what the driver keeps for launches.
const KEPT_BYTES: u64 = 128 << 20;
/// Memory that the driver keeps for the next allocation when activations are freed, while a model is there: 64 MiB on an
/// H100, whatever the model.
const FREED_BYTES: u64 = 64 << 20;

/// A GPU's memory that is not as expected.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum Fault {
    #[error("{held} were held by {whose}, {over} over the budget of {budget}",
        held = units::bytes(*held_bytes),
        over = units::bytes(held_bytes - budget_bytes),
        budget = units::bytes(*budget_bytes))]
    OverBudget {
        whose: &'static str,
        held_bytes: u64,
        budget_bytes: u64,
    },
    #[error("{held} were held by the driver's account and {planned} by {whose}, {off:+.1} %; {tolerance} may be",
        held = units::bytes(*driver_bytes),
        planned = units::bytes(*expected_bytes),
        off = 100.0 * (*driver_bytes as f64 / *expected_bytes as f64 - 1.0),
        tolerance = units::bytes(*tolerance_bytes))]
    Apart {
        whose: &'static str,
        driver_bytes: u64,
        expected_bytes: u64,
        tolerance_bytes: u64,
    },
    #[error("{} were not given back when the model was unloaded", units::bytes(*kept_bytes))]
    Kept { kept_bytes: u64 },
}

/// The difference allowed between the driver and so many expected bytes; each separate allocation is rounded up.
pub(super) fn tolerance_bytes(expected_bytes: u64, allocations: usize) -> u64 {
    let rounded = (allocations as u64 + PARTIAL_PIECES) * GRANULE_BYTES;
    rounded.max((TOLERANCE * expected_bytes as f64) as u64)
}

fn apart(
    whose: &'static str,
    driver_bytes: u64,
    expected_bytes: u64,
    tolerance_bytes: u64,
) -> Option<Fault> {
    let is_apart = driver_bytes.abs_diff(expected_bytes) > tolerance_bytes;
    is_apart.then_some(Fault::Apart {
        whose,
        driver_bytes,
        expected_bytes,
        tolerance_bytes,
    })
}

/// Free bytes of the GPU at three moments, and the ledger's bytes in between.
pub(super) struct GpuMemory {
    before_bytes: u64,
    with_model_bytes: u64,
    after_bytes: u64,
    /// Without the context, which was there before.
    counted_bytes: u64,
    tolerance_bytes: u64,
}

impl GpuMemory {
    /// `None` where no driver reports free memory, as on the CPU. Each of so many separate allocations may be rounded
    /// up.
    pub(super) fn new(
        before: Option<u64>,
        with_model: Option<u64>,
        after: Option<u64>,
        account: &LedgerReport,
        allocations: usize,
    ) -> Option<Self> {
        let context = account
            .kinds
            .iter()
            .find(|kind| kind.kind == MemoryKind::Context);
        let counted_bytes = account.used_bytes - context.map_or(0, |context| context.bytes);
        Some(Self {
            before_bytes: before?,
            with_model_bytes: with_model?,
            after_bytes: after?,
            counted_bytes,
            tolerance_bytes: tolerance_bytes(account.used_bytes, allocations),
        })
    }

    /// Bytes that the model took, as the driver sees it: what is free again without it.
    fn taken_bytes(&self) -> u64 {
        self.after_bytes.saturating_sub(self.with_model_bytes)
    }

    /// Bytes that were not freed.
    fn kept_bytes(&self) -> u64 {
        self.before_bytes.saturating_sub(self.after_bytes)
    }

    /// The faults: where ledger and driver differ, and where more was left than the driver keeps for itself.
    pub(super) fn faults(&self) -> Vec<Fault> {
        let kept_bytes = self.kept_bytes();
        let kept = (kept_bytes > KEPT_BYTES).then_some(Fault::Kept { kept_bytes });
        let (taken, counted) = (self.taken_bytes(), self.counted_bytes);
        let freed = if taken > counted { FREED_BYTES } else { 0 };
        let apart = apart("ours", taken, counted, self.tolerance_bytes + freed);
        apart.into_iter().chain(kept).collect()
    }

    pub(super) fn tell(&self) {
        eprintln!(
            "{} taken of the GPU, {} counted, {} not given back: {}",
            units::bytes(self.taken_bytes()),
            units::bytes(self.counted_bytes),
            units::bytes(self.kept_bytes()),
            if self.faults().is_empty() {
                "ok"
            } else {
                "WRONG"
            }
        );
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "free_before_bytes": self.before_bytes,
            "free_with_model_bytes": self.with_model_bytes,
            "free_after_unload_bytes": self.after_bytes,
            "taken_bytes": self.taken_bytes(),
            "counted_bytes": self.counted_bytes,
            "kept_bytes": self.kept_bytes(),
            "tolerance_bytes": self.tolerance_bytes,
            "agrees": self.faults().is_empty(),
        })
    }
}

/// The free bytes of a GPU over time, as the driver reports them.
pub(super) struct Watch<'a> {
    device: &'a device::Device,
    /// Bytes that the first opening of the GPU took, which later ones share.
    context_bytes: u64,
    /// Free bytes after that, before any model.
    begin_bytes: Option<AtomicU64>,
    /// Whether the first model's remains are already in that figure.
    has_run: AtomicBool,
    lowest_bytes: AtomicU64,
}

/// How often the driver is asked.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl<'a> Watch<'a> {
    /// Begins to watch, with nothing but the GPU itself opened.
    pub(super) fn new(device: &'a device::Device) -> Self {
        let mut watch = Self {
            device,
            context_bytes: context_bytes(device),
            begin_bytes: None,
            has_run: AtomicBool::new(false),
            lowest_bytes: AtomicU64::new(u64::MAX),
        };
        watch.begin_bytes = watch.free_bytes().map(AtomicU64::new);
        watch
    }

    /// Begins anew, after a model was unloaded: what the first one left behind is in no plan, and is now part of the
    /// start. More than that may be somebody else's, or leaked, and still counts.
    pub(super) fn begin_anew(&self) {
        if let Some((begin, free)) = self.begin_bytes.as_ref().zip(self.free_bytes())
            && !self.has_run.swap(true, Ordering::Relaxed)
        {
            let before = begin.load(Ordering::Relaxed);
            let least = before.saturating_sub(KEPT_BYTES);
            begin.store(free.clamp(least, before), Ordering::Relaxed);
        }
    }

    /// Bytes that the driver may hold beyond any plan: what the first model will leave behind.
    pub(super) fn unplanned_bytes(&self) -> u64 {
        match self.has_run.load(Ordering::Relaxed) {
            true => 0,
            false => KEPT_BYTES,
        }
    }

    /// Bytes that are free now; `None` where no driver reports them, as on the CPU.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        self.device.gpu().and(self.device.memory().free_bytes)
    }

    /// Bytes that opening the GPU took.
    pub(super) fn context_bytes(&self) -> u64 {
        self.context_bytes
    }

    /// What a budget leaves to an engine of this process: the context exists already, and counts.
    pub(super) fn engine_budget(&self, budget_bytes: u64, engine: &device::Device) -> u64 {
        budget_bytes.saturating_sub(self.elsewhere_bytes(engine))
    }

    /// Bytes that a load under a budget may hold: it measures rates before anything is planned.
    pub(super) fn load_budget(&self, budget_bytes: u64) -> u64 {
        let copied = self
            .device
            .gpu()
            .map_or(0, |gpu| 2 * gpu.beyond_cache(0) as u64);
        budget_bytes.max(self.context_bytes + MEASURING_BYTES + copied)
    }

    /// Bytes that an engine counts, with the whole context.
    pub(super) fn counted(&self, bytes: u64, engine: &device::Device) -> u64 {
        bytes + self.elsewhere_bytes(engine)
    }

    /// Bytes of the first opening, where an engine's ledger has only what its own opening took in addition.
    fn elsewhere_bytes(&self, engine: &device::Device) -> u64 {
        match context_bytes(engine) >= self.context_bytes {
            true => 0,
            false => self.context_bytes,
        }
    }

    /// Forgets the lowest value so far.
    pub(super) fn begin(&self) {
        self.lowest_bytes.store(u64::MAX, Ordering::Relaxed);
    }

    /// Does some work, and records the lowest free memory meanwhile.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            if self.begin_bytes.is_some() {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        self.look();
                        thread::sleep(LOOK_EVERY);
                    }
                });
            }
            // Dropped also where the work panics: otherwise the scope would wait for ever.
            let _done = Done(&is_done);
            let result = work();
            self.look();
            result
        })
    }

    fn look(&self) {
        if let Some(free) = self.free_bytes() {
            self.lowest_bytes.fetch_min(free, Ordering::Relaxed);
        }
    }

    /// Most bytes that this process held on the GPU since [`Watch::begin`], the context included.
    pub(super) fn most_held_bytes(&self) -> Option<u64> {
        let lowest = self.lowest_bytes.load(Ordering::Relaxed);
        let begin = self.begin_bytes.as_ref()?.load(Ordering::Relaxed);
        let taken = begin.saturating_sub(lowest);
        (lowest != u64::MAX).then_some(self.context_bytes + taken)
    }
}

struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn context_bytes(device: &device::Device) -> u64 {
    device.profile().gpu.map_or(0, |gpu| gpu.context_bytes)
}

/// The peak, by plan, ledger and driver.
#[derive(Debug)]
pub(super) struct Peak {
    /// `None` where none was set.
    pub(super) budget_bytes: Option<u64>,
    pub(super) plan_bytes: u64,
    pub(super) account_bytes: u64,
    /// `None` where no driver reports it, as on the CPU.
    pub(super) driver_bytes: Option<u64>,
    /// The difference allowed between driver and plan.
    pub(super) tolerance_bytes: u64,
    /// Bytes that the driver may hold besides: what the first model leaves behind.
    pub(super) unplanned_bytes: u64,
}

/// What exceeded a budget at the peak, by the ledger or by the driver, which may hold so much besides.
pub(super) fn over_budget(
    budget_bytes: Option<u64>,
    account_bytes: u64,
    driver_bytes: Option<u64>,
    unplanned_bytes: u64,
) -> impl Iterator<Item = Fault> {
    let held = [
        ("our account", Some(account_bytes), 0),
        ("the driver's", driver_bytes, unplanned_bytes),
    ];
    held.into_iter()
        .filter_map(move |(whose, held_bytes, besides)| {
            let (held_bytes, budget_bytes) = held_bytes.zip(budget_bytes)?;
            (held_bytes > budget_bytes + besides).then_some(Fault::OverBudget {
                whose,
                held_bytes,
                budget_bytes,
            })
        })
}

impl Peak {
    /// The faults: where ledger or driver exceed the budget, and where the driver differs from the plan.
    pub(super) fn faults(&self) -> Vec<Fault> {
        let plan = self.plan_bytes;
        let tolerance = self.tolerance_bytes + self.unplanned_bytes;
        let apart =
            (self.driver_bytes).and_then(|driver| apart("the plan", driver, plan, tolerance));
        let over = over_budget(
            self.budget_bytes,
            self.account_bytes,
            self.driver_bytes,
            self.unplanned_bytes,
        );
        over.chain(apart).collect()
    }

    pub(super) fn words(&self) -> String {
        let driver = self.driver_bytes;
        let mut words = format!(
            "{}, {}, {}",
            units::bytes(self.plan_bytes),
            units::bytes(self.account_bytes),
            driver.map_or_else(|| "unknown".to_owned(), units::bytes),
        );
        for fault in self.faults() {
            words += match fault {
                Fault::OverBudget { .. } => " OVER BUDGET",
                Fault::Apart { .. } | Fault::Kept { .. } => " NOT AS PLANNED",
            };
        }
        words
    }

    pub(super) fn json(&self) -> Value {
        let ratio = |bytes: u64| bytes as f64 / self.plan_bytes as f64;
        let faults = self.faults();
        json!({
            "plan_bytes": self.plan_bytes,
            "account_bytes": self.account_bytes,
            "driver_bytes": self.driver_bytes,
            "driver_over_plan": self.driver_bytes.map(ratio),
            "tolerance_bytes": self.tolerance_bytes,
            "is_within_budget": !faults.iter().any(|fault| matches!(fault, Fault::OverBudget { .. })),
            "is_as_planned": !faults.iter().any(|fault| matches!(fault, Fault::Apart { .. })),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_ops::ledger::LedgerKindReport;

    const GIB: u64 = 1 << 30;

    fn memory(with_model: u64, after: u64) -> GpuMemory {
        let context = LedgerKindReport {
            kind: MemoryKind::Context,
            bytes: GIB,
            peak_bytes: GIB,
        };
        let account = LedgerReport {
            used_bytes: 9 * GIB,
            peak_bytes: 9 * GIB,
            kinds: vec![context],
        };
        let [before, with_model, after] = [10 * GIB, with_model, after].map(Some);
        GpuMemory::new(before, with_model, after, &account, 100).expect("all is known")
    }

    #[test]
    fn the_account_and_the_driver_agree_but_for_what_is_rounded() {
        let is_right = |with_model, after| memory(with_model, after).faults().is_empty();
        assert!(is_right(2 * GIB, 10 * GIB));
        // A hundred weight groups that the driver rounds up, some pieces, and what it keeps.
        let rounded = (216 << 20) + FREED_BYTES;
        assert!(is_right(2 * GIB - rounded, 10 * GIB - (100 << 20)));
        assert!(!is_right(2 * GIB - rounded - 1, 10 * GIB));
        assert!(!is_right(3 * GIB, 10 * GIB), "more is counted than taken");
        let kept_bytes = GIB;
        let faults = memory(2 * GIB, 9 * GIB).faults();
        assert!(faults.contains(&Fault::Kept { kept_bytes }), "{faults:?}");
    }

    #[test]
    fn the_tolerance_is_two_percent_or_what_is_rounded_up() {
        assert_eq!(tolerance_bytes(GIB, 0), GIB / 50);
        assert_eq!(tolerance_bytes(GIB, 100), 216 << 20);
        assert_eq!(tolerance_bytes(1 << 20, 0), 16 << 20);
    }

    #[test]
    fn a_peak_over_the_budget_is_told_whoever_saw_it() {
        let peak = |account_bytes, driver_bytes, budget_bytes| Peak {
            budget_bytes,
            plan_bytes: GIB,
            account_bytes,
            driver_bytes,
            tolerance_bytes: 16 << 20,
            unplanned_bytes: 0,
        };
        let is_right = |account, driver, budget| peak(account, driver, budget).faults().is_empty();
        assert!(is_right(GIB, Some(GIB), Some(GIB)));
        assert!(is_right(GIB, None, Some(GIB)));
        assert!(is_right(9 * GIB, Some(GIB), None));
        assert!(!is_right(GIB, Some(GIB + 1), Some(GIB)));
        assert!(!is_right(GIB + 1, None, Some(GIB)));
        let words = peak(GIB, Some(GIB + 1), Some(GIB)).words();
        assert!(words.ends_with(" OVER BUDGET"), "{words}");
    }

    #[test]
    fn a_driver_that_holds_more_or_less_than_was_planned_is_told() {
        let peak = |driver_bytes| Peak {
            budget_bytes: None,
            plan_bytes: GIB,
            account_bytes: GIB,
            driver_bytes: Some(driver_bytes),
            tolerance_bytes: 16 << 20,
            unplanned_bytes: 0,
        };
        for wrong in [GIB + (17 << 20), GIB - (17 << 20)] {
            let [fault] = &peak(wrong).faults()[..] else {
                panic!("one is wrong");
            };
            assert!(fault.to_string().contains("1.7 %"), "{fault}");
            assert_eq!(peak(wrong).json()["is_as_planned"], false);
            assert!(peak(wrong).words().ends_with(" NOT AS PLANNED"));
        }
        assert!(peak(GIB + (16 << 20)).faults().is_empty());
        let first = Peak {
            unplanned_bytes: KEPT_BYTES,
            budget_bytes: Some(GIB),
            ..peak(GIB + KEPT_BYTES)
        };
        assert!(first.faults().is_empty());
    }
}
