//! What models can be asked for, decided by their configuration alone.
//!
//! This is the one place that decides it. Requests, jobs and devices are refused by it, `sluice inspect` tells it, and a test
//! compares it with the table of docs/models.md and with what tiny models of all families answer.

use std::fmt;

use sluice_weights::LayerKind;

use crate::family::{MaskToken, ModelConfig};

/// Something that not every model can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Text, or the likelihood of one.
    Generate,
    /// Vectors of texts.
    Embed,
    /// Which masked positions a pass commits: policies, steps, remasking, guidance.
    Policies,
    /// Tokens that are fixed before anything is written, and spans that are replaced.
    Pins,
    /// Policies that replace committed tokens while a block is open: `edit`.
    ReplaceTokens,
    /// Policies that read committed tokens again as if they were masked: `revoke`.
    VerifyTokens,
    /// Policies that write from left to right, as causal passes predict it: `autoregressive`, `verify`.
    NextToken,
    /// A policy that denoises canvases of random tokens: `renoise`.
    Renoise,
    /// A KV cache of what a canvas's later passes leave out: `prefix`, `dual`, `vicinity`.
    PassCache,
    /// The KV cache of finished blocks: `blocks`.
    BlockCache,
    /// What is left out, tried or looked for behind the open block: suffix windows, canvases that grow, speculation, pins without a
    /// position.
    Lookahead,
    /// What chooses among the next token's candidates and ends a text: top-k, top-p, min-p, repetition penalty, stop strings,
    /// log-probabilities, grammars.
    NextTokenChoice,
    /// Likelihood estimates.
    Score,
    /// How far a level's answers are from the checkpoint's own.
    Fidelity,
    /// Inference of latents before writing.
    Think,
    /// States that are kept in files and go on.
    States,
    /// Statistics of matrices' inputs.
    Calibrate,
    /// Formats chosen matrix by matrix.
    Optimize,
    /// Smaller models without some heads and channels.
    Prune,
    /// One compressed file.
    Compress,
    /// Computing on a GPU.
    Gpu,
}

/// Why a model cannot be asked for a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureRefusal {
    /// Only masked diffusion models can.
    OnlyMaskedDiffusion,
    /// Only autoregressive models can.
    OnlyAutoregressive,
    /// Only latent thought models can.
    OnlyLatent,
    /// Only recurrent models can.
    OnlyRecurrent,
    /// Only sentence encoders can.
    OnlyEncoders,
    /// Sentence encoders embed texts and do nothing else.
    NotEncoders,
    /// Why this one cannot, as a phrase that may follow the feature or the model.
    Because(&'static str),
}

/// What decides a model's features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    mask: Option<MaskToken>,
    layer_kind: LayerKind,
}

impl Feature {
    /// Every feature, those of requests first.
    pub const ALL: [Self; 21] = [
        Self::Generate,
        Self::Embed,
        Self::Policies,
        Self::Pins,
        Self::ReplaceTokens,
        Self::VerifyTokens,
        Self::NextToken,
        Self::Renoise,
        Self::PassCache,
        Self::BlockCache,
        Self::Lookahead,
        Self::NextTokenChoice,
        Self::Score,
        Self::Fidelity,
        Self::Think,
        Self::States,
        Self::Calibrate,
        Self::Optimize,
        Self::Prune,
        Self::Compress,
        Self::Gpu,
    ];

    /// Its name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Embed => "embed",
            Self::Policies => "policies, steps, remasking, guidance",
            Self::Pins => "pins, edits",
            Self::ReplaceTokens => "policy edit",
            Self::VerifyTokens => "policy revoke",
            Self::NextToken => "policies autoregressive, verify",
            Self::Renoise => "policy renoise",
            Self::PassCache => "KV cache prefix, dual, vicinity",
            Self::BlockCache => "KV cache blocks",
            Self::Lookahead => "suffix window, canvas growth, speculation, pins anywhere",
            Self::NextTokenChoice => "top-k, top-p, stop, logprobs, grammars",
            Self::Score => "score",
            Self::Fidelity => "fidelity",
            Self::Think => "think",
            Self::States => "save-state, state",
            Self::Calibrate => "calibrate",
            Self::Optimize => "optimize",
            Self::Prune => "prune",
            Self::Compress => "compress",
            Self::Gpu => "GPU",
        }
    }
}

impl Features {
    /// The features of a model with this configuration.
    #[must_use]
    pub fn of(config: &ModelConfig) -> Self {
        Self::of_loaded(config.mask, config.shape.layer_kind)
    }

    /// The features of a loaded model.
    #[must_use]
    pub fn of_loaded(mask: Option<MaskToken>, layer_kind: LayerKind) -> Self {
        Self { mask, layer_kind }
    }

