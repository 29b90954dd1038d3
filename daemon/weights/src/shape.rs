//! The shape of a model without its weights: plans are made from it, and synthetic checkpoints.

mod encoder;
mod experts;
mod gemma;
mod latent;
mod rwkv7;

pub use self::{encoder::EncoderShape, experts::ExpertShape, gemma::GemmaShape};
use super::{LatentShape, Rwkv7Ranks, TensorPart, TensorSpec};

/// How a family names its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorNaming {
    /// `model.transformer.blocks.N.q_proj` and so on, as GSAI-ML publishes LLaDA.
    Llada,
    /// `model.layers.N.self_attn.q_proj` and so on, as in Hugging Face's Llama and Qwen.
    HuggingFace,
    /// `model.layers.N.attention.query_key_value` and so on, as in LLaDA2.0.
    Llada2,
    /// `encoder.layers.N.self_attn.q_proj` and so on, with `diffusion_head`, as in Nemotron-Labs-Diffusion.
    Nemotron,
    /// `layers.N.attention.wq` and so on, as in the official latent thought model.
    LatentThought,
    /// `model.decoder.layers.N.self_attn.q_proj` and so on, as in DiffusionGemma.
    Gemma,
    /// `encoder.layer.N.attention.self.query` and so on, as in BERT.
    Bert,
    /// BERT's names behind `bert.`, as models with a head of their own have them.
    PrefixedBert,
    /// `embeddings` alone, as in model2vec's static tables.
    Model2Vec,
}

/// What a model's layers are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerKind {
    /// Attention and a gated MLP.
    Attention,
    /// Attention and a mixture of experts, or in some layers a gated MLP.
    Mixture(ExpertShape),
    /// RWKV-7's time mix, whose state has a fixed size, and channel mix. Its heads count as attention heads.
    Rwkv7(Rwkv7Ranks),
    /// Attention within a window, cross-attention to the layer's own latents, and a gated MLP.
    LatentThought(LatentShape),
    /// Attention within a window or to all, and a gated MLP beside a mixture of experts.
    Gemma(GemmaShape),
    /// BERT's attention and MLP with biases, each with its norm behind it; no LM head.
    Encoder(EncoderShape),
}

/// Key and value heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerHeads {
    /// Number of key and value heads.
    pub kv_heads: usize,
    /// Elements of a head, and of each head of queries.
    pub head_dim: usize,
}

/// The sizes of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// How its tensors are named.
    pub naming: TensorNaming,
    /// Number of layers.
    pub layers: usize,
    /// Elements of a row between layers.
    pub hidden_size: usize,
    /// Number of query heads.
    pub attention_heads: usize,
    /// Number of key and value heads; each serves `attention_heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements of a row inside the MLP.
    pub intermediate_size: usize,
    /// Rows of embedding and LM head, at least the number of tokens.
    pub padded_vocab_size: usize,
    /// Most positions of prompt and answer together.
    pub context_length: usize,
    /// Whether the model is autoregressive: a position sees only those before it. Such a model keeps a KV cache and
    /// computes one row for each new token; others compute the whole canvas in every pass.
    pub causal: bool,
    /// Whether the LM head is the embedding.
    pub tied: bool,
    /// Whether queries, keys and values have biases.
    pub biases: bool,
    /// Whether each head of queries and of keys goes through an RMSNorm of its own before it is rotated, as in Qwen3.
    pub qk_norms: bool,
    /// What its layers are made of.
    pub layer_kind: LayerKind,
}

impl Shape {
    /// Elements of a text's latents, in all layers; 0 for a model without any.
    #[must_use]
    pub fn latent_elements(&self) -> usize {
        match self.layer_kind {
            LayerKind::LatentThought(sizes) => self.layers * sizes.latents * self.hidden_size,
            _ => 0,
        }
    }

    /// The experts that layers have; `None` for a model without any.
    #[must_use]
    pub fn mixture(&self) -> Option<&ExpertShape> {
        match &self.layer_kind {
            LayerKind::Mixture(experts) => Some(experts),
            LayerKind::Gemma(gemma) => Some(&gemma.experts),
            _ => None,
        }
    }

    /// The experts of a layer; `None` where it has a gated MLP alone.
    #[must_use]
    pub fn experts(&self, layer: usize) -> Option<&ExpertShape> {
        self.mixture().filter(|experts| experts.are_in(layer))
    }

    /// Whether a layer has a matrix for values; the keys are its values, too, where it has none.
    #[must_use]
    pub fn has_values(&self, layer: usize) -> bool {
        !matches!(&self.layer_kind, LayerKind::Gemma(gemma) if gemma.is_full(layer))
    }

