//! A load: the engine's events become an operation's progress, and in the end the model that serves.

use std::sync::{Arc, Weak};

use sluice_engine::{Engine, EngineError, LoadEvent, LoadedModel};
use sluice_plan::{Plan, PlanError};
use sluice_proto::v1;
use sluice_shared::units;

use super::{ModelName, Models, Requester, RestorePoint, ServingModel};
use crate::{
    failure::Failure,
    model_name::embedded,
    operations::{Outcome, RunningOperation, command::record},
    translate,
};

/// What is known of a load when it begins.
pub(super) struct LoadDescription {
    pub(super) name: ModelName,
    pub(super) requester: Requester,
    /// The engine that loads it.
    pub(super) engine: Weak<Engine>,
    pub(super) start: RestorePoint,
    /// Whether it is to stay until it is unloaded by name.
    pub(super) is_pinned: bool,
    /// Whether somebody said that it is to be loaded, and not only a request.
    pub(super) is_chosen: bool,
    /// Name of the GPU that computes; `None` on the CPU.
    pub(super) gpu: Option<String>,
}

/// Writes the engine's events of one load into its operation.
pub(super) struct LoadReporter {
    models: Arc<Models>,
    about: LoadDescription,
    running: RunningOperation,
    /// The load's plan; `None` until the engine has made it.
    plan: Option<Arc<Plan>>,
    /// What was said of the plan's prediction. The exact plan, which follows an estimate, would say it again.
    prediction_note: Option<String>,
}

impl LoadReporter {
    pub(super) fn new(
        models: Arc<Models>,
        about: LoadDescription,
        running: RunningOperation,
    ) -> Self {
        Self {
            models,
            about,
            running,
            plan: None,
            prediction_note: None,
        }
    }

    pub(super) fn take(&mut self, event: LoadEvent) {
        if let LoadEvent::Planned { plan, .. } = &event {
            self.planned(plan.clone());
        }
        match record(&self.running, None, event) {
            None => {}
            Some(Ok(loaded)) => self.succeed(loaded),
            Some(Err(error)) => self.fail(self.refused(error)),
        }
    }

    fn planned(&mut self, plan: Arc<Plan>) {
        tracing::info!(
            model = self.about.name.name,
            level = plan.level.name(),
            peak = units::bytes(plan.peak_bytes()),
            streamed = units::bytes(plan.streamed_bytes()),
            "planned"
        );
        let note = translate::plan::prediction_note(&plan);
        if let Some(notice) = note
            && self.prediction_note.as_ref() != Some(&notice)
        {
            tracing::info!(model = self.about.name.name, notice, "while loading");
            self.running.notice(notice.clone());
            self.prediction_note = Some(notice);
        }
        self.plan = Some(plan);
    }

    /// A model too large for the GPU gets an error of its own, since the CPU may have room for it.
    fn refused(&self, error: EngineError) -> Failure {
        match (error, &self.about.gpu) {
            (EngineError::Plan(error @ PlanError::BudgetTooSmall { .. }), Some(gpu)) => {
                let gpu = gpu.clone();
                Failure::TooLargeForGpu { gpu, error }
            }
            (error, _) => error.into(),
        }
    }

    fn succeed(&mut self, loaded: Arc<LoadedModel>) {
        tracing::info!(
            model = self.about.name.name,
            weights = units::bytes(loaded.info.weight_bytes),
            "model ready"
        );
        for problem in &loaded.recommended.problems {
            tracing::warn!(model = self.about.name.name, problem, "while loading");
            self.running.notice(problem.clone());
        }
        let (name, engine) = (self.about.name.clone(), self.about.engine.clone());
        let serving = ServingModel {
            restore_point: self.about.start,
            is_pinned: self.about.is_pinned,
            is_chosen: self.about.is_chosen,
            ..ServingModel::new(name, loaded, engine)
        };
        let wire = serving.to_wire();
        let before = self.models.put(serving, self.about.requester);
        // Freed outside the lock: a tokenizer is large, and calls wait for the lock.
        drop(before);
        // Others may have gone for it that took more.
        self.models.reclaim_memory();
        embedded::forget();
        // After `serving` is set, so that whoever hears of the end can use the model.
        let plan = self.plan.take();
        self.running.finish(Ok(Outcome::Load(v1::LoadResult {
            plan: plan.map(|plan| translate::plan::plan(&plan, &wire.name)),
            model: Some(wire),
        })));
    }

