//! The model that a checkpoint describes, with what a GGUF file adds to a `config.json`.

use sluice_codec::Scheme;
use sluice_formats::Format;
use sluice_weights::{HIDDEN_SIZE_MAX, Shape};

use super::{
    super::{Checkpoint, CheckpointError},
    Gguf, ROPE_FACTORS, TOKENS_KEY,
};
use crate::family::ModelConfig;

impl Checkpoint {
    /// The model that the configuration describes.
    ///
    /// # Errors
    /// An unknown architecture, or a key that is missing, invalid, or asks for what isn't supported.
    pub fn model(&self) -> Result<ModelConfig, CheckpointError> {
        let generation = self.generation_config()?;
        let mut keys = self.config()?;
        self.add_table_sizes(&mut keys)?;
        let config = ModelConfig::read(&keys, generation.as_ref());
        let Some(gguf) = &self.gguf else {
            let mut config = match &self.rwkv {
                Some(rwkv) => config.map_err(|error| rwkv.explain(error))?,
                None => config?,
            };
            config.shape.tied &= !self.has_quantized_lm_head(&config.shape);
            self.complete_encoder(&mut config)?;
            return Ok(config);
        };
        let mut config = config.map_err(|error| gguf.explain(error))?;
        gguf.complete(&mut config, self.rope_factors()?)?;
        Ok(config)
    }

    /// Whether a mix was written to this file whose LM head is quantized beside the embedding that the configuration ties it
    /// to: rows of the embedding are read one by one, which quantized ones can't be.
    fn has_quantized_lm_head(&self, shape: &Shape) -> bool {
        let head = self.compressed(&shape.own_lm_head_name());
        // Other files that have such a tensor have the embedding's values in it.
        self.is_container() && head.is_some_and(|head| head.scheme() == Scheme::Columns)
    }

    /// RoPE's frequency factors, which a GGUF file may have as a tensor.
    fn rope_factors(&self) -> Result<Option<Vec<f32>>, CheckpointError> {
        let Some(entry) = self.tensor(ROPE_FACTORS) else {
            return Ok(None);
        };
        let numbers: usize = entry.shape.iter().product();
        // Bounded before it is read: the shape is the file's.
        if numbers > HIDDEN_SIZE_MAX || self.check(ROPE_FACTORS, &entry.shape)? != Format::F32 {
            return Err(CheckpointError::WrongFormat {
                tensor: ROPE_FACTORS.to_owned(),
                found: "an invalid list of RoPE frequency factors".to_owned(),
            });
        }
        let mut factors = vec![0.0f32; numbers];
        self.read_part(
            entry,
            0..entry.bytes,
            bytemuck::cast_slice_mut(&mut factors),
        )?;
        Ok(Some(factors))
    }
}

impl Gguf {
    /// Reports a problem with a key of `config.json` by the file's own key.
    fn explain(&self, error: CheckpointError) -> CheckpointError {
        match error {
            CheckpointError::Config { key, problem } => {
                self.metadata.problem(&self.key_of(key), problem)
            }
            other => other,
        }
    }

    /// Adds what `config.json` has no key for: RoPE's frequency factors, and the number of tokens.
    fn complete(
        &self,
        config: &mut ModelConfig,
        rope_factors: Option<Vec<f32>>,
    ) -> Result<(), CheckpointError> {
        let key = self.dialect.key("rope.dimension_count");
        let head_dim = config.shape.head_dim;
        if let Some(rotated) = self.metadata.whole(&key)?
            && rotated != head_dim as u64
        {
            let problem = format!(
                "is {rotated}; RoPE over part of a head is not supported (head dimension {head_dim})"
            );
            return Err(self.metadata.problem(&key, problem));
        }
        if let (Some(factors), Some(rope)) = (rope_factors, &mut config.rope) {
            let frequencies = &mut rope.frequencies;
            // Frequencies are divided by these factors.
            let is_sound = |factor: &f32| factor.is_finite() && *factor > 0.0;
            if factors.len() != frequencies.len() || !factors.iter().all(is_sound) {
                let pairs = frequencies.len();
                let problem =
                    format!("must have one positive factor for each of {pairs} rotation pairs");
                return Err(self.metadata.problem(ROPE_FACTORS, problem));
            }
            for (frequency, factor) in frequencies.iter_mut().zip(factors) {
                *frequency /= factor;
            }
        }
        if let Some(tokens) = self.metadata.texts(TOKENS_KEY)? {
            let (tokens, rows) = (tokens.len(), config.shape.padded_vocab_size);
            if tokens > rows {
                let problem = format!("has {tokens} tokens; the embedding has {rows} rows");
                return Err(self.metadata.problem(TOKENS_KEY, problem));
            }
            // Rows of the embedding beyond the tokens are padding, which must never be chosen.
            config.vocab_size = config.vocab_size.min(tokens);
        }
        Ok(())
    }
}
