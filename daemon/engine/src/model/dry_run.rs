//! A pass without weights, memory or work, run through the model's own code: what it would have allocated is what a
//! real pass allocates.

use std::sync::atomic::AtomicBool;

use sluice_checkpoint::{PriorShape, family::ModelConfig};
use sluice_formats::{Format, noise::Noise};
use sluice_machine::{MemoryKind, Profile, page::PAGE_BYTES};
use sluice_ops::{
    KvCacheShape, LmHeadGroup, LmHeadRow, Ops, RankingScore, SamplingParams, StateShape,
    device::Device, ledger::Ledger,
};
use sluice_plan::{
    HostWorkingMemory, WorkingMemory, Workload, decompressed::mlp_rows,
    resolve_canvas_kv_cache_format, resolve_kv_cache_format,
};
use sluice_shared::level::KvCacheFormat;
use sluice_weights::{SourceTensor, TensorPart, WeightGroupPlan, weight_groups};

use super::{
    network::{Interrupt, LatentText, Network, Sequence, VisibleKeys},
    sequence_memory::{SequenceMemory, SequenceShape},
};
use crate::{error::EngineError, prior::Prior, residency::Residency};

/// A dry run of a model's passes, for any workload.
#[derive(Debug)]
pub struct DryRun {
    config: ModelConfig,
    groups: Vec<WeightGroupPlan>,
    /// The learned prior, on the CPU: beside a GPU it is host memory.
    prior: Option<PriorShape>,
    profile: Profile,
}

impl DryRun {
    /// The dry run of a model with these tensors and a learned prior of this shape, on such a device.
    #[must_use]
    pub fn new(
        config: ModelConfig,
        sources: &[SourceTensor],
        prior: Option<PriorShape>,
        profile: Profile,
    ) -> Self {
        Self {
            config,
            groups: weight_groups(sources),
            prior: prior.filter(|_| profile.gpu.is_none()),
            profile,
        }
    }

    /// Rows that go through an MLP together while memory is not short.
    #[must_use]
    pub fn mlp_rows(&self) -> usize {
        mlp_rows(&self.groups, &self.profile)
    }

    /// Memory that passes of this workload take besides weights and staging buffers, if `mlp_rows` rows go through an
    /// MLP together.
    ///
    /// # Errors
    /// When the workload exceeds all memory.
    pub fn working(
        &self,
        workload: &Workload,
        mlp_rows: usize,
        kv_cache_format: KvCacheFormat,
    ) -> Result<WorkingMemory, EngineError> {
        let ledger = Ledger::dry_run();
        let ops = Ops::new(Device::dry_run(self.profile), ledger.clone())?;
        // An empty arena: everything beyond it is counted in the ledger, with an arena's own rule.
        ops.reserve(0)?;
        // What the CPU takes where it computes experts, whether a plan has it do that or not.
        let host = match self.profile.gpu.and(self.config.shape.mixture()) {
            Some(_) => Some(ops.host()?),
            None => None,
        };
        if let Some(host) = host {
            host.reserve(0)?;
        }
        let mut model = Network::new(self.config.clone(), &ops)?;
        // The intermediate matrices of an MLP are a large part of a pass's activations, so the plan depends on this
        // number.
        model.set_mlp_rows(mlp_rows);
        // Its weights are there for as long as the model's tables are.
        let _prior = match self.prior {
            Some(shape) => Some(Prior::dry_run(shape, &ops)?),
            None => None,
        };
        let cache = match self.config.shape.causal {
            true => Some(resolve_kv_cache_format(kv_cache_format, &self.profile)?),
            false => None,
        };
        match cache {
            None if self.config.sentences.is_some() => self.texts_pass(&ops, &model, workload)?,
            Some(format) => {
                self.thinking_pass(&ops, &model, workload)?;
                self.autoregressive_pass(&ops, &model, workload, mlp_rows, format)?;
            }
            None => {
                let kept = resolve_canvas_kv_cache_format(kv_cache_format, &self.profile)?;
                self.pass(&ops, &model, workload, kept)?;
            }
        }
        // Peaks and not what is left: the buffers of a pass are gone by now.
        let peak_of =
            |ledger: &Ledger, kind: MemoryKind| ledger.report().kinds[kind as usize].peak_bytes;
        let peak = |kind| peak_of(&ledger, kind);
        Ok(WorkingMemory {
            context_bytes: peak(MemoryKind::Context),
            tables_bytes: peak(MemoryKind::Weights),
            activation_bytes: ops.activation_bytes(),
            kv_cache_bytes: peak(MemoryKind::KvCache),
            kv_cache_format: cache.filter(|_| StateShape::of(&self.config.shape).is_none()),
            state_bytes: peak(MemoryKind::State),
            logits_bytes: peak(MemoryKind::Logits),
            // A prior's is taken beside that of all threads.
            scratch_bytes: peak(MemoryKind::Scratch) + self.prior.map_or(0, Prior::scratch_bytes),
            mlp_rows,
            host: host.map_or_else(HostWorkingMemory::default, |host| HostWorkingMemory {
                activation_bytes: host.activation_bytes(),
                scratch_bytes: peak_of(host.ledger(), MemoryKind::Scratch),
            }),
        })
    }

