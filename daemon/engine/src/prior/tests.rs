//! Samplers beside the trainer's reference, beside themselves with more steps, and on a distribution whose D is known.

use std::{collections::HashMap, convert::Infallible, fs, path::Path, time::Instant};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use sluice_checkpoint::{Checkpoint, Source};
use sluice_ops::device::Device;
use sluice_shared::prior::{PriorSampling, PriorSolver};

use super::*;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/prior-tiny");

fn ops() -> Ops {
    Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap()
}

fn fixture(ops: &Ops) -> Prior {
    let folder = tempfile::tempdir().unwrap();
    for name in ["prior.json", "prior.safetensors"] {
        fs::copy(Path::new(FIXTURE).join(name), folder.path().join(name)).unwrap();
    }
    // A checkpoint has weights of its own.
    let none: Option<HashMap<String, String>> = None;
    let view = TensorView::new(Dtype::F32, vec![1], &[0; 4]).unwrap();
    let weights = safetensors::serialize([("x", view)], none).unwrap();
    fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    let checkpoint = Checkpoint::open(&Source::Folder(folder.path().to_owned())).unwrap();
    let file = checkpoint.prior([16, 64]).unwrap().unwrap();
    Prior::read(&file, ops).unwrap()
}

fn sampling(solver: PriorSolver, steps: u32) -> PriorSampling {
    PriorSampling { solver, steps }
}

/// A sample and its evaluations.
fn run<E: std::fmt::Debug>(
    noise: &[f32],
    sampling: PriorSampling,
    mut denoise: impl FnMut(&[f32], f64) -> Result<Vec<f32>, E>,
) -> (Vec<f32>, usize) {
    let mut sampler = Sampler::new(noise, sampling);
    while !sampler.is_done() {
        sampler.step(&mut denoise).unwrap();
    }
    (sampler.sample().to_vec(), sampler.evaluations())
}

fn distance(left: &[f32], right: &[f32]) -> f64 {
    assert_eq!(left.len(), right.len());
    let squares = left.iter().zip(right);
    let squares = squares.map(|(left, right)| f64::from(left - right).powi(2));
    (squares.sum::<f64>() / left.len() as f64).sqrt()
}

