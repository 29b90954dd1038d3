//! The steps of a transition, made one at a time between passes.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::AtomicBool},
};

use sluice_ops::{Ops, OpsError};
use sluice_plan::{Plan, TransitionStep};

use crate::{
    error::EngineError,
    residency::{GroupPreparation, Residency},
    runtime::state::SwitchProgress,
};

/// The steps that are left.
#[derive(Default)]
pub(in crate::runtime) struct SwitchSteps {
    left: VecDeque<TransitionStep>,
    done: usize,
    /// Preparations of the next steps' groups, in their order.
    preparing: VecDeque<GroupPreparation>,
}

/// Most groups that are prepared at once: enough for a step in every gap between passes, few enough to leave passes
/// their threads.
const PREPARATIONS_MAX: usize = 4;

impl SwitchSteps {
    pub(in crate::runtime) fn new(steps: Vec<TransitionStep>) -> Self {
        Self {
            left: steps.into(),
            ..Self::default()
        }
    }

    pub(in crate::runtime) fn state(&self) -> SwitchProgress {
        SwitchProgress {
            done_steps: self.done,
            total_steps: self.done + self.left.len(),
        }
    }

    pub(in crate::runtime) fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Makes the steps that are ready, with `wait` at least one; returns whether there were any. `cancel` postpones a
    /// step that takes long.
    pub(in crate::runtime) fn step(
        &mut self,
        target: &Plan,
        weights: &mut Residency,
        ops: &Arc<Ops>,
        mut wait: bool,
        cancel: &AtomicBool,
    ) -> Result<bool, EngineError> {
        let done_before = self.done;
        let mut swapped = Vec::new();
        self.prepare_ahead(target, weights, ops)?;
        // Preparations that begin here are for a later gap: passes must not wait for them.
        for _ in 0..self.preparing.len() {
            let Some(&TransitionStep::Bring {
                group: unit,
                beside: true,
            }) = self.left.front()
            else {
                break;
            };
            let Some(first) = self.preparing.front() else {
                break;
            };
            let loaded = match wait {
                true => Some(first.wait()),
                false => first.poll(),
            };
            let Some(loaded) = loaded else { break };
            self.preparing.pop_front();
            swapped.push((unit, loaded?));
            self.advance();
            // Only the first is waited for: more steps would delay the next pass.
            wait = false;
        }
        if !swapped.is_empty() {
            // All at once: a group that was streamed makes the stream restart, which is then done once.
            weights.swap(swapped, &target.groups)?;
            // The replaced groups have freed memory.
            self.prepare_ahead(target, weights, ops)?;
        } else if self.preparing.is_empty() {
            self.step_in_place(target, weights, ops, cancel)?;
        }
        Ok(self.done > done_before)
    }

    /// Begins to prepare the next groups, as far as memory allows.
    fn prepare_ahead(
        &mut self,
        target: &Plan,
        weights: &Residency,
        ops: &Arc<Ops>,
    ) -> Result<(), EngineError> {
        while self.preparing.len() < PREPARATIONS_MAX
            && let Some(&TransitionStep::Bring {
                group: unit,
                beside: true,
            }) = self.left.get(self.preparing.len())
        {
            match weights.prepare(&target.groups[unit], ops) {
                Ok(preparing) => self.preparing.push_back(preparing),
                // The transition only promises memory for one at a time; the steps in front free more first.
                Err(EngineError::Ops(OpsError::OutOfMemory { .. }))
                    if !self.preparing.is_empty() =>
                {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes the next step, if it cannot be prepared beside the passes.
    fn step_in_place(
        &mut self,
        target: &Plan,
        weights: &mut Residency,
        ops: &Arc<Ops>,
        cancel: &AtomicBool,
    ) -> Result<(), EngineError> {
        let groups = &target.groups;
        match self.left.front() {
            None | Some(TransitionStep::Bring { beside: true, .. }) => return Ok(()),
            Some(&TransitionStep::Bring { group: unit, .. }) => {
                weights.replace(unit, &groups[unit], ops)?;
            }
            Some(TransitionStep::Stream {
                evicted,
                staging: slots,
            }) => weights.stream(evicted, groups, *slots)?,
            Some(TransitionStep::Settle { evicted, brought }) => {
                // Cancelled between two groups: the step stays first in the list, and the next call continues it.
                if !weights.settle(evicted, brought, target, ops, cancel)? {
                    return Ok(());
                }
            }
        }
        self.advance();
        Ok(())
    }

    fn advance(&mut self) {
        self.left.pop_front();
        self.done += 1;
    }
}
