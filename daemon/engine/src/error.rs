//! What can go wrong, with the figures that a reader needs.

use sluice_checkpoint::CheckpointError;
use sluice_cuda::CudaError;
use sluice_ops::OpsError;
use sluice_plan::PlanError;
use sluice_shared::{level::Level, mix::MixId};
use sluice_tokenizer::TokenizerError;

/// A request breaks a rule; nothing was computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// An amount that must be at least 1 is 0.
    #[error("{what} must be at least 1, not 0")]
    Zero {
        /// The name of the amount.
        what: &'static str,
    },
    /// The prompt and the part to fill do not fit the model's context.
    #[error(
        "a prompt of {prompt} tokens and a length of {length} exceed the model's context length of {context}"
    )]
    ContextExceeded {
        /// Tokens of the prompt.
        prompt: usize,
        /// Positions to fill.
        length: usize,
        /// Positions of the model's context.
        context: usize,
    },
    /// A block is longer than the part to fill.
    #[error("block length {block} exceeds the {canvas} positions to fill")]
    BlockTooLong {
        /// Positions of a block that were asked for.
        block: usize,
        /// Positions to fill.
        canvas: usize,
    },
    /// A scale that is negative, too large or NaN.
    #[error("{what} must be between 0 and {max}, not {value}")]
    NotAScale {
        /// The name of the scale.
        what: &'static str,
        /// Greatest allowed value.
        max: f64,
        /// The value that was given.
        value: f64,
    },
    /// An id beyond the vocabulary.
    #[error("token id {id} is outside of the vocabulary of {vocab_size} tokens")]
    UnknownToken {
        /// The id that was given.
        id: u32,
        /// Ids are below this.
        vocab_size: usize,
    },
    /// The mask's id among the given tokens.
    #[error("token id {id} is the mask token; give the number of positions to fill as the length")]
    MaskGiven {
        /// The mask's id.
        id: u32,
    },
    /// A setting that only autoregressive models support.
    #[error(
        "{what}: only autoregressive models support this; the loaded model is a masked diffusion model"
    )]
    OnlyAutoregressive {
        /// What was asked for.
        what: &'static str,
    },
    /// A setting that only masked diffusion models support.
    #[error(
        "{what}: only masked diffusion models support this; the loaded model is autoregressive"
    )]
    OnlyMaskedDiffusion {
        /// What was asked for.
        what: &'static str,
    },
    /// A setting that only latent thought models support.
    #[error("{what}: only latent thought models support this; the loaded model has no latents")]
    OnlyLatent {
        /// What was asked for.
        what: &'static str,
    },
    /// A setting that only recurrent models support.
    #[error(
        "{what}: only recurrent models (RWKV-7) have a state to save or to go on from; the loaded model has none"
    )]
    OnlyRecurrent {
        /// What was asked for.
        what: &'static str,
    },
    /// A setting of the sampler that makes no sense.
    #[error("{what}: {problem}")]
    Sampling {
        /// The name of the setting.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// More draws than an estimate can use.
    #[error("{draws} draws exceed the limit of {max}")]
    TooManyDraws {
        /// Draws that were asked for.
        draws: usize,
        /// The most draws that are allowed.
        max: usize,
    },
    /// A model that generates was asked for vectors.
    #[error("this model generates text; only sentence encoders embed texts")]
    OnlyEncoders,
    /// A sentence encoder was asked for something else than vectors.
    #[error("this model is a sentence encoder, which embeds texts and does nothing else")]
    NotEncoders,
    /// More texts than a request for vectors takes.
    #[error("{texts} texts exceed the limit of {max} for one request")]
    TooManyTexts {
        /// Texts that were given.
        texts: usize,
        /// The most texts that are allowed.
        max: usize,
    },
    /// More texts than a comparison takes.
    #[error("{samples} texts exceed the limit of {max} for one fidelity measurement")]
    TooManySamples {
        /// Texts that were given.
        samples: usize,
        /// The most texts that are allowed.
        max: usize,
    },
}

/// Why the engine refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint's tokenizer cannot be used.
    #[error("tokenizer: {0}")]
    Tokenizer(#[from] TokenizerError),
    /// A request's grammar cannot go on.
    #[error(transparent)]
    Grammar(TokenizerError),
    /// The request breaks a rule.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The queue holds as many requests as it may.
    #[error("the queue is full: {capacity} requests are waiting")]
    QueueFull {
        /// Capacity of the queue.
        capacity: usize,
    },
    /// As many loads, unloads or measurements of the device wait as may.
    #[error("{max} commands of this kind are waiting, which is the limit")]
    TooManyCommands {
        /// How many may wait.
        max: usize,
    },
    /// No model is loaded.
    #[error("no model is loaded")]
    NoModel,
    /// Another model was loaded since the request was made.
    #[error("the model was replaced before the request ran")]
    ModelReplaced,
    /// The GPU's attention kernels do not support the model's heads.
    #[error("the GPU kernels support even head dimensions up to {max}; this model has {head_dim}")]
    HeadDim {
        /// Elements in one of the model's heads.
        head_dim: usize,
        /// Most elements that its heads may have.
        max: usize,
    },
    /// A sample of the learned prior is infinite or not a number.
    #[error("the sample of the model's learned prior is not finite")]
    PriorNotFinite,
    /// The device refused something, or failed.
    #[error(transparent)]
    Ops(#[from] OpsError),
    /// No plan is possible.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A load was cancelled.
    #[error("the load was cancelled")]
    LoadCancelled,
    /// As many models are loaded as may be, and none of them may go.
    #[error(
        "no place for another model: {max} may be loaded, and those that are loaded are pinned or have a job"
    )]
    NoPlace {
        /// Models that may be loaded at once.
        max: usize,
    },
    /// Another change of the settings came before this one was complete.
    #[error("superseded by another change of level or budget")]
    Superseded,
    /// Weight groups would be streamed in a format that no file holds.
    #[error(
        "level {level} within this budget streams {streamed_bytes} bytes of converted weights, and no weight cache folder is configured"
    )]
    NoWeightCache {
        /// The level of the plan.
        level: Level,
        /// Converted bytes that each pass would stream.
        streamed_bytes: u64,
    },
    /// There are no optimized weights, or none of this name.
    #[error(
        "this model has no {}",
        .0.map_or_else(|| "optimized weights".to_owned(), |mix| format!("mix {mix}"))
    )]
    NoMix(Option<MixId>),
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    Stopped,
    /// A bug: the engine's thread panicked; in the middle of a pass, it has ended.
    #[error("the engine failed: this is a bug in sluiced; its log has the details")]
    Panicked,
}

impl From<CudaError> for EngineError {
    fn from(error: CudaError) -> Self {
        Self::Ops(error.into())
    }
}
