//! The passes of running requests: between them the weights may change, and when memory runs short something gives way
//! before a request fails.

mod memory_pressure;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use sluice_ops::{Ops, OpsError, ledger::PeakMark};
use sluice_plan::{Plan, PlanError, Workload, corrections::PassKind};
use sluice_shared::{options::ResolvedPlanSettings, units};

use self::memory_pressure::{as_refusal, mlp_rows_from};
use super::{
    current_model::CurrentModel, state::SwitchProgress, weight_cache::lacks_converted_weights,
    worker::Worker,
};
use crate::{
    error::EngineError,
    event::{PassCost, PassPhases, WeightsState},
    heartbeat::Activity,
    model::network::Interrupt,
    residency::{ExpertTouches, StreamStats},
};

/// Least rows that go through an MLP together when memory is short.
pub(super) const MLP_ROWS_MIN: usize = 64;
/// Canvases of a request that tries no other orders: two with guidance.
const CANVASES_PLAIN: usize = 2;

/// A pass, which returns its result and how many rows it had.
type SharedPass<'a, T> = &'a mut dyn FnMut(&Ops, &CurrentModel) -> Result<(T, usize), Interrupt>;

/// The loaded model, serving requests.
pub(super) struct PassRunner<'a> {
    pub(super) worker: &'a mut Worker,
    /// Set when none of the requests is wanted any more.
    pub(super) cancel: &'a AtomicBool,
    /// The combined workload of all requests that share a pass.
    workload: Workload,
    notices: Vec<String>,
    frugal_plans: usize,
    /// Nothing is left that could give way to other programs.
    has_yielded: bool,
    /// Whether the times of passes correct what is predicted.
    pub(super) learns: bool,
}

impl<'a> PassRunner<'a> {
    /// A runner for which nothing is allocated yet.
    pub(super) fn new(worker: &'a mut Worker, workload: Workload, cancel: &'a AtomicBool) -> Self {
        Self {
            worker,
            cancel,
            workload,
            notices: Vec::new(),
            frugal_plans: 0,
            has_yielded: false,
            learns: true,
        }
    }

    /// Makes room for the first request's activations.
    pub(super) fn start(&mut self) -> Result<(), EngineError> {
        let kv = self.worker.shared.state.settings().kv_cache_format;
        let found = self.worker.look_at_memory_now();
        self.notices.extend(found.notices);
        let current = self.worker.current_mut()?;
        // A new batch begins with as many rows at once as the device takes, whatever the last one had to give up.
        current.set_mlp_rows(current.planner.mlp_rows);
        // Fixed for the batch: a cache's format cannot change while requests hold caches, whatever the settings become.
        current.serving_kv_cache_format = Some(kv);
        self.resize(self.workload)?;
        let (choices, budget) = self.worker.aim();
        let fitted = self.fit_plan(choices, budget);
        match fitted.and_then(|()| self.reserve()) {
            Ok(()) => Ok(()),
            Err(error) => self.free_memory(error),
        }
    }

    /// The combined workload of all requests that share a pass.
    pub(super) fn workload(&self) -> Workload {
        self.workload
    }

    /// Whether one more request can join. Where the plan has no room for it, another plan may, if its passes are then
    /// shorter for each request. Nobody's passes become longer by orders that another request tries.
    pub(super) fn may_join(&self, requests: usize, those: Workload, one: Workload) -> bool {
        let workload = those.with(&one);
        let (choices, budget) = self.worker.aim();
        let Some(current) = &self.worker.current else {
            return false;
        };
        // All KV caches of a batch have one format.
        if current.serving_kv_cache_format != Some(choices.settings.kv_cache_format) {
            return false;
        }
        let stands = current.as_it_stands();
        let Ok(working) = current.working(&workload) else {
            return false;
        };
        let working_bytes = working.total_bytes();
        // Another plan would need memory that is promised to a load.
        if self.worker.has_promised_budget() {
            return working_bytes <= current.plan.working.total_bytes();
        }
        if stands.weight_bytes() + working_bytes <= budget {
            return one.batch_requests <= CANVASES_PLAIN || self.has_free_rows(&workload);
        }
        let widest = current.plan.workload.widest(&workload);
        let choices = current.same_level(choices);
        let Ok(plan) = current.plan_with(choices, budget, widest, current.mlp_rows) else {
            return false;
        };
        // Nobody's passes wait for a conversion that another request needs.
        if lacks_converted_weights(&current.reader, &plan) {
            return false;
        }
        let planner = &current.planner;
        // Time divided by requests: a shared pass must cost each of them less than the passes do now.
        let each = |plan: &Plan, workload: &Workload, requests: usize| {
            let pass = plan.time(&planner.config.shape, workload, &planner.machine)?;
            Some(pass.total_s() / requests as f64)
        };
        let now = each(&stands, &self.workload, requests);
        let then = each(&plan, &workload, requests + 1);
        now.zip(then).is_some_and(|(now, then)| then < now)
    }

