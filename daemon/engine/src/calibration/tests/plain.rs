//! The layers in `f64`, element by element: slow and plain.

use std::collections::BTreeMap;

use sluice_checkpoint::{
    Checkpoint, Source,
    calibration::PositionKind,
    family::{MaskToken, ModelConfig},
};
use sluice_weights::{MatrixInput, TensorPart};

use crate::request::InputPass;

/// Sums over the rows of an input.
#[derive(Default)]
pub(super) struct PlainSums {
    pub(super) rows: u64,
    pub(super) sums: Vec<f64>,
    /// Σ x xᵀ, row-major.
    pub(super) products: Vec<f64>,
}

type Sums = BTreeMap<(MatrixInput, PositionKind), PlainSums>;
type Rows = Vec<Vec<f64>>;

pub(super) struct PlainModel {
    config: ModelConfig,
    mask: Option<MaskToken>,
    tensors: BTreeMap<(usize, String), Vec<f64>>,
    sums: Sums,
}

impl PlainModel {
    pub(super) fn open(source: &Source, mask: Option<MaskToken>) -> Self {
        let checkpoint = Checkpoint::open(source).unwrap();
        let config = checkpoint.model().unwrap();
        let tensors = config.shape.tensors().into_iter().map(|spec| {
            let entry = checkpoint.tensor(&spec.name).unwrap();
            let (rows, width) = spec.size();
            let mut bytes = vec![0; rows * width * 4];
            let part = 0..bytes.len() as u64;
            checkpoint.read_part(entry, part, &mut bytes).unwrap();
            let (values, _) = bytes.as_chunks::<4>();
            let values = values.iter().map(|v| f64::from(f32::from_le_bytes(*v)));
            ((spec.layer, format!("{:?}", spec.part)), values.collect())
        });
        Self {
            tensors: tensors.collect(),
            config,
            mask,
            sums: Sums::new(),
        }
    }

    pub(super) fn sums(&self) -> &Sums {
        &self.sums
    }

    fn tensor(&self, layer: usize, part: TensorPart) -> &[f64] {
        &self.tensors[&(layer, format!("{part:?}"))]
    }

    fn linear(&self, x: &Rows, layer: usize, part: TensorPart, bias: Option<TensorPart>) -> Rows {
        let weight = self.tensor(layer, part);
        let bias = bias.map(|bias| self.tensor(layer, bias));
        let row = |x: &Vec<f64>| {
            let outputs = weight.chunks(x.len()).enumerate();
            let output = |(at, weights): (usize, &[f64])| {
                let product: f64 = weights.iter().zip(x).map(|(w, x)| w * x).sum();
                product + bias.map_or(0.0, |bias| bias[at])
            };
            outputs.map(output).collect()
        };
        x.iter().map(row).collect()
    }

    fn norm(&self, x: &Rows, layer: usize, part: TensorPart) -> Rows {
        let gains = self.tensor(layer, part);
        let row = |x: &Vec<f64>| {
            let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            let scale = (mean + f64::from(self.config.epsilon)).sqrt().recip();
            x.iter()
                .zip(gains)
                .map(|(x, gain)| x * scale * gain)
                .collect()
        };
        x.iter().map(row).collect()
    }

    /// Adds rows, which stand at these positions of the pass.
    fn see(&mut self, input: MatrixInput, x: &Rows, positions: &[usize], pass: &InputPass) {
        for (x, position) in x.iter().zip(positions) {
            let token = pass.tokens[*position];
            let kind = match self.mask {
                Some(mask) if mask.token_id == Some(token) => PositionKind::Masked,
                _ => PositionKind::Clean,
            };
            let sums = self.sums.entry((input, kind)).or_default();
            sums.rows += 1;
            sums.sums.resize(x.len(), 0.0);
            sums.products.resize(x.len() * x.len(), 0.0);
            for (i, a) in x.iter().enumerate() {
                sums.sums[i] += a;
                for (j, b) in x.iter().enumerate() {
                    sums.products[i * x.len() + j] += a * b;
                }
            }
        }
    }

    fn rotate(&self, heads: &mut [Vec<f64>]) {
        let frequencies = &self.config.rope.as_ref().unwrap().frequencies;
        let half = frequencies.len();
        for (position, row) in heads.iter_mut().enumerate() {
            for head in row.chunks_mut(2 * half) {
                for (at, frequency) in frequencies.iter().enumerate() {
                    let (sin, cos) = (position as f64 * f64::from(*frequency)).sin_cos();
                    let (a, b) = (head[at], head[at + half]);
                    head[at] = a * cos - b * sin;
                    head[at + half] = b * cos + a * sin;
                }
            }
        }
    }

