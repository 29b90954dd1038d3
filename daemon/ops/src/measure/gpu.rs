//! A GPU's rates. The first run of a kernel takes many times its usual time, since the driver compiles it and libraries
//! load: every shape runs once before it is timed, in memory that is already allocated.

use std::time::Instant;

use sluice_codec::Scheme;
use sluice_cuda::{Gpu, GpuSpan};
use sluice_formats::Format;
use sluice_weights::{Weight, WeightData};

use super::{
    CompressedSample, DECOMPRESS_WIDTH, GpuSample, LinearRate, POINTS, ROUNDS_MAX, ROUNDS_TIME,
    large, rising, unknown, weight,
};
use crate::{Activation, Ops, OpsError};

/// A GPU needs more rows than a few cores to be kept busy.
const POINT_ROWS: [usize; POINTS] = [1, 64, 512];
/// A run of this length is precise enough: nothing larger is tried.
const LONG_S: f64 = 1e-3;
/// Most runs that are timed together.
const RUNS_MAX: usize = 16;
/// Rows of a chunk, as containers have them, and below the most chunks that are decompressed at once.
const CHUNK_ROWS: usize = 256;
const CHUNKS_MAX: usize = 32;
/// Timed runs of decompression, of which the fastest counts.
const DECOMPRESS_ROUNDS: usize = 4;
/// Parts of the arena that a probe holds at once, and below what each may lose to alignment.
const PARTS: usize = 4;
const PART_ENDS_BYTES: usize = 64;

/// Measures matmuls with weights anywhere in `memory`, decompressed to `decoded` where they have to be.
pub(super) fn measure_linear(
    ops: &Ops,
    memory: GpuSpan,
    decoded: GpuSpan,
) -> Result<Vec<LinearRate>, OpsError> {
    let memory = ProbeMemory {
        all: memory,
        decompressed: decoded,
    };
    // Reserved once: an allocation inside the timed part would count as the matmul's time.
    ops.reserve(arena_bytes(ops) as u64)?;
    let mut rates = unknown(POINT_ROWS);
    let mut probes = Vec::new();
    for (rate, LinearRate { format, .. }) in rates.iter().enumerate() {
        for (point, rows) in POINT_ROWS.into_iter().enumerate() {
            let probe = Probe::new(ops, *format, rows, memory)?;
            probes.push((rate, point, probe));
        }
    }
    // Round by round over all probes, instead of one probe after another: a disturbance then costs each of them one
    // run, and the fastest of the others counts.
    let start = Instant::now();
    'rounds: for _ in 0..ROUNDS_MAX {
        for (_, _, probe) in &mut probes {
            if start.elapsed() > ROUNDS_TIME {
                break 'rounds;
            }
            probe.run(ops, memory)?;
        }
    }
    for (rate, point, probe) in probes {
        rates[rate].points[point].1 = probe.seconds / (probe.shape.0 * probe.shape.1) as f64;
    }
    Ok(rising(rates))
}

/// Seconds that the GPU takes to decompress an element, by scheme: of as many chunks as `out` has room for, since only
/// many keep it busy.
pub(super) fn measure_decompress(
    ops: &Ops,
    gpu: &Gpu,
    out: GpuSpan,
) -> Result<Vec<(Scheme, f64)>, OpsError> {
    let number = ops.device().dtype();
    let numbers = CHUNK_ROWS * DECOMPRESS_WIDTH;
    let copies = CHUNKS_MAX.min(out.bytes() / (numbers * number.bytes()));
    let measure = |sample: CompressedSample| {
        let on_gpu = GpuSample::new(ops.device(), ops.ledger(), &sample, copies)?;
        let matrix = on_gpu.matrix();
        let mut decode = || Ok(gpu.decompress(number, out, &matrix)?);
        // The driver compiles the kernel when it first runs.
        decode()?;
        let mut fastest = ops.time(1, &mut decode)?;
        let runs = runs_of(fastest);
        for _ in 0..DECOMPRESS_ROUNDS {
            fastest = fastest.min(ops.time(runs, &mut decode)?);
        }
        Ok((sample.scheme, fastest / (copies * numbers) as f64))
    };
    CompressedSample::all(CHUNK_ROWS, DECOMPRESS_WIDTH)
        .map(measure)
        .collect()
}

/// How many runs of so many seconds are timed together.
fn runs_of(seconds: f64) -> usize {
    ((LONG_S / seconds) as usize).clamp(1, RUNS_MAX)
}

/// Memory that weights are taken from, and that they are decompressed to.
#[derive(Clone, Copy)]
struct ProbeMemory {
    all: GpuSpan,
    decompressed: GpuSpan,
}

/// A matrix that is just large enough to keep the GPU busy.
struct Probe {
    format: Format,
    rows: usize,
    shape: (usize, usize),
    /// How many runs are timed together.
    runs: usize,
    /// The fastest run so far: slower ones met other programs' work.
    seconds: f64,
}

impl Probe {
    fn new(ops: &Ops, format: Format, rows: usize, memory: ProbeMemory) -> Result<Self, OpsError> {
        let mut probe = Self {
            format,
            rows,
            shape: (0, 0),
            runs: 1,
            seconds: f64::INFINITY,
        };
        for shape in shapes(format) {
            probe.shape = shape;
            // The driver compiles the kernel when it first runs.
            probe.run(ops, memory)?;
            probe.seconds = f64::INFINITY;
            probe.run(ops, memory)?;
            if probe.seconds > LONG_S {
                break;
            }
        }
        probe.runs = runs_of(probe.seconds);
        Ok(probe)
    }

    fn run(&mut self, ops: &Ops, memory: ProbeMemory) -> Result<(), OpsError> {
        let (x, all) = self.factors(ops, memory)?;
        // Each run takes other weights, as long as there are some: in a pass they do not come from the GPU's cache
        // either.
        let mut matrices = (0..all.rows / self.shape.0).cycle();
        let mut next = || {
            let first = matrices.next().unwrap_or(0) * self.shape.0;
            all.rows(first, first + self.shape.0)
        };
        let seconds = ops.time(self.runs, &mut || ops.linear(&x, &next()).map(drop))?;
        self.seconds = self.seconds.min(seconds);
        Ok(())
    }

    /// Rows, and as many matrices as fit, one below the other.
    fn factors(
        &self,
        ops: &Ops,
        memory: ProbeMemory,
    ) -> Result<(Activation, Weight<'static>), OpsError> {
        let (outputs, width) = self.shape;
        let all_rows = memory.all.bytes() / self.format.bytes(width) / outputs * outputs;
        let data = WeightData::on_gpu(memory.all, memory.decompressed);
        let weight = weight(self.format, (all_rows, width), data);
        Ok((ops.probe_rows(self.rows, &weight)?, weight))
    }
}

/// Rows and widths to try, the smallest first.
fn shapes(format: Format) -> [(usize, usize); 3] {
    [(64, 256), (512, 1024), large(format)]
}

/// Bytes that the largest probe takes: its rows as `f32` and in the GPU's dtype, their indices, and the output.
fn arena_bytes(ops: &Ops) -> usize {
    let number = ops.device().dtype().bytes();
    let of_shape = |(outputs, width): (usize, usize)| {
        let row = width * size_of::<f32>() + width * number + size_of::<u32>() + outputs * number;
        POINT_ROWS[POINTS - 1] * row + PARTS * PART_ENDS_BYTES
    };
    let all = Format::ALL.into_iter().flat_map(shapes).map(of_shape);
    all.max().unwrap_or(0)
}
