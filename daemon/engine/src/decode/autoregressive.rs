//! Autoregressive decoding: the prompt goes through the model a chunk at a time, then each new token alone.
//!
//! Events are those of a canvas that is filled one position a pass, from left to right; a block is only how many
//! positions a picture shows.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sluice_formats::noise::Noise;
use sluice_ops::OpsError;
use sluice_shared::sampling::EosPolicy;
use sluice_tokenizer::{Tokenizer, TokenizerError};

use super::{
    VisibleText, Vocabulary,
    sampling::{self, ChosenToken, DrawInput},
};
use crate::{
    error::EngineError,
    event::{
        CanvasPosition, Event, FinishReason, GenerationResult, PassCost, PassReport, TokenState,
    },
    grammar::{GRAMMAR_WAIT, TextGrammar},
    request::Generate,
};

/// Shares the rows of a pass out among sequences with so many unread tokens, the fewest first: a sequence that only
/// needs its next token never waits for another's prompt, nor a short prompt for a long one.
#[must_use]
pub fn share_rows(unread: &[usize], rows_max: usize) -> Vec<usize> {
    let mut shares = vec![0; unread.len()];
    let mut order: Vec<usize> = (0..unread.len()).collect();
    // A stable sort: of equal sequences the one that joined first.
    order.sort_by_key(|&index| unread[index]);
    let mut left = rows_max;
    for index in order {
        shares[index] = unread[index].min(left);
        left -= shares[index];
    }
    shares
}

/// An autoregressive request that is being decoded.
pub struct Continuation {
    request: Generate,
    /// For stop strings alone.
    tokenizer: Option<Arc<Tokenizer>>,
    vocabulary: Arc<Vocabulary>,
    started: Instant,
    /// Tokens before those below, which the state that it goes on from has read.
    read_before: u64,
    /// Prompt and answer.
    sequence: Vec<u32>,
    /// The token ids in it, rising and without repetition, for the repetition penalty.
    seen: Vec<u32>,
    visible: VisibleText,
    /// Special tokens that are stop strings: they have no text in which a search would find them.
    special_stops: Vec<u32>,
    /// What the text matches.
    grammar: Option<Box<dyn TextGrammar>>,
    /// The open block's positions, up to the last token.
    positions: Vec<CanvasPosition>,
    passes: usize,
    passes_in_block: usize,
    finish: Option<FinishReason>,
    is_lossless: bool,
}

impl Continuation {
    /// Begins this request, for a model with this vocabulary.
    #[must_use]
    pub fn new(
        mut request: Generate,
        tokenizer: Option<Arc<Tokenizer>>,
        vocabulary: Arc<Vocabulary>,
    ) -> Self {
        let mut seen = request.prompt.clone();
        // Sorted, because the sampler looks tokens up by binary search.
        seen.sort_unstable();
        seen.dedup();
        // Taken, since it is large, and in the sequence's memory by now.
        let start = request.state.start.take();
        Self {
            started: Instant::now(),
            read_before: start.map_or(0, |state| state.read_tokens),
            sequence: request.prompt.clone(),
            seen,
            visible: VisibleText::new(&request.stops),
            special_stops: special_stops(&request.stops, tokenizer.as_deref()),
            grammar: (request.grammar.take()).map(|grammar| grammar.0.begin()),
            positions: Vec::new(),
            passes: 0,
            passes_in_block: 0,
            finish: None,
            is_lossless: true,
            request,
            tokenizer,
            vocabulary,
        }
    }

    /// Emits the first event, before the first pass. `is_exact`: whether the KV cache is as precise as what is
    /// computed.
    pub fn start(&mut self, is_exact: bool, emit: &mut dyn FnMut(Event)) {
        self.started = Instant::now();
        emit(Event::Started {
            blocks: self
                .request
                .canvas
                .len()
                .div_ceil(self.request.block_length),
            is_exact,
        });
    }

    /// All tokens so far. The model has to read those that it has not, and to predict the one after the last.
    #[must_use]
    pub fn sequence(&self) -> &[u32] {
        &self.sequence
    }

    /// Where the next token stands, counted from the beginning of what a state has read: chance is the same whether a
    /// text is written at once or goes on from a state.
    fn position(&self) -> usize {
        let before = usize::try_from(self.read_before).unwrap_or(usize::MAX);
        before.saturating_add(self.sequence.len())
    }

