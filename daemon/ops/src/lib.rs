//! The operations that models and decoding are written in, on an opaque activation type. What lies beneath (on the CPU
//! kernels of our own or the `gemm` crate's, on a GPU cuBLAS and our own) is named nowhere else.

mod activation;
mod arena;
mod attention;
mod backward;
mod beside_gpu;
mod clock;
mod common_memory;
mod cpu;
pub mod device;
mod encoder;
mod error;
mod fidelity;
mod gemma;
mod gpu;
mod grouped;
mod heads;
mod kv_cache;
pub mod ledger;
mod lm_head;
mod logits;
pub mod measure;
mod mixture;
mod recurrent_state;
mod rotation;
mod rwkv7;
mod shapes;

use std::{
    ops::Range,
    sync::{Arc, OnceLock},
    time::Instant,
};

use sluice_formats::{DType, Format};
use sluice_machine::MemoryKind;
use sluice_weights::{QueryScale, Rope, RopePairs, Weight};

use self::{
    activation::ActivationPool,
    common_memory::HostMemory,
    cpu::{CpuBackend, Product},
    gpu::GpuBackend,
};
pub use self::{
    activation::{Activation, Indices},
    attention::{AttentionKeys, AttentionRange, AttentionTasks, KeyRows, KeySegment, PassRun},
    backward::{BackwardRange, BackwardTasks, CrossEntropy},
    clock::{Phase, PhaseTimes},
    common_memory::CommonMemory,
    error::OpsError,
    fidelity::{Comparison, Divergence},
    gemma::SoftEmbeddings,
    kv_cache::KvCache,
    lm_head::{
        Candidate, CandidateEvidence, Distributions, LmHeadGroup, LmHeadReduction, LmHeadRow,
        LogitScaling, RankingScore, SamplingParams, TopToken,
    },
    logits::LogitsRows,
    mixture::{Routing, RoutingLog},
    recurrent_state::{PassStates, RecurrentState, StatePart, StateShape},
    rwkv7::{ChannelFunction, TimeMixInputs, TimeMixVector},
    shapes::{AttentionShape, KvCacheShape, WINDOW_PASS_ROWS},
};
use self::{
    device::{Device, DeviceBuffer},
    ledger::Ledger,
};

/// Bound on the relative error of a matmul with weights in blocks where [`Ops::rounds_rows`], to 8 bits, as a root mean
/// square; 0.0038 was measured.
pub const ROUNDED_ROWS_ERROR: f64 = 5e-3;

/// The operations of one device.
pub struct Ops {
    device: Device,
    ledger: Ledger,
    pool: ActivationPool,
    backend: Backend,
    routing_log: Option<RoutingLog>,
    /// The CPU's operations beside a GPU, once they were asked for.
    host: OnceLock<Box<Ops>>,
    /// What they take.
    host_memory: HostMemory,
}

/// The device that the operations run on.
enum Backend {
    Cpu(CpuBackend),
    Gpu(GpuBackend),
    /// Nothing is computed: memory is counted.
    DryRun,
}

/// Whether the CPU, if it is the device, rounds rows before it multiplies them with weights of this format: to 8 bits, or
/// [to bf16](Device::with_bf16_products).
pub fn rounds_rows(device: &Device, format: Format) -> bool {
    !device.is_gpu() && cpu::rounds_rows(device, format)
}