    /// A pass over the first rows of the prompts, as many as go through the layers at once, and at least one of each.
    fn autoregressive_pass(
        &self,
        ops: &Ops,
        model: &Network,
        workload: &Workload,
        mlp_rows: usize,
        format: Format,
    ) -> Result<(), EngineError> {
        let weights = Residency::dry_run(&self.groups);
        let shape = &self.config.shape;
        let requests = workload.batch_requests;
        let mut logits = ops.logits_rows(requests, shape.padded_vocab_size)?;
        let memory = SequenceShape::of(shape, format);
        let capacities = even_shares(workload.rows(), requests);
        let mut memories = capacities
            .map(|capacity| SequenceMemory::new(ops, memory, capacity))
            .collect::<Result<Vec<_>, _>>()?;
        let _ends = match workload.is_uniform() {
            true => None,
            false => Some(
                ops.ledger()
                    .reserve(MemoryKind::KvCache, memory.uneven_bytes(requests) as u64)?,
            ),
        };
        // As many as `share_rows` gives out, which real passes call with the same number.
        let rows = (workload.rows().min(memory.pass_rows(mlp_rows))).max(requests);
        let tokens: Vec<_> = even_shares(rows, requests)
            .map(|rows| vec![0; rows])
            .collect();
        let positions: Vec<_> = (0..rows).collect();
        let mut next: Vec<_> = (tokens.iter().zip(&mut memories))
            .map(|(tokens, memory)| Sequence {
                tokens,
                positions: &positions[..tokens.len()],
                // A pass reads at most one row of a request: the one that predicts its next token.
                wanted: &[0],
                sees: memory.sees(),
            })
            .collect();
        let never = AtomicBool::new(false);
        let hidden = finished(model.forward(ops, &weights, &mut next, &never))?;
        let x = model.final_norm(ops, &weights, &hidden)?;
        for (group, first) in weights.lm_head_parts() {
            let head = weights.acquire(group)?;
            ops.take_logits(&mut logits, &x, &head.weight(TensorPart::LmHead), first)?;
        }
        Ok(())
    }

    /// A pass of a sentence encoder over texts.
    fn texts_pass(
        &self,
        ops: &Ops,
        model: &Network,
        workload: &Workload,
    ) -> Result<(), EngineError> {
        let weights = Residency::dry_run(&self.groups);
        let longest = workload.canvas_length;
        let lengths = shares(workload.rows(), workload.batch_requests, longest);
        let tokens = vec![0; longest];
        let positions: Vec<_> = (0..longest).collect();
        let mut texts: Vec<_> = (lengths.iter())
            .map(|&length| Sequence {
                tokens: &tokens[..length],
                positions: &positions[..length],
                wanted: &positions[..length],
                sees: VisibleKeys::Each { checks: 0 },
            })
            .collect();
        let never = AtomicBool::new(false);
        finished(model.forward(ops, &weights, &mut texts, &never)).map(drop)
    }

    /// A pass that infers latents of the prompts.
    fn thinking_pass(
        &self,
        ops: &Ops,
        model: &Network,
        workload: &Workload,
    ) -> Result<(), EngineError> {
        let rows = workload.thought_rows();
        let elements = self.config.shape.latent_elements();
        if rows == 0 || elements == 0 {
            return Ok(());
        }
        let weights = Residency::dry_run(&self.groups);
        let z = vec![0.0; elements];
        let tokens = vec![0; rows];
        let lengths: Vec<_> = even_shares(rows, workload.batch_requests.min(rows)).collect();
        let texts: Vec<_> = (lengths.iter())
            .map(|&rows| LatentText {
                tokens: &tokens[..rows],
                targets: &tokens[..rows],
                first_target: 0,
                z: &z,
                wants_gradient: true,
            })
            .collect();
        let never = AtomicBool::new(false);
        finished(model.latent_gradients(ops, &weights, &texts, &never)).map(drop)
    }

