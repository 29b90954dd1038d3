//! The shape of a latent thought model, with the names of the reference's own parameters in `config.json`.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The `model_type` of such a file.
pub const MODEL_TYPE: &str = "ltm";
/// The name of the LM head, which is the embedding, too.
pub const EMBEDDING: &str = "output.weight";

/// Sizes that differ from model to model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatentThoughtConfig {
    /// Width of the residual stream and of a latent vector.
    pub dim: usize,
    /// Number of layers.
    pub n_layers: usize,
    /// Attention heads.
    pub n_heads: usize,
    /// Width inside the gated layer; derived from `dim` and `multiple_of` if left out, as the reference does.
    #[serde(default)]
    pub hidden_dim: Option<usize>,
    /// What a derived `hidden_dim` is a multiple of.
    #[serde(default = "multiple")]
    pub multiple_of: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// The longest sequence; latents stand at positions spread over it.
    pub max_seq_len: usize,
    /// Latent vectors of a sequence; each layer sees an equal share.
    pub max_z_len: usize,
    /// Positions that attention sees, the own one included.
    pub window_size: usize,
    /// Added to the mean square before its root is taken.
    pub norm_eps: f64,
    /// Base of the rotary embedding.
    #[serde(default = "theta")]
    pub rope_theta: f64,
}

fn multiple() -> usize {
    32
}

fn theta() -> f64 {
    10_000.0
}

impl LatentThoughtConfig {
    /// Width inside the gated layer: two thirds of four times the width, rounded up, unless given.
    #[must_use]
    pub fn inner(&self) -> usize {
        let derived = || (8 * self.dim / 3).next_multiple_of(self.multiple_of);
        self.hidden_dim.unwrap_or_else(derived)
    }

    /// Latent vectors that each layer sees.
    #[must_use]
    pub fn latents_per_layer(&self) -> usize {
        self.max_z_len / self.n_layers
    }

    /// Positions between one latent vector and the next, in the rotary embedding.
    #[must_use]
    pub fn latent_spacing(&self) -> usize {
        self.max_seq_len / self.max_z_len
    }

    /// Refuses a shape that no network has.
    pub fn check(&self) -> Result<()> {
        let Self {
            dim,
            n_layers,
            n_heads,
            max_z_len,
            ..
        } = *self;
        ensure!(
            n_layers > 0 && n_heads > 0,
            "a network needs layers and heads"
        );
        ensure!(
            dim.is_multiple_of(2 * n_heads),
            "the width must be a multiple of twice the number of heads, not {dim}"
        );
        ensure!(
            max_z_len > 0 && max_z_len.is_multiple_of(n_layers),
            "{max_z_len} latent vectors can't be shared out to {n_layers} layers"
        );
        ensure!(self.window_size > 0, "attention must see a position");
        Ok(())
    }

    /// Every tensor, in order.
    #[must_use]
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (width, inner) = (self.dim, self.inner());
        let mut tensors = vec![(EMBEDDING.to_owned(), vec![self.vocab_size, width])];
        for layer in 0..self.n_layers {
            let mut add = |part: &str, shape: Vec<usize>| {
                tensors.push((format!("layers.{layer}.{part}.weight"), shape));
            };
            for attention in ["attention", "cross_attention"] {
                add(&format!("{attention}_norm"), vec![width]);
                for matrix in ["wq", "wk", "wv", "wo"] {
                    add(&format!("{attention}.{matrix}"), vec![width, width]);
                }
            }
            add("ffn_norm", vec![width]);
            add("feed_forward.gate_proj", vec![inner, width]);
            add("feed_forward.up_proj", vec![inner, width]);
            add("feed_forward.down_proj", vec![width, inner]);
        }
        tensors.push(("norm.weight".to_owned(), vec![width]));
        tensors
    }

    /// The whole `config.json`.
    #[must_use]
    pub fn to_json(&self, bos_id: Option<u32>, eos_ids: &[u32]) -> Value {
        json!({
            "architectures": ["LatentThoughtModel"],
            "bos_token_id": bos_id,
            "dim": self.dim,
            "dropout": 0.0,
            "eos_token_id": eos_ids,
            "hidden_dim": self.inner(),
            "max_seq_len": self.max_seq_len,
            "max_z_len": self.max_z_len,
            "model_type": MODEL_TYPE,
            "multiple_of": self.multiple_of,
            "n_cls_tokens": 0,
            "n_heads": self.n_heads,
            "n_kv_heads": self.n_heads,
            "n_layers": self.n_layers,
            "n_prior_layers": 0,
            "norm_eps": self.norm_eps,
            "padding": false,
            "rope_theta": self.rope_theta,
            "torch_dtype": "bfloat16",
            "use_liger": false,
            "use_z_pos_emb": true,
            "vocab_size": self.vocab_size,
            "window_size": self.window_size,
        })
    }
}