#[test]
fn heuns_samples_are_those_of_the_trainers_reference() {
    let ops = ops();
    let prior = fixture(&ops);
    let bytes = fs::read(Path::new(FIXTURE).join("expected.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let values = |name: &str| -> Vec<f32> {
        let (fours, _) = tensors.tensor(name).unwrap().data().as_chunks::<4>();
        fours.iter().map(|four| f32::from_le_bytes(*four)).collect()
    };
    let denoise = |x: &[f32], sigma| prior.denoise(&ops, x, sigma);
    let (found, evaluations) = run(&values("noise"), sampling(PriorSolver::Heun, 18), denoise);
    assert_eq!(evaluations, 2 * 18 - 1);
    let found = prior.latents(&found);
    let far = found.iter().zip(values("sample"));
    let far = far.fold(0.0f32, |far, (found, expected)| {
        far.max((found - expected).abs())
    });
    assert!(far < 1e-4, "{far}");
}

#[test]
fn all_solvers_come_to_the_sample_of_many_steps() {
    let ops = ops();
    let mut prior = fixture(&ops);
    // Random weights make the fastest of the noise level's waves, which turn two hundred times over the schedule, as
    // strong as the others; training does not.
    let (_, waves) = prior.tensors["time.0.weight"].clone();
    (prior.weights[waves].iter_mut()).for_each(|weight| *weight *= 0.02);
    let noise = prior.noise(3);
    assert_ne!(noise, prior.noise(4));
    let sample = |solver, steps| {
        let denoise = |x: &[f32], sigma| prior.denoise(&ops, x, sigma);
        run(&noise, sampling(solver, steps), denoise)
    };
    let (exact, _) = sample(PriorSolver::Heun, 400);
    let far = |solver, steps| {
        let (found, evaluations) = sample(solver, steps);
        assert_eq!(found, sample(solver, steps).0, "the same again");
        (distance(&found, &exact), evaluations)
    };
    for (solver, steps, evaluations, limit) in [
        (PriorSolver::Heun, 50, 99, 0.01),
        (PriorSolver::DpmSolverPp2m, 50, 50, 0.02),
        (PriorSolver::DpmSolverPp2m, 20, 20, 0.1),
    ] {
        let found = far(solver, steps);
        println!("{solver:?} {steps}: {found:?}");
        assert!(found.0 < limit && found.1 == evaluations, "{found:?}");
    }
    let found = far(PriorSolver::AdaptiveHeun, 50);
    println!("adaptive: {found:?}");
    assert!(found.0 < 0.02 && found.1 <= 100, "{found:?}");
    // The bound on evaluations holds, whatever the error.
    for steps in 2..12 {
        let (_, evaluations) = sample(PriorSolver::AdaptiveHeun, steps);
        assert!(evaluations <= 2 * steps as usize, "{steps}: {evaluations}");
    }
}

/// Independent elements of N(0.7, 0.4²).
fn gaussian(x: &[f32], sigma: f64) -> Result<Vec<f32>, Infallible> {
    let (mean, variance) = (0.7, 0.16);
    let share = variance / (variance + sigma * sigma);
    let each = x.iter().map(|&x| mean + share * (f64::from(x) - mean));
    Ok(each.map(|x| x as f32).collect())
}

#[test]
fn samples_of_a_gaussian_have_its_mean_and_variance() {
    let count = 20_000;
    let noise = Noise::new(1);
    let noise: Vec<f32> = (0..count).map(|at| noise.normal(0, 0, at) as f32).collect();
    for solver in [
        PriorSolver::Heun,
        PriorSolver::DpmSolverPp2m,
        PriorSolver::AdaptiveHeun,
    ] {
        let (found, evaluations) = run(&noise, sampling(solver, 50), gaussian);
        let mean = found.iter().map(|&x| f64::from(x)).sum::<f64>() / count as f64;
        let squares = found.iter().map(|&x| (f64::from(x) - mean).powi(2));
        let deviation = (squares.sum::<f64>() / count as f64).sqrt();
        println!("{solver:?}: mean {mean:.4}, deviation {deviation:.4}, {evaluations} evaluations");
        // Noise of 20,000 elements has a mean within 0.02 and a deviation within 0.015 of its own.
        assert!((mean - 0.7).abs() < 0.02, "{solver:?}: {mean}");
        assert!((deviation - 0.4).abs() < 0.015, "{solver:?}: {deviation}");
    }
}

#[test]
fn a_step_that_failed_is_tried_again() {
    let noise = [0.3f32, -1.2, 0.8];
    for solver in [
        PriorSolver::Heun,
        PriorSolver::DpmSolverPp2m,
        PriorSolver::AdaptiveHeun,
    ] {
        let (expected, evaluations) = run(&noise, sampling(solver, 12), gaussian);
        let mut sampler = Sampler::new(&noise, sampling(solver, 12));
        let mut calls = 0;
        while !sampler.is_done() {
            let result = sampler.step(&mut |x: &[f32], sigma| {
                calls += 1;
                match calls % 3 {
                    0 => Err(()),
                    _ => gaussian(x, sigma).map_err(|error| match error {}),
                }
            });
            let _ = result;
        }
        assert_eq!(sampler.evaluations(), evaluations);
        assert_eq!(sampler.sample(), expected, "{solver:?}");
    }
}

#[test]
fn n_0_i_is_the_noise_itself() {
    let sampler = Sampler::new(&[0.5], PriorSampling::of(PriorSolver::None));
    assert!(sampler.is_done());
}

/// What a sample costs with the sizes that the trainer makes by default, for the published model's 96 latents of 768.
#[test]
#[ignore = "a measurement: run it with --nocapture"]
fn time_of_a_sample() {
    let shape = PriorShape {
        vectors: 96,
        latent_width: 768,
        width: 256,
        layers: 4,
        heads: 4,
    };
    let ops = ops();
    let elements = shape.tensors().into_iter();
    let elements = elements.map(|(_, shape)| shape.into_iter().product::<usize>());
    let mut weights = (ops.ledger())
        .buffer(MemoryKind::Weights, elements.sum())
        .unwrap();
    let noise = Noise::new(1);
    for (at, weight) in weights.iter_mut().enumerate() {
        *weight = 0.02 * noise.normal(0, 0, at as u64) as f32;
    }
    let prior = Prior::new(shape, weights, None);
    let noise = prior.noise(1);
    for (solver, steps) in [
        (PriorSolver::DpmSolverPp2m, 20),
        (PriorSolver::DpmSolverPp2m, 50),
        (PriorSolver::Heun, 20),
        (PriorSolver::Heun, 50),
        (PriorSolver::AdaptiveHeun, 50),
    ] {
        let started = Instant::now();
        let denoise = |x: &[f32], sigma| prior.denoise(&ops, x, sigma);
        let (_, evaluations) = run(&noise, sampling(solver, steps), denoise);
        let took = started.elapsed().as_millis();
        println!("{solver:?}, {steps} steps: {evaluations} evaluations, {took} ms");
    }
}
