//! A prior learns what latents look like, and a sampler finds them again.

use std::{fs, path::Path};

use candle_core::{Device, Tensor};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use sluice_train::{
    latent::{Posterior, posteriors::Posteriors},
    prior::{
        Prior, PriorConfig,
        training::{PriorOptions, train},
    },
    random::Random,
};

const VECTORS: usize = 2;
const WIDTH: usize = 4;

/// Texts of two kinds: all elements of all vectors are near 3, or all near −1.
fn posteriors(count: usize) -> Posteriors {
    let mut random = Random::new(3, 0);
    let mean = (0..count).flat_map(|text| {
        let middle = if text.is_multiple_of(2) { 3.0 } else { -1.0 };
        std::iter::repeat_n(middle, VECTORS * WIDTH)
    });
    let mean = mean
        .map(|middle| (middle + 0.05 * random.normal()) as f32)
        .collect();
    Posteriors {
        vectors: VECTORS,
        width: WIDTH,
        all: Posterior {
            mean,
            log_variance: vec![-4.0; count * VECTORS * WIDTH],
        },
        ids: vec![7; count],
        lengths: vec![1; count],
    }
}

/// Samples of texts, normalised no more.
fn sample(prior: &Prior, texts: usize, steps: usize, random: &mut Random) -> Vec<f32> {
    let count = texts * VECTORS * WIDTH;
    let noise: Vec<f32> = (0..count).map(|_| random.normal() as f32).collect();
    solve(prior, &noise, steps)
}

/// Heun's method over the noise schedule of EDM (arXiv 2206.00364, algorithm 1 without churn), from standard normal noise.
fn solve(prior: &Prior, noise: &[f32], steps: usize) -> Vec<f32> {
    let (least, most, bend) = (0.002f64, 80.0f64, 7.0);
    let level = |step: usize| {
        if step == steps {
            return 0.0;
        }
        let place = step as f64 / (steps - 1) as f64;
        let ends = [most.powf(1.0 / bend), least.powf(1.0 / bend)];
        (ends[0] + place * (ends[1] - ends[0])).powf(bend)
    };
    let PriorConfig {
        vectors,
        latent_width,
        ..
    } = prior.config;
    let texts = noise.len() / (vectors * latent_width);
    let x = noise.iter().map(|noise| most as f32 * noise).collect();
    let mut x = Tensor::from_vec(x, (texts * vectors, latent_width), &Device::Cpu).expect("shape");
    let slope = |x: &Tensor, level: f64| {
        let clean = prior.denoise(x, &vec![level; texts]).expect("denoise");
        ((x - clean).expect("same shape") / level).expect("scale")
    };
    for step in 0..steps {
        let (from, to) = (level(step), level(step + 1));
        let first = slope(&x, from);
        let euler = (&x + (&first * (to - from)).expect("scale")).expect("add");
        x = if to > 0.0 {
            let both = ((first + slope(&euler, to)).expect("add") * 0.5).expect("scale");
            (&x + (both * (to - from)).expect("scale")).expect("add")
        } else {
            euler
        };
    }
    let [mean, deviation] = prior.scale().expect("scale");
    let all = x
        .flatten_all()
        .and_then(|flat| flat.to_vec1::<f32>())
        .expect("numbers");
    let scale = mean.iter().zip(&deviation).cycle();
    all.iter()
        .zip(scale)
        .map(|(x, (mean, deviation))| x * deviation + mean)
        .collect()
}

