//! Each operation of a device compared with the CPU's, on the same random inputs, with results written over poison:
//! what an operation forgets to write is NaN.

mod attention;
mod backward;
mod compressed;
mod encoder;
mod gemma;
mod lm_heads;
mod mixture;
mod rwkv7;

use half::{bf16, f16};
use sluice_cuda::{self as cuda, GpuSpan};
use sluice_formats::{DType, Format, noise::Noise};
use sluice_machine::{
    MemoryKind,
    page::{PAGE_BYTES, Page},
};
use sluice_ops::{
    Activation, Ops, OpsError, ROUNDED_ROWS_ERROR, RopeTable,
    device::{Device, DeviceBuffer},
    ledger::Ledger,
};
use sluice_weights::{Rope, RopePairs, Weight, WeightData};

use sluice_engine::{
    EngineError,
    check::{CheckResult, worse},
};

/// Bytes of the arena that results are written to, poisoned before each check.
const ARENA_BYTES: u64 = 64 << 20;
/// Memory into which a GPU decompresses weights: less than the largest matrices need, so that they go in pieces.
const DECOMPRESSED_BYTES: usize = 512 << 10;

/// Checks every operation of the device, in the dtype that it computes in. `report` is called with each check as it is
/// done. An operation that fails is a failed check.
///
/// # Errors
/// When the memory that all of them need cannot be allocated.
pub fn operations(
    device: &Device,
    seed: u64,
    report: &mut dyn FnMut(&CheckResult),
) -> Result<Vec<CheckResult>, EngineError> {
    let tried = Ops::new(device.clone(), Ledger::default())?;
    let decoded_pages = DECOMPRESSED_BYTES / PAGE_BYTES;
    let mut pair = DevicePair {
        cpu: Ops::new(Device::cpu(device.threads())?, Ledger::default())?,
        decompressed: DeviceBuffer::new(
            device,
            tried.ledger(),
            MemoryKind::Scratch,
            decoded_pages,
        )?,
        tried,
        noise: Noise::new(seed),
        drawn: 0,
        checks: Vec::new(),
        report,
    };
    type Group<'a> = fn(&mut DevicePair<'a>) -> Result<(), EngineError>;
    let groups: [(&str, Group<'_>); 23] = [
        ("encoders' rows", DevicePair::encoder),
        ("embeddings", DevicePair::embeddings),
        ("norms", DevicePair::norms),
        ("rotations", DevicePair::rope),
        ("products", DevicePair::matmuls),
        ("products by expert", DevicePair::grouped),
        ("routers", DevicePair::routers),
        ("coded weights", DevicePair::compressed),
        ("rows", DevicePair::rows),
        ("rows of canvases", DevicePair::rows_of_canvases),
        ("attention", DevicePair::attention),
        ("sequences", DevicePair::sequences),
        ("windows", DevicePair::windows),
        ("chosen keys", DevicePair::chosen_keys),
        ("channels", DevicePair::channels),
        ("states", DevicePair::states),
        ("heads", DevicePair::lm_heads),
        ("logits", DevicePair::logits),
        ("comparisons", DevicePair::comparisons),
        ("gradients of rows", DevicePair::gradients_of_rows),
        ("gradients of attention", DevicePair::gradients_of_attention),
        ("gradients of products", DevicePair::gradients_of_matmuls),
        ("cross-entropies", DevicePair::cross_entropies),
    ];
    for (name, group) in groups {
        if let Err(error) = group(&mut pair) {
            // What was found before still counts, and what comes after may tell more.
            pair.add(CheckResult::failed(format!("{name}, the rest"), &error));
        }
        if device.has_failed() {
            break;
        }
    }
    Ok(pair.checks)
}

/// The two devices that are compared, and what both need.
struct DevicePair<'a> {
    cpu: Ops,
    tried: Ops,
    /// Memory into which a GPU decompresses weights.
    decompressed: DeviceBuffer<Page>,
    noise: Noise,
    /// Matrices drawn so far.
    drawn: u64,
    checks: Vec<CheckResult>,
    report: &'a mut dyn FnMut(&CheckResult),
}

