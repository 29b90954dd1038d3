//! The shape of a model without its weights: what a plan is made from, and what a synthetic
//! checkpoint is written from.

use super::{Part, TensorSpec};

/// How a family names its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// `model.transformer.blocks.N.q_proj` and so on, as GSAI-ML publishes LLaDA.
    Llada,
    /// `model.layers.N.self_attn.q_proj` and so on, as Hugging Face's Llama and Qwen have it.
    HuggingFace,
}

/// The numbers that decide how large a model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// How its tensors are called.
    pub naming: Naming,
    /// Layers.
    pub layers: usize,
    /// Numbers in a row between layers.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub head_dim: usize,
    /// Numbers in a row inside the MLP.
    pub mlp_width: usize,
    /// Rows of embedding and head.
    pub embedding_rows: usize,
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
        let (width, mlp) = (self.width, self.mlp_width);
        let queries = self.heads * self.head_dim;
        let kv = self.kv_heads * self.head_dim;
        let table = [self.embedding_rows, width];
        let mut specs = vec![weight(names.embedding, &table, 0, Part::Embedding)];
        for layer in 0..self.layers {
            let parts: [(&[usize], Part); 9] = [
                (&[width], Part::AttentionNorm),
                (&[queries, width], Part::Query),
                (&[kv, width], Part::Key),
                (&[kv, width], Part::Value),
                (&[width, queries], Part::AttentionOutput),
                (&[width], Part::MlpNorm),
                (&[mlp, width], Part::Gate),
                (&[mlp, width], Part::Up),
                (&[width, mlp], Part::Down),
            ];
            for (&(shape, part), name) in parts.iter().zip(names.parts) {
                let name = format!("{}.{layer}.{name}", names.layers);
                let bias = match part {
                    Part::Query => Some(Part::QueryBias),
                    Part::Key => Some(Part::KeyBias),
                    Part::Value => Some(Part::ValueBias),
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
        specs.push(weight(names.final_norm, &[width], 0, Part::FinalNorm));
        let head = match self.tied {
            true => names.embedding,
            false => names.head,
        };
        specs.push(weight(head, &table, 0, Part::Head));
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
            .filter(move |spec| !(tied && spec.part == Part::Head))
    }
}

/// What a family calls its tensors, without `.weight`.
struct Names {
    embedding: &'static str,
    layers: &'static str,
    /// In the order of [`Shape::tensors`].
    parts: [&'static str; 9],
    final_norm: &'static str,
    head: &'static str,
}

impl Names {
    fn of(naming: Naming) -> Self {
        match naming {
            // `ff_out` is both a layer's second MLP projection and the head.
            Naming::Llada => Self {
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
                head: "model.transformer.ff_out",
            },
            Naming::HuggingFace => Self {
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
                head: "lm_head",
            },
        }
    }
}

fn weight(name: &str, shape: &[usize], layer: usize, part: Part) -> TensorSpec {
    TensorSpec {
        name: format!("{name}.weight"),
        shape: shape.to_vec(),
        layer,
        part,
    }
}
