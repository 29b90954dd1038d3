//! A load: the engine's events become an operation's progress, and in the end the model that serves.

use std::sync::Arc;

use sluice_engine::{EngineError, LoadEvent, LoadedModel};
use sluice_plan::{Plan, PlanError};
use sluice_proto::v1;
use sluice_shared::units;

use super::{ModelName, Models, Requester, RestorePoint, ServingModel, embedded};
use crate::{
    failure::Failure,
    operations::{Outcome, RunningOperation, command::record},
    translate,
};

/// What is known of a load when it begins.
pub(super) struct LoadDescription {
    pub(super) name: ModelName,
    pub(super) requester: Requester,
    /// The model that slept when the load began, and sleeps again if it fails.
    pub(super) asleep: Option<ModelName>,
    pub(super) start: RestorePoint,
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
        // Freed outside the lock: a tokenizer is large, and calls wait for the lock.
        drop(before);
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
            known.is_waking = false;
            // The next request tries again: what was in the way may be gone by then.
            known.asleep = self.about.asleep.take();
            if !was_cancelled {
                known.failed = Some((self.about.name.clone(), failure.to_string()));
            }
        }
        self.running.finish(Err(failure));
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
    use std::sync::Weak;

    use sluice_checkpoint::family::PublishedShape;
    use sluice_engine::{
        Engine,
        runtime::{EngineOptions, ModelOutline},
    };
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
            asleep: None,
            start: RestorePoint::default(),
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
