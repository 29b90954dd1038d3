//! Requests to the engine, in token ids. Which are admitted: `admission`.

use std::{fmt, ops::Range, sync::Arc};

use sluice_checkpoint::calibration::PositionKind;
use sluice_shared::{
    decoding::Decoding,
    level::Level,
    mix::MixId,
    policy::{PolicyChoice, RENOISE},
    prior::PriorSampling,
    sampling::{EosPolicy, KvCacheMode, Remasking, Sampling},
};
use sluice_weights::{MatrixInput, TensorPart};

use crate::{grammar::RequestGrammar, posterior::Posterior, saved_state::StateOptions};

/// The load of a model that a request was made for: ids mean nothing to another model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ModelId(pub u64);

/// A position of the part to fill, as it stands before the first pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CanvasSlot {
    /// To be filled.
    Masked,
    /// Fixed from the start; counts as prompt.
    Pinned(u32),
}

/// Texts without a position. As many as are asked for come to stand where the model finds them likeliest before the first pass that
/// commits anything: from there on their positions are pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnywherePins {
    /// The texts, none of them empty.
    pub texts: Vec<Vec<u32>>,
    /// How many of them are pinned, at most; those that are likeliest where they would stand.
    pub most: usize,
}

/// Fill a canvas or, with an autoregressive model, continue a prompt. Such a model fills one position a pass, from left
/// to right: pins, guidance, remasking and policies do not apply, steps mean nothing, and a block is only how many
/// positions a picture shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Generate {
    /// The model whose ids these are.
    pub model: ModelId,
    /// Ids before the part to fill; may be empty when something is pinned.
    pub prompt: Vec<u32>,
    /// The part to fill, at least one position.
    pub canvas: Vec<CanvasSlot>,
    /// What is pinned besides, wherever the model finds it likeliest; for models alone that see the whole canvas.
    pub anywhere: Vec<AnywherePins>,
    /// A token that stands behind the part to fill from the start, for models that were trained so; it is no part of the
    /// answer.
    pub reserved: Option<u32>,
    /// Whether a block diffusion model reads what stands before the open block causally. Its blocks then begin behind the
    /// prompt, wherever that ends.
    pub causal_attention_before: bool,
    /// Positions decoded together, between 1 and the canvas's length.
    pub block_length: usize,
    /// Passes of the reference schedule over all blocks, at least 1. Any number: a remainder
    /// goes to the first blocks, and every block gets at least one.
    pub steps: usize,
    /// Scale of the Gumbel noise, at most [`crate::admission::SCALE_MAX`]; 0: none.
    pub temperature: f64,
    /// Classifier-free guidance weight, at most [`crate::admission::SCALE_MAX`]; 0: no unconditional branch.
    pub guidance: f64,
    /// How masked positions are ranked.
    pub remasking: Remasking,
    /// How end tokens are treated.
    pub eos: EosPolicy,
    /// Which positions a pass commits.
    pub policy: PolicyChoice,
    /// What passes compute and cache.
    pub decoding: Decoding,
    /// Which tokens may be drawn; for autoregressive models only.
    pub sampling: Sampling,
    /// Strings that end the text where they begin; for autoregressive models only.
    pub stops: Vec<Vec<u8>>,
    /// How many of the most probable tokens are told with their log-probabilities, beside each token's own; `None`: none
    /// are told. For autoregressive models only.
    pub top_logprobs: Option<usize>,
    /// What the text matches; for autoregressive models with end tokens only, and with [`EosPolicy::Stop`].
    pub grammar: Option<RequestGrammar>,
    /// Seed of all randomness.
    pub seed: u64,
    /// Random tokens in the place of those that the seed gives, to compare a canvas of them with a reference's.
    pub draws: Option<RecordedDraws>,
    /// How a latent thought model comes to its latents; no other model has any.
    pub thinking: Option<Box<Thinking>>,
    /// The state that a recurrent model goes on from, and whether its state is given back; no other model has any. With
    /// a state, the prompt is what follows after it.
    pub state: StateOptions,
}

