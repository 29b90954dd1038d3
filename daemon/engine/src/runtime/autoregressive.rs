//! Requests to autoregressive models: the KV cache, or the state, is kept for as long as a request runs, and afterwards
//! as a prefix cache while memory allows, since the next turn of a conversation begins with the one before.

mod pass;

use std::{sync::Arc, time::Duration};

use sluice_machine::Profile;
use sluice_ops::{Ops, RecurrentState};
use sluice_plan::{
    Workload, compute_format, resolve_canvas_kv_cache_format, resolve_kv_cache_format,
};
use sluice_shared::level::KvCacheFormat;
use sluice_weights::Storage;

pub(super) use self::pass::pass;
use self::pass::{Next, ReadRows};
use super::{
    prefix_cache::{KEPT_PREFIXES_MAX, KeptPrefix, longest_prefix, prefix_cache_bytes},
    thinking::{LatentSearch, PriorSample, SearchOptions},
    worker::Worker,
};
use crate::{
    decode::autoregressive::Continuation,
    error::EngineError,
    event::{Event, FinishReason, GenerationResult, PassCost, ThoughtReport},
    model::{
        network::{LatentGradient, LatentText},
        sequence_memory::{SequenceMemory, SequenceShape},
    },
    prior::Prior,
    request::{Generate, Thinking},
    residency::Residency,
    saved_state::{SavedState, StateModel, StateOptions},
};

/// A request to an autoregressive model, and what is kept of its tokens.
pub(super) struct AutoregressiveRequest {
    continuation: Continuation,
    memory: SequenceMemory,
    /// Of a model with latents: the search for them, which comes first.
    search: Option<LatentSearch>,
    /// Where a state is to be kept once it has read all of the prompt but its last token, for other answers to it.
    fork: Option<RecurrentState>,
    /// The state that it went on from and that it gives back, if any.
    saving: StateSaving,
    /// Tokens of the prompt.
    prompt_len: usize,
    watch: WeightsWatch,
    /// It reads nothing until its grammar is ready: compiled, or after a pass that did not wait for it any longer.
    awaits_grammar: bool,
    notices: Vec<String>,
}

/// What of a request's state leaves the engine.
struct StateSaving {
    /// The model of a state that is to be given back; `None`: none is.
    model: Option<StateModel>,
    /// Whether the request goes on from a state that came from outside. What that has read is not known, so that no
    /// prompt could be compared with it.
    has_start: bool,
    /// Tokens that this has read.
    read_tokens: u64,
    /// Whether it was computed with the checkpoint's own weights.
    is_lossless: bool,
}

impl StateSaving {
    fn new(options: &StateOptions, model: Option<&StateModel>) -> Self {
        let start = options.start.as_ref();
        Self {
            model: model.filter(|_| options.returns_state).cloned(),
            has_start: start.is_some(),
            read_tokens: start.map_or(0, |state| state.read_tokens),
            is_lossless: start.is_none_or(|state| state.is_lossless),
        }
    }

    /// The state of a sequence that has ended, `rest` of which it has not read: the last token, if any.
    fn save(
        self,
        ops: &Ops,
        state: &RecurrentState,
        rest: &[u32],
        result: &GenerationResult,
    ) -> Result<Option<Box<SavedState>>, EngineError> {
        let Some(model) = self.model else {
            return Ok(None);
        };
        // What follows an end token is another text.
        let is_ended = result.finish_reason == FinishReason::Eos;
        Ok(Some(Box::new(SavedState {
            model,
            read_tokens: self.read_tokens.saturating_add(state.len() as u64),
            unread_token: rest.last().copied().filter(|_| !is_ended),
            is_lossless: self.is_lossless && result.is_lossless,
            values: ops.read_state(state)?,
        })))
    }
}

/// Watches the weights that a KV cache is computed with.
pub(super) struct WeightsWatch {
    /// How they are stored; empty once they were changed in the middle.
    pub(super) storages: Vec<Storage>,
    /// The weights version at the last look.
    weights_version: u64,
}