    /// Whether a pass sums the LM head's rows by their probabilities, as what the next pass is told.
    #[must_use]
    pub fn sums_lm_head(&self) -> bool {
        matches!(self.layer_kind, LayerKind::Gemma(_))
    }

    /// The key and value heads of a layer.
    #[must_use]
    pub fn heads(&self, layer: usize) -> LayerHeads {
        match &self.layer_kind {
            LayerKind::Gemma(gemma) if gemma.is_full(layer) => LayerHeads {
                kv_heads: gemma.full_kv_heads,
                head_dim: gemma.full_head_dim,
            },
            _ => LayerHeads {
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
            },
        }
    }

    /// Every tensor of a checkpoint of this shape, by its exact name and in the order of use. A tied LM head is the
    /// embedding's tensor again.
    #[must_use]
    pub fn tensors(&self) -> Vec<TensorSpec> {
        if let LayerKind::Encoder(encoder) = &self.layer_kind {
            return encoder::tensors(self, encoder);
        }
        let names = Names::of(self.naming);
        let (width, mlp) = (self.hidden_size, self.intermediate_size);
        let queries = self.attention_heads * self.head_dim;
        let kv = self.kv_heads * self.head_dim;
        // With the padding, as files have it: the last 115 of LLaDA's 126,464 rows stand for no token.
        let table = [self.padded_vocab_size, width];
        let embedding = self.embedding();
        let mut specs = vec![weight(embedding, &table, 0, TensorPart::Embedding)];
        if let LayerKind::Gemma(_) = self.layer_kind {
            specs.extend(gemma::self_conditioning(width, mlp));
        }
        for layer in 0..self.layers {
            if let LayerKind::Gemma(gemma) = &self.layer_kind {
                specs.extend(gemma::layer_tensors(self, gemma, names.layers, layer));
                continue;
            }
            if let LayerKind::Rwkv7(ranks) = &self.layer_kind {
                specs.extend(rwkv7::layer_tensors(layer, width, mlp, ranks));
                continue;
            }
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
                if let (TensorPart::MlpNorm, Some(experts)) = (part, self.experts(layer)) {
                    let prefix = format!("{}.{layer}.mlp", names.layers);
                    specs.extend(experts.tensors(&name, &prefix, layer, width));
                    break;
                }
                // Of these families, only queries, keys and values ever have biases.
                let bias = match part {
                    TensorPart::Query => Some(TensorPart::QueryBias),
                    TensorPart::Key => Some(TensorPart::KeyBias),
                    TensorPart::Value => Some(TensorPart::ValueBias),
                    _ => None,
                };
                specs.push(weight(&name, shape, layer, part));
                specs.extend(bias.filter(|_| self.biases).map(|part| TensorSpec {
                    name: format!("{name}.bias"),
                    ..weight(&name, &shape[..1], layer, part)
                }));
                if part == TensorPart::AttentionOutput && self.qk_norms {
                    let norms = [TensorPart::QueryNorm, TensorPart::KeyNorm].into_iter();
                    specs.extend(norms.zip(names.qk_norms).map(|(part, name)| {
                        let name = format!("{}.{layer}.{name}", names.layers);
                        weight(&name, &[self.head_dim], layer, part)
                    }));
                }
                if let (TensorPart::AttentionOutput, LayerKind::LatentThought(_)) =
                    (part, self.layer_kind)
                {
                    specs.extend(latent::cross_attention(layer, width, queries, kv));
                }
            }
        }
        specs.push(weight(names.final_norm, &[width], 0, TensorPart::FinalNorm));
        if let LayerKind::Rwkv7(_) = self.layer_kind {
            specs.push(TensorSpec {
                name: format!("{}.bias", names.final_norm),
                ..weight(names.final_norm, &[width], 0, TensorPart::FinalNormBias)
            });
        }
        // A tied LM head reads the embedding's bytes a second time, as a tensor of its own.
        let head = match self.tied {
            true => embedding,
            false => names.lm_head,
        };
        specs.push(weight(head, &table, 0, TensorPart::LmHead));
        specs
    }

    /// Name of the embedding.
    #[must_use]
    pub fn embedding_name(&self) -> String {
        match self.naming {
            TensorNaming::Model2Vec => self.embedding().to_owned(),
            _ => format!("{}.weight", self.embedding()),
        }
    }

    fn embedding(&self) -> &'static str {
        match self.layer_kind {
            LayerKind::Rwkv7(_) => "model.embeddings",
            _ => Names::of(self.naming).embedding,
        }
    }

    /// Name of an LM head that is not tied to the embedding.
    #[must_use]
    pub fn own_lm_head_name(&self) -> String {
        format!("{}.weight", Names::of(self.naming).lm_head)
    }

    /// Elements of all tensors; a tied LM head isn't counted again.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let numbers =
            |spec: &TensorSpec| spec.shape.iter().map(|&size| size as u64).product::<u64>();
        self.stored().map(|spec| numbers(&spec)).sum()
    }

    /// The tensors that a checkpoint stores: without a tied LM head, and with queries, keys and values in one matrix where
    /// files have them so.
    pub fn stored(&self) -> impl Iterator<Item = TensorSpec> {
        let tied = self.tied;
        let is_fused = self.naming == TensorNaming::Llada2;
        let heads = self.attention_heads + 2 * self.kv_heads;
        let rows = heads * self.head_dim;
        self.tensors()
            .into_iter()
            .filter_map(move |spec| match spec.part {
                TensorPart::LmHead if tied => None,
                TensorPart::Key | TensorPart::Value if is_fused => None,
                TensorPart::Query if is_fused => Some(TensorSpec {
                    name: fused_name(&spec.name),
                    shape: vec![rows, spec.shape[1]],
                    ..spec
                }),
                _ => Some(spec),
            })
    }
}

