//! The shape of an RWKV-7 network, with the keys that flash-linear-attention writes in `config.json`.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The `model_type` of such a file.
pub const MODEL_TYPE: &str = "rwkv7";
/// The name of the embedding.
pub const EMBEDDING: &str = "model.embeddings.weight";
/// The name of the LM head.
pub const HEAD: &str = "lm_head.weight";
/// Channels of a head: the only size that published models and the engine have.
pub const HEAD_WIDTH: usize = 64;
/// The six token shifts of a time mix, in the order of their tensors.
pub const SHIFTS: [&str; 6] = ["r", "w", "k", "v", "a", "g"];

/// Sizes that differ from model to model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rwkv7Config {
    /// Width of the residual stream, a multiple of [`HEAD_WIDTH`].
    pub hidden_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Width inside the channel mix.
    pub intermediate_size: usize,
    /// Rank of the decay's projection.
    pub decay_low_rank_dim: usize,
    /// Rank of the projection of the in-context learning rate.
    pub a_low_rank_dim: usize,
    /// Rank of the projection that mixes in the first layer's values.
    pub v_low_rank_dim: usize,
    /// Rank of the gate's projection.
    pub gate_low_rank_dim: usize,
    /// Added to variances before their root is taken; the group norm has it [`HEAD_WIDTH`] times.
    pub norm_eps: f64,
    /// Rows of the embedding and of the LM head.
    pub vocab_size: usize,
    /// The longest text that the network was trained on.
    #[serde(default = "longest")]
    pub max_position_embeddings: usize,
}

/// What a `config.json` without the key means: published ones have no bound, and this is what they were trained with.
fn longest() -> usize {
    4096
}

impl Rwkv7Config {
    /// A network of this size with the ranks that the official trainer suggests for its width (arXiv 2503.14456, appendix).
    #[must_use]
    pub fn new(
        hidden_size: usize,
        num_hidden_layers: usize,
        intermediate_size: usize,
        vocab_size: usize,
    ) -> Self {
        let rank = |factor: f64| {
            let suggested = factor * (hidden_size as f64).sqrt() / 32.0;
            32 * (suggested.round() as usize).max(1)
        };
        Self {
            hidden_size,
            num_hidden_layers,
            intermediate_size,
            decay_low_rank_dim: rank(2.5),
            a_low_rank_dim: rank(2.5),
            v_low_rank_dim: rank(1.7),
            gate_low_rank_dim: rank(5.0),
            norm_eps: 1e-5,
            vocab_size,
            max_position_embeddings: 512,
        }
    }

    /// Heads of each layer.
    #[must_use]
    pub fn heads(&self) -> usize {
        self.hidden_size / HEAD_WIDTH
    }

    /// Refuses a shape that no network has.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.hidden_size > 0 && self.hidden_size.is_multiple_of(HEAD_WIDTH),
            "the width of an RWKV-7 must be a multiple of {HEAD_WIDTH}, not {}",
            self.hidden_size
        );
        Ok(())
    }

    /// Every tensor with flash-linear-attention's name for it, in order.
    #[must_use]
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (width, inner) = (self.hidden_size, self.intermediate_size);
        let mut tensors = vec![(EMBEDDING.to_owned(), vec![self.vocab_size, width])];
        for layer in 0..self.num_hidden_layers {
            let mut add = |part: &str, shape: Vec<usize>| {
                tensors.push((format!("model.layers.{layer}.{part}"), shape));
            };
            let mut norm = |name: &str| {
                add(&format!("{name}.weight"), vec![width]);
                add(&format!("{name}.bias"), vec![width]);
            };
            if layer == 0 {
                norm("pre_norm");
            }
            norm("attn_norm");
            for shift in SHIFTS {
                add(&format!("attn.x_{shift}"), vec![1, 1, width]);
            }
            add("attn.k_k", vec![width]);
            add("attn.k_a", vec![width]);
            add("attn.r_k", vec![self.heads(), HEAD_WIDTH]);
            for matrix in ["r", "k", "v", "o"] {
                add(&format!("attn.{matrix}_proj.weight"), vec![width, width]);
            }
            for (name, rank, has_bias) in [
                ("w", self.decay_low_rank_dim, true),
                ("a", self.a_low_rank_dim, true),
                ("v", self.v_low_rank_dim, true),
                ("g", self.gate_low_rank_dim, false),
            ] {
                // The first layer's values are what others mix in.
                if name == "v" && layer == 0 {
                    continue;
                }
                add(
                    &format!("attn.{name}_lora.lora.0.weight"),
                    vec![rank, width],
                );
                add(
                    &format!("attn.{name}_lora.lora.2.weight"),
                    vec![width, rank],
                );
                if has_bias {
                    add(&format!("attn.{name}_lora.lora.2.bias"), vec![width]);
                }
            }
            for part in ["attn.g_norm", "ffn_norm"] {
                add(&format!("{part}.weight"), vec![width]);
                add(&format!("{part}.bias"), vec![width]);
            }
            add("ffn.x_k", vec![width]);
            add("ffn.key.weight", vec![inner, width]);
            add("ffn.value.weight", vec![width, inner]);
        }
        for part in ["weight", "bias"] {
            tensors.push((format!("model.norm.{part}"), vec![width]));
        }
        tensors.push((HEAD.to_owned(), vec![self.vocab_size, width]));
        tensors
    }

    /// The whole `config.json`.
    #[must_use]
    pub fn to_json(&self, bos_id: Option<u32>, eos_ids: &[u32]) -> Value {
        json!({
            "a_low_rank_dim": self.a_low_rank_dim,
            "architectures": ["RWKV7ForCausalLM"],
            "attention_hidden_size": self.hidden_size,
            "attn_mode": "chunk",
            "bos_token_id": bos_id,
            "decay_low_rank_dim": self.decay_low_rank_dim,
            "eos_token_id": eos_ids,
            "fuse_norm": false,
            "gate_low_rank_dim": self.gate_low_rank_dim,
            "head_dim": HEAD_WIDTH,
            "hidden_act": "sqrelu",
            "hidden_ratio": self.intermediate_size as f64 / self.hidden_size as f64,
            "hidden_size": self.hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position_embeddings,
            "model_type": MODEL_TYPE,
            "norm_bias": true,
            "norm_eps": self.norm_eps,
            "num_heads": self.heads(),
            "num_hidden_layers": self.num_hidden_layers,
            "pad_token_id": eos_ids.last(),
            "tie_word_embeddings": false,
            "torch_dtype": "bfloat16",
            "use_cache": true,
            "v_low_rank_dim": self.v_low_rank_dim,
            "value_dim": vec![self.hidden_size; self.num_hidden_layers],
            "vocab_size": self.vocab_size,
        })
    }
}
