//! What `ModelService` does with models on disk: listing them, downloading, removing, looking into them.

use std::{path::Path, sync::Arc};

use sluice_hub::{Name, Pull, Token};
use sluice_proto::{
    model::{InvalidField, Subject},
    v1::{self, pull_model_response::Kind},
};
use sluice_shared::units;
use tokio::{sync::watch, task::spawn_blocking};

use super::{
    Daemon,
    following::{News, follow},
    requests::Answers,
};
use crate::{
    failure::Failure,
    library::{self, PullStage, PullState},
    models::{LoadStage, LoadState, ModelName, Reason},
};

impl Daemon {
    /// All models: present ones first, then those on their way and on disk. Reads folders: not for async code.
    pub(super) fn all_models(&self) -> Vec<v1::Model> {
        let mut models = self.models.list();
        let entries = self.library.entries();
        for model in &mut models {
            let known = entries
                .iter()
                .find(|entry| entry.path == Path::new(&model.path));
            if let Some(entry) = known {
                entry.describe(model);
            }
        }
        models.extend(self.pulls.list());
        for entry in &entries {
            let is_known = |model: &v1::Model| match entry.is_partial {
                // It is shown as the download that it is.
                true => model.name == entry.name,
                false => entry.path == Path::new(&model.path),
            };
            if !models.iter().any(is_known) {
                models.push(entry.to_wire());
            }
        }
        let default = self.library.default().unwrap_or_else(ModelName::embedded);
        let path = default.path.as_deref().unwrap_or(Path::new(""));
        for model in &mut models {
            model.is_default = Path::new(&model.path) == path
                && (default.path.is_some() || model.is_demonstration);
        }
        models
    }

    /// The model that is meant. Reads folders, aside.
    pub(super) async fn subject(self: &Arc<Self>, subject: Subject) -> Result<ModelName, Failure> {
        let daemon = self.clone();
        let found = spawn_blocking(move || match subject {
            Subject::Embedded => Ok(ModelName::embedded()),
            Subject::Name(name) => daemon.library.model(&name),
            Subject::Path(path) => daemon.at(path),
        });
        found.await?
    }

    /// The model that lies at an absolute path; one of the library has its name there.
    pub(super) fn at(&self, path: String) -> Result<ModelName, Failure> {
        if !Path::new(&path).is_absolute() {
            return Err(Failure::PathNotAbsolute { path });
        }
        Ok(self.library.at(Path::new(&path)))
    }

    pub(super) async fn unload(&self) -> Result<v1::UnloadModelResponse, Failure> {
        let held = || (self.engine.memory().used_bytes, self.host.resident_bytes());
        let before = held();
        let name = self.models.unload(&self.engine, Reason::Asked).await?;
        let after = held();
        if let Some(name) = &name {
            let freed = before.0.saturating_sub(after.0);
            tracing::info!(
                model = name.name,
                freed = units::bytes(freed),
                "unloaded for a client"
            );
        }
        Ok(v1::UnloadModelResponse {
            name: name.map(|name| name.name).unwrap_or_default(),
            device_bytes_before: before.0,
            device_bytes_after: after.0,
            resident_bytes_before: before.1,
            resident_bytes_after: after.1,
        })
    }

    pub(super) fn pull(
        &self,
        asked: v1::PullModelRequest,
    ) -> Result<Answers<v1::PullModelResponse>, Failure> {
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let name: Name = asked.name.parse()?;
        if name.label().is_some() && !asked.file.is_empty() {
            let problem = "is given beside a label; one of the two is taken".to_owned();
            return Err(InvalidField {
                field: "file",
                problem,
            }
            .into());
        }
        let token = match asked.token.is_empty() {
            true => None,
            false => Some(Token::new(&asked.token).ok_or_else(|| InvalidField {
                field: "token",
                problem: "has blanks or characters that no token has".to_owned(),
            })?),
        };
        let pull = Pull {
            name,
            file: given(asked.file),
            revision: given(asked.revision),
        };
        let budget = self.engine.settings().budget_bytes;
        let budget = budget.unwrap_or_else(|| self.engine.budget_default());
        let mut states = self.pulls.begin(pull, token, budget)?;
        // Who joins is told at once how far it is.
        states.mark_changed();
        let mut told = Told::default();
        Ok(follow(states, &self.closing, move |state| told.news(state)))
    }