impl WeightsWatch {
    pub(super) fn new(weights: &Residency) -> Self {
        Self {
            storages: weights.storages(),
            weights_version: weights.weights_version(),
        }
    }

    /// Looks at the weights before a pass that continues a cache or begins one. True the first time that a cache was
    /// computed with weights that were stored otherwise: it stays as it is, and is good for this request alone.
    pub(super) fn look(&mut self, weights: &Residency, goes_on: bool) -> bool {
        let epoch = weights.weights_version();
        if epoch == self.weights_version {
            return false;
        }
        // A version changes with every swapped group; only a change of how weights are stored changes results.
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
    /// Allocates its memory, and copies what the prefix cache has of its prompt.
    pub(super) fn start(
        worker: &mut Worker,
        request: &Generate,
        capacity: usize,
    ) -> Result<Self, EngineError> {
        let loaded = worker.shared.state.model();
        let info = loaded.as_ref().map(|loaded| &loaded.info);
        let saving = StateSaving::new(&request.state, info.and_then(|info| info.state.as_ref()));
        let text = loaded.and_then(|loaded| loaded.tokenizer.clone());
        let profile = worker.ops.device().profile();
        let current = worker.current_mut()?;
        let kv = current.serving_kv_cache_format.unwrap_or_default();
        let shape = SequenceShape::of(
            &current.planner.config.shape,
            resolve_kv_cache_format(kv, &profile)?,
        );
        let vocabulary = Arc::clone(&current.vocabulary);
        // `evict_prefixes` has dropped entries of other weights, so the copied prefix belongs to these, too.
        let watch = WeightsWatch::new(&current.weights);
        let mut memory = SequenceMemory::new(&worker.ops, shape, capacity)?;
        let fork = match &request.state.start {
            Some(start) => {
                memory.begin_with(&worker.ops, &start.values)?;
                None
            }
            None => {
                worker.reuse_prefix(request, &mut memory)?;
                worker.fork_for(shape, request.prompt.len(), memory.len())
            }
        };
        let mut all = Self {
            continuation: Continuation::new(request.clone(), text, vocabulary),
            memory,
            search: None,
            fork,
            saving,
            prompt_len: request.prompt.len(),
            watch,
            awaits_grammar: request.grammar.is_some(),
            notices: Vec::new(),
        };
        let current = worker.current_mut()?;
        if let (Some(thinking), Some(inference)) =
            (&request.thinking, current.planner.config.inference)
        {
            let options = SearchOptions {
                thinking: Thinking::clone(thinking),
                inference,
                elements: all.memory.latent_elements(),
                prompt: request.prompt.len(),
                seed: request.seed,
            };
            all.search_with(LatentSearch::begin(options, current.prior.as_ref()));
        }
        Ok(all)
    }

    /// Emits the first event.
    pub(super) fn tell_start(&mut self, profile: &Profile, emit: &mut dyn FnMut(Event)) {
        let kept_in = self.memory.shape().format();
        let is_exact = kept_in.is_none_or(|format| format == compute_format(profile));
        self.continuation.start(is_exact, emit);
    }

    pub(super) fn is_done(&self) -> bool {
        self.continuation.is_done()
    }

    /// Notices for the user since the last call.
    pub(super) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// The result. What it has read joins the prefix cache, if `keeper` is given and the weights did not change
    /// meanwhile.
    ///
    /// # Errors
    /// When the device fails while its state is read.
    pub(super) fn finish(
        self,
        keeper: Option<&mut Worker>,
    ) -> Result<GenerationResult, EngineError> {
        let Self {
            continuation,
            mut memory,
            mut watch,
            saving,
            ..
        } = self;
        let mut sequence = continuation.sequence().to_vec();
        let mut result = continuation.generated();
        if let Some(worker) = keeper {
            let has_start = saving.has_start;
            if let SequenceMemory::State(state) = &memory
                && result.finish_reason != FinishReason::Cancelled
            {
                result.state =
                    saving.save(&worker.ops, state, &sequence[state.len()..], &result)?;
            }
            // The weights may have changed since the last pass that succeeded.
            if let Some(current) = &worker.current {
                watch.look(&current.weights, !memory.is_empty());
            }
            if !watch.storages.is_empty() && memory.is_reusable() && !has_start {
                memory.settle();
                sequence.truncate(memory.len());
                worker.keep_prefix(KeptPrefix {
                    tokens: sequence,
                    memory,
                    block_length: None,
                    storages: watch.storages,
                });
            }
        }
        Ok(result)
    }

    /// Whether its latents are yet to be found.
    pub(super) fn is_thinking(&self) -> bool {
        self.search.is_some()
    }

    /// Its prompt, whose latents it infers at present.
    pub(super) fn latent_text(&self) -> Option<LatentText<'_>> {
        let Some(LatentSearch::Inferring(inference)) = &self.search else {
            return None;
        };
        let tokens = &self.continuation.sequence()[..self.prompt_len];
        Some(LatentText {
            tokens: &tokens[..tokens.len() - 1],
            targets: &tokens[1..],
            first_target: 0,
            z: inference.z(),
            wants_gradient: true,
        })
    }

