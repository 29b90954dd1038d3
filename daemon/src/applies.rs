//! Changes of level and budget, as those who asked for them see them.

use std::{sync::Arc, time::Instant};

use sluice_engine::{ApplyEvent, Change, Engine};
use sluice_proto::v1;
use sluice_shared::units;
use tokio::sync::watch;

use crate::{failure::Failure, registry::Changes, translate};

/// How far a change is: a full picture, so that the latest is enough.
#[derive(Debug, Clone, Default)]
pub struct ApplyState {
    /// The predicted effect, once it is known.
    pub planned: Option<Arc<v1::ApplyPlanned>>,
    /// What the user should hear of, in order.
    pub notices: Vec<String>,
    /// Bytes of a converted copy that are done.
    pub conversion: Option<v1::Conversion>,
    /// Steps done.
    pub progress: Option<v1::Switch>,
    /// How it ended.
    pub end: Option<Result<Applied, tonic::Status>>,
}

/// The plan that is in force, and how long it took to get there.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The plan.
    pub plan: Arc<v1::Plan>,
    /// From the command to the plan in force.
    pub elapsed_ms: f64,
}

/// Begins a change; what happens is told through the receiver, whether it is read or not.
pub fn apply(
    engine: &Engine,
    change: Change,
    model: String,
    changes: Changes,
) -> watch::Receiver<ApplyState> {
    let before = engine.in_force();
    let (state, receiver) = watch::channel(ApplyState::default());
    let mut report = Report {
        before: before.map(|in_force| translate::plan::plan(&in_force.plan, &model)),
        model,
        changes,
        state,
        begun: Instant::now(),
    };
    engine.apply(change, Box::new(move |event| report.take(event)));
    receiver
}

/// Carries the engine's word on one change to who asked.
struct Report {
    /// What was in force when it was asked for.
    before: Option<v1::Plan>,
    model: String,
    changes: Changes,
    state: watch::Sender<ApplyState>,
    begun: Instant,
}

impl Report {
    fn take(&mut self, event: ApplyEvent) {
        match event {
            ApplyEvent::Planned { plan, steps } => {
                let planned = v1::ApplyPlanned {
                    plan: Some(translate::plan::plan(&plan, &self.model)),
                    before: self.before.take(),
                    steps: steps as u32,
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
            ApplyEvent::Progress { done, steps } => {
                let progress = v1::Switch {
                    done: done as u32,
                    steps: steps as u32,
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
                self.end(Ok(Applied { plan, elapsed_ms }));
            }
            ApplyEvent::Finished(Err(error)) => self.fail(&error.into()),
        }
        self.changes.tell();
    }

    fn fail(&self, failure: &Failure) {
        tracing::info!(reason = %failure, "the plan stays as it is");
        self.end(Err(failure.into()));
    }

    fn end(&self, end: Result<Applied, tonic::Status>) {
        self.state.send_modify(|state| state.end = Some(end));
    }
}

impl Drop for Report {
    /// The engine drops a report it can't finish only when its thread ends.
    fn drop(&mut self) {
        if self.state.borrow().end.is_none() {
            self.fail(&Failure::EngineLost);
        }
    }
}
