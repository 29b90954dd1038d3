//! Shapes of published models.

use sluice_shared::names::{self, PublishedModel};
use sluice_weights::{
    ExpertShape, GemmaShape, LayerKind, RECURRENT_CONTEXT_LENGTH, RWKV7_HEAD_DIM, Rwkv7Ranks,
    Shape, TensorNaming,
};

use super::{Family, ModelConfig};

/// A published model's shape, by the name that users type.
#[derive(Debug, Clone)]
pub struct PublishedShape {
    /// The name that users type.
    pub name: &'static str,
    family: Family,
    shape: Shape,
}

impl PublishedShape {
    /// The shape of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        PUBLISHED_SHAPES.iter().find(|preset| preset.name == name)
    }

    /// A configuration of this shape, with usual values for everything else.
    #[must_use]
    pub fn config(&self) -> ModelConfig {
        ModelConfig::of(self.family, &self.shape)
    }

    /// Where the model is published, and its licence.
    ///
    /// # Panics
    /// When the table of published models lacks the shape's name.
    #[must_use]
    pub fn published(&self) -> &'static PublishedModel {
        names::published(self.name).expect("each shape has a row, as a test checks")
    }

    /// The family that it belongs to.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The sizes of the model.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }
}

/// Shapes of published models. LLaDA-1B has no published configuration: its context is that of its training, and its
/// vocabulary is LLaDA-8B's, which agrees with the paper's 1.49 B parameters.
pub static PUBLISHED_SHAPES: [PublishedShape; 27] = [
    PublishedShape {
        name: "llada-8b",
        family: Family::Llada,
        shape: Shape {
            naming: TensorNaming::Llada,
            layers: 32,
            hidden_size: 4096,
            attention_heads: 32,
            kv_heads: 32,
            head_dim: 128,
            intermediate_size: 12288,
            padded_vocab_size: 126_464,
            context_length: 4096,
            causal: false,
            tied: false,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        },
    },
    PublishedShape {
        name: "llada-1b",
        family: Family::Llada,
        shape: Shape {
            naming: TensorNaming::Llada,
            layers: 22,
            hidden_size: 2048,
            attention_heads: 32,
            kv_heads: 4,
            head_dim: 64,
            intermediate_size: 5634,
            padded_vocab_size: 126_464,
            context_length: 4096,
            causal: false,
            tied: false,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        },
    },
    PublishedShape {
        name: "tinyllama-1.1b",
        family: Family::Llama,
        shape: Shape {
            naming: TensorNaming::HuggingFace,
            layers: 22,
            hidden_size: 2048,
            attention_heads: 32,
            kv_heads: 4,
            head_dim: 64,
            intermediate_size: 5632,
            padded_vocab_size: 32_000,
            context_length: 2048,
            causal: true,
            tied: false,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        },
    },
    PublishedShape {
        name: "llama-3.1-8b",
        family: Family::Llama,
        shape: Shape {
            naming: TensorNaming::HuggingFace,
            layers: 32,
            hidden_size: 4096,
            attention_heads: 32,
            kv_heads: 8,
            head_dim: 128,
            intermediate_size: 14_336,
            padded_vocab_size: 128_256,
            context_length: 131_072,
            causal: true,
            tied: false,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        },
    },
    PublishedShape {
        name: "llama-3-70b",
        family: Family::Llama,
        shape: Shape {
            naming: TensorNaming::HuggingFace,
            layers: 80,
            hidden_size: 8192,
            attention_heads: 64,
            kv_heads: 8,
            head_dim: 128,
            intermediate_size: 28_672,
            padded_vocab_size: 128_256,
            context_length: 8192,
            causal: true,
            tied: false,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        },
    },
    PublishedShape {
        name: "dream-7b",
        family: Family::Dream,
        shape: Shape {
            naming: TensorNaming::HuggingFace,
            layers: 28,
            hidden_size: 3584,
            attention_heads: 28,
            kv_heads: 4,
            head_dim: 128,
            intermediate_size: 18_944,
            padded_vocab_size: 152_064,
            context_length: 131_072,
            causal: false,
            tied: false,
            biases: true,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        },
    },
    qwen3("qwen3-0.6b", 28, [1024, 3072], 16, true),
    qwen3("qwen3-1.7b", 28, [2048, 6144], 16, true),
    qwen3("qwen3-4b", 36, [2560, 9728], 32, true),
    qwen3("qwen3-8b", 36, [4096, 12288], 32, false),
    fast_dllm("fast-dllm-1.5b", [1536, 8960, 151_936], [12, 2], true),
    fast_dllm("fast-dllm-7b", [3584, 18_944, 152_064], [28, 4], false),
    sdar("sdar-1.7b", 28, [2048, 6144], 16),
    sdar("sdar-4b", 36, [2560, 9728], 32),
    sdar("sdar-8b", 36, [4096, 12288], 32),
    qwen3_moe("qwen3-30b-a3b", Family::Qwen3Moe),
    qwen3_moe("sdar-30b-a3b", Family::SdarMoe),
    qwen3_moe("rnd1-base", Family::Rnd1),
    PublishedShape {
        name: "llada-moe-7b",
        family: Family::LladaMoe,
        shape: Shape {
            naming: TensorNaming::HuggingFace,
            layers: 16,
            hidden_size: 2048,
            attention_heads: 16,
            kv_heads: 16,
            head_dim: 128,
            intermediate_size: 1024,
            padded_vocab_size: 157_184,
            context_length: 8192,
            causal: false,
            tied: false,
            biases: false,
            qk_norms: true,
            layer_kind: LayerKind::Mixture(ExpertShape {
                count: 64,
                per_token: 8,
                intermediate_size: 1024,
                shared_intermediate_size: 0,
                has_choice_bias: false,
                dense_layers: 0,
                layer_step: 1,
            }),
        },
    },
    llada2("llada2-mini", 20, 2048, 16, [5120, 512]),
    llada2("llada2-flash", 32, 4096, 32, [9216, 1024]),
    PublishedShape {
        name: "nemotron-ld-8b",
        family: Family::Nemotron,
        shape: Shape {
            naming: TensorNaming::Nemotron,
            layers: 34,
            hidden_size: 4096,
            attention_heads: 32,
            kv_heads: 8,
            head_dim: 128,
            intermediate_size: 14_336,
            padded_vocab_size: 131_072,
            context_length: 262_144,
            causal: false,
            tied: false,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        },
    },
    // Its own configuration can't be read here: the sizes are those of Gemma 4, and come to the published total.
    PublishedShape {
        name: "diffusion-gemma-26b-a4b",
        family: Family::DiffusionGemma,
        shape: Shape {
            naming: TensorNaming::Gemma,
            layers: 30,
            hidden_size: 2816,
            attention_heads: 16,
            kv_heads: 8,
            head_dim: 256,
            intermediate_size: 2112,
            padded_vocab_size: 262_144,
            context_length: 131_072,
            causal: false,
            tied: true,
            biases: false,
            qk_norms: true,
            layer_kind: LayerKind::Gemma(GemmaShape {
                experts: ExpertShape {
                    count: 128,
                    per_token: 8,
                    intermediate_size: 704,
                    shared_intermediate_size: 0,
                    has_choice_bias: false,
                    dense_layers: 0,
                    layer_step: 1,
                },
                window: 1024,
                full_step: 6,
                full_kv_heads: 2,
                full_head_dim: 512,
            }),
        },
    },
    rwkv7("rwkv7-0.1b", 12, 768, [64, 64, 32, 128]),
    rwkv7("rwkv7-0.4b", 24, 1024, [64, 64, 32, 128]),
    rwkv7("rwkv7-1.5b", 24, 2048, [96, 96, 64, 256]),
    rwkv7("rwkv7-2.9b", 32, 2560, [96, 96, 64, 320]),
];

