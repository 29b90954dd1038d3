//! What holds for a model: its level, its budget, its system prompt, and how its tokens are drawn.
//!
//! Several may have said something of the same setting. Who wins is said once, by the order of [`SettingOrigin`], and found by
//! one function, [`resolve`], for all of them. A model's own word stands in a file that its user writes
//! ([`ModelsFile`]); what was asked for while an earlier daemon ran is in the daemon's state ([`StateStore`]).

mod remembered;
mod sampler;

use std::sync::Arc;

use sluice_engine::{Budget, PlanOptions};
use sluice_proto::v1;
use sluice_shared::level::{AdvisedLimits, Level};

pub(crate) use self::remembered::{forget, remember, remember_experts, saved_experts};
pub use self::sampler::{SampledModel, Sampler};
use crate::{
    config::{self, ModelTable, ModelTables, ModelsFile},
    model_name::ModelName,
    state::StateStore,
};

/// Whose word a setting is. Of several that say something, the first of this list wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettingOrigin {
    /// What is asked for now: a field of the request. A flag of `sluice` is such a field.
    Request,
    /// What the daemon was started with: a flag of `sluiced`, or one of its variables.
    CommandLine,
    /// The model's table in `models.toml`.
    ModelFile,
    /// What was asked for before, and outlived the daemon that did it.
    Remembered,
    /// The daemon's configuration file.
    Configuration,
    /// What the checkpoint says of itself.
    Checkpoint,
    /// The defaults for small memory, which the daemon was told to take in place of those that are built in.
    SmallMemory,
    /// Nobody's: what is so where nobody says otherwise.
    BuiltIn,
}

impl SettingOrigin {
    /// For people, and on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::CommandLine => "command line",
            Self::ModelFile => "models.toml",
            Self::Remembered => "remembered",
            Self::Configuration => "configuration",
            Self::Checkpoint => "checkpoint",
            Self::SmallMemory => "small_memory",
            Self::BuiltIn => "built-in",
        }
    }
}

impl From<&config::SettingSource> for SettingOrigin {
    fn from(source: &config::SettingSource) -> Self {
        match source {
            config::SettingSource::Default => Self::BuiltIn,
            config::SettingSource::SmallMemory => Self::SmallMemory,
            config::SettingSource::File(_) => Self::Configuration,
            config::SettingSource::Variable(_) | config::SettingSource::Flag(_) => {
                Self::CommandLine
            }
        }
    }
}

/// A value, and whose word it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResolvedValue<T> {
    /// The value that is in force.
    pub value: T,
    /// Where the value comes from.
    pub origin: SettingOrigin,
}

/// What holds, of all that was said; in whatever order it is given here. `None` where nobody says anything.
pub fn resolve<T>(
    said: impl IntoIterator<Item = (SettingOrigin, Option<T>)>,
) -> Option<ResolvedValue<T>> {
    let said = said.into_iter().filter_map(|(origin, value)| {
        let value = value?;
        Some(ResolvedValue { value, origin })
    });
    said.min_by_key(|resolved| resolved.origin)
}

/// What a model is loaded with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadSettings {
    /// How faithful its weights are.
    pub level: ResolvedValue<Level>,
    /// Most bytes of the device's memory.
    pub budget: ResolvedValue<Budget>,
}

impl LoadSettings {
    /// The change that leads to them.
    #[must_use]
    pub fn change(&self) -> PlanOptions {
        PlanOptions {
            level: Some(self.level.value),
            budget: Some(self.budget.value),
            ..PlanOptions::default()
        }
    }

    /// The same for a client, which shows them.
    #[must_use]
    pub fn to_wire(&self) -> Vec<v1::ResolvedSetting> {
        vec![
            resolved_setting("level", self.level.value.name(), self.level.origin),
            resolved_setting("budget", self.budget.value, self.budget.origin),
        ]
    }
}

/// A setting as clients get it.
pub(crate) fn resolved_setting(
    name: &str,
    value: impl std::fmt::Display,
    origin: SettingOrigin,
) -> v1::ResolvedSetting {
    v1::ResolvedSetting {
        name: name.to_owned(),
        value: value.to_string(),
        origin: origin.name().to_owned(),
    }
}