    fn fail(&mut self, failure: Failure) {
        let model = &self.about.name.name;
        // A cancelled load says nothing about the model, so the model does not count as failed.
        let was_cancelled = matches!(failure, Failure::Engine(EngineError::LoadCancelled));
        // A client reads the failure itself; this one nobody hears of.
        if self.about.requester == Requester::Configuration && !was_cancelled {
            tracing::error!(model, reason = %failure, "cannot load the model");
        }
        {
            let mut known = self.models.lock();
            known.loading = None;
            // One that sleeps still does: the next request tries again, and what was in the way may be gone by then. Who only
            // asked for another model by its name is told what it failed of.
            let is_asleep = known.sleeping(&self.about.name).is_some();
            if !was_cancelled && (self.about.is_chosen || is_asleep) {
                known.failed = Some((self.about.name.clone(), failure.to_string()));
            }
        }
        // An engine that was started for it has nothing to do any more, and what it took the place of may be gone.
        self.models.forget_gone();
        self.models.reclaim_memory();
        self.running.finish(Err(failure));
        self.models.changes.tell();
    }
}

impl Models {
    /// Puts a model among the loaded ones; what is there no more.
    fn put(&self, serving: ServingModel, requester: Requester) -> Vec<ServingModel> {
        let mut known = self.lock();
        known.loading = None;
        let name = serving.name.clone();
        // What failed before has come, or somebody has chosen another.
        let is_chosen = requester != Requester::Request;
        known.failed = known
            .failed
            .take()
            .filter(|(failed, _)| !is_chosen && !failed.is_same(&name));
        let before = known.forget_gone();
        known.loaded.push(serving);
        known.wake_up(&name);
        if is_chosen && self.settings.loaded_models() == 1 {
            // It has taken the place of whatever was there.
            known.asleep.clear();
        }
        let present = known.present.as_ref();
        let is_there = present.is_some_and(|present| known.has(present));
        if is_chosen || !is_there {
            known.present = Some(name.clone());
        }
        drop(known);
        for gone in &before {
            self.uses.set_loaded(&gone.name, false);
        }
        self.uses.set_loaded(&name, true);
        before
    }
}

impl Drop for LoadReporter {
    /// The engine drops an unfinished reporter only when its thread ends.
    fn drop(&mut self) {
        if self.running.is_active() {
            self.fail(Failure::EngineLost);
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_checkpoint::family::PublishedShape;
    use sluice_engine::runtime::{EngineOptions, ModelOutline};
    use sluice_plan::{PassTime, Workload};
    use sluice_shared::level::Level;

    use super::*;
    use crate::operations::{ChangeNotifier, OperationDescription, Operations};

    #[test]
    fn what_is_said_of_a_prediction_is_said_once() {
        let options = EngineOptions {
            threads: 1,
            ..EngineOptions::default()
        };
        let machine = Engine::start(options).unwrap().machine().unwrap();
        let shape = PublishedShape::find("tinyllama-1.1b").unwrap();
        let outline = ModelOutline::of_published_shape(shape, machine);
        let mut plan = outline
            .plan(Level::Moderate, u64::MAX, Workload::default())
            .unwrap();
        plan.pass = Some(PassTime {
            compute_s: 1.0,
            copy_s: 0.0,
            copies_overlap: false,
            disk_s: 0.0,
            reader_s: 0.0,
            cold_s: None,
            correction: 1.0,
            others_share: 0.9,
        });
        let plan = Arc::new(plan);
        let changes = ChangeNotifier::default();
        let operations = Arc::new(Operations::new(changes.clone()));
        let running = operations
            .begin(OperationDescription::default(), None)
            .unwrap();
        let operation = running.operation();
        let models = Models::new(Weak::new(), Arc::default(), operations, changes);
        let about = LoadDescription {
            name: ModelName::embedded(),
            requester: Requester::Client,
            engine: Weak::new(),
            start: RestorePoint::default(),
            is_pinned: false,
            is_chosen: true,
            gpu: None,
        };
        let mut report = LoadReporter::new(Arc::new(models), about, running);
        // An estimate, then the exact plan.
        for _ in 0..2 {
            report.take(LoadEvent::Planned {
                plan: plan.clone(),
                steps: 0,
                estimate: None,
            });
        }
        let notices = operation.to_wire().notices;
        assert!(
            matches!(&notices[..], [notice] if notice.contains("other programs")),
            "{notices:?}"
        );
    }
}
