//! Autoregressive decoding: the prompt goes through the model a chunk at a time, then each new token alone.
//!
//! Events are those of a canvas that is filled one position a pass, from left to right; blocks are only how many positions
//! a picture shows.

use std::time::Instant;

use sluice_shared::sampling::EosPolicy;

use super::{
    Visible, Vocabulary, WeightsState,
    sampling::{self, Draw},
};
use crate::{
    error::EngineError,
    event::{Event, Finish, Generated, PassReport, Position, TokenState},
    model::transformer::Interrupt,
    ops::{Candidate, Noise},
    request::Generate,
    text::Text,
};

/// Chooses from the logits of the next token; the second slice is as long, to sort ids in.
pub type Choose<'a> = &'a mut dyn FnMut(&mut [f32], &mut [u32]) -> Option<Candidate>;

/// Something that tells what comes next.
pub trait Predictor {
    /// Tokens of the sequence that it knows already.
    fn known(&self) -> usize;

    /// Whether it keeps what it knows as precisely as it was computed.
    fn keeps_precision(&self) -> bool;

    /// Tokens that go through the layers together, at most.
    fn rows_max(&self) -> usize;

    /// Takes the next tokens of the sequence.
    ///
    /// # Errors
    /// When the pass was cancelled or failed.
    fn extend(&mut self, tokens: &[u32]) -> Result<(), Interrupt>;

    /// The same, and chooses what follows them.
    ///
    /// # Errors
    /// When the pass was cancelled or failed, or nothing could be chosen.
    fn predict(&mut self, tokens: &[u32], choose: Choose<'_>) -> Result<Candidate, Interrupt>;

    /// Ids with a meaning of their own.
    fn vocabulary(&self) -> &Vocabulary;

    /// Device memory held now, in bytes.
    fn device_bytes(&self) -> u64;

    /// How the weights stand.
    fn weights(&self) -> WeightsState;

    /// What the user should hear of, since it was last asked.
    fn take_notices(&mut self) -> Vec<String>;
}

/// Continues the request's prompt, telling `emit` of every pass. `text` is needed for stop strings alone.
/// `peak_device_bytes` of the result is left 0: the caller keeps the ledger.
///
/// # Errors
/// When a pass fails. A cancelled one is no error: the result then tells how far it came.
pub fn generate(
    request: &Generate,
    text: Option<&Text>,
    predictor: &mut dyn Predictor,
    emit: &mut dyn FnMut(Event),
) -> Result<Generated, EngineError> {
    let length = request.canvas.len();
    emit(Event::Started {
        blocks: length.div_ceil(request.block_length),
        keeps_precision: predictor.keeps_precision(),
    });
    let mut seen = request.prompt.clone();
    seen.sort_unstable();
    seen.dedup();
    let mut run = Run {
        request,
        text,
        predictor,
        emit,
        started: Instant::now(),
        seen,
        visible: Visible::new(&request.stops),
        special_stops: special_stops(&request.stops, text),
        answer: Vec::new(),
        positions: Vec::new(),
        passes: 0,
        passes_in_block: 0,
        is_lossless: true,
    };
    let finish = match run.tokens() {
        Ok(finish) => finish,
        Err(Interrupt::Cancelled) => Finish::Cancelled,
        Err(Interrupt::Failed(error)) => return Err(error),
    };
    Ok(Generated {
        tokens: run.answer,
        finish,
        passes: run.passes,
        elapsed: run.started.elapsed(),
        peak_device_bytes: 0,
        is_lossless: run.is_lossless,
    })
}

/// Ids of the special tokens that a stop string names.
fn special_stops(stops: &[Vec<u8>], text: Option<&Text>) -> Vec<u32> {
    let id = |stop: &Vec<u8>| {
        let (text, stop) = (text?, std::str::from_utf8(stop).ok()?);
        let id = text.token_id(stop)?;
        text.piece(id).is_empty().then_some(id)
    };
    stops.iter().filter_map(id).collect()
}

struct Run<'a> {
    request: &'a Generate,
    text: Option<&'a Text>,
    predictor: &'a mut dyn Predictor,
    emit: &'a mut dyn FnMut(Event),
    started: Instant,
    /// Ids of prompt and answer, rising and without repetition.
    seen: Vec<u32>,
    visible: Visible,
    /// Special tokens that are stop strings: they have no text in which they would be found.
    special_stops: Vec<u32>,
    answer: Vec<u32>,
    /// The open block's, up to the last token.
    positions: Vec<Position>,
    passes: usize,
    passes_in_block: usize,
    is_lossless: bool,
}