    /// Whether passes of this workload wait for the present weights, so that more rows cost nothing.
    pub(super) fn has_free_rows(&self, workload: &Workload) -> bool {
        let Some(current) = &self.worker.current else {
            return false;
        };
        let planner = &current.planner;
        let pass = (current.as_it_stands()).time(&planner.config.shape, workload, &planner.machine);
        pass.is_some_and(|pass| pass.waits())
    }

    /// Whether a switch is in progress.
    pub(super) fn is_switching(&self) -> bool {
        let current = self.worker.current.as_ref();
        current.is_some_and(|current| current.switch.is_some())
    }

    /// The state that decides whether one more may join: the weights version, and the budget.
    pub(super) fn join_state(&self) -> (u64, u64) {
        let current = self.worker.current.as_ref();
        let epoch = current.map_or(0, |current| current.weights.weights_version());
        (epoch, self.worker.aim().1)
    }

    /// Makes room for one more request, without anything giving way.
    pub(super) fn grow(&mut self, workload: Workload) -> Result<(), EngineError> {
        let told = self.notices.len();
        let (choices, budget) = self.worker.aim();
        let choices = self.worker.current_mut()?.same_level(choices);
        self.resize(workload)?;
        let widened = self.fit_plan(choices, budget).and_then(|()| self.reserve());
        // The request will be refused: notices about its plan are of no interest to anybody.
        if widened.is_err() {
            self.notices.truncate(told);
        }
        widened
    }

    /// Frees what requests that have left took, and lets weights come back if nobody waits for that memory.
    pub(super) fn shrink(&mut self, workload: Workload) -> Result<(), EngineError> {
        self.resize(workload)?;
        // The steps that gave way for a request that has left are available again.
        self.frugal_plans = 0;
        self.has_yielded = false;
        let (choices, budget) = self.worker.aim();
        let current = self.worker.current_mut()?;
        let before = current.mlp_rows;
        let weight_bytes = current.as_it_stands().weight_bytes();
        // Back up the ladder, as far as the present weights leave room.
        let most = current.planner.mlp_rows;
        for rows in mlp_rows_from(most).take_while(|&rows| rows >= before) {
            current.set_mlp_rows(rows);
            if weight_bytes + current.working(&workload)?.total_bytes() <= budget {
                break;
            }
        }
        self.reserve()?;
        // A waiting request will need the memory at once: moving weights back and forth would cost more than it gains.
        let is_free =
            self.worker.shared.queue.front().is_none() && !self.worker.has_promised_budget();
        if is_free && !self.is_switching() {
            let budget = budget.min(self.worker.current_mut()?.plan.budget_bytes);
            self.worker.regain(choices, budget);
        }
        Ok(())
    }

    /// Frees everything: no request is left.
    pub(super) fn rest(&mut self) {
        self.worker.ops.release();
        if let Some(current) = &mut self.worker.current {
            current.serving = None;
            current.serving_kv_cache_format = None;
        }
    }

    fn resize(&mut self, workload: Workload) -> Result<(), EngineError> {
        self.workload = workload;
        self.worker.current_mut()?.serving = Some(workload);
        Ok(())
    }

