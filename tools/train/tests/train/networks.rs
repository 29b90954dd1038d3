//! The networks with gradients against small random checkpoints of each family and what a reference computes with them.

use std::{collections::BTreeMap, path::PathBuf};

use candle_core::{Device, Tensor, Var};
use safetensors::SafeTensors;
use serde_json::Value;
use sluice_train::{
    config::ModelConfig,
    export, gradient,
    model::{Context, Model},
    ops::{self, Pack},
    weights_file::WeightFiles,
};

/// Logits differ by less from an f64 reference in any correct f32 implementation.
const TOLERANCE: f32 = 5e-4;

/// A small checkpoint and what is expected of it.
pub(crate) struct Fixture {
    pub(crate) model: Model,
    pub(crate) expected: Value,
    tensors: Vec<u8>,
}

impl Fixture {
    pub(crate) fn open(name: &str) -> Self {
        let root = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../daemon/engine/tests/fixtures"
        );
        let folder = PathBuf::from(root).join(name);
        let read = |file: &str| std::fs::read(folder.join(file)).expect("fixture");
        let config = export::read_config(&folder).expect("config");
        let files = WeightFiles::open(&folder).expect("weights");
        let tensors = config.tensors().into_iter();
        let weights: BTreeMap<_, _> = tensors
            .map(|(name, shape)| {
                let values = files.read(&name, &shape).expect("tensor");
                (name, values)
            })
            .collect();
        Self {
            model: Model::from_weights(config, weights, &Device::Cpu).expect("model"),
            // A perplexity beyond all bounds is written as Python writes it.
            expected: serde_json::from_str(
                &String::from_utf8(read("expected.json"))
                    .expect("text")
                    .replace("Infinity", "null"),
            )
            .expect("expectations"),
            tensors: read("expected.safetensors"),
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> Tensor {
        let tensors = SafeTensors::deserialize(&self.tensors).expect("tensors");
        let view = tensors.tensor(name).expect(name);
        let values: Vec<f32> = view
            .data()
            .chunks_exact(4)
            .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
            .collect();
        Tensor::from_vec(values, view.shape(), &Device::Cpu).expect("shape")
    }

    /// The sequences of a case end to end.
    pub(crate) fn ids(case: &Value, key: &str) -> (Vec<u32>, Pack) {
        let rows: Vec<Vec<u32>> = serde_json::from_value(case[key].clone()).expect("ids");
        let lengths: Vec<usize> = rows.iter().map(Vec::len).collect();
        (rows.concat(), Pack::new(lengths))
    }

    pub(crate) fn cases(&self, kind: &str) -> Vec<Value> {
        self.expected[kind].as_array().expect("cases").clone()
    }
}

pub(crate) fn difference(left: &Tensor, right: &Tensor) -> f32 {
    let difference = (left - right).and_then(|difference| difference.abs()?.max_all());
    difference
        .and_then(|largest| largest.to_scalar())
        .expect("same shape")
}

/// The latents of all sequences, one vector a row.
pub(crate) fn rows(latents: &Tensor) -> Tensor {
    latents.flatten_to(1).expect("rank 3")
}

#[test]
fn logits_are_those_of_the_reference() {
    for name in ["rwkv7-tiny", "ltm-tiny"] {
        let fixture = Fixture::open(name);
        for case in fixture.cases("forward") {
            let case_name = case["name"].as_str().expect("name");
            let expected = fixture.tensor(&format!("forward.{case_name}.logits"));
            let (_, kept, _) = expected.dims3().expect("rank 3");
            let (ids, pack) = Fixture::ids(&case, "input_ids");
            let last: Vec<u32> = pack
                .sequences()
                .flat_map(|rows| rows.end - kept..rows.end)
                .map(|row| row as u32)
                .collect();
            let latents = matches!(fixture.model.config, ModelConfig::LatentThought(_))
                .then(|| rows(&fixture.tensor(&format!("forward.{case_name}.z"))));
            let context = Context {
                pack: &pack,
                latents: latents.as_ref(),
            };
            let found = fixture.model.logits(&ids, context, &last).expect("logits");
            let found = found.reshape(expected.shape()).expect("shape");
            let difference = difference(&found, &expected);
            assert!(difference < TOLERANCE, "{name} {case_name}: {difference}");
        }
    }
}

/// Loss and gradients of a part of the fixture's vocabulary, with layers computed again in groups.
fn gradients(
    model: &Model,
    latents: Option<&Tensor>,
    interval: Option<usize>,
) -> (f64, Vec<Tensor>) {
    let pack = Pack::new([9, 4]);
    let ids: Vec<u32> = (0..13).map(|index| (index * 37 + 11) % 250).collect();
    let context = Context {
        pack: &pack,
        latents,
    };
    let leaves: Vec<&Var> = model.variables().iter().map(|(_, var)| var).collect();
    let loss = |x: &Tensor| -> anyhow::Result<Tensor> {
        let logits = model.head(x, &(0..13).collect::<Vec<_>>())?;
        let targets = ids.iter().map(|id| (id + 5) % 250).collect();
        Ok(ops::cross_entropy(&logits, targets, vec![1.0 / 13.0; 13])?)
    };
    let (loss, found) =
        gradient::backward(model, &ids, context, &leaves, interval, &loss).expect("gradients");
    let found = found.into_iter().map(|found| found.expect("a gradient"));
    (loss, found.collect())
}

#[test]
fn gradients_are_slopes_and_the_same_with_layers_computed_again() {
    for name in ["rwkv7-tiny", "ltm-tiny"] {
        let fixture = Fixture::open(name);
        let model = &fixture.model;
        let latents = matches!(model.config, ModelConfig::LatentThought(_))
            .then(|| rows(&fixture.tensor("forward.batch2.z")));
        let (loss, expected) = gradients(model, latents.as_ref(), None);
        for interval in [1, 3] {
            let (again, found) = gradients(model, latents.as_ref(), Some(interval));
            assert_eq!(loss, again);
            for (((name, _), found), expected) in
                model.variables().iter().zip(&found).zip(&expected)
            {
                let size = difference(expected, &expected.zeros_like().expect("zeros"));
                let difference = difference(found, expected);
                assert!(
                    difference <= 1e-5 * size,
                    "{name}, interval {interval}: {difference}"
                );
            }
        }
        for ((variable_name, variable), gradient) in model.variables().iter().zip(expected) {
            // Along the gradient the slope is its norm.
            let norm = gradient
                .sqr()
                .and_then(|squares| squares.sum_all()?.to_scalar::<f32>());
            let norm = f64::from(norm.expect("norm").sqrt());
            let start = variable.as_tensor().copy().expect("copy");
            // So far that the loss changes by much more than its rounding, and by less than its curvature.
            let reach = (0.003 / norm).min(0.02);
            let at = |distance: f64| {
                let moved = (&gradient * (distance / norm)).and_then(|step| start.add(&step));
                variable.set(&moved.expect("move")).expect("set");
                gradients_loss(model, latents.as_ref())
            };
            let slope = (at(reach) - at(-reach)) / (2.0 * reach);
            variable.set(&start).expect("set");
            let error = (slope / norm - 1.0).abs();
            assert!(
                error < 0.03,
                "{name} {variable_name}: slope {slope}, gradient {norm}"
            );
        }
    }
}

fn gradients_loss(model: &Model, latents: Option<&Tensor>) -> f64 {
    let frozen = model.frozen().expect("frozen");
    gradients(&frozen, latents, None).0
}
