//! A causal model, serving a request: its keys and values are kept for as long as the request runs, and afterwards while
//! there is room, since the next turn of a conversation begins with the one before.

use std::sync::atomic::AtomicBool;

use sluice_shared::level::Kv;

use super::{load::Loading, serve::Served, worker::Worker};
use crate::{
    decode::{
        Denoiser, Vocabulary, WeightsState,
        autoregressive::{Choose, Predictor},
    },
    error::EngineError,
    model::transformer::{Interrupt, Next},
    ops::{Candidate, KvCache, LogitsRows, cache_format, computed_format},
    plan::{Storage, Workload},
    request::Generate,
    residency::{Part, Residency},
};

/// Requests whose keys and values are kept after they ended, at most.
const KEPT_MAX: usize = 4;

/// Keys and values of a request that has ended.
pub(super) struct Kept {
    /// As many as the cache holds.
    tokens: Vec<u32>,
    cache: KvCache,
    /// How the weights were stored that they were computed with.
    storages: Vec<Storage>,
}

/// The loaded model, continuing a sequence.
pub(super) struct Causal<'a> {
    served: Served<'a>,
    /// At least those that the cache holds.
    tokens: Vec<u32>,
    cache: KvCache,
    row: LogitsRows,
    watch: Watch,
}

/// Watches the weights that keys and values are computed with.
struct Watch {
    /// How they are stored; empty once they were changed meanwhile.
    storages: Vec<Storage>,
    /// Of the weights, when they were last looked at.
    epoch: u64,
    notices: Vec<String>,
}

impl Watch {
    fn new(weights: &Residency) -> Self {
        Self {
            storages: weights.storages(),
            epoch: weights.epoch(),
            notices: Vec::new(),
        }
    }

    /// Looks at the weights before a pass that goes on from so many positions. Keys and values of weights that are stored
    /// otherwise by now stay as they are: the user is told, and they are good for this request alone.
    fn look(&mut self, weights: &Residency, positions: usize) {
        let epoch = weights.epoch();
        if epoch == self.epoch {
            return;
        }
        self.epoch = epoch;
        let storages = weights.storages();
        if self.storages.is_empty() || storages == self.storages {
            return;
        }
        if positions == 0 {
            self.storages = storages;
            return;
        }
        self.storages.clear();
        self.notices.push(format!(
            "weights changed: the first {positions} positions stay as they were read before"
        ));
    }
}

impl<'a> Causal<'a> {
    /// Makes room for the request, and finds what is kept of its prompt.
    pub(super) fn start(
        worker: &'a mut Worker,
        request: &Generate,
        workload: Workload,
        cancel: &'a AtomicBool,
    ) -> Result<Self, EngineError> {
        let kv = worker.shared.state.settings().kv;
        let prompt = &request.prompt;
        worker.prepare_kept(prompt, &workload, kv)?;
        let mut served = Served::start(worker, workload, cancel)?;
        let (mut cache, row) = loop {
            match served.worker.causal_memory(&workload, kv) {
                Ok(memory) => break memory,
                Err(error) => served.make_room(error)?,
            }
        };
        served.worker.reuse(prompt, &mut cache)?;
        Ok(Self {
            watch: Watch::new(&served.worker.current_mut()?.weights),
            tokens: prompt[..cache.len()].to_vec(),
            served,
            cache,
            row,
        })
    }

    /// What is to be kept of it; nothing where weights changed meanwhile.
    pub(super) fn finish(self) -> Option<Kept> {
        let Self {
            served,
            mut tokens,
            cache,
            mut watch,
            ..
        } = self;
        // After a pass that failed, they may be others.
        let current = served.worker.current.as_ref()?;
        watch.look(&current.weights, cache.len());
        let storages = watch.storages;
        tokens.truncate(cache.len());
        (!storages.is_empty()).then_some(Kept {
            tokens,
            cache,
            storages,
        })
    }

    /// A pass over the next tokens; `choose` picks what follows the last of them, if that is asked.
    fn pass(
        &mut self,
        tokens: &[u32],
        mut choose: Option<Choose<'_>>,
    ) -> Result<Option<Candidate>, Interrupt> {
        self.tokens.extend_from_slice(tokens);
        let Self {
            served,
            cache,
            row,
            watch,
            ..
        } = self;
        let cancel = served.cancel;
        let end = cache.len() + tokens.len();
        served.run(tokens.len(), &mut |ops, current| {
            let (model, weights) = (&current.model, &current.weights);
            watch.look(weights, cache.len());
            // Where memory ran short, fewer go through the layers at once, from where it stopped on.
            let extend = |cache: &mut KvCache| {
                let rest = &tokens[tokens.len() - (end - cache.len())..];
                let rows = &rest[..rest.len().min(current.mlp_rows)];
                let next = Next {
                    tokens: rows,
                    wanted: &[rows.len() - 1],
                    cache,
                };
                model.extend(ops, weights, &mut [next], cancel)
            };
            let mut hidden = extend(cache)?;
            while cache.len() < end {
                drop(hidden);
                hidden = extend(cache)?;
            }
            let Some(choose) = &mut choose else {
                return Ok(None);
            };
            let chosen = (|| {
                let x = model.final_norm(ops, weights, &hidden)?;
                for (unit, first) in weights.head_parts() {
                    let head = weights.acquire(unit)?;
                    ops.take_logits(row, &x, &head.weight(Part::Head), first)?;
                }
                let (logits, order) = ops.read_logits(row, 0)?;
                let position = cache.len() - 1;
                choose(logits, order).ok_or(EngineError::NotANumber { position })
            })();
            if chosen.is_err() {
                // Memory may have run short, and the last row is needed again.
                cache.take_back(1);
            }
            Ok(Some(chosen?))
        })
    }
}

