//! A causal model, serving requests: keys and values are kept for as long as a request runs, and afterwards while there is
//! room, since the next turn of a conversation begins with the one before.

use std::sync::{Arc, atomic::AtomicBool};

use sluice_machine::Profile;
use sluice_ops::{Activation, Candidate, KvCache, KvCacheShape, LogitsRows, Ops, OpsError, Phase};
use sluice_plan::{Workload, compute_format, resolve_kv_cache_format};
use sluice_shared::level::KvCacheFormat;
use sluice_weights::{Storage, TensorPart};

use super::{current_model::CurrentModel, worker::Worker};
use crate::{
    decode::autoregressive::{Continuation, share_rows},
    error::EngineError,
    event::{Event, GenerationResult, PassCost},
    model::transformer::{Interrupt, Sequence, VisibleKeys, acquire},
    request::Generate,
    residency::Residency,
};

/// Requests whose keys and values are kept after they ended, at most.
const KEPT_PREFIXES_MAX: usize = 4;

/// Keys and values of a request that has ended.
pub(super) struct KeptPrefix {
    /// As many as the cache holds.
    tokens: Vec<u32>,
    cache: KvCache,
    /// How the weights were stored that they were computed with.
    storages: Vec<Storage>,
}

/// A request to a causal model, and the keys and values of what it has read.
pub(super) struct AutoregressiveRequest {
    continuation: Continuation,
    cache: KvCache,
    watch: WeightsWatch,
    notices: Vec<String>,
}

/// Watches the weights that keys and values are computed with.
pub(super) struct WeightsWatch {
    /// How they are stored; empty once they were changed meanwhile.
    storages: Vec<Storage>,
    /// Of the weights, when they were last looked at.
    weights_version: u64,
}

impl WeightsWatch {
    pub(super) fn new(weights: &Residency) -> Self {
        Self {
            storages: weights.storages(),
            weights_version: weights.weights_version(),
        }
    }

    /// Looks at the weights before a pass that goes on from what was kept, or from nothing. True the first time that keys and
    /// values are those of weights that were stored otherwise: they stay as they are, and are good for this request alone.
    pub(super) fn look(&mut self, weights: &Residency, goes_on: bool) -> bool {
        let epoch = weights.weights_version();
        if epoch == self.weights_version {
            return false;
        }
        self.weights_version = epoch;
        let storages = weights.storages();
        if self.storages.is_empty() || storages == self.storages {
            return false;
        }
        if goes_on {
            self.storages.clear();
        } else {
            self.storages = storages;
        }
        goes_on
    }
}

impl AutoregressiveRequest {
    /// Takes room for its keys and values, and what is kept of its prompt.
    pub(super) fn start(
        worker: &mut Worker,
        request: &Generate,
        capacity: usize,
    ) -> Result<Self, EngineError> {
        let loaded = worker.shared.state.model();
        let text = loaded.and_then(|loaded| loaded.tokenizer.clone());
        let profile = worker.ops.device().profile();
        let current = worker.current_mut()?;
        let kv = current.serving_kv_cache_format.unwrap_or_default();
        let shape = KvCacheShape::of(
            &current.planner.config.shape,
            resolve_kv_cache_format(kv, &profile)?,
        );
        let vocabulary = Arc::clone(&current.vocabulary);
        let watch = WeightsWatch::new(&current.weights);
        let mut cache = worker.ops.kv_cache(shape, capacity)?;
        worker.reuse_prefix(&request.prompt, &mut cache)?;
        Ok(Self {
            continuation: Continuation::new(request.clone(), text, vocabulary),
            cache,
            watch,
            notices: Vec::new(),
        })
    }

    /// Tells what lies ahead.
    pub(super) fn tell_start(&mut self, profile: &Profile, emit: &mut dyn FnMut(Event)) {
        let is_exact = self.cache.shape().format == compute_format(profile);
        self.continuation.start(is_exact, emit);
    }

    pub(super) fn is_done(&self) -> bool {
        self.continuation.is_done()
    }

