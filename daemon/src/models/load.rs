//! A load, as those who wait for it see it.

use std::{sync::Arc, time::Instant};

use sluice_engine::{EngineError, LoadEvent, LoadedModel};
use sluice_proto::v1;
use sluice_shared::units;
use tokio::sync::watch;

use super::{AskedBy, ModelName, Models, Serving};
use crate::{failure::Failure, translate};

/// How far a load is: a full picture, so that the latest is enough.
#[derive(Debug, Clone)]
pub struct LoadState {
    /// The plan it follows, once there is one.
    pub plan: Option<Arc<v1::Plan>>,
    /// What the user should hear of, in order.
    pub notices: Vec<String>,
    /// What it is at.
    pub stage: LoadStage,
}

/// What a load is at.
#[derive(Debug, Clone)]
pub enum LoadStage {
    /// Bytes of a converted copy so far.
    Converting(v1::Conversion),
    /// Bytes so far.
    Reading(v1::LoadProgress),
    /// The model serves.
    Ready(Box<v1::Model>),
    /// It does not.
    Failed(tonic::Status),
}

/// Carries the engine's word on one load to all who ask.
pub(super) struct Report {
    models: Arc<Models>,
    name: ModelName,
    asked_by: AskedBy,
    /// Slept when this began, and does so again if it fails.
    asleep: Option<ModelName>,
    state: watch::Sender<LoadState>,
    begun: Instant,
    ended: bool,
}

impl Report {
    pub(super) fn new(
        models: Arc<Models>,
        name: ModelName,
        asked_by: AskedBy,
        asleep: Option<ModelName>,
    ) -> (Self, watch::Receiver<LoadState>) {
        let (state, receiver) = watch::channel(LoadState {
            plan: None,
            notices: Vec::new(),
            stage: LoadStage::Reading(v1::LoadProgress::default()),
        });
        let report = Self {
            models,
            name,
            asked_by,
            asleep,
            state,
            begun: Instant::now(),
            ended: false,
        };
        (report, receiver)
    }

    pub(super) fn take(&mut self, event: LoadEvent) {
        match event {
            LoadEvent::Planned(plan) => {
                tracing::info!(
                    model = self.name.name,
                    level = plan.level.name(),
                    peak = units::bytes(plan.peak_bytes()),
                    streamed = units::bytes(plan.streamed_bytes()),
                    "planned"
                );
                let plan = translate::plan::plan(&plan, &self.name.name);
                self.state
                    .send_modify(|state| state.plan = Some(Arc::new(plan)));
            }
            LoadEvent::Notice(text) => {
                tracing::warn!(model = self.name.name, notice = text, "while loading");
                self.state.send_modify(|state| state.notices.push(text));
            }
            LoadEvent::Converting {
                done_bytes,
                total_bytes,
            } => self.go_to(LoadStage::Converting(v1::Conversion {
                done_bytes,
                total_bytes,
            })),
            LoadEvent::Progress {
                loaded_bytes,
                total_bytes,
            } => {
                let progress = v1::LoadProgress {
                    loaded_bytes,
                    total_bytes,
                };
                self.models.lock().loading = Some((self.name.clone(), progress));
                self.go_to(LoadStage::Reading(progress));
            }
            LoadEvent::Finished(Ok(loaded)) => self.succeed(loaded),
            LoadEvent::Finished(Err(error)) => self.fail(&error.into()),
        }
    }

    fn go_to(&self, stage: LoadStage) {
        self.state.send_modify(|state| state.stage = stage);
        self.models.changes.tell();
    }

    fn succeed(&mut self, loaded: Arc<LoadedModel>) {
        self.ended = true;
        tracing::info!(
            model = self.name.name,
            weights = units::bytes(loaded.info.weight_bytes),
            took = units::duration_ms(self.begun.elapsed().as_secs_f64() * 1000.0),
            "model ready"
        );
        let name = self.name.clone();
        let serving = Serving { name, loaded };
        let wire = serving.to_wire();
        let before = {
            let mut known = self.models.lock();
            known.loading = None;
            known.is_waking = false;
            known.failed = None;
            known.serving.replace(serving)
        };
        // Its weights are freed outside the lock.
        drop(before);
        self.go_to(LoadStage::Ready(Box::new(wire)));
    }

    fn fail(&mut self, failure: &Failure) {
        self.ended = true;
        let model = &self.name.name;
        // Somebody wanted it so; it says nothing of the model.
        let was_cancelled = matches!(failure, Failure::Engine(EngineError::LoadCancelled));
        match self.asked_by {
            _ if was_cancelled => tracing::info!(model, "load cancelled"),
            AskedBy::Configuration => {
                tracing::error!(model, reason = %failure, "the model can't be loaded");
            }
            AskedBy::Client | AskedBy::Request => {
                tracing::info!(model, reason = %failure, "load failed");
            }
        }
        {
            let mut known = self.models.lock();
            known.loading = None;
            known.is_waking = false;
            // The next request tries again: what was in the way may be gone by then.
            known.asleep = self.asleep.take();
            if !was_cancelled {
                known.failed = Some((self.name.clone(), failure.to_string()));
            }
        }
        self.go_to(LoadStage::Failed(failure.into()));
    }
}

impl Drop for Report {
    /// The engine drops a report it can't finish only when its thread ends.
    fn drop(&mut self) {
        if !self.ended {
            self.fail(&Failure::EngineLost);
        }
    }
}
