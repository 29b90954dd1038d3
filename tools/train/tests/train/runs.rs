//! Runs small enough for a test.

use std::{path::Path, time::Duration};

use candle_core::Device;
use sluice_train::{
    batch::BatchOptions,
    config::TransformerConfig,
    objective::Objective,
    optimizer::OptimizerOptions,
    precision::Precision,
    trainer::{TrainOptions, Trainer},
    vocabulary::Vocabulary,
};

pub(crate) const VOCABULARY: usize = 512;

pub(crate) fn micro() -> TransformerConfig {
    TransformerConfig {
        d_model: 64,
        n_heads: 2,
        n_layers: 3,
        mlp_hidden_size: 96,
        ..TransformerConfig::demonstration(VOCABULARY)
    }
}

pub(crate) fn options(folder: &Path) -> TrainOptions {
    TrainOptions {
        output: folder.to_owned(),
        batch: BatchOptions {
            text: None,
            seed: 5,
            objective: Objective::Diffusion,
            parts: 2,
            part_tokens: 300,
            length_max: 512,
            length_warm_up_steps: 0,
            exercise_steps: 0,
        },
        steps: 60,
        seconds: None,
        from: None,
        quantization: None,
        latent: None,
        optimizer: OptimizerOptions::default(),
        precision: Precision::F32,
        learning_rate: 0.004,
        warm_up_steps: 5,
        threads: 2,
        loader_threads: 1,
        recompute_interval: None,
        memory_limit_bytes: None,
        checkpoint_interval: Duration::MAX,
        report_steps: 10,
        evaluate_steps: 0,
    }
}

pub(crate) fn vocabulary() -> Vocabulary {
    Vocabulary::train(5, VOCABULARY, 500).expect("train tokenizer")
}

pub(crate) fn open(options: TrainOptions) -> Trainer {
    Trainer::open(options, vocabulary(), micro(), &Device::Cpu).expect("open")
}

pub(crate) fn steps(trainer: &mut Trainer, count: usize) -> Vec<f64> {
    (0..count)
        .map(|_| trainer.step().expect("step").loss)
        .collect()
}
