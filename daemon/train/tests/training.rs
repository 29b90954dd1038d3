//! Training for real, with a model small enough for a test.

use std::{collections::BTreeMap, path::Path, time::Duration};

use safetensors::{Dtype, SafeTensors};
use sluice_train::{
    batch::Batches,
    checkpoint,
    config::ModelConfig,
    export, ops,
    sampler::{self, SampleOptions},
    trainer::{TrainOptions, Trainer},
    vocabulary::Vocabulary,
};

const VOCABULARY: usize = 512;

fn micro() -> ModelConfig {
    ModelConfig {
        d_model: 64,
        n_heads: 2,
        n_layers: 2,
        mlp_hidden_size: 96,
        ..ModelConfig::demonstration(VOCABULARY)
    }
}

fn open(folder: &Path) -> Trainer {
    let options = TrainOptions {
        output: folder.to_owned(),
        seed: 5,
        steps: 60,
        rows: 8,
        learning_rate: 0.004,
        warm_up_steps: 5,
        checkpoint_interval: Duration::MAX,
        report_steps: u64::MAX,
    };
    let vocabulary = Vocabulary::train(5, VOCABULARY, 500).expect("train tokenizer");
    Trainer::open(options, vocabulary, micro()).expect("open")
}

fn steps(trainer: &mut Trainer, count: usize) -> Vec<f64> {
    (0..count).map(|_| trainer.step().expect("step")).collect()
}

#[test]
fn the_loss_falls() {
    let folder = tempfile::tempdir().expect("folder");
    let losses = steps(&mut open(folder.path()), 40);
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let (first, last) = (mean(&losses[..8]), mean(&losses[32..]));
    assert!(last < 0.85 * first, "from {first:.3} to {last:.3}");
}

#[test]
fn a_resumed_run_takes_the_steps_the_first_would_have_taken() {
    let folder = tempfile::tempdir().expect("folder");
    let mut first = open(folder.path());
    steps(&mut first, 5);
    first.save().expect("save");
    let expected = steps(&mut first, 3);

    let mut resumed = open(folder.path());

    assert_eq!(resumed.progress.step, 5);
    assert_eq!(steps(&mut resumed, 3), expected);
}

#[test]
fn the_export_is_a_whole_llada_folder() {
    let folder = tempfile::tempdir().expect("folder");
    let trainer = open(folder.path());
    let vocabulary = Vocabulary::train(5, VOCABULARY, 500).expect("train tokenizer");
    let output = folder.path().join("model");

    export::export(&output, &trainer.model, &vocabulary, &trainer.progress).expect("export");

    let file = std::fs::read(output.join("model.safetensors")).expect("weights");
    let tensors = SafeTensors::deserialize(&file).expect("read weights");
    let found: BTreeMap<String, Vec<usize>> = tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, view.shape().to_vec()))
        .collect();
    assert_eq!(found, micro().tensors().into_iter().collect());
    assert!(
        tensors
            .tensors()
            .iter()
            .all(|(_, view)| view.dtype() == Dtype::BF16)
    );
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(output.join("config.json")).expect("config"))
            .expect("json");
    assert_eq!(config["model_type"], "llada");
    assert_eq!(config["mask_token_id"], vocabulary.mask_id);
    assert_eq!(config["mlp_hidden_size"], 96);
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "README.md",
    ] {
        assert!(output.join(name).exists(), "{name} is missing");
    }
}

#[test]
fn an_untrained_model_still_fills_its_canvas() {
    let folder = tempfile::tempdir().expect("folder");
    let trainer = open(folder.path());
    let vocabulary = Vocabulary::train(5, VOCABULARY, 500).expect("train tokenizer");
    let options = SampleOptions {
        length: 32,
        block_length: 16,
        steps: 6,
    };

    let first = sampler::answer(&trainer.model, &vocabulary, "Hello", &options).expect("answer");

    assert_eq!(
        first,
        sampler::answer(&trainer.model, &vocabulary, "Hello", &options).expect("answer")
    );
    assert!(checkpoint::load(folder.path()).expect("load").is_none());
}

#[test]
fn the_gradient_of_every_weight_is_the_slope_of_the_loss() {
    let folder = tempfile::tempdir().expect("folder");
    let trainer = open(folder.path());
    let vocabulary = Vocabulary::train(5, VOCABULARY, 500).expect("train tokenizer");
    let batch = Batches::new(5, 4).draw(&vocabulary, 0).expect("draw");
    let loss = || {
        let logits = trainer
            .model
            .logits(&batch.ids, batch.length, &batch.positions)
            .expect("logits");
        ops::cross_entropy(&logits, batch.targets.clone(), batch.weights.clone()).expect("loss")
    };
    let value = || f64::from(loss().to_scalar::<f32>().expect("scalar"));
    let gradients = loss().backward().expect("gradients");
    for (name, variable) in trainer.model.variables() {
        // Along the gradient the slope is its norm.
        let gradient = gradients.get(variable).expect("gradient").clone();
        let norm = gradient
            .sqr()
            .and_then(|g| g.sum_all()?.to_scalar::<f32>())
            .expect("norm")
            .sqrt();
        let start = variable.as_tensor().copy().expect("copy");
        let reach = 0.02;
        let at = |distance: f64| {
            let moved =
                (&gradient * (distance / f64::from(norm))).and_then(|step| start.add(&step));
            variable.set(&moved.expect("move")).expect("set");
            value()
        };
        let slope = (at(reach) - at(-reach)) / (2.0 * reach);
        variable.set(&start).expect("set");
        let error = (slope / f64::from(norm) - 1.0).abs();
        assert!(error < 0.03, "{name}: slope {slope}, gradient {norm}");
    }
}