/// The random tokens of a run with canvases of them, in its order: the first canvas; then of each pass those drawn of its
/// distributions, and those that stand where none was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedDraws(pub Arc<[Vec<u32>]>);

/// How a latent thought model comes to the latents of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Thinking {
    /// Most steps of inference, at most [`crate::admission::THINK_STEPS_MAX`]. With 0, latents are drawn from where it
    /// would begin.
    pub steps: usize,
    /// Where inference begins; `None`: with steps near zero, as the reference begins, and without at N(0, I).
    pub start: Option<Arc<Posterior>>,
    /// How a sample of the model's learned prior is drawn, whose latents are the means that inference begins with, or
    /// without steps the latents; `None`: it is not asked. Not with `start`.
    pub prior: Option<PriorSampling>,
    /// Whether the posterior is told in the end.
    pub returns_posterior: bool,
}

impl Thinking {
    /// Most steps before the first token: of the prior's sampler, and of inference.
    fn steps_max(&self) -> usize {
        self.steps + self.prior.map_or(0, |prior| prior.steps as usize)
    }
}

impl Generate {
    /// Fills `length` positions behind a prompt in one block, one most likely token a pass, with end tokens like any
    /// other: the base that other requests are built from.
    #[must_use]
    pub fn greedy(model: ModelId, prompt: Vec<u32>, length: usize) -> Self {
        Self {
            model,
            prompt,
            canvas: vec![CanvasSlot::Masked; length],
            anywhere: Vec::new(),
            reserved: None,
            causal_attention_before: false,
            block_length: length,
            steps: length,
            temperature: 0.0,
            guidance: 0.0,
            remasking: Remasking::default(),
            eos: EosPolicy::Keep,
            policy: PolicyChoice::default(),
            decoding: Decoding::default(),
            sampling: Sampling::default(),
            stops: Vec::new(),
            top_logprobs: None,
            grammar: None,
            seed: 0,
            draws: None,
            thinking: None,
            state: StateOptions::default(),
        }
    }
}

/// Estimate the log-likelihood of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// The model whose ids these are.
    pub model: ModelId,
    /// Ids before the answer.
    pub prompt: Vec<u32>,
    /// The answer, at least one id.
    pub answer: Vec<u32>,
    /// Monte Carlo draws, at least 1.
    pub draws: usize,
    /// Classifier-free guidance weight; 0: none.
    pub guidance: f64,
    /// Seed of the draws.
    pub seed: u64,
    /// Whether to compare the answer with greedy decoding.
    pub check_greedy: bool,
    /// Steps in which a latent thought model's posterior is fitted to the answer before the draws; `None`: as many as it
    /// was trained with. No other model has any.
    pub think_steps: Option<usize>,
}

/// Make a vector of each text, by a sentence encoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Embed {
    /// The model whose ids these are.
    pub model: ModelId,
    /// The texts, with the ids that the tokenizer puts around each. At least one, at most
    /// [`crate::admission::EMBED_TEXTS_MAX`]; one without ids has the vector 0.
    pub texts: Vec<Vec<u32>>,
}

/// Most positions that the LM head reads in a pass that finds places for pins: those of usual canvases, so that one pass does, and
/// few enough that a long canvas takes no more memory for it.
pub(crate) const PLACING_ROWS: usize = 1024;

/// Rows of a pass over texts, unless a single one has more.
const EMBED_ROWS: usize = 512;

impl Embed {
    /// The texts of each pass: as many in a row as together have no more rows than a pass takes.
    pub(crate) fn passes(&self) -> impl Iterator<Item = Range<usize>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = next;
            let mut rows = 0;
            while let Some(text) = self.texts.get(next) {
                rows += text.len();
                if rows > EMBED_ROWS && next > start {
                    break;
                }
                next += 1;
            }
            (next > start).then_some(start..next)
        })
    }

    /// Tokens of the longest text, and the most texts and rows of a pass; each at least 1.
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        let rows = |pass: &Range<usize>| self.texts[pass.clone()].iter().map(Vec::len).sum();
        let longest = self.texts.iter().map(Vec::len).max();
        let texts = self.passes().map(|pass| pass.len()).max();
        let rows: Option<usize> = self.passes().map(|pass| rows(&pass)).max();
        let some = |size: Option<usize>| size.unwrap_or(1).max(1);
        (some(longest), some(texts), some(rows))
    }
}

