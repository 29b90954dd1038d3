//! Switching from one plan to another while requests run: what must be converted for streaming is converted first,
//! beside the passes; then one step after another is made between them. What can be prepared beside the present weights
//! is, while passes run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sluice_checkpoint::CheckpointError;
use sluice_plan::{Plan, PlanError, transition};
use sluice_shared::{
    level::{KvCacheFormat, Level},
    options::ResolvedPlanSettings,
};

use super::{
    ApplyEvent, ApplyReport, CommandStage, PlanSettings,
    current_model::CurrentModel,
    state::SwitchProgress,
    weight_cache::lacks_converted_weights,
    weight_switch::{SwitchRequest, SwitchStage, SwitchSteps, WeightSwitch},
    worker::Worker,
};
use crate::{error::EngineError, heartbeat::Activity, schedule::ApplyCommand};

/// How often an idle engine checks whether there is something better to do than to wait for a conversion.
const CONVERSION_PATIENCE: Duration = Duration::from_millis(50);

impl Worker {
    /// Makes a plan for other settings and begins to switch to it.
    pub(super) fn begin_switch(&mut self, apply: ApplyCommand) {
        let ApplyCommand {
            change,
            merged,
            mut report,
        } = apply;
        let notices = self.look_at_memory_now().notices;
        (notices.into_iter()).for_each(|notice| report(ApplyEvent::Notice(notice)));
        let before = self.shared.state.settings();
        let settle = |settings: PlanSettings| match &self.current {
            Some(current) => current.planner.mixes.settle(settings),
            None => settings,
        };
        let mut settings = settle(before.with(&merged));
        let Some(current) = &self.current else {
            // Nothing to switch: the next load follows the settings.
            self.shared.state.set_settings(settings);
            self.update_limit();
            report(ApplyEvent::Finished(Err(EngineError::NoModel)));
            return;
        };
        // Only these levels may use a compressed copy, so only for them the folder is searched before planning.
        if matches!(settings.level, Level::Mild | Level::Auto) {
            let (checkpoint, planner) = (current.reader.checkpoint(), &current.planner);
            let notice = &mut |notice| report(ApplyEvent::Notice(notice));
            if let Err(error) = self
                .weight_cache
                .look_for_compressed(checkpoint, planner, notice)
            {
                return report(ApplyEvent::Finished(Err(error)));
            }
        }
        let plan = |settings: &PlanSettings| {
            let budget = self.shared.state.budget_bytes(settings);
            current.plan(settings.resolved(), budget, current.workload())
        };
        let mut planned = plan(&settings);
        if planned.is_err() && merged != change {
            // What another asked for must not keep this one from what it asked for.
            settings = settle(before.with(&change));
            planned = plan(&settings);
        }
        let plan = match planned {
            Ok(plan) => Arc::new(plan),
            Err(error) => return report(ApplyEvent::Finished(Err(error))),
        };
        // Only after a plan exists: a change that is impossible leaves the one in progress alone.
        self.abandon_switch(EngineError::Superseded);
        if let Err(error) = self.start_switch(plan, Some((settings, report))) {
            self.fail_switch(error);
        }
    }

    /// Begins to switch to a plan. When that fails and nobody asked for it, everything is as before; whoever asked is
    /// still to be told, by [`Worker::fail_switch`].
    pub(super) fn start_switch(
        &mut self,
        target: Arc<Plan>,
        request: Option<SwitchRequest>,
    ) -> Result<(), EngineError> {
        let Some(current) = &mut self.current else {
            return Err(EngineError::NoModel);
        };
        let is_asked = request.is_some();
        let (asked, postponed) = match (request, current.switch.take()) {
            // A conversion needs the old plan to stay until it is complete, so it is postponed.
            (None, Some(before)) if before.is_converting() => (None, Some(Box::new(before))),
            // A switch because memory ran short continues towards the requested level.
            (None, Some(before)) => (before.request, before.postponed),
            (asked, _) => (asked, None),
        };
        current.switch = Some(WeightSwitch {
            target: Arc::clone(&target),
            stage: SwitchStage::Stepping(SwitchSteps::default()),
            request: asked,
            postponed,
        });
        let started = self.start_stage(&target);
        if started.is_err() && !is_asked {
            self.retract_switch();
        }
        started
    }

