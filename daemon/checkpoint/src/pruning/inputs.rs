//! What a calibration knows of the inputs of `o` and `down`: scores of their columns, and the weights that make up for
//! those that go.

use std::path::Path;

use rayon::prelude::*;
use sluice_codec::container::Hash;
use sluice_optimize::{
    moments::Moments,
    prune::{compensate, removal_order, scores},
};
use sluice_shared::pruning::PruneScore;
use sluice_weights::{MatrixInput, Shape, TensorPart, TensorSpec};

use super::{choose::LayerScores, dtype};
use crate::{
    Checkpoint, TensorEntry,
    calibration::{Calibration, ModelIdentity, PositionKind},
    compression::{CompressError, PruneError},
};

/// Added to the diagonal of second moments, as a share of its mean: what GPTQ adds.
const DAMPING: f64 = 0.01;

/// A model and the statistics of its inputs.
pub(super) struct LayerInputs<'a> {
    checkpoint: &'a Checkpoint,
    shape: &'a Shape,
    calibration: Calibration,
}

/// A matrix whose columns fall away, and what is known of them.
struct Columns {
    width: usize,
    /// Columns of a unit.
    of_unit: usize,
    weight: Vec<f32>,
    moments: Moments,
}

impl<'a> LayerInputs<'a> {
    /// Opens a calibration, which has to be of this checkpoint.
    pub(super) fn open(
        path: &Path,
        checkpoint: &'a Checkpoint,
        shape: &'a Shape,
    ) -> Result<Self, CompressError> {
        let family = checkpoint.model()?.family.name();
        let model = ModelIdentity::new(
            "the model to prune",
            family,
            checkpoint.fingerprint()?,
            shape,
            &shape.tensors(),
        );
        let calibration = Calibration::open_for(path, &model).map_err(PruneError::Calibration)?;
        Ok(Self {
            checkpoint,
            shape,
            calibration,
        })
    }

    /// Hash of what the calibration says of its making: the text, the seed, the model.
    pub(super) fn hash(&self) -> Hash {
        Hash::of(format!("{:?}", self.calibration.origin()).as_bytes())
    }

    /// Whether it has whole matrices, and not only their diagonals.
    pub(super) fn is_full(&self) -> bool {
        self.calibration.origin().is_full
    }

    /// Scores of a layer's units, of which at most so many KV heads and channels will be removed.
    pub(super) fn scores(
        &self,
        layer: usize,
        by: PruneScore,
        most: [usize; 2],
    ) -> Result<LayerScores, CompressError> {
        let score = |part, most| {
            let spec = self.spec(part, layer);
            let scores = self.columns(&spec)?.scores(by, most);
            Ok::<_, CompressError>(scores.map_err(|cause| statistics(&spec, &cause))?)
        };
        Ok(LayerScores {
            kv_heads: score(TensorPart::AttentionOutput, most[0])?,
            channels: score(TensorPart::Down, most[1])?,
        })
    }

    /// The kept columns of `o` or `down` with weights that make up for the others, by least squares, in the tensor's
    /// dtype.
    pub(super) fn compensated(
        &self,
        spec: &TensorSpec,
        kept: &[usize],
    ) -> Result<Vec<u8>, CompressError> {
        let Columns {
            weight,
            mut moments,
            ..
        } = self.columns(spec)?;
        let second = moments.second_moments().ok_or(PruneError::DiagonalOnly)?;
        let made = compensate(&weight, &second, kept, DAMPING)
            .map_err(|cause| statistics(spec, &cause))?;
        let dtype = dtype(self.entry(spec)?).expect("read as numbers above");
        let format = sluice_formats::Format::from(dtype);
        let mut bytes = vec![0; format.bytes(made.weight.len())];
        let row_bytes = format.bytes(kept.len());
        let rows = bytes.par_chunks_mut(row_bytes);
        rows.zip(made.weight.par_chunks(kept.len()))
            .for_each(|(out, row)| format.quantize(row, out));
        Ok(bytes)
    }

    fn spec(&self, part: TensorPart, layer: usize) -> TensorSpec {
        let mut specs = self.shape.tensors().into_iter();
        let spec = specs.find(|spec| spec.part == part && spec.layer == layer);
        spec.expect("every layer has its matrices")
    }

