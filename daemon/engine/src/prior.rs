//! The learned prior of a latent thought model: a diffusion transformer over samples of posteriors, and its samplers.
//!
//! Papers: Karras et al. 2022 (EDM, arXiv 2206.00364) for the parametrization, Peebles and Xie 2023 (DiT, arXiv
//! 2212.09748) for the network: a row for each latent vector, with a learned place, and layers whose norms are shifted,
//! scaled and gated by the noise level (adaLN). Reference: `sluice_train::prior`, which trains it.

mod memory;
mod network;
mod sampling;

use std::{collections::BTreeMap, ops::Range};

use sluice_checkpoint::{PriorFile, PriorShape};
use sluice_formats::{Format, noise::Noise};
use sluice_machine::MemoryKind;
use sluice_ops::{
    Ops, OpsError,
    ledger::{HostBuffer, Ledger},
};
use sluice_weights::{Weight, WeightData};

use self::memory::dry_run_matmuls;
pub use self::sampling::Sampler;
use crate::error::EngineError;

/// The stream of random numbers that samples of priors begin with: no other purpose uses it.
const SAMPLE_STREAM: u64 = 7;

/// A prior with its weights, which is computed on the CPU, whatever device computes: it is small, and its rows are few.
pub struct Prior {
    shape: PriorShape,
    weights: HostBuffer<f32>,
    tensors: BTreeMap<String, (Vec<usize>, Range<usize>)>,
    /// The CPU's operations beside a GPU, with a ledger of their own: what they and the weights take is no memory of the
    /// GPU's. Without a GPU there are those of passes.
    host: Option<Ops>,
}

impl Prior {
    /// Reads a prior for passes by such operations. On the CPU its weights are entered in their ledger; beside a GPU they
    /// are host memory, of at most the bytes that [`Checkpoint::prior`](sluice_checkpoint::Checkpoint::prior) lets through.
    ///
    /// # Errors
    /// When memory is short, or the file is damaged.
    pub fn read(file: &PriorFile, ops: &Ops) -> Result<Self, EngineError> {
        let host = match ops.device().is_gpu() {
            true => Some(Ops::new(ops.device().host(), Ledger::default())?),
            false => None,
        };
        let ledger = host.as_ref().unwrap_or(ops).ledger();
        let mut weights = ledger.buffer(MemoryKind::Weights, file.elements())?;
        file.read(&mut weights)?;
        Ok(Self::new(file.shape, weights, host))
    }

    /// Enters the weights of such a prior in a CPU's dry run until the result is dropped, and goes through the matmuls of its
    /// network. Its loops take [`Prior::scratch_bytes`] besides.
    ///
    /// # Errors
    /// When its sizes exceed all memory.
    pub(crate) fn dry_run(shape: PriorShape, ops: &Ops) -> Result<HostBuffer<f32>, EngineError> {
        let tensors = shape.tensors().into_iter();
        let elements = tensors.map(|(_, shape)| shape.into_iter().product::<usize>());
        let weights = (ops.ledger()).buffer(MemoryKind::Weights, elements.sum())?;
        dry_run_matmuls(shape, ops)?;
        Ok(weights)
    }

    fn new(shape: PriorShape, weights: HostBuffer<f32>, host: Option<Ops>) -> Self {
        let mut end = 0;
        let tensors = shape.tensors().into_iter().map(|(name, shape)| {
            let start = end;
            end += shape.iter().product::<usize>();
            (name, (shape, start..end))
        });
        Self {
            tensors: tensors.collect(),
            shape,
            weights,
            host,
        }
    }

    /// Its sizes.
    #[must_use]
    pub fn shape(&self) -> PriorShape {
        self.shape
    }

    /// Elements of a sample.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.vectors * self.shape.latent_width
    }

    /// The denoised latents D(x; σ) of normalised latents `x` with noise of standard deviation σ. `ops` are those that it
    /// was read for.
    ///
    /// # Errors
    /// When memory for activations is short.
    pub fn denoise(&self, ops: &Ops, x: &[f32], sigma: f64) -> Result<Vec<f32>, OpsError> {
        let ops = self.host.as_ref().unwrap_or(ops);
        // A pass on a GPU has not marked the machine's threads as its own.
        let _computing = self.host.as_ref().map(|ops| ops.device().compute());
        let scratch = Self::scratch_bytes(self.shape);
        let _held = ops.ledger().reserve(MemoryKind::Scratch, scratch)?;
        let square = sigma * sigma + 1.0;
        let into = square.sqrt().recip() as f32;
        let [skip, out] = [square.recip() as f32, (sigma / square.sqrt()) as f32];
        let scaled: Vec<f32> = x.iter().map(|x| x * into).collect();
        let mut found = self.network(ops, &scaled, sigma.ln() / 4.0)?;
        for (found, x) in found.iter_mut().zip(x) {
            *found = skip * x + out * *found;
        }
        Ok(found)
    }

    /// The standard normal noise that a sample of this seed begins with.
    #[must_use]
    pub fn noise(&self, seed: u64) -> Vec<f32> {
        let noise = Noise::new(seed).stream(SAMPLE_STREAM);
        (0..self.elements())
            .map(|at| noise.normal(0, 0, at as u64) as f32)
            .collect()
    }

    /// Latents of the model from normalised ones.
    #[must_use]
    pub fn latents(&self, normalised: &[f32]) -> Vec<f32> {
        let scale = self.values("mean").iter().zip(self.values("deviation"));
        (normalised.iter().zip(scale))
            .map(|(x, (mean, deviation))| x * deviation + mean)
            .collect()
    }

    fn values(&self, name: &str) -> &[f32] {
        let (_, range) = self.tensors.get(name).expect("a tensor of the shape");
        &self.weights[range.clone()]
    }

    fn weight(&self, name: &str) -> Weight<'_> {
        let (shape, range) = self.tensors.get(name).expect("a tensor of the shape");
        let (rows, width) = match shape[..] {
            [rows, width] => (rows, width),
            _ => (1, range.len()),
        };
        host_weight(&self.weights[range.clone()], rows, width)
    }
}

/// Elements in this process's memory as a matrix of weights.
fn host_weight(values: &[f32], rows: usize, width: usize) -> Weight<'_> {
    Weight {
        format: Format::F32,
        rows,
        width,
        data: WeightData::Host(bytemuck::cast_slice(values)),
        weights_version: 0,
    }
}

#[cfg(test)]
mod tests;
