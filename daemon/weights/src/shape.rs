//! The shape of a model without its weights: what a plan is made from, and what a synthetic
//! checkpoint is written from.

use super::{TensorPart, TensorSpec};

/// How a family names its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorNaming {
    /// `model.transformer.blocks.N.q_proj` and so on, as GSAI-ML publishes LLaDA.
    Llada,
    /// `model.layers.N.self_attn.q_proj` and so on, as Hugging Face's Llama and Qwen have it.
    HuggingFace,
}

/// The numbers that decide how large a model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// How its tensors are called.
    pub naming: TensorNaming,
    /// Layers.
    pub layers: usize,
    /// Numbers in a row between layers.
    pub hidden_size: usize,
    /// Query heads.
    pub attention_heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub head_dim: usize,
    /// Numbers in a row inside the MLP.
    pub intermediate_size: usize,
    /// Rows of embedding and head.
    pub padded_vocab_size: usize,
    /// Most positions of prompt and answer together.
    pub context_length: usize,
    /// Whether a position sees only those before it. Such a model keeps their keys and values, and computes one row for
    /// each new token; others compute the whole canvas in every pass.
    pub causal: bool,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Whether queries, keys and values have biases.
    pub biases: bool,
}

impl Shape {
    /// Every tensor of a checkpoint of this shape, by its exact name and in the order of their use. A tied head is the
    /// embedding's tensor again.
    #[must_use]
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let names = Names::of(self.naming);
        let (width, mlp) = (self.hidden_size, self.intermediate_size);
        let queries = self.attention_heads * self.head_dim;
        let kv = self.kv_heads * self.head_dim;
        let table = [self.padded_vocab_size, width];
        let mut specs = vec![weight(names.embedding, &table, 0, TensorPart::Embedding)];
        for layer in 0..self.layers {
            let parts: [(&[usize], TensorPart); 9] = [
                (&[width], TensorPart::AttentionNorm),
                (&[queries, width], TensorPart::Query),
                (&[kv, width], TensorPart::Key),
                (&[kv, width], TensorPart::Value),
                (&[width, queries], TensorPart::AttentionOutput),
                (&[width], TensorPart::MlpNorm),
                (&[mlp, width], TensorPart::Gate),
                (&[mlp, width], TensorPart::Up),
                (&[width, mlp], TensorPart::Down),
            ];
            for (&(shape, part), name) in parts.iter().zip(names.parts) {
                let name = format!("{}.{layer}.{name}", names.layers);
                let bias = match part {
                    TensorPart::Query => Some(TensorPart::QueryBias),
                    TensorPart::Key => Some(TensorPart::KeyBias),
                    TensorPart::Value => Some(TensorPart::ValueBias),
                    _ => None,
                };
                specs.push(weight(&name, shape, layer, part));
                specs.extend(bias.filter(|_| self.biases).map(|part| TensorSpec {
                    name: format!("{name}.bias"),
                    shape: shape[..1].to_vec(),
                    layer,
                    part,
                }));
            }
        }
        specs.push(weight(names.final_norm, &[width], 0, TensorPart::FinalNorm));
        let head = match self.tied {
            true => names.embedding,
            false => names.lm_head,
        };
        specs.push(weight(head, &table, 0, TensorPart::LmHead));
        specs
    }

    /// Numbers in all tensors; those of a tied head once.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let numbers =
            |spec: &TensorSpec| spec.shape.iter().map(|&size| size as u64).product::<u64>();
        self.stored().map(|spec| numbers(&spec)).sum()
    }

    /// The tensors that a checkpoint stores: a tied head is none of its own.
    pub fn stored(&self) -> impl Iterator<Item = TensorSpec> {
        let tied = self.tied;
        self.tensors()
            .into_iter()
            .filter(move |spec| !(tied && spec.part == TensorPart::LmHead))
    }
}

/// What a family calls its tensors, without `.weight`.
struct Names {
    embedding: &'static str,
    layers: &'static str,
    /// In the order of [`Shape::tensors`].
    parts: [&'static str; 9],
    final_norm: &'static str,
    lm_head: &'static str,
}

impl Names {
    fn of(naming: TensorNaming) -> Self {
        match naming {
            // `ff_out` is both a layer's second MLP projection and the head.
            TensorNaming::Llada => Self {
                embedding: "model.transformer.wte",
                layers: "model.transformer.blocks",
                parts: [
                    "attn_norm",
                    "q_proj",
                    "k_proj",
                    "v_proj",
                    "attn_out",
                    "ff_norm",
                    "ff_proj",
                    "up_proj",
                    "ff_out",
                ],
                final_norm: "model.transformer.ln_f",
                lm_head: "model.transformer.ff_out",
            },
            TensorNaming::HuggingFace => Self {
                embedding: "model.embed_tokens",
                layers: "model.layers",
                parts: [
                    "input_layernorm",
                    "self_attn.q_proj",
                    "self_attn.k_proj",
                    "self_attn.v_proj",
                    "self_attn.o_proj",
                    "post_attention_layernorm",
                    "mlp.gate_proj",
                    "mlp.up_proj",
                    "mlp.down_proj",
                ],
                final_norm: "model.norm",
                lm_head: "lm_head",
            },
        }
    }
}

fn weight(name: &str, shape: &[usize], layer: usize, part: TensorPart) -> TensorSpec {
    TensorSpec {
        name: format!("{name}.weight"),
        shape: shape.to_vec(),
        layer,
        part,
    }
}
