//! How fast a device's operations are.

use sluice_cuda::{self as cuda, Gpu};
use sluice_formats::{DType, Format};
use sluice_machine::{MemoryKind, page::Page};
use sluice_ops::{
    Activation, AttentionKeys, AttentionRange, AttentionShape, KeyRows, KeySegment, Ops, OpsError,
    PassStates, StateShape, TimeMixInputs,
    device::{Device, DeviceBuffer},
    ledger::Ledger,
    measure::{CompressedSample, FILL_BYTE, GpuSample},
};
use sluice_weights::{RWKV7_HEAD_DIM, Weight, WeightData};

use sluice_engine::EngineError;

/// An operation, and its time.
#[derive(Debug, Clone, PartialEq)]
pub struct OperationSpeed {
    /// The operation and its sizes.
    pub name: String,
    /// The median of several runs, in seconds, by the GPU's own clock where one computes.
    pub seconds: f64,
    /// Multiplications and additions.
    pub operations: f64,
    /// Bytes that must be read or written at least once.
    pub bytes: f64,
    /// Bytes that were decompressed, for an operation that does that.
    pub decompressed_bytes: Option<f64>,
}

/// The sizes of the timed operations.
#[derive(Debug, Clone)]
pub struct SpeedSizes {
    /// Elements of a row, and of a side of square weight matrices; a multiple of 256, the longest block of any format.
    pub hidden_size: usize,
    /// Row counts of the matmuls.
    pub rows: Vec<usize>,
    /// Canvas lengths of the attention, and rows of the time mix.
    pub canvases: Vec<usize>,
}

/// LLaDA-8B's sizes, and rows from one to what sixteen requests may bring.
impl Default for SpeedSizes {
    fn default() -> Self {
        Self {
            hidden_size: 4096,
            rows: vec![1, 8, 32, 128, 512, 2048],
            canvases: vec![128, 512, 2048],
        }
    }
}

/// Elements of a head, unless rows are narrower.
const HEAD_DIM: usize = 128;
/// Timed runs of each, after one that only warms up; below how long one should take, and its most launches.
const RUNS: usize = 7;
const RUN_S: f64 = 2e-3;
const LAUNCHES_MAX: usize = 32;
/// An operation that takes this long needs no more runs.
const SLOW_S: f64 = 1.0;
/// Matrices of the most rows, in `f32`, that exist at once: the six that a time mix reads, its results, and one on its
/// way there.
const MATRICES: usize = 8;
/// Rows of the decompressed matrix, in multiples of its width: a matrix of LLaDA-8B's MLP.
const DECOMPRESSED_WIDTHS: usize = 3;
/// Rows of a compressed chunk, as containers have them.
const CHUNK_ROWS: usize = 256;

/// Times matmuls with weights in every format, attention of one canvas, and the time mix of one sequence; on a GPU also matmuls by its library beside
/// those by kernels, decompression of every scheme, and matmuls with dictionary-compressed weights as they are. `report`
/// is called with each as it is done.
///
/// # Errors
/// When memory cannot be allocated, or an operation fails.
pub fn speeds(
    device: &Device,
    sizes: &SpeedSizes,
    report: &mut dyn FnMut(&OperationSpeed),
) -> Result<(), EngineError> {
    let ops = Ops::new(device.clone(), Ledger::default())?;
    // Reserved up front, so that no run waits for the driver to allocate.
    let most_rows = sizes.rows.iter().chain(&sizes.canvases).max();
    let most_bytes = MATRICES * most_rows.unwrap_or(&0) * sizes.hidden_size * size_of::<f32>();
    ops.reserve(most_bytes as u64)?;
    let mut clock = SpeedTest { ops, sizes, report };
    for format in Format::ALL {
        clock.matmuls(format)?;
    }
    if let Some(gpu) = device.gpu() {
        clock.both_ways(gpu)?;
        for format in Format::ALL
            .into_iter()
            .filter(|format| format.block_len() > 1)
        {
            clock.blocks(gpu, format)?;
        }
        for sample in CompressedSample::all(CHUNK_ROWS, sizes.hidden_size) {
            clock.compressed(gpu, &sample)?;
        }
    }
    for canvas in &sizes.canvases {
        clock.attention(*canvas)?;
        clock.time_mix(*canvas)?;
    }
    Ok(())
}

struct SpeedTest<'a> {
    ops: Ops,
    sizes: &'a SpeedSizes,
    report: &'a mut dyn FnMut(&OperationSpeed),
}

