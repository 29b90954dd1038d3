//! Measuring a level on the loaded model: its rows first, then those of the checkpoint's own weights, then both heads
//! side by side. The plan in force comes back at the end, whatever happens.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use sluice_shared::level::{Choices, Level};

use super::worker::Worker;
use crate::{
    decode::compare::{self, Masked},
    error::EngineError,
    event::{Compared, Event, Outcome},
    model::transformer::Interrupt,
    ops::Activation,
    plan::{Plan, UnitPlan},
    request::Compare,
    residency::{LoadOutcome, Part, Unit},
};

/// Memory that a comparison takes beside a plan: both sides' rows, a converted part of the head, and a second piece of
/// logits.
fn extra_bytes(plan: &Plan, canvases: &[Masked]) -> u64 {
    let rows: usize = canvases.iter().map(|masked| masked.wanted.len()).sum();
    let heads = || {
        let is_head = |unit: &&UnitPlan| matches!(unit.unit, Unit::Head(_));
        plan.units.iter().filter(is_head)
    };
    let width = heads().map(|unit| unit.tensors[0].width).max().unwrap_or(0);
    let head = heads().map(|unit| unit.tensors[0].numbers()).max();
    let both_rows = (2 * rows * width * size_of::<f32>()) as u64;
    // At most as many bytes as the source has, and it may be `f32`.
    both_rows + head.unwrap_or(0) * size_of::<f32>() as u64 + (8 << 20)
}

impl Worker {
    /// Runs the comparison. Between its passes no settings change.
    pub(super) fn compare(
        &mut self,
        request: &Compare,
        cancel: &AtomicBool,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Outcome, EngineError> {
        while self.current_mut()?.switch.is_some() {
            if cancel.load(Ordering::Relaxed) {
                return Ok(Outcome::Cancelled);
            }
            // Whoever asked for it is told how it ends.
            self.advance_switch_idle();
        }
        let before = self.current_mut()?.plan.clone();
        let result = self.compare_levels(request, &before, cancel, emit);
        // Even when cancelled.
        self.switch_now(Plan::clone(&before), &AtomicBool::new(false))?;
        match result {
            Ok(compared) => Ok(Outcome::Compared(compared)),
            Err(Interrupt::Cancelled) => Ok(Outcome::Cancelled),
            Err(Interrupt::Failed(_)) if cancel.load(Ordering::Relaxed) => Ok(Outcome::Cancelled),
            Err(Interrupt::Failed(error)) => Err(error),
        }
    }

    fn compare_levels(
        &mut self,
        request: &Compare,
        before: &Plan,
        cancel: &AtomicBool,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Compared, Interrupt> {
        let started = Instant::now();
        emit(Event::Started { blocks: 1 });
        let current = self.current_mut()?;
        let canvases = compare::canvases(request, current.vocabulary.mask_id());
        let level = request.level.unwrap_or(before.level);
        let total = 2 * canvases.len();
        let mut done = 0;
        let mut tell = || {
            done += 1;
            emit(Event::ScoreProgress { done, total });
        };
        let ours = self.rows_at(level, before, &canvases, cancel, &mut tell)?;
        let level = self.current_mut()?.plan.level;
        let head = self.current_mut()?.plan.units.clone();
        let theirs = self.rows_at(Level::Standard, before, &canvases, cancel, &mut tell)?;
        self.divergence(level, &canvases, &head, [&theirs, &ours], cancel)
            .map(|compared| Compared {
                elapsed: started.elapsed(),
                ..compared
            })
    }

    /// The rows of all canvases, one after another, at a level.
    fn rows_at(
        &mut self,
        level: Level,
        before: &Plan,
        canvases: &[Masked],
        cancel: &AtomicBool,
        tell: &mut dyn FnMut(),
    ) -> Result<Activation, Interrupt> {
        let choices = self.shared.state.settings().choices();
        let current = self.current_mut()?;
        let budget = before
            .budget_bytes
            .saturating_sub(extra_bytes(before, canvases));
        let choices = Choices { level, ..choices };
        let plan = current.planner.plan(choices, budget, before.workload)?;
        plan.check_loadable().map_err(EngineError::from)?;
        self.switch_now(plan, cancel)?;
        let Self { current, ops, .. } = self;
        let current = current.as_ref().ok_or(EngineError::NoModel)?;
        let count = canvases.iter().map(|masked| masked.wanted.len()).sum();
        let mut kept = ops.keep(count, current.planner.config.shape.width)?;
        let mut at = 0;
        for masked in canvases {
            let rows = compare::rows(masked, ops, &current.model, &current.weights, cancel)?;
            ops.set_rows(&mut kept, at, &rows)?;
            at += rows.len();
            tell();
        }
        Ok(kept)
    }

    /// Both heads side by side: the checkpoint's, which is in force, and that of the level's units.
    fn divergence(
        &mut self,
        level: Level,
        canvases: &[Masked],
        units: &[UnitPlan],
        rows: [&Activation; 2],
        cancel: &AtomicBool,
    ) -> Result<Compared, Interrupt> {
        let Self { current, ops, .. } = self;
        let current = current.as_ref().ok_or(EngineError::NoModel)?;
        let weights = &current.weights;
        let targets: Vec<u32> = canvases
            .iter()
            .flat_map(|masked| masked.targets.iter().copied())
            .collect();
        let mut comparison = ops.start_comparison(&targets, weights.head_part_rows())?;
        let heads = units
            .iter()
            .filter(|unit| matches!(unit.unit, Unit::Head(_)));
        for head in heads {
            if cancel.load(Ordering::Relaxed) {
                return Err(Interrupt::Cancelled);
            }
            let LoadOutcome::Done(converted) = weights.converted(head, ops.device(), cancel)?
            else {
                return Err(Interrupt::Cancelled);
            };
            let guard = weights.acquire(head.unit)?;
            let first = head.tensors[0].first_row;
            let parts = [
                &guard.weight(Part::Head),
                &converted.weight(head, Part::Head),
            ];
            ops.compare_heads(&mut comparison, rows, parts, first)?;
        }
        let divergences = comparison.divergences()?;
        let count = divergences.len() as f64;
        let mean =
            |value: &dyn Fn(usize) -> f64| (0..divergences.len()).map(value).sum::<f64>() / count;
        // The bound weighs every canvas alike, however many of its rows are read.
        let mut at = 0;
        let mut likelihood = [0.0; 2];
        for masked in canvases {
            let rows = &divergences[at..at + masked.wanted.len()];
            at += rows.len();
            for (side, sum) in likelihood.iter_mut().enumerate() {
                let all: f64 = rows.iter().map(|row| row.target[side]).sum();
                *sum += all / rows.len() as f64 / canvases.len() as f64;
            }
        }
        Ok(Compared {
            level,
            samples: canvases.len(),
            rows: divergences.len(),
            mean_kl: mean(&|row| divergences[row].kl),
            top_agreement: mean(&|row| f64::from(divergences[row].same_top)),
            source_bound: -likelihood[0],
            level_bound: -likelihood[1],
            elapsed: std::time::Duration::ZERO,
        })
    }
}
