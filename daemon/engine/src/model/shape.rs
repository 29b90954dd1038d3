//! The shape of a model without its weights: what a plan is made from, and what a synthetic
//! checkpoint is written from.

mod presets;

pub use self::presets::{PRESETS, Preset};
use crate::{
    format::Format,
    ops::CacheShape,
    residency::{Part, TensorSpec},
};

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

    /// What a causal model's kept keys and values are like, in this format.
    #[must_use]
    pub fn cache(&self, format: Format) -> CacheShape {
        CacheShape {
            layers: self.layers,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            format,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_published_number_of_parameters() {
        // The model cards' and papers' figures: exact where they give them so.
        for (name, parameters) in [
            ("llada-8b", 8_015_581_184),
            ("tinyllama-1.1b", 1_100_048_384),
            ("llama-3.1-8b", 8_030_261_248),
            ("dream-7b", 7_615_616_512),
        ] {
            let preset = Preset::find(name).unwrap();
            assert_eq!(preset.shape().parameters(), parameters, "{name}");
        }
        let small = Preset::find("llada-1b").unwrap().shape().parameters();
        assert_eq!(
            (small + 5_000_000) / 10_000_000,
            149,
            "{small}, published as 1.49 B"
        );
        assert!(Preset::find("llada").is_none());
    }

    #[test]
    fn heads_share_the_width_of_every_preset() {
        for preset in &PRESETS {
            let shape = preset.shape();
            assert_eq!(shape.heads * shape.head_dim, shape.width, "{}", preset.name);
            assert_eq!(shape.heads % shape.kv_heads, 0, "{}", preset.name);
        }
    }

    #[test]
    fn each_family_has_its_own_names() {
        let names = |preset: &str| -> Vec<(String, Vec<usize>)> {
            let specs = Preset::find(preset).unwrap().shape().tensors();
            specs
                .into_iter()
                .map(|spec| (spec.name, spec.shape))
                .collect()
        };
        let has = |names: &[(String, Vec<usize>)], name: &str, shape: &[usize]| {
            assert!(
                names.contains(&(name.to_owned(), shape.to_vec())),
                "{name} {shape:?}"
            );
        };
        let llada = names("llada-8b");
        assert_eq!(llada.len(), 3 + 32 * 9);
        has(
            &llada,
            "model.transformer.blocks.31.ff_proj.weight",
            &[12288, 4096],
        );
        has(
            &llada,
            "model.transformer.blocks.0.ff_out.weight",
            &[4096, 12288],
        );
        has(&llada, "model.transformer.ff_out.weight", &[126_464, 4096]);
        let llama = names("llama-3.1-8b");
        has(
            &llama,
            "model.layers.31.self_attn.k_proj.weight",
            &[1024, 4096],
        );
        has(
            &llama,
            "model.layers.0.post_attention_layernorm.weight",
            &[4096],
        );
        has(&llama, "lm_head.weight", &[128_256, 4096]);
    }

    #[test]
    fn biases_and_tied_heads_are_counted_once() {
        let dream = Preset::find("dream-7b").unwrap().shape();
        let biases: Vec<_> = (dream.tensors().into_iter())
            .filter(|spec| spec.name.ends_with(".bias"))
            .collect();
        assert_eq!(biases.len(), 28 * 3);
        assert_eq!(biases[1].name, "model.layers.0.self_attn.k_proj.bias");
        assert_eq!(
            (&biases[1].shape[..], biases[1].part),
            (&[512][..], Part::KeyBias)
        );
        let bare = Shape {
            biases: false,
            ..dream.clone()
        };
        assert_eq!(
            dream.parameters() - bare.parameters(),
            28 * (3584 + 2 * 512)
        );
        let tied = Shape { tied: true, ..bare };
        assert_eq!(bare.parameters() - tied.parameters(), 152_064 * 3584);
        let tensors = tied.tensors();
        let head = tensors.iter().find(|spec| spec.part == Part::Head).unwrap();
        assert_eq!(head.name, "model.embed_tokens.weight");
        assert!(tied.stored().all(|spec| spec.part != Part::Head));
    }
}
