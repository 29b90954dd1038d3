//! The operations of RWKV-7's layers: token shift, time mix, and the functions between low-rank products.
//!
//! Paper: Peng et al. 2025, "RWKV-7 Goose with Expressive Dynamic State Evolution" (arXiv 2503.14456). Each head has a
//! matrix S with a row for each key channel; a token replaces what S has at the key κ̂ and adds its value at its key:
//! S ← diag(w) S − (a ⊙ κ̂)(κ̂ᵀ S) + k vᵀ, and reads Sᵀ r.

use std::ops::Range;

use sluice_formats::DType;
use sluice_weights::{RWKV7_HEAD_DIM, Weight};

use super::{Activation, Backend, Ops, OpsError, Phase};
use crate::recurrent_state::{PassStates, StatePart};

/// A function of single elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelFunction {
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `max(x, 0)²`.
    SquaredRelu,
    /// GELU by the error function: `x (1 + erf(x / √2)) / 2`.
    Gelu,
}

/// The rows of [`TimeMixInputs::vectors`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeMixVector {
    /// The decay's bias.
    DecayBias,
    /// The learning rate's bias.
    LearningRateBias,
    /// Factor of the key that is removed.
    KeyScale,
    /// How much the learning rate scales the key.
    KeyLearningRate,
    /// Weight of the present token.
    Bonus,
    /// Weight of the norm of each head's output.
    HeadNorm,
    /// Bias of that norm.
    HeadNormBias,
    /// Bias of how much a value takes over from the first layer's; not in the first layer.
    ValueBias,
}

/// What the time mix of a layer reads; all have a row for each row of the pass.
pub struct TimeMixInputs<'a> {
    /// The receptance, r.
    pub receptance: &'a Activation,
    /// The decay before its bias and its function.
    pub decay: &'a Activation,
    /// The key.
    pub key: &'a Activation,
    /// The value.
    pub value: &'a Activation,
    /// The in-context learning rate before its bias and its function.
    pub learning_rate: &'a Activation,
    /// The gate, by which the output is multiplied.
    pub gate: &'a Activation,
    /// The values of the first layer, and how much of them is taken over before its bias and its function; `None` in
    /// the first layer.
    pub first_value: Option<(&'a Activation, &'a Activation)>,
    /// Rows of `f32` as [`TimeMixVector`] numbers them.
    pub vectors: &'a Activation,
    /// Added to the variance of each head's output.
    pub epsilon: f32,
}

impl Ops {
    /// Norm of the given rows to mean 0 and variance 1, times the weight, plus the bias; both are rows of
    /// [`Ops::vectors`].
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn layer_norm(
        &self,
        x: &Activation,
        rows: Range<usize>,
        (vectors, [weight, bias]): (&Activation, [usize; 2]),
        epsilon: f32,
        dtype: DType,
    ) -> Result<Activation, OpsError> {
        let _timed = self.timed(Phase::Other);
        let mut out = self.pool.take(rows.len(), x.width(), dtype)?;
        match &self.backend {
            Backend::Cpu(cpu) => {
                let scales = [vectors.row(weight), vectors.row(bias)];
                cpu.layer_norm(&mut out, x, rows.start, scales, epsilon);
            }
            Backend::Gpu(gpu) => {
                gpu.layer_norm(&out, x, rows.start, (vectors, [weight, bias]), epsilon)?;
            }
            Backend::DryRun => {}
        }
        Ok(out)
    }

    /// These vectors as rows of `f32`.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// When they have different widths.
    pub fn vectors(&self, vectors: &[Weight<'_>]) -> Result<Activation, OpsError> {
        let width = vectors[0].width;
        assert!(
            vectors
                .iter()
                .all(|vector| vector.width == width && vector.rows == 1)
        );
        let _timed = self.timed(Phase::Other);
        let mut out = self.pool.take(vectors.len(), width, DType::F32)?;
        match &self.backend {
            Backend::Cpu(_) => {
                for (row, vector) in out.rows_mut().zip(vectors) {
                    vector.dequantize(row);
                }
            }
            Backend::Gpu(gpu) => gpu.vectors(&out, vectors)?,
            Backend::DryRun => {}
        }
        Ok(out)
    }

    /// The given rows of `x`, each mixed with the row before it in its sequence: `x + (before − x) · share`. The shares
    /// are a row of [`Ops::vectors`].
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn shift_mix(
        &self,
        x: &Activation,
        rows: Range<usize>,
        states: &PassStates<'_>,
        place: (usize, StatePart),
        (vectors, share): (&Activation, usize),
    ) -> Result<Activation, OpsError> {
        let _timed = self.timed(Phase::Other);
        let mut out = self.pool.take(rows.len(), x.width(), self.device.dtype())?;
        match &self.backend {
            Backend::Cpu(cpu) => {
                cpu.shift_mix(&mut out, x, rows.start, states, place, vectors.row(share));
            }
            Backend::Gpu(gpu) => {
                gpu.shift_mix(&out, x, rows, states, place, (vectors, share))?;
            }
            Backend::DryRun => {}
        }
        Ok(out)
    }

    /// Writes the last row of each run to the state that it leaves, for the next pass's [`Ops::shift_mix`].
    ///
    /// # Errors
    /// When the device fails.
    pub fn keep_inputs(
        &self,
        x: &Activation,
        states: &mut PassStates<'_>,
        (layer, part): (usize, StatePart),
    ) -> Result<(), OpsError> {
        let _timed = self.timed(Phase::Other);
        match &self.backend {
            Backend::Cpu(_) => {
                let runs: Vec<_> = states.runs().collect();
                for (run, rows) in runs.into_iter().enumerate() {
                    (states.after_mut(run, layer, part)).copy_from_slice(x.row(rows.end - 1));
                }
            }
            Backend::Gpu(gpu) => gpu.keep_inputs(x, states, (layer, part))?,
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// Applies a function to each element.
    ///
    /// # Errors
    /// When the device fails.
    pub fn channel_function(
        &self,
        x: &mut Activation,
        function: ChannelFunction,
    ) -> Result<(), OpsError> {
        let _timed = self.timed(Phase::Other);
        match &self.backend {
            Backend::Cpu(cpu) => cpu.channel_function(x, function),
            Backend::Gpu(gpu) => gpu.channel_function(x, function)?,
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// Sends the rows through the states of their sequences, and returns each head's output, normed, with the present
    /// token's value added, and gated.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// When widths differ, or are no whole heads.
    pub fn time_mix(
        &self,
        inputs: &TimeMixInputs<'_>,
        states: &mut PassStates<'_>,
        layer: usize,
    ) -> Result<Activation, OpsError> {
        let (rows, width) = (inputs.key.len(), inputs.key.width());
        assert!(width.is_multiple_of(RWKV7_HEAD_DIM));
        let all = [
            inputs.receptance,
            inputs.decay,
            inputs.value,
            inputs.learning_rate,
            inputs.gate,
        ];
        let first = inputs.first_value.into_iter().flat_map(|(a, b)| [a, b]);
        for x in all.into_iter().chain(first) {
            assert_eq!((x.len(), x.width()), (rows, width));
        }
        let _timed = self.timed(Phase::Attention);
        let mut out = self.pool.take(rows, width, self.device.dtype())?;
        match &self.backend {
            Backend::Cpu(cpu) => cpu.time_mix(&mut out, inputs, states, layer),
            Backend::Gpu(gpu) => gpu.time_mix(&out, inputs, states, layer)?,
            Backend::DryRun => {}
        }
        Ok(out)
    }
}
