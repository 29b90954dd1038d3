//! The events that the engine emits while it works. Emitting never waits for a reader.

use std::{
    ops::AddAssign,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Duration,
};

use sluice_ops::PhaseTimes;
use sluice_shared::level::Level;

use crate::{
    error::EngineError,
    posterior::Posterior,
    residency::{ExpertStats, StreamStats},
    saved_state::SavedState,
};

/// Takes a request's events, on the engine's thread; must not block.
pub type EventSink = Box<dyn FnMut(Event) + Send>;

/// A request's sink, which hears how the request ended, even when the engine's thread panics. One that panics itself hears
/// nothing more, and its request is over.
pub(crate) struct RequestListener(Option<EventSink>);

impl RequestListener {
    pub(crate) fn new(sink: EventSink) -> Self {
        Self(Some(sink))
    }

    pub(crate) fn tell(&mut self, event: Event) {
        let Some(sink) = &mut self.0 else { return };
        if !call(sink, event) {
            self.give_up();
        }
    }

    /// Whether the sink has panicked, so that nobody hears of the request any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.is_none()
    }

    /// Says that something of the request's has panicked, and drops the sink.
    fn give_up(&mut self) {
        if let Some(mut sink) = self.0.take() {
            call(&mut sink, Event::Finished(Err(EngineError::Panicked)));
            discard(sink);
        }
    }

    /// Sends the last event.
    pub(crate) fn finish(mut self, result: Result<Outcome, EngineError>) {
        if let Some(mut sink) = self.0.take() {
            call(&mut sink, Event::Finished(result));
            discard(sink);
        }
    }
}

/// Calls a sink; whether it came back. It runs on the thread of all requests, which its panic must not end.
fn call(sink: &mut EventSink, event: Event) -> bool {
    catch_unwind(AssertUnwindSafe(|| sink(event))).is_ok()
}

/// Drops a sink, whose end may panic as well.
fn discard(sink: EventSink) {
    drop(catch_unwind(AssertUnwindSafe(|| drop(sink))));
}

impl Drop for RequestListener {
    fn drop(&mut self) {
        if thread::panicking() {
            self.give_up();
        }
    }
}

/// Something a request went through.
#[derive(Debug)]
pub enum Event {
    /// The first pass is about to run.
    Started {
        /// Blocks of the canvas.
        blocks: usize,
        /// Whether only policy and weights approximate: what passes leave out changes no token, and the KV cache has
        /// the precision that it was computed with.
        is_exact: bool,
    },
    /// A pass is done; a full picture of the open block.
    Pass(Box<PassReport>),
    /// Pins without a position have found one, in the pass that is told next. Those that are missing found no room.
    Placed(Vec<PlacedText>),
    /// A step for latents is done: of sampling the learned prior, or of inference.
    Thought(Box<ThoughtReport>),
    /// A block has no mask left.
    BlockDone {
        /// Its index, from 0.
        block: usize,
        /// Passes it took.
        passes: usize,
        /// All its positions.
        positions: Vec<CanvasPosition>,
    },
    /// A message for the user.
    Notice(String),
    /// Some draws of an estimate, or some passes of a comparison, are done.
    ScoreProgress {
        /// How many are done.
        done: usize,
        /// How many there are.
        total: usize,
    },
    /// The last event of every request.
    Finished(Result<Outcome, EngineError>),
}

/// A pass, as seen from the open block.
#[derive(Debug, Clone, PartialEq)]
pub struct PassReport {
    /// Passes of the request so far, this one included.
    pub passes: usize,
    /// Index of the open block.
    pub block: usize,
    /// Passes in this block so far.
    pub passes_in_block: usize,
    /// Every position of the block.
    pub positions: Vec<CanvasPosition>,
    /// Committed and pinned positions of the whole canvas.
    pub committed: usize,
    /// Rows the layers computed for this request.
    pub rows: usize,
    /// Rows the LM head read for this request.
    pub lm_head_rows: usize,
    /// Time since the request started.
    pub elapsed: Duration,
    /// Time, memory and streaming of the pass.
    pub cost: PassCost,
}

/// How far a request is with its latents: a step of sampling the learned prior, or of inference.
#[derive(Debug, Clone, PartialEq)]
pub struct ThoughtReport {
    /// Steps of its kind that were taken.
    pub step: usize,
    /// Most steps.
    pub steps_max: usize,
    /// What the step came to.
    pub found: ThoughtStep,
    /// Time since the first step of its kind began.
    pub elapsed: Duration,
    /// Time, memory and streaming of the pass; nothing where there was none.
    pub cost: PassCost,
    /// Whether no step of its kind follows.
    pub is_last: bool,
    /// The posterior, in the last report of all, if it was asked for.
    pub posterior: Option<Arc<Posterior>>,
}