    /// Switches to another plan when the present one, or the one being switched to, has no room for the requests.
    fn fit_plan(&mut self, choices: ResolvedPlanSettings, budget: u64) -> Result<(), EngineError> {
        let current = self.worker.current_mut()?;
        let working = current.working(&self.workload)?.total_bytes();
        let has_room = |plan: &Plan| plan.weight_bytes() + working <= budget;
        let stands = current.as_it_stands();
        if has_room(&stands) && current.target().is_none_or(has_room) {
            return Ok(());
        }
        // If only other programs are in the way and nothing can give way to them, the request is tried with what the
        // GPU has left.
        let may_stay = stands.weight_bytes() + working <= self.worker.allowed_bytes();
        let plan = match self.plan_within(choices, budget) {
            Err(EngineError::Plan(PlanError::BudgetTooSmall { .. })) if may_stay => return Ok(()),
            plan => plan?,
        };
        // Conversion takes long, and nothing has been refused yet.
        if may_stay && lacks_converted_weights(&self.worker.current_mut()?.reader, &plan) {
            return Ok(());
        }
        let streamed = plan.streamed_bytes();
        self.worker.switch_now(plan, self.cancel)?;
        let more = streamed.saturating_sub(stands.streamed_bytes());
        if more > 0 {
            let what = match self.workload.batch_requests {
                1 => format!(
                    "a canvas of {} positions leaves",
                    self.workload.canvas_length
                ),
                canvases => format!("a batch of {canvases} canvases leaves"),
            };
            let more = units::bytes(more);
            self.notices.push(format!(
                "{what} less memory for weights: each pass streams {more} more"
            ));
        }
        Ok(())
    }

    fn reserve(&mut self) -> Result<(), EngineError> {
        let current = self.worker.current_mut()?;
        current.weights.ensure_stream()?;
        let bytes = current.working(&self.workload)?.activation_bytes;
        // What is reserved beside a GPU, too: it was for other requests.
        self.worker.ops.release();
        self.worker.ops.reserve(bytes)?;
        self.reserve_beside_gpu()
    }

    /// Reserves memory for the experts that the CPU computes beside a GPU, if it computes any and nothing is reserved yet.
    fn reserve_beside_gpu(&mut self) -> Result<(), EngineError> {
        let current = self.worker.current_mut()?;
        if !current.weights.has_cpu_experts() {
            return Ok(());
        }
        let bytes = current.working(&self.workload)?.host.activation_bytes;
        let host = self.worker.ops.host()?;
        match host.has_reserved() {
            true => Ok(()),
            false => Ok(host.reserve(bytes)?),
        }
    }

    /// Runs a pass that so many requests share, again while memory ran short and something could give way.
    pub(super) fn run<T>(
        &mut self,
        requests: usize,
        pass: SharedPass<'_, T>,
    ) -> Result<(T, PassCost), Interrupt> {
        self.worker.turn.pass_on();
        let started = Instant::now();
        // Taken before the switch's step below, whose streaming counts as this pass's.
        let before = self.weights().stream;
        self.worker.between_passes();
        // After the switch's step, which may have freed what others need.
        self.yield_to_others();
        // A step of a switch is not part of the pass's phases.
        self.worker.ops.start_phase_times();
        loop {
            self.worker.shared.heartbeat.begin(Activity::Passes);
            // A plan may have come into force by which the CPU computes experts.
            let reserved = self.reserve_beside_gpu();
            let begun = Instant::now();
            let Worker { current, ops, .. } = &mut *self.worker;
            let current = current.as_ref().ok_or(EngineError::NoModel)?;
            // Conversions beside the pass give way from here on.
            let computing = ops.device().compute();
            let done = (reserved.map_err(Interrupt::from))
                .and_then(|()| pass(ops, current))
                .map_err(|failed| as_refusal(failed, ops.ledger()));
            drop(computing);
            match done {
                Err(Interrupt::Failed(
                    error @ EngineError::Ops(
                        OpsError::OutOfMemory { .. } | OpsError::OutOfHostMemory { .. },
                    ),
                )) => {
                    // Made room or failed: the pass is repeated from its first layer, since it has committed nothing.
                    let made_room = self.free_memory(error);
                    if made_room.is_err() && self.cancel.load(Ordering::Relaxed) {
                        return Err(Interrupt::Cancelled);
                    }
                    made_room?;
                }
                Err(interrupt) => return Err(interrupt),
                Ok((result, rows)) => {
                    let took = begun.elapsed();
                    self.measure(took, rows);
                    let weights = self.weights();
                    let stream = weights.stream.since(&before);
                    let time = started.elapsed();
                    // On a GPU this reads events, so the pass has completed by now.
                    let times = self.worker.ops.take_phase_times();
                    let waited = times.and_then(|times| times.waited);
                    let waited = waited.unwrap_or(stream.waited);
                    self.learn(rows, took.saturating_sub(waited), &stream);
                    let cost = PassCost {
                        batch_requests: requests,
                        time,
                        waited,
                        phases: times
                            .map(|times| PassPhases::of(times, time, waited, stream.copied)),
                        streamed_bytes: stream.bytes,
                        experts: stream.experts,
                        device_bytes: self.worker.ops.ledger().used_bytes(),
                        weights,
                    };
                    return Ok((result, cost));
                }
            }
        }
    }