    fn attend(&self, q: &Rows, k: &Rows, v: &Rows) -> Rows {
        let shape = &self.config.shape;
        let dim = shape.head_dim;
        let row = |(at, q): (usize, &Vec<f64>)| {
            let seen = if shape.causal { at + 1 } else { k.len() };
            let mut out = Vec::new();
            for head in 0..shape.attention_heads {
                let q = &q[head * dim..][..dim];
                let shared = head * shape.kv_heads / shape.attention_heads;
                let of = |row: &'_ [f64]| row[shared * dim..][..dim].to_vec();
                let score = |k: &Vec<f64>| {
                    let product: f64 = q.iter().zip(of(k)).map(|(q, k)| q * k).sum();
                    product / (dim as f64).sqrt()
                };
                let scores: Vec<f64> = k[..seen].iter().map(score).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let shares: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                let all: f64 = shares.iter().sum();
                let mut mixed = vec![0.0; dim];
                for (share, v) in shares.iter().zip(&v[..seen]) {
                    let v = of(v);
                    mixed
                        .iter_mut()
                        .zip(v)
                        .for_each(|(sum, v)| *sum += share / all * v);
                }
                out.extend(mixed);
            }
            out
        };
        q.iter().enumerate().map(row).collect()
    }

    /// Computes a pass, and adds what its matrices multiply.
    pub(super) fn pass(&mut self, pass: &InputPass) {
        let width = self.config.shape.hidden_size;
        let table = self.tensor(0, TensorPart::Embedding);
        let row = |id: &u32| table[*id as usize * width..][..width].to_vec();
        let mut hidden: Rows = pass.tokens.iter().map(row).collect();
        let all: Vec<usize> = (0..hidden.len()).collect();
        let layers = self.config.shape.layers;
        for layer in 0..layers {
            let bias = |part| self.config.shape.biases.then_some(part);
            let biases = [
                TensorPart::QueryBias,
                TensorPart::KeyBias,
                TensorPart::ValueBias,
            ]
            .map(bias);
            let x = self.norm(&hidden, layer, TensorPart::AttentionNorm);
            self.see(MatrixInput::Attention(layer), &x, &all, pass);
            let mut q = self.linear(&x, layer, TensorPart::Query, biases[0]);
            let mut k = self.linear(&x, layer, TensorPart::Key, biases[1]);
            let v = self.linear(&x, layer, TensorPart::Value, biases[2]);
            self.rotate(&mut q);
            self.rotate(&mut k);
            let mut attended = self.attend(&q, &k, &v);
            let mut seen = all.clone();
            if layer + 1 == layers {
                // Only what is read of the pass goes on.
                seen.clone_from(&pass.rows);
                let rows = |of: &Rows| seen.iter().map(|row| of[*row].clone()).collect();
                (attended, hidden) = (rows(&attended), rows(&hidden));
            }
            self.see(MatrixInput::AttentionOutput(layer), &attended, &seen, pass);
            let output = self.linear(&attended, layer, TensorPart::AttentionOutput, None);
            add(&mut hidden, &output);
            let x = self.norm(&hidden, layer, TensorPart::MlpNorm);
            self.see(MatrixInput::Mlp(layer), &x, &seen, pass);
            let mut gate = self.linear(&x, layer, TensorPart::Gate, None);
            let up = self.linear(&x, layer, TensorPart::Up, None);
            for (gate, up) in gate.iter_mut().flatten().zip(up.iter().flatten()) {
                *gate = *gate / (1.0 + (-*gate).exp()) * up;
            }
            self.see(MatrixInput::Down(layer), &gate, &seen, pass);
            let down = self.linear(&gate, layer, TensorPart::Down, None);
            add(&mut hidden, &down);
        }
        let x = self.norm(&hidden, 0, TensorPart::FinalNorm);
        self.see(MatrixInput::LmHead, &x, &pass.rows, pass);
    }
}

fn add(rows: &mut Rows, more: &Rows) {
    let pairs = rows.iter_mut().flatten().zip(more.iter().flatten());
    pairs.for_each(|(sum, more)| *sum += more);
}
