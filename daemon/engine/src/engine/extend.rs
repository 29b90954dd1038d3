//! A causal model, serving requests: keys and values are kept for as long as a request runs, and afterwards while there is
//! room, since the next turn of a conversation begins with the one before.

use std::sync::{Arc, atomic::AtomicBool};

use sluice_machine::Profile;
use sluice_ops::{Activation, CacheShape, Candidate, KvCache, LogitsRows, Ops, OpsError, Phase};
use sluice_plan::{Workload, cache_format, computed_format};
use sluice_shared::level::Kv;
use sluice_weights::{Part, Storage};

use super::{current::Current, worker::Worker};
use crate::{
    decode::autoregressive::{Continuation, share_rows},
    error::EngineError,
    event::{Event, Generated, PassCost},
    model::transformer::{Interrupt, Sees, Sequence, acquire},
    request::Generate,
    residency::Residency,
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

/// A request to a causal model, and the keys and values of what it has read.
pub(super) struct Continuing {
    continuation: Continuation,
    cache: KvCache,
    watch: Watch,
    notices: Vec<String>,
}

/// Watches the weights that keys and values are computed with.
pub(super) struct Watch {
    /// How they are stored; empty once they were changed meanwhile.
    storages: Vec<Storage>,
    /// Of the weights, when they were last looked at.
    epoch: u64,
}

impl Watch {
    pub(super) fn new(weights: &Residency) -> Self {
        Self {
            storages: weights.storages(),
            epoch: weights.epoch(),
        }
    }

    /// Looks at the weights before a pass that goes on from what was kept, or from nothing. True the first time that keys and
    /// values are those of weights that were stored otherwise: they stay as they are, and are good for this request alone.
    pub(super) fn look(&mut self, weights: &Residency, goes_on: bool) -> bool {
        let epoch = weights.epoch();
        if epoch == self.epoch {
            return false;
        }
        self.epoch = epoch;
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

impl Continuing {
    /// Takes room for its keys and values, and what is kept of its prompt.
    pub(super) fn start(
        worker: &mut Worker,
        request: &Generate,
        capacity: usize,
    ) -> Result<Self, EngineError> {
        let loaded = worker.shared.state.model();
        let text = loaded.and_then(|loaded| loaded.text.clone());
        let profile = worker.ops.device().profile();
        let current = worker.current_mut()?;
        let kv = current.serving_kv.unwrap_or_default();
        let shape = CacheShape::of(&current.planner.config.shape, cache_format(kv, &profile)?);
        let vocabulary = Arc::clone(&current.vocabulary);
        let watch = Watch::new(&current.weights);
        let mut cache = worker.ops.cache(shape, capacity)?;
        worker.reuse(&request.prompt, &mut cache)?;
        Ok(Self {
            continuation: Continuation::new(request.clone(), text, vocabulary),
            cache,
            watch,
            notices: Vec::new(),
        })
    }

    /// Tells what lies ahead.
    pub(super) fn tell_start(&mut self, profile: &Profile, emit: &mut dyn FnMut(Event)) {
        let is_exact = self.cache.shape().format == computed_format(profile);
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
    pub(super) fn finish(self, keeper: Option<&mut Worker>) -> Generated {
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
                worker.keep(Kept {
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
    pub(super) fn take(&mut self, read: Read, cost: &PassCost, emit: &mut dyn FnMut(Event)) {
        if read.rows > 0 {
            self.continuation
                .take(read.rows, read.candidate, cost, emit);
        }
    }
}

/// What a pass read of a request.
pub(super) struct Read {
    rows: usize,
    /// What follows, if that was its last row.
    candidate: Option<Candidate>,
}

/// Reads what these requests have not read yet, as much of it as goes through the layers at once, and chooses what follows
/// the last token of those that have read all.
pub(super) fn pass(
    requests: &mut [&mut Continuing],
    logits: &mut Option<LogitsRows>,
    (ops, current): (&Ops, &Current),
    cancel: &AtomicBool,
) -> Result<(Vec<Read>, usize), Interrupt> {
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
        let Continuing {
            continuation,
            cache,
            watch,
            notices,
        } = &mut **request;
        if watch.look(weights, !cache.is_empty()) {
            notices.push(format!(
                "weights changed: the first {} positions stay as they were read before",
                cache.len()
            ));
        }
        let tokens = &continuation.sequence()[cache.len()..][..rows];
        if rows > 0 {
            next.push(Sequence {
                tokens,
                positions: &positions[cache.len()..][..rows],
                wanted,
                sees: Sees::Before { cache },
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
        .map(|(&rows, candidate)| Read { rows, candidate });
    Ok((reads.collect(), shares.iter().sum()))
}

/// Chooses what follows the rows that were wanted, from their logits.
fn choose(
    requests: &[&mut Continuing],
    wanted: &[Vec<usize>],
    hidden: Activation,
    logits: &mut Option<LogitsRows>,
    (ops, current): (&Ops, &Current),
) -> Result<Vec<Option<Candidate>>, EngineError> {
    let Current { model, weights, .. } = current;
    let x = model.final_norm(ops, weights, &hidden)?;
    drop(hidden);
    let logits = match logits {
        Some(logits) if logits.count() >= x.len() => logits,
        logits => {
            // First given back, then taken: both at once may be more than there is.
            *logits = None;
            let head_rows = current.planner.config.shape.embedding_rows;
            logits.insert(ops.logits_rows(requests.len(), head_rows)?)
        }
    };
    for (unit, first) in weights.head_parts() {
        let head = acquire(ops, weights, unit)?;
        ops.take_logits(logits, &x, &head.weight(Part::Head), first)?;
    }
    let mut row = 0;
    let pairs = requests.iter().zip(wanted);
    pairs
        .map(|(request, wanted)| {
            if wanted.is_empty() {
                return Ok(None);
            }
            let _timed = ops.timed(Phase::Choice);
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
    pub(super) fn prepare_kept(
        &mut self,
        prompt: &[u32],
        workload: &Workload,
        kv: Kv,
    ) -> Result<(), EngineError> {
        let (_, budget) = self.aim();
        let profile = self.ops.device().profile();
        let current = self.current_mut()?;
        let storages = current.weights.storages();
        let shape = CacheShape::of(&current.planner.config.shape, cache_format(kv, &profile)?);
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
    fn keep(&mut self, left: Kept) {
        let (_, budget) = self.aim();
        if self.has_promised_room() {
            return;
        }
        let Some(current) = &mut self.current else {
            return;
        };
        current.kept.push(left);
        let peak = (current.plan.peak_bytes()).max(current.as_it_stands().peak_bytes());
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
