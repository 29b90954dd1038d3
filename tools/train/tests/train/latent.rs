//! Learning latents: arithmetic against the reference, and bounds against brute force.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use sluice_train::{
    batch::Part,
    config::{LatentThoughtConfig, ModelConfig},
    latent::{FastLearning, LatentOptions, Posterior, bound::Text},
    model::Model,
    objective::Row,
    random::Random,
};

use crate::networks::{Fixture, difference, rows};

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor
        .flatten_all()
        .and_then(|flat| flat.to_vec1())
        .expect("numbers")
}

fn part(ids: &[u32], targets: &[u32], length: usize) -> Part {
    let texts = ids.chunks(length).zip(targets.chunks(length));
    Part::pack(texts.map(|(ids, targets)| Row {
        ids: ids.to_vec(),
        positions: (0..length as u32).collect(),
        targets: targets.to_vec(),
        weights: vec![1.0; length],
        prompt: 0,
    }))
}

#[test]
fn slopes_of_the_bound_are_those_of_the_reference() {
    let fixture = Fixture::open("ltm-tiny");
    let frozen = fixture.model.frozen().expect("frozen");
    for case in fixture.cases("elbo") {
        let name = case["name"].as_str().expect("name");
        let (ids, pack) = Fixture::ids(&case, "input_ids");
        let (targets, _) = Fixture::ids(&case, "targets");
        let part = part(&ids, &targets, pack.longest());
        let tensor = |kind: &str| rows(&fixture.tensor(&format!("elbo.{name}.{kind}")));
        let posterior = Posterior {
            mean: values(&tensor("mu")),
            log_variance: values(&tensor("log_var")),
        };
        let kl = posterior.kl() / pack.sequences().count() as f64;
        let expected = case["kl_mean"].as_f64().expect("number");
        assert!((kl / expected - 1.0).abs() < 1e-5, "{name}: {kl}");
        for interval in [None, Some(3)] {
            let slopes = posterior.slopes(&frozen, &part, &values(&tensor("eps")), 1.0, interval);
            let slopes = slopes.expect("slopes");
            for (found, kind) in slopes.into_iter().zip(["grad_mu", "grad_log_var"]) {
                let expected = tensor(kind);
                let found = Tensor::from_vec(found, expected.shape(), &Device::Cpu).expect("shape");
                let difference = difference(&found, &expected);
                assert!(difference < 1e-3, "{name} {kind}: {difference}");
            }
        }
    }
}

#[test]
fn fast_learning_with_the_noise_of_the_reference_ends_where_it_does() {
    let fixture = Fixture::open("ltm-tiny");
    let frozen = fixture.model.frozen().expect("frozen");
    for case in fixture.cases("posterior") {
        let name = case["name"].as_str().expect("name");
        let (ids, pack) = Fixture::ids(&case, "input_ids");
        let (targets, _) = Fixture::ids(&case, "targets");
        let part = part(&ids, &targets, pack.longest());
        let tensor = |kind: &str| values(&fixture.tensor(&format!("posterior.{name}.{kind}")));
        let mut posterior = Posterior {
            mean: tensor("mu_start"),
            log_variance: tensor("log_var_start"),
        };
        let number = |key: &str| case["params"][key].as_f64().expect(key);
        let fast = FastLearning {
            steps: number("steps") as usize,
            rate: number("learning_rate"),
            kl_weight: 1.0,
            weight_decay: 0.01,
        };
        let noise = tensor("eps");
        posterior
            .learn(&frozen, &part, &fast, None, &mut |_| noise.clone())
            .expect("learn");
        let found = posterior.latents(&noise);
        for (found, expected) in found.iter().zip(tensor("z")) {
            assert!(
                (found - expected).abs() < 1e-3,
                "{name}: {found} instead of {expected}"
            );
        }
    }
}