    /// Begins to convert or, where nothing needs conversion, to step.
    fn start_stage(&mut self, target: &Arc<Plan>) -> Result<(), EngineError> {
        let mut notices = Vec::new();
        let is_asked = self.switch().is_some_and(|switch| switch.request.is_some());
        let notice = &mut |notice: String| notices.push(notice);
        let conversion = self.prepare_weights(target, is_asked, notice)?;
        let Some(current) = &mut self.current else {
            return Err(EngineError::NoModel);
        };
        let stands = current.as_it_stands();
        let steps = transition(&stands, target).len();
        let time = self
            .weight_cache
            .estimate_switch(&current.planner, &stands, target);
        let Some(switch) = &mut current.switch else {
            return Ok(());
        };
        for notice in notices {
            switch.report(ApplyEvent::Notice(notice));
        }
        switch.report(ApplyEvent::Planned {
            plan: Arc::clone(target),
            steps,
            estimate: time,
        });
        match conversion {
            Some(conversion) => {
                switch.stage = SwitchStage::Converting(conversion);
                self.tell_state();
                Ok(())
            }
            None => self.start_steps(),
        }
    }

    fn start_steps(&mut self) -> Result<(), EngineError> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        let stands = current.as_it_stands();
        let Some(switch) = &current.switch else {
            return Ok(());
        };
        // A larger request may have come during the conversion, or one with a larger KV cache.
        let workload = match current.serving {
            Some(serving) => switch.target.workload.widest(&serving),
            None => switch.target.workload,
        };
        let held_bytes = current.held_bytes()?;
        let is_asked = switch.request.is_some();
        let is_wider =
            workload != switch.target.workload || held_bytes > switch.target.working.kv_cache_bytes;
        // Compressed sizes are exact by now; the plan was made with estimates.
        let target = match switch.target.is_estimate() || is_asked && is_wider {
            true => {
                let settings = match &switch.request {
                    Some((settings, _)) => *settings,
                    None => self.shared.state.settings(),
                };
                let choices = ResolvedPlanSettings {
                    level: switch.target.level,
                    ..settings.resolved()
                };
                let plan = current.plan(choices, switch.target.budget_bytes, workload)?;
                if plan.is_estimate() {
                    return Err(PlanError::NotCompressed { level: plan.level }.into());
                }
                Arc::new(plan)
            }
            false => Arc::clone(&switch.target),
        };
        let Some(switch) = &mut current.switch else {
            return Ok(());
        };
        switch.target = Arc::clone(&target);
        if lacks_converted_weights(&current.reader, &target) {
            // A larger request came during a conversion whose result was not to be streamed, and was not kept.
            return self.start_stage(&target);
        }
        switch.stage = SwitchStage::Stepping(SwitchSteps::new(transition(&stands, &switch.target)));
        // The transition counts what plans take, and nothing beside.
        current.prefix_cache.clear();
        let ledger = &self.shared.ledger;
        // Both plans' bytes are held during the steps; `complete_switch` sets the final limit.
        ledger.set_limit(ledger.limit().max(switch.target.budget_bytes));
        // Refused where other engines have taken some of the memory since the plan was made.
        ledger.claim(self.claim_bytes())?;
        let cancel = Arc::clone(&self.cancel);
        self.advance(false, &cancel)
    }

    /// Makes the next step if it can be made at once.
    pub(super) fn advance_switch(&mut self) {
        self.try_advance(false);
    }

    /// Makes the next step and waits for it, since nothing else is to be done. Waits for a conversion only a moment.
    pub(super) fn advance_switch_idle(&mut self) {
        self.turn.pass_on();
        self.try_advance(true);
    }

    fn try_advance(&mut self, wait: bool) {
        // A running request may be cancelled in the middle of a long step.
        let cancel = Arc::clone(&self.cancel);
        if let Err(error) = self.advance(wait, &cancel) {
            self.fail_switch(error);
        }
    }

    /// Switches to a plan at once, because a request needs it. A requested switch that was in progress continues
    /// afterwards.
    pub(super) fn switch_now(
        &mut self,
        plan: Plan,
        cancel: &AtomicBool,
    ) -> Result<(), EngineError> {
        self.start_switch(Arc::new(plan), None)?;
        let finished = self.finish_switch(cancel);
        if finished.is_err() {
            self.retract_switch();
        }
        finished
    }

    /// Completes the switch in progress. When cancelled, returns [`EngineError::Stopped`] and leaves it where it
    /// stands.
    pub(super) fn finish_switch(&mut self, cancel: &AtomicBool) -> Result<(), EngineError> {
        // The switch is over when the postponed one, if there was one, has taken its place.
        let is_postponed = |switch: &WeightSwitch| switch.postponed.is_some();
        let had_postponed = self.switch().is_some_and(is_postponed);
        while self
            .switch()
            .is_some_and(|switch| is_postponed(switch) == had_postponed)
        {
            if cancel.load(Ordering::Relaxed) {
                return Err(EngineError::Stopped);
            }
            self.turn.pass_on();
            self.advance(true, cancel)?;
        }
        Ok(())
    }

    fn switch(&self) -> Option<&WeightSwitch> {
        self.current.as_ref()?.switch.as_ref()
    }

    fn switch_mut(&mut self) -> Option<&mut WeightSwitch> {
        self.current.as_mut()?.switch.as_mut()
    }

    fn advance(&mut self, wait: bool, cancel: &AtomicBool) -> Result<(), EngineError> {
        self.shared.heartbeat.begin(Activity::Change);
        // Other engines' passes go first: what is waited for here gets ready beside them.
        let wait = wait && !self.turn.is_wanted();
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        let Some(switch) = &mut current.switch else {
            return Ok(());
        };
        match &mut switch.stage {
            SwitchStage::Converting(conversion) => {
                let patience = match wait {
                    true => CONVERSION_PATIENCE,
                    false => Duration::ZERO,
                };
                let copy = conversion.poll(patience);
                let is_needed = conversion.is_needed();
                let (done_bytes, total_bytes) = conversion.progress();
                switch.report(ApplyEvent::Progress {
                    stage: CommandStage::Converting,
                    done: done_bytes,
                    total: total_bytes,
                });
                if let Some(copy) = copy {
                    let mut notices = Vec::new();
                    let notice = &mut |notice| notices.push(notice);
                    match copy {
                        // The copy was only to be kept: the switch can go on without it.
                        Ok(copy) => self.use_converted_weights(copy, notice),
                        Err(EngineError::Checkpoint(
                            error @ CheckpointError::WeightCache { .. },
                        )) if !is_needed => {
                            self.weight_cache.do_without(&error, notice);
                        }
                        Err(error) => return Err(error),
                    }
                    if let Some(switch) = self.switch_mut() {
                        let notices = notices.into_iter();
                        notices.for_each(|notice| switch.report(ApplyEvent::Notice(notice)));
                    }
                    self.start_steps()?;
                }
            }
            SwitchStage::Stepping(steps) => {
                let is_further = steps.step(
                    &switch.target,
                    &mut current.weights,
                    &self.ops,
                    wait,
                    cancel,
                )?;
                let is_over = steps.is_over();
                if is_further {
                    let SwitchProgress {
                        done_steps,
                        total_steps,
                    } = steps.state();
                    switch.report(ApplyEvent::Progress {
                        stage: CommandStage::Switching,
                        done: done_steps as u64,
                        total: total_steps as u64,
                    });
                }
                if is_over {
                    self.complete_switch();
                }
                self.tell_state();
            }
        }
        Ok(())
    }

    fn complete_switch(&mut self) {
        let Some(current) = &mut self.current else {
            return;
        };
        let Some(switch) = current.switch.take() else {
            return;
        };
        current.plan = Arc::clone(&switch.target);
        current.weights.set_cpu_experts(current.plan.cpu_experts);
        // Copies of the old level are closed only now: during the steps groups of both levels were streamed.
        current.release_converted_weights();
        current.stays_wide = false;
        let settings = self.shared.state.settings();
        let asked = switch
            .request
            .as_ref()
            .map_or(settings, |(asked, _)| *asked);
        let is_other = |serving: KvCacheFormat| {
            current.plan.working.kv_cache_format.is_some() && serving != asked.kv_cache_format
        };
        current.holds_others = current.serving_kv_cache_format.is_some_and(is_other);
        current.switch = switch.postponed.map(|postponed| *postponed);
        self.start_measuring();
        if let Some((settings, _)) = &switch.request {
            self.shared.state.set_settings(*settings);
        }
        self.update_limit();
        self.tell_state();
        // Reported last: whoever is told finds all of the above done.
        if let Some((_, mut report)) = switch.request {
            report(ApplyEvent::Finished(Ok(switch.target)));
        }
    }

    /// Stops the switch where it stands: the model is whole after every step.
    pub(super) fn abandon_switch(&mut self, reason: EngineError) {
        if let Some(mut report) = self.drop_switch() {
            report(ApplyEvent::Finished(Err(reason)));
        }
    }

    /// Ends the switch, and returns the report of whoever asked for it.
    fn drop_switch(&mut self) -> Option<ApplyReport> {
        let switch = self.stop_switch()?;
        self.tell_state();
        // The unfinished copy is deleted before anybody is told.
        drop(switch.stage);
        let postponed = switch.postponed.and_then(|postponed| postponed.request);
        switch.request.or(postponed).map(|(_, report)| report)
    }

    /// Returns to the settings in force, and reports the failure last, so that whoever is told sees the way back in
    /// progress.
    fn fail_switch(&mut self, error: EngineError) {
        let was_asked = self.switch().is_some_and(|switch| switch.request.is_some());
        let report = self.drop_switch();
        self.settle_failure();
        if was_asked {
            self.go_back();
        }
        if let Some(mut report) = report {
            report(ApplyEvent::Finished(Err(error)));
        }
    }

    fn go_back(&mut self) {
        let settings = self.shared.state.settings();
        let budget = self.shared.state.budget_bytes(&settings);
        let Some(current) = &self.current else {
            return;
        };
        let back = current.plan(settings.resolved(), budget, current.workload());
        // If even that is not possible, the weights stay as they are: of two plans, and whole.
        if let Ok(plan) = back
            && self.start_switch(Arc::new(plan), None).is_err()
        {
            self.settle_failure();
        }
    }

    /// Undoes a switch that a request needed and that was not possible; the request is told by its own error.
    fn retract_switch(&mut self) {
        if let Some(switch) = self.stop_switch() {
            drop(switch.stage);
            if let Some(current) = &mut self.current {
                current.switch = switch.postponed.map(|postponed| *postponed);
            }
            self.tell_state();
            if let Some((_, mut report)) = switch.request {
                report(ApplyEvent::Finished(Err(EngineError::Superseded)));
            }
        }
        self.settle_failure();
    }

    /// Takes the switch away, and makes the state that it has reached the plan in force.
    fn stop_switch(&mut self) -> Option<WeightSwitch> {
        let current = self.current.as_mut()?;
        let switch = current.switch.take()?;
        // Neither plan describes a half-made transition, so the present state becomes one.
        current.plan = Arc::new(current.as_it_stands());
        Some(switch)
    }

    fn settle_failure(&mut self) {
        self.update_limit();
        let is_broken = |current: &CurrentModel| !current.weights.is_whole();
        if self.current.as_ref().is_some_and(is_broken) {
            // A group could be read neither in its new form nor in its old one: the model cannot compute.
            self.abandon_switch(EngineError::NoModel);
            self.current = None;
            self.update_limit();
            self.shared.state.clear();
        }
    }
}