/// Compare a level's outputs with those of the checkpoint's own weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasureFidelity {
    /// The model whose ids these are.
    pub model: ModelId,
    /// The level; `None`: the one in force.
    pub level: Option<Level>,
    /// Texts, each of which is masked in part. At least one, at most [`crate::admission::FIDELITY_SAMPLES_MAX`].
    pub samples: Vec<Vec<u32>>,
    /// Seed of the masks.
    pub seed: u64,
}

/// Measure parts of a mix one after another, each with the checkpoint's own weights everywhere else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasureMix {
    /// The texts to measure on; its level doesn't matter.
    pub on: MeasureFidelity,
    /// The mix.
    pub mix: MixId,
    /// The matrices of each part.
    pub parts: Vec<Arc<[MatrixKey]>>,
}

/// A matrix of a model: its layer, which is 0 for parts outside of layers, and its part.
pub type MatrixKey = (usize, TensorPart);

/// Run passes, and give the inputs of some of the model's matrices to a sink.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectInputs {
    /// The model whose ids these are.
    pub model: ModelId,
    /// The passes, one after another. At least one, at most [`crate::admission::INPUT_PASSES_MAX`].
    pub passes: Vec<InputPass>,
    /// The inputs that are wanted.
    pub inputs: Vec<MatrixInput>,
    /// Who gets them.
    pub sink: InputSink,
}

/// A pass over a canvas, or over a text by an autoregressive model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputPass {
    /// Its tokens; unlike elsewhere, masks of a masked diffusion model among them.
    pub tokens: Vec<u32>,
    /// Rows that are read at its end, rising. At least one.
    pub rows: Vec<usize>,
}

/// Rows of an input at positions of one kind, in the order of their positions.
#[derive(Debug, Clone, PartialEq)]
pub struct InputRows {
    /// The input.
    pub input: MatrixInput,
    /// What stands at the positions.
    pub kind: PositionKind,
    /// The rows, one after another.
    pub values: Vec<f32>,
}

/// Takes rows during a pass, on a thread that computes it; false says that no more are wanted. While it blocks, so do
/// all requests.
#[derive(Clone)]
pub struct InputSink(pub Arc<dyn Fn(InputRows) -> bool + Send + Sync>);

impl fmt::Debug for InputSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InputSink")
    }
}

impl PartialEq for InputSink {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The work of a request.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each request, and most generate"
)]
pub enum Work {
    /// Fill a canvas.
    Generate(Generate),
    /// Estimate a likelihood.
    Score(Score),
    /// Measure a level.
    MeasureFidelity(MeasureFidelity),
    /// Measure parts of a mix.
    MeasureMix(MeasureMix),
    /// Collect inputs of matrices.
    CollectInputs(CollectInputs),
    /// Make vectors of texts.
    Embed(Embed),
}

impl Work {
    /// The model that the request was made for.
    #[must_use]
    pub fn model(&self) -> ModelId {
        match self {
            Self::Generate(generate) => generate.model,
            Self::Score(score) => score.model,
            Self::MeasureFidelity(compare) => compare.model,
            Self::MeasureMix(measure) => measure.on.model,
            Self::CollectInputs(collect) => collect.model,
            Self::Embed(embed) => embed.model,
        }
    }

