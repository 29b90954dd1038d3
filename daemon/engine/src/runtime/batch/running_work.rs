//! The work of a request in a batch.

use std::sync::Arc;

use super::super::{
    autoregressive::{AutoregressiveRequest, WeightsWatch},
    latent_score::LatentScore,
};
use crate::{
    decode::{
        DiffusionRequest, RenoisedText, RequestMemory, Vocabulary, diffusion::Diffusion,
        draft::DraftedText,
    },
    model::network::LatentText,
    request::Generate,
};

/// The work of a running request.
pub(super) enum RunningWork {
    Diffusion {
        request: Box<dyn DiffusionRequest>,
        memory: RequestMemory,
        /// Watches the weights that its KV cache was computed with, from the first pass on.
        watch: Option<WeightsWatch>,
    },
    Autoregressive(Box<AutoregressiveRequest>),
    LatentScore(Box<LatentScore>),
}

impl RunningWork {
    pub(super) fn is_done(&self) -> bool {
        match self {
            Self::Diffusion {
                request: filling, ..
            } => filling.is_done(),
            Self::Autoregressive(continuing) => continuing.is_done(),
            Self::LatentScore(estimate) => estimate.is_done(),
        }
    }

    /// The text for whose latents the next pass is, if it is one of that kind.
    pub(super) fn latent_text(&self) -> Option<LatentText<'_>> {
        match self {
            Self::Diffusion { .. } => None,
            Self::Autoregressive(continuing) => continuing.latent_text(),
            Self::LatentScore(estimate) => (!estimate.is_done()).then(|| estimate.text()),
        }
    }
}

/// A request that fills masks, drafts or denoises.
pub(super) fn diffusion_request(
    request: &Generate,
    vocabulary: Arc<Vocabulary>,
) -> Box<dyn DiffusionRequest> {
    if let Some(drafted) = DraftedText::new(request, &vocabulary) {
        return Box::new(drafted);
    }
    if let Some(renoised) = RenoisedText::new(request, &vocabulary) {
        return Box::new(renoised);
    }
    let made = Diffusion::new(request.clone(), vocabulary);
    #[cfg(test)]
    return crate::runtime::tests::panics::spoiled(made, request.seed);
    #[cfg(not(test))]
    Box::new(made)
}
