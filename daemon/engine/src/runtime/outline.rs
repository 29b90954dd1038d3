//! Plans for models that are not loaded: a published shape, or a checkpoint's headers.

use std::sync::mpsc;

use sluice_checkpoint::{Checkpoint, Source, family::PublishedShape};
use sluice_formats::Format;
use sluice_machine::DiskBandwidth;
use sluice_ops::{Ops, device::Device, ledger::Ledger, measure::measure};
use sluice_plan::{Machine, Plan, PlanError, Workload, sharing::Fit};
use sluice_shared::options::{PlanSettings, ResolvedPlanSettings};
use sluice_weights::{SourceTensor, compression::with_assumed_compression};

use super::{Engine, planner::Planner};
use crate::error::EngineError;

/// A model as plans see it: everything but its weights.
#[derive(Debug)]
pub struct ModelOutline {
    planner: Planner,
}

impl ModelOutline {
    /// The outline of a published model, stored in bf16.
    #[must_use]
    pub fn of_published_shape(preset: &PublishedShape, machine: Machine) -> Self {
        let config = preset.config();
        let sources = config.shape.tensors().into_iter().map(|spec| SourceTensor {
            spec,
            format: Format::Bf16,
            compressed: None,
            compressed_copy: None,
            mixed: None,
        });
        // There are no weights to take a sample of, so sizes come from a typical model's exponents.
        let sources = with_assumed_compression(sources.collect());
        // Its disk is not known yet.
        let machine = Machine {
            disk: DiskBandwidth::default(),
            ..machine
        };
        Self {
            planner: Planner::new(config, sources, None, machine),
        }
    }

    /// The outline of a checkpoint: reads its headers, and measures its disk for a moment.
    ///
    /// # Errors
    /// When the checkpoint could not be loaded either.
    pub fn of_checkpoint(source: &Source, machine: Machine) -> Result<Self, EngineError> {
        let checkpoint = Checkpoint::open(source)?;
        let config = checkpoint.model()?;
        Ok(Self {
            planner: Planner::of_checkpoint(&checkpoint, config, machine)?,
        })
    }

    /// How the model fits within so many bytes, and the plan that a load would take.
    ///
    /// # Errors
    /// When no plan is possible within any budget.
    pub fn fit(
        &self,
        settings: PlanSettings,
        budget_bytes: u64,
    ) -> Result<(Fit, Result<Plan, EngineError>), EngineError> {
        self.planner.fit(settings, budget_bytes)
    }

    /// Most positions of prompt and answer together.
    #[must_use]
    pub fn context_length(&self) -> usize {
        self.planner.config.shape.context_length
    }

    /// The plan with these settings within this budget.
    ///
    /// # Errors
    /// When no plan is possible.
    pub fn plan(
        &self,
        choices: impl Into<ResolvedPlanSettings>,
        budget_bytes: u64,
        workload: Workload,
    ) -> Result<Plan, EngineError> {
        check_canvas(workload.canvas_length, self.context_length())?;
        self.planner.plan(choices.into(), budget_bytes, workload)
    }
}

/// Checked before the dry run, which would take as long as the canvas is.
fn check_canvas(canvas: usize, context: usize) -> Result<(), PlanError> {
    match canvas {
        0 => Err(PlanError::ZeroWorkload { what: "canvas" }),
        _ if canvas > context => Err(PlanError::CanvasTooLong { canvas, context }),
        _ => Ok(()),
    }
}

/// Measures the device.
///
/// # Errors
/// When memory for the measurement cannot be allocated.
pub fn machine(device: &Device) -> Result<Machine, EngineError> {
    let ops = Ops::new(device.clone(), Ledger::default())?;
    Ok(Machine::here(ops.device().profile(), measure(&ops)?, 0))
}

impl Engine {
    /// The machine's properties, as measured for the loaded model, else as the engine's thread measures them when first
    /// asked. Waits for what that thread is doing.
    ///
    /// # Errors
    /// When the device fails, the engine is stopping, or too many ask at once.
    pub fn machine(&self) -> Result<Machine, EngineError> {
        if let Some(planner) = self.shared.state.planner() {
            return Ok(planner.machine.clone());
        }
        // Measured by the engine's thread, the only one that computes on the device.
        let (send, receive) = mpsc::channel();
        self.shared.queue.measure(send)?;
        let rates = receive.recv().map_err(|_| EngineError::Stopped)??;
        Ok(self.shared.machine(self.device().profile(), rates))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use sluice_machine::Profile;
    use sluice_plan::BLOCK_DEFAULT;
    use sluice_shared::level::Level;

    use super::*;

    fn unmeasured() -> Machine {
        Machine::unmeasured(Profile::cpu(2), u64::MAX)
    }

    fn workload(canvas: usize) -> Workload {
        Workload::new(canvas, BLOCK_DEFAULT, 1)
    }

    #[test]
    fn a_published_model_is_planned_without_its_weights() {
        let preset = PublishedShape::find("llada-8b").unwrap();
        let outline = ModelOutline::of_published_shape(preset, unmeasured());
        let all = outline.plan(Level::Off, u64::MAX, workload(64)).unwrap();
        assert!(all.resident_bytes() >= 2 * preset.shape().parameters());
        assert_eq!(all.streamed_bytes(), 0);
        assert!(all.pass.is_none(), "nothing was measured");
        let small = outline
            .plan(Level::Standard, 3 << 30, workload(64))
            .unwrap();
        assert!(small.peak_bytes() <= 3 << 30);
        assert!(small.streamed_bytes() > 10 << 30);
    }

    /// Thousands of groups are planned as others are: nothing is quadratic in their number.
    #[test]
    fn mixtures_of_thousands_of_experts_are_planned_at_once() {
        for (name, groups) in [("qwen3-30b-a3b", 48 * 130), ("llada2-mini", 19 * 258)] {
            let begun = Instant::now();
            let preset = PublishedShape::find(name).unwrap();
            let outline = ModelOutline::of_published_shape(preset, unmeasured());
            let budget_bytes = 6 << 30;
            let level = |level| outline.plan(level, budget_bytes, workload(64)).unwrap();
            let (from, to) = (level(Level::Standard), level(Level::Aggressive));
            assert!(from.groups.len() > groups);
            assert!(from.peak_bytes() <= budget_bytes && from.streamed_bytes() > 0);
            assert!(!sluice_plan::transition(&from, &to).is_empty());
            // On a busy machine, without optimization: quadratic, it took minutes.
            let took = begun.elapsed().as_secs();
            assert!(took < 10, "{name}: {took} s");
        }
    }

    #[test]
    fn a_canvas_beyond_the_context_is_refused_before_it_is_rehearsed() {
        let preset = PublishedShape::find("llada-8b").unwrap();
        let outline = ModelOutline::of_published_shape(preset, unmeasured());
        for canvas in [0, 4097, usize::MAX] {
            let error = outline
                .plan(Level::Off, u64::MAX, workload(canvas))
                .unwrap_err();
            assert!(matches!(error, EngineError::Plan(_)), "{error}");
        }
    }
}
