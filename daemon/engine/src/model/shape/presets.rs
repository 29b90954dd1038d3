//! Shapes of published models.

use super::{Naming, Shape};
use crate::model::family::{Family, ModelConfig};

/// A published model, by the name users type.
#[derive(Debug, Clone)]
pub struct Preset {
    /// What users type.
    pub name: &'static str,
    /// Where it is published.
    pub published: &'static str,
    family: Family,
    shape: Shape,
}

impl Preset {
    /// The preset of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// What is computed, with usual values for what has no size.
    #[must_use]
    pub fn config(&self) -> ModelConfig {
        ModelConfig::of(self.family, &self.shape)
    }

    /// Its shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }
}

/// Published shapes. LLaDA-1B has no published configuration: its context is that of its
/// training, its rows are those of LLaDA-8B, which the paper's 1.49 B parameters agree with.
pub static PRESETS: [Preset; 5] = [
    Preset {
        name: "llada-8b",
        published: "GSAI-ML/LLaDA-8B-Instruct",
        family: Family::Llada,
        shape: Shape {
            naming: Naming::Llada,
            layers: 32,
            width: 4096,
            heads: 32,
            kv_heads: 32,
            head_dim: 128,
            mlp_width: 12288,
            embedding_rows: 126_464,
            context_length: 4096,
            causal: false,
            tied: false,
            biases: false,
        },
    },
    Preset {
        name: "llada-1b",
        published: "arXiv 2502.09992, the model of 1.49 B parameters",
        family: Family::Llada,
        shape: Shape {
            naming: Naming::Llada,
            layers: 22,
            width: 2048,
            heads: 32,
            kv_heads: 4,
            head_dim: 64,
            mlp_width: 5634,
            embedding_rows: 126_464,
            context_length: 4096,
            causal: false,
            tied: false,
            biases: false,
        },
    },
    Preset {
        name: "tinyllama-1.1b",
        published: "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        family: Family::Llama,
        shape: Shape {
            naming: Naming::HuggingFace,
            layers: 22,
            width: 2048,
            heads: 32,
            kv_heads: 4,
            head_dim: 64,
            mlp_width: 5632,
            embedding_rows: 32_000,
            context_length: 2048,
            causal: true,
            tied: false,
            biases: false,
        },
    },
    Preset {
        name: "llama-3.1-8b",
        published: "meta-llama/Llama-3.1-8B-Instruct",
        family: Family::Llama,
        shape: Shape {
            naming: Naming::HuggingFace,
            layers: 32,
            width: 4096,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            mlp_width: 14_336,
            embedding_rows: 128_256,
            context_length: 131_072,
            causal: true,
            tied: false,
            biases: false,
        },
    },
    Preset {
        name: "dream-7b",
        published: "Dream-org/Dream-v0-Instruct-7B",
        family: Family::Dream,
        shape: Shape {
            naming: Naming::HuggingFace,
            layers: 28,
            width: 3584,
            heads: 28,
            kv_heads: 4,
            head_dim: 128,
            mlp_width: 18_944,
            embedding_rows: 152_064,
            context_length: 131_072,
            causal: false,
            tied: false,
            biases: true,
        },
    },
];