    /// Compares a pass with what the rates predict for one like it.
    fn learn(&self, rows: usize, computed: Duration, stream: &StreamStats) {
        let Worker {
            current: Some(current),
            loading: None,
            totals: measured,
            ..
        } = &*self.worker
        else {
            // A load beside the pass takes its share of the cores, so the time says nothing.
            return;
        };
        let planner = &current.planner;
        let shape = &planner.config.shape;
        // The first pass finds caches empty, and predictions for autoregressive models are for one row a request.
        let is_usual = !shape.causal || rows == self.workload.batch_requests;
        if current.switch.is_some() || measured.passes < 2 || !is_usual || !self.learns {
            return;
        }
        let ExpertTouches {
            visits,
            touched,
            touched_again,
        } = stream.touches;
        if let Some(experts) = shape.mixture()
            && visits > 0
        {
            let touched_each = touched as f64 / visits as f64;
            let turnover = 1.0 - touched_again as f64 / touched as f64;
            let learned = &planner.machine.corrections;
            learned.see_experts(shape, experts, rows, touched_each, turnover);
        }
        let workload = self.workload.with_rows(rows);
        // Compared with the rates alone: with the corrections applied, they would correct themselves.
        let machine = planner.machine.by_rates();
        let stands = current.as_it_stands();
        let Some(predicted) = stands.time(shape, &workload, &machine) else {
            return;
        };
        let learned = &planner.machine.corrections;
        let kind = PassKind {
            shape,
            level: stands.level,
            rows,
            has_cpu_experts: stands.cpu_experts.is_some(),
        };
        learned.see_compute(kind, computed.as_secs_f64(), predicted.busy_s());
        let streamed = stands.streamed_bytes();
        if streamed > 0 && stream.bytes > 0 {
            // Compared with the prediction for the bytes that this pass has used.
            let share = stream.bytes as f64 / streamed as f64;
            learned.see_reading(stream.copied.as_secs_f64(), predicted.reader_s * share);
        }
    }

    fn measure(&mut self, took: Duration, rows: usize) {
        let Some(current) = &self.worker.current else {
            return;
        };
        let stream = current.weights.stream_stats();
        let measured = &mut self.worker.totals;
        measured.passes += 1;
        measured.last_pass_time = took;
        measured.pass_time += measured.last_pass_time;
        measured.last_rows = rows;
        measured.waited = stream.waited;
        measured.streamed_bytes = stream.bytes;
        measured.experts = stream.experts;
        measured.peak_bytes = self.worker.shared.ledger.peak_since(PeakMark::Plan);
        self.worker.tell_state();
    }

    fn weights(&self) -> WeightsState {
        let Some(current) = &self.worker.current else {
            return WeightsState::default();
        };
        WeightsState {
            weights_version: current.weights.weights_version(),
            is_lossless: current.weights.is_lossless()
                && !current.weights.has_cpu_experts()
                && !self.rounds_rows(current),
            switch: current.switch.as_ref().map(|switch| {
                let SwitchProgress {
                    done_steps: done,
                    total_steps: steps,
                } = switch.state();
                (done, steps)
            }),
            stream: current.weights.stream_stats(),
        }
    }

    /// Whether rows are rounded for the matmul with some of the weights.
    fn rounds_rows(&self, current: &CurrentModel) -> bool {
        let ops = &self.worker.ops;
        let mut storages = current.weights.storages().into_iter();
        storages.any(|storage| ops.rounds_rows(storage.format()))
    }

    /// Notices for the users since the last call.
    pub(super) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }
}

impl Worker {
    /// Between two passes memory goes to other engines or comes back, and a change of the settings may begin, or go a step
    /// further.
    pub(super) fn between_passes(&mut self) {
        while let Some(command) = self.shared.queue.take_memory_command() {
            self.do_memory_command(command);
        }
        self.reclaim_memory();
        // One: however fast changes come, each leaves time for a pass.
        if let Some(apply) = self.shared.queue.take_apply() {
            self.shared.heartbeat.begin(Activity::Change);
            self.begin_switch(apply);
        }
        self.advance_switch();
    }
}
