//! RWKV-7's layers between their matmuls. Runs of rows go to the kernels by value, some in each launch, so that no memory
//! on the GPU is kept for them.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::{ELEMENT_THREADS, REDUCE_THREADS, address, holds, size, threads};
use sluice_formats::DType;

use crate::{error::CudaError, gpu::Gpu, launch::KernelArgument, span::GpuSpan};

/// Elements of a head.
pub const TIME_MIX_HEAD_DIM: usize = 64;

/// Rows of [`TimeMixArgs::vectors`]; the last only beside values of the first layer.
const VECTORS: usize = 8;

/// Threads of a block of the time mix, as in `rwkv7.cuh`.
const TIME_MIX_THREADS: u32 = 256;

/// Runs of a launch, as in `rwkv7.cuh`.
const RUNS_MAX: usize = 32;

/// Consecutive rows of one sequence in a pass, and a part of the states (`f32`) that it reads and writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateRun {
    /// The rows, at least one.
    pub rows: Range<usize>,
    /// What it reads; for inputs `None` where it goes on from the row before it in the pass.
    pub before: Option<GpuSpan>,
    /// What it writes, elsewhere.
    pub after: GpuSpan,
}

/// Some runs as kernels read them, by value.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct StateRuns {
    before: [u64; RUNS_MAX],
    after: [u64; RUNS_MAX],
    start: [u32; RUNS_MAX],
    end: [u32; RUNS_MAX],
}

impl StateRuns {
    fn new(runs: &[StateRun]) -> Self {
        let mut all = Self::zeroed();
        for (place, run) in runs.iter().enumerate() {
            all.before[place] = run.before.map_or(0, GpuSpan::address);
            all.after[place] = run.after.address();
            all.start[place] = run.rows.start as u32;
            all.end[place] = run.rows.end as u32;
        }
        all
    }

    fn argument(&self) -> KernelArgument<'_> {
        KernelArgument::Bytes(bytemuck::bytes_of(self))
    }
}

/// Arguments of [`Gpu::time_mix`]: rows of heads in the compute dtype, all of one width.
#[derive(Debug, Clone, Copy)]
pub struct TimeMixArgs {
    /// The result.
    pub out: GpuSpan,
    /// The receptance.
    pub receptance: GpuSpan,
    /// The decay before its bias and its function.
    pub decay: GpuSpan,
    /// The key.
    pub key: GpuSpan,
    /// The value.
    pub value: GpuSpan,
    /// The in-context learning rate before its bias and its function.
    pub learning_rate: GpuSpan,
    /// The gate.
    pub gate: GpuSpan,
    /// Values of the first layer, and how much of them is taken over before its bias and its function.
    pub first_value: Option<[GpuSpan; 2]>,
    /// Rows of `f32`: biases of decay and learning rate, scale of the removed key, how much the learning rate scales the
    /// key, bonus, weight and bias of the heads' norm, and beside values of the first layer the bias of their share.
    pub vectors: GpuSpan,
    /// Number of heads of [`TIME_MIX_HEAD_DIM`] elements.
    pub heads: usize,
    /// Added to the variance of each head's output.
    pub epsilon: f32,
}

/// Addresses of [`TimeMixArgs`] as the kernel reads them, by value.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct TimeMixAddresses {
    rows: [u64; 6],
    /// 0 in the first layer.
    first_value: [u64; 2],
    vectors: u64,
}