impl Run<'_> {
    fn tokens(&mut self) -> Result<Finish, Interrupt> {
        // The last token is computed even where all are known: it tells what follows.
        let prompt = &self.request.prompt;
        let mut known = self.predictor.known().min(prompt.len() - 1);
        loop {
            let rows = self.predictor.rows_max();
            if prompt.len() - known <= rows {
                break;
            }
            let chunk = &prompt[known..known + rows];
            let before = self.begin();
            let result = self.predictor.extend(chunk);
            self.notices();
            result?;
            known += rows;
            self.report(before, rows, 0);
        }
        let mut next = prompt[known..].to_vec();
        loop {
            let before = self.begin();
            let result = self.predict(&next);
            self.notices();
            let candidate = result?;
            self.take(candidate);
            self.report(before, next.len(), 1);
            let finish = self.finish(candidate.token);
            if finish.is_some() || self.positions.len() == self.request.block_length {
                self.close_block();
            }
            if let Some(finish) = finish {
                return Ok(finish);
            }
            next = vec![candidate.token];
        }
    }

    fn predict(&mut self, tokens: &[u32]) -> Result<Candidate, Interrupt> {
        let request = self.request;
        let vocabulary = self.predictor.vocabulary();
        let size = vocabulary.size;
        let banned = match request.eos {
            EosPolicy::Suppress => vocabulary.ends.clone(),
            EosPolicy::Stop | EosPolicy::Keep => Vec::new(),
        };
        let draw = Draw {
            temperature: request.temperature,
            sampling: &request.sampling,
            noise: Noise::new(request.seed),
            position: request.prompt.len() + self.answer.len(),
            seen: &self.seen,
            banned: &banned,
        };
        let mut choose = |logits: &mut [f32], order: &mut [u32]| {
            // Rows of the head beyond the vocabulary are unused.
            let used = size.min(logits.len());
            sampling::choose(&mut logits[..used], &mut order[..used], &draw)
        };
        self.predictor.predict(tokens, &mut choose)
    }

    fn take(&mut self, candidate: Candidate) {
        for position in &mut self.positions {
            position.fresh = false;
        }
        self.positions.push(Position {
            position: self.answer.len(),
            token: Some(candidate.token),
            confidence: Some(candidate.confidence as f32),
            state: TokenState::Committed,
            fresh: true,
        });
        self.answer.push(candidate.token);
        if let Err(place) = self.seen.binary_search(&candidate.token) {
            self.seen.insert(place, candidate.token);
        }
    }

    /// Whether the token ends the text, and how.
    fn finish(&mut self, token: u32) -> Option<Finish> {
        let is_end = self.predictor.vocabulary().ends.contains(&token);
        if is_end && self.request.eos == EosPolicy::Stop {
            return Some(Finish::Eos);
        }
        if let Some(text) = self.text {
            self.visible.push(text.piece(token));
        }
        if self.visible.has_stopped() || self.special_stops.contains(&token) {
            return Some(Finish::Stop);
        }
        (self.answer.len() == self.request.canvas.len()).then_some(Finish::Length)
    }

    fn close_block(&mut self) {
        (self.emit)(Event::BlockDone {
            block: (self.answer.len() - 1) / self.request.block_length,
            passes: self.passes_in_block,
            positions: std::mem::take(&mut self.positions),
        });
        self.passes_in_block = 0;
    }

    fn notices(&mut self) {
        for notice in self.predictor.take_notices() {
            (self.emit)(Event::Notice(notice));
        }
    }

    fn begin(&self) -> (Instant, WeightsState) {
        (Instant::now(), self.predictor.weights())
    }

    fn report(&mut self, (begun, before): (Instant, WeightsState), rows: usize, head_rows: usize) {
        let weights = self.predictor.weights();
        self.is_lossless &= weights.is_lossless;
        self.passes += 1;
        self.passes_in_block += 1;
        let block = self.answer.len().saturating_sub(1) / self.request.block_length;
        (self.emit)(Event::Pass(PassReport {
            pass: self.passes,
            block,
            pass_in_block: self.passes_in_block,
            // What is still to be written is nowhere yet, and nothing is shown of it.
            positions: self.positions.clone(),
            committed: self.answer.len(),
            rows,
            head_rows,
            pass_time: begun.elapsed(),
            elapsed: self.started.elapsed(),
            device_bytes: self.predictor.device_bytes(),
            // Both begin anew when another plan is put in force.
            waited: weights.stream.waited.saturating_sub(before.stream.waited),
            streamed_bytes: weights.stream.bytes.saturating_sub(before.stream.bytes),
            weights,
        }));
    }
}

#[cfg(test)]
mod tests;
