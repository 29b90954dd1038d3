//! A load, as those who wait for it see it.

use std::{sync::Arc, time::Instant};

use sluice_engine::{EngineError, LoadEvent, LoadedModel};
use sluice_plan::PlanError;
use sluice_proto::v1;
use sluice_shared::units;
use tokio::sync::watch;

use super::{ModelName, Models, Requester, RestorePoint, ServingModel, embedded};
use crate::{allocator, failure::Failure, translate};

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

/// What is known of a load when it begins.
pub(super) struct LoadDescription {
    pub(super) name: ModelName,
    pub(super) requester: Requester,
    /// Slept when this began, and does so again if it fails.
    pub(super) asleep: Option<ModelName>,
    pub(super) start: RestorePoint,
    /// What computes, where that is a card.
    pub(super) gpu: Option<String>,
}

/// Carries the engine's word on one load to all who ask.
pub(super) struct LoadReporter {
    models: Arc<Models>,
    about: LoadDescription,
    state: watch::Sender<LoadState>,
    begun: Instant,
    ended: bool,
}

impl LoadReporter {
    pub(super) fn new(
        models: Arc<Models>,
        about: LoadDescription,
        notice: Option<String>,
    ) -> (Self, watch::Receiver<LoadState>) {
        let (state, receiver) = watch::channel(LoadState {
            plan: None,
            notices: notice.into_iter().collect(),
            stage: LoadStage::Reading(v1::LoadProgress::default()),
        });
        let report = Self {
            models,
            about,
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
                    model = self.about.name.name,
                    level = plan.level.name(),
                    peak = units::bytes(plan.peak_bytes()),
                    streamed = units::bytes(plan.streamed_bytes()),
                    "planned"
                );
                let busy = translate::plan::prediction_note(&plan);
                if let Some(notice) = &busy {
                    tracing::info!(model = self.about.name.name, notice, "while loading");
                }
                let plan = translate::plan::plan(&plan, &self.about.name.name);
                self.state.send_modify(|state| {
                    state.notices.extend(busy);
                    state.plan = Some(Arc::new(plan));
                });
            }
            LoadEvent::Notice(text) => {
                tracing::warn!(model = self.about.name.name, notice = text, "while loading");
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
                self.models.lock().loading = Some((self.about.name.clone(), progress));
                self.go_to(LoadStage::Reading(progress));
            }
            LoadEvent::Finished(Ok(loaded)) => self.succeed(loaded),
            LoadEvent::Finished(Err(error)) => self.fail(&self.refused(error)),
        }
    }

    /// What the card has no room for, the CPU may have room for.
    fn refused(&self, error: EngineError) -> Failure {
        match (error, &self.about.gpu) {
            (EngineError::Plan(error @ PlanError::BudgetTooSmall { .. }), Some(card)) => {
                let card = card.clone();
                Failure::TooLargeForGpu { gpu: card, error }
            }
            (error, _) => error.into(),
        }
    }

    fn go_to(&self, stage: LoadStage) {
        self.state.send_modify(|state| state.stage = stage);
        self.models.changes.tell();
    }

    fn succeed(&mut self, loaded: Arc<LoadedModel>) {
        self.ended = true;
        tracing::info!(
            model = self.about.name.name,
            weights = units::bytes(loaded.info.weight_bytes),
            took = units::duration_ms(self.begun.elapsed().as_secs_f64() * 1000.0),
            "model ready"
        );
        for problem in &loaded.recommended.problems {
            tracing::warn!(model = self.about.name.name, problem, "while loading");
        }
        let problems = loaded.recommended.problems.clone();
        self.state
            .send_modify(|state| state.notices.extend(problems));
        let name = self.about.name.clone();
        let serving = ServingModel {
            name,
            loaded,
            restore_point: self.about.start,
        };
        let wire = serving.to_wire();
        let before = {
            let mut known = self.models.lock();
            known.loading = None;
            known.is_waking = false;
            known.failed = None;
            known.serving.replace(serving)
        };
        // What is left of it is freed outside the lock.
        drop(before);
        embedded::forget();
        allocator::give_back();
        self.go_to(LoadStage::Ready(Box::new(wire)));
    }

    fn fail(&mut self, failure: &Failure) {
        self.ended = true;
        let model = &self.about.name.name;
        // Somebody wanted it so; it says nothing of the model.
        let was_cancelled = matches!(failure, Failure::Engine(EngineError::LoadCancelled));
        match self.about.requester {
            _ if was_cancelled => tracing::info!(model, "load cancelled"),
            Requester::Configuration => {
                tracing::error!(model, reason = %failure, "cannot load the model");
            }
            Requester::Client | Requester::Request => {
                tracing::info!(model, reason = %failure, "load failed");
            }
        }
        {
            let mut known = self.models.lock();
            known.loading = None;
            known.is_waking = false;
            // The next request tries again: what was in the way may be gone by then.
            known.asleep = self.about.asleep.take();
            if !was_cancelled {
                known.failed = Some((self.about.name.clone(), failure.to_string()));
            }
        }
        allocator::give_back();
        self.go_to(LoadStage::Failed(failure.into()));
    }
}

impl Drop for LoadReporter {
    /// The engine drops a report it can't finish only when its thread ends.
    fn drop(&mut self) {
        if !self.ended {
            self.fail(&Failure::EngineLost);
        }
    }
}
