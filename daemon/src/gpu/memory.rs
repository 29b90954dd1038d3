//! The engine's account of a card's memory beside what the driver says.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use sluice_engine::{
    device,
    ledger::{Kind, Report},
};
use sluice_shared::units;

/// What the driver rounds an allocation up to.
const GRANULE_BYTES: u64 = 2 << 20;
/// Kernels, cuBLAS's own state, and what the driver keeps for launches.
const UNCOUNTED_BYTES: u64 = 128 << 20;

/// What was free on the card at three moments, and what the account held meanwhile.
pub(super) struct CardMemory {
    before_bytes: u64,
    with_model_bytes: u64,
    after_bytes: u64,
    /// Without the context, which was there before.
    counted_bytes: u64,
    tolerance_bytes: u64,
}

impl CardMemory {
    /// Nothing where the driver tells nothing, as on the CPU. Each of so many allocations may be rounded up.
    pub(super) fn new(
        before: Option<u64>,
        with_model: Option<u64>,
        after: Option<u64>,
        account: &Report,
        allocations: usize,
    ) -> Option<Self> {
        let context = account.kinds.iter().find(|kind| kind.kind == Kind::Context);
        Some(Self {
            before_bytes: before?,
            with_model_bytes: with_model?,
            after_bytes: after?,
            counted_bytes: account.used_bytes - context.map_or(0, |context| context.bytes),
            tolerance_bytes: allocations as u64 * GRANULE_BYTES + UNCOUNTED_BYTES,
        })
    }

    /// What the model took, as the driver sees it.
    fn taken_bytes(&self) -> u64 {
        self.before_bytes.saturating_sub(self.with_model_bytes)
    }

    /// What was not given back.
    fn kept_bytes(&self) -> u64 {
        self.before_bytes.saturating_sub(self.after_bytes)
    }

    /// Whether the account says what the driver says, and all was given back but what the driver keeps for itself.
    pub(super) fn agrees(&self) -> bool {
        let apart = self.taken_bytes().abs_diff(self.counted_bytes);
        apart <= self.tolerance_bytes && self.kept_bytes() <= UNCOUNTED_BYTES
    }

    pub(super) fn tell(&self) {
        eprintln!(
            "{} taken of the card, {} counted, {} not given back: {}",
            units::bytes(self.taken_bytes()),
            units::bytes(self.counted_bytes),
            units::bytes(self.kept_bytes()),
            if self.agrees() { "ok" } else { "WRONG" }
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
            "agrees": self.agrees(),
        })
    }
}

/// What is free on a card from moment to moment, as the driver tells.
pub(super) struct Watch<'a> {
    device: &'a device::Device,
    /// What the first opening of the card took, which those after it share.
    context_bytes: u64,
    /// Free after that, before any model.
    begin_bytes: Option<u64>,
    lowest_bytes: AtomicU64,
}

/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl<'a> Watch<'a> {
    /// From now on, with nothing but the card itself opened.
    pub(super) fn new(device: &'a device::Device) -> Self {
        let mut watch = Self {
            device,
            context_bytes: context_bytes(device),
            begin_bytes: None,
            lowest_bytes: AtomicU64::new(u64::MAX),
        };
        watch.begin_bytes = watch.free_bytes();
        watch
    }

    /// Free now; nothing where no driver tells, as on the CPU.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        self.device.gpu().and(self.device.memory().free_bytes)
    }

    /// What opening the card took.
    pub(super) fn context_bytes(&self) -> u64 {
        self.context_bytes
    }

    /// What a budget leaves to an engine of this process: the context is there already, and counts.
    pub(super) fn engine_budget(&self, budget_bytes: u64, engine: &device::Device) -> u64 {
        budget_bytes.saturating_sub(self.context_bytes.saturating_sub(context_bytes(engine)))
    }

    /// What an engine counts, with the whole context.
    pub(super) fn counted(&self, bytes: u64, engine: &device::Device) -> u64 {
        bytes + self.context_bytes.saturating_sub(context_bytes(engine))
    }

    /// Forgets what was the lowest.
    pub(super) fn begin(&self) {
        self.lowest_bytes.store(u64::MAX, Ordering::Relaxed);
    }

    /// Does some work, and looks at what is free meanwhile.
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
            // Also where the work panics, or the scope would wait for ever.
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

    /// Most that this process held of the card since [`Watch::begin`], context and all.
    pub(super) fn most_held_bytes(&self) -> Option<u64> {
        let lowest = self.lowest_bytes.load(Ordering::Relaxed);
        let taken = self.begin_bytes?.saturating_sub(lowest);
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
    device.profile().card.map_or(0, |card| card.context_bytes)
}

