//! Gradients on a GPU.

use sluice_cuda as cuda;
use sluice_cuda::GpuSpan;
use sluice_formats::DType;
use sluice_weights::Weight;

use super::{GpuBackend, weights};
use crate::{
    Activation, AttentionShape, OpsError,
    backward::{CrossEntropy, GpuBackwardTasks, GpuCrossEntropy},
};

impl GpuBackend {
    pub(crate) fn rms_norm_backward(
        &self,
        d_x: &Activation,
        x: &Activation,
        d_out: &Activation,
        weight: &Weight<'_>,
        epsilon: f32,
    ) -> Result<(), OpsError> {
        let weight = (weight.span(), weight.format);
        let inputs = [x.span(), d_out.span()];
        Ok(
            (self.gpu).rms_norm_backward(
                d_x.span(),
                inputs,
                weight,
                x.len(),
                x.width(),
                epsilon,
            )?,
        )
    }

    pub(crate) fn silu_mul_backward(
        &self,
        gate: &Activation,
        up: &Activation,
        d_out: &Activation,
    ) -> Result<(), OpsError> {
        let count = gate.len() * gate.width();
        let inputs = [gate.span(), up.span()];
        Ok((self.gpu).silu_mul_backward(gate.dtype(), inputs, d_out.span(), count)?)
    }

    /// `weights` is scratch of a row for each query.
    pub(crate) fn attend_backward(
        &self,
        found: &[Activation; 3],
        inputs: [&Activation; 3],
        d_out: &Activation,
        shape: AttentionShape,
        tasks: &GpuBackwardTasks,
        weights: &Activation,
    ) -> Result<(), OpsError> {
        let [of_queries, of_keys] = &tasks.sides;
        let args = cuda::AttentionBackwardArgs {
            found: found.each_ref().map(Activation::span),
            weights: weights.span(),
            inputs: inputs.map(Activation::span),
            d_out: d_out.span(),
            tasks: [of_queries.0.span(), of_keys.0.span()],
            task_counts: [of_queries.1, of_keys.1],
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
        };
        Ok(self.gpu.attend_backward(inputs[0].dtype(), args)?)
    }

    /// `x · weight` into `out`, or added to it. `x` is in the compute dtype, `out` is `f32`.
    pub(crate) fn matmul_transposed(
        &self,
        x: &Activation,
        weight: &Weight<'_>,
        out: &Activation,
        accumulate: bool,
    ) -> Result<(), OpsError> {
        assert_eq!(x.width(), weight.rows, "rows of x and of the weight differ");
        assert_eq!((out.len(), out.width()), (x.len(), weight.width));
        assert_eq!(
            (x.dtype(), out.dtype()),
            (self.profile.dtype, DType::F32),
            "gradients are f32, and factors are not"
        );
        let matrices = (x.span(), out.span());
        self.each_product(matrices, x.len(), weight, accumulate, |_, _| Ok(()))
    }

    /// The same of `rows` rows, with each piece of the weight handed on while it is there, by its first row.
    pub(crate) fn each_product(
        &self,
        (x, out): (GpuSpan, GpuSpan),
        rows: usize,
        weight: &Weight<'_>,
        accumulate: bool,
        mut beside: impl FnMut(usize, weights::Plain) -> Result<(), OpsError>,
    ) -> Result<(), OpsError> {
        let dtype = self.profile.dtype;
        weights::each_plain(
            &self.gpu,
            &self.clock,
            &self.profile,
            weight,
            |first, piece| {
                let start = first * dtype.bytes();
                let product = cuda::TransposedMatmul {
                    out,
                    x: x.part(start, x.bytes() - start),
                    x_stride: weight.rows,
                    weights: piece.span,
                    rows,
                    outputs: weight.width,
                    depth: piece.rows,
                    accumulate: accumulate || first > 0,
                };
                (self.gpu).matmul_transposed(dtype, piece.format, product)?;
                beside(first, piece)
            },
        )
    }

    pub(crate) fn start_cross_entropy(&self, states: GpuSpan, rows: usize) -> Result<(), OpsError> {
        self.upload(states, &vec![cuda::CrossEntropyState::START; rows])
    }

    /// Takes in the logits of a part of the LM head, which become weights.
    pub(crate) fn weigh_logits(
        &self,
        all: &CrossEntropy,
        on_gpu: &GpuCrossEntropy,
        logits: &Activation,
        first: usize,
    ) -> Result<(), OpsError> {
        Ok(self.gpu.weigh_logits(
            on_gpu.states.span(),
            (logits.span(), logits.width()),
            (all.weighted.span(), all.weighted.width()),
            on_gpu.targets.span(),
            logits.len(),
            first,
        )?)
    }

    /// Adds the head's rows by these weights, and takes the targets' own.
    pub(crate) fn add_weighted(
        &self,
        all: &CrossEntropy,
        on_gpu: &GpuCrossEntropy,
        weights: &Activation,
        head: &Weight<'_>,
        first: usize,
    ) -> Result<(), OpsError> {
        let matrices = (weights.span(), all.weighted.span());
        self.each_product(matrices, weights.len(), head, true, |start, piece| {
            Ok(self.gpu.take_targets(
                all.own.span(),
                on_gpu.targets.span(),
                (piece.span, piece.format),
                (first + start, piece.rows),
                weights.len(),
                head.width,
            )?)
        })
    }

    /// Makes `weighted` the gradient, and returns the rows' states.
    pub(crate) fn finish_cross_entropy(
        &self,
        all: &CrossEntropy,
        on_gpu: &GpuCrossEntropy,
    ) -> Result<Vec<cuda::CrossEntropyState>, OpsError> {
        let (rows, width) = (all.weighted.len(), all.weighted.width());
        let there = on_gpu.states.span();
        (self.gpu).finish_cross_entropy(all.weighted.span(), all.own.span(), there, rows, width)?;
        let mut states = vec![cuda::CrossEntropyState::START; rows];
        let bytes = bytemuck::cast_slice_mut(&mut states);
        (self.gpu).download(there.part(0, bytes.len()), bytes)?;
        Ok(states)
    }
}
