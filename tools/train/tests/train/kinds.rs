//! Training of each kind of network, from nothing and on.

use std::path::Path;

use candle_core::Device;
use sluice_train::{
    batch::{Batch, BatchOptions},
    config::{LatentThoughtConfig, ModelConfig, Rwkv7Config, TransformerConfig},
    export,
    latent::LatentOptions,
    latent::bound,
    likelihood::LikelihoodOptions,
    model::Model,
    objective::Objective,
    precision::Precision,
    trainer::{TrainOptions, Trainer},
    weights_file::WeightFiles,
};

use crate::runs::{VOCABULARY, micro, options, steps, vocabulary};

/// A sequence or two.
const PART_TOKENS: usize = 100;

fn rwkv7(folder: &Path) -> (TrainOptions, ModelConfig) {
    let usual = options(folder);
    let options = TrainOptions {
        batch: BatchOptions {
            objective: Objective::Autoregressive,
            part_tokens: PART_TOKENS,
            ..usual.batch
        },
        ..usual
    };
    (options, Rwkv7Config::new(64, 2, 128, VOCABULARY).into())
}

fn latent_thought(folder: &Path) -> (TrainOptions, ModelConfig) {
    let usual = options(folder);
    let options = TrainOptions {
        batch: BatchOptions {
            objective: Objective::Latent,
            part_tokens: PART_TOKENS,
            ..usual.batch
        },
        latent: Some(LatentOptions {
            steps: 3,
            initial_log_variance: -2.0,
            prefix_share: 0.5,
            ..LatentOptions::default()
        }),
        ..usual
    };
    let config = LatentThoughtConfig {
        dim: 64,
        n_layers: 2,
        n_heads: 4,
        hidden_dim: Some(96),
        multiple_of: 32,
        vocab_size: VOCABULARY,
        max_seq_len: 512,
        max_z_len: 4,
        window_size: 16,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
    };
    (options, config.into())
}

type Kind = fn(&Path) -> (TrainOptions, ModelConfig);

const KINDS: [Kind; 2] = [rwkv7, latent_thought];

fn open((options, config): (TrainOptions, ModelConfig)) -> Trainer {
    Trainer::open(options, vocabulary(), config, &Device::Cpu).expect("open")
}

#[test]
fn the_loss_of_either_kind_falls() {
    for kind in KINDS {
        let folder = tempfile::tempdir().expect("folder");
        let mut trainer = open(kind(folder.path()));
        // What tokens cost: the divergence of latents has its own way.
        let mut costs = (0..30).map(|_| {
            let step = trainer.step().expect("step");
            step.loss - step.kl.unwrap_or_default()
        });
        let mut mean = |count: usize| costs.by_ref().take(count).sum::<f64>() / count as f64;
        let (first, _, last) = (mean(6), mean(18), mean(6));
        assert!(last < 0.9 * first, "from {first:.3} to {last:.3}");
    }
}

#[test]
fn mixed_precision_learns_as_much() {
    let causal = |folder: &Path| {
        let (options, _) = rwkv7(folder);
        let config = TransformerConfig {
            causal: true,
            ..micro()
        };
        (options, config.into())
    };
    for kind in [causal as Kind, rwkv7, latent_thought] {
        let losses = [Precision::F32, Precision::Bf16].map(|precision| {
            let folder = tempfile::tempdir().expect("folder");
            let (options, config) = kind(folder.path());
            let options = TrainOptions {
                precision,
                ..options
            };
            let losses = steps(&mut open((options, config)), 10);
            losses[5..].iter().sum::<f64>() / 5.0
        });
        let [full, half] = losses;
        assert!(
            (half / full - 1.0).abs() < 0.01 && half != full,
            "{half} instead of {full}"
        );
    }
}

#[test]
fn a_resumed_run_of_either_kind_takes_the_steps_the_first_would_have_taken_on_any_threads() {
    for kind in KINDS {
        let folder = tempfile::tempdir().expect("folder");
        let mut first = open(kind(folder.path()));
        steps(&mut first, 3);
        first.save().expect("save");
        let expected = steps(&mut first, 3);

        let (options, config) = kind(folder.path());
        let mut resumed = open((
            TrainOptions {
                threads: 1,
                loader_threads: 3,
                ..options
            },
            config,
        ));

        assert_eq!(steps(&mut resumed, 3), expected);
        assert_eq!(resumed.state.optimizer.means, first.state.optimizer.means);
    }
}

#[test]
fn an_exported_folder_of_either_kind_has_its_tensors_and_is_trained_on() {
    for (kind, fixture) in KINDS.into_iter().zip(["rwkv7-tiny", "ltm-tiny"]) {
        let [before, exported, after] = [(); 3].map(|()| tempfile::tempdir().expect("folder"));
        let mut first = open(kind(before.path()));
        steps(&mut first, 2);
        let model = &first.state.model;
        let latent = first.state.progress.latent;
        export::export(exported.path(), model, &vocabulary(), latent.as_ref()).expect("export");

        assert_eq!(
            export::read_config(exported.path()).expect("config"),
            model.config
        );
        let json = std::fs::read(exported.path().join("config.json")).expect("config");
        let json: serde_json::Value = serde_json::from_slice(&json).expect("json");
        assert_eq!(
            json["eos_token_id"],
            serde_json::json!(vocabulary().eos_ids())
        );
        assert_eq!(json["posterior_steps"].is_number(), latent.is_some());
        // The names of the published layout, whatever the sizes are.
        let root = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../daemon/engine/tests/fixtures"
        );
        let files = WeightFiles::open(&Path::new(root).join(fixture)).expect("fixture");
        let written = WeightFiles::open(exported.path()).expect("weights");
        let layers = |name: &String| !name.contains("layers.2") && !name.contains("layers.3");
        let expected: Vec<_> = files
            .names()
            .expect("names")
            .into_iter()
            .filter(layers)
            .collect();
        assert_eq!(written.names().expect("names"), expected);

        let (options, config) = kind(after.path());
        let on = open((
            TrainOptions {
                from: Some(exported.path().to_owned()),
                ..options
            },
            config,
        ));
        let weights = |model: &Model| export::weights(model).expect("weights");
        assert_eq!(weights(&on.state.model), weights(&first.state.model));
    }
}

#[test]
fn latents_of_a_prompt_are_measured_apart_from_those_of_the_text() {
    let folder = tempfile::tempdir().expect("folder");
    let (options, config) = latent_thought(folder.path());
    let latent = options.latent.expect("given");
    let model = Model::random(config, 3, None, &Device::Cpu).expect("model");
    let likelihood = LikelihoodOptions {
        samples: 4,
        draws: 3,
        seed: 1,
        threads: 2,
    };
    let fast = latent.at(1.0);
    let found =
        bound::measure(&model, &vocabulary(), &likelihood, &latent, &fast, &[0, 2]).expect("bound");
    assert!(
        found.answer_tokens > 0.0 && found.answer_tokens < found.tokens,
        "{found:?}"
    );
    assert!(found.multi_sample <= found.evidence(), "{found:?}");
    // An untrained network guesses, whatever its latents are.
    let guessing = (VOCABULARY as f64).ln();
    assert_eq!(found.answers.len(), 2);
    for nats in [found.nll].iter().chain(&found.answers) {
        assert!((nats - guessing).abs() < 1.0, "{found:?}");
    }
    let batch = Batch::draw(&options.batch, &vocabulary(), 0).expect("draw");
    assert!(batch.parts[0].prompts.iter().all(|prompt| *prompt > 0));
}
