//! Passes of those that run: between them the weights may change, and when memory runs short something gives way before a
//! request does.

use std::{
    iter,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use super::{SwitchState, current::Current, derive::lacks_copy, worker::Worker};
use crate::{
    decode::WeightsState,
    error::EngineError,
    event::{PassCost, Phases},
    ledger::Mark,
    model::transformer::{Interrupt, MLP_ROWS},
    ops::Ops,
    plan::{Plan, PlanError, Storage, Workload, rounded_bytes},
};
use sluice_shared::{
    level::{Choices, Level},
    units,
};

/// The least rows that go through an MLP together when memory is short.
pub(super) const MLP_ROWS_MIN: usize = 64;

/// Rows that go through an MLP together, from so many on down the ladder that gives way when memory is short: each decodes
/// weights that are decoded on a card several times as often as the one before.
fn mlp_rows_from(rows: usize) -> impl Iterator<Item = usize> {
    let fewer = |&rows: &usize| {
        [MLP_ROWS, MLP_ROWS_MIN]
            .into_iter()
            .find(|&less| less < rows)
    };
    iter::successors(Some(rows), fewer)
}

/// Canvases of a request that tries no other orders: two with guidance.
const CANVASES_PLAIN: usize = 2;
/// More frugal plans that are tried for a request.
const FRUGAL_PLANS_MAX: usize = 4;

/// A pass, which tells how many rows it had.
type SharedPass<'a, T> = &'a mut dyn FnMut(&Ops, &Current) -> Result<(T, usize), Interrupt>;

/// The loaded model, serving requests.
pub(super) struct Served<'a> {
    pub(super) worker: &'a mut Worker,
    /// Set when nobody wants any of them any more.
    pub(super) cancel: &'a AtomicBool,
    /// All that share a pass.
    workload: Workload,
    notices: Vec<String>,
    frugal_plans: usize,
    /// Nothing is left that could give way to other programs.
    has_yielded: bool,
}

impl<'a> Served<'a> {
    /// Nothing is made room for yet.
    pub(super) fn new(worker: &'a mut Worker, workload: Workload, cancel: &'a AtomicBool) -> Self {
        Self {
            worker,
            cancel,
            workload,
            notices: Vec::new(),
            frugal_plans: 0,
            has_yielded: false,
        }
    }

    /// Makes room for the first request's activations.
    pub(super) fn start(&mut self) -> Result<(), EngineError> {
        let kv = self.worker.shared.state.settings().kv;
        let found = self.worker.look_at_memory_now();
        self.notices.extend(found.notices);
        let current = self.worker.current_mut()?;
        current.set_mlp_rows(current.planner.mlp_rows);
        current.serving_kv = Some(kv);
        self.resize(self.workload)?;
        let (choices, budget) = self.worker.aim();
        self.fit_plan(choices, budget)?;
        match self.reserve() {
            Ok(()) => Ok(()),
            Err(error) => self.make_room(error),
        }
    }

    /// What all take that share a pass.
    pub(super) fn workload(&self) -> Workload {
        self.workload
    }

    /// Whether one more request can join those that there are. Where the plan has no room for that, another one may, if its
    /// passes are then shorter for each of them. Nobody's passes become longer by orders that another one tries.
    pub(super) fn may_join(&self, requests: usize, those: Workload, one: Workload) -> bool {
        let workload = those.with(&one);
        let (choices, budget) = self.worker.aim();
        let Some(current) = &self.worker.current else {
            return false;
        };
        // Keys and values are kept alike for all.
        if current.serving_kv != Some(choices.kv) {
            return false;
        }
        let stands = current.as_it_stands();
        let Ok(working) = current.working(&workload) else {
            return false;
        };
        let working_bytes = working.total_bytes();
        if self.worker.has_promised_room() {
            return working_bytes <= current.plan.working.total_bytes();
        }
        if stands.weight_bytes() + working_bytes <= budget {
            return one.requests <= CANVASES_PLAIN || self.has_free_rows(&workload);
        }
        let widest = current.plan.workload.widest(&workload);
        let choices = current.same_level(choices);
        let Ok(plan) = current.plan_with(choices, budget, widest, current.mlp_rows) else {
            return false;
        };
        // Nobody's passes wait for a conversion that another one needs.
        if lacks_copy(&current.reader, &plan) {
            return false;
        }
        let planner = &current.planner;
        let each = |plan: &Plan, workload: &Workload, requests: usize| {
            let pass = plan.time(&planner.config.shape, workload, &planner.machine)?;
            Some(pass.total_s() / requests as f64)
        };
        let now = each(&stands, &self.workload, requests);
        let then = each(&plan, &workload, requests + 1);
        now.zip(then).is_some_and(|(now, then)| then < now)
    }