/// A matrix of random weights as a format stores them, in both memories.
struct StoredWeight {
    format: Format,
    rows: usize,
    width: usize,
    /// The elements that the blocks stand for: the CPU multiplies these, since it rounds rows for some formats itself.
    elements: Vec<f32>,
    tried: DeviceBuffer<u64>,
    /// Where the tested device may decompress the weight to.
    decompressed: GpuSpan,
}

impl StoredWeight {
    fn on_cpu(&self) -> Weight<'_> {
        Weight {
            format: Format::F32,
            ..self.weight(WeightData::Host(bytemuck::cast_slice(&self.elements)))
        }
    }

    fn on_tried(&self) -> Weight<'_> {
        match &self.tried {
            DeviceBuffer::Host(words) => {
                let bytes: &[u8] = bytemuck::cast_slice(words);
                self.weight(WeightData::Host(&bytes[..self.bytes()]))
            }
            on_gpu @ DeviceBuffer::Gpu(_) => {
                let span = on_gpu.span().part(0, self.bytes());
                self.weight(WeightData::on_gpu(span, self.decompressed))
            }
        }
    }

    fn bytes(&self) -> usize {
        self.format.bytes(self.rows * self.width)
    }

    fn weight<'a>(&self, data: WeightData<'a>) -> Weight<'a> {
        Weight {
            format: self.format,
            rows: self.rows,
            width: self.width,
            data,
            weights_version: 0,
        }
    }
}

