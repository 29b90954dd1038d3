//! Levels: what is in force, the list of what each would lead to, and what was measured of them.

mod change;
mod presets;

use std::collections::BTreeMap;

use sluice_proto::v1::{FidelityResult, Operation, OperationKind, PassStatistics, Plan, Snapshot};
use sluice_shared::{level::Level, options::PlanOptions, units};

pub use change::{ChangeStanding, PlanChange};
pub use presets::{PresetStatistics, PresetTotals};

use super::state::DashboardState;
use crate::plans;

/// Measurements of fidelity that are kept.
pub const FIDELITIES_MAX: usize = 64;

/// The list of levels.
#[derive(Debug, Default)]
pub struct Levels {
    /// Which of [`Level::ALL`] was selected; else the one in force is.
    pub selected: Option<usize>,
    /// Which position of the dial is selected.
    pub preset: usize,
    /// Which list has the keyboard.
    pub list: LevelsPane,
    /// The budget that the answers are for, where it isn't the present one.
    pub tried: Option<u64>,
    /// What the daemon said each would lead to, or why it can't be.
    pub answers: BTreeMap<Level, Result<Box<Plan>, String>>,
    /// How far weights are converted for the level that we asked for, in bytes of bytes.
    pub converting: Option<(u64, u64)>,
    /// What waits to be judged until the daemon says what it leads to.
    pub pending: Option<PendingChoice>,
    /// Counts such questions.
    pub(super) serial: u64,
    /// The latest change that we asked for.
    pub change: Option<PlanChange>,
    /// The measurement of fidelity that runs.
    pub measuring: Option<RunningMeasurement>,
    /// The request of the one that ended last.
    pub(super) measured: Option<u64>,
    /// What requests came to, by the dial.
    pub presets: PresetStatistics,
}

/// The lists of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LevelsPane {
    /// Levels.
    #[default]
    Levels,
    /// Positions of the dial.
    Presets,
}

/// A level or a budget that is asked for if nothing speaks against it.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingChoice {
    /// Tells the answer from those to earlier questions.
    pub(super) serial: u64,
    /// What is asked for then.
    pub(super) options: PlanOptions,
}

/// A measurement of fidelity that runs, or waits.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningMeasurement {
    /// Of which level.
    pub level: Level,
    /// Its request, once the daemon told.
    pub request_id: Option<u64>,
    /// Passes done.
    pub done: u32,
    /// Of so many.
    pub total: u32,
}

/// How faithful a level of a model was measured to be.
#[derive(Debug, Clone, PartialEq)]
pub struct LevelFidelity {
    /// The model's name.
    pub model: String,
    /// Its parameters, which tell models of one name apart.
    pub parameters: u64,
    /// The level; never [`Level::Auto`].
    pub level: Level,
    /// Mean of the divergence from the checkpoint's own weights.
    pub mean_kl_nats: f64,
    /// Share of rows, in 0..1, whose most probable token is the same.
    pub top_agreement: f64,
    /// Rows that were compared.
    pub rows: u32,
}

impl LevelFidelity {
    /// What was measured with a model; `None` for a level that has no name here.
    #[must_use]
    pub fn of(result: &FidelityResult, model: (String, u64)) -> Option<Self> {
        let (model, parameters) = model;
        Some(Self {
            model,
            parameters,
            level: result.level().checked()?,
            mean_kl_nats: result.mean_kl_nats,
            top_agreement: result.top_agreement,
            rows: result.rows,
        })
    }

    /// Its figures: `KL 0.0123 nats, the same token in 98.7 %`.
    #[must_use]
    pub fn words(&self) -> String {
        format!(
            "KL {:.4} nats, the same token in {}",
            self.mean_kl_nats,
            percent(self.top_agreement)
        )
    }
}

/// A share: `98.7 %`.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

impl Levels {
    /// What the daemon said of a level, where it is one that can be planned.
    #[must_use]
    pub fn plan(&self, level: Level) -> Option<&Plan> {
        self.answers.get(&level)?.as_ref().ok().map(|plan| &**plan)
    }