    /// Whether the model can be asked for a feature.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        self.refusal(feature).is_none()
    }

    /// Why the model cannot be asked for a feature; `None` if it can.
    #[must_use]
    pub fn refusal(&self, feature: Feature) -> Option<FeatureRefusal> {
        use FeatureRefusal::{
            Because, NotEncoders, OnlyAutoregressive, OnlyEncoders, OnlyLatent,
            OnlyMaskedDiffusion, OnlyRecurrent,
        };
        let is_latent = matches!(self.layer_kind, LayerKind::LatentThought(_));
        let is_mixture = matches!(self.layer_kind, LayerKind::Mixture(_) | LayerKind::Gemma(_));
        let renoises = self.mask.is_some_and(|mask| mask.is_random());
        let has_states = matches!(self.layer_kind, LayerKind::Rwkv7(_));
        let blocks = self.mask.and_then(|mask| mask.blocks);
        let reads_causally = blocks.is_some_and(|blocks| blocks.causal_attention_before);
        let refused = |is_refused: bool, refusal| is_refused.then_some(refusal);
        let is_encoder = matches!(self.layer_kind, LayerKind::Encoder(_));
        match (feature, self.mask) {
            (Feature::Embed, _) => refused(!is_encoder, OnlyEncoders),
            (Feature::Gpu, _) if is_encoder => None,
            (Feature::Compress, _) if is_encoder => Some(Because(
                "a sentence encoder has files in folders, for which a .sluice file has no place",
            )),
            _ if is_encoder => Some(NotEncoders),
            (Feature::Generate, _) => None,
            (Feature::NextTokenChoice, mask) => refused(mask.is_some(), OnlyAutoregressive),
            (Feature::Score, None) => refused(!is_latent, OnlyMaskedDiffusion),
            (Feature::Fidelity, _) => refused(
                renoises,
                Because("is measured on masks, which this model does not know"),
            ),
            (Feature::Think, _) => refused(!is_latent, OnlyLatent),
            (Feature::States, _) => refused(!has_states, OnlyRecurrent),
            (Feature::Calibrate, _) if self.layer_kind != LayerKind::Attention => {
                Some(Because("only layers of attention and a gated MLP can"))
            }
            (Feature::Calibrate, _) => refused(
                blocks.is_some(),
                Because("the canvases that a calibration fills are no block diffusion model's"),
            ),
            (Feature::Optimize | Feature::Prune, _) if is_mixture => {
                Some(Because("has mixtures of experts"))
            }
            (Feature::Optimize | Feature::Compress | Feature::Gpu, _) => None,
            (Feature::Prune, _) => refused(
                self.layer_kind != LayerKind::Attention,
                Because("has layers without attention, which cannot be pruned"),
            ),
            (_, None) => Some(OnlyMaskedDiffusion),
            (Feature::Renoise, Some(_)) => refused(
                !renoises,
                Because("denoises canvases of random tokens, for which this model is not trained"),
            ),
            (Feature::BlockCache, Some(_)) => refused(
                blocks.is_none(),
                Because("finished blocks can only be kept for a block diffusion model"),
            ),
            (Feature::PassCache, Some(_)) if blocks.is_some() => Some(Because(
                "a block diffusion model keeps finished blocks, which changes no token; leave it out",
            )),
            (Feature::Score, Some(_)) => refused(
                blocks.is_some(),
                Because("is a block diffusion model, for which no likelihood is estimated"),
            ),
            (_, Some(_)) if renoises => Some(Because(
                "takes policy renoise alone, which denoises whole canvases",
            )),
            (Feature::Policies | Feature::Pins | Feature::PassCache, Some(_)) => None,
            (Feature::ReplaceTokens, Some(_)) if blocks.is_none() || reads_causally => {
                Some(Because(
                    "replaces written tokens, for which only block diffusion models are trained",
                ))
            }
            // What is behind the open part is not filled yet when that is read for the last time.
            (Feature::ReplaceTokens, Some(_)) => refused(
                blocks.is_some_and(|blocks| blocks.filled_together < blocks.length),
                Because(
                    "replaces tokens of a whole block, of which this model fills a part at a time",
                ),
            ),
            (Feature::VerifyTokens, Some(mask)) => refused(
                mask.shifted || blocks.is_some(),
                Because(
                    "verifies committed tokens; it cannot be combined with a KV cache or a model with shifted logits",
                ),
            ),
            (Feature::NextToken, Some(_)) => refused(
                !reads_causally,
                Because("asks for the next token of a text, for which this model is not trained"),
            ),
            (Feature::Lookahead, Some(_)) => refused(
                blocks.is_some(),
                Because("a block diffusion model sees nothing behind its open block"),
            ),
        }
    }
}

impl FeatureRefusal {
    /// The reason, as a phrase that may follow the feature or the model.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::OnlyMaskedDiffusion => "only masked diffusion models can",
            Self::OnlyAutoregressive => "only autoregressive models can",
            Self::OnlyLatent => "only latent thought models can",
            Self::NotEncoders => "is a sentence encoder, which embeds texts and does nothing else",
            Self::OnlyEncoders => "only sentence encoders can",
            Self::OnlyRecurrent => "only recurrent models (RWKV-7) can",
            Self::Because(reason) => reason,
        }
    }
}

impl fmt::Display for FeatureRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}