#[test]
fn samples_of_a_prior_are_like_the_posteriors_it_learned_from() {
    let posteriors = posteriors(64);
    let options = PriorOptions {
        steps: 300,
        texts: 32,
        learning_rate: 0.003,
        seed: 1,
        threads: 1,
    };
    let mut losses = Vec::new();
    let prior = train(&posteriors, [32, 2, 2], &options, |_, loss| {
        losses.push(loss);
    });
    let prior = prior.expect("train");
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(
        mean(&losses[250..]) < 0.5 * mean(&losses[..5]),
        "{:?}",
        &losses[295..]
    );

    let folder = tempfile::tempdir().expect("folder");
    prior.write(folder.path()).expect("write");
    let prior = Prior::read(folder.path()).expect("read");
    let samples = sample(&prior, 40, 18, &mut Random::new(5, 0));

    // Each text is of one kind throughout, and both kinds come up: no Gaussian has such samples.
    let mut kinds = [0, 0];
    for text in samples.chunks_exact(VECTORS * WIDTH) {
        let near = |middle: f32| {
            text.iter()
                .filter(|value| (**value - middle).abs() < 1.0)
                .count()
        };
        kinds[0] += usize::from(near(3.0) == text.len());
        kinds[1] += usize::from(near(-1.0) == text.len());
    }
    assert!(
        kinds[0] >= 8 && kinds[1] >= 8 && kinds[0] + kinds[1] >= 36,
        "{kinds:?}"
    );
}

#[test]
fn posteriors_are_read_back() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("posteriors.safetensors");
    let all = posteriors(3);
    all.write(&path).expect("write");
    assert_eq!(Posteriors::read(&path).expect("read"), all);
}

/// What the engine's tests compare its sampler with: a prior for the latents of their smallest model, noise, and the sample
/// of 18 steps.
const FIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../daemon/engine/tests/fixtures/prior-tiny"
);

#[test]
fn the_engine_is_compared_with_this_sampler() {
    let folder = Path::new(FIXTURE);
    let prior = Prior::read(folder).expect("read");
    let bytes = fs::read(folder.join("expected.safetensors")).expect("read");
    let tensors = SafeTensors::deserialize(&bytes).expect("tensors");
    let values = |name: &str| -> Vec<f32> {
        let (fours, _) = tensors
            .tensor(name)
            .expect("tensor")
            .data()
            .as_chunks::<4>();
        fours.iter().map(|four| f32::from_le_bytes(*four)).collect()
    };
    let found = solve(&prior, &values("noise"), 18);
    let far = found.iter().zip(values("sample"));
    let far = far.fold(0.0f32, |far, (found, expected)| {
        far.max((found - expected).abs())
    });
    assert!(far < 1e-5, "{far}");
}

#[test]
#[ignore = "writes the engine's fixture anew"]
fn write_the_engines_fixture() {
    let config = PriorConfig {
        vectors: 16,
        latent_width: 64,
        width: 16,
        layers: 2,
        heads: 2,
    };
    let mut random = Random::new(11, 0);
    // All of it random: a prior begins with zeros, which hide what they are multiplied with.
    let weights = config.tensors().into_iter().map(|(name, shape)| {
        let spread = match (name.as_str(), shape.last()) {
            ("mean" | "deviation", _) => 0.3,
            (_, Some(&width)) if name.ends_with("weight") => (width as f64).sqrt().recip(),
            _ => 0.2,
        };
        let count = shape.iter().product();
        let values = (0..count).map(|_| (spread * random.normal()) as f32);
        let values = match name.as_str() {
            "deviation" => values.map(|value| 0.2 + value.abs()).collect(),
            _ => values.collect(),
        };
        (name, values)
    });
    let prior = Prior::from_weights(config.clone(), weights.collect()).expect("prior");
    let folder = Path::new(FIXTURE);
    fs::create_dir_all(folder).expect("folder");
    prior.write(folder).expect("write");
    let shape = vec![config.vectors, config.latent_width];
    let noise: Vec<f32> = (0..shape.iter().product())
        .map(|_| random.normal() as f32)
        .collect();
    let all = [
        ("noise", noise.clone()),
        ("sample", solve(&prior, &noise, 18)),
    ];
    let all = all.map(|(name, values)| {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        (name, bytes)
    });
    let views = all.iter().map(|(name, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).expect("view");
        (*name, view)
    });
    let bytes = safetensors::serialize(views, None).expect("serialize");
    fs::write(folder.join("expected.safetensors"), bytes).expect("write");
}