/// What the daemon was started with, where a model's settings may say otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct StartSettings {
    /// How faithful weights are.
    pub level: config::Setting<Level>,
    /// Most bytes of the device's memory.
    pub budget: config::Setting<Budget>,
    /// Whether defaults are those for small memory.
    pub small_memory: bool,
    /// Models that may be loaded at once.
    pub loaded_models: usize,
    /// Whether requests have models loaded that they name.
    pub load_on_request: bool,
}

impl Default for StartSettings {
    fn default() -> Self {
        Self {
            level: config::Setting::built_in(Level::Standard),
            budget: config::Setting::built_in(Budget::default()),
            small_memory: false,
            loaded_models: 1,
            load_on_request: true,
        }
    }
}

/// All that is said of models' settings besides what is asked for now.
#[derive(Debug, Default)]
pub struct ModelSettings {
    start: StartSettings,
    file: Arc<ModelsFile>,
    state: Arc<StateStore>,
}

impl ModelSettings {
    /// What was said at the start, what stands in the file, and what is remembered.
    #[must_use]
    pub fn new(started: StartSettings, file: Arc<ModelsFile>, state: Arc<StateStore>) -> Self {
        Self {
            start: started,
            file,
            state,
        }
    }

    /// Models that may be loaded at once.
    #[must_use]
    pub fn loaded_models(&self) -> usize {
        self.start.loaded_models
    }

    /// Whether requests have models loaded that they name.
    #[must_use]
    pub fn loads_on_request(&self) -> bool {
        self.start.load_on_request
    }

    /// The limits of requests that say nothing else, where the defaults are those for small memory: what the level advises
    /// that these begin with.
    #[must_use]
    pub fn default_limits(&self) -> Option<AdvisedLimits> {
        let limits = Level::Aggressive.advised_limits();
        limits.filter(|_| self.start.small_memory)
    }

    /// What models and requests get by the defaults for small memory; nothing where these are not taken.
    #[must_use]
    pub fn small_memory_defaults(&self) -> Vec<v1::ResolvedSetting> {
        let Some(limits) = self.default_limits() else {
            return Vec::new();
        };
        let of = |name, value: String| resolved_setting(name, value, SettingOrigin::SmallMemory);
        let level = &self.start.level;
        let level = (level.source == config::SettingSource::SmallMemory)
            .then(|| of("level", level.value.to_string()));
        let limits = [
            ("length", limits.length),
            ("block_length", limits.block_length),
            ("steps", limits.steps),
        ];
        let limits = limits.map(|(name, limit)| of(name, limit.to_string()));
        level.into_iter().chain(limits).collect()
    }

    /// What a model is loaded with where this is asked for.
    #[must_use]
    pub fn for_load(&self, model: &ModelName, asked: &PlanOptions) -> LoadSettings {
        let remembered = self.state.read(|state| remembered::of(state, model));
        self.holds(model, asked, remembered)
    }

    /// The same where nobody has asked for anything before.
    #[must_use]
    pub fn unremembered(&self, model: &ModelName, asked: &PlanOptions) -> LoadSettings {
        self.holds(model, asked, PlanOptions::default())
    }

    fn holds(
        &self,
        model: &ModelName,
        asked: &PlanOptions,
        remembered: PlanOptions,
    ) -> LoadSettings {
        let table = self.table(model);
        let StartSettings { level, budget, .. } = &self.start;
        LoadSettings {
            level: resolve([
                (SettingOrigin::Request, asked.level),
                (SettingOrigin::ModelFile, table.level),
                (SettingOrigin::Remembered, remembered.level),
                ((&level.source).into(), Some(level.value)),
            ])
            .expect("the daemon was started with a level"),
            budget: resolve([
                (SettingOrigin::Request, asked.budget),
                (SettingOrigin::ModelFile, table.budget),
                (SettingOrigin::Remembered, remembered.budget),
                ((&budget.source).into(), Some(budget.value)),
            ])
            .expect("the daemon was started with a budget"),
        }
    }

    /// The model's own table, as the file has it by now; empty where it has none.
    #[must_use]
    pub fn table(&self, model: &ModelName) -> ModelTable {
        self.tables().of(model).cloned().unwrap_or_default()
    }

    /// What is wrong with the file by now. What it said before holds meanwhile.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.file.current().1
    }

    fn tables(&self) -> Arc<ModelTables> {
        self.file.current().0
    }
}

#[cfg(test)]
mod tests;
