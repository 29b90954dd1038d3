//! Levels: the one in force, the plan of each, changes, and measured fidelity.

mod change;
mod optimization;
mod presets;

use std::collections::BTreeMap;

use sluice_proto::v1::{FidelityResult, Plan};
use sluice_shared::{level::Level, options::PlanOptions, preset::PRESETS};

pub use change::{ChangeStanding, PlanChange};
pub use optimization::Optimization;
pub(super) use optimization::is_loss;
pub use presets::{PresetStatistics, PresetTotals};

/// Most fidelity measurements that are kept.
pub const FIDELITIES_MAX: usize = 64;

/// Index of the row below the presets, for any policy of the form of options.
pub(super) const POLICY_ROW: usize = PRESETS.len();

/// State of the levels page.
#[derive(Debug, Default)]
pub struct Levels {
    /// Index of the selected level in [`Level::ALL`]; `None` selects the one in force.
    pub selected: Option<usize>,
    /// Index of the selected preset in the table of presets.
    pub preset: usize,
    /// Which list has the keyboard.
    pub list: LevelsPane,
    /// Budget in bytes that the plans are for; `None` for the present budget.
    pub tried: Option<u64>,
    /// The plan of each level, or why the daemon cannot plan it.
    pub answers: BTreeMap<Level, Result<Box<Plan>, String>>,
    /// Bytes of weights converted for the level that was asked for, and their total; `None` when none are being converted.
    pub converting: Option<(u64, u64)>,
    /// A choice that is applied or asked about once its plan is known.
    pub pending: Option<PendingChoice>,
    /// Serial number of the last such choice.
    pub(super) serial: u64,
    /// The latest change that was asked for here.
    pub change: Option<PlanChange>,
    /// The fidelity measurement that was asked for here and waits or runs.
    pub measuring: Option<RunningMeasurement>,
    /// The mix that was chosen last of each model, by the model's name.
    pub optimizations: BTreeMap<String, Optimization>,
    /// The latest operation that is known to have made a mix.
    pub latest_mix: Option<u64>,
    /// Speed of requests, by their preset.
    pub presets: PresetStatistics,
}

/// The lists of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LevelsPane {
    /// The list of levels.
    #[default]
    Levels,
    /// The list of presets.
    Presets,
}

/// A level or a budget that waits for its plan, which tells whether the user must be asked first.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingChoice {
    /// Tells the plan from answers to earlier choices.
    pub(super) serial: u64,
    /// The options to apply.
    pub(super) options: PlanOptions,
}

/// A fidelity measurement that waits or runs.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningMeasurement {
    /// The level that is measured.
    pub level: Level,
    /// Its operation's id; `None` until the daemon has told it.
    pub request_id: Option<u64>,
    /// Passes that are done.
    pub done: u32,
    /// Passes in all; 0 until it is known.
    pub total: u32,
}

/// The measured fidelity of a level of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct LevelFidelity {
    /// The model's name.
    pub model: String,
    /// Number of the model's parameters, which tells models of one name apart.
    pub parameters: u64,
    /// The level; never [`Level::Auto`].
    pub level: Level,
    /// Mean KL divergence from the outputs of the checkpoint's own weights, in nats.
    pub mean_kl_nats: f64,
    /// Share of rows whose most probable token is the same, from 0 to 1.
    pub top_agreement: f64,
    /// Rows that were compared.
    pub rows: u32,
}

impl LevelFidelity {
    /// The result for a model, by name and parameters; `None` for a level that this version does not know.
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

    /// The figures of a result: `KL 0.0123 nats, the same token in 98.7 %`.
    #[must_use]
    pub fn figures(result: &FidelityResult) -> String {
        words(result.mean_kl_nats, result.top_agreement)
    }

    /// Its figures, as [`LevelFidelity::figures`] has them.
    #[must_use]
    pub fn words(&self) -> String {
        words(self.mean_kl_nats, self.top_agreement)
    }
}

fn words(mean_kl_nats: f64, top_agreement: f64) -> String {
    let same = percent(top_agreement);
    format!("KL {mean_kl_nats:.4} nats, the same token in {same}")
}

/// A share: `98.7 %`.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

impl Levels {
    /// The plan of a level; `None` if it is not known or the daemon cannot plan it.
    #[must_use]
    pub fn plan(&self, level: Level) -> Option<&Plan> {
        self.answers.get(&level)?.as_ref().ok().map(|plan| &**plan)
    }

    /// Why a level cannot be applied, in the daemon's words; `None` if it can or is not planned yet.
    #[must_use]
    pub fn problem(&self, level: Level) -> Option<String> {
        match self.answers.get(&level)? {
            Err(problem) => Some(problem.clone()),
            Ok(plan) => (!plan.is_loadable).then(|| plan.not_loadable_reason.clone()),
        }
    }
}