    /// Whether a request is a measurement of our own, as far as its number is known: the one that runs, or the last.
    pub(super) fn is_own(&self, row: &Operation) -> bool {
        let number = Some(row.operation_id);
        let is_running = |own: &RunningMeasurement| match own.request_id {
            None => row.kind() == OperationKind::MeasureFidelity,
            known => known == number,
        };
        self.measured == number || self.measuring.as_ref().is_some_and(is_running)
    }

    /// Why a level can't be had, in the daemon's words.
    #[must_use]
    pub fn problem(&self, level: Level) -> Option<String> {
        match self.answers.get(&level)? {
            Err(problem) => Some(problem.clone()),
            Ok(plan) => (!plan.is_loadable).then(|| plan.not_loadable_reason.clone()),
        }
    }
}

impl DashboardState {
    /// The level that is selected on the levels page.
    #[must_use]
    pub fn level(&self) -> Level {
        let in_force = self.level_in_force();
        let level = self.levels.selected.and_then(|at| Level::ALL.get(at));
        level.copied().or(in_force).unwrap_or(Level::ALL[0])
    }

    /// The level that is in force, as it was asked for.
    #[must_use]
    pub fn level_in_force(&self) -> Option<Level> {
        self.snapshot()?.settings.as_ref()?.level().checked()
    }

    /// What was measured of a level of the present model; at `auto`, of the level that it comes to.
    #[must_use]
    pub fn fidelity_of(&self, level: Level) -> Option<&LevelFidelity> {
        let level = self.comes_to(level)?;
        let (model, parameters) = self.model()?;
        self.fidelity.iter().find(|known| {
            known.level == level && known.model == model && known.parameters == parameters
        })
    }

    /// Whether answers at a level are exactly those of the checkpoint's own weights.
    #[must_use]
    pub fn is_lossless(&self, level: Level) -> Option<bool> {
        match self.levels.plan(level) {
            Some(plan) => Some(plan.is_lossless),
            None => level.is_lossless(),
        }
    }

    /// The level that one comes to; `None` where that isn't known.
    pub(super) fn comes_to(&self, level: Level) -> Option<Level> {
        match level {
            Level::Auto => self.levels.plan(level)?.level().checked(),
            level => Some(level),
        }
    }

    /// Name and parameters of the model that is shown, to tell it from others.
    fn model(&self) -> Option<(String, u64)> {
        model(self.present()?)
    }

    /// The same of the model that is loaded at present.
    pub(super) fn present_model(&self) -> Option<(String, u64)> {
        model(self.present()?)
    }

    /// Keeps what was measured, in the place of what was measured of the same before.
    pub(super) fn add_fidelity(&mut self, fidelity: LevelFidelity) {
        self.fidelity.retain(|known| {
            (&known.model, known.parameters, known.level)
                != (&fidelity.model, fidelity.parameters, fidelity.level)
        });
        self.fidelity.push(fidelity);
        let excess = self.fidelity.len().saturating_sub(FIDELITIES_MAX);
        self.fidelity.drain(..excess);
    }
}

fn model(snapshot: &Snapshot) -> Option<(String, u64)> {
    let model = snapshot.model.as_ref()?;
    let shape = model.shape.as_ref().map(|shape| shape.parameters);
    // Where they aren't known, the name alone tells models apart.
    let parameters = shape.or(model.parameters).unwrap_or(0);
    Some((model.name.clone(), parameters))
}

/// Level, budget, how far a switch is, and plan beside measurement, each with its name.
pub(super) fn level_lines(state: &DashboardState) -> Vec<(&'static str, String)> {
    let snapshot = state.snapshot();
    let mut facts = vec![("level", in_force(snapshot))];
    let switching = snapshot.and_then(plans::switching);
    let is_stepping = snapshot
        .and_then(|s| s.weight_switch)
        .is_some_and(|s| s.total_steps > 0);
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

const UNKNOWN: &str = "unknown";

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
