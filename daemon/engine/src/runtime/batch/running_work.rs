//! The work of a request in a batch.

use std::sync::Arc;

use super::super::autoregressive::{AutoregressiveRequest, WeightsWatch};
use crate::{
    decode::{DiffusionRequest, RequestMemory, Vocabulary, diffusion::Diffusion},
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
}

impl RunningWork {
    pub(super) fn is_done(&self) -> bool {
        match self {
            Self::Diffusion {
                request: filling, ..
            } => filling.is_done(),
            Self::Autoregressive(continuing) => continuing.is_done(),
        }
    }
}

/// A request that fills masks.
pub(super) fn diffusion_request(
    request: &Generate,
    vocabulary: Arc<Vocabulary>,
) -> Box<dyn DiffusionRequest> {
    let made = Diffusion::new(request.clone(), vocabulary);
    #[cfg(test)]
    return crate::runtime::tests::panics::spoiled(made, request.seed);
    #[cfg(not(test))]
    Box::new(made)
}
