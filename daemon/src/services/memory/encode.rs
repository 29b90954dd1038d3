//! Vectors of what is remembered and searched for, by a sentence encoder of the daemon's models.

use std::sync::Arc;

use sluice_checkpoint::features::Feature;
use sluice_proto::v1;
use sluice_retrieval::EncoderId;

use super::super::{Daemon, call_terms::CallTerms};
use crate::{
    failure::Failure,
    memory::{EncoderChoice, MemoryError},
};

impl Daemon {
    /// The encoder, if there is one, by the name of its model.
    pub(super) fn memory_encoder(&self) -> Option<String> {
        match self.memory.encoder() {
            EncoderChoice::Off => None,
            EncoderChoice::Named(name) => Some(name.clone()),
            EncoderChoice::Auto => {
                let loaded = self.models.all_loaded().into_iter();
                let mut encoders = loaded.filter(|model| {
                    let features = model.loaded.info.features();
                    features.refusal(Feature::Embed).is_none()
                });
                Some(encoders.next()?.name.name)
            }
        }
    }

    /// A vector of each text, as requests like anybody's: in the caller's turn, listed while they run, and by a model that is loaded for them.
    pub(super) async fn encode(
        self: &Arc<Self>,
        terms: &CallTerms,
        encoder: &str,
        texts: Vec<String>,
    ) -> Result<(EncoderId, Vec<Vec<f32>>), Failure> {
        let request = v1::EmbedRequest {
            texts,
            model: encoder.to_owned(),
            ..Default::default()
        };
        let terms = CallTerms {
            waits: true,
            is_step: true,
            message: None,
            ..terms.clone()
        };
        let answer = self.embed(terms, request).await;
        let answer = answer.map_err(|status| MemoryError::Encoder {
            model: encoder.to_owned(),
            reason: status.message().to_owned(),
        })?;
        let id = EncoderId {
            name: answer.model,
            elements: answer.dimensions as usize,
        };
        let vectors = answer.vectors.into_iter().map(|vector| vector.values);
        Ok((id, vectors.collect()))
    }
}