impl DevicePair<'_> {
    /// Random elements around 0 that the device's dtype represents exactly, so that inputs are equal on both sides.
    fn elements(&mut self, count: usize, size: f32) -> Vec<f32> {
        self.drawn += 1;
        let noise = self.noise.stream(self.drawn);
        let number = self.tried.device().dtype();
        (0..count as u64)
            .map(|place| {
                let value = (noise.uniform(0, place, 0) as f32 - 0.5) * size;
                match number {
                    DType::F32 => value,
                    DType::F16 => f16::from_f32(value).to_f32(),
                    DType::Bf16 => bf16::from_f32(value).to_f32(),
                }
            })
            .collect()
    }

    fn stored(
        &mut self,
        rows: usize,
        width: usize,
        format: Format,
        size: f32,
    ) -> Result<StoredWeight, EngineError> {
        let numbers = self.elements(rows * width, size);
        let len = format.bytes(rows * width);
        let mut words = vec![0u64; len.div_ceil(size_of::<u64>())];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        quantize::store(format, &numbers, &mut bytes[..len]);
        let mut numbers = numbers;
        format.dequantize(&bytemuck::cast_slice(&words)[..len], &mut numbers);
        let (device, ledger) = (self.tried.device(), self.tried.ledger());
        let tried =
            DeviceBuffer::filled(device, ledger, MemoryKind::Weights, words.len(), |memory| {
                memory.copy_from_slice(&words);
            })?;
        Ok(StoredWeight {
            format,
            rows,
            width,
            elements: numbers,
            tried,
            decompressed: self.decompressed.on_gpu(),
        })
    }

    /// The same rows on both devices, in the dtype that each computes in.
    fn activations(
        &mut self,
        rows: usize,
        width: usize,
        size: f32,
    ) -> Result<[Activation; 2], EngineError> {
        let values = self.elements(rows * width, size);
        let number = self.tried.device().dtype();
        Ok([
            self.cpu.matrix(rows, width, &values, DType::F32)?,
            self.tried.matrix(rows, width, &values, number)?,
        ])
    }

    /// The same rows on both devices, in `f32`, as the residual stream is.
    fn stream(
        &mut self,
        rows: usize,
        width: usize,
        size: f32,
    ) -> Result<[Activation; 2], EngineError> {
        let values = self.elements(rows * width, size);
        Ok([
            self.cpu.matrix(rows, width, &values, DType::F32)?,
            self.tried.matrix(rows, width, &values, DType::F32)?,
        ])
    }

    /// Fills the memory of the next results with NaN.
    fn poison(&mut self) -> Result<(), EngineError> {
        if let Some(gpu) = self.tried.device().gpu() {
            gpu.fill(self.decompressed.on_gpu(), 0xFF)?;
        }
        Ok(self.tried.poison(ARENA_BYTES)?)
    }

    /// A unit in the last place of the results' dtype, and an allowance for sums in another order.
    fn tolerance(&self) -> f64 {
        match self.tried.device().dtype() {
            DType::F32 => 1e-5,
            DType::F16 => 2e-3,
            DType::Bf16 => 1.6e-2,
        }
    }

    /// The tolerance of matmuls with weights of this format.
    fn matmul_tolerance(&self, format: Format) -> f64 {
        match self.tried.rounds_rows(format) {
            // An error over a few hundred results scatters more than one over many.
            true => 1.5 * ROUNDED_ROWS_ERROR,
            false => self.tolerance(),
        }
    }

    fn check(&mut self, name: String, results: [&Activation; 2]) -> Result<(), EngineError> {
        self.check_within(self.tolerance(), name, results)
    }

    fn check_within(
        &mut self,
        tolerance: f64,
        name: String,
        [expected, found]: [&Activation; 2],
    ) -> Result<(), EngineError> {
        let (expected, found) = (self.cpu.read(expected)?, self.tried.read(found)?);
        self.record(name, distance(&expected, &found), tolerance);
        Ok(())
    }

    fn record(&mut self, name: String, error: f64, tolerance: f64) {
        self.add(CheckResult {
            name,
            error,
            tolerance,
            cause: None,
        });
    }

    fn add(&mut self, check: CheckResult) {
        (self.report)(&check);
        self.checks.push(check);
    }

    fn embeddings(&mut self) -> Result<(), EngineError> {
        let ids = [3, 0, 0, 0, 699, 3, 3, 12];
        for format in Format::ALL {
            let table = self.stored(700, 512, format, 2.0)?;
            self.poison()?;
            let expected = self.cpu.embed(&ids, &table.on_cpu())?;
            let found = self.tried.embed(&ids, &table.on_tried())?;
            self.check(format!("embed, {}", format.name()), [&expected, &found])?;
        }
        // Runs of equal ids, and more single rows than are copied at once.
        let ids: Vec<u32> = (0..300)
            .map(|row| if row % 100 < 20 { 7 } else { row })
            .collect();
        let table = self.elements(300 * 96, 2.0);
        self.poison()?;
        let fill = |id: u32, row: &mut [f32]| {
            row.copy_from_slice(&table[id as usize * 96..][..96]);
            Ok::<(), OpsError>(())
        };
        let expected = self.cpu.embed_rows(&ids, 96, fill)?;
        let found = self.tried.embed_rows(&ids, 96, fill)?;
        self.check("embed, rows from the host".to_owned(), [&expected, &found])
    }

    fn norms(&mut self) -> Result<(), EngineError> {
        for format in [Format::F32, Format::F16, Format::Bf16] {
            for (rows, width) in [(1, 4096), (37, 250)] {
                let weight = self.stored(1, width, format, 3.0)?;
                self.poison()?;
                let [a, b] = self.stream(rows + 2, width, 8.0)?;
                let kept = 1..rows + 1;
                let expected = self
                    .cpu
                    .rms_norm(&a, kept.clone(), &weight.on_cpu(), 1e-5)?;
                let found = self.tried.rms_norm(&b, kept, &weight.on_tried(), 1e-5)?;
                let name = format!("rms norm, {rows} rows of {width}, {}", format.name());
                self.check(name, [&expected, &found])?;
            }
            for (rows, heads, head_dim) in [(1, 32, 128), (37, 5, 24)] {
                let weight = self.stored(1, head_dim, format, 3.0)?;
                self.poison()?;
                let [mut a, mut b] = self.activations(rows, heads * head_dim, 8.0)?;
                self.cpu.rms_norm_heads(&mut a, &weight.on_cpu(), 1e-5)?;
                (self.tried).rms_norm_heads(&mut b, &weight.on_tried(), 1e-5)?;
                let name = format!(
                    "rms norm of heads, {rows} rows of {heads} of {head_dim}, {}",
                    format.name()
                );
                self.check(name, [&a, &b])?;
            }
        }
        Ok(())
    }

    fn rope(&mut self) -> Result<(), EngineError> {
        let plain = |head_dim, pairs, rotated| Rope {
            pairs,
            head_dim,
            ..Rope::plain(500_000.0, rotated)
        };
        for (heads, rope) in [
            (4, plain(64, RopePairs::HalfSplit, 64)),
            (3, plain(18, RopePairs::HalfSplit, 18)),
            (2, plain(128, RopePairs::HalfSplit, 128)),
            (2, plain(128, RopePairs::HalfSplit, 64)),
            (4, plain(64, RopePairs::Interleaved, 64)),
            (3, plain(18, RopePairs::Interleaved, 18)),
            // Pairs half a head apart, of which a quarter is turned.
            (2, Rope::proportional(1e6, 512, 0.25)),
        ] {
            let (head_dim, pairs, rotated) =
                (rope.head_dim, rope.pairs, 2 * rope.frequencies.len());
            let tables = [
                RopeTable::new(&rope, 4096, &self.cpu)?,
                RopeTable::new(&rope, 4096, &self.tried)?,
            ];
            self.poison()?;
            // Queries, and more keys, at other positions.
            let mut q = self.activations(3, heads * head_dim, 4.0)?;
            let mut k = self.activations(5, 2 * head_dim, 4.0)?;
            let places = [0, 1, 77, 4095, 2];
            for (side, ops) in [&self.cpu, &self.tried].into_iter().enumerate() {
                let positions = [ops.indices(places[2..].to_vec())?, ops.indices(places)?];
                let both = [(&mut q[side], &positions[0]), (&mut k[side], &positions[1])];
                ops.rope(both, &tables[side])?;
            }
            for (what, turned) in [("queries", q), ("keys", k)] {
                let name = match pairs {
                    RopePairs::HalfSplit => "rotary embedding",
                    RopePairs::Interleaved => "rotary embedding by neighbours",
                };
                let name = format!("{name} of {what}, {rotated} of {heads} heads of {head_dim}");
                self.check(name, [&turned[0], &turned[1]])?;
            }
        }
        Ok(())
    }

    fn matmuls(&mut self) -> Result<(), EngineError> {
        for format in Format::ALL {
            let tolerance = self.matmul_tolerance(format);
            for (rows, width, outputs) in [
                (1, 512, 300),
                (5, 256, 77),
                (33, 512, 130),
                (200, 256, 140),
                (300, 512, 600),
            ] {
                let weight = self.matmul(rows, [width, outputs], format)?;
                self.poison()?;
                let [a, b] = self.activations(rows, width, 2.0)?;
                let [mut expected, mut found] = self.stream(rows + 3, outputs, 20.0)?;
                self.cpu
                    .linear_add(&mut expected, 2, &a, &weight.on_cpu())?;
                self.tried
                    .linear_add(&mut found, 2, &b, &weight.on_tried())?;
                let name = format!("linear, added, {rows} rows, {}", format.name());
                self.check_within(tolerance, name, [&expected, &found])?;

                let bias = self.stored(1, outputs, Format::Bf16, 2.0)?;
                self.poison()?;
                let [a, b] = self.activations(rows, width, 2.0)?;
                let expected = (self.cpu).linear_biased(&a, &weight.on_cpu(), &bias.on_cpu())?;
                let found = (self.tried).linear_biased(&b, &weight.on_tried(), &bias.on_tried())?;
                let name = format!("linear, biased, {rows} rows, {}", format.name());
                self.check_within(tolerance, name, [&expected, &found])?;
            }
        }
        for format in Format::ALL {
            // Enough output tiles that the large tiles of large models are used.
            self.matmul(200, [256, 4200], format)?;
        }
        // A width that is no multiple of what is loaded at once.
        let weight = self.stored(19, 203, Format::F32, 1.0)?;
        self.poison()?;
        let [a, b] = self.activations(70, 203, 2.0)?;
        let expected = self.cpu.linear(&a, &weight.on_cpu())?;
        let found = self.tried.linear(&b, &weight.on_tried())?;
        self.check("linear, odd width".to_owned(), [&expected, &found])
    }

    /// Checks a matmul with weights of this width and so many outputs; for the device's own dtype also by kernels,
    /// where its library would be chosen.
    fn matmul(
        &mut self,
        rows: usize,
        [width, outputs]: [usize; 2],
        format: Format,
    ) -> Result<StoredWeight, EngineError> {
        let tolerance = self.matmul_tolerance(format);
        let weight = self.stored(outputs, width, format, 1.0)?;
        self.poison()?;
        let [a, b] = self.activations(rows, width, 2.0)?;
        let expected = self.cpu.linear(&a, &weight.on_cpu())?;
        let found = self.tried.linear(&b, &weight.on_tried())?;
        let name = format!("linear, {rows} x {width} x {outputs}, {}", format.name());
        self.check_within(tolerance, name.clone(), [&expected, &found])?;
        let number = self.tried.device().dtype();
        if let Some(gpu) = self.tried.device().gpu()
            && format == number.into()
        {
            gpu.fill(found.span(), 0xFF)?;
            let product = cuda::Matmul {
                out: found.span(),
                out_is_f32: false,
                x: b.span(),
                weights: weight.tried.span(),
                rows,
                outputs,
                out_stride: outputs,
                width,
                accumulate: false,
            };
            gpu.matmul_by_kernels(number, format, product)?;
            self.check_within(
                tolerance,
                format!("{name}, by kernels"),
                [&expected, &found],
            )?;
        }
        Ok(weight)
    }

    fn rows(&mut self) -> Result<(), EngineError> {
        self.poison()?;
        let [mut expected, mut found] = self.activations(33, 75, 30.0)?;
        let [a, b] = self.activations(33, 75, 4.0)?;
        self.cpu.silu_mul(&mut expected, &a)?;
        self.tried.silu_mul(&mut found, &b)?;
        self.check("gated activation".to_owned(), [&expected, &found])?;

        for width in [64, 33] {
            let [a, b] = self.activations(50, width, 4.0)?;
            let places = [49, 0, 7, 7, 31];
            let taken = [
                self.cpu.take_rows(&a, &self.cpu.indices(places)?)?,
                self.tried.take_rows(&b, &self.tried.indices(places)?)?,
            ];
            self.check(format!("rows taken, width {width}"), taken.each_ref())?;

            let mut kept = [
                self.cpu.persistent(9, width)?,
                self.tried.persistent(9, width)?,
            ];
            let [before, before_tried] = self.activations(9, width, 4.0)?;
            self.cpu.set_rows(&mut kept[0], 0, &before)?;
            self.tried.set_rows(&mut kept[1], 0, &before_tried)?;
            self.cpu.set_rows(&mut kept[0], 3, &taken[0])?;
            self.tried.set_rows(&mut kept[1], 3, &taken[1])?;
            self.check(format!("rows set, width {width}"), kept.each_ref())?;
        }
        Ok(())
    }
}

/// The largest difference, relative to the largest expected element; NaN where one of `found` is not finite.
fn distance(expected: &[f32], found: &[f32]) -> f64 {
    if expected.len() != found.len() || found.iter().any(|value| !value.is_finite()) {
        return f64::NAN;
    }
    let largest = expected
        .iter()
        .fold(0.0f32, |most, value| most.max(value.abs()));
    let pairs = expected.iter().zip(found);
    let worst = pairs.map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs());
    worst.fold(0.0, worse) / f64::from(largest.max(f32::MIN_POSITIVE))
}