/// A network that reads one channel of its one latent vector, and a text whose likelihood depends on it strongly.
fn one_dimension() -> (Model, LatentThoughtConfig, Part) {
    let config = LatentThoughtConfig {
        dim: 8,
        n_layers: 1,
        n_heads: 2,
        hidden_dim: Some(16),
        multiple_of: 1,
        vocab_size: 12,
        max_seq_len: 16,
        max_z_len: 1,
        window_size: 4,
        norm_eps: 1e-5,
        rope_theta: 10_000.0,
    };
    let mut random = Random::new(4, 0);
    let tensors = config.tensors().into_iter();
    let mut weights: BTreeMap<_, _> = tensors
        .map(|(name, shape)| {
            let count = shape.iter().product::<usize>();
            let values: Vec<f32> = (0..count).map(|_| (0.8 * random.normal()) as f32).collect();
            (name, values)
        })
        .collect();
    // Attention to a single vector is sure of it, so only values are read: of the first channel.
    let reads = weights
        .get_mut("layers.0.cross_attention.wv.weight")
        .expect("tensor");
    for (index, weight) in reads.iter_mut().enumerate() {
        if !index.is_multiple_of(config.dim) {
            *weight = 0.0;
        }
    }
    let model = Model::from_weights(config.clone(), weights, &Device::Cpu).expect("model");
    let ids: Vec<u32> = (0..6).map(|index| index * 5 % 12).collect();
    let targets: Vec<u32> = (0..6).map(|index| (index * 7 + 3) % 12).collect();
    let part = part(&ids, &targets, 6);
    (model.frozen().expect("frozen"), config, part)
}

#[test]
fn the_bound_with_fresh_noise_is_above_the_exact_likelihood_and_with_the_fitted_noise_it_is_not() {
    let (model, config, part) = one_dimension();
    let text = |samples| Text {
        model: &model,
        config: &config,
        part: &part,
        samples,
    };
    let cost = |latent: f64| -> f64 {
        let mut latents = vec![0.0; config.dim];
        latents[0] = latent as f32;
        text(1).cost(latents, 0).expect("cost")
    };
    // Brute force over the one channel that counts: the integral of p(x | z) N(z; 0, 1).
    let step = 0.02;
    let integral: f64 = (-400..=400)
        .map(|index| f64::from(index) * step)
        .map(|z| (-cost(z) - 0.5 * z * z).exp() * step / std::f64::consts::TAU.sqrt())
        .sum();
    let exact = -integral.ln();

    let fast = FastLearning {
        steps: 200,
        rate: 0.1,
        kl_weight: 1.0,
        weight_decay: 0.0,
    };
    let prior = || Posterior::prior(&config, 1);
    let mut random = Random::new(7, 0);
    let mut fitted = prior();
    fitted
        .learn(&model, &part, &fast, None, &mut |posterior| {
            posterior.noise(&mut random)
        })
        .expect("learn");
    let [nll, many] = text(3000).bounds(&fitted, &mut random).expect("bounds");
    let bound = nll + fitted.kl();
    assert!(
        bound > exact - 0.02 && bound < exact + 1.0,
        "{bound}, exactly {exact}"
    );
    assert!(
        many < bound && (many - exact).abs() < 0.05,
        "{many}, exactly {exact}"
    );

    // One noise for fitting and for measuring, as in the authors' program: no bound at all.
    let mut noise = vec![0.0; config.dim];
    let best = (-80..80).map(|index| f64::from(index) * 0.05);
    noise[0] = best
        .min_by(|left, right| cost(*left).total_cmp(&cost(*right)))
        .expect("some") as f32;
    let mut same = prior();
    same.learn(&model, &part, &fast, None, &mut |_| noise.clone())
        .expect("learn");
    let said = cost(f64::from(same.latents(&noise)[0])) + same.kl();
    assert!(said < exact - 0.1, "{said} is said, {exact} is exact");
}

#[test]
fn only_a_latent_thought_model_takes_latent_options() {
    let folder = tempfile::tempdir().expect("folder");
    let options = sluice_train::trainer::TrainOptions {
        latent: Some(LatentOptions::default()),
        ..crate::runs::options(folder.path())
    };
    let opened = sluice_train::trainer::Trainer::open(
        options,
        crate::runs::vocabulary(),
        ModelConfig::from(crate::runs::micro()),
        &Device::Cpu,
    );
    assert!(opened.is_err());
}