/// What a step for latents came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ThoughtStep {
    /// Of sampling the learned prior.
    Sampled {
        /// The standard deviation of the noise that is left, relative to normalised latents.
        noise_level: f64,
    },
    /// Of inference.
    Inferred {
        /// Cross-entropy of the prompt's tokens after the first, in nats, with latents of noise that nothing was fitted
        /// on.
        nll: f64,
        /// KL divergence of the posterior from N(0, I), in nats. With the cross-entropy it is an estimate of an upper
        /// bound on what the tokens cost.
        kl: f64,
        /// Tokens whose cross-entropy that is.
        tokens: usize,
    },
}

/// The state of the weights after a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WeightsState {
    /// The weights version.
    pub weights_version: u64,
    /// Whether the weights are the checkpoint's own, bit for bit, and rows are not rounded for the matmul.
    pub is_lossless: bool,
    /// Steps done and in all, during a switch to another plan; `None` otherwise.
    pub switch: Option<(usize, usize)>,
    /// Time and bytes of streaming so far.
    pub stream: StreamStats,
}

/// The cost of a pass, for all the requests that shared it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassCost {
    /// Requests that shared it.
    pub batch_requests: usize,
    /// How long the pass took.
    pub time: Duration,
    /// Time that it waited for streamed weights.
    pub waited: Duration,
    /// How the rest of its time divides into phases; `None` where a GPU's clock could not time the pass.
    pub phases: Option<PassPhases>,
    /// Bytes of weights that were streamed for it.
    pub streamed_bytes: u64,
    /// What it touched of a mixture's experts, where not all of them are on the device.
    pub experts: ExpertStats,
    /// Device memory held after it, in bytes.
    pub device_bytes: u64,
    /// The state of the weights.
    pub weights: WeightsState,
}

/// The time of passes by phase. With the time that they waited, all but `copy` add up to their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassPhases {
    /// Rotary embedding, KV cache writes and attention.
    pub attention: Duration,
    /// Matmuls with the layers' matrices.
    pub matmul: Duration,
    /// Decompression of matrices for the matmul, the LM head's included: the sum over all threads, divided by their
    /// number. A matmul of a single row is computed in the same loop and counts here, too.
    pub decompress: Duration,
    /// Matmuls with the LM head, and the choice of tokens.
    pub lm_head: Duration,
    /// Embedding, norms, activation functions, changes of the weights, and what lies between operations.
    pub other: Duration,
    /// Besides that sum: time in which the pass's streamed weights were read, decompressed where they are stored
    /// compressed, and held back by a read limit.
    pub copy: Duration,
}

impl PassPhases {
    /// The phases of one pass that took `time` in all, with `waited` and `copy` measured apart.
    pub(crate) fn of(times: PhaseTimes, time: Duration, waited: Duration, copy: Duration) -> Self {
        let PhaseTimes {
            attention,
            matmul: multiply,
            decompress: decode,
            lm_head: head,
            waited: _,
        } = times;
        // What no phase has counted is `other`, so that the phases always add up to the pass.
        let known = attention + multiply + decode + head + waited;
        Self {
            attention,
            matmul: multiply,
            decompress: decode,
            lm_head: head,
            other: time.saturating_sub(known),
            copy,
        }
    }
}

impl AddAssign for PassPhases {
    fn add_assign(&mut self, more: Self) {
        self.attention += more.attention;
        self.matmul += more.matmul;
        self.decompress += more.decompress;
        self.lm_head += more.lm_head;
        self.other += more.other;
        self.copy += more.copy;
    }
}

/// A position of the part to fill.
#[derive(Debug, Clone, PartialEq)]
pub struct CanvasPosition {
    /// The index, counted from the first position to fill.
    pub position: usize,
    /// The token that stands or would stand there; `None` before the first prediction.
    pub token: Option<u32>,
    /// Probability of the token; `None` for what was pinned or never predicted.
    pub confidence: Option<f32>,
    /// How final it is.
    pub state: TokenState,
    /// Whether this pass committed it.
    pub is_fresh: bool,
    /// Whether this pass committed it where another token had been committed before.
    pub is_edited: bool,
    /// Log-probabilities, where they were asked for; of tokens of autoregressive models alone.
    pub logprobs: Option<Arc<TokenLogprobs>>,
}

impl CanvasPosition {
    /// A position that no pass has predicted.
    pub(crate) fn unpredicted(position: usize, token: Option<u32>, state: TokenState) -> Self {
        Self {
            position,
            token,
            confidence: None,
            state,
            is_fresh: false,
            is_edited: false,
            logprobs: None,
        }
    }
}

/// Log-probabilities of a token and of the most probable ones in its place, in nats: of the softmax of the model's own
/// logits, before anything that a request asks for changes them.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The chosen token's.
    pub chosen: f32,
    /// The most probable tokens and theirs, the most probable first; of equal ones the lower id.
    pub top: Vec<(u32, f32)>,
}