    pub(super) async fn remove(
        self: &Arc<Self>,
        name: String,
        force: bool,
    ) -> Result<u64, Failure> {
        let is_pulling = self.pulls.list().iter().any(|model| model.name == name);
        if is_pulling {
            return Err(Failure::ModelInUse { model: name });
        }
        // By where it lies: a name is also that of a model elsewhere, and a path leads to one that has a name here.
        let (library, asked, held) = (self.library.clone(), name.clone(), self.models.held());
        let is_in_use = spawn_blocking(move || library.holds_any(&asked, &held)).await?;
        if is_in_use {
            if !force {
                return Err(Failure::ModelInUse { model: name });
            }
            self.models.unload(&self.engine, Reason::Asked).await?;
        }
        let (library, asked) = (self.library.clone(), name.clone());
        let freed = spawn_blocking(move || library.remove(&asked)).await??;
        tracing::info!(
            model = name,
            freed = units::bytes(freed),
            "removed for a client"
        );
        self.changes.tell();
        Ok(freed)
    }

    pub(super) async fn inspect(
        self: &Arc<Self>,
        subject: Subject,
    ) -> Result<v1::InspectModelResponse, Failure> {
        let model = self.subject(subject).await?;
        let place = self.preparing.clone().acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        let daemon = self.clone();
        let answer = spawn_blocking(move || {
            let path = model.path.as_deref();
            if let Some(path) = path {
                // A path that leads nowhere is the caller's mistake, not a fact of a model.
                std::fs::metadata(path).map_err(|cause| {
                    Failure::from(sluice_engine::checkpoint::CheckpointError::Io {
                        path: path.to_owned(),
                        cause,
                    })
                })?;
            }
            let known = daemon
                .all_models()
                .into_iter()
                .find(|known| Path::new(&known.path) == path.unwrap_or(Path::new("")));
            let wire = known.unwrap_or_else(|| model.to_wire(v1::ModelState::Available));
            let settings = daemon.engine.settings();
            let budget = settings
                .budget_bytes
                .unwrap_or_else(|| daemon.engine.budget_default());
            let machine = daemon.engine.machine();
            let answer = library::inspect(&model, wire, machine, settings, budget);
            drop(place);
            Ok(answer)
        });
        answer.await?
    }
}

/// Writes down which model is the default, once it was loaded.
pub(super) async fn record(
    daemon: Arc<Daemon>,
    name: ModelName,
    mut states: watch::Receiver<LoadState>,
) {
    let is_over =
        |state: &LoadState| matches!(state.stage, LoadStage::Ready(_) | LoadStage::Failed(_));
    let is_ready = match states.wait_for(is_over).await {
        Ok(state) => matches!(state.stage, LoadStage::Ready(_)),
        Err(_) => false,
    };
    if is_ready {
        let recorded = spawn_blocking(move || daemon.library.set_default(&name)).await;
        if let Err(failure) = recorded.unwrap_or_else(|error| Err(error.into())) {
            tracing::error!(reason = %failure, "the default model can't be written down");
        }
    }
}

/// What the caller of a download has heard of it.
#[derive(Default)]
struct Told {
    plan: bool,
    notices: usize,
}

impl Told {
    fn news(&mut self, state: PullState) -> News<v1::PullModelResponse> {
        let PullState {
            plan,
            notices,
            stage,
        } = state;
        let mut answers = Vec::new();
        if let Some(plan) = plan.filter(|_| !self.plan) {
            self.plan = true;
            answers.push(Ok(Kind::Plan(plan)));
        }
        let told = std::mem::replace(&mut self.notices, notices.len());
        let notices = notices.into_iter().skip(told);
        answers.extend(notices.map(|text| Ok(Kind::Notice(text))));
        let (answer, is_last) = match stage {
            PullStage::Going(progress) => (Ok(Kind::Progress(progress)), false),
            PullStage::Done(model) => (Ok(Kind::Model(*model)), true),
            PullStage::Failed(status) => (Err(status), true),
        };
        answers.push(answer);
        let answers = answers.into_iter();
        News {
            answers: answers
                .map(|kind| kind.map(|kind| v1::PullModelResponse { kind: Some(kind) }))
                .collect(),
            is_last,
        }
    }
}