impl Predictor for Causal<'_> {
    fn known(&self) -> usize {
        self.cache.len()
    }

    fn keeps_precision(&self) -> bool {
        let profile = self.served.worker.ops.device().profile();
        self.cache.shape().format == computed_format(&profile)
    }

    fn rows_max(&self) -> usize {
        let current = self.served.worker.current.as_ref();
        current.map_or(1, |current| current.mlp_rows)
    }

    fn extend(&mut self, tokens: &[u32]) -> Result<(), Interrupt> {
        self.pass(tokens, None).map(drop)
    }

    fn predict(&mut self, tokens: &[u32], choose: Choose<'_>) -> Result<Candidate, Interrupt> {
        let candidate = self.pass(tokens, Some(choose))?;
        Ok(candidate.expect("a pass that is asked to choose does"))
    }

    fn vocabulary(&self) -> &Vocabulary {
        self.served.vocabulary()
    }

    fn device_bytes(&self) -> u64 {
        self.served.device_bytes()
    }

    fn weights(&self) -> WeightsState {
        self.served.weights()
    }

    fn take_notices(&mut self) -> Vec<String> {
        let mut notices = self.served.take_notices();
        notices.append(&mut self.watch.notices);
        notices
    }
}

impl Worker {
    /// Lets go of what is kept and can't be of use any more, and, the oldest first, of what this request needs the room
    /// of. What it may begin with goes last.
    fn prepare_kept(
        &mut self,
        prompt: &[u32],
        workload: &Workload,
        kv: Kv,
    ) -> Result<(), EngineError> {
        let (_, budget) = self.aim();
        let profile = self.ops.device().profile();
        let current = self.current_mut()?;
        let storages = current.weights.storages();
        let shape = (current.planner.config.shape).cache(cache_format(kv, &profile)?);
        let is_of_use = |kept: &Kept| kept.cache.shape() == shape && kept.storages == storages;
        current.kept.retain(is_of_use);
        if let Some((best, _)) = longest(&current.kept, prompt) {
            let best = current.kept.remove(best);
            current.kept.push(best);
        }
        let working = (current.planner.rehearsal).working(workload, current.mlp_rows, kv)?;
        let needed = current.as_it_stands().weight_bytes() + working.total_bytes();
        while needed + kept_bytes(&current.kept) > budget && !current.kept.is_empty() {
            current.kept.remove(0);
        }
        Ok(())
    }

    /// Room for the keys and values of the request's positions, and for the logits of one.
    fn causal_memory(
        &mut self,
        workload: &Workload,
        kv: Kv,
    ) -> Result<(KvCache, LogitsRows), EngineError> {
        let format = cache_format(kv, &self.ops.device().profile())?;
        let shape = &self.current_mut()?.planner.config.shape;
        let (rows, shape) = (shape.embedding_rows, shape.cache(format));
        let row = self.ops.logits_rows(1, rows)?;
        Ok((self.ops.cache(shape, workload.canvas)?, row))
    }

    /// Copies what is kept of the prompt's beginning; all but its last token, which tells what follows.
    fn reuse(&mut self, prompt: &[u32], cache: &mut KvCache) -> Result<(), EngineError> {
        let Self { ops, current, .. } = self;
        let kept = &mut current.as_mut().ok_or(EngineError::NoModel)?.kept;
        let Some((best, same)) = longest(kept, prompt) else {
            return Ok(());
        };
        ops.copy_cache(cache, &kept[best].cache, same.min(prompt.len() - 1))?;
        // What the request goes on from, it takes the place of; what it only begins like stays.
        if same == kept[best].tokens.len() {
            kept.remove(best);
        }
        Ok(())
    }

    /// Keeps what a request leaves, where there is room for it beside all that the plan may take.
    pub(super) fn keep(&mut self, left: Kept) {
        let (_, budget) = self.aim();
        // Room that was found for another model is that model's, though it has not all been taken yet.
        let is_promised = |loading: &Loading| loading.limit_bytes().is_some();
        if self.loading.as_ref().is_some_and(is_promised) {
            return;
        }
        let Some(current) = &mut self.current else {
            return;
        };
        current.kept.push(left);
        let peak = current.plan.peak_bytes();
        while current.kept.len() > KEPT_MAX
            || (peak + kept_bytes(&current.kept) > budget && !current.kept.is_empty())
        {
            current.kept.remove(0);
        }
    }
}

fn kept_bytes(kept: &[Kept]) -> u64 {
    kept.iter().map(|kept| kept.cache.bytes()).sum()
}

/// Which of them begins with the most tokens of the prompt, and with how many, if any does.
fn longest(kept: &[Kept], prompt: &[u32]) -> Option<(usize, usize)> {
    let same = |kept: &Kept| {
        let pairs = kept.tokens.iter().zip(prompt);
        pairs.take_while(|(a, b)| a == b).count()
    };
    let lengths = kept.iter().map(same).enumerate();
    lengths
        .max_by_key(|(_, same)| *same)
        .filter(|(_, same)| *same > 0)
}

#[cfg(test)]
mod tests;