/// Where a text stands that was given without a position.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedText {
    /// The place of its group among those of the request.
    pub group: usize,
    /// Its place among the texts of the group.
    pub text: usize,
    /// Its first position, counted from the first one to fill.
    pub position: usize,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The mean log-probability of its tokens there, in nats.
    pub log_probability: f64,
}

/// How final a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenState {
    /// Nothing predicted yet.
    Masked,
    /// Still masked; the token is the present best guess.
    Provisional,
    /// Fixed for good.
    Committed,
    /// Fixed from the start.
    Pinned,
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A filled canvas.
    Generated(GenerationResult),
    /// A likelihood estimate.
    Scored(ScoreResult),
    /// A measurement of a level.
    Fidelity(FidelityResult),
    /// What each part of a mix costs, in the order in which they were asked for.
    MixParts(Vec<PartLoss>),
    /// The sink has the inputs of all passes.
    InputsCollected {
        /// Whether all passes saw the checkpoint's own weights, bit for bit.
        is_lossless: bool,
    },
    /// Vectors of texts.
    Embedded(EmbeddingResult),
    /// Cancelled before it had a result of its kind: an estimate, or a request that was still waiting.
    Cancelled,
}

/// Vectors of texts.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingResult {
    /// A vector for each text, in their order.
    pub vectors: Vec<Vec<f32>>,
    /// Whether all passes saw the checkpoint's own weights, bit for bit.
    pub is_lossless: bool,
    /// Time from the first pass on.
    pub elapsed: Duration,
}

/// A filled canvas.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationResult {
    /// Ids of the whole part to fill. After a stop at EOS the tail is EOS; after a cancel, open positions hold the mask
    /// id. Of an autoregressive model only what it wrote, the end token included.
    pub tokens: Vec<u32>,
    /// Why decoding ended.
    pub finish_reason: FinishReason,
    /// Number of passes that were run.
    pub passes: usize,
    /// How often a pass replaced a committed token by another one.
    pub edits: usize,
    /// Time from the first pass on.
    pub elapsed: Duration,
    /// Largest device memory held meanwhile, weights included, in bytes.
    pub peak_device_bytes: u64,
    /// Whether all passes saw the checkpoint's own weights, bit for bit.
    pub is_lossless: bool,
    /// The state in the end, if it was asked for and the request was not cancelled.
    pub state: Option<Box<SavedState>>,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The canvas is full.
    Length,
    /// EOS was committed with nothing masked before it.
    Eos,
    /// A stop string was met.
    Stop,
    /// The request was cancelled.
    Cancelled,
}

/// How close a level is to the checkpoint's own weights, on the same masked canvases.
#[derive(Debug, Clone, PartialEq)]
pub struct FidelityResult {
    /// The level, never `auto`.
    pub level: Level,
    /// Canvases that were compared.
    pub samples: usize,
    /// Masked positions of them that were read.
    pub rows: usize,
    /// Mean of KL(checkpoint ‖ level) over the rows, in nats.
    pub mean_kl: f64,
    /// Share of rows whose most probable token is the same.
    pub top_agreement: f64,
    /// Estimated upper bound of the negative log-likelihood of a token under the checkpoint's weights, in nats.
    pub source_bound: f64,
    /// The bound under the level's weights.
    pub level_bound: f64,
    /// Standard error of `mean_kl`, samples being independent and their rows not.
    pub kl_standard_error: f64,
    /// Time that the measurement took.
    pub elapsed: Duration,
}

/// What a part of a mix costs: the divergence from the checkpoint's own weights, which all others are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PartLoss {
    /// Mean of KL(checkpoint ‖ mix) over all rows, in nats.
    pub mean_kl: f64,
    /// Standard error of that mean, samples being independent and their rows not.
    pub standard_error: f64,
}

/// An estimate of a likelihood.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreResult {
    /// Natural logarithm of the likelihood, a lower bound in expectation.
    pub log_likelihood: f64,
    /// Standard error; `None` for a single draw.
    pub standard_error: Option<f64>,
    /// Whether greedy decoding gives this answer, if asked.
    pub is_greedy: Option<bool>,
    /// Of a latent thought model, the KL divergence of the posterior from the prior, in nats; the bound counts it.
    pub kl: Option<f64>,
    /// Of a latent thought model, the bound of all draws together, which is no lower in expectation (arXiv 1509.00519).
    pub multi_sample_bound: Option<f64>,
    /// Time that the estimate took.
    pub elapsed: Duration,
}

impl ScoreResult {
    /// The mean of what draws found.
    pub(crate) fn of_draws(values: &[f64], elapsed: Duration) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Self {
            log_likelihood: mean,
            // With one draw there is no spread to tell an error from.
            standard_error: (values.len() > 1).then(|| (squares / (count - 1.0) / count).sqrt()),
            is_greedy: None,
            kl: None,
            multi_sample_bound: None,
            elapsed,
        }
    }
}
