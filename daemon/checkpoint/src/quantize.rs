//! Quantizes a checkpoint's matrices, each to a bit rate of its own, by the statistics of a calibration.
//!
//! Memory is that of a batch of rows, of the second moments of one input, and of their factor: never of a whole LM head.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use sluice_codec::{
    Encoded,
    container::{Hash, Hasher},
};
use sluice_formats::DType;
use sluice_optimize::{
    columns::{self, ColumnsError, ColumnsOptions, QuantizeTarget},
    factor::{Factor, FactorError},
    feedback::Importance,
    moments::{Moments, MomentsError},
};
use sluice_weights::{MatrixInput, TensorSpec};

use crate::{
    Checkpoint, CheckpointError, TensorEntry,
    calibration::{Calibration, CalibrationError, PositionKind},
};

/// Rows that are quantized at a time: whole chunks, and enough that all cores have some.
const BATCH_ROWS: usize = 4096;
/// Rows of a larger matrix that its step is found with.
const SAMPLE_ROWS: usize = 2048;
/// Damping of second moments, as a share of their mean. Entropy coding needs less than a fixed number of levels does:
/// GPTQ's is 0.01, EXL3's 0.025. From 1e-5 to 1e-2 the demonstration model's KL differs by less than 4 %.
const DAMPING: f64 = 1e-3;
/// How much more a masked position counts than a clean one, since it is masked ones that are predicted. KL of the
/// demonstration model at 14 rates from 2.3 to 5.2 bits is 7 % less than with 1 (docs/benchmarks.md).
const MASKED_WEIGHT: f64 = 4.0;

/// Why a matrix cannot be quantized.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// The checkpoint cannot be read, or what was made of it not written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The calibration cannot be read.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// Its second moments cannot be factored.
    #[error("{input}: {error}")]
    Factor {
        /// The input.
        input: MatrixInput,
        /// What is wrong with them.
        error: FactorError,
    },
    /// Positions of both kinds don't belong together.
    #[error("{input}: {error}")]
    Moments {
        /// The input.
        input: MatrixInput,
        /// What is wrong with them.
        error: MomentsError,
    },
    /// The matrix cannot be quantized.
    #[error("tensor {tensor}: {error}")]
    Matrix {
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        error: ColumnsError,
    },
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}

/// What became of a matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizedMatrix {
    /// Bits per weight, everything included.
    pub bits: f64,
    /// tr(E H Eᵀ): the mean squared error of its outputs, added up.
    pub error: f64,
    /// tr(W H Wᵀ): the mean square of its outputs, added up.
    pub power: f64,
    /// Hash of the bytes that it was made from.
    pub original_hash: Hash,
}

/// What is known of the input of some matrices.
enum Statistics {
    Diagonal(Vec<f32>),
    Full(Box<Factor>),
}

impl Statistics {
    fn importance(&self) -> Importance<'_> {
        match self {
            Self::Diagonal(squares) => Importance::Diagonal(squares),
            Self::Full(factor) => Importance::Full(factor),
        }
    }
}

/// Quantizes matrix after matrix. Those with the same input should come one after another, since its factor is kept.
pub struct MatrixQuantizer<'a> {
    checkpoint: &'a Checkpoint,
    calibration: Option<&'a Calibration>,
    cancel: &'a AtomicBool,
    known: Option<(MatrixInput, Statistics)>,
}

impl<'a> MatrixQuantizer<'a> {
    /// One for a checkpoint. Without a calibration all inputs count alike.
    #[must_use]
    pub fn new(
        checkpoint: &'a Checkpoint,
        calibration: Option<&'a Calibration>,
        cancel: &'a AtomicBool,
    ) -> Self {
        Self {
            checkpoint,
            calibration,
            cancel,
            known: None,
        }
    }

