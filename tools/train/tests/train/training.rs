//! Training for real, with a model small enough for a test.

use std::{path::Path, sync::atomic::AtomicBool};

use candle_core::{Device, Tensor};
use sluice_train::{
    batch::Batch,
    config::TransformerConfig,
    export,
    gradient::{self, Distillation},
    likelihood::{self, LikelihoodOptions},
    log,
    model::Model,
    objective::Objective,
    ops::{self, Pack},
    trainer::TrainOptions,
};

use crate::runs::{VOCABULARY, micro, open, options, steps, vocabulary};

#[test]
fn the_loss_falls_for_either_objective() {
    for objective in [Objective::Diffusion, Objective::Autoregressive] {
        let folder = tempfile::tempdir().expect("folder");
        let mut options = options(folder.path());
        options.batch.objective = objective;
        let losses = steps(&mut open(options), 40);
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        let (first, last) = (mean(&losses[..8]), mean(&losses[32..]));
        assert!(
            last < 0.9 * first,
            "{objective:?}: from {first:.3} to {last:.3}"
        );
    }
}

#[test]
fn a_resumed_run_takes_the_steps_the_first_would_have_taken() {
    let folder = tempfile::tempdir().expect("folder");
    let mut first = open(options(folder.path()));
    steps(&mut first, 5);
    first.save().expect("save");
    let expected = steps(&mut first, 3);

    let mut resumed = open(options(folder.path()));

    assert_eq!(resumed.state.progress.step, 5);
    assert_eq!(steps(&mut resumed, 3), expected);
    assert_eq!(resumed.state.optimizer.means, first.state.optimizer.means);
}

#[test]
fn a_run_begins_with_an_exported_model() {
    let [before, exported, after, fresh] = [(); 4].map(|()| tempfile::tempdir().expect("folder"));
    let mut first = open(options(before.path()));
    steps(&mut first, 40);
    let learned = first
        .state
        .optimizer
        .averaged(&first.state.model)
        .expect("average");
    export::export(exported.path(), &learned, &vocabulary(), None).expect("export");
    assert_eq!(
        export::read_config(exported.path()).expect("shape"),
        micro().into()
    );

    let mut on = open(TrainOptions {
        from: Some(exported.path().to_owned()),
        ..options(after.path())
    });

    let weights = |model: &Model| export::weights(model).expect("weights");
    assert_eq!(weights(&on.state.model), weights(&learned));
    assert!(on.state.progress.began_with.is_some());
    let mean = |losses: Vec<f64>| losses.iter().sum::<f64>() / losses.len() as f64;
    let afresh = mean(steps(&mut open(options(fresh.path())), 4));
    let on = mean(steps(&mut on, 4));
    assert!(on < 0.95 * afresh, "{on}, and afresh {afresh}");
}

#[test]
fn a_run_by_the_clock_ends_when_its_time_is_over() {
    let folder = tempfile::tempdir().expect("folder");
    let never = AtomicBool::new(false);
    let mut timed = open(TrainOptions {
        seconds: Some(3600),
        steps: u64::MAX,
        report_steps: 1,
        ..options(folder.path())
    });
    timed.state.progress.train_seconds = 3_599.999;

    timed.run(&never).expect("run");

    assert_eq!(timed.state.progress.step, 1, "one step takes what is left");
    let entry = &log::read(folder.path()).expect("log")[0];
    // Warm-up is over in five steps; the schedule has fallen to a fiftieth.
    assert!(entry.learning_rate < 0.03 * 0.004, "{entry:?}");
}

#[test]
fn the_log_of_a_resumed_run_tells_every_step_once() {
    let folder = tempfile::tempdir().expect("folder");
    let never = AtomicBool::new(false);
    let short = TrainOptions {
        report_steps: 2,
        evaluate_steps: 4,
        ..options(folder.path())
    };
    let mut first = open(short.clone());
    steps(&mut first, 4);
    first.save().expect("save");
    // Goes on for a while, and is killed before the next checkpoint.
    let path = folder.path().join(log::FILE_NAME);
    let entry = |step: u64| log::Entry {
        step,
        tokens: 0,
        loss: 1.0,
        kl: None,
        held_out: None,
        held_out_rounded: None,
        held_out_kl: None,
        gradient_norm: 1.0,
        learning_rate: 0.1,
        tokens_per_second: 1.0,
        data_wait: 0.0,
        train_seconds: 1.0,
        memory: None,
    };
    let lines: Vec<String> = [2, 4, 6]
        .map(|step| serde_json::to_string(&entry(step)).expect("json"))
        .into();
    std::fs::write(&path, lines.join("\n") + "\n{\"step\": 8, \"lo").expect("write");

    let mut resumed = open(short);
    resumed.run_until(10, &never).expect("run");

    let told: Vec<u64> = log::read(folder.path())
        .expect("log")
        .iter()
        .map(|entry| entry.step)
        .collect();
    assert_eq!(told, [2, 4, 6, 8, 10]);
}

#[test]
fn threads_change_nothing() {
    let train = |threads, loader_threads| {
        let folder = tempfile::tempdir().expect("folder");
        let options = TrainOptions {
            threads,
            loader_threads,
            ..options(folder.path())
        };
        steps(&mut open(options), 3)
    };
    let expected = train(1, 0);
    assert_eq!(train(2, 1), expected);
    assert_eq!(train(3, 2), expected);
}