    /// What the user should hear of, since it was last asked.
    pub(super) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// What it came to. What it has read is kept, where somebody keeps it, unless weights changed meanwhile.
    pub(super) fn finish(self, keeper: Option<&mut Worker>) -> GenerationResult {
        let Self {
            continuation,
            cache,
            mut watch,
            ..
        } = self;
        if let Some(worker) = keeper {
            // After a pass that was cancelled, they may be others.
            if let Some(current) = &worker.current {
                watch.look(&current.weights, !cache.is_empty());
            }
            if !watch.storages.is_empty() {
                worker.keep_prefix(KeptPrefix {
                    tokens: continuation.sequence()[..cache.len()].to_vec(),
                    cache,
                    storages: watch.storages,
                });
            }
        }
        continuation.generated()
    }

    fn unread(&self) -> usize {
        self.continuation.sequence().len() - self.cache.len()
    }

    /// A pass has read so many rows of it.
    pub(super) fn take(&mut self, read: ReadRows, cost: &PassCost, emit: &mut dyn FnMut(Event)) {
        if read.rows > 0 {
            self.continuation
                .take(read.rows, read.candidate, cost, emit);
        }
    }
}

/// What a pass read of a request.
pub(super) struct ReadRows {
    rows: usize,
    /// What follows, if that was its last row.
    candidate: Option<Candidate>,
}

/// Reads what these requests have not read yet, as much of it as goes through the layers at once, and chooses what follows
/// the last token of those that have read all.
pub(super) fn pass(
    requests: &mut [&mut AutoregressiveRequest],
    logits: &mut Option<LogitsRows>,
    (ops, current): (&Ops, &CurrentModel),
    cancel: &AtomicBool,
) -> Result<(Vec<ReadRows>, usize), Interrupt> {
    let (model, weights) = (&current.model, &current.weights);
    let unread: Vec<usize> = requests.iter().map(|request| request.unread()).collect();
    let shares = share_rows(&unread, current.mlp_rows);
    let wanted: Vec<Vec<usize>> = shares
        .iter()
        .zip(&unread)
        .map(|(&rows, &unread)| match rows == unread {
            true => vec![rows - 1],
            false => Vec::new(),
        })
        .collect();
    let last = requests
        .iter()
        .map(|request| request.continuation.sequence().len());
    let positions: Vec<usize> = (0..last.max().unwrap_or(0)).collect();
    let mut next = Vec::new();
    for ((request, &rows), wanted) in requests.iter_mut().zip(&shares).zip(&wanted) {
        let AutoregressiveRequest {
            continuation,
            cache,
            watch,
            notices,
        } = &mut **request;
        if watch.look(weights, !cache.is_empty()) {
            notices.push(format!(
                "the weights changed: the KV cache of the first {} positions was computed with the previous weights",
                cache.len()
            ));
        }
        let tokens = &continuation.sequence()[cache.len()..][..rows];
        if rows > 0 {
            next.push(Sequence {
                tokens,
                positions: &positions[cache.len()..][..rows],
                wanted,
                sees: VisibleKeys::Before { cache },
            });
        }
    }
    let hidden = model.forward(ops, weights, &mut next, cancel)?;
    let chosen = match hidden.is_empty() {
        true => Ok(vec![None; requests.len()]),
        false => choose(requests, &wanted, hidden, logits, (ops, current)),
    };
    if chosen.is_err() {
        // Memory may have run short: all of them are read again.
        for (request, &rows) in requests.iter_mut().zip(&shares) {
            request.cache.take_back(rows);
        }
    }
    let reads = shares
        .iter()
        .zip(chosen?)
        .map(|(&rows, candidate)| ReadRows { rows, candidate });
    Ok((reads.collect(), shares.iter().sum()))
}

/// Chooses what follows the rows that were wanted, from their logits.
fn choose(
    requests: &[&mut AutoregressiveRequest],
    wanted: &[Vec<usize>],
    hidden: Activation,
    logits: &mut Option<LogitsRows>,
    (ops, current): (&Ops, &CurrentModel),
) -> Result<Vec<Option<Candidate>>, EngineError> {
    let CurrentModel { model, weights, .. } = current;
    let x = model.final_norm(ops, weights, &hidden)?;
    drop(hidden);
    let logits = match logits {
        Some(logits) if logits.count() >= x.len() => logits,
        logits => {
            // First given back, then taken: both at once may be more than there is.
            *logits = None;
            let head_rows = current.planner.config.shape.padded_vocab_size;
            logits.insert(ops.logits_rows(requests.len(), head_rows)?)
        }
    };
    for (unit, first) in weights.lm_head_parts() {
        let head = acquire(ops, weights, unit)?;
        ops.take_logits(logits, &x, &head.weight(TensorPart::LmHead), first)?;
    }
    let mut row = 0;
    let pairs = requests.iter().zip(wanted);
    pairs
        .map(|(request, wanted)| {
            if wanted.is_empty() {
                return Ok(None);
            }
            let _timed = ops.timed(Phase::Sampling);
            let (logits, order) = ops.read_logits(logits, row)?;
            row += 1;
            let position = request.cache.len() - 1;
            let chosen = request.continuation.choose(logits, order);
            chosen
                .ok_or(EngineError::Ops(OpsError::NotANumber { position }))
                .map(Some)
        })
        .collect()
}

