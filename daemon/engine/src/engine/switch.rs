//! Going from one plan to another while requests run: a step at a time between their passes. What can be made ready
//! beside the present weights is, while passes go on.

use std::{collections::VecDeque, sync::Arc};

use super::{ApplyEvent, ApplyReport, Settings, SwitchState, current::Current, worker::Worker};
use crate::{
    error::EngineError,
    ops::Ops,
    plan::{Plan, Step, transition},
    residency::{Preparation, Residency},
    schedule::Apply,
};

/// A transition under way.
pub(super) struct Switch {
    target: Arc<Plan>,
    steps: VecDeque<Step>,
    done: usize,
    /// The next step's unit, being made ready.
    preparing: Option<Preparation>,
    /// Who asked, with the settings that led here; nobody when memory ran short.
    asked: Option<(Settings, ApplyReport)>,
}

impl Switch {
    /// How far it is.
    pub(super) fn state(&self) -> SwitchState {
        SwitchState {
            done: self.done,
            steps: self.done + self.steps.len(),
        }
    }

    /// Makes the next step if it is ready, or with `wait` as soon as it is; whether there was one.
    fn step(
        &mut self,
        weights: &mut Residency,
        ops: &Arc<Ops>,
        wait: bool,
    ) -> Result<bool, EngineError> {
        let units = &self.target.units;
        match self.steps.front() {
            None => return Ok(false),
            Some(&Step::Bring { unit, beside: true }) => {
                let preparing = match self.preparing.take() {
                    Some(preparing) => preparing,
                    None => weights.prepare(&units[unit], ops)?,
                };
                let loaded = match wait {
                    true => Some(preparing.wait()),
                    false => preparing.poll(),
                };
                let Some(loaded) = loaded else {
                    self.preparing = Some(preparing);
                    return Ok(false);
                };
                weights.swap(unit, &units[unit], loaded?)?;
            }
            Some(&Step::Bring { unit, .. }) => weights.replace(unit, &units[unit], ops)?,
            Some(Step::Stream { evicted, slots }) => weights.stream(evicted, units, *slots)?,
            Some(Step::Settle { evicted, brought }) => {
                weights.settle(evicted, brought, units, self.target.slots, ops)?;
            }
        }
        self.steps.pop_front();
        self.done += 1;
        Ok(true)
    }
}

impl Worker {
    /// Plans for other settings and begins to go there.
    pub(super) fn begin_switch(&mut self, apply: Apply) {
        let Apply { change, mut report } = apply;
        let settings = self.shared.state.settings().with(&change);
        let Some(current) = &self.current else {
            // Nothing to change: the next load follows them.
            self.shared.state.set_settings(settings);
            self.update_limit();
            report(ApplyEvent::Finished(Err(EngineError::NoModel)));
            return;
        };
        let budget = self.shared.state.budget_bytes(&settings);
        let planned = current
            .planner
            .plan(settings.level, budget, current.plan.workload)
            .and_then(|plan| {
                plan.check_loadable()?;
                Ok(plan)
            });
        let plan = match planned {
            Ok(plan) => Arc::new(plan),
            Err(error) => return report(ApplyEvent::Finished(Err(error))),
        };
        self.abandon_switch(EngineError::Superseded);
        if let Err(error) = self.start_switch(plan, Some((settings, report))) {
            self.fail_switch(error);
        }
    }

    /// Begins to go to a plan. What must be converted for streaming is first.
    pub(super) fn start_switch(
        &mut self,
        target: Arc<Plan>,
        asked: Option<(Settings, ApplyReport)>,
    ) -> Result<(), EngineError> {
        let Some(current) = &mut self.current else {
            return Err(EngineError::NoModel);
        };
        // A change that comes from memory running short goes on towards the level that was asked for.
        let before = current.switch.take();
        let asked = asked.or(before.and_then(|switch| switch.asked));
        current.switch = Some(Switch {
            steps: VecDeque::new(),
            target: Arc::clone(&target),
            done: 0,
            preparing: None,
            asked,
        });
        self.prepare_streaming(&target)?;
        let Some(current) = &mut self.current else {
            return Err(EngineError::NoModel);
        };
        let steps = transition(&current.as_it_stands(), &target);
        let ledger = &self.shared.ledger;
        ledger.set_limit(ledger.limit().max(target.budget_bytes));
        if let Some(switch) = &mut current.switch {
            if let Some((_, report)) = &mut switch.asked {
                report(ApplyEvent::Planned {
                    plan: target,
                    steps: steps.len(),
                });
            }
            switch.steps = steps.into();
        }
        self.advance_switch();
        Ok(())
    }

    /// Goes a step further if it can be done at once.
    pub(super) fn advance_switch(&mut self) {
        self.try_advance(false);
    }

    /// Goes a step further, waiting for it: nothing else is to be done.
    pub(super) fn advance_switch_idle(&mut self) {
        self.try_advance(true);
    }

    fn try_advance(&mut self, wait: bool) {
        if let Err(error) = self.advance(wait) {
            self.fail_switch(error);
        }
    }

    /// Goes to the end of a transition.
    pub(super) fn finish_switch(&mut self) -> Result<(), EngineError> {
        while self
            .current
            .as_ref()
            .is_some_and(|current| current.switch.is_some())
        {
            self.advance(true)?;
        }
        Ok(())
    }

    fn advance(&mut self, wait: bool) -> Result<(), EngineError> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        let Some(switch) = &mut current.switch else {
            return Ok(());
        };
        if switch.step(&mut current.weights, &self.ops, wait)? {
            let SwitchState { done, steps } = switch.state();
            if let Some((_, report)) = &mut switch.asked {
                report(ApplyEvent::Progress { done, steps });
            }
        }
        if switch.steps.is_empty() {
            self.complete_switch();
        }
        self.tell_state();
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
        self.measured = super::Measured::default();
        if let Some((settings, _)) = &switch.asked {
            self.shared.state.set_settings(*settings);
        }
        self.update_limit();
        self.tell_state();
        // Last: whoever hears of it finds all of the above.
        if let Some((_, mut report)) = switch.asked {
            report(ApplyEvent::Finished(Ok(switch.target)));
        }
    }

    /// The transition under way stops where it stands: the model is whole after every step.
    pub(super) fn abandon_switch(&mut self, reason: EngineError) {
        let Some(current) = &mut self.current else {
            return;
        };
        let Some(switch) = current.switch.take() else {
            return;
        };
        current.plan = Arc::new(current.as_it_stands());
        self.tell_state();
        if let Some((_, mut report)) = switch.asked {
            report(ApplyEvent::Finished(Err(reason)));
        }
    }

    fn fail_switch(&mut self, error: EngineError) {
        self.abandon_switch(error);
        self.update_limit();
        let is_broken = |current: &Current| !current.weights.is_whole();
        if self.current.as_ref().is_some_and(is_broken) {
            // A unit could be read neither in its new form nor in its old one.
            self.current = None;
            self.shared.state.clear();
        }
    }
}