/// A published Qwen3: hidden and intermediate size, query heads, and whether the LM head is the embedding.
const fn qwen3(
    name: &'static str,
    layers: usize,
    [hidden_size, intermediate_size]: [usize; 2],
    attention_heads: usize,
    tied: bool,
) -> PublishedShape {
    PublishedShape {
        name,
        family: Family::Qwen3,
        shape: Shape {
            naming: TensorNaming::HuggingFace,
            layers,
            hidden_size,
            attention_heads,
            kv_heads: 8,
            head_dim: 128,
            intermediate_size,
            padded_vocab_size: 151_936,
            context_length: 40_960,
            causal: true,
            tied,
            biases: false,
            qk_norms: true,
            layer_kind: LayerKind::Attention,
        },
    }
}

/// A published Fast-dLLM v2, which is made of a Qwen2.5: hidden and intermediate size and vocabulary, query and KV heads, and
/// whether the LM head is the embedding.
const fn fast_dllm(
    name: &'static str,
    [hidden_size, intermediate_size, padded_vocab_size]: [usize; 3],
    [attention_heads, kv_heads]: [usize; 2],
    tied: bool,
) -> PublishedShape {
    PublishedShape {
        name,
        family: Family::FastDllm,
        shape: Shape {
            naming: TensorNaming::HuggingFace,
            layers: 28,
            hidden_size,
            attention_heads,
            kv_heads,
            head_dim: 128,
            intermediate_size,
            padded_vocab_size,
            context_length: 32_768,
            causal: false,
            tied,
            biases: true,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        },
    }
}

