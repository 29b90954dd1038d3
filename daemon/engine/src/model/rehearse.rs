//! A pass without weights, memory or work, run through the model's own code: what it would have taken is what a pass
//! takes.

use std::sync::atomic::AtomicBool;

use sluice_checkpoint::family::ModelConfig;
use sluice_formats::{Format, noise::Noise};
use sluice_machine::{Kind, Profile, page::PAGE_BYTES};
use sluice_ops::{
    Activation, CacheShape, Choice, HeadGroup, HeadRow, Ops, Ranking, device::Device,
    ledger::Ledger,
};
use sluice_plan::{Working, Workload, cache_format, canvas_cache_format, decoded::mlp_rows};
use sluice_shared::level::Kv;
use sluice_weights::{Part, SourceTensor, UnitPlan, units};

use super::transformer::{Interrupt, Sees, Sequence, Transformer};
use crate::{error::EngineError, residency::Residency};

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

    /// Rows that go through an MLP together while memory isn't short.
    #[must_use]
    pub fn mlp_rows(&self) -> usize {
        mlp_rows(&self.units, &self.profile)
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
            None => {
                let kept = canvas_cache_format(kv, &self.profile)?;
                self.pass(&ops, &model, workload, kept)?;
            }
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
            mlp_rows,
        })
    }

    /// The first rows of the prompts, as many as go through the layers at once, and one at least of each.
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
        let requests = workload.requests;
        let mut logits = ops.logits_rows(requests, shape.embedding_rows)?;
        let cache_shape = CacheShape::of(shape, format);
        let capacities = shares(workload.rows(), requests, workload.canvas);
        let mut caches = (capacities.iter())
            .map(|&capacity| ops.cache(cache_shape, capacity))
            .collect::<Result<Vec<_>, _>>()?;
        // Each cache ends within a page, and where one of several lengths does, only their sum doesn't tell.
        let _ends = match workload.is_uniform() {
            true => None,
            false => Some(
                ops.ledger()
                    .reserve(Kind::Cache, ((requests - 1) * PAGE_BYTES) as u64)?,
            ),
        };
        let rows = workload.rows().min(mlp_rows).max(requests);
        let tokens: Vec<_> = (shares(rows, requests, workload.canvas).iter())
            .map(|&rows| vec![0; rows])
            .collect();
        let positions: Vec<_> = (0..rows).collect();
        let mut next: Vec<_> = (tokens.iter().zip(&mut caches))
            .map(|(tokens, cache)| Sequence {
                tokens,
                positions: &positions[..tokens.len()],
                wanted: &[0],
                sees: Sees::Before { cache },
            })
            .collect();
        let never = AtomicBool::new(false);
        let hidden = finished(model.forward(ops, &weights, &mut next, &never))?;
        let x = model.final_norm(ops, &weights, &hidden)?;
        for (unit, first) in weights.head_parts() {
            let head = weights.acquire(unit)?;
            ops.take_logits(&mut logits, &x, &head.weight(Part::Head), first)?;
        }
        Ok(())
    }

    fn pass(
        &self,
        ops: &Ops,
        model: &Transformer,
        workload: &Workload,
        kept: Format,
    ) -> Result<(), EngineError> {
        let weights = Residency::rehearsal(&self.units);
        let head_rows = self.config.shape.embedding_rows;
        let _distributions = ops.distributions(workload.compared_rows(), head_rows)?;
        let Workload {
            canvas, requests, ..
        } = *workload;
        // Each cache ends within a page, and where they are of several lengths, only their sum is known.
        let (places, count) = workload.kept();
        let bytes = CacheShape::of(&self.config.shape, kept).bytes(places) + count * PAGE_BYTES;
        let _caches = match count {
            0 => None,
            _ => Some(ops.ledger().reserve(Kind::Cache, bytes as u64)?),
        };
        let tokens = vec![0; 2 * canvas];
        let positions: Vec<usize> = (0..canvas).collect();
        let lengths = shares(workload.rows(), requests, canvas);
        let counts = shares(workload.head_rows(), requests, canvas);
        // Rows that verify stand behind the others, and are read as they are.
        let checks = shares_of(workload.checks(), &counts);
        let rows: Vec<(Vec<usize>, Vec<usize>)> = (lengths.iter().zip(&counts).zip(&checks))
            .map(|((&length, &count), &checks)| {
                let checks = checks.min(length);
                let checked = positions[..checks].iter().copied();
                let all = positions[..length].iter().copied().chain(checked);
                let wanted =
                    (0..count.min(length) - checks.min(count)).chain(length..length + checks);
                (all.collect(), wanted.collect())
            })
            .collect();
        let mut sequences: Vec<_> = (rows.iter().zip(&checks).zip(&lengths))
            .map(|(((positions, wanted), &checks), &length)| Sequence {
                tokens: &tokens[..positions.len()],
                positions,
                wanted,
                sees: Sees::Each {
                    checks: checks.min(length),
                },
            })
            .collect();
        let never = AtomicBool::new(false);
        let hidden = finished(model.forward(ops, &weights, &mut sequences, &never))?;
        let x = model.final_norm(ops, &weights, &hidden)?;
        drop(hidden);
        let row = HeadRow {
            position: 0,
            may_end: true,
            target: None,
            watched: Vec::new(),
            is_check: false,
        };
        let rows = vec![row; workload.head_rows()];
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
            top: false,
        };
        let groups = vec![HeadGroup {
            rows: &rows,
            choice,
            distributions: None,
        }];
        let mut reduction = ops.start_head(groups, weights.head_part_rows())?;
        for (unit, first) in weights.head_parts() {
            let head = weights.acquire(unit)?;
            ops.reduce_head(&mut reduction, &x, &head.weight(Part::Head), first)?;
        }
        Ok(())
    }
}

/// What several take of `sum`, the first ones first, each no more than this.
fn shares_of(sum: usize, most: &[usize]) -> Vec<usize> {
    let shares = most.iter().scan(sum, |rest, &most| {
        let share = most.min(*rest);
        *rest -= share;
        Some(share)
    });
    shares.collect()
}

/// What several take of `sum`, if each has at least one and most of what there is goes to the first.
fn shares(sum: usize, count: usize, most: usize) -> Vec<usize> {
    let mut rest = sum;
    let shares = (1..=count).map(|number| {
        let share = most.min(rest - (count - number).min(rest));
        rest -= share;
        share
    });
    shares.collect()
}

fn finished(pass: Result<Activation, Interrupt>) -> Result<Activation, EngineError> {
    pass.map_err(|interrupt| match interrupt {
        Interrupt::Failed(error) => error,
        Interrupt::Cancelled => unreachable!("nobody cancels a rehearsal"),
    })
}
