//! The operations on a GPU: each is a launch of its kernels, in the order in which they are called. Only reading
//! results back waits.

mod backward;
mod gemma;
mod mixture;
mod rwkv7;
mod weights;

use std::ops::Range;

use bytemuck::Pod;
use half::{bf16, f16};
use sluice_cuda as cuda;
use sluice_cuda::{Gpu, GpuSpan};
use sluice_formats::DType;
use sluice_machine::{GpuProfile, MemoryKind};
use sluice_weights::{RopePairs, Weight};

pub(crate) use self::mixture::{ExpertTasks, RouterWeights, router_task_words, task_words};
use super::{Activation, AttentionShape, Indices, RopeTable, attention::GpuTasks, clock::GpuClock};
use crate::{
    OpsError,
    device::Device,
    ledger::{Ledger, LedgerEntry},
};

/// A GPU, and what its operations always need.
pub(super) struct GpuBackend {
    pub(super) gpu: Gpu,
    profile: GpuProfile,
    clock: GpuClock,
    _reserved: ReservedMemory,
}

/// Memory that was taken when the GPU was opened: the driver's context, and cuBLAS's workspace.
struct ReservedMemory {
    _context: LedgerEntry,
    _workspace: LedgerEntry,
}

impl ReservedMemory {
    fn new(device: &Device, ledger: &Ledger) -> Result<Self, OpsError> {
        Ok(Self {
            _context: ledger.reserve_common(MemoryKind::Context, device.context_bytes())?,
            _workspace: ledger.reserve_common(MemoryKind::Scratch, device.workspace_bytes())?,
        })
    }
}

impl GpuBackend {
    pub(super) fn new(gpu: Gpu, device: &Device, ledger: &Ledger) -> Result<Self, OpsError> {
        let profile = device.profile().gpu;
        Ok(Self {
            profile: profile.expect("the device of a GPU has its profile"),
            clock: GpuClock::new(&gpu),
            gpu,
            _reserved: ReservedMemory::new(device, ledger)?,
        })
    }

    /// Counts in a dry run what [`GpuBackend::new`] takes.
    pub(super) fn reserve(device: &Device, ledger: &Ledger) -> Result<(), OpsError> {
        ReservedMemory::new(device, ledger).map(drop)
    }

    /// The clock of its passes.
    pub(super) fn clock(&self) -> &GpuClock {
        &self.clock
    }

    pub(super) fn wait(&self) -> Result<(), OpsError> {
        Ok(self.gpu.synchronize()?)
    }

    pub(super) fn time(
        &self,
        work: &mut dyn FnMut() -> Result<(), OpsError>,
    ) -> Result<f64, OpsError> {
        let timer = self.gpu.start_timer()?;
        work()?;
        Ok(timer.stop()?.as_secs_f64())
    }

    pub(super) fn upload<T: Pod>(&self, to: GpuSpan, values: &[T]) -> Result<(), OpsError> {
        Ok(self.gpu.upload(to, bytemuck::cast_slice(values))?)
    }

    /// Sets all bits to 0, which is zero in every floating-point format of a GPU.
    pub(super) fn zero(&self, memory: GpuSpan) -> Result<(), OpsError> {
        Ok(self.gpu.fill(memory, 0)?)
    }

    pub(super) fn copy(&self, to: GpuSpan, from: GpuSpan) -> Result<(), OpsError> {
        Ok(self.gpu.copy(to, from)?)
    }

    /// Sets all bits, which is NaN in every floating-point format of a GPU.
    pub(super) fn poison(&self, memory: GpuSpan) -> Result<(), OpsError> {
        Ok(self.gpu.fill(memory, 0xFF)?)
    }

    pub(super) fn embed(
        &self,
        out: &Activation,
        ids: &Indices,
        table: &Weight<'_>,
    ) -> Result<(), OpsError> {
        let format = table.format;
        let (rows, width) = (out.len(), out.width());
        Ok(self
            .gpu
            .embed(out.span(), ids.span(), table.span(), format, width, rows)?)
    }

    /// Converts `x`, which is `f32`, to the dtype of `out`.
    pub(super) fn convert(&self, out: &Activation, x: &Activation) -> Result<(), OpsError> {
        let count = x.len() * x.width();
        Ok(self.gpu.convert(out.dtype(), out.span(), x.span(), count)?)
    }

    /// Converts `x` to the `f32` of `out`.
    pub(super) fn widen(&self, out: &Activation, x: &Activation) -> Result<(), OpsError> {
        let count = x.len() * x.width();
        Ok(self.gpu.to_f32(x.dtype(), out.span(), x.span(), count)?)
    }