/// A published SDAR: Qwen3's layers with an LM head of their own.
const fn sdar(
    name: &'static str,
    layers: usize,
    sizes: [usize; 2],
    attention_heads: usize,
) -> PublishedShape {
    let like = qwen3(name, layers, sizes, attention_heads, false);
    PublishedShape {
        family: Family::Sdar,
        shape: Shape {
            causal: false,
            ..like.shape
        },
        ..like
    }
}

/// Qwen3-30B-A3B, and what was made of it.
const fn qwen3_moe(name: &'static str, family: Family) -> PublishedShape {
    PublishedShape {
        name,
        family,
        shape: Shape {
            naming: TensorNaming::HuggingFace,
            layers: 48,
            hidden_size: 2048,
            attention_heads: 32,
            kv_heads: 4,
            head_dim: 128,
            intermediate_size: 768,
            padded_vocab_size: 151_936,
            context_length: 40_960,
            causal: matches!(family, Family::Qwen3Moe),
            tied: false,
            biases: false,
            qk_norms: true,
            layer_kind: LayerKind::Mixture(ExpertShape {
                count: 128,
                per_token: 8,
                intermediate_size: 768,
                shared_intermediate_size: 0,
                has_choice_bias: false,
                dense_layers: 0,
                layer_step: 1,
            }),
        },
    }
}

/// A published LLaDA2.0, with the widths of its first layer's MLP and of an expert.
const fn llada2(
    name: &'static str,
    layers: usize,
    hidden_size: usize,
    attention_heads: usize,
    [intermediate_size, expert_size]: [usize; 2],
) -> PublishedShape {
    PublishedShape {
        name,
        family: Family::Llada2,
        shape: Shape {
            naming: TensorNaming::Llada2,
            layers,
            hidden_size,
            attention_heads,
            kv_heads: 4,
            head_dim: 128,
            intermediate_size,
            padded_vocab_size: 157_184,
            context_length: 32_768,
            causal: false,
            tied: false,
            biases: false,
            qk_norms: true,
            layer_kind: LayerKind::Mixture(ExpertShape {
                count: 256,
                per_token: 8,
                intermediate_size: expert_size,
                shared_intermediate_size: expert_size,
                has_choice_bias: true,
                dense_layers: 1,
                layer_step: 1,
            }),
        },
    }
}

