//! Levels and budgets that were asked for while the daemon ran, by model: a small file beside the models, so that a model
//! comes back as it was left.

use std::{
    collections::VecDeque,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sluice_shared::options::PlanOptions;

use crate::{atomic_file, model_name::ModelName};

/// Name of the file, in the folder of models.
const FILE_NAME: &str = ".settings.json";
/// Models that are remembered; of more, the one that nobody has changed for longest is forgotten.
pub(super) const MODELS_MAX: usize = 256;
/// Largest file that is read: as many of the longest paths.
const FILE_BYTES_MAX: u64 = 2 << 20;

/// What was asked for of each model.
#[derive(Debug, Default)]
pub struct RememberedSettings {
    /// Where it is kept; `None`: only as long as the daemon runs.
    file: Option<PathBuf>,
    /// The one changed last comes last.
    models: VecDeque<(String, PlanOptions)>,
}

/// What the file holds. Keys that are not known here are a later version's, and are passed over.
#[derive(Default, Serialize, Deserialize)]
struct RememberedFile {
    #[serde(default)]
    models: Vec<RememberedModel>,
}

#[derive(Serialize, Deserialize)]
struct RememberedModel {
    /// Where it lies, or the name of the one inside the program.
    model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<String>,
}

impl RememberedSettings {
    /// Reads what lies in this folder, the one for models. What cannot be read is lost, which is said in the log.
    #[must_use]
    pub fn open(folder: Option<&Path>) -> Self {
        let file = folder.map(|folder| folder.join(FILE_NAME));
        let read = file.as_deref().map(read).transpose();
        let written = read.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the remembered model settings");
            None
        });
        let lines = written.unwrap_or_default().models;
        let known = lines.into_iter().map(|line| {
            // A later version may write words unknown here; they count as unset.
            let change = PlanOptions {
                level: line.level.and_then(|text| text.parse().ok()),
                budget: line.budget.and_then(|text| text.parse().ok()),
                ..PlanOptions::default()
            };
            (line.model, change)
        });
        Self {
            models: known.take(MODELS_MAX).collect(),
            file,
        }
    }

    /// What was asked for of a model.
    #[must_use]
    pub fn of(&self, model: &ModelName) -> PlanOptions {
        let key = key(model);
        let mut models = self.models.iter();
        models
            .find(|(name, _)| *name == key)
            .map_or_else(PlanOptions::default, |(_, change)| *change)
    }

    /// Adds the level and the budget that were asked for; what the change leaves out stays.
    pub(super) fn remember(&mut self, model: &ModelName, change: &PlanOptions) -> io::Result<()> {
        let kept = PlanOptions {
            level: change.level,
            budget: change.budget,
            ..PlanOptions::default()
        };
        let change = kept.over(self.take(model));
        if change.is_empty() {
            return Ok(());
        }
        while self.models.len() >= MODELS_MAX {
            self.models.pop_front();
        }
        self.models.push_back((key(model), change));
        self.write()
    }

    /// Forgets all of it.
    pub(super) fn forget(&mut self, model: &ModelName) -> io::Result<()> {
        match self.take(model).is_empty() {
            true => Ok(()),
            false => self.write(),
        }
    }

    fn take(&mut self, model: &ModelName) -> PlanOptions {
        let key = key(model);
        let place = self.models.iter().position(|(name, _)| *name == key);
        let taken = place.and_then(|place| self.models.remove(place));
        taken.map_or_else(PlanOptions::default, |(_, change)| change)
    }

    /// Writes the file. After a failure, such as a full disk, the settings hold until the daemon ends.
    fn write(&self) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let line = |(model, change): &(String, PlanOptions)| RememberedModel {
            model: model.clone(),
            level: change.level.map(|level| level.name().to_owned()),
            budget: change.budget.map(|budget| budget.to_string()),
        };
        let written = RememberedFile {
            models: self.models.iter().map(line).collect(),
        };
        let text = serde_json::to_string_pretty(&written).expect("texts alone");
        atomic_file::replace(file, &(text + "\n"))
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
    }
}

/// Keyed by path, since another model may get the same name.
fn key(model: &ModelName) -> String {
    match &model.path {
        Some(path) => path.to_string_lossy().into_owned(),
        None => model.name.clone(),
    }
}

fn read(file: &Path) -> io::Result<RememberedFile> {
    let facts = match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(RememberedFile::default());
        }
        facts => facts?,
    };
    if !facts.is_file() || facts.len() > FILE_BYTES_MAX {
        let problem = format!("{} is no file of ours", file.display());
        return Err(io::Error::other(problem));
    }
    Ok(serde_json::from_slice(&fs::read(file)?)?)
}
