//! Downloads under way, as those who wait for them see them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use sluice_hub::{Client, Patience, Pull, PullEvent, REVISION_DEFAULT};
use sluice_proto::v1;
use sluice_shared::units;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Library;
use crate::{failure::Failure, operations::ChangeNotifier};

/// Downloads at once; more would only share the line.
const PULLS_MAX: usize = 4;

/// How far a download is: a full picture, so that the latest is enough.
#[derive(Debug, Clone)]
pub struct PullState {
    /// What it brings, once the hub was asked.
    pub plan: Option<v1::PullPlan>,
    /// What the user should hear of, in order.
    pub notices: Vec<String>,
    /// What it is at.
    pub stage: PullStage,
}

/// What a download is at.
#[derive(Debug, Clone)]
pub enum PullStage {
    /// Bytes so far.
    Downloading(v1::PullProgress),
    /// The model is there.
    Done(Box<v1::Model>),
    /// It is not.
    Failed(tonic::Status),
}

/// Notices that are kept of one download; a line that breaks for hours makes no list without an end.
const NOTICES_MAX: usize = 200;

/// The downloads under way.
#[derive(Debug)]
pub struct Pulls {
    library: Arc<Library>,
    active: Mutex<BTreeMap<String, ActivePull>>,
    changes: ChangeNotifier,
    closing: CancellationToken,
}

#[derive(Debug, Clone)]
struct ActivePull {
    /// As it was asked for.
    revision: String,
    state: watch::Receiver<PullState>,
    cancel: CancellationToken,
}

impl Pulls {
    /// None yet.
    #[must_use]
    pub fn new(library: Arc<Library>, changes: ChangeNotifier, closing: CancellationToken) -> Self {
        Self {
            library,
            active: Mutex::default(),
            changes,
            closing,
        }
    }

    /// Begins a download, or joins the one of the same name and revision. It goes on when nobody listens any more. `budget_bytes` is
    /// what weights are compared with, for advice.
    ///
    /// # Errors
    /// When there is no place for it, too many are under way, or another revision is.
    pub fn begin(
        self: &Arc<Self>,
        pull: Pull,
        token: Option<sluice_hub::Token>,
        budget_bytes: u64,
    ) -> Result<watch::Receiver<PullState>, Failure> {
        let folder = self.library.folder()?.to_owned();
        let key = match &pull.file {
            Some(file) => format!("{}:{file}", pull.name),
            None => pull.name.to_string(),
        };
        let named = pull.revision.clone();
        let revision = named.unwrap_or_else(|| REVISION_DEFAULT.to_owned());
        let mut going = self.lock();
        if let Some(known) = going.get(&key) {
            // Both would come to lie in one folder.
            if known.revision != revision {
                let revision = known.revision.clone();
                return Err(Failure::PullingAnother {
                    model: key,
                    revision,
                });
            }
            return Ok(known.state.clone());
        }
        if going.len() >= PULLS_MAX {
            return Err(Failure::TooManyPulls { max: PULLS_MAX });
        }
        let (sender, state) = watch::channel(PullState {
            plan: None,
            notices: Vec::new(),
            stage: PullStage::Downloading(v1::PullProgress::default()),
        });
        let cancel = self.closing.child_token();
        let known = ActivePull {
            revision,
            state: state.clone(),
            cancel: cancel.clone(),
        };
        going.insert(key.clone(), known);
        drop(going);
        self.changes.tell();
        let mut access = self.library.access().clone();
        access.token = token.or(access.token);
        tracing::info!(model = key, "downloading a model for a client");
        let pulls = self.clone();
        tokio::spawn(async move {
            let client = Client::new(access, Patience::default());
            let mut report = |event| tell(&sender, &folder, budget_bytes, event);
            let pulled = tokio::select! {
                pulled = pull.run(&client, &folder, &mut report) => pulled.map_err(Failure::from),
                () = cancel.cancelled() => Err(Failure::PullCancelled { model: key.clone() }),
            };
            let stage = match pulled {
                Ok(pulled) => pulls.done(&pulled.name.to_string()).await,
                Err(failure) => Err(failure),
            };
            let stage = match stage {
                Ok(model) => {
                    tracing::info!(
                        model = model.name,
                        size = units::bytes(model.disk_bytes),
                        "model downloaded"
                    );
                    PullStage::Done(Box::new(model))
                }
                Err(failure) => {
                    tracing::info!(model = key, reason = %failure, "the download ends");
                    PullStage::Failed(failure.into())
                }
            };
            pulls.lock().remove(&key);
            sender.send_modify(|state| state.stage = stage);
            pulls.changes.tell();
        });
        Ok(state)
    }

