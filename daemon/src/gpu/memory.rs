//! The engine's account of a card's memory beside what the driver says.

use serde_json::{Value, json};
use sluice_engine::ledger::{Kind, Report};
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
}
