//! Changes of level and budget, as those who asked for them see them.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Instant,
};

use sluice_engine::{ApplyEvent, Engine, EngineError, PlanOptions};
use sluice_proto::v1;
use sluice_shared::units;
use tokio::sync::watch;

use crate::{allocator, failure::Failure, operations::ChangeNotifier, translate};

/// How far a change is: a full picture, so that the latest is enough.
#[derive(Debug, Clone, Default)]
pub struct ApplyState {
    /// The predicted effect, once it is known.
    pub planned: Option<Arc<v1::PlannedChange>>,
    /// What the user should hear of, in order.
    pub notices: Vec<String>,
    /// Bytes of a converted copy that are done.
    pub conversion: Option<v1::Conversion>,
    /// Steps done.
    pub progress: Option<v1::WeightSwitch>,
    /// How it ended.
    pub end: Option<Result<AppliedPlan, tonic::Status>>,
}

/// Where the change under way leads, and how many there were.
#[derive(Debug, Clone, Default)]
pub struct SwitchTarget(Arc<Mutex<Course>>);

#[derive(Debug, Default)]
struct Course {
    target: Option<v1::SwitchTarget>,
    ended: u64,
}

impl SwitchTarget {
    /// That of the change under way, if there is one.
    #[must_use]
    pub fn get(&self) -> Option<v1::SwitchTarget> {
        self.lock().target
    }

    /// Changes that have come to an end, of whatever kind.
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

/// The plan that is in force, and how long it took to get there.
#[derive(Debug, Clone)]
pub struct AppliedPlan {
    /// The plan.
    pub plan: Arc<v1::Plan>,
    /// From the command to the plan in force.
    pub elapsed_ms: f64,
}

/// Begins a change; what happens is told through the receiver, whether it is read or not.
pub fn apply(
    engine: &Arc<Engine>,
    change: PlanOptions,
    model: String,
    changes: ChangeNotifier,
    target: SwitchTarget,
) -> watch::Receiver<ApplyState> {
    let before = engine.in_force();
    let (state, receiver) = watch::channel(ApplyState::default());
    let mut report = ChangeReporter {
        engine: Arc::downgrade(engine),
        change,
        before: before.map(|in_force| translate::plan::plan(&in_force.plan, &model)),
        model,
        changes,
        target,
        is_under_way: false,
        state,
        begun: Instant::now(),
    };
    engine.apply(change, Box::new(move |event| report.take(event)));
    receiver
}

/// Carries the engine's word on one change to who asked.
struct ChangeReporter {
    /// Asked what became of the settings when there was no model.
    engine: Weak<Engine>,
    change: PlanOptions,
    /// What was in force when it was asked for.
    before: Option<v1::Plan>,
    model: String,
    changes: ChangeNotifier,
    target: SwitchTarget,
    /// The target is this change's. One that is refused leaves that of another alone.
    is_under_way: bool,
    state: watch::Sender<ApplyState>,
    begun: Instant,
}

impl ChangeReporter {
    fn take(&mut self, event: ApplyEvent) {
        match event {
            ApplyEvent::Planned {
                plan,
                steps,
                estimate: time,
            } => {
                self.is_under_way = true;
                self.target.set(v1::SwitchTarget {
                    level: v1::Level::from(plan.level).into(),
                    budget_bytes: plan.budget_bytes,
                });
                let predicted = time.map(translate::plan::switch_estimate);
                let planned = v1::PlannedChange {
                    plan: Some(v1::Plan {
                        switch_estimate: predicted,
                        ..translate::plan::plan(&plan, &self.model)
                    }),
                    plan_before: self.before.take(),
                    total_steps: steps as u32,
                };
                self.state
                    .send_modify(|state| state.planned = Some(Arc::new(planned)));
            }
            ApplyEvent::Notice(text) => {
                tracing::warn!(notice = text, "while another plan is put in force");
                self.state.send_modify(|state| state.notices.push(text));
            }
            ApplyEvent::Converting {
                done_bytes,
                total_bytes,
            } => {
                let conversion = v1::Conversion {
                    done_bytes,
                    total_bytes,
                };
                self.state
                    .send_modify(|state| state.conversion = Some(conversion));
            }
            ApplyEvent::Progress {
                done_steps: done,
                total_steps: steps,
            } => {
                let progress = v1::WeightSwitch {
                    done_steps: done as u32,
                    total_steps: steps as u32,
                };
                self.state
                    .send_modify(|state| state.progress = Some(progress));
            }
            ApplyEvent::Finished(Ok(plan)) => {
                let elapsed_ms = self.begun.elapsed().as_secs_f64() * 1000.0;
                tracing::info!(
                    level = plan.level.name(),
                    budget = units::bytes(plan.budget_bytes),
                    peak = units::bytes(plan.peak_bytes()),
                    streamed = units::bytes(plan.streamed_bytes()),
                    took = units::duration_ms(elapsed_ms),
                    "another plan is in force"
                );
                let plan = Arc::new(translate::plan::plan(&plan, &self.model));
                self.end(Ok(AppliedPlan { plan, elapsed_ms }));
            }
            ApplyEvent::Finished(Err(EngineError::NoModel)) if self.is_held() => {
                self.fail(&Failure::AppliesToNextLoad);
            }
            ApplyEvent::Finished(Err(error)) => self.fail(&error.into()),
        }
        self.changes.tell();
    }

    /// Whether the settings are as the change wants them.
    fn is_held(&self) -> bool {
        let settings = self.engine.upgrade().map(|engine| engine.settings());
        settings.is_some_and(|settings| settings.with(&self.change) == settings)
    }

    fn fail(&self, failure: &Failure) {
        tracing::info!(reason = %failure, "the plan stays as it is");
        self.end(Err(failure.into()));
    }

    fn end(&self, end: Result<AppliedPlan, tonic::Status>) {
        self.target.end(self.is_under_way);
        allocator::give_back();
        self.state.send_modify(|state| state.end = Some(end));
    }
}

impl Drop for ChangeReporter {
    /// The engine drops a report it can't finish only when its thread ends.
    fn drop(&mut self) {
        if self.state.borrow().end.is_none() {
            self.fail(&Failure::EngineLost);
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

    #[tokio::test]
    async fn without_a_model_the_next_load_has_the_level_and_the_caller_hears_so() {
        let engine = engine();
        let (changes, target) = (ChangeNotifier::default(), SwitchTarget::default());
        let change = to(Level::Moderate);
        let mut states = apply(&engine, change, "m".to_owned(), changes, target);
        let ended = states.wait_for(|state| state.end.is_some()).await.unwrap();
        let error = ended.end.clone().unwrap().unwrap_err();
        assert!(
            error.message().contains(
                "no model is loaded; the requested level and budget apply to the next load"
            )
        );
        assert_eq!(engine.settings().level, Level::Moderate);
    }

    #[test]
    fn a_change_that_is_refused_leaves_the_target_of_the_one_under_way() {
        let engine = engine();
        let target = SwitchTarget::default();
        let report = |change| ChangeReporter {
            engine: Arc::downgrade(&engine),
            change,
            before: None,
            model: "m".to_owned(),
            changes: ChangeNotifier::default(),
            target: target.clone(),
            is_under_way: false,
            state: watch::channel(ApplyState::default()).0,
            begun: Instant::now(),
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
        under_way.take(planned);
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