    /// Whether passes of this workload wait for weights, with these as they stand, so that more rows cost nothing.
    pub(super) fn has_free_rows(&self, workload: &Workload) -> bool {
        let Some(current) = &self.worker.current else {
            return false;
        };
        let planner = &current.planner;
        let pass = (current.as_it_stands()).time(&planner.config.shape, workload, &planner.machine);
        pass.is_some_and(|pass| pass.waits())
    }

    /// Whether a change of the weights is under way.
    pub(super) fn is_switching(&self) -> bool {
        let current = self.worker.current.as_ref();
        current.is_some_and(|current| current.switch.is_some())
    }

    /// What decides whether one more may join: the state of the weights, and the budget.
    pub(super) fn room(&self) -> (u64, u64) {
        let current = self.worker.current.as_ref();
        let epoch = current.map_or(0, |current| current.weights.epoch());
        (epoch, self.worker.aim().1)
    }

    /// Makes room for one more, without giving way.
    pub(super) fn widen(&mut self, workload: Workload) -> Result<(), EngineError> {
        let told = self.notices.len();
        let (choices, budget) = self.worker.aim();
        let choices = self.worker.current_mut()?.same_level(choices);
        self.resize(workload)?;
        let widened = self.fit_plan(choices, budget).and_then(|()| self.reserve());
        if widened.is_err() {
            self.notices.truncate(told);
        }
        widened
    }

    /// Gives back what those take no more that have left, also to the weights where nobody waits for that room.
    pub(super) fn shrink(&mut self, workload: Workload) -> Result<(), EngineError> {
        self.resize(workload)?;
        // What gave way for one that has left needs to no more.
        self.frugal_plans = 0;
        self.has_yielded = false;
        let (choices, budget) = self.worker.aim();
        let current = self.worker.current_mut()?;
        let before = current.mlp_rows;
        let weight_bytes = current.as_it_stands().weight_bytes();
        let most = current.planner.mlp_rows;
        for rows in mlp_rows_from(most).take_while(|&rows| rows >= before) {
            current.set_mlp_rows(rows);
            if weight_bytes + current.working(&workload)?.total_bytes() <= budget {
                break;
            }
        }
        self.reserve()?;
        let is_free =
            self.worker.shared.queue.front().is_none() && !self.worker.has_promised_room();
        if is_free && !self.is_switching() {
            let budget = budget.min(self.worker.current_mut()?.plan.budget_bytes);
            self.worker.regain(choices, budget);
        }
        Ok(())
    }

    /// Gives all back: nobody is left.
    pub(super) fn rest(&mut self) {
        self.worker.ops.release();
        if let Some(current) = &mut self.worker.current {
            current.serving = None;
            current.serving_kv = None;
        }
    }