    fn pass(
        &self,
        ops: &Ops,
        model: &Network,
        workload: &Workload,
        kept: Format,
    ) -> Result<(), EngineError> {
        let weights = Residency::dry_run(&self.groups);
        let head_rows = self.config.shape.padded_vocab_size;
        let _distributions = ops.distributions(workload.compared_rows(), head_rows)?;
        let Workload {
            canvas_length: canvas,
            batch_requests: requests,
            ..
        } = *workload;
        // Each cache is rounded up to a page; with different lengths only their sum is known.
        let (places, count) = workload.cached_rows();
        let shapes = KvCacheShape::each(&self.config.shape, kept);
        let each = |places: usize| -> usize { shapes.iter().map(|kind| kind.bytes(places)).sum() };
        let bytes =
            even_shares(places, count).map(each).sum::<usize>() + count * shapes.len() * PAGE_BYTES;
        let _caches = match count {
            0 => None,
            _ => Some(ops.ledger().reserve(MemoryKind::KvCache, bytes as u64)?),
        };
        // Twice the canvas: each row may have a check row behind it.
        let tokens = vec![0; 2 * canvas];
        let positions: Vec<usize> = (0..canvas).collect();
        // Only sums matter for memory, so the rows are shared out in any way that is possible.
        let lengths = shares(workload.rows(), requests, canvas);
        let counts = shares(workload.lm_head_rows(), requests, canvas);
        // Check rows stand behind the others, and each is read.
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
        // Canvases of random tokens go through more than the text before them. They are written to caches, which are
        // counted above: those of this pass are counted apart.
        let width = self.config.shape.hidden_size;
        let mut caches = Vec::new();
        let mut soft = Vec::new();
        if model.reads_text_apart() {
            let apart = Ops::new(Device::dry_run(self.profile), Ledger::dry_run())?;
            for (positions, wanted) in &rows {
                let of_each = shapes
                    .iter()
                    .map(|kind| apart.kv_cache(*kind, positions.len()));
                caches.push(of_each.collect::<Result<Vec<_>, _>>()?);
                soft.push(ops.soft_embeddings(wanted.len(), width)?);
            }
        }
        let mut told = caches.iter_mut().zip(&soft);
        let mut sequences: Vec<_> = (rows.iter().zip(&checks).zip(&lengths))
            .map(|(((positions, wanted), &checks), &length)| Sequence {
                tokens: &tokens[..positions.len()],
                positions,
                wanted,
                sees: match told.next() {
                    Some((caches, soft)) => VisibleKeys::Canvas {
                        caches,
                        soft: Some(soft),
                    },
                    None => VisibleKeys::Each {
                        checks: checks.min(length),
                    },
                },
            })
            .collect();
        let never = AtomicBool::new(false);
        let hidden = finished(model.forward(ops, &weights, &mut sequences, &never))?;
        let x = model.final_norm(ops, &weights, &hidden)?;
        // As in a real pass, so that the LM head's buffers may reuse its place.
        drop(hidden);
        let row = LmHeadRow {
            position: 0,
            may_end: true,
            target: None,
            watched: Vec::new(),
            is_check: false,
        };
        let rows = vec![row; workload.lm_head_rows()];
        let choice = SamplingParams {
            temperature: 0.0,
            noise: Noise::new(0),
            pass: 0,
            guidance: None,
            vocab_size: self.config.vocab_size,
            mask_token_id: self.config.mask.and_then(|mask| mask.token_id),
            end_tokens: &[],
            suppressed: &[],
            ranking: RankingScore::Confidence,
            top: false,
            scaling: None,
        };
        let mut next = match model.reads_text_apart() {
            true => Some(ops.soft_embeddings(rows.len(), width)?),
            false => None,
        };
        // One group for all requests: the LM head's memory depends on the sum of rows alone.
        let groups = vec![LmHeadGroup {
            rows: &rows,
            sampling: choice,
            distributions: None,
            soft: next.as_mut(),
        }];
        let mut reduction = ops.start_lm_head(groups, weights.lm_head_part_rows())?;
        for (group, first) in weights.lm_head_parts() {
            let head = weights.acquire(group)?;
            ops.reduce_lm_head(&mut reduction, &x, &head.weight(TensorPart::LmHead), first)?;
        }
        Ok(())
    }
}

/// How `sum` is shared out in order, each getting at most its entry of `most`.
fn shares_of(sum: usize, most: &[usize]) -> Vec<usize> {
    let shares = most.iter().scan(sum, |rest, &most| {
        let share = most.min(*rest);
        *rest -= share;
        Some(share)
    });
    shares.collect()
}

/// How `sum` is shared out among `count` KV caches. Of so many positions these take the most: each cache has a limited
/// number of them in more bits, too ([`KvCacheShape::bytes`]), so that long ones take less for each.
fn even_shares(sum: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |number| sum / count + usize::from(number < sum % count))
}

/// How `sum` is shared out among `count`, each at least 1 and at most `most`, as much as possible to the first.
fn shares(sum: usize, count: usize, most: usize) -> Vec<usize> {
    let mut rest = sum;
    let shares = (1..=count).map(|number| {
        let share = most.min(rest - (count - number).min(rest));
        rest -= share;
        share
    });
    shares.collect()
}

fn finished<T>(pass: Result<T, Interrupt>) -> Result<T, EngineError> {
    pass.map_err(|interrupt| match interrupt {
        Interrupt::Failed(error) => error,
        Interrupt::Cancelled => unreachable!("nobody cancels a rehearsal"),
    })
}
