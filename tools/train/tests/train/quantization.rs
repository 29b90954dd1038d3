//! Training with the weights of a level.

use std::{path::Path, sync::atomic::AtomicBool};

use candle_core::Device;
use sluice_shared::level::Level;
use sluice_train::{
    export, log,
    model::Model,
    quantization::{QuantizationOptions, Rounding},
    schedule::{self, Phase},
    trainer::{TrainOptions, Trainer},
};

use crate::runs::{micro, open, options, steps, vocabulary};

/// Ten steps, of which the last five are with rounded weights.
fn half(folder: &Path) -> TrainOptions {
    TrainOptions {
        steps: 10,
        quantization: Some(QuantizationOptions {
            level: Level::Aggressive,
            share: 0.5,
            task_weight: 0.5,
            kl_weight: 0.5,
        }),
        ..options(folder)
    }
}

fn weights(model: &Model) -> Vec<u8> {
    export::weights(model).expect("weights")
}

#[test]
fn the_second_half_learns_from_the_first_ones_average_at_a_tenth_of_the_rate() {
    let folder = tempfile::tempdir().expect("folder");
    let mut trainer = open(half(folder.path()));
    steps(&mut trainer, 5);
    assert!(trainer.state.teacher.is_none());
    let learned = trainer.state.optimizer.averaged(&trainer.state.model);
    let learned = weights(&learned.expect("average"));
    assert_eq!(
        schedule::phase(&trainer.state.progress),
        Phase::Quantized(0.0)
    );
    let rate = schedule::learning_rate(&trainer.state.progress);
    assert!((rate / 0.0004 - 1.0).abs() < 1e-9, "{rate}");

    steps(&mut trainer, 5);

    let teacher = trainer.state.teacher.as_ref().expect("a teacher");
    assert_eq!(weights(teacher), learned);
    assert_ne!(weights(&trainer.state.model), learned);
    let state = &trainer.state;
    let averaged = state.optimizer.averaged(&state.model).expect("average");
    let rounding = Rounding::new(Level::Aggressive, &averaged.config).expect("rounding");
    assert_eq!(
        weights(&state.trained_model(2).expect("model")),
        weights(&rounding.apply(&averaged, 2).expect("round"))
    );
}

#[test]
fn a_run_resumed_on_either_side_of_the_change_takes_the_same_steps() {
    for before in [4, 5, 7] {
        let folder = tempfile::tempdir().expect("folder");
        let mut first = open(half(folder.path()));
        steps(&mut first, before);
        first.save().expect("save");
        let expected = steps(&mut first, 3);

        let mut resumed = open(half(folder.path()));

        assert_eq!(resumed.state.teacher.is_some(), before > 5);
        assert_eq!(steps(&mut resumed, 3), expected);
        assert_eq!(resumed.state.optimizer.means, first.state.optimizer.means);
    }
}

#[test]
fn threads_change_nothing() {
    let train = |threads, loader_threads| {
        let folder = tempfile::tempdir().expect("folder");
        let options = TrainOptions {
            threads,
            loader_threads,
            ..half(folder.path())
        };
        steps(&mut open(options), 7)
    };
    let expected = train(1, 0);
    assert_eq!(train(2, 1), expected);
    assert_eq!(train(3, 2), expected);
}

#[test]
fn with_all_of_the_run_the_teacher_is_the_model_it_began_with() {
    let [before, exported, after] = [(); 3].map(|()| tempfile::tempdir().expect("folder"));
    let mut first = open(options(before.path()));
    steps(&mut first, 5);
    export::export(exported.path(), &first.state.model, &vocabulary(), None).expect("export");
    let from = || TrainOptions {
        from: Some(exported.path().to_owned()),
        quantization: half(Path::new(""))
            .quantization
            .map(|quantization| QuantizationOptions {
                share: 1.0,
                ..quantization
            }),
        report_steps: 2,
        evaluate_steps: 2,
        ..options(after.path())
    };
    let mut on = open(from());
    let never = AtomicBool::new(false);

    on.run_until(2, &never).expect("run");

    let teacher = on.state.teacher.as_ref().expect("a teacher");
    assert_eq!(weights(teacher), weights(&first.state.model));
    let entry = &log::read(after.path()).expect("log")[0];
    assert!(entry.held_out.is_some() && entry.held_out_rounded.is_some());
    // Other weights of the loss are another run.
    let mut other = from();
    other.quantization.as_mut().expect("given").kl_weight = 0.25;
    assert!(Trainer::open(other, vocabulary(), micro(), &Device::Cpu).is_err());
}
