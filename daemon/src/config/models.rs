//! `models.toml`, beside the configuration file: what holds for single models, a table for each. Read again when it has
//! changed, so that an edit counts without a restart.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use serde::Deserialize;
use sluice_shared::{
    level::Level,
    options::Budget,
    sampling::{Sampling, SamplingOptions},
};

use super::{ConfigError, Environment, toml_file, values::from_text};
use crate::{file_stamp::FileStamp, model_name::ModelName};

/// The file's name.
pub(super) const FILE_NAME: &str = "models.toml";
/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What holds for one model.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelTable {
    /// How faithful its weights are.
    #[serde(default, deserialize_with = "from_text")]
    pub level: Option<Level>,
    /// Most bytes of the device's memory.
    #[serde(default, deserialize_with = "from_text")]
    pub budget: Option<Budget>,
    /// Whether it stays loaded until it is unloaded by name.
    #[serde(default)]
    pub pinned: bool,
    /// Instructions before conversations that begin with none.
    pub system: Option<String>,
    /// The most probable token each time, and nothing made less likely; keys beside it go before it.
    #[serde(default)]
    pub greedy: bool,
    /// Scale of the noise that tokens are drawn with.
    pub temperature: Option<f64>,
    /// As after `--top-k`.
    pub top_k: Option<u32>,
    /// As after `--top-p`.
    pub top_p: Option<f64>,
    /// As after `--min-p`.
    pub min_p: Option<f64>,
    /// As after `--repetition-penalty`.
    pub repetition_penalty: Option<f64>,
}

impl ModelTable {
    /// What it says of how tokens are chosen.
    #[must_use]
    pub fn sampling_options(&self) -> SamplingOptions {
        let rest = match self.greedy {
            true => SamplingOptions::greedy(),
            false => SamplingOptions::default(),
        };
        self.keyed_values().or(rest)
    }

    /// Key by key.
    fn keyed_values(&self) -> SamplingOptions {
        let sampling = Sampling {
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
        };
        SamplingOptions {
            temperature: self.temperature,
            sampling,
        }
    }

    /// The first key that makes no sense, and what it must be.
    fn problem(&self) -> Option<(&'static str, String)> {
        let hot = self.temperature.filter(|temperature| *temperature > 0.0);
        if let (true, Some(found)) = (self.greedy, hot) {
            let problem = format!("is {found}, but greedy draws nothing");
            return Some(("temperature", problem));
        }
        self.keyed_values().problem()
    }
}

/// The tables, by the model's name as `sluice list` has it, or by its path.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelTables(BTreeMap<String, ModelTable>);

impl ModelTables {
    /// The model's: that of its path before that of its name.
    #[must_use]
    pub fn of(&self, model: &ModelName) -> Option<&ModelTable> {
        let path = model.path.as_ref().and_then(|path| path.to_str());
        let of_path = path.and_then(|path| self.0.get(path));
        of_path.or_else(|| self.0.get(&model.name))
    }
}

/// The file: where it may lie, and what it said when it was last whole.
#[derive(Debug, Default)]
pub struct ModelsFile {
    /// The first that exists counts.
    paths: Vec<PathBuf>,
    state: Mutex<ModelsFileState>,
}

#[derive(Debug, Default)]
struct ModelsFileState {
    /// What `tables` or `problem` were read from.
    stamp: Option<(PathBuf, FileStamp)>,
    tables: Arc<ModelTables>,
    problem: Option<String>,
}

impl ModelsFile {
    /// Looks beside the configuration file that is named, else where such files usually are, and reads what is there.
    ///
    /// # Errors
    /// What is wrong with the file, and where.
    pub(super) fn open(
        config: Option<&Path>,
        environment: &Environment,
    ) -> Result<Self, ConfigError> {
        let beside = |config: PathBuf| config.with_file_name(FILE_NAME);
        let named = toml_file::named(config, environment);
        let places = match named {
            Some(config) => vec![beside(config)],
            None => toml_file::usual_paths(environment).map(beside).collect(),
        };
        let opened = Self {
            paths: places,
            state: Mutex::default(),
        };
        let stamp = opened.stamp();
        let tables = stamp.as_ref().map(|(path, _)| read(path)).transpose()?;
        let state = ModelsFileState {
            stamp,
            tables: Arc::new(tables.unwrap_or_default()),
            problem: None,
        };
        Ok(Self {
            state: Mutex::new(state),
            ..opened
        })
    }

    /// The file that is there, or the one that would be read first.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        let there = self.stamp().map(|(path, _)| path);
        there.or_else(|| self.paths.first().cloned())
    }

    /// What it says by now, and what is wrong with it: then what it said before still holds.
    #[must_use]
    pub fn current(&self) -> (Arc<ModelTables>, Option<String>) {
        let stamp = self.stamp();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.stamp != stamp {
            let read = stamp.as_ref().map(|(path, _)| read(path)).transpose();
            match read {
                Ok(tables) => {
                    state.tables = Arc::new(tables.unwrap_or_default());
                    state.problem = None;
                }
                Err(error) => {
                    let problem = format!("{error}; its previous contents stay in force");
                    tracing::warn!(problem, "cannot read the settings of single models");
                    state.problem = Some(problem);
                }
            }
            state.stamp = stamp;
        }
        (state.tables.clone(), state.problem.clone())
    }

    fn stamp(&self) -> Option<(PathBuf, FileStamp)> {
        let stamp = |path: &PathBuf| Some((path.clone(), FileStamp::of(path)?));
        self.paths.iter().find_map(stamp)
    }
}

fn read(path: &Path) -> Result<ModelTables, ConfigError> {
    let bytes = toml_file::bytes_up_to(path, FILE_BYTES_MAX)?;
    let tables: BTreeMap<String, ModelTable> = toml_file::parse(path, &bytes)?;
    for (name, table) in &tables {
        if let Some((key, problem)) = table.problem() {
            let source_name = format!("[{name:?}] in {}", path.display());
            return Err(ConfigError::Value {
                key,
                source_name,
                problem,
                hint: None,
            });
        }
    }
    Ok(ModelTables(tables))
}