#[test]
fn computing_blocks_again_changes_no_gradient() {
    let random = |seed| Model::random(micro(), seed, vocabulary().mask_id, &Device::Cpu);
    let (model, teacher) = (random(5).expect("model"), random(6).expect("model"));
    let distillation = Distillation {
        teacher: &teacher,
        task_weight: 0.5,
        kl_weight: 0.5,
    };
    let batch = Batch::draw(&options(Path::new("")).batch, &vocabulary(), 0).expect("draw");
    let part = &batch.parts[0];
    for with in [None, Some(&distillation)] {
        let gradients = |interval| {
            gradient::gradients(&model, part, (&part.pack).into(), with, interval)
                .expect("gradients")
        };
        let (loss, expected) = gradients(None);
        for interval in [1, 2, 3] {
            let (again, found) = gradients(Some(interval));
            assert_eq!(again, loss);
            for ((name, _), (found, expected)) in
                model.variables().iter().zip(found.iter().zip(&expected))
            {
                let size = expected
                    .iter()
                    .fold(0.0f32, |size, value| size.max(value.abs()));
                for (found, expected) in found.iter().zip(expected) {
                    let difference = (found - expected).abs();
                    assert!(difference <= 1e-5 * size, "{name}, interval {interval}");
                }
            }
        }
    }
}

#[test]
fn attention_begins_by_copying() {
    let vocabulary = vocabulary();
    let model = Model::random(micro(), 5, vocabulary.mask_id, &Device::Cpu).expect("model");
    let pack = Pack::new([5]);
    let (mut seen, mut unseen) = (0.0, 0.0);
    for first in (0..400).step_by(4) {
        let ids = [first, first + 1, first + 2, first + 3, vocabulary.mask_id];
        let logits = model.logits(&ids, &pack, &[4]).expect("logits");
        let logits = &logits.to_vec2::<f32>().expect("numbers")[0];
        let sum = |ids: &mut dyn Iterator<Item = usize>| ids.map(|id| logits[id]).sum::<f32>();
        let first = first as usize;
        seen += sum(&mut (first..first + 4)) / 400.0;
        unseen += sum(&mut (0..first).chain(first + 4..400)) / (396.0 * 100.0);
    }
    // Logits spread by about one; these are means over hundreds.
    assert!(seen > unseen + 0.3, "{seen} against {unseen}");
}

#[test]
fn a_causal_model_does_not_look_ahead() {
    let config = TransformerConfig {
        causal: true,
        ..micro()
    };
    let model = Model::random(config, 5, vocabulary().mask_id, &Device::Cpu).expect("model");
    let pack = Pack::new([6]);
    let logits = |ids: [u32; 6]| {
        let logits = model.logits(&ids, &pack, &[2, 5]).expect("logits");
        logits.to_vec2::<f32>().expect("numbers")
    };
    let (first, second) = (logits([1, 2, 3, 4, 5, 6]), logits([1, 2, 3, 9, 9, 9]));
    assert_eq!(first[0], second[0]);
    assert_ne!(first[1], second[1]);
}

#[test]
fn an_untrained_model_is_as_good_as_guessing() {
    for causal in [false, true] {
        let config = TransformerConfig { causal, ..micro() };
        let model = Model::random(config, 5, vocabulary().mask_id, &Device::Cpu).expect("model");
        let options = LikelihoodOptions {
            samples: 20,
            draws: 4,
            seed: 1,
            threads: 2,
        };
        let nats = likelihood::negative_log_likelihood(&model, &vocabulary(), &options)
            .expect("likelihood");
        let guessing = (VOCABULARY as f64).ln();
        // The padding of a canvas is guessed as well.
        let most = if causal { 1.2 } else { 3.0 };
        assert!(
            nats > guessing && nats < most * guessing,
            "causal {causal}: {nats}"
        );
    }
}

#[test]
fn a_model_is_compared_with_another_by_the_same_draws() {
    let random = |seed| Model::random(micro(), seed, vocabulary().mask_id, &Device::Cpu);
    let (model, other) = (random(5).expect("model"), random(6).expect("model"));
    let options = LikelihoodOptions {
        samples: 5,
        draws: 2,
        seed: 1,
        threads: 2,
    };
    let nats = |model: &Model| {
        likelihood::negative_log_likelihood(model, &vocabulary(), &options).expect("likelihood")
    };
    let compare = |reference: &Model, model: &Model| {
        likelihood::compare(reference, model, &vocabulary(), &options).expect("compare")
    };

    let itself = compare(&model, &model);
    let found = compare(&other, &model);

    assert_eq!(itself.nats, [nats(&model); 2]);
    assert!(
        itself.kl.abs() < 1e-5 && itself.same_top == 1.0,
        "{itself:?}"
    );
    assert_eq!(found.nats, [nats(&other), nats(&model)]);
    assert!(found.kl > 0.1 && found.same_top < 0.9, "{found:?}");
}

#[test]
fn the_gradient_of_every_weight_is_the_slope_of_the_loss() {
    let model = Model::random(micro(), 5, vocabulary().mask_id, &Device::Cpu).expect("model");
    let batch = Batch::draw(&options(Path::new("")).batch, &vocabulary(), 0).expect("draw");
    let part = &batch.parts[0];
    let value = || {
        let logits = model
            .logits(&part.ids, &part.pack, &part.positions)
            .expect("logits");
        let (targets, weights) = (part.targets.clone(), part.weights.clone());
        let loss = ops::cross_entropy(&logits, targets, weights).expect("loss");
        f64::from(loss.to_scalar::<f32>().expect("scalar"))
    };
    let (_, gradients) =
        gradient::gradients(&model, part, (&part.pack).into(), None, None).expect("gradients");
    for ((name, variable), gradient) in model.variables().iter().zip(gradients) {
        // Along the gradient the slope is its norm.
        let gradient = Tensor::from_vec(gradient, variable.shape(), &Device::Cpu).expect("shape");
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