    /// Embedding rows that come from the host: those that begin a run of an id are filled there and copied, the others
    /// repeated on the GPU.
    pub(super) fn embed_rows<E: From<OpsError>>(
        &self,
        out: &Activation,
        ids: &[u32],
        firsts: &Indices,
        mut fill: impl FnMut(u32, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        /// Rows copied at once: a MiB for LLaDA-8B, whose rows take 16 KiB as `f32`.
        const ROWS_AT_ONCE: usize = 64;
        let width = out.width();
        let is_first: Vec<bool> = firsts
            .iter()
            .enumerate()
            .map(|(row, first)| row == first)
            .collect();
        let mut staging = vec![0.0f32; ROWS_AT_ONCE.min(ids.len()) * width];
        let mut row = 0;
        // `upload` returns once the staging memory may be written again, so one buffer serves all copies.
        while row < ids.len() {
            let run = is_first[row..].iter().take_while(|first| **first);
            let count = run.count().min(ROWS_AT_ONCE);
            let staged = staging.chunks_exact_mut(width.max(1));
            for (&id, staged) in ids[row..row + count].iter().zip(staged) {
                fill(id, staged)?;
            }
            self.upload(out.rows_span(row, count), &staging[..count * width])?;
            // A row that repeats the one before has a run of length 0, and is left to `take_rows` below.
            row += count.max(1);
        }
        match is_first.iter().all(|first| *first) {
            true => Ok(()),
            // In place: rows that begin a run are written with themselves, so the order of thread blocks does not
            // matter.
            false => Ok(self.take_rows(out, out, firsts)?),
        }
    }

    pub(super) fn rms_norm(
        &self,
        out: &Activation,
        x: &Activation,
        start: usize,
        weight: &Weight<'_>,
        epsilon: f32,
    ) -> Result<(), OpsError> {
        let rows = out.len();
        Ok(self.gpu.rms_norm(
            out.dtype(),
            out.span(),
            x.rows_span(start, rows),
            weight.span(),
            weight.format,
            rows,
            out.width(),
            epsilon,
        )?)
    }

    pub(super) fn norm_heads(
        &self,
        x: &Activation,
        weight: Option<&Weight<'_>>,
        head_dim: usize,
        epsilon: f32,
    ) -> Result<(), OpsError> {
        Ok(self.gpu.rms_norm_heads(
            x.dtype(),
            x.span(),
            weight.map(|weight| (weight.span(), weight.format)),
            [x.len(), x.width() / head_dim, head_dim],
            epsilon,
        )?)
    }

    pub(super) fn rope(
        &self,
        inputs: &[(&Activation, &Indices)],
        table: &RopeTable,
        is_backward: bool,
    ) -> Result<(), OpsError> {
        // One launch rotates two matrices; the second may have no rows.
        let matrix = |index: usize| {
            let (x, positions) = inputs[index.min(inputs.len() - 1)];
            cuda::RopeRows {
                x: x.span(),
                positions: positions.span(),
                rows: if index < inputs.len() { x.len() } else { 0 },
                heads: x.width() / table.head_dim,
            }
        };
        let rotated = [matrix(0), matrix(1)];
        let rope = cuda::RopeArgs {
            table: table.values.span(),
            half: table.half,
            head_dim: table.head_dim,
            pair_distance: match table.pairs {
                RopePairs::Interleaved => 1,
                RopePairs::HalfSplit => table.pair_distance,
            },
            is_backward,
        };
        Ok(self.gpu.rope(inputs[0].0.dtype(), rotated, rope)?)
    }

    /// Adds `y` to `x`, which is `f32`.
    pub(super) fn add(&self, x: &Activation, y: &Activation) -> Result<(), OpsError> {
        let count = x.len() * x.width();
        Ok(self.gpu.add(y.dtype(), x.span(), y.span(), count)?)
    }

    /// Adds the bias to `x`, which is `f32`, into the dtype of `out`, which may be where `x` lies.
    pub(super) fn add_bias(
        &self,
        out: &Activation,
        x: &Activation,
        bias: &Weight<'_>,
    ) -> Result<(), OpsError> {
        Ok(self.gpu.add_bias(
            out.dtype(),
            out.span(),
            x.span(),
            bias.span(),
            bias.format,
            x.len(),
            x.width(),
        )?)
    }

    pub(super) fn put_rows(
        &self,
        places: [GpuSpan; 2],
        rows: [GpuSpan; 2],
    ) -> Result<(), OpsError> {
        Ok(self.gpu.put_rows(places, rows)?)
    }

    /// `x · weightᵀ` into `out`, whose elements are `dtype`, or added to it where those are `f32`.
    pub(super) fn matmul(
        &self,
        x: &Activation,
        weight: &Weight<'_>,
        out: GpuSpan,
        dtype: DType,
        accumulate: bool,
    ) -> Result<(), OpsError> {
        self.matmul_rows(x, 0..x.len(), weight, (out, dtype), accumulate)
    }

    /// The same with some rows of `x`.
    pub(super) fn matmul_rows(
        &self,
        x: &Activation,
        rows: Range<usize>,
        weight: &Weight<'_>,
        out: (GpuSpan, DType),
        accumulate: bool,
    ) -> Result<(), OpsError> {
        assert_eq!(
            x.width(),
            weight.width,
            "the widths of rows and weights differ"
        );
        assert_eq!(x.dtype(), self.profile.dtype);
        weights::matmul(
            &self.gpu,
            &self.clock,
            &self.profile,
            (x.rows_span(rows.start, rows.len()), rows.len()),
            weight,
            out,
            accumulate,
        )
    }

    pub(super) fn silu_mul(&self, gate: &Activation, up: &Activation) -> Result<(), OpsError> {
        let count = gate.len() * gate.width();
        let number = gate.dtype();
        Ok(self.gpu.silu_mul(number, gate.span(), up.span(), count)?)
    }

    pub(super) fn take_rows(
        &self,
        out: &Activation,
        x: &Activation,
        rows: &Indices,
    ) -> Result<(), OpsError> {
        let bytes = x.dtype().bytes();
        Ok(self.gpu.take_rows(
            bytes,
            out.span(),
            x.span(),
            rows.span(),
            rows.len(),
            x.width(),
        )?)
    }

    /// Gathers heads of `x` into `out`, each a row of `width` elements whatever rows the matrices have.
    pub(super) fn take_heads(
        &self,
        out: &Activation,
        x: &Activation,
        heads: &Indices,
        width: usize,
    ) -> Result<(), OpsError> {
        let bytes = x.dtype().bytes();
        let (out, x) = (out.span(), x.span());
        Ok((self.gpu).take_rows(bytes, out, x, heads.span(), heads.len(), width)?)
    }

    /// Attention of some of the tasks, to keys and values in the queries' dtype, of this pass or of a cache.
    pub(super) fn attend(
        &self,
        out: &Activation,
        q: &Activation,
        ([k, v], window): ([GpuSpan; 2], Option<usize>),
        shape: AttentionShape,
        tasks: &GpuTasks,
        these: Range<usize>,
    ) -> Result<(), OpsError> {
        const TASK_BYTES: usize = size_of::<cuda::AttentionTask>();
        let attend = cuda::AttentionArgs {
            out: out.span(),
            q: q.span(),
            k,
            v,
            tasks: (tasks.tasks.span()).part(these.start * TASK_BYTES, these.len() * TASK_BYTES),
            task_count: these.len(),
            segments: tasks.segments.span(),
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            scale: shape.score_scale(),
            window,
        };
        Ok(self.gpu.attend(q.dtype(), attend)?)
    }

    pub(super) fn salience(&self, salience: cuda::SalienceArgs) -> Result<(), OpsError> {
        Ok(self.gpu.salience(self.profile.dtype, salience)?)
    }

    /// Moves the rows that `kept` names for each layer to the beginning of a cache's matrices.
    pub(super) fn keep_rows(
        &self,
        memory: GpuSpan,
        layers: usize,
        row_bytes: usize,
        kept: GpuSpan,
        count: usize,
    ) -> Result<(), OpsError> {
        Ok((self.gpu).keep_rows(memory, layers, row_bytes, kept, count)?)
    }

    pub(super) fn read(&self, x: &Activation) -> Result<Vec<f32>, OpsError> {
        let mut bytes = vec![0; x.span().bytes()];
        self.gpu.download(x.span(), &mut bytes)?;
        let halves = || {
            let pairs = bytes.chunks_exact(2);
            pairs.map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        };
        Ok(match x.dtype() {
            DType::F32 => bytemuck::pod_collect_to_vec(&bytes),
            DType::F16 => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
            DType::Bf16 => halves()
                .map(|bits| bf16::from_bits(bits).to_f32())
                .collect(),
        })
    }

    /// Logits of rows by a part of the LM head.
    pub(super) fn logits(
        &self,
        x: &Activation,
        part: &Weight<'_>,
        place: GpuSpan,
    ) -> Result<(), OpsError> {
        self.matmul(x, part, place, DType::F32, false)
    }

    pub(super) fn download(&self, from: GpuSpan, to: &mut [f32]) -> Result<(), OpsError> {
        Ok(self.gpu.download(from, bytemuck::cast_slice_mut(to))?)
    }
}
