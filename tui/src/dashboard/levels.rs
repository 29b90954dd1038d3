//! Levels: what is in force, and the list of what each would lead to.

use std::collections::BTreeMap;

use sluice_proto::v1::{Measured, Plan, Snapshot};
use sluice_shared::{level::Level, units};

use super::state::State;
use crate::plans;

/// The list of levels.
#[derive(Debug, Default)]
pub struct Levels {
    /// Which of [`Level::ALL`] is selected.
    pub selected: usize,
    /// What the daemon said each would lead to, or why it can't be.
    pub answers: BTreeMap<Level, Result<Box<Plan>, String>>,
    /// How far weights are converted for the level that we asked for, in bytes of bytes.
    pub converting: Option<(u64, u64)>,
}

impl Levels {
    /// The list before any answer, the level in force selected.
    #[must_use]
    pub fn open(snapshot: Option<&Snapshot>) -> Self {
        let asked = snapshot.and_then(|snapshot| snapshot.settings.as_ref());
        let in_force = |level: &Level| asked.is_some_and(|asked| asked.level == level.name());
        Self {
            selected: Level::ALL.iter().position(in_force).unwrap_or(0),
            ..Self::default()
        }
    }

    /// The selected level.
    #[must_use]
    pub fn level(&self) -> Level {
        Level::ALL[self.selected]
    }

    pub(super) fn step(&mut self, by: isize) {
        let at = self.selected.saturating_add_signed(by);
        self.selected = at.min(Level::ALL.len() - 1);
    }
}

/// Level, budget, how far a switch is, and plan beside measurement, each with its name.
pub(super) fn facts(state: &State) -> Vec<(&'static str, String)> {
    let snapshot = state.snapshot();
    let mut facts = vec![("level", in_force(snapshot))];
    let switching = snapshot.and_then(plans::switching);
    let is_stepping = snapshot.and_then(|s| s.switch).is_some_and(|s| s.steps > 0);
    match (switching, state.levels.converting) {
        // Before the first step, how much is converted says more.
        (_, Some((done, total))) if !is_stepping => {
            let words = format!("{} of {}", units::bytes(done), units::bytes(total));
            facts.push(("convert", words));
        }
        (Some(words), _) => facts.push(("switching", words)),
        (None, _) => {}
    }
    if let Some(plan) = snapshot.and_then(|snapshot| snapshot.plan.as_ref()) {
        let measured = snapshot.and_then(|s| s.measured).unwrap_or_default();
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
        Some(plan) if plan.level != settings.level => {
            format!("{} by {}", plan.level, settings.level)
        }
        _ => settings.level.clone(),
    };
    let budget = units::bytes(settings.budget_bytes);
    format!("{level}, budget {budget}")
}

const UNKNOWN: &str = "unknown";

fn peak(plan: &Plan, measured: &Measured) -> String {
    let known = measured.peak_bytes.map_or(UNKNOWN.into(), units::bytes);
    format!("{} plan, {known} measured", units::bytes(plan.peak_bytes))
}

fn pass(plan: &Plan, measured: &Measured) -> String {
    let known = |ms: Option<f64>| ms.map_or(UNKNOWN.into(), units::duration_ms);
    format!(
        "{} plan, {} measured",
        known(plan.pass_ms),
        known(measured.mean_pass_ms)
    )
}
