//! A request's passes: between them the weights may change, and when memory runs short something gives way before the
//! request does.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use super::{SwitchState, current::Current, worker::Worker};
use crate::{
    decode::{Denoiser, ModelDenoiser, Pass, Vocabulary, WeightsState},
    error::EngineError,
    event::{Event, Outcome},
    ledger::Mark,
    model::transformer::{Interrupt, MLP_ROWS},
    ops::{Candidate, Ops},
    plan::{Plan, PlanError, Workload},
    request::Compare,
};
use sluice_shared::{
    level::{Choices, Level},
    units,
};

/// The least rows that go through an MLP together when memory is short.
const MLP_ROWS_MIN: usize = 64;
/// More frugal plans that are tried for a request.
const FRUGAL_PLANS_MAX: usize = 4;

/// The loaded model, serving a request.
pub(super) struct Served<'a> {
    pub(super) worker: &'a mut Worker,
    pub(super) cancel: &'a AtomicBool,
    workload: Workload,
    notices: Vec<String>,
    frugal_plans: usize,
}

impl<'a> Served<'a> {
    /// Makes room for the request's activations.
    pub(super) fn start(
        worker: &'a mut Worker,
        workload: Workload,
        cancel: &'a AtomicBool,
    ) -> Result<Self, EngineError> {
        let mut served = Self {
            worker,
            cancel,
            workload,
            notices: Vec::new(),
            frugal_plans: 0,
        };
        let kv = served.worker.shared.state.settings().kv;
        let current = served.worker.current_mut()?;
        current.set_mlp_rows(MLP_ROWS);
        current.serving = Some(workload);
        current.serving_kv = Some(kv);
        served.fit_plan()?;
        if let Err(error) = served.reserve() {
            served.make_room(error)?;
        }
        Ok(served)
    }

    /// Measures a level.
    pub(super) fn compare(
        &mut self,
        request: &Compare,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Outcome, EngineError> {
        self.worker.compare(request, self.cancel, emit)
    }

    /// Gives way until the request's activations have room, and the weights their slots.
    pub(super) fn make_room(&mut self, refused: EngineError) -> Result<(), EngineError> {
        self.give_way(refused)?;
        while let Err(error) = self.reserve() {
            self.give_way(error)?;
        }
        Ok(())
    }

    /// Takes another plan when the present one, or the one it is giving way to, has no room for this request.
    fn fit_plan(&mut self) -> Result<(), EngineError> {
        let (choices, budget) = self.worker.aim();
        let current = self.worker.current_mut()?;
        let working = current.working(&self.workload)?.total_bytes();
        let has_room = |plan: &Plan| plan.weight_bytes() + working <= budget;
        let stands = current.as_it_stands();
        if has_room(&stands) && current.target().is_none_or(has_room) {
            return Ok(());
        }
        let plan = self.plan_within(choices, budget)?;
        let streamed = plan.streamed_bytes();
        self.worker.switch_now(plan, self.cancel)?;
        let more = streamed.saturating_sub(stands.streamed_bytes());
        if more > 0 {
            self.notices.push(format!(
                "a canvas of {} leaves less room for weights: {} more are streamed in each pass",
                self.workload.canvas,
                units::bytes(more)
            ));
        }
        Ok(())
    }

    /// A plan with room for this request: with fewer rows at once where that is needed, and where not even streaming
    /// helps at `off`, at the level that gives the same results.
    fn plan_within(&mut self, choices: Choices, budget: u64) -> Result<Plan, EngineError> {
        let current = self.worker.current_mut()?;
        let workload = current.plan.workload.widest(&self.workload);
        let mut refused = None;
        for rows in [current.mlp_rows, MLP_ROWS_MIN] {
            for level in [choices.level, Level::Standard] {
                let is_same = level == Level::Standard;
                let choices = Choices { level, ..choices };
                let planned = current.plan_with(choices, budget, workload, rows);
                match planned {
                    Ok(plan) => {
                        if rows < current.mlp_rows {
                            current.set_mlp_rows(rows);
                            self.notices.push(fewer_rows());
                        }
                        return Ok(plan);
                    }
                    Err(error @ EngineError::Plan(PlanError::BudgetTooSmall { .. })) => {
                        refused.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
                if is_same || level != Level::Off {
                    break;
                }
            }
        }
        Err(refused.expect("a plan was made or refused"))
    }

    fn reserve(&mut self) -> Result<(), EngineError> {
        let current = self.worker.current_mut()?;
        current.weights.ensure_stream()?;
        let working = current.working(&self.workload)?;
        self.worker.ops.reserve(working.activation_bytes)
    }

    /// What gives way when memory is short, a rung at a time: what is kept of earlier requests, then fewer rows at once,
    /// then more weights streamed. Fails with what was refused when there is nothing left.
    fn give_way(&mut self, refused: EngineError) -> Result<(), EngineError> {
        let EngineError::OutOfMemory { needed_bytes, .. } = refused else {
            return Err(refused);
        };
        self.worker.ops.release();
        let (choices, budget) = self.worker.aim();
        let current = self.worker.current_mut()?;
        if !current.kept.is_empty() {
            current.kept.remove(0);
            return Ok(());
        }
        if current.mlp_rows > MLP_ROWS_MIN {
            current.set_mlp_rows(MLP_ROWS_MIN);
            self.notices.push(fewer_rows());
            return Ok(());
        }
        if self.frugal_plans == FRUGAL_PLANS_MAX {
            return Err(refused);
        }
        self.frugal_plans += 1;
        let peak = current.as_it_stands().peak_bytes();
        let budget = budget.min(peak.saturating_sub(needed_bytes));
        let plan = match self.plan_within(choices, budget) {
            Ok(plan) => plan,
            // The figures of what was refused say more than those of a plan nobody asked for.
            Err(EngineError::Plan(PlanError::BudgetTooSmall { .. })) => return Err(refused),
            Err(error) => return Err(error),
        };
        let streamed = units::bytes(plan.streamed_bytes());
        self.worker.switch_now(plan, self.cancel)?;
        self.notices.push(format!(
            "memory is short: {streamed} of weights are streamed in each pass"
        ));
        Ok(())
    }

    /// Runs a pass of so many rows, again where memory ran short and something could give way.
    pub(super) fn run<T>(
        &mut self,
        rows: usize,
        pass: &mut dyn FnMut(&Ops, &Current) -> Result<T, Interrupt>,
    ) -> Result<T, Interrupt> {
        self.worker.between_passes();
        loop {
            let begun = Instant::now();
            let Worker { current, ops, .. } = &mut *self.worker;
            let current = current.as_ref().ok_or(EngineError::NoModel)?;
            match pass(ops, current) {
                Err(Interrupt::Failed(error @ EngineError::OutOfMemory { .. })) => {
                    let made_room = self.make_room(error);
                    if made_room.is_err() && self.cancel.load(Ordering::Relaxed) {
                        return Err(Interrupt::Cancelled);
                    }
                    made_room?;
                }
                Err(interrupt) => return Err(interrupt),
                Ok(result) => {
                    self.measure(begun, rows);
                    return Ok(result);
                }
            }
        }
    }

    fn measure(&mut self, begun: Instant, rows: usize) {
        let Some(current) = &self.worker.current else {
            return;
        };
        let stream = current.weights.stream_stats();
        let measured = &mut self.worker.measured;
        measured.passes += 1;
        measured.last_pass_time = begun.elapsed();
        measured.pass_time += measured.last_pass_time;
        measured.last_rows = rows;
        measured.waited = stream.waited;
        measured.streamed_bytes = stream.bytes;
        measured.peak_bytes = self.worker.shared.ledger.peak_since(Mark::Plan);
        self.worker.tell_state();
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        if let Some(current) = &mut self.worker.current {
            current.serving = None;
            current.serving_kv = None;
        }
    }
}

fn fewer_rows() -> String {
    format!("memory is short: {MLP_ROWS_MIN} rows at once go through an MLP")
}

impl Denoiser for Served<'_> {
    fn candidates(&mut self, pass: &Pass<'_>) -> Result<Vec<Candidate>, Interrupt> {
        let cancel = self.cancel;
        self.run(pass.layer_rows(), &mut |ops, current| {
            let mut denoiser = ModelDenoiser {
                ops,
                model: &current.model,
                weights: &current.weights,
                vocabulary: &current.vocabulary,
                cancel,
            };
            denoiser.candidates(pass)
        })
    }

    fn vocabulary(&self) -> &Vocabulary {
        let current = self.worker.current.as_ref();
        &current
            .expect("a model that serves stays until its request ends")
            .vocabulary
    }

    fn device_bytes(&self) -> u64 {
        self.worker.ops.ledger().used_bytes()
    }

    fn weights(&self) -> WeightsState {
        let Some(current) = &self.worker.current else {
            return WeightsState::default();
        };
        WeightsState {
            epoch: current.weights.epoch(),
            is_lossless: current.weights.is_lossless(),
            switch: current.switch.as_ref().map(|switch| {
                let SwitchState { done, steps } = switch.state();
                (done, steps)
            }),
            stream: current.weights.stream_stats(),
        }
    }

    fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }
}

impl Worker {
    pub(super) fn current_mut(&mut self) -> Result<&mut Current, EngineError> {
        self.current.as_mut().ok_or(EngineError::NoModel)
    }

