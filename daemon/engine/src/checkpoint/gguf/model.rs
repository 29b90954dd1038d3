//! What a GGUF file says of a model beyond its `config.json`.

use super::{super::CheckpointError, Gguf, ROPE_FACTORS, TOKENS_KEY};
use crate::model::family::ModelConfig;

impl Gguf {
    /// What is wrong with a key of `config.json`, said of the key that stands for it in the file.
    pub(in super::super) fn explain(&self, error: CheckpointError) -> CheckpointError {
        match error {
            CheckpointError::Config { key, problem } => {
                self.metadata.problem(&self.key_of(key), problem)
            }
            other => other,
        }
    }

    /// Adds what `config.json` has no key for: the factors of the rotation's frequencies, and how many tokens there are.
    pub(in super::super) fn complete(
        &self,
        config: &mut ModelConfig,
        rope_factors: Option<Vec<f32>>,
    ) -> Result<(), CheckpointError> {
        let key = self.dialect.key("rope.dimension_count");
        let head_dim = config.shape.head_dim;
        if let Some(turned) = self.metadata.whole(&key)?
            && turned != head_dim as u64
        {
            let problem =
                format!("is {turned}; only all {head_dim} numbers of a head are supported");
            return Err(self.metadata.problem(&key, problem));
        }
        if let Some(factors) = rope_factors {
            let frequencies = &mut config.rope.frequencies;
            let is_sound = |factor: &f32| factor.is_finite() && *factor > 0.0;
            if factors.len() != frequencies.len() || !factors.iter().all(is_sound) {
                let pairs = frequencies.len();
                let problem = format!("isn't one positive factor for each of {pairs} pairs");
                return Err(self.metadata.problem(ROPE_FACTORS, problem));
            }
            for (frequency, factor) in frequencies.iter_mut().zip(factors) {
                *frequency /= factor;
            }
        }
        if let Some(tokens) = self.metadata.texts(TOKENS_KEY)? {
            let (tokens, rows) = (tokens.len(), config.shape.embedding_rows);
            if tokens > rows {
                let problem = format!("has {tokens} tokens, the embedding has {rows}");
                return Err(self.metadata.problem(TOKENS_KEY, problem));
            }
            config.vocabulary = config.vocabulary.min(tokens);
        }
        Ok(())
    }
}
