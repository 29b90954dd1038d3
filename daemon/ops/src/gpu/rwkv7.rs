//! RWKV-7's operations on a GPU.

use std::ops::Range;

use sluice_cuda as cuda;
use sluice_weights::{RWKV7_HEAD_DIM, Weight};

use super::GpuBackend;
use crate::{
    Activation, ChannelFunction, OpsError, TimeMixInputs,
    recurrent_state::{PassStates, StatePart},
};

impl GpuBackend {
    /// Norm of the rows of `x` from `start` on, by rows of `vectors` for weight and bias.
    pub(crate) fn layer_norm(
        &self,
        out: &Activation,
        x: &Activation,
        start: usize,
        (vectors, [weight, bias]): (&Activation, [usize; 2]),
        epsilon: f32,
    ) -> Result<(), OpsError> {
        Ok(self.gpu.layer_norm(
            out.dtype(),
            out.span(),
            x.rows_span(start, out.len()),
            [weight, bias].map(|row| vectors.rows_span(row, 1)),
            out.len(),
            out.width(),
            epsilon,
        )?)
    }

    /// Vectors as rows of `f32`.
    pub(crate) fn vectors(&self, out: &Activation, vectors: &[Weight<'_>]) -> Result<(), OpsError> {
        for (index, vectors) in vectors.chunks(cuda::STACKED_VECTORS).enumerate() {
            let rows = out.rows_span(index * cuda::STACKED_VECTORS, vectors.len());
            let vectors: Vec<_> = (vectors.iter())
                .map(|vector| (vector.span(), vector.format))
                .collect();
            self.gpu.stack_vectors(rows, &vectors, out.width())?;
        }
        Ok(())
    }

    /// The given rows, each mixed with the row before it, by shares in a row of `vectors`.
    pub(crate) fn shift_mix(
        &self,
        out: &Activation,
        x: &Activation,
        rows: Range<usize>,
        states: &PassStates<'_>,
        (layer, part): (usize, StatePart),
        (vectors, share): (&Activation, usize),
    ) -> Result<(), OpsError> {
        let runs = states.inputs_on_gpu(layer, part);
        let shares = vectors.rows_span(share, 1);
        let (to, from, width) = (out.span(), x.span(), x.width());
        Ok((self.gpu).shift_mix(x.dtype(), to, from, shares, rows, width, &runs)?)
    }

    /// Writes the last row of each run to the state that it leaves.
    pub(crate) fn keep_inputs(
        &self,
        x: &Activation,
        states: &PassStates<'_>,
        (layer, part): (usize, StatePart),
    ) -> Result<(), OpsError> {
        let runs = states.inputs_on_gpu(layer, part);
        Ok((self.gpu).keep_inputs(x.dtype(), x.span(), x.width(), &runs)?)
    }

    /// Applies a function to each element.
    pub(crate) fn channel_function(
        &self,
        x: &Activation,
        function: ChannelFunction,
    ) -> Result<(), OpsError> {
        let function = match function {
            ChannelFunction::Tanh => cuda::ElementFunction::Tanh,
            ChannelFunction::Sigmoid => cuda::ElementFunction::Sigmoid,
            ChannelFunction::SquaredRelu => cuda::ElementFunction::SquaredRelu,
            ChannelFunction::Gelu => cuda::ElementFunction::Gelu,
        };
        let count = x.len() * x.width();
        Ok((self.gpu).element_function(x.dtype(), x.span(), function, count)?)
    }

    /// The time mix of a layer, between its projections.
    pub(crate) fn time_mix(
        &self,
        out: &Activation,
        inputs: &TimeMixInputs<'_>,
        states: &PassStates<'_>,
        layer: usize,
    ) -> Result<(), OpsError> {
        let mix = cuda::TimeMixArgs {
            out: out.span(),
            receptance: inputs.receptance.span(),
            decay: inputs.decay.span(),
            key: inputs.key.span(),
            value: inputs.value.span(),
            learning_rate: inputs.learning_rate.span(),
            gate: inputs.gate.span(),
            first_value: (inputs.first_value).map(|(first, taken)| [first.span(), taken.span()]),
            vectors: inputs.vectors.span(),
            heads: out.width() / RWKV7_HEAD_DIM,
            epsilon: inputs.epsilon,
        };
        // Runs that follow others read what those have written, so they wait for the launch before.
        for follows in [false, true] {
            let runs = states.heads_on_gpu(layer, follows);
            self.gpu.time_mix(out.dtype(), &mix, &runs)?;
        }
        Ok(())
    }
}
