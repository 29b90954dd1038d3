//! The figures of a plan in words, as commands and dashboard show them.

use sluice_proto::v1::{ExpertCounts, KvCacheFormat, Plan, Snapshot, Tier};
use sluice_shared::units;

/// The predicted time of a pass: `1.8 s`, or `unknown`.
#[must_use]
pub fn pass_time(plan: &Plan) -> String {
    plan.pass_ms.map_or("unknown".into(), units::duration_ms)
}

/// Weights streamed in each pass: `2.00 GiB a pass`, or `nothing`.
#[must_use]
pub fn streamed(plan: &Plan) -> String {
    match plan.streamed_bytes_per_pass {
        0 => "nothing".into(),
        bytes => format!("{} a pass", units::bytes(bytes)),
    }
}

/// The slowest tier that weights are streamed from; `None` if nothing is streamed, or where the tier is not known.
#[must_use]
pub fn streamed_from(plan: &Plan) -> Option<Tier> {
    let groups = plan.layers.iter().flat_map(|layer| &layer.groups);
    let tiers = groups.filter(|group| group.is_streamed);
    let mut tiers = tiers.map(|group| group.tier());
    let first = tiers.next()?;
    let slowest = tiers.find(|tier| *tier == Tier::Disk).unwrap_or(first);
    Some(slowest).filter(|tier| *tier != Tier::Unspecified)
}

/// Format of the KV cache; `None` if the model has none, or its format is not known to this version.
#[must_use]
pub fn kv_cache_format(plan: &Plan) -> Option<KvCacheFormat> {
    Some(plan.kv_cache_format()).filter(|format| *format != KvCacheFormat::Unspecified)
}

/// Target and progress of a switch: `to moderate, step 4 of 9`; `None` if none is under way.
#[must_use]
pub fn switching(snapshot: &Snapshot) -> Option<String> {
    let switch = snapshot.weight_switch.as_ref()?;
    let mut words = String::new();
    if let Some(target) = &snapshot.switch_target {
        words += &format!("to {}", target.level());
        // At the same level the switch is to another budget, so the level alone says nothing.
        if snapshot
            .plan
            .as_ref()
            .is_some_and(|plan| plan.level == target.level)
        {
            words += &format!(" within {}", units::bytes(target.budget_bytes));
        }
        words += ", ";
    }
    words += &match switch.total_steps {
        // Steps begin once the weights that will be streamed are converted and written.
        0 => "converting".to_owned(),
        steps => format!(
            "step {} of {steps}",
            steps.min(switch.done_steps.saturating_add(1))
        ),
    };
    Some(words)
}

/// Where the experts were that passes touched: `80 % cached, 15 % read ahead, 5 % waited for`, and what of them the CPU computed
/// beside a GPU.
#[must_use]
pub fn expert_hits(counts: &ExpertCounts) -> String {
    let share = |part: u64| 100.0 * part as f64 / counts.touched.max(1) as f64;
    let mut words = format!(
        "{:.0} % cached, {:.0} % read ahead, {:.0} % waited for",
        share(counts.hits),
        share(counts.fetched_ahead),
        share(counts.missed)
    );
    if counts.computed_by_cpu > 0 {
        words += &format!(
            ", {:.0} % computed by the CPU",
            share(counts.computed_by_cpu)
        );
    }
    words
}