impl Ops {
    /// Prepares the operations and their scratch memory.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn new(device: Device, ledger: Ledger) -> Result<Self, OpsError> {
        let body = match (device.gpu(), device.is_gpu()) {
            (Some(gpu), _) => Backend::Gpu(GpuBackend::new(gpu.clone(), &device, &ledger)?),
            // A GPU's profile without a GPU: the dry run of a plan for a GPU, on any machine.
            (None, true) => {
                GpuBackend::reserve(&device, &ledger)?;
                Backend::DryRun
            }
            (None, false) => {
                // Made in a dry run, too, and dropped: the peak of its kind in the ledger then has the scratch.
                let cpu = CpuBackend::new(device.clone(), &ledger)?;
                match ledger.is_dry_run() {
                    true => Backend::DryRun,
                    false => Backend::Cpu(cpu),
                }
            }
        };
        Ok(Self::with(device, ledger, body))
    }

    /// Prepares the operations of one of several models on a device, which compute one after another.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn beside(device: Device, ledger: Ledger, common: &CommonMemory) -> Result<Self, OpsError> {
        let Some(scratch) = &common.scratch else {
            return Ok(Self {
                host_memory: common.beside_gpu.clone(),
                ..Self::new(device, ledger)?
            });
        };
        let entry = ledger.reserve_common(MemoryKind::Scratch, scratch.bytes())?;
        let cpu = CpuBackend::with(device.clone(), Arc::clone(scratch), Some(entry));
        Ok(Self::with(device, ledger, Backend::Cpu(cpu)))
    }

    fn with(device: Device, ledger: Ledger, backend: Backend) -> Self {
        Self {
            pool: ActivationPool::new(device.clone(), ledger.clone()),
            device,
            ledger,
            backend,
            routing_log: None,
            host: OnceLock::new(),
            host_memory: HostMemory::new(),
        }
    }

    /// [`rounds_rows`] of its device.
    #[must_use]
    pub fn rounds_rows(&self, format: Format) -> bool {
        rounds_rows(&self.device, format)
    }

    /// The dtype that the device computes in.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.device.dtype()
    }

    /// The device that the operations run on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The ledger of the device's memory.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Reserves memory for the activations of a run, of the size that [`Ops::activation_bytes`] told after a dry run.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn reserve(&self, bytes: u64) -> Result<(), OpsError> {
        self.pool.reserve(bytes as usize)
    }

    /// Whether memory for activations is reserved.
    #[must_use]
    pub fn has_reserved(&self) -> bool {
        self.pool.has_reserved()
    }

    /// A matrix like those of [`Ops::rms_norm`] that outlives the passes of a request, with memory of its own.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn persistent(&self, rows: usize, width: usize) -> Result<Activation, OpsError> {
        self.pool.persistent(rows, width, self.device.dtype())
    }

    /// Most bytes of the reserved memory that activations took at once.
    #[must_use]
    pub fn activation_bytes(&self) -> u64 {
        self.pool.high_water() as u64
    }

    /// Gives back the memory that was reserved for activations.
    pub fn release(&self) {
        self.pool.clear();
        if let Some(host) = self.host.get() {
            host.release();
        }
    }

    /// As [`Ops::release`], and the scratch memory's pages, while nothing is computed: their ledger entries stay.
    pub fn rest(&self) {
        self.release();
        if let Backend::Cpu(cpu) = &self.backend {
            cpu.rest();
        }
        if let Some(host) = self.host.get() {
            host.rest();
        }
    }

    /// A matrix of these elements, rounded to `dtype` where the device has it.
    pub fn matrix(
        &self,
        rows: usize,
        width: usize,
        values: &[f32],
        dtype: DType,
    ) -> Result<Activation, OpsError> {
        let mut out = self.pool.take(rows, width, dtype)?;
        let plain = match dtype {
            DType::F32 => None,
            DType::F16 | DType::Bf16 => Some(self.pool.take(rows, width, DType::F32)?),
        };
        match &self.backend {
            Backend::Cpu(_) => out.values_mut().copy_from_slice(values),
            Backend::Gpu(gpu) => {
                gpu.upload(plain.as_ref().unwrap_or(&out).span(), values)?;
                if let Some(plain) = &plain {
                    gpu.convert(&out, plain)?;
                }
            }
            Backend::DryRun => {}
        }
        Ok(out)
    }

    /// Reserves memory for activations as [`Ops::reserve`] does, filled with bits that are NaN in any format: a read of
    /// uninitialized elements then shows in the results.
    pub fn poison(&self, bytes: u64) -> Result<(), OpsError> {
        self.reserve(bytes)?;
        let mut all = self.pool.take(bytes as usize / 4, 1, DType::F32)?;
        match &self.backend {
            Backend::Cpu(_) => all.values_mut().fill(f32::NAN),
            Backend::Gpu(gpu) => gpu.poison(all.span())?,
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// Rows that a matmul with `weight` can be timed with: the weight's own first one, repeated.
    pub fn probe_rows(&self, rows: usize, weight: &Weight<'_>) -> Result<Activation, OpsError> {
        let x = self.embed(&vec![0; rows], &weight.rows(0, 1))?;
        match &self.backend {
            Backend::Gpu(gpu) => {
                let out = self.pool.take(rows, x.width(), self.device.dtype())?;
                gpu.convert(&out, &x)?;
                Ok(out)
            }
            Backend::Cpu(_) | Backend::DryRun => Ok(x),
        }
    }

    /// Waits until all that was launched has finished.
    ///
    /// # Errors
    /// When some of the work failed.
    pub fn wait(&self) -> Result<(), OpsError> {
        match &self.backend {
            Backend::Gpu(gpu) => gpu.wait(),
            Backend::Cpu(_) | Backend::DryRun => Ok(()),
        }
    }

    /// Seconds for one of `runs` runs of `work`, which are sent one after another: on a GPU by its own clock.
    ///
    /// # Errors
    /// When some of the work failed.
    pub fn time(
        &self,
        runs: usize,
        work: &mut dyn FnMut() -> Result<(), OpsError>,
    ) -> Result<f64, OpsError> {
        // What was launched before must not be counted.
        self.wait()?;
        let mut all = || (0..runs).try_for_each(|_| work());
        let seconds = match &self.backend {
            Backend::Gpu(gpu) => gpu.time(&mut all)?,
            Backend::Cpu(_) | Backend::DryRun => {
                let start = Instant::now();
                all()?;
                start.elapsed().as_secs_f64()
            }
        };
        // Above zero even where the clock stood still, so that no rate is infinite.
        Ok(seconds.max(1e-9) / runs as f64)
    }

    /// Indices in the form that operations take.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn indices(&self, places: impl IntoIterator<Item = usize>) -> Result<Indices, OpsError> {
        self.indices_in(0, places)
    }

    /// The same in memory for at least `room` indices, so that the size does not depend on how many there are.
    fn indices_in(
        &self,
        room: usize,
        places: impl IntoIterator<Item = usize>,
    ) -> Result<Indices, OpsError> {
        let values: Vec<u32> = places.into_iter().map(|place| place as u32).collect();
        let bytes = size_of_val(&values[..]);
        let on_gpu = match self.device.is_gpu() {
            true => Some(self.pool.take_bytes(bytes.max(room * size_of::<u32>()))?),
            false => None,
        };
        if let (Backend::Gpu(gpu), Some(part)) = (&self.backend, &on_gpu) {
            gpu.upload(part.span().part(0, bytes), &values)?;
        }
        Ok(Indices::new(values, on_gpu))
    }

    /// Row `ids[i]` of the table at row i, as `f32`.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// When an id lies outside the table.
    pub fn embed(&self, ids: &[u32], table: &Weight<'_>) -> Result<Activation, OpsError> {
        let _timed = self.timed(Phase::Other);
        assert!(ids.iter().all(|&id| (id as usize) < table.rows));
        let mut out = self.pool.take(ids.len(), table.width, DType::F32)?;
        let places = self.indices(ids.iter().map(|&id| id as usize))?;
        match &self.backend {
            Backend::Cpu(_) => cpu::embed_rows::<OpsError>(&mut out, ids, |id, row| {
                table.rows(id as usize, id as usize + 1).dequantize(row);
                Ok(())
            })?,
            Backend::Gpu(gpu) => gpu.embed(&out, &places, table)?,
            Backend::DryRun => {}
        }
        Ok(out)
    }

    /// A row of `width` elements for each id, filled by `fill` once for each run of an id.
    ///
    /// # Errors
    /// When memory cannot be allocated, or `fill` fails.
    pub fn embed_rows<E: From<OpsError>>(
        &self,
        ids: &[u32],
        width: usize,
        fill: impl FnMut(u32, &mut [f32]) -> Result<(), E>,
    ) -> Result<Activation, E> {
        let _timed = self.timed(Phase::Other);
        let mut out = self.pool.take(ids.len(), width, DType::F32)?;
        // Of each row, the row that its run of equal ids begins with.
        let mut first = 0;
        let firsts = self.indices((0..ids.len()).map(|row| {
            if ids[row] != ids[first] {
                first = row;
            }
            first
        }))?;
        match &self.backend {
            Backend::Cpu(_) => cpu::embed_rows(&mut out, ids, fill)?,
            Backend::Gpu(gpu) => gpu.embed_rows(&out, ids, &firsts, fill)?,
            Backend::DryRun => {}
        }
        Ok(out)
    }

    /// Root-mean-square norm of the given rows, times the weight.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn rms_norm(
        &self,
        x: &Activation,
        rows: Range<usize>,
        weight: &Weight<'_>,
        epsilon: f32,
    ) -> Result<Activation, OpsError> {
        let _timed = self.timed(Phase::Other);
        let mut scale = match self.device.is_gpu() {
            // Its kernel takes the weight as it is stored.
            true => None,
            false => Some(self.pool.take(1, x.width(), DType::F32)?),
        };
        let mut out = self.pool.take(rows.len(), x.width(), self.device.dtype())?;
        match (&self.backend, &mut scale) {
            (Backend::Cpu(cpu), Some(scale)) => {
                cpu.rms_norm(&mut out, x, rows.start, weight, scale, epsilon);
            }
            (Backend::Gpu(gpu), _) => gpu.rms_norm(&out, x, rows.start, weight, epsilon)?,
            _ => {}
        }
        Ok(out)
    }

    /// Root-mean-square norm of each head of these rows, in place, times the weight, which is as wide as a head.
    ///
    /// # Errors
    /// When memory cannot be allocated, or the device fails.
    ///
    /// # Panics
    /// When a row is no whole number of heads.
    pub fn rms_norm_heads(
        &self,
        x: &mut Activation,
        weight: &Weight<'_>,
        epsilon: f32,
    ) -> Result<(), OpsError> {
        assert!(x.width().is_multiple_of(weight.width));
        let _timed = self.timed(Phase::Attention);
        match &self.backend {
            Backend::Cpu(cpu) => {
                let mut scale = self.pool.take(1, weight.width, DType::F32)?;
                cpu.rms_norm_heads(x, weight, &mut scale, epsilon);
            }
            Backend::Gpu(gpu) => gpu.norm_heads(x, Some(weight), weight.width, epsilon)?,
            Backend::DryRun => drop(self.pool.take(1, weight.width, DType::F32)?),
        }
        Ok(())
    }

    /// Rotary embedding in place, of queries, of keys, or of both. Each has one position a row.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When a position lies beyond the table.
    pub fn rope<const INPUTS: usize>(
        &self,
        inputs: [(&mut Activation, &Indices); INPUTS],
        table: &RopeTable,
    ) -> Result<(), OpsError> {
        for (x, positions) in &inputs {
            assert_eq!(positions.len(), x.len());
        }
        let _timed = self.timed(Phase::Attention);
        match &self.backend {
            Backend::Cpu(cpu) => {
                for (x, positions) in inputs {
                    cpu.rotate(x, table, positions, 1.0);
                }
            }
            Backend::Gpu(gpu) => {
                gpu.rope(&inputs.map(|(x, positions)| (&*x, positions)), table, false)?;
            }
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// `x · weightᵀ`: a row of `weight.rows` outputs for each row of `x`.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// When the widths differ.
    pub fn linear(&self, x: &Activation, weight: &Weight<'_>) -> Result<Activation, OpsError> {
        let [out] = self.linear_each(x, [weight])?;
        Ok(out)
    }

    /// [`Ops::linear`] with several matrices, which on the CPU are multiplied in one go: that takes less time where
    /// rows are few.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// When the widths differ.
    pub fn linear_each<const N: usize>(
        &self,
        x: &Activation,
        weights: [&Weight<'_>; N],
    ) -> Result<[Activation; N], OpsError> {
        let _timed = self.timed(Phase::Matmul);
        let take = |weight: &Weight<'_>| self.pool.take(x.len(), weight.rows, self.device.dtype());
        let mut outs = all(weights.map(take))?;
        match &self.backend {
            Backend::Cpu(cpu) => cpu.gemm(x, products(weights, &mut outs, false)),
            Backend::Gpu(gpu) => {
                for (weight, out) in weights.into_iter().zip(&outs) {
                    gpu.matmul(x, weight, out.span(), out.dtype(), false)?;
                }
            }
            Backend::DryRun => {}
        }
        Ok(outs)
    }

    /// `x · weightᵀ + bias`; the bias is one row.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// When the widths differ.
    pub fn linear_biased(
        &self,
        x: &Activation,
        weight: &Weight<'_>,
        bias: &Weight<'_>,
    ) -> Result<Activation, OpsError> {
        let [out] = self.linear_biased_each(x, [[weight, bias]])?;
        Ok(out)
    }

    /// [`Ops::linear_biased`] with several matrices, each with its bias, as [`Ops::linear_each`] has it.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    ///
    /// # Panics
    /// When the widths differ.
    pub fn linear_biased_each<const N: usize>(
        &self,
        x: &Activation,
        weights: [[&Weight<'_>; 2]; N],
    ) -> Result<[Activation; N], OpsError> {
        if self.device.is_gpu() {
            return all(weights.map(|[weight, bias]| self.linear_biased_on_gpu(x, weight, bias)));
        }
        // The output starts as the bias, and the matmul adds to it: no pass over the output for the bias.
        let mut sums = all(weights.map(|[weight, bias]| {
            assert_eq!(bias.width, weight.rows);
            self.embed(&vec![0; x.len()], bias)
        }))?;
        let _timed = self.timed(Phase::Matmul);
        if let Backend::Cpu(cpu) = &self.backend {
            cpu.gemm(
                x,
                products(weights.map(|[weight, _]| weight), &mut sums, true),
            );
        }
        Ok(sums)
    }

    fn linear_biased_on_gpu(
        &self,
        x: &Activation,
        weight: &Weight<'_>,
        bias: &Weight<'_>,
    ) -> Result<Activation, OpsError> {
        assert_eq!(bias.width, weight.rows);
        let _timed = self.timed(Phase::Matmul);
        // Summed in `f32` and rounded once, with the bias: rounding before the bias is added, too, would cost accuracy.
        let sum = self.pool.take(x.len(), weight.rows, DType::F32)?;
        let number = self.device.dtype();
        let own = match number {
            DType::F32 => None,
            _ => Some(self.pool.take(x.len(), weight.rows, number)?),
        };
        if let Backend::Gpu(gpu) = &self.backend {
            gpu.matmul(x, weight, sum.span(), DType::F32, false)?;
            gpu.add_bias(own.as_ref().unwrap_or(&sum), &sum, bias)?;
        }
        Ok(own.unwrap_or(sum))
    }

    /// Adds `x · weightᵀ` to the rows of `out` from `start` on, which are `f32`.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When the widths differ, or rows lie outside.
    pub fn linear_add(
        &self,
        out: &mut Activation,
        start: usize,
        x: &Activation,
        weight: &Weight<'_>,
    ) -> Result<(), OpsError> {
        assert_eq!(out.width(), weight.rows);
        assert!(start + x.len() <= out.len());
        let _timed = self.timed(Phase::Matmul);
        match &self.backend {
            Backend::Cpu(cpu) => {
                let rows = start * weight.rows..(start + x.len()) * weight.rows;
                let out = &mut out.values_mut()[rows];
                cpu.gemm_one(x, weight, out, true);
            }
            Backend::Gpu(gpu) => {
                gpu.matmul(x, weight, out.rows_span(start, x.len()), DType::F32, true)?;
            }
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// `silu(gate) · up`, written to `gate`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn silu_mul(&self, gate: &mut Activation, up: &Activation) -> Result<(), OpsError> {
        let _timed = self.timed(Phase::Other);
        match &self.backend {
            Backend::Cpu(cpu) => cpu.silu_mul(gate, up),
            Backend::Gpu(gpu) => gpu.silu_mul(gate, up)?,
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// The rows of `x` at `rows`, in that order.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn take_rows(&self, x: &Activation, rows: &Indices) -> Result<Activation, OpsError> {
        let _timed = self.timed(Phase::Other);
        let mut out = self.pool.take(rows.len(), x.width(), x.dtype())?;
        match &self.backend {
            Backend::Cpu(_) => {
                for (out, row) in out.rows_mut().zip(rows.iter()) {
                    out.copy_from_slice(x.row(row));
                }
            }
            Backend::Gpu(gpu) => gpu.take_rows(&out, x, rows)?,
            Backend::DryRun => {}
        }
        Ok(out)
    }

    /// Overwrites the rows of `x` from `start` on with `rows`.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When `rows` do not fit.
    pub fn set_rows(
        &self,
        x: &mut Activation,
        start: usize,
        rows: &Activation,
    ) -> Result<(), OpsError> {
        let _timed = self.timed(Phase::Other);
        assert_eq!((x.width(), x.dtype()), (rows.width(), rows.dtype()));
        match &self.backend {
            Backend::Cpu(_) => {
                let values = &mut x.values_mut()[start * rows.width()..];
                values[..rows.values().len()].copy_from_slice(rows.values());
            }
            Backend::Gpu(gpu) => gpu.copy(x.rows_span(start, rows.len()), rows.span())?,
            Backend::DryRun => {}
        }
        Ok(())
    }

    /// All elements of a matrix, for tests and people.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read(&self, x: &Activation) -> Result<Vec<f32>, OpsError> {
        match &self.backend {
            Backend::Cpu(_) => Ok(x.values().to_vec()),
            Backend::Gpu(gpu) => gpu.read(x),
            Backend::DryRun => Ok(Vec::new()),
        }
    }
}

/// All results, or the first error.
fn all<T, E, const N: usize>(results: [Result<T, E>; N]) -> Result<[T; N], E> {
    let all: Vec<T> = results.into_iter().collect::<Result<_, _>>()?;
    Ok((all.try_into()).unwrap_or_else(|_| unreachable!("there are as many as results")))
}

/// The products with these weights into these matrices, or added to them.
fn products<'a, const N: usize>(
    weights: [&Weight<'a>; N],
    outs: &'a mut [Activation; N],
    adds: bool,
) -> [Product<'a>; N] {
    let mut outs = outs.each_mut().into_iter();
    weights.map(|weight| {
        let out = outs.next().expect("each weight has an output");
        Product::new(weight, out.values_mut(), adds)
    })
}

/// Cosines and sines of every position's angles, in `f32` arithmetic: the reference keeps the rotation in `f32`
/// whatever the model's dtype.
#[derive(Debug)]
pub struct RopeTable {
    /// For each position: cosines, then sines.
    values: DeviceBuffer<f32>,
    half: usize,
    /// Elements of a head, of which `2 * half` are rotated.
    head_dim: usize,
    pairs: RopePairs,
    pair_distance: usize,
}

impl RopeTable {
    /// The angles of `positions` positions.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn new(rope: &Rope, positions: usize, ops: &Ops) -> Result<Self, OpsError> {
        Self::scaled(rope, positions, ops, |_| 1.0)
    }

    /// The table for queries, where they are scaled besides; `None` where the one for keys serves both.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn of_queries(rope: &Rope, positions: usize, ops: &Ops) -> Result<Option<Self>, OpsError> {
        let table = |scale: QueryScale| Self::scaled(rope, positions, ops, |at| scale.at(at));
        rope.query_scale.map(table).transpose()
    }

    fn scaled(
        rope: &Rope,
        positions: usize,
        ops: &Ops,
        scale: impl Fn(usize) -> f32,
    ) -> Result<Self, OpsError> {
        let frequencies = &rope.frequencies;
        let half = frequencies.len();
        let fill = |values: &mut [f32]| {
            for (position, row) in values.chunks_exact_mut(2 * half).enumerate() {
                let scale = scale(position);
                let (cos, sin) = row.split_at_mut(half);
                for i in 0..half {
                    // The product is rounded to `f32` before the sine is taken, as in the reference; in `f64` the
                    // angles of far positions would differ.
                    let (sine, cosine) = (position as f32 * frequencies[i]).sin_cos();
                    (sin[i], cos[i]) = (sine * scale, cosine * scale);
                }
            }
        };
        let len = positions * 2 * half;
        let values =
            DeviceBuffer::filled(&ops.device, &ops.ledger, MemoryKind::Weights, len, fill)?;
        Ok(Self {
            values,
            half,
            head_dim: rope.head_dim,
            pairs: rope.pairs,
            pair_distance: rope.pair_distance,
        })
    }

    fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let row = &self.values.host()[position * 2 * self.half..(position + 1) * 2 * self.half];
        row.split_at(self.half)
    }
}