/// The most that was held, by plan, account and driver.
pub(super) struct Peak {
    /// Nothing where none was asked for.
    pub(super) budget_bytes: Option<u64>,
    pub(super) plan_bytes: u64,
    pub(super) account_bytes: u64,
    /// Nothing where no driver tells, as on the CPU.
    pub(super) driver_bytes: Option<u64>,
}

impl Peak {
    /// Whether neither the account nor the driver has more than the budget.
    pub(super) fn is_within(&self) -> bool {
        let most = self.account_bytes.max(self.driver_bytes.unwrap_or(0));
        self.budget_bytes.is_none_or(|budget| most <= budget)
    }

    pub(super) fn words(&self) -> String {
        let driver = self.driver_bytes;
        format!(
            "{}, {}, {}{}",
            units::bytes(self.plan_bytes),
            units::bytes(self.account_bytes),
            driver.map_or_else(|| "unknown".to_owned(), units::bytes),
            if self.is_within() { "" } else { " OVER" },
        )
    }

    pub(super) fn json(&self) -> Value {
        let ratio = |bytes: u64| bytes as f64 / self.plan_bytes as f64;
        json!({
            "plan_bytes": self.plan_bytes,
            "account_bytes": self.account_bytes,
            "driver_bytes": self.driver_bytes,
            "driver_over_plan": self.driver_bytes.map(ratio),
            "is_within_budget": self.is_within(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_engine::ledger::KindReport;

    const GIB: u64 = 1 << 30;

    fn memory(with_model: u64, after: u64) -> CardMemory {
        let context = KindReport {
            kind: Kind::Context,
            bytes: GIB,
            peak_bytes: GIB,
        };
        let account = Report {
            used_bytes: 9 * GIB,
            peak_bytes: 9 * GIB,
            kinds: vec![context],
        };
        let [before, with_model, after] = [10 * GIB, with_model, after].map(Some);
        CardMemory::new(before, with_model, after, &account, 100).expect("all is known")
    }

    #[test]
    fn the_account_and_the_driver_agree_but_for_what_is_rounded() {
        assert!(memory(2 * GIB, 10 * GIB).agrees());
        // A hundred units that the driver rounds up, and its own.
        assert!(memory(2 * GIB - (300 << 20), 10 * GIB - (100 << 20)).agrees());
        assert!(!memory(2 * GIB - (400 << 20), 10 * GIB).agrees());
        assert!(
            !memory(3 * GIB, 10 * GIB).agrees(),
            "more is counted than was taken"
        );
        assert!(!memory(2 * GIB, 9 * GIB).agrees(), "not given back");
    }

    #[test]
    fn a_peak_over_the_budget_is_told_whoever_saw_it() {
        let peak = |account_bytes, driver_bytes, budget_bytes| Peak {
            budget_bytes,
            plan_bytes: GIB,
            account_bytes,
            driver_bytes,
        };
        assert!(peak(GIB, Some(GIB), Some(GIB)).is_within());
        assert!(peak(GIB, None, Some(GIB)).is_within());
        assert!(peak(9 * GIB, Some(9 * GIB), None).is_within());
        assert!(!peak(GIB, Some(GIB + 1), Some(GIB)).is_within());
        assert!(!peak(GIB + 1, None, Some(GIB)).is_within());
    }
}