    /// The choices and the budget that requests are to keep to: those a change under way leads to, once it has begun to take
    /// effect, else those in force.
    pub(super) fn aim(&self) -> (Choices, u64) {
        let asked = self
            .current
            .as_ref()
            .and_then(|current| current.switch.as_ref()?.stepping_towards());
        let settings = asked.unwrap_or_else(|| self.shared.state.settings());
        (
            settings.choices(),
            self.shared.state.budget_bytes(&settings),
        )
    }

    /// Whether the plan in force makes room for more than the usual request takes, and none runs.
    pub(super) fn may_narrow(&self) -> bool {
        let is_wide = |current: &Current| {
            !current.stays_wide
                && (current.holds_others || current.plan.workload != current.workload())
        };
        self.loading.is_none() && self.current.as_ref().is_some_and(is_wide)
    }

    /// Goes back to a plan for the usual canvas when a wider request has ended, if that lets more be resident. Short
    /// memory stays as it was found.
    pub(super) fn narrow(&mut self) {
        let settings = self.shared.state.settings();
        let budget = self.shared.state.budget_bytes(&settings);
        let Some(current) = &mut self.current else {
            return;
        };
        current.stays_wide = true;
        current.holds_others = false;
        let budget = budget.min(current.plan.budget_bytes);
        let planned = current
            .planner
            .plan(settings.choices(), budget, current.workload());
        let Ok(plan) = planned else { return };
        if plan.resident_bytes() > current.plan.resident_bytes() {
            // When it can't be had, all stays as it is.
            drop(self.start_switch(Arc::new(plan), None));
        } else if plan.units == current.plan.units && plan.slots == current.plan.slots {
            current.plan = Arc::new(plan);
            self.tell_state();
        }
    }

    /// What may happen between two passes: a change of the settings begins, or goes a step further.
    fn between_passes(&mut self) {
        while let Some(apply) = self.shared.queue.take_apply() {
            self.begin_switch(apply);
        }
        self.advance_switch();
    }
}
