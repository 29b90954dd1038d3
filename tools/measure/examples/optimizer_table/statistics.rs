//! What block formats are told of a matrix's input.

use sluice_checkpoint::{calibration::Calibration, quantize::moments};
use sluice_measure::Result;
use sluice_optimize::{factor::Factor, feedback::Importance};
use sluice_weights::MatrixInput;

/// Levels of blocks clip, so that they need more damping than entropy-coded ones: GPTQ's.
const DAMPING: f64 = 1e-2;

/// How much of a calibration is used.
#[derive(Clone, Copy)]
pub(crate) enum Knowledge<'a> {
    Nothing,
    Importance(&'a Calibration),
    All(&'a Calibration),
}

/// The statistics of one input.
pub(crate) enum Statistics {
    Nothing,
    Importance(Vec<f32>),
    All(Box<Factor>),
}

impl Statistics {
    pub(crate) fn of(input: MatrixInput, knowledge: Knowledge<'_>) -> Result<Self> {
        Ok(match knowledge {
            Knowledge::Nothing => Self::Nothing,
            Knowledge::Importance(calibration) => {
                let squares = moments(calibration, input)?.mean_squares();
                Self::Importance(squares.iter().map(|square| *square as f32).collect())
            }
            Knowledge::All(calibration) => {
                let second = moments(calibration, input)?.second_moments();
                let second = second.ok_or("the calibration has mean squares alone")?;
                Self::All(Box::new(Factor::new(&second, DAMPING)?))
            }
        })
    }

    pub(crate) fn importance(&self) -> Importance<'_> {
        match self {
            Self::Nothing => Importance::Uniform,
            Self::Importance(squares) => Importance::Diagonal(squares),
            Self::All(factor) => Importance::Full(factor),
        }
    }
}
