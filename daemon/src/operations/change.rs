//! Changes of level and budget: what the engine reports of one becomes an operation.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use sluice_engine::{ApplyEvent, Engine, EngineError, PlanOptions, PlanSettings};
use sluice_plan::Plan;
use sluice_proto::v1;
use sluice_shared::units;

use super::{
    Operation, OperationDescription, Operations, Outcome, RunningOperation, command::record,
};
use crate::{caller::Caller, failure::Failure, translate};

/// The target of the change under way, and the number of changes that ended.
#[derive(Debug, Clone, Default)]
pub struct SwitchTarget(Arc<Mutex<Course>>);

#[derive(Debug, Default)]
struct Course {
    target: Option<v1::SwitchTarget>,
    ended: u64,
}

impl SwitchTarget {
    /// The target of the change under way; `None` without one.
    #[must_use]
    pub fn get(&self) -> Option<v1::SwitchTarget> {
        self.lock().target
    }

    /// Number of changes that ended, whether they succeeded, failed or were superseded.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.lock().ended
    }

    fn set(&self, target: v1::SwitchTarget) {
        self.lock().target = Some(target);
    }

    fn end(&self, is_its_own: bool) {
        let mut course = self.lock();
        course.ended += 1;
        if is_its_own {
            course.target = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Course> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Operations {
    /// Begins a change of the loaded model, whose name is `model`. A change cannot be cancelled; a later one supersedes it.
    ///
    /// # Errors
    /// When the daemon is about to end, or as many changes wait as may.
    pub fn change(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        kind: v1::OperationKind,
        change: &RequestedChange,
        model: String,
        target: SwitchTarget,
    ) -> Result<Arc<Operation>, Failure> {
        let description = OperationDescription {
            kind,
            model,
            caller: Some(change.caller),
            ..Default::default()
        };
        let running = self.begin(description, None)?;
        let operation = running.operation();
        let model = &operation.description().model;
        let before = engine.in_force();
        let before = before.map(|in_force| translate::plan::summary(&in_force.plan, model));
        let requested = change;
        let change = change.options;
        let mut report = ChangeReporter {
            engine: Arc::downgrade(engine),
            change,
            before,
            target,
            is_under_way: false,
            running,
        };
        let merged = engine.apply(change, Box::new(move |event| report.take(event)));
        // Set once: a change is begun once.
        let _ = requested.merged.set(merged);
        Ok(operation)
    }
}

/// A change that a client asks for.
#[derive(Debug, Clone)]
pub struct RequestedChange {
    /// What is to change.
    pub options: PlanOptions,
    /// Who asks.
    pub caller: Caller,
    /// The same with the changes that it took over before they began, once the engine knows of it.
    merged: Arc<OnceLock<PlanOptions>>,
}

impl RequestedChange {
    /// A change that the engine does not know of yet.
    #[must_use]
    pub fn new(options: PlanOptions, caller: Caller) -> Self {
        Self {
            options,
            caller,
            merged: Arc::default(),
        }
    }

    /// What of it is in force, or held for the next load, by these settings of the engine: with what it took over, or alone.
    /// `None`: nothing.
    #[must_use]
    pub fn in_force(&self, settings: PlanSettings) -> Option<PlanOptions> {
        let merged = self.merged.get().copied();
        let mut stands_for = merged.into_iter().chain([self.options]);
        stands_for.find(|options| settings.have(options))
    }
}

/// Writes the engine's events of one change into its operation.
struct ChangeReporter {
    /// Weak, since the engine's thread owns this reporter: a strong reference would keep the engine alive.
    engine: Weak<Engine>,
    change: PlanOptions,
    /// The plan in force when the change was requested.
    before: Option<v1::Plan>,
    target: SwitchTarget,
    /// Whether the target is this change's. A refused change must not clear the target of another one.
    is_under_way: bool,
    running: RunningOperation,
}

impl ChangeReporter {
    fn take(&mut self, event: ApplyEvent) {
        if let ApplyEvent::Planned { plan, .. } = &event {
            self.is_under_way = true;
            self.target.set(v1::SwitchTarget {
                level: v1::Level::from(plan.level).into(),
                budget_bytes: plan.budget_bytes,
            });
        }
        match record(&self.running, self.before.as_ref(), event) {
            None => {}
            Some(Ok(plan)) => self.succeed(&plan),
            // The model went before the engine could change it, but the engine keeps the settings for the next load.
            Some(Err(EngineError::NoModel)) if self.is_held() => {
                self.fail(Failure::AppliesToNextLoad);
            }
            Some(Err(error)) => self.fail(error.into()),
        }
    }

    fn succeed(&self, plan: &Plan) {
        tracing::info!(
            level = plan.level.name(),
            budget = units::bytes(plan.budget_bytes),
            peak = units::bytes(plan.peak_bytes()),
            streamed = units::bytes(plan.streamed_bytes()),
            "another plan is in force"
        );
        let engine = self.engine.upgrade();
        let applied = v1::ApplyResult {
            plan: Some(translate::plan::plan(
                plan,
                &self.running.description().model,
            )),
            device_bytes: engine.map_or(0, |engine| engine.memory().used_bytes),
        };
        self.end(Ok(Outcome::Apply(applied)));
    }

    /// Whether the engine's settings are those that the change asked for.
    fn is_held(&self) -> bool {
        let settings = self.engine.upgrade().map(|engine| engine.settings());
        settings.is_some_and(|settings| settings.have(&self.change))
    }

    fn fail(&self, failure: Failure) {
        self.end(Err(failure));
    }

    fn end(&self, result: Result<Outcome, Failure>) {
        self.target.end(self.is_under_way);
        self.running.finish(result);
    }
}

impl Drop for ChangeReporter {
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
    use sluice_plan::Workload;
    use sluice_shared::level::Level;

    use super::*;
    use crate::operations::{ChangeNotifier, Detail};

    fn engine() -> Arc<Engine> {
        let options = EngineOptions {
            threads: 1,
            ..EngineOptions::default()
        };
        Arc::new(Engine::start(options).unwrap())
    }

    fn to(level: Level) -> PlanOptions {
        PlanOptions {
            level: Some(level),
            ..PlanOptions::default()
        }
    }

    fn operations() -> Arc<Operations> {
        Arc::new(Operations::new(ChangeNotifier::default()))
    }

    #[tokio::test]
    async fn without_a_model_the_next_load_has_the_level_and_the_caller_hears_so() {
        let engine = engine();
        let change = to(Level::Moderate);
        let operation = operations().change(
            &engine,
            v1::OperationKind::Apply,
            &RequestedChange::new(change, Caller::DAEMON),
            "m".to_owned(),
            SwitchTarget::default(),
        );
        let mut statuses = operation.unwrap().subscribe();
        let ended = statuses.wait_for(|status| status.has_ended()).await;
        let error = ended.unwrap().error().cloned().unwrap();
        assert!(
            error.message().contains(
                "no model is loaded; the requested level and budget apply to the next load"
            )
        );
        assert_eq!(engine.settings().level, Level::Moderate);
    }

    #[test]
    fn what_is_remembered_of_a_change_is_what_came_into_force() {
        let change = RequestedChange::new(to(Level::Moderate), Caller::DAEMON);
        let settings = |level| PlanSettings::default().with(&to(level));
        assert_eq!(change.in_force(settings(Level::Off)), None);
        let alone = change.in_force(settings(Level::Moderate));
        assert_eq!(alone, Some(to(Level::Moderate)));
        // It took over another one's budget, which came into force or did not.
        let budget = PlanOptions {
            budget: Some(sluice_engine::Budget::Bytes(9)),
            ..PlanOptions::default()
        };
        let merged = change.options.over(budget);
        change.merged.set(merged).unwrap();
        let both = settings(Level::Moderate).with(&budget);
        assert_eq!(change.in_force(both), Some(merged));
        assert_eq!(change.in_force(settings(Level::Moderate)), alone);
    }

    #[test]
    fn a_change_that_is_refused_leaves_the_target_of_the_one_under_way() {
        let engine = engine();
        let target = SwitchTarget::default();
        let report = |change| ChangeReporter {
            engine: Arc::downgrade(&engine),
            change,
            before: None,
            target: target.clone(),
            is_under_way: false,
            running: operations()
                .begin(OperationDescription::default(), None)
                .unwrap(),
        };
        let machine = engine.machine().unwrap();
        let outline = ModelOutline::of_published_shape(
            PublishedShape::find("tinyllama-1.1b").unwrap(),
            machine,
        );
        let plan = outline.plan(Level::Moderate, u64::MAX, Workload::default());
        let plan = Arc::new(plan.unwrap());
        let planned = ApplyEvent::Planned {
            plan: plan.clone(),
            steps: 9,
            estimate: None,
        };
        let mut under_way = report(to(Level::Moderate));
        under_way.before = Some(v1::Plan::default());
        under_way.take(planned);
        // Where the first plan was an estimate, the exact one follows.
        let again = ApplyEvent::Planned {
            plan: plan.clone(),
            steps: 7,
            estimate: None,
        };
        under_way.take(again);
        let Some(Detail::PlannedChange(planned)) = under_way.running.to_wire().detail else {
            panic!("it is planned")
        };
        assert_eq!(planned.total_steps, 7);
        assert!(planned.plan_before.is_some());
        let is_moderate = || {
            target
                .get()
                .is_some_and(|target| target.level() == v1::Level::Moderate)
        };
        assert!(is_moderate());
        let refused = ApplyEvent::Finished(Err(EngineError::Superseded));
        report(to(Level::Off)).take(refused);
        assert!(is_moderate());
        under_way.take(ApplyEvent::Finished(Ok(plan)));
        assert_eq!((target.get(), target.ended()), (None, 2));
    }
}