impl Gpu {
    /// The `rows` of `x`, each mixed with the row before it in its run by `shares` (`f32`): `x + (before − x) · share`.
    /// `runs` are in the order of their rows, and have all of these.
    ///
    /// # Errors
    /// When a launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short, or runs lack rows.
    #[expect(clippy::too_many_arguments, reason = "the operation has as many")]
    pub fn shift_mix(
        &self,
        dtype: DType,
        out: GpuSpan,
        x: GpuSpan,
        shares: GpuSpan,
        rows: Range<usize>,
        width: usize,
        runs: &[StateRun],
    ) -> Result<(), CudaError> {
        let row_bytes = width * dtype.bytes();
        holds("out", out, rows.len() * width, dtype.bytes());
        holds("x", x, rows.end * width, dtype.bytes());
        holds("shares", shares, width, 4);
        if rows.is_empty() || width == 0 {
            return Ok(());
        }
        let first = runs.partition_point(|run| run.rows.end <= rows.start);
        let mut next = rows.start;
        for runs in runs[first..].chunks(RUNS_MAX) {
            let mut end = next;
            for run in runs {
                let is_next = run.rows.start == end || (end == rows.start && run.rows.start < end);
                assert!(is_next, "runs lack row {end}");
                match run.before {
                    Some(before) => holds("a state", before, width, 4),
                    None => assert!(run.rows.start > 0, "no row is before the first"),
                }
                end = run.rows.end;
            }
            let these = next..end.min(rows.end);
            if these.is_empty() {
                break;
            }
            let out = out.part(
                (these.start - rows.start) * row_bytes,
                these.len() * row_bytes,
            );
            self.send(
                &format!("shift_mix_{}", dtype.name()),
                [these.len(), 1],
                REDUCE_THREADS,
                &[
                    address(out),
                    address(x),
                    address(shares),
                    size(these.start),
                    size(width),
                    StateRuns::new(runs).argument(),
                    size(runs.len()),
                ],
            )?;
            next = these.end;
        }
        assert!(next == rows.end, "runs lack row {next}");
        Ok(())
    }

    /// Copies the last row of each run of `x` to what the run writes, as `f32`.
    ///
    /// # Errors
    /// When a launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn keep_inputs(
        &self,
        dtype: DType,
        x: GpuSpan,
        width: usize,
        runs: &[StateRun],
    ) -> Result<(), CudaError> {
        for run in runs {
            assert!(!run.rows.is_empty(), "a run has rows");
            holds("x", x, run.rows.end * width, dtype.bytes());
            holds("a state", run.after, width, 4);
        }
        if width == 0 {
            return Ok(());
        }
        for runs in runs.chunks(RUNS_MAX) {
            self.send(
                &format!("keep_inputs_{}", dtype.name()),
                [threads(width)[0], runs.len()],
                ELEMENT_THREADS,
                &[address(x), size(width), StateRuns::new(runs).argument()],
            )?;
        }
        Ok(())
    }

    /// Sends the rows of runs through the states of their heads (a row for each key channel), and gives each head's
    /// output, normed, with the present token's value added, and gated. Rows of no run are not written. What one run
    /// writes another of the same call must not read.
    ///
    /// # Errors
    /// When a launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short, or a run reads no state.
    pub fn time_mix(
        &self,
        dtype: DType,
        mix: &TimeMixArgs,
        runs: &[StateRun],
    ) -> Result<(), CudaError> {
        let width = mix.heads * TIME_MIX_HEAD_DIM;
        let inputs = [
            mix.receptance,
            mix.decay,
            mix.key,
            mix.value,
            mix.learning_rate,
            mix.gate,
        ];
        let vectors = VECTORS - usize::from(mix.first_value.is_none());
        holds("vectors", mix.vectors, vectors * width, 4);
        for run in runs {
            assert!(!run.rows.is_empty(), "a run has rows");
            let first = mix.first_value.into_iter().flatten();
            for x in inputs.into_iter().chain(first).chain([mix.out]) {
                holds("rows", x, run.rows.end * width, dtype.bytes());
            }
            let before = run.before.expect("a run reads a state");
            for heads in [before, run.after] {
                holds("a state", heads, width * TIME_MIX_HEAD_DIM, 4);
            }
        }
        if width == 0 {
            return Ok(());
        }
        let addresses = TimeMixAddresses {
            rows: inputs.map(GpuSpan::address),
            first_value: (mix.first_value).map_or([0; 2], |spans| spans.map(GpuSpan::address)),
            vectors: mix.vectors.address(),
        };
        for runs in runs.chunks(RUNS_MAX) {
            self.send(
                &format!("time_mix_{}", dtype.name()),
                [mix.heads, runs.len()],
                TIME_MIX_THREADS,
                &[
                    address(mix.out),
                    KernelArgument::Bytes(bytemuck::bytes_of(&addresses)),
                    size(width),
                    KernelArgument::F32(mix.epsilon),
                    StateRuns::new(runs).argument(),
                ],
            )?;
        }
        Ok(())
    }
}
