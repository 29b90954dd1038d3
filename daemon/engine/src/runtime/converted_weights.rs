//! The converted weights of the plan that a switch leads to: found in the weight cache, or written there beside the
//! passes.

use std::sync::{Arc, atomic::Ordering};

use sluice_checkpoint::Checkpoint;
use sluice_plan::Plan;
use sluice_weights::{Tier, WeightGroupPlan};

use super::{
    weight_cache::{
        lacks_compressed, lacks_converted_weights, no_weight_cache, with_mix_of, write_converted,
    },
    weight_conversion::WeightConversion,
    worker::Worker,
};
use crate::{error::EngineError, residency::WeightReader};

impl Worker {
    /// Ensures that what the plan streams, keeps compressed or converts (if that is to be kept) lies on disk. What is
    /// missing is written beside the passes; until then the plan cannot be put in force.
    pub(super) fn prepare_weights(
        &mut self,
        plan: &Plan,
        is_asked: bool,
        notice: &mut dyn FnMut(String),
    ) -> Result<Option<WeightConversion>, EngineError> {
        let Some(current) = &mut self.current else {
            return Err(EngineError::NoModel);
        };
        let reader = WeightReader::clone(&current.reader);
        let reader = with_mix_of(reader, &current.planner, plan)?;
        let conversion;
        // A plan needs compressed or converted weights, never both: levels use the one or the other.
        let reader = if lacks_compressed(&reader, plan) {
            let (checkpoint, planner) = (reader.checkpoint(), &current.planner);
            // A copy that is there by now is used, whoever wrote it.
            let missing = self
                .weight_cache
                .look_for_compressed(checkpoint, planner, notice)?;
            let ops = Arc::clone(&self.ops);
            conversion = missing.map(|missing| {
                let total_bytes = missing.plain_bytes();
                WeightConversion::start(total_bytes, true, move |cancel, progress| {
                    missing.write(ops.device().workers(), cancel, progress)
                })
            });
            match planner.compressed_copy() {
                Some(copy) => Arc::new(reader.with_compressed(copy, &planner.sources())),
                None => Arc::new(reader),
            }
        } else {
            let (reader, missing) =
                (self.weight_cache).look_up(reader, &current.planner, plan, notice)?;
            let is_needed = lacks_converted_weights(&reader, plan);
            let reader = Arc::new(reader);
            conversion = match missing {
                // A request that needs memory does not wait for a copy that is only kept for the next time.
                Some(missing)
                    if is_needed
                        || (is_asked
                            && converts(&reader, &current.weights.group_plans(), plan)
                            && self.weight_cache.can_keep(&missing, notice)) =>
                {
                    let (reader, ops) = (Arc::clone(&reader), Arc::clone(&self.ops));
                    let total_bytes = missing.tensor_bytes();
                    Some(WeightConversion::start(
                        total_bytes,
                        is_needed,
                        move |cancel, progress| {
                            let workers = ops.device().workers();
                            write_converted(&missing, &reader, workers, cancel, progress)
                        },
                    ))
                }
                None if is_needed => return Err(no_weight_cache(plan)),
                _ => None,
            };
            reader
        };
        let conversion = conversion.transpose()?;
        if let Err(error) = current.set_reader(reader) {
            self.lose_stream(error);
            return Err(EngineError::NoModel);
        }
        Ok(conversion)
    }

    /// Also reads from this copy from now on; `notice` is told which older ones were evicted for it.
    pub(super) fn use_converted_weights(
        &mut self,
        copy: Checkpoint,
        notice: &mut dyn FnMut(String),
    ) {
        let Some(current) = &mut self.current else {
            return;
        };
        // A container is a compressed copy, anything else a converted one.
        let (reader, copy) = (WeightReader::clone(&current.reader), Arc::new(copy));
        let reader = match copy.is_container() {
            true => {
                current.planner.set_compressed_copy(Some(Arc::clone(&copy)));
                reader.with_compressed(copy, &current.planner.sources())
            }
            false => reader.with_converted(copy, &current.planner.sources()),
        };
        self.weight_cache.has_told.store(false, Ordering::Relaxed);
        if let Err(error) = current.set_reader(Arc::new(reader)) {
            self.lose_stream(error);
        }
        // After the copy is in use, since eviction leaves files that are.
        self.weight_cache.evict(notice);
    }

    /// Unloads the model: it cannot compute without its streamed weights. Whoever asked for a change is told why.
    fn lose_stream(&mut self, error: EngineError) {
        self.abandon_switch(error);
        self.current = None;
        self.shared.state.clear();
    }
}

/// Whether a group comes to the device that has to be converted on the way.
fn converts(reader: &WeightReader, from: &[WeightGroupPlan], plan: &Plan) -> bool {
    let mut pairs = from.iter().zip(&plan.groups);
    pairs.any(|(from, to)| from != to && to.tier == Tier::Device && !reader.has_stored(to))
}
