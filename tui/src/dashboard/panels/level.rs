//! Lines on the level in force: its budget, a switch under way, and planned beside measured figures.

use sluice_proto::v1::{PassStatistics, Plan, Snapshot};
use sluice_shared::units;

use super::super::state::DashboardState;
use crate::plans;

const UNKNOWN: &str = "unknown";

/// Rows of a panel: level, budget, progress of a switch, and planned beside measured figures.
pub(super) fn level_lines(state: &DashboardState) -> Vec<(&'static str, String)> {
    let snapshot = state.snapshot();
    let mut facts = vec![("level", in_force(snapshot))];
    let switching = snapshot.and_then(plans::switching);
    let is_stepping = snapshot
        .and_then(|s| s.weight_switch)
        .is_some_and(|s| s.total_steps > 0);
    match (switching, state.levels.converting) {
        // Before the first step the switch shows no progress, but the conversion does.
        (_, Some((done, total))) if !is_stepping => {
            let words = format!("{} of {}", units::bytes(done), units::bytes(total));
            facts.push(("convert", words));
        }
        (Some(words), _) => facts.push(("switching", words)),
        (None, _) => {}
    }
    if let Some(plan) = snapshot.and_then(|snapshot| snapshot.plan.as_ref()) {
        let measured = snapshot.and_then(|s| s.passes).unwrap_or_default();
        facts.push(("peak", peak(plan, &measured)));
        facts.push(("a pass", pass(plan, &measured)));
    }
    facts
}

fn in_force(snapshot: Option<&Snapshot>) -> String {
    let settings = snapshot.and_then(|snapshot| snapshot.settings.as_ref());
    let plan = snapshot.and_then(|snapshot| snapshot.plan.as_ref());
    let Some(settings) = settings else {
        return UNKNOWN.to_owned();
    };
    let level = match plan {
        Some(plan) if plan.level() != settings.level() => {
            format!("{} by {}", plan.level(), settings.level())
        }
        _ => settings.level().to_string(),
    };
    let budget = units::bytes(settings.budget_bytes);
    format!("{level}, budget {budget}")
}

fn peak(plan: &Plan, measured: &PassStatistics) -> String {
    let known = measured.peak_bytes.map_or(UNKNOWN.into(), units::bytes);
    format!("{} plan, {known} measured", units::bytes(plan.peak_bytes))
}

fn pass(plan: &Plan, measured: &PassStatistics) -> String {
    let known = |ms: Option<f64>| ms.map_or(UNKNOWN.into(), units::duration_ms);
    format!(
        "{} plan, {} measured",
        known(plan.pass_ms),
        known(measured.mean_ms)
    )
}
