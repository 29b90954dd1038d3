//! The steps of a transition, one at a time between passes.

use std::{collections::VecDeque, sync::Arc};

use super::super::SwitchState;
use crate::{
    error::EngineError,
    ops::Ops,
    plan::{Plan, Step},
    residency::{Preparation, Residency},
};

/// What is left to do between passes.
#[derive(Default)]
pub(super) struct Steps {
    left: VecDeque<Step>,
    done: usize,
    /// The next step's unit, being made ready.
    preparing: Option<Preparation>,
}

impl Steps {
    pub(super) fn new(steps: Vec<Step>) -> Self {
        Self {
            left: steps.into(),
            ..Self::default()
        }
    }

    /// How far they are.
    pub(super) fn state(&self) -> SwitchState {
        SwitchState {
            done: self.done,
            steps: self.done + self.left.len(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Makes the next step if it is ready, or with `wait` as soon as it is; whether there was one.
    pub(super) fn step(
        &mut self,
        target: &Plan,
        weights: &mut Residency,
        ops: &Arc<Ops>,
        wait: bool,
    ) -> Result<bool, EngineError> {
        let units = &target.units;
        match self.left.front() {
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
                weights.settle(evicted, brought, units, target.slots, ops)?;
            }
        }
        self.left.pop_front();
        self.done += 1;
        Ok(true)
    }
}