    /// The sample of the learned prior that it draws at present.
    pub(super) fn sample_mut(&mut self) -> Option<&mut PriorSample> {
        match &mut self.search {
            Some(LatentSearch::Sampling(sample)) => Some(sample),
            _ => None,
        }
    }

    fn search_with(&mut self, search: LatentSearch) {
        self.search = match search {
            LatentSearch::Found(latents) => {
                self.memory.set_latents(latents);
                None
            }
            search => Some(search),
        };
    }

    /// Takes the result of a step of its sample of the prior.
    pub(super) fn take_sample(
        &mut self,
        prior: &Prior,
        cost: &PassCost,
    ) -> Result<Option<ThoughtReport>, EngineError> {
        let Some(sample) = self.sample_mut() else {
            return Ok(None);
        };
        let (report, next) = sample.take(prior, cost)?;
        if let Some(next) = next {
            self.search_with(next);
        }
        Ok(Some(report))
    }

    /// Takes the result of a pass that was for its latents.
    pub(super) fn take_thought(
        &mut self,
        found: &LatentGradient,
        cost: &PassCost,
    ) -> Option<ThoughtReport> {
        let tokens = self.prompt_len - 1;
        let Some(LatentSearch::Inferring(inference)) = &mut self.search else {
            return None;
        };
        let (report, latents) = inference.take(found, tokens, cost);
        if let Some(latents) = latents {
            self.search_with(LatentSearch::Found(latents));
        }
        Some(report)
    }

    /// Whether its grammar, if there is one, is ready within `wait`.
    pub(super) fn has_grammar_within(&mut self, wait: Duration) -> bool {
        if self.awaits_grammar {
            self.awaits_grammar = !self.continuation.has_grammar_within(wait);
        }
        !self.awaits_grammar
    }

    /// Whether it takes part in no pass, since its grammar is not ready.
    pub(super) fn awaits_grammar(&self) -> bool {
        self.awaits_grammar
    }

    /// Tokens that it has yet to read; none while it thinks.
    fn unread(&self) -> usize {
        if self.is_thinking() {
            return 0;
        }
        self.continuation.sequence().len() - self.memory.len()
    }

    /// The state after all of the prompt but its last token, once a pass has read so far, if it was computed with the
    /// present weights.
    pub(super) fn take_fork(&mut self) -> Option<KeptPrefix> {
        let state = self.fork.take_if(|fork| !fork.is_empty())?;
        (!self.watch.storages.is_empty()).then(|| KeptPrefix {
            tokens: self.continuation.sequence()[..state.len()].to_vec(),
            memory: SequenceMemory::State(state),
            block_length: None,
            storages: self.watch.storages.clone(),
        })
    }

