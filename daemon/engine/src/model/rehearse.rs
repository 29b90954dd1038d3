//! A pass without weights, memory or work, run through the model's own code: what it would have taken is what a pass
//! takes.

use std::sync::atomic::AtomicBool;

use sluice_shared::level::Kv;

use super::{
    family::ModelConfig,
    transformer::{Interrupt, Sequence, Transformer},
};
use crate::{
    device::{Device, Profile},
    error::EngineError,
    format::Format,
    ledger::{Kind, Ledger},
    ops::{Choice, HeadRow, Noise, Ops, Ranking, cache_format},
    plan::{SourceTensor, UnitPlan, Working, Workload, units},
    residency::{Part, Residency},
};

/// A model's pass, rehearsed for any workload.
#[derive(Debug)]
pub struct Rehearsal {
    config: ModelConfig,
    units: Vec<UnitPlan>,
    profile: Profile,
}

impl Rehearsal {
    /// For such a model with these tensors, on such a device.
    #[must_use]
    pub fn new(config: ModelConfig, sources: &[SourceTensor], profile: Profile) -> Self {
        Self {
            config,
            units: units(sources),
            profile,
        }
    }

    /// Memory that passes of this workload take besides weights and slots; `mlp_rows` rows go through an MLP together.
    ///
    /// # Errors
    /// When the workload is beyond all memory.
    pub fn working(
        &self,
        workload: &Workload,
        mlp_rows: usize,
        kv: Kv,
    ) -> Result<Working, EngineError> {
        let ledger = Ledger::rehearsal();
        let ops = Ops::new(Device::rehearsal(self.profile), ledger.clone())?;
        ops.reserve(0)?;
        let mut model = Transformer::new(self.config.clone(), &ops)?;
        model.set_mlp_rows(mlp_rows);
        let cache = match self.config.shape.causal {
            true => Some(cache_format(kv, &self.profile)?),
            false => None,
        };
        match cache {
            Some(format) => self.causal_pass(&ops, &model, workload, mlp_rows, format)?,
            None => self.pass(&ops, &model, workload)?,
        }
        let peak = |kind: Kind| ledger.report().kinds[kind as usize].peak_bytes;
        Ok(Working {
            context_bytes: peak(Kind::Context),
            tables_bytes: peak(Kind::Weights),
            activation_bytes: ops.activation_bytes(),
            cache_bytes: peak(Kind::Cache),
            cache,
            head_bytes: peak(Kind::Head),
            scratch_bytes: peak(Kind::Scratch),
        })
    }

    /// The first rows of a prompt, as many as go through the layers at once.
    fn causal_pass(
        &self,
        ops: &Ops,
        model: &Transformer,
        workload: &Workload,
        mlp_rows: usize,
        format: Format,
    ) -> Result<(), EngineError> {
        let weights = Residency::rehearsal(&self.units);
        let shape = &self.config.shape;
        let mut row = ops.logits_row(shape.embedding_rows)?;
        let mut caches = (0..workload.requests)
            .map(|_| ops.cache(shape.cache(format), workload.canvas))
            .collect::<Result<Vec<_>, _>>()?;
        let rows = workload.canvas.min(mlp_rows);
        let cache = caches.first_mut().expect("a workload has requests");
        let never = AtomicBool::new(false);
        let tokens = vec![0; rows];
        let hidden = match model.extend(ops, &weights, &tokens, &[rows - 1], cache, &never) {
            Ok(hidden) => hidden,
            Err(Interrupt::Failed(error)) => return Err(error),
            Err(Interrupt::Cancelled) => unreachable!("nobody cancels a rehearsal"),
        };
        let x = model.final_norm(ops, &weights, &hidden)?;
        for (unit, first) in weights.head_parts() {
            let head = weights.acquire(unit)?;
            ops.take_logits(&mut row, &x, &head.weight(Part::Head), first)?;
        }
        Ok(())
    }

    fn pass(&self, ops: &Ops, model: &Transformer, workload: &Workload) -> Result<(), EngineError> {
        let weights = Residency::rehearsal(&self.units);
        let tokens = vec![0; workload.canvas];
        let block = workload.block.min(workload.canvas);
        let wanted: Vec<usize> = (0..block).collect();
        let sequence = Sequence {
            tokens: &tokens,
            wanted: &wanted,
        };
        let sequences = vec![sequence; workload.requests];
        let hidden = match model.forward(ops, &weights, &sequences, &AtomicBool::new(false)) {
            Ok(hidden) => hidden,
            Err(Interrupt::Failed(error)) => return Err(error),
            Err(Interrupt::Cancelled) => unreachable!("nobody cancels a rehearsal"),
        };
        let x = model.final_norm(ops, &weights, &hidden)?;
        drop(hidden);
        let row = HeadRow {
            position: 0,
            may_end: true,
            target: None,
        };
        let rows = vec![row; block * workload.requests];
        let choice = Choice {
            temperature: 0.0,
            noise: Noise::new(0),
            pass: 0,
            guidance: None,
            vocabulary: self.config.vocabulary,
            mask_token_id: self.config.mask.map_or(0, |mask| mask.token_id),
            end_tokens: &[],
            suppressed: &[],
            ranking: Ranking::Confidence,
        };
        let mut reduction = ops.start_head(&rows, &choice, weights.head_part_rows())?;
        for (unit, first) in weights.head_parts() {
            let head = weights.acquire(unit)?;
            ops.reduce_head(&mut reduction, &x, &head.weight(Part::Head), first)?;
        }
        Ok(())
    }
}