    /// Rows that its passes compute at most, all together: what a turn of it counts for among others.
    #[must_use]
    pub(crate) fn row_passes(&self) -> u64 {
        let rows_and_passes = match self {
            Self::Generate(generate) => (
                generate.prompt.len() + generate.canvas.len(),
                generate.steps
                    + generate.placing_passes()
                    + generate.thinking.as_deref().map_or(0, Thinking::steps_max),
            ),
            Self::Score(score) => (
                score.prompt.len() + score.answer.len(),
                score.think_steps.unwrap_or(0) + score.draws,
            ),
            Self::MeasureFidelity(measure) => (measure.rows(), 2),
            Self::MeasureMix(measure) => (measure.on.rows(), 1 + measure.parts.len()),
            Self::CollectInputs(collect) => {
                (collect.passes.iter().map(|pass| pass.tokens.len()).sum(), 1)
            }
            Self::Embed(embed) => (embed.texts.iter().map(Vec::len).sum(), 1),
        };
        let (rows, passes) = rows_and_passes;
        (rows as u64).saturating_mul(passes as u64)
    }

    /// Whether it may share passes with others. A fidelity measurement changes the weights on its way, and whoever
    /// collects inputs wants those of its own positions.
    #[must_use]
    pub fn is_batchable(&self) -> bool {
        matches!(self, Self::Generate(_) | Self::Score(_))
    }
}

impl MeasureFidelity {
    fn rows(&self) -> usize {
        self.samples.iter().map(Vec::len).sum()
    }
}

impl Generate {
    /// Tokens of the prompt that inference of latents reads: all but the last, which is only asked for.
    #[must_use]
    pub fn thought_rows(&self) -> usize {
        match &self.thinking {
            Some(thinking) if thinking.steps > 0 => self.prompt.len().saturating_sub(1),
            _ => 0,
        }
    }

    /// Positions that the LM head reads in a pass that finds places for pins without a position; 0 where there are none.
    #[must_use]
    pub(crate) fn placing_rows(&self) -> usize {
        match self.anywhere.is_empty() {
            true => 0,
            false => self.masked_count().min(PLACING_ROWS),
        }
    }

    /// Passes that find places for pins without a position; 0 where there are none.
    #[must_use]
    pub fn placing_passes(&self) -> usize {
        match self.anywhere.is_empty() {
            true => 0,
            false => self.masked_count().div_ceil(PLACING_ROWS),
        }
    }

    fn masked_count(&self) -> usize {
        let masked = |slot: &&CanvasSlot| **slot == CanvasSlot::Masked;
        self.canvas.iter().filter(masked).count()
    }

    /// Positions of a block of block diffusion; `None` where the request is for another kind of model.
    #[must_use]
    pub fn diffusion_block(&self) -> Option<usize> {
        (self.decoding.kv_cache.mode == KvCacheMode::Blocks).then_some(self.block_length)
    }

    /// The part to fill, and what is reserved behind it.
    #[must_use]
    pub fn slots(&self) -> Vec<CanvasSlot> {
        let reserved = self.reserved.map(CanvasSlot::Pinned);
        self.canvas.iter().copied().chain(reserved).collect()
    }

    /// Positions of prompt, canvas and what is reserved, up to the end of the last block with block diffusion: it is computed
    /// whole.
    #[must_use]
    pub fn padded_length(&self) -> usize {
        let length = self.prompt.len() + self.canvas.len() + usize::from(self.reserved.is_some());
        if self.policy.name() == RENOISE {
            // Its last canvas is computed whole.
            let canvases = self.canvas.len().next_multiple_of(self.block_length.max(1));
            return self.prompt.len() + canvases;
        }
        match self.diffusion_block() {
            Some(block) if !self.causal_attention_before => length.next_multiple_of(block.max(1)),
            _ => length,
        }
    }

    /// Of a KV cache of finished text only multiples of so many positions can be used; `None` where the request is for
    /// another kind of model.
    #[must_use]
    pub fn kept_block(&self) -> Option<usize> {
        let block = self.diffusion_block()?;
        Some(if self.causal_attention_before {
            1
        } else {
            block
        })
    }

    /// The text may end from this position on. Before it an end token ends nothing: what the
    /// user pinned must appear.
    #[must_use]
    pub fn may_end_from(&self) -> usize {
        let last_pin = self
            .canvas
            .iter()
            .rposition(|slot| *slot != CanvasSlot::Masked);
        last_pin.map_or(0, |position| position + 1)
    }
}