    /// Takes the result of a pass that read so many rows of it.
    pub(super) fn take(&mut self, read: ReadRows, cost: &PassCost, emit: &mut dyn FnMut(Event)) {
        let ReadRows { rows, next } = read;
        let chosen = match next {
            Next::Chosen(chosen) => Some(chosen),
            Next::None => None,
            Next::AwaitsGrammar => {
                self.awaits_grammar = true;
                return;
            }
        };
        // A request that got no rows has no event of this pass.
        if rows > 0 {
            self.continuation.take(rows, chosen, cost, emit);
        }
    }
}

impl Worker {
    /// Evicts prefix-cache entries: stale ones first, then oldest first until this request fits. The entry that its
    /// prompt begins with goes last.
    pub(super) fn evict_prefixes(
        &mut self,
        request: &Generate,
        workload: &Workload,
        kv_cache_format: KvCacheFormat,
    ) -> Result<(), EngineError> {
        let (_, budget) = self.aim();
        let profile = self.ops.device().profile();
        let current = self.current_mut()?;
        let storages = current.weights.storages();
        let block_length = request.kept_block();
        let format = match block_length {
            Some(_) => resolve_canvas_kv_cache_format(kv_cache_format, &profile)?,
            None => resolve_kv_cache_format(kv_cache_format, &profile)?,
        };
        let shape = SequenceShape::of(&current.planner.config.shape, format);
        let is_of_use =
            |kept: &KeptPrefix| kept.memory.shape() == shape && kept.storages == storages;
        current.prefix_cache.retain(is_of_use);
        // Moved to the end, where eviction comes last.
        if let Some((best, _)) =
            longest_prefix(&current.prefix_cache, &request.prompt, block_length)
        {
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

    /// Copies the longest cached prefix of the prompt, except the prompt's last token, whose logits are needed.
    pub(super) fn reuse_prefix(
        &mut self,
        request: &Generate,
        memory: &mut SequenceMemory,
    ) -> Result<(), EngineError> {
        let Self { ops, current, .. } = self;
        let kept = &mut current.as_mut().ok_or(EngineError::NoModel)?.prefix_cache;
        let block_length = request.kept_block();
        let Some((best, same)) = longest_prefix(kept, &request.prompt, block_length) else {
            return Ok(());
        };
        memory.copy_from(ops, &kept[best].memory, same)?;
        // A conversation that continues takes its entry's place; an entry that only shares a beginning stays.
        if same == kept[best].tokens.len() {
            kept.remove(best);
        }
        Ok(())
    }

    /// Memory for a state that has read a prompt but for its last token, if the request will read so far and there is
    /// room to keep one. Without it, other answers to the same prompt read it again.
    fn fork_for(
        &mut self,
        shape: SequenceShape,
        prompt_len: usize,
        read: usize,
    ) -> Option<RecurrentState> {
        let SequenceShape::State(shape) = shape else {
            return None;
        };
        let (_, budget) = self.aim();
        let current = self.current.as_ref()?;
        let peak = (current.plan.peak_bytes()).max(current.as_it_stands().peak_bytes());
        let bytes = (shape.bytes() / 2) as u64;
        let fits = peak + prefix_cache_bytes(&current.prefix_cache) + bytes <= budget;
        if read + 1 >= prompt_len || !fits || self.has_promised_budget() {
            return None;
        }
        self.ops.kept_state(shape).ok()
    }

    /// Adds an entry to the prefix cache, if it fits beside everything that the plan may take.
    pub(super) fn keep_prefix(&mut self, left: KeptPrefix) {
        let (_, budget) = self.aim();
        // A load was promised the memory, though it has not taken all of it yet.
        if self.has_promised_budget() {
            return;
        }
        let Some(current) = &mut self.current else {
            return;
        };
        // Pushed before anything is evicted: the oldest entries go first, and this one only if it does not fit alone.
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

#[cfg(test)]
mod tests;
