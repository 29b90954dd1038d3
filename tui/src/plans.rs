//! The figures of a plan in words, as commands and dashboard show them.

use sluice_proto::v1::{Plan, Slots};
use sluice_shared::units;

/// The predicted time of a pass: `1.8 s`, or `unknown`.
#[must_use]
pub fn pass_time(plan: &Plan) -> String {
    plan.pass_ms.map_or("unknown".into(), units::duration_ms)
}

/// What is streamed: `2.00 GiB a pass`, or `nothing`.
#[must_use]
pub fn streamed(plan: &Plan) -> String {
    match plan.streamed_bytes_per_pass {
        0 => "nothing".into(),
        bytes => format!("{} a pass", units::bytes(bytes)),
    }
}

/// What streamed weights pass through: `3 slots of 120 MiB`.
#[must_use]
pub fn slots(slots: &Slots) -> String {
    format!("{} slots of {}", slots.count, units::bytes(slots.bytes))
}