    /// Stops a download; whether there was one.
    pub fn cancel(&self, name: &str) -> bool {
        let going = self.lock();
        let found = going.iter().filter(|(key, going)| {
            let plan = &going.state.borrow().plan;
            *key == name || plan.as_ref().is_some_and(|plan| plan.name == name)
        });
        found.map(|(_, going)| going.cancel.cancel()).count() > 0
    }

    /// Those under way, as a list of models shows them.
    #[must_use]
    pub fn list(&self) -> Vec<v1::Model> {
        let going = self.lock();
        let models = going.iter().map(|(key, going)| {
            let state = going.state.borrow();
            v1::Model {
                name: state
                    .plan
                    .as_ref()
                    .map_or_else(|| key.clone(), |plan| plan.name.clone()),
                path: state
                    .plan
                    .as_ref()
                    .map(|plan| plan.folder.clone())
                    .unwrap_or_default(),
                state: v1::ModelState::Pulling.into(),
                origin: v1::ModelOrigin::Pulled.into(),
                pull: match &state.stage {
                    PullStage::Downloading(progress) => Some(progress.clone()),
                    _ => None,
                },
                ..Default::default()
            }
        });
        models.collect()
    }

    async fn done(&self, name: &str) -> Result<v1::Model, Failure> {
        let (library, name) = (self.library.clone(), name.to_owned());
        let found = tokio::task::spawn_blocking(move || library.find(&name)).await?;
        found.map(|entry| entry.to_wire())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ActivePull>> {
        self.active.lock().expect("nothing panics under this lock")
    }
}

fn tell(
    sender: &watch::Sender<PullState>,
    folder: &std::path::Path,
    budget_bytes: u64,
    event: PullEvent,
) {
    sender.send_modify(|state| match event {
        PullEvent::Resolved {
            name,
            files,
            total_bytes,
            present_bytes,
            weight_bytes,
        } => {
            if weight_bytes > budget_bytes {
                state.notices.push(format!(
                    "the weights take {} and the budget is {}: weights that don't fit will be streamed in every pass; \
                     `sluice plan --model {name}` tells more once it is here",
                    units::bytes(weight_bytes),
                    units::bytes(budget_bytes)
                ));
            }
            state.plan = Some(v1::PullPlan {
                folder: folder.join(name.folder()).to_string_lossy().into_owned(),
                name: name.to_string(),
                files: files as u32,
                total_bytes,
                present_bytes,
                weight_bytes,
            });
            state.stage = PullStage::Downloading(v1::PullProgress {
                file: String::new(),
                done_bytes: present_bytes,
                total_bytes,
            });
        }
        PullEvent::File { name } => progress(state, |progress| progress.file = name),
        PullEvent::Progress { done_bytes } => {
            progress(state, |progress| progress.done_bytes = done_bytes);
        }
        PullEvent::Retry { reason, pause } => {
            if state.notices.len() < NOTICES_MAX {
                let pause = units::duration_ms(pause.as_secs_f64() * 1000.0);
                state.notices.push(format!("{reason}; trying again in {pause}"));
            }
        }
    });
}

fn progress(state: &mut PullState, change: impl FnOnce(&mut v1::PullProgress)) {
    if let PullStage::Downloading(progress) = &mut state.stage {
        change(progress);
    }
}