    fn resize(&mut self, workload: Workload) -> Result<(), EngineError> {
        self.workload = workload;
        self.worker.current_mut()?.serving = Some(workload);
        Ok(())
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
    fn fit_plan(&mut self, choices: Choices, budget: u64) -> Result<(), EngineError> {
        let current = self.worker.current_mut()?;
        let working = current.working(&self.workload)?.total_bytes();
        let has_room = |plan: &Plan| plan.weight_bytes() + working <= budget;
        let stands = current.as_it_stands();
        if has_room(&stands) && current.target().is_none_or(has_room) {
            return Ok(());
        }
        // Only other programs are in the way: where nothing can give way to them, it is tried with what the card has left.
        let may_stay = stands.weight_bytes() + working <= self.worker.allowed_bytes();
        let plan = match self.plan_within(choices, budget) {
            Err(EngineError::Plan(PlanError::BudgetTooSmall { .. })) if may_stay => return Ok(()),
            plan => plan?,
        };
        if may_stay && lacks_copy(&self.worker.current_mut()?.reader, &plan) {
            return Ok(());
        }
        let streamed = plan.streamed_bytes();
        self.worker.switch_now(plan, self.cancel)?;
        let more = streamed.saturating_sub(stands.streamed_bytes());
        if more > 0 {
            let what = match self.workload.requests {
                1 => format!("a canvas of {} leaves", self.workload.canvas),
                canvases => format!("{canvases} canvases that share a pass leave"),
            };
            let more = units::bytes(more);
            self.notices.push(format!(
                "{what} less room for weights: {more} more are streamed in each pass"
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
        for rows in mlp_rows_from(current.mlp_rows) {
            for level in [choices.level, Level::Standard] {
                let is_same = level == Level::Standard;
                let choices = Choices { level, ..choices };
                let planned = current.plan_with(choices, budget, workload, rows);
                match planned {
                    Ok(plan) => {
                        if rows < current.mlp_rows {
                            current.set_mlp_rows(rows);
                            self.notices.push(fewer_rows(rows));
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
        if self.give_way_under_this_plan()? {
            return Ok(());
        }
        if self.frugal_plans == FRUGAL_PLANS_MAX {
            return Err(refused);
        }
        self.frugal_plans += 1;
        let (_, budget) = self.worker.aim();
        let peak = self.worker.current_mut()?.as_it_stands().peak_bytes();
        match self.frugal_plan(budget.min(peak.saturating_sub(needed_bytes)))? {
            Some(plan) => self.stream_more(plan),
            // The figures of what was refused say more than those of a plan nobody asked for.
            None => Err(refused),
        }
    }

    /// What gives way without another plan; whether there was anything.
    fn give_way_under_this_plan(&mut self) -> Result<bool, EngineError> {
        let current = self.worker.current_mut()?;
        if !current.kept.is_empty() {
            current.kept.remove(0);
            return Ok(true);
        }
        // A turn of more rows than a pass has takes no more than one of those.
        let all = self.workload.rows() + self.workload.checks();
        let mut fewer = mlp_rows_from(current.mlp_rows).skip(1);
        if let Some(rows) = fewer.find(|&rows| rows < all || rows == MLP_ROWS_MIN) {
            current.set_mlp_rows(rows);
            self.notices.push(fewer_rows(rows));
            return Ok(true);
        }
        Ok(false)
    }

    /// A plan within this budget, if there is one.
    fn frugal_plan(&mut self, budget: u64) -> Result<Option<Plan>, EngineError> {
        let (choices, _) = self.worker.aim();
        match self.plan_within(choices, budget) {
            Ok(plan) => Ok(Some(plan)),
            Err(EngineError::Plan(PlanError::BudgetTooSmall { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn stream_more(&mut self, plan: Plan) -> Result<(), EngineError> {
        let streamed = units::bytes(plan.streamed_bytes());
        self.worker.switch_now(plan, self.cancel)?;
        self.notices.push(format!(
            "memory is short: {streamed} of weights are streamed in each pass"
        ));
        Ok(())
    }

    /// Looks, between two passes, whether other programs leave the card too little memory, and gives way to them before
    /// something of ours is refused. What can't give way stays: no request fails for it, nor has it fewer rungs left for what
    /// is really refused.
    fn yield_to_others(&mut self) {
        let mut found = self.worker.look_at_memory();
        loop {
            self.notices.append(&mut found.notices);
            // What they leave when they go gives way again when they come back.
            self.has_yielded &= !found.is_relieved;
            if found.missing_bytes == 0 || self.has_yielded {
                return;
            }
            match self.yield_once(found.missing_bytes) {
                Ok(true) => found = self.worker.look_at_memory_now(),
                Ok(false) => return,
                // The weights are as they were, or whole between two plans. If passes can't go on with them, the next one is
                // told why.
                Err(_) => {
                    self.has_yielded = true;
                    return;
                }
            }
        }
    }

    /// One thing gives way to others; whether to look at once if that was enough.
    fn yield_once(&mut self, missing_bytes: u64) -> Result<bool, EngineError> {
        let rows = self.worker.current_mut()?.mlp_rows;
        if self.give_way_under_this_plan()? {
            if self.worker.current_mut()?.mlp_rows < rows
                && let Err(refused) = self.reserve()
            {
                // Others were faster: now something is really refused.
                self.make_room(refused)?;
            }
            return Ok(true);
        }
        let allowed = self.worker.allowed_bytes();
        let current = self.worker.current_mut()?;
        // What the driver rounds up is held besides, and a plan's budget has room for it: no more gives way than is missing.
        let held = current.as_it_stands().peak_bytes() + rounded_bytes(&current.planner.machine);
        let plan = self.frugal_plan(allowed.min(held.saturating_sub(missing_bytes)))?;
        let reader = &self.worker.current_mut()?.reader;
        // Nobody waits for a conversion of the weights where nothing was refused.
        match plan.filter(|plan| !lacks_copy(reader, plan)) {
            // A plan at each look: what others take step by step may change many times while a request runs.
            Some(plan) => self.stream_more(plan)?,
            None => self.has_yielded = true,
        }
        Ok(false)
    }

    /// Runs a pass that so many requests share, again where memory ran short and something could give way. It tells how many
    /// rows it had.
    pub(super) fn run<T>(
        &mut self,
        requests: usize,
        pass: SharedPass<'_, T>,
    ) -> Result<(T, PassCost), Interrupt> {
        let started = Instant::now();
        let before = self.weights().stream;
        self.worker.between_passes();
        self.yield_to_others();
        // What a change of the weights measures is no part of the pass.
        self.worker.ops.start_times();
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
                Ok((result, rows)) => {
                    self.measure(begun, rows);
                    let weights = self.weights();
                    let stream = weights.stream.since(&before);
                    let time = started.elapsed();
                    let times = self.worker.ops.take_times();
                    let waited = times.and_then(|times| times.waited);
                    let waited = waited.unwrap_or(stream.waited);
                    let cost = PassCost {
                        requests,
                        time,
                        waited,
                        phases: times.map(|times| Phases::of(times, time, waited, stream.copied)),
                        streamed_bytes: stream.bytes,
                        device_bytes: self.worker.ops.ledger().used_bytes(),
                        weights,
                    };
                    return Ok((result, cost));
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

    fn weights(&self) -> WeightsState {
        let Some(current) = &self.worker.current else {
            return WeightsState::default();
        };
        WeightsState {
            epoch: current.weights.epoch(),
            is_lossless: current.weights.is_lossless() && !self.rounds_rows(current),
            switch: current.switch.as_ref().map(|switch| {
                let SwitchState { done, steps } = switch.state();
                (done, steps)
            }),
            stream: current.weights.stream_stats(),
        }
    }

    /// Whether rows are rounded before they are multiplied with some of the weights.
    fn rounds_rows(&self, current: &Current) -> bool {
        let ops = &self.worker.ops;
        let mut storages = current.weights.storages().into_iter();
        storages.any(|storage| matches!(storage, Storage::Plain(format) if ops.rounds_rows(format)))
    }

    /// What the users should hear of, since it was last asked.
    pub(super) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }
}

fn fewer_rows(rows: usize) -> String {
    format!("memory is short: {rows} rows at once go through an MLP")
}

impl Worker {
    pub(super) fn current_mut(&mut self) -> Result<&mut Current, EngineError> {
        self.current.as_mut().ok_or(EngineError::NoModel)
    }

    /// What may happen between two passes: a change of the settings begins, or goes a step further.
    fn between_passes(&mut self) {
        while let Some(apply) = self.shared.queue.take_apply() {
            self.begin_switch(apply);
        }
        self.advance_switch();
    }
}
