//! The shape of a transformer, written with exactly the keys of LLaDA's `config.json`, or of Llama's for a causal one.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sluice_weights::{LayerKind, Shape, TensorNaming};

/// The `model_type` of LLaDA's file.
pub const MODEL_TYPE: &str = "llada";
/// The name of the embedding.
pub const EMBEDDING: &str = "model.transformer.wte.weight";
/// The name of the LM head.
pub const HEAD: &str = "model.transformer.ff_out.weight";
/// How the names of the blocks' last projections end, and that of the LM head.
pub const MLP_OUTPUT: &str = "ff_out.weight";

/// The name of a part of a block.
#[must_use]
pub fn block_tensor(layer: usize, part: &str) -> String {
    format!("model.transformer.blocks.{layer}.{part}.weight")
}

/// Sizes that differ from model to model; everything else is LLaDA's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransformerConfig {
    /// Width of the residual stream.
    pub d_model: usize,
    /// Attention heads; each has its own keys and values.
    pub n_heads: usize,
    /// Number of transformer blocks.
    pub n_layers: usize,
    /// Width inside the gated layer.
    pub mlp_hidden_size: usize,
    /// Rows of the embedding and of the LM head.
    pub vocab_size: usize,
    /// Base of the rotary embedding.
    pub rope_theta: f64,
    /// Added to the mean square before its root is taken.
    pub rms_norm_eps: f64,
    /// The longest canvas the model is meant for.
    pub max_sequence_length: usize,
    /// Whether attention only looks back: not in LLaDA, but in the autoregressive network beside it, which is a Llama.
    #[serde(default)]
    pub causal: bool,
}

impl TransformerConfig {
    /// The demonstration model: 3.8 million parameters with 1024 tokens.
    #[must_use]
    pub fn demonstration(vocab_size: usize) -> Self {
        Self {
            d_model: 256,
            n_heads: 4,
            n_layers: 5,
            mlp_hidden_size: 512,
            vocab_size,
            rope_theta: 10_000.0,
            rms_norm_eps: 1e-5,
            max_sequence_length: 512,
            causal: false,
        }
    }

    /// Every tensor of the model with LLaDA's name for it, in order.
    #[must_use]
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (width, inner, vocabulary) = (self.d_model, self.mlp_hidden_size, self.vocab_size);
        let mut tensors = vec![(EMBEDDING.to_owned(), vec![vocabulary, width])];
        for layer in 0..self.n_layers {
            let parts = [
                ("attn_norm", vec![width]),
                ("q_proj", vec![width, width]),
                ("k_proj", vec![width, width]),
                ("v_proj", vec![width, width]),
                ("attn_out", vec![width, width]),
                ("ff_norm", vec![width]),
                ("ff_proj", vec![inner, width]),
                ("up_proj", vec![inner, width]),
                ("ff_out", vec![width, inner]),
            ];
            tensors.extend(parts.map(|(part, shape)| (block_tensor(layer, part), shape)));
        }
        tensors.push(("model.transformer.ln_f.weight".to_owned(), vec![width]));
        tensors.push((HEAD.to_owned(), vec![vocabulary, width]));
        tensors
    }

    /// The shape as the engine's plans see it; its tensors are those of [`Self::tensors`], in the same order.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape {
            // LLaDA's layers with causal attention are Llama's, which has its own names for them.
            naming: match self.causal {
                false => TensorNaming::Llada,
                true => TensorNaming::HuggingFace,
            },
            layers: self.n_layers,
            hidden_size: self.d_model,
            attention_heads: self.n_heads,
            kv_heads: self.n_heads,
            head_dim: self.d_model / self.n_heads,
            intermediate_size: self.mlp_hidden_size,
            padded_vocab_size: self.vocab_size,
            context_length: self.max_sequence_length,
            causal: self.causal,
            tied: false,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        }
    }

    /// Refuses a shape that no network has.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.n_heads > 0 && self.d_model.is_multiple_of(self.n_heads),
            "the width must be a multiple of the number of heads"
        );
        Ok(())
    }

    /// The whole `config.json` of a network that is not causal.
    #[must_use]
    pub fn to_llada_json(&self, mask_id: u32, eos_id: u32) -> Value {
        json!({
            "activation_type": "silu",
            "alibi": false,
            "alibi_bias_max": 8.0,
            "architectures": ["LLaDAModelLM"],
            "attention_dropout": 0.0,
            "attention_layer_norm": false,
            "attention_layer_norm_with_affine": true,
            "bias_for_layer_norm": false,
            "block_group_size": 1,
            "block_type": "llama",
            "d_model": self.d_model,
            "embedding_dropout": 0.0,
            "embedding_size": self.vocab_size,
            "eos_token_id": eos_id,
            "flash_attention": false,
            "include_bias": false,
            "include_qkv_bias": false,
            "init_cutoff_factor": null,
            "init_device": "meta",
            "init_fn": "normal",
            "init_std": 0.02,
            "input_emb_norm": false,
            "layer_norm_type": "rms",
            "layer_norm_with_affine": true,
            "mask_token_id": mask_id,
            "max_sequence_length": self.max_sequence_length,
            "mlp_hidden_size": self.mlp_hidden_size,
            "mlp_ratio": 4,
            "model_type": MODEL_TYPE,
            "multi_query_attention": null,
            "n_heads": self.n_heads,
            "n_kv_heads": self.n_heads,
            "n_layers": self.n_layers,
            "pad_token_id": eos_id,
            "precision": "fp32",
            "residual_dropout": 0.0,
            "rms_norm_eps": self.rms_norm_eps,
            "rope": true,
            "rope_full_precision": true,
            "rope_theta": self.rope_theta,
            "scale_logits": false,
            "use_cache": false,
            "vocab_size": self.vocab_size,
            "weight_tying": false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_expects_the_same_tensors_in_the_same_order() {
        let own = TransformerConfig::demonstration(1280);
        let specs = own.shape().tensors().into_iter();
        let expected: Vec<_> = specs.map(|spec| (spec.name, spec.shape)).collect();
        assert_eq!(own.tensors(), expected);
        // Llama's tensors have other names and the same shapes.
        let causal = TransformerConfig {
            causal: true,
            ..own
        };
        let specs = causal.shape().tensors().into_iter();
        let shapes = specs.map(|spec| spec.shape);
        assert!(shapes.eq(expected.into_iter().map(|(_, shape)| shape)));
    }
}