    /// Quantizes a matrix, on the threads of the pool that this is called on. `take` is given its chunks in order.
    ///
    /// # Errors
    /// When it or its statistics cannot be read or used, `take` fails, or it is cancelled.
    ///
    /// # Panics
    /// When the checkpoint lacks the matrix.
    pub fn quantize(
        &mut self,
        spec: &TensorSpec,
        bits: f64,
        take: &mut dyn FnMut(&Encoded) -> Result<(), CheckpointError>,
    ) -> Result<QuantizedMatrix, QuantizeError> {
        self.look_up(MatrixInput::of(spec))?;
        let importance =
            (self.known.as_ref()).map_or(Importance::Uniform, |(_, known)| known.importance());
        let entry = self.checkpoint.tensor(&spec.name);
        let entry = entry.expect("sources were checked against the checkpoint");
        let (rows, width) = spec.size();
        let quantize = |values: &[f32], target| {
            let options = ColumnsOptions {
                dtype: DType::F32,
                target,
                feedback: true,
            };
            columns::quantize(width, values, importance, options).map_err(|error| {
                QuantizeError::Matrix {
                    tensor: spec.name.clone(),
                    error,
                }
            })
        };
        let mut target = QuantizeTarget::Bits(bits);
        if rows > BATCH_ROWS {
            let sample = self.sample(entry, (rows, width))?;
            target = QuantizeTarget::Step(quantize(&sample, target)?.step);
        }
        let mut hasher = Hasher::default();
        let (mut used_bits, mut error, mut power) = (0.0, 0.0, 0.0);
        for first in (0..rows).step_by(BATCH_ROWS) {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(QuantizeError::Cancelled);
            }
            let batch = first..rows.min(first + BATCH_ROWS);
            let values = self.rows(entry, width, &batch, Some(&mut hasher))?;
            let quantized = quantize(&values, target)?;
            for chunk in &quantized.chunks {
                take(chunk)?;
            }
            used_bits += quantized.bits * values.len() as f64;
            error += quantized.error;
            power += quantized.power;
        }
        // Of a file that was replaced meanwhile, the rows would be a mixture.
        self.checkpoint.check_unchanged(entry)?;
        Ok(QuantizedMatrix {
            bits: used_bits / (rows * width) as f64,
            error,
            power,
            original_hash: hasher.finish(),
        })
    }

    /// Rows at even distances.
    fn sample(
        &self,
        entry: &TensorEntry,
        (rows, width): (usize, usize),
    ) -> Result<Vec<f32>, QuantizeError> {
        let mut values = Vec::with_capacity(SAMPLE_ROWS * width);
        for index in 0..SAMPLE_ROWS {
            let row = index * rows / SAMPLE_ROWS;
            values.extend(self.rows(entry, width, &(row..row + 1), None)?);
        }
        Ok(values)
    }

    fn rows(
        &self,
        entry: &TensorEntry,
        width: usize,
        rows: &Range<usize>,
        hasher: Option<&mut Hasher>,
    ) -> Result<Vec<f32>, QuantizeError> {
        let format = (entry.format.as_ref()).expect("sources were checked against the checkpoint");
        let row_bytes = format.bytes(width);
        let mut bytes = vec![0; rows.len() * row_bytes];
        let start = (rows.start * row_bytes) as u64;
        let part = start..start + bytes.len() as u64;
        self.checkpoint.read_part(entry, part, &mut bytes)?;
        if let Some(hasher) = hasher {
            hasher.update(&bytes);
        }
        let mut values = vec![0.0; rows.len() * width];
        format.dequantize(&bytes, &mut values);
        Ok(values)
    }

    /// Reads and factors what is known of an input, unless that was done for the matrix before.
    fn look_up(&mut self, input: Option<MatrixInput>) -> Result<(), QuantizeError> {
        let (Some(input), Some(calibration)) = (input, self.calibration) else {
            self.known = None;
            return Ok(());
        };
        if matches!(&self.known, Some((known, _)) if *known == input) {
            return Ok(());
        }
        // Before the next one is read: each may take a gigabyte.
        self.known = None;
        let mut moments = moments(calibration, input)?;
        let statistics = match moments.second_moments() {
            Some(second) => {
                let factor = Factor::new(&second, DAMPING)
                    .map_err(|error| QuantizeError::Factor { input, error })?;
                Statistics::Full(Box::new(factor))
            }
            None => {
                let squares = moments.mean_squares();
                Statistics::Diagonal(squares.iter().map(|square| *square as f32).collect())
            }
        };
        self.known = Some((input, statistics));
        Ok(())
    }
}

/// What a calibration tells of an input at all positions together, masked ones weighed as quantizing does it.
///
/// # Errors
/// When it can't be read, or its kinds of positions don't belong together.
///
/// # Panics
/// When the calibration is of a model without this input.
pub fn moments(calibration: &Calibration, input: MatrixInput) -> Result<Moments, QuantizeError> {
    let mut all: Option<Moments> = None;
    // Masked ones first, so that only the weight of clean ones differs from 1.
    for kind in PositionKind::ALL {
        let Some(moments) = calibration.input(input, kind)? else {
            continue;
        };
        match &mut all {
            None => all = Some(moments),
            Some(all) => all
                .merge(moments, 1.0 / MASKED_WEIGHT)
                .map_err(|error| QuantizeError::Moments { input, error })?,
        }
    }
    Ok(all.expect("a calibration has positions of each input"))
}
