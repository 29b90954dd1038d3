//! Models: their layers, written once for all families, and what is known of a loaded one.

pub mod dry_run;
pub mod network;
pub mod sequence_memory;

use sluice_checkpoint::{
    family::{LatentInference, MaskToken, SentenceVectors},
    features::Features,
};
use sluice_weights::{LayerKind, WeightFormat};

use crate::{error::RequestError, saved_state::StateModel};

/// Properties of a loaded model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// The family's name, as `config.json` has it.
    pub family: &'static str,
    /// Elements in all tensors.
    pub parameters: u64,
    /// Their bytes as stored on the device.
    pub weight_bytes: u64,
    /// Formats they are stored in.
    pub formats: Vec<WeightFormat>,
    /// Number of layers.
    pub layers: usize,
    /// What they are made of.
    pub layer_kind: LayerKind,
    /// Elements in a row between layers.
    pub hidden_size: usize,
    /// Number of query heads.
    pub attention_heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements in a head.
    pub head_dim: usize,
    /// Elements in a row inside the MLP.
    pub intermediate_size: usize,
    /// Ids are below this.
    pub vocab_size: usize,
    /// Rows of the embedding and the LM head; at least `vocab_size`.
    pub padded_vocab_size: usize,
    /// Most positions of prompt and answer together.
    pub context_length: usize,
    /// The mask token; `None` for an autoregressive model.
    pub mask: Option<MaskToken>,
    /// Ids that end a text; the first fills what is left after it. May be empty.
    pub eos_token_ids: Vec<u32>,
    /// The id that texts begin with; `None` where the checkpoint names none.
    pub bos_token_id: Option<u32>,
    /// Whether a learned prior of its latents lies beside it.
    pub has_prior: bool,
    /// How a latent thought model's latents are to be inferred; `None` for other models.
    pub inference: Option<LatentInference>,
    /// How a sentence encoder makes vectors of texts; `None` for other models.
    pub sentences: Option<SentenceVectors>,
    /// What tells its states from those of other models; `None` for a model without, or one that is no checkpoint's.
    pub state: Option<StateModel>,
}

impl ModelInfo {
    /// What the model can be asked for.
    #[must_use]
    pub fn features(&self) -> Features {
        Features::of_loaded(self.mask, self.layer_kind)
    }

    /// Whether a prompt and a part to fill, in tokens, fit the context.
    ///
    /// # Errors
    /// [`RequestError::ContextExceeded`] when they do not.
    pub fn check_context(&self, prompt: usize, length: usize) -> Result<(), RequestError> {
        if prompt + length > self.context_length {
            return Err(RequestError::ContextExceeded {
                prompt,
                length,
                context: self.context_length,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