/// A published RWKV-7, which all have the same vocabulary. Ranks are those of the decay, the learning rate, the value and
/// the gate.
const fn rwkv7(
    name: &'static str,
    layers: usize,
    width: usize,
    ranks: [usize; 4],
) -> PublishedShape {
    let [decay, learning_rate, value, gate] = ranks;
    PublishedShape {
        name,
        family: Family::Rwkv7,
        shape: Shape {
            naming: TensorNaming::HuggingFace,
            layers,
            hidden_size: width,
            attention_heads: width / RWKV7_HEAD_DIM,
            kv_heads: width / RWKV7_HEAD_DIM,
            head_dim: RWKV7_HEAD_DIM,
            intermediate_size: 4 * width,
            padded_vocab_size: 65_536,
            context_length: RECURRENT_CONTEXT_LENGTH,
            causal: true,
            tied: false,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Rwkv7(Rwkv7Ranks {
                decay,
                learning_rate,
                value,
                gate,
            }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_weights::TensorPart;

    #[test]
    fn presets_have_the_published_number_of_parameters() {
        // The figures of model cards and papers, exact where they are given exactly.
        for (name, parameters) in [
            ("llada-8b", 8_015_581_184),
            ("tinyllama-1.1b", 1_100_048_384),
            ("llama-3.1-8b", 8_030_261_248),
            ("llama-3-70b", 70_553_706_496),
            ("dream-7b", 7_615_616_512),
            ("fast-dllm-1.5b", 1_543_714_304),
            ("fast-dllm-7b", 7_615_616_512),
            ("qwen3-0.6b", 596_049_920),
            ("qwen3-1.7b", 1_720_574_976),
            ("qwen3-4b", 4_022_468_096),
            ("qwen3-8b", 8_190_735_360),
            // 8,822,848,512 bytes in bf16.
            ("sdar-4b", 4_411_424_256),
            ("qwen3-30b-a3b", 30_532_122_624),
            ("rwkv7-0.1b", 191_034_624),
            ("rwkv7-0.4b", 450_767_872),
            ("rwkv7-1.5b", 1_527_404_544),
            ("rwkv7-2.9b", 2_947_735_040),
        ] {
            let preset = PublishedShape::find(name).unwrap();
            assert_eq!(preset.shape().parameters(), parameters, "{name}");
        }
        // Published as 1.49 B and 8.5 B.
        for (name, unit, rounded) in [
            ("llada-1b", 10_000_000, 149),
            ("nemotron-ld-8b", 100_000_000, 85),
        ] {
            let parameters = PublishedShape::find(name).unwrap().shape().parameters();
            assert_eq!((parameters + unit / 2) / unit, rounded, "{name}");
        }
        assert!(PublishedShape::find("llada").is_none());
    }

    #[test]
    fn mixtures_have_the_published_number_of_parameters_and_tensors() {
        // In millions, as model cards and indices of files have them.
        for (name, millions, tensors) in [
            ("qwen3-30b-a3b", 30_532, 18_867),
            ("sdar-30b-a3b", 30_532, 18_867),
            ("rnd1-base", 30_532, 18_867),
            ("llada-moe-7b", 7_357, 3_219),
            ("llada2-mini", 16_256, 14_813),
            ("llada2-flash", 102_890, 24_161),
            // Without the tower that sees. Published files have all experts of a layer in two tensors.
            ("diffusion-gemma-26b-a4b", 25_251, 691 + 30 * (3 * 128 - 2)),
        ] {
            let shape = PublishedShape::find(name).unwrap().shape();
            assert_eq!(
                (shape.parameters() + 500_000) / 1_000_000,
                millions,
                "{name}"
            );
            assert_eq!(shape.stored().count(), tensors, "{name}");
        }
    }

    #[test]
    fn every_shape_is_of_a_published_model() {
        for shape in &PUBLISHED_SHAPES {
            assert_eq!(shape.published().short, shape.name);
        }
        for only_planned in names::ONLY_SHAPES {
            assert!(PublishedShape::find(only_planned.short).is_some());
        }
    }

    #[test]
    fn heads_share_the_width_of_every_preset() {
        for preset in &PUBLISHED_SHAPES {
            let shape = preset.shape();
            // Qwen3's heads have a size of their own.
            assert!(
                shape.qk_norms || shape.attention_heads * shape.head_dim == shape.hidden_size,
                "{}",
                preset.name
            );
            assert_eq!(shape.attention_heads % shape.kv_heads, 0, "{}", preset.name);
        }
    }

    #[test]
    fn each_family_has_its_own_names() {
        let names = |preset: &str| -> Vec<(String, Vec<usize>)> {
            let specs = PublishedShape::find(preset).unwrap().shape().tensors();
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
        let dream = PublishedShape::find("dream-7b").unwrap().shape();
        let biases: Vec<_> = (dream.tensors().into_iter())
            .filter(|spec| spec.name.ends_with(".bias"))
            .collect();
        assert_eq!(biases.len(), 28 * 3);
        assert_eq!(biases[1].name, "model.layers.0.self_attn.k_proj.bias");
        assert_eq!(
            (&biases[1].shape[..], biases[1].part),
            (&[512][..], TensorPart::KeyBias)
        );
        let bare = Shape {
            biases: false,
            qk_norms: false,
            ..dream.clone()
        };
        assert_eq!(
            dream.parameters() - bare.parameters(),
            28 * (3584 + 2 * 512)
        );
        let tied = Shape { tied: true, ..bare };
        assert_eq!(bare.parameters() - tied.parameters(), 152_064 * 3584);
        let tensors = tied.tensors();
        let head = tensors
            .iter()
            .find(|spec| spec.part == TensorPart::LmHead)
            .unwrap();
        assert_eq!(head.name, "model.embed_tokens.weight");
        assert!(tied.stored().all(|spec| spec.part != TensorPart::LmHead));
    }
}