impl SpeedTest<'_> {
    fn matmuls(&mut self, format: Format) -> Result<(), EngineError> {
        let (device, ledger) = (self.ops.device(), self.ops.ledger());
        let width = self.sizes.hidden_size;
        let decoded = DeviceBuffer::<Page>::for_decompression(device, ledger)?;
        let memory = self.weights(format, width)?;
        let weight = Weight {
            format,
            rows: width * memory.matrices,
            width,
            data: match &memory.bytes {
                DeviceBuffer::Host(words) => WeightData::Host(bytemuck::cast_slice(words)),
                on_gpu @ DeviceBuffer::Gpu(_) => {
                    WeightData::on_gpu(on_gpu.span(), decoded.on_gpu())
                }
            },
            weights_version: 0,
        };
        for rows in &self.sizes.rows {
            let x = self.ops.probe_rows(*rows, &weight)?;
            let seconds = self.median(|ops, run| {
                let first = run % memory.matrices * width;
                ops.linear(&x, &weight.rows(first, first + width)).map(drop)
            })?;
            let bytes = format.bytes(width * width);
            let product = self.matmul_speed(*rows, bytes, format.name(), seconds);
            (self.report)(&product);
        }
        Ok(())
    }

    /// Times matmuls with weights in the GPU's dtype, by its library and by our own kernels, whichever would be chosen
    /// for so many rows.
    fn both_ways(&mut self, gpu: &Gpu) -> Result<(), EngineError> {
        let (number, width) = (self.ops.device().dtype(), self.sizes.hidden_size);
        let format = Format::from(number);
        let memory = self.weights(format, width)?;
        for rows in &self.sizes.rows {
            let [x, out] = self.rows(*rows)?;
            let product = |run| cuda::Matmul {
                out: out.span(),
                out_is_f32: false,
                x: x.span(),
                weights: memory.part(run),
                rows: *rows,
                outputs: width,
                out_stride: width,
                width,
                accumulate: false,
            };
            let bytes = format.bytes(width * width);
            if gpu.blas().is_some() {
                let by_blas = |run| gpu.matmul_by_blas(number, product(run)).map(drop);
                let seconds = self.median(|_, run| Ok(by_blas(run)?))?;
                let name = format!("{}, by cuBLAS", format.name());
                let speed = self.matmul_speed(*rows, bytes, &name, seconds);
                (self.report)(&speed);
            }
            let by_kernels = |run| gpu.matmul_by_kernels(number, format, product(run));
            let seconds = self.median(|_, run| Ok(by_kernels(run)?))?;
            let name = format!("{}, by kernels", format.name());
            let speed = self.matmul_speed(*rows, bytes, &name, seconds);
            (self.report)(&speed);
        }
        Ok(())
    }

    /// Times dequantizing blocks.
    fn blocks(&mut self, gpu: &Gpu, format: Format) -> Result<(), EngineError> {
        let (number, width) = (self.ops.device().dtype(), self.sizes.hidden_size);
        let rows = DECOMPRESSED_WIDTHS * width;
        let memory = self.weights(format, rows)?;
        let out = self.decompressed_buffer(rows)?;
        let decode = |run| {
            let (to, from) = (out.span(), memory.part(run));
            Ok(gpu.dequantize(number, format, to, from, rows, width)?)
        };
        let seconds = self.median(|_, run| decode(run))?;
        let speed =
            self.decompression_speed(rows, format.bytes(rows * width), format.name(), seconds);
        (self.report)(&speed);
        Ok(())
    }

    /// Times decompression and, for a scheme that can be multiplied from, matmuls.
    fn compressed(&mut self, gpu: &Gpu, sample: &CompressedSample) -> Result<(), EngineError> {
        let (device, ledger) = (self.ops.device(), self.ops.ledger());
        let (number, width) = (device.dtype(), self.sizes.hidden_size);
        let chunks = DECOMPRESSED_WIDTHS * width.div_ceil(CHUNK_ROWS);
        let on_gpu = GpuSample::new(device, ledger, sample, chunks)?;
        let matrix = on_gpu.matrix();
        let name = matrix.compression.name();
        let out = self.decompressed_buffer(matrix.rows())?;
        let seconds = self.median(|_, _| Ok(gpu.decompress(number, out.span(), &matrix)?))?;
        let speed = self.decompression_speed(matrix.rows(), on_gpu.bytes(), name, seconds);
        (self.report)(&speed);
        if !matrix.has_matmul() {
            return Ok(());
        }
        let chunks = width / CHUNK_ROWS;
        let bytes = chunks * sample.encoded.bytes.len();
        let matrices = gpu.beyond_cache(bytes).div_ceil(bytes);
        let on_gpu = GpuSample::new(device, ledger, sample, matrices * chunks)?;
        let index = on_gpu.index(device, ledger)?;
        let bytes = bytes + index.span().bytes() / matrices;
        for rows in &self.sizes.rows {
            let [x, out] = self.rows(*rows)?;
            // Each run takes the next matrix, so that none finds its weights in the GPU's cache: a model's pass does
            // not either.
            let multiply = |run| {
                let first = run % matrices * chunks;
                gpu.matmul_dictionary(
                    number,
                    cuda::DictionaryMatmul {
                        out: out.span(),
                        out_is_f32: false,
                        out_stride: width,
                        x: x.span(),
                        rows: *rows,
                        weights: &on_gpu.part(first..first + chunks),
                        index: index.span(),
                        index_rows: matrices * width,
                        first_row: first * CHUNK_ROWS,
                        accumulate: false,
                    },
                )
            };
            let seconds = self.median(|_, run| Ok(multiply(run)?))?;
            let product = self.matmul_speed(*rows, bytes, name, seconds);
            (self.report)(&product);
        }
        Ok(())
    }

    /// So many rows of weights, repeated in a GPU's memory, of a byte that makes a finite value in every format, as
    /// element, scale and code alike.
    fn weights(&self, format: Format, rows: usize) -> Result<Weights, EngineError> {
        let (device, ledger) = (self.ops.device(), self.ops.ledger());
        let matrix_bytes = format.bytes(rows * self.sizes.hidden_size);
        let matrices = (device.gpu()).map_or(1, |gpu| {
            gpu.beyond_cache(matrix_bytes).div_ceil(matrix_bytes)
        });
        let words = matrices * matrix_bytes / size_of::<u64>();
        let bytes = DeviceBuffer::new(device, ledger, MemoryKind::Weights, words)?;
        let mut weights = Weights {
            bytes,
            matrices,
            matrix_bytes,
        };
        match (&mut weights.bytes, device.gpu()) {
            (DeviceBuffer::Gpu(_), Some(gpu)) => gpu.fill(weights.bytes.span(), FILL_BYTE)?,
            (host, _) => bytemuck::cast_slice_mut(host.host_mut()).fill(FILL_BYTE),
        }
        Ok(weights)
    }

    /// Memory for so many decompressed rows.
    fn decompressed_buffer(&self, rows: usize) -> Result<DeviceBuffer<u8>, OpsError> {
        let (device, ledger) = (self.ops.device(), self.ops.ledger());
        let bytes = rows * self.sizes.hidden_size * device.dtype().bytes();
        DeviceBuffer::new(device, ledger, MemoryKind::Scratch, bytes)
    }

    /// Rows to multiply, and memory for the output.
    fn rows(&self, rows: usize) -> Result<[Activation; 2], EngineError> {
        let width = self.sizes.hidden_size;
        let values = vec![0.5; rows * width];
        let matrix = || {
            self.ops
                .matrix(rows, width, &values, self.ops.device().dtype())
        };
        Ok([matrix()?, matrix()?])
    }

    /// The speed of a matmul with a square matrix of so many bytes.
    fn matmul_speed(&self, rows: usize, bytes: usize, kind: &str, seconds: f64) -> OperationSpeed {
        let width = self.sizes.hidden_size;
        let number = self.ops.device().dtype();
        OperationSpeed {
            name: format!("linear, {rows} x {width} x {width}, {kind}"),
            seconds,
            operations: 2.0 * (rows * width * width) as f64,
            bytes: (bytes + 2 * rows * width * number.bytes()) as f64,
            decompressed_bytes: None,
        }
    }

    /// The speed of making rows from so many bytes.
    fn decompression_speed(
        &self,
        rows: usize,
        bytes: usize,
        kind: &str,
        seconds: f64,
    ) -> OperationSpeed {
        let width = self.sizes.hidden_size;
        let decoded = rows * width * self.ops.device().dtype().bytes();
        OperationSpeed {
            name: format!("decode, {rows} x {width}, {kind}"),
            seconds,
            operations: 0.0,
            bytes: (bytes + decoded) as f64,
            decompressed_bytes: Some(decoded as f64),
        }
    }

    fn attention(&mut self, canvas: usize) -> Result<(), EngineError> {
        let (width, number) = (self.sizes.hidden_size, self.ops.device().dtype());
        let head_dim = HEAD_DIM.min(width);
        let heads = width / head_dim;
        let values = vec![0.5; canvas * width];
        let [q, k, v] = [(); 3].map(|()| self.ops.matrix(canvas, width, &values, number));
        let (q, k, v) = (q?, k?, v?);
        let tasks = self.ops.attention_tasks(vec![AttentionRange {
            queries: 0..canvas,
            keys: AttentionKeys::Pass(vec![KeySegment {
                start: 0,
                len: canvas,
            }]),
        }])?;
        let shape = AttentionShape {
            heads,
            kv_heads: heads,
            head_dim,
            is_scaled: true,
        };
        let keys = KeyRows {
            pass: Some([&k, &v]),
            caches: &[],
            layer: 0,
        };
        let seconds = self.median(|ops, _| ops.attend(&q, &keys, shape, &tasks).map(drop))?;
        (self.report)(&OperationSpeed {
            name: format!("attention, canvas of {canvas}, {heads} heads of {head_dim}"),
            seconds,
            operations: 4.0 * (canvas * canvas * width) as f64,
            bytes: (4 * canvas * width * number.bytes()) as f64,
            decompressed_bytes: None,
        });
        Ok(())
    }

    /// Times the time mix of RWKV-7's first layer.
    fn time_mix(&mut self, rows: usize) -> Result<(), EngineError> {
        let (width, number) = (self.sizes.hidden_size, self.ops.device().dtype());
        let values = vec![0.5; rows * width];
        let matrix = || self.ops.matrix(rows, width, &values, number);
        let inputs: Vec<_> = (0..6).map(|_| matrix()).collect::<Result<_, _>>()?;
        let vectors = self
            .ops
            .matrix(7, width, &vec![0.5; 7 * width], DType::F32)?;
        let mix = TimeMixInputs {
            receptance: &inputs[0],
            decay: &inputs[1],
            key: &inputs[2],
            value: &inputs[3],
            learning_rate: &inputs[4],
            gate: &inputs[5],
            first_value: None,
            vectors: &vectors,
            epsilon: 64e-5,
        };
        let mut state = self.ops.recurrent_state(StateShape {
            layers: 1,
            hidden_size: width,
        })?;
        let mut states = PassStates::default();
        states.add(0..rows, &mut state, None);
        let seconds = self.median(|ops, _| ops.time_mix(&mix, &mut states, 0).map(drop))?;
        let heads = width / RWKV7_HEAD_DIM;
        let state_bytes = 2 * width * RWKV7_HEAD_DIM * size_of::<f32>();
        (self.report)(&OperationSpeed {
            name: format!("time mix, {rows} rows, {heads} heads"),
            seconds,
            // For each element of the state and each row: what is removed, three products for what it becomes, and what
            // it gives.
            operations: 10.0 * (rows * width * RWKV7_HEAD_DIM) as f64,
            bytes: (7 * rows * width * number.bytes() + state_bytes) as f64,
            decompressed_bytes: None,
        });
        Ok(())
    }

    /// Median seconds of the work, which is given the index of its run.
    fn median(
        &self,
        mut work: impl FnMut(&Ops, usize) -> Result<(), OpsError>,
    ) -> Result<f64, OpsError> {
        let ops = &self.ops;
        let mut runs = 0..;
        let mut work = || work(ops, runs.next().unwrap_or(0));
        // What the first run needs once, such as compiling a kernel, happens here.
        work()?;
        let once = ops.time(1, &mut work)?;
        if once > SLOW_S {
            return Ok(once);
        }
        let launches = ((RUN_S / once) as usize).clamp(1, LAUNCHES_MAX);
        let times: Result<Vec<f64>, _> = (0..RUNS).map(|_| ops.time(launches, &mut work)).collect();
        let mut times = times?;
        times.sort_unstable_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

/// Matrices of weights, one after another, so many that none is still in a GPU's cache when its turn comes again: in a
/// pass each comes from memory.
struct Weights {
    bytes: DeviceBuffer<u64>,
    matrices: usize,
    matrix_bytes: usize,
}

impl Weights {
    /// The matrix that a run takes.
    fn part(&self, run: usize) -> cuda::GpuSpan {
        let first = run % self.matrices * self.matrix_bytes;
        self.bytes.span().part(first, self.matrix_bytes)
    }
}