/// The matrix whose rows are a layer's queries, keys and values, as files of [`TensorNaming::Llada2`] have it.
pub const FUSED_ATTENTION: &str = ".attention.query_key_value.weight";

/// The names of its parts, in the order of its rows.
pub const ATTENTION_PARTS: [&str; 3] = [
    ".attention.query.weight",
    ".attention.key.weight",
    ".attention.value.weight",
];

/// The name of the matrix that has these rows.
fn fused_name(name: &str) -> String {
    let layer = name.strip_suffix(ATTENTION_PARTS[0]).unwrap_or(name);
    format!("{layer}{FUSED_ATTENTION}")
}

/// A family's tensor names, without `.weight`.
struct Names {
    embedding: &'static str,
    layers: &'static str,
    /// Names within a layer, in the order of [`Shape::tensors`].
    parts: [&'static str; 9],
    /// Of queries and of keys, where the model has them.
    qk_norms: [&'static str; 2],
    final_norm: &'static str,
    lm_head: &'static str,
}

impl Names {
    fn of(naming: TensorNaming) -> Self {
        match naming {
            // LLaDA uses `ff_out` both for a layer's down projection and for the LM head.
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
                qk_norms: ["q_norm", "k_norm"],
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
                qk_norms: ["self_attn.q_norm", "self_attn.k_norm"],
                final_norm: "model.norm",
                lm_head: "lm_head",
            },
            TensorNaming::Nemotron => Self {
                embedding: "encoder.embed_tokens",
                layers: "encoder.layers",
                final_norm: "encoder.norm",
                lm_head: "diffusion_head",
                ..Self::of(TensorNaming::HuggingFace)
            },
            TensorNaming::Llada2 => Self {
                embedding: "model.word_embeddings",
                layers: "model.layers",
                parts: [
                    "input_layernorm",
                    "attention.query",
                    "attention.key",
                    "attention.value",
                    "attention.dense",
                    "post_attention_layernorm",
                    "mlp.gate_proj",
                    "mlp.up_proj",
                    "mlp.down_proj",
                ],
                qk_norms: ["attention.query_layernorm", "attention.key_layernorm"],
                final_norm: "model.norm",
                lm_head: "lm_head",
            },
            // Only what isn't a layer's: those have more norms.
            TensorNaming::Gemma => Self {
                embedding: "model.decoder.embed_tokens",
                layers: "model.decoder.layers",
                final_norm: "model.decoder.norm",
                lm_head: "model.decoder.lm_head",
                ..Self::of(TensorNaming::HuggingFace)
            },
            // Only the embedding: encoders have no LM head, and their layers no gate.
            TensorNaming::Bert => Self {
                embedding: "embeddings.word_embeddings",
                ..Self::of(TensorNaming::HuggingFace)
            },
            TensorNaming::PrefixedBert => Self {
                embedding: "bert.embeddings.word_embeddings",
                ..Self::of(TensorNaming::HuggingFace)
            },
            TensorNaming::Model2Vec => Self {
                embedding: "embeddings",
                ..Self::of(TensorNaming::HuggingFace)
            },
            // The LM head is the embedding, under the head's name.
            TensorNaming::LatentThought => Self {
                embedding: "output",
                layers: "layers",
                parts: [
                    "attention_norm",
                    "attention.wq",
                    "attention.wk",
                    "attention.wv",
                    "attention.wo",
                    "ffn_norm",
                    "feed_forward.gate_proj",
                    "feed_forward.up_proj",
                    "feed_forward.down_proj",
                ],
                qk_norms: ["attention.q_norm", "attention.k_norm"],
                final_norm: "norm",
                lm_head: "output",
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
        group: part.group(layer),
        kept_kv_heads: None,
    }
}