impl Worker {
    /// Lets go of what is kept and can't be of use any more, and, the oldest first, of what this request needs the room
    /// of. What it may begin with goes last.
    pub(super) fn evict_prefixes(
        &mut self,
        prompt: &[u32],
        workload: &Workload,
        kv_cache_format: KvCacheFormat,
    ) -> Result<(), EngineError> {
        let (_, budget) = self.aim();
        let profile = self.ops.device().profile();
        let current = self.current_mut()?;
        let storages = current.weights.storages();
        let shape = KvCacheShape::of(
            &current.planner.config.shape,
            resolve_kv_cache_format(kv_cache_format, &profile)?,
        );
        let is_of_use =
            |kept: &KeptPrefix| kept.cache.shape() == shape && kept.storages == storages;
        current.prefix_cache.retain(is_of_use);
        if let Some((best, _)) = longest_prefix(&current.prefix_cache, prompt) {
            let best = current.prefix_cache.remove(best);
            current.prefix_cache.push(best);
        }
        let working =
            (current.planner.dry_run).working(workload, current.mlp_rows, kv_cache_format)?;
        let needed = current.as_it_stands().weight_bytes() + working.total_bytes();
        while needed + prefix_cache_bytes(&current.prefix_cache) > budget
            && !current.prefix_cache.is_empty()
        {
            current.prefix_cache.remove(0);
        }
        Ok(())
    }

    /// Copies what is kept of the prompt's beginning; all but its last token, which tells what follows.
    fn reuse_prefix(&mut self, prompt: &[u32], cache: &mut KvCache) -> Result<(), EngineError> {
        let Self { ops, current, .. } = self;
        let kept = &mut current.as_mut().ok_or(EngineError::NoModel)?.prefix_cache;
        let Some((best, same)) = longest_prefix(kept, prompt) else {
            return Ok(());
        };
        ops.copy_kv_cache(cache, &kept[best].cache, same.min(prompt.len() - 1))?;
        // What the request goes on from, it takes the place of; what it only begins like stays.
        if same == kept[best].tokens.len() {
            kept.remove(best);
        }
        Ok(())
    }

    /// Keeps what a request leaves, where there is room for it beside all that the plan may take.
    fn keep_prefix(&mut self, left: KeptPrefix) {
        let (_, budget) = self.aim();
        if self.has_promised_budget() {
            return;
        }
        let Some(current) = &mut self.current else {
            return;
        };
        current.prefix_cache.push(left);
        let peak = (current.plan.peak_bytes()).max(current.as_it_stands().peak_bytes());
        while current.prefix_cache.len() > KEPT_PREFIXES_MAX
            || (peak + prefix_cache_bytes(&current.prefix_cache) > budget
                && !current.prefix_cache.is_empty())
        {
            current.prefix_cache.remove(0);
        }
    }
}

fn prefix_cache_bytes(prefixes: &[KeptPrefix]) -> u64 {
    prefixes.iter().map(|kept| kept.cache.bytes()).sum()
}

/// Which of them begins with the most tokens of the prompt, and with how many, if any does.
fn longest_prefix(prefixes: &[KeptPrefix], prompt: &[u32]) -> Option<(usize, usize)> {
    let same = |kept: &KeptPrefix| {
        let pairs = kept.tokens.iter().zip(prompt);
        pairs.take_while(|(a, b)| a == b).count()
    };
    let lengths = prefixes.iter().map(same).enumerate();
    lengths
        .max_by_key(|(_, same)| *same)
        .filter(|(_, same)| *same > 0)
}

#[cfg(test)]
mod tests;
