//! Passes of which somebody gets the inputs of the matrices: a few at a time, so that others have their turns between.

use sluice_plan::resolve_kv_cache_format;

use super::pass_runner::PassRunner;
use crate::{
    decode::{fidelity::SampleReading, inputs::InputReader},
    error::EngineError,
    event::{Event, Outcome},
    model::network::Interrupt,
    request::CollectInputs,
};

impl PassRunner<'_> {
    /// Runs the request's passes, one after another.
    pub(super) fn collect_inputs(
        &mut self,
        request: &CollectInputs,
        emit: &mut dyn FnMut(Event),
    ) -> Result<Outcome, EngineError> {
        emit(Event::Started {
            blocks: 1,
            is_exact: true,
        });
        // Whoever takes the rows may keep the processor busy: such passes say nothing of how long others are.
        self.learns = false;
        let total = request.passes.len();
        let mut is_lossless = true;
        for (index, pass) in request.passes.iter().enumerate() {
            let current = self.worker.current_mut()?;
            let shape = &current.planner.config.shape;
            let (layers, causal) = (shape.layers, shape.causal);
            let mut reader = InputReader::new(request, pass, layers, current.vocabulary.mask);
            let kv = current.serving_kv_cache_format.unwrap_or_default();
            let profile = self.worker.ops.device().profile();
            let format = match causal {
                true => Some(resolve_kv_cache_format(kv, &profile)?),
                false => None,
            };
            let cancel = self.cancel;
            let ran = self.run(1, &mut |ops, current| {
                let shape = &current.planner.config.shape;
                let reading =
                    format.map(|format| SampleReading::new(shape, format, current.mlp_rows));
                reader.run(ops, (&current.model, &current.weights), reading, cancel)?;
                Ok(((), pass.tokens.len()))
            });
            match ran {
                Ok(((), cost)) => is_lossless &= cost.weights.is_lossless,
                Err(Interrupt::Cancelled) => return Ok(Outcome::Cancelled),
                Err(Interrupt::Failed(error)) => return Err(error),
            }
            if reader.is_refused() {
                return Ok(Outcome::Cancelled);
            }
            for notice in self.take_notices() {
                emit(Event::Notice(notice));
            }
            emit(Event::ScoreProgress {
                done: index + 1,
                total,
            });
        }
        Ok(Outcome::InputsCollected { is_lossless })
    }
}