    fn entry(&self, spec: &TensorSpec) -> Result<&TensorEntry, CompressError> {
        // Names the tensor if it is missing or no matrix of numbers.
        self.checkpoint.check(&spec.name, &spec.shape)?;
        Ok(&self.checkpoint.tensors[&spec.name])
    }

    fn columns(&self, spec: &TensorSpec) -> Result<Columns, CompressError> {
        let (input, of_unit) = match spec.part {
            TensorPart::Down => (MatrixInput::Down(spec.layer), 1),
            _ => {
                let queries = self.shape.attention_heads / self.shape.kv_heads;
                let of_group = queries * self.shape.head_dim;
                (MatrixInput::AttentionOutput(spec.layer), of_group)
            }
        };
        let entry = self.entry(spec)?;
        let format = self.checkpoint.check(&spec.name, &spec.shape)?;
        let (rows, width) = spec.size();
        let mut bytes = vec![0; entry.bytes as usize];
        self.checkpoint
            .read_part(entry, 0..entry.bytes, &mut bytes)?;
        let mut weight = vec![0.0; rows * width];
        format.dequantize(&bytes, &mut weight);
        Ok(Columns {
            width,
            of_unit,
            weight,
            moments: self.moments(input)?,
        })
    }

    /// The statistics of an input at all positions, masked or not, as passes had them.
    fn moments(&self, input: MatrixInput) -> Result<Moments, CompressError> {
        let mut all: Option<Moments> = None;
        for kind in PositionKind::ALL {
            let found = self.calibration.input(input, kind);
            match (&mut all, found.map_err(PruneError::Calibration)?) {
                (_, None) => {}
                (None, found) => all = found,
                (Some(all), Some(found)) => {
                    let merged = all.merge(found, 1.0);
                    merged.expect("both are of one input of one file");
                }
            }
        }
        Ok(all.expect("a calibration has each input at some positions"))
    }
}

impl Columns {
    /// Scores that can be compared across layers: relative to the layer's mean, or for the cost of removal to what its
    /// columns put out.
    fn scores(
        &mut self,
        by: PruneScore,
        most: usize,
    ) -> Result<Vec<f64>, sluice_optimize::prune::PruneError> {
        let (width, size, weight) = (self.width, self.of_unit, &self.weight);
        let narrow = |values: Vec<f64>| values.into_iter().map(|value| value as f32);
        Ok(match by {
            PruneScore::Obs => {
                let Some(second) = self.moments.second_moments() else {
                    // Refused before, by `is_full`.
                    unreachable!("whole matrices were asked for")
                };
                let outputs = second.diagonal();
                let columns = scores::fluctuation(width, size, weight, &outputs)?;
                let scale = columns.iter().sum::<f64>();
                let order = removal_order(weight, &second, size, most, DAMPING)?;
                let costs = order.scores(f64::INFINITY);
                costs.into_iter().map(|cost| cost / scale).collect()
            }
            PruneScore::Flap => {
                let variances: Vec<f32> = narrow(self.moments.variances()).collect();
                relative(scores::fluctuation(width, size, weight, &variances)?)
            }
            _ => {
                let squares: Vec<f32> = narrow(self.moments.mean_squares()).collect();
                relative(scores::wanda(width, size, weight, &squares)?)
            }
        })
    }
}

/// The error for weights and statistics of a tensor that can't be used.
fn statistics(spec: &TensorSpec, cause: &sluice_optimize::prune::PruneError) -> PruneError {
    PruneError::Statistics {
        tensor: spec.name.clone(),
        cause: cause.to_string(),
    }
}

/// Scores relative to their mean.
pub(super) fn relative(scores: Vec<f64>) -> Vec<f64> {
    let mean = scores.iter().sum::<f64>() / scores.len() as f64;
    // A layer of zeros has no mean to be compared with, and is missed least.
    let scale = if mean > 0.0 { mean } else { 1.0 };
    scores.into_iter().map(|score| score / scale).collect()
}

#[cfg(test)]
mod tests;