    /// Whether the text is finished.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.finish.is_some()
    }

    /// Whether the grammar, if there is one, knows within `wait` what may come next, or that nothing can.
    pub fn has_grammar_within(&mut self, wait: Duration) -> bool {
        let grammar = self.grammar.as_mut();
        grammar.is_none_or(|grammar| !matches!(grammar.allowed(wait), Ok(None)))
    }

    /// Samples the next token from its logits; `order` has the same length, to sort ids in. `None` where the grammar is not
    /// ready within [`GRAMMAR_WAIT`].
    ///
    /// # Errors
    /// When logits are NaN, or no token can follow by the grammar.
    pub fn choose(
        &mut self,
        logits: &mut [f32],
        order: &mut [u32],
    ) -> Result<Option<ChosenToken>, EngineError> {
        // Rows of the LM head beyond the vocabulary are padding.
        let used = self.vocabulary.size.min(logits.len());
        let logits = &mut logits[..used];
        let position = self.position();
        let allowed = match &mut self.grammar {
            Some(grammar) => match grammar
                .allowed(GRAMMAR_WAIT)
                .map_err(EngineError::Grammar)?
            {
                Some(allowed) => Some((allowed, &self.vocabulary.ends[..])),
                None => return Ok(None),
            },
            None => None,
        };
        let request = &self.request;
        let draw = DrawInput {
            temperature: request.temperature,
            sampling: &request.sampling,
            noise: Noise::new(request.seed),
            position,
            seen: &self.seen,
            banned: match request.eos {
                EosPolicy::Suppress => &self.vocabulary.ends,
                EosPolicy::Stop | EosPolicy::Keep => &[],
            },
            allowed,
            top_logprobs: request.top_logprobs,
        };
        let chosen = sampling::choose(logits, &mut order[..used], &draw);
        let are_numbers = !logits.iter().any(|logit| logit.is_nan());
        if chosen.is_none() && allowed.is_some() && are_numbers {
            let cause = "the model gives no token that continues it any probability".to_owned();
            return Err(EngineError::Grammar(TokenizerError::Grammar { cause }));
        }
        // Of the token that was read last.
        let position = self.sequence.len() - 1;
        chosen
            .ok_or(EngineError::Ops(OpsError::NotANumber { position }))
            .map(Some)
    }

    /// Takes the result of a pass that read `rows` tokens; a token only if the pass reached the end of the sequence.
    pub fn take(
        &mut self,
        rows: usize,
        chosen: Option<ChosenToken>,
        cost: &PassCost,
        emit: &mut dyn FnMut(Event),
    ) {
        let token = chosen.as_ref().map(|chosen| chosen.token);
        if let Some(chosen) = chosen {
            self.push(chosen);
        }
        // A request that began under other weights is lossless only if all of its passes were.
        self.is_lossless &= cost.weights.is_lossless;
        self.passes += 1;
        self.passes_in_block += 1;
        let written = self.sequence.len() - self.request.prompt.len();
        // The block of the last token: a block that is just full is still shown.
        let block = written.saturating_sub(1) / self.request.block_length;
        emit(Event::Pass(Box::new(PassReport {
            passes: self.passes,
            block,
            passes_in_block: self.passes_in_block,
            // Unlike a canvas, positions that are not written yet do not exist, so none are shown.
            positions: self.positions.clone(),
            committed: written,
            rows,
            lm_head_rows: usize::from(token.is_some()),
            elapsed: self.started.elapsed(),
            cost: *cost,
        })));
        let Some(token) = token else {
            return;
        };
        self.finish = self.finish_at(token, written);
        if let (Some(grammar), None) = (&mut self.grammar, self.finish) {
            // What follows is looked for while the next pass computes.
            grammar.accept(token);
        }
        if self.is_done() || self.positions.len() == self.request.block_length {
            emit(Event::BlockDone {
                block,
                passes: self.passes_in_block,
                positions: std::mem::take(&mut self.positions),
            });
            self.passes_in_block = 0;
        }
    }

    /// The result so far or in the end. `peak_device_bytes` is 0: the caller keeps the ledger.
    #[must_use]
    pub fn generated(mut self) -> GenerationResult {
        GenerationResult {
            tokens: self.sequence.split_off(self.request.prompt.len()),
            finish_reason: self.finish.unwrap_or(FinishReason::Cancelled),
            passes: self.passes,
            edits: 0,
            elapsed: self.started.elapsed(),
            peak_device_bytes: 0,
            is_lossless: self.is_lossless,
            state: None,
        }
    }

    fn push(&mut self, chosen: ChosenToken) {
        for position in &mut self.positions {
            position.is_fresh = false;
        }
        self.positions.push(CanvasPosition {
            position: self.sequence.len() - self.request.prompt.len(),
            token: Some(chosen.token),
            confidence: Some(chosen.confidence as f32),
            state: TokenState::Committed,
            is_fresh: true,
            is_edited: false,
            logprobs: chosen.logprobs.map(Arc::new),
        });
        self.sequence.push(chosen.token);
        // Kept sorted by insertion, so that the penalty need not sort the whole sequence for each token.
        if let Err(place) = self.seen.binary_search(&chosen.token) {
            self.seen.insert(place, chosen.token);
        }
    }

    /// Whether the token, the `written`-th of the answer, ends the text, and how.
    fn finish_at(&mut self, token: u32, written: usize) -> Option<FinishReason> {
        let is_end = self.vocabulary.ends.contains(&token);
        if is_end && self.request.eos == EosPolicy::Stop {
            return Some(FinishReason::Eos);
        }
        if let Some(text) = &self.tokenizer {
            self.visible.push(text.piece(token));
        }
        if self.visible.has_stopped() || self.special_stops.contains(&token) {
            return Some(FinishReason::Stop);
        }
        (written == self.request.canvas.len()).then_some(FinishReason::Length)
    }
}

/// Ids of the special tokens that a stop string names.
fn special_stops(stops: &[Vec<u8>], tokenizer: Option<&Tokenizer>) -> Vec<u32> {
    let id = |stop: &Vec<u8>| {
        let (text, stop) = (tokenizer?, std::str::from_utf8(stop).ok()?);
        let id = text.token_id(stop)?;
        // A token with text of its own is found in the text, even where a stop string spans several tokens.
        text.piece(id).is_empty().then_some(id)
    };
    stops.iter().filter_map(id).collect()
}

#[cfg(test)]
mod tests;
