//! Products of every format against plain sums, on several threads and in parts.

mod bf16;
mod grouped;
mod layout;
mod tiles;

use std::sync::{Arc, atomic::AtomicBool};

use proptest::prelude::*;
use safetensors::{Dtype, tensor::TensorView};
use sluice_checkpoint::{
    Checkpoint, Source,
    compression::{
        CompressOptions, CompressionMethod, Container, Lossless, Scheme, TrellisTarget, compress,
    },
};
use sluice_codec::{
    ColumnsEncoder,
    container::{CHUNK_ROWS, Chunk},
};

use sluice_formats::{DType, Format, noise::Noise};
use sluice_machine::{InstructionSet, Instructions};
use sluice_weights::{CompressedRows, CompressedTensor};

use super::{grid::ROWS_MIN, *};
use crate::{
    CommonMemory, Ops, ROUNDED_ROWS_ERROR,
    cpu::{
        microkernel::{RowPanels, tiles::model::Computing},
        scratch::PACKED_LEN,
    },
    device::Device,
    ledger::{Ledger, SharedBudget},
};

/// Rows that are more than a few.
const MANY: usize = 128;

fn ops() -> Ops {
    Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap()
}

/// The best operations, and all those with products of bf16.
fn with_bf16() -> Vec<Ops> {
    let bf16 = Instructions::all().iter().map(|&instructions| {
        let device = Device::cpu(2).unwrap().with_instructions(instructions);
        Ops::new(device.with_bf16_products(), Ledger::default()).unwrap()
    });
    [ops()].into_iter().chain(bf16).collect()
}

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let noise = Noise::new(seed);
    (0..count)
        .map(|i| noise.uniform(0, i as u64, 0) as f32 - 0.5)
        .collect()
}

/// Random weights as `format` stores them, in words so that they are aligned.
fn stored(count: usize, format: Format) -> Vec<u64> {
    let len = format.bytes(count);
    let mut words = vec![0; len.div_ceil(size_of::<u64>())];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    quantize::store(format, &numbers(count, 2), &mut bytes[..len]);
    words
}

fn weight(words: &[u64], rows: usize, width: usize, format: Format) -> Weight<'_> {
    Weight {
        format,
        rows,
        width,
        data: WeightData::Host(&bytemuck::cast_slice(words)[..format.bytes(rows * width)]),
        weights_version: 0,
    }
}

/// Against a plain sum in `f64`, for shapes around the kernel's tile sizes.
fn check(rows: usize, width: usize, outputs: usize, format: Format) {
    check_on(&ops(), rows, width, outputs, format);
}

fn check_on(ops: &Ops, rows: usize, width: usize, outputs: usize, format: Format) {
    let mut x = ops.pool.take(rows, width, DType::F32).unwrap();
    x.values_mut().copy_from_slice(&numbers(rows * width, 1));
    let words = stored(outputs * width, format);
    let weight = weight(&words, outputs, width, format);
    let mut exact = vec![0.0; outputs * width];
    weight.dequantize(&mut exact);
    let out = ops.linear(&x, &weight).unwrap();
    for row in 0..rows {
        for column in 0..outputs {
            let expected: f64 = (0..width)
                .map(|k| f64::from(x.row(row)[k]) * f64::from(exact[column * width + k]))
                .sum();
            let found = f64::from(out.row(row)[column]);
            // Bytes of `x` are up to a 250th of the largest in a block away.
            let tolerance = if ops.rounds_rows(format) { 2e-3 } else { 1e-5 };
            assert!(
                (found - expected).abs() <= tolerance * (width as f64).sqrt(),
                "{} {rows}x{width}x{outputs} at {row},{column}: {found} for {expected}",
                format.name()
            );
        }
    }
}

/// A device computes with the instructions that it is told, and they decide which formats are multiplied in integers.
#[test]
fn every_set_of_instructions_computes() {
    const WIDTH: usize = 512;
    const OUTPUTS: usize = 40;
    for &instructions in Instructions::all() {
        let device = Device::cpu(2).unwrap().with_instructions(instructions);
        let ops = Ops::new(device, Ledger::default()).unwrap();
        let rounds = instructions.has(InstructionSet::Avx2);
        assert_eq!(ops.rounds_rows(Format::Q4K), rounds);
        assert_eq!(ops.rounds_rows(Format::Q8_0), rounds);
        for rows in [1, 7] {
            for format in [Format::F32, Format::Q8_0, Format::Q4K] {
                check_on(&ops, rows, WIDTH, OUTPUTS, format);
            }
        }
    }
}

/// Matrices of several formats and sizes, one of them without rows.
#[test]
fn matmuls_in_one_go_equal_each_by_itself_whatever_the_threads() {
    let shapes = [
        (Format::Q8_0, 70),
        (Format::F32, 0),
        (Format::Q4_1, 200),
        (Format::Bf16, 33),
    ];
    let width = 96;
    let stored = shapes.map(|(format, outputs)| stored(outputs * width, format));
    let weights: [_; 4] = std::array::from_fn(|which| {
        let (format, outputs) = shapes[which];
        weight(&stored[which], outputs, width, format)
    });
    for rows in [1, 4, MANY] {
        let values = numbers(rows * width, 1);
        let mut before = None;
        for threads in [1, 3] {
            let ops = Ops::new(Device::cpu(threads).unwrap(), Ledger::default()).unwrap();
            let x = ops.matrix(rows, width, &values, DType::F32).unwrap();
            let all = ops.linear_each(&x, weights.each_ref()).unwrap();
            let all = all.map(|out| out.values().to_vec());
            for (weight, found) in weights.iter().zip(&all) {
                assert_eq!(ops.linear(&x, weight).unwrap().values(), found);
            }
            assert!(before.is_none_or(|before| before == all));
            before = Some(all);
        }
    }
}

/// Matmuls with the same scratch that meet on the same threads: none reads what another has packed.
#[test]
fn matmuls_that_meet_are_each_by_itself() {
    const WIDTH: usize = 256;
    let device = Device::cpu(2).unwrap();
    let common = CommonMemory::new(&device, &SharedBudget::new(u64::MAX, 0)).unwrap();
    let words = stored(64 * WIDTH, Format::Q8_0);
    let product = |seed: u64| {
        let ops = Ops::beside(device.clone(), Ledger::default(), &common).unwrap();
        let x = ops
            .matrix(MANY, WIDTH, &numbers(MANY * WIDTH, seed), DType::F32)
            .unwrap();
        let weight = weight(&words, 64, WIDTH, Format::Q8_0);
        let multiply = || ops.linear(&x, &weight).unwrap().values().to_vec();
        let first = multiply();
        assert!((0..300).all(|_| multiply() == first));
        first
    };
    let alone = [1, 2, 3].map(product);
    let together = std::thread::scope(|scope| {
        let product = &product;
        let threads = [1, 2, 3].map(|seed| scope.spawn(move || product(seed)));
        threads.map(|thread| thread.join().unwrap())
    });
    assert!(alone == together);
}

/// `x · weight` against a plain sum in `f64`.
fn check_transposed(rows: usize, width: usize, outputs: usize, weight: &Weight<'_>) {
    let ops = ops();
    let x = numbers(rows * outputs, 3);
    let x = ops.matrix(rows, outputs, &x, DType::F32).unwrap();
    let mut exact = vec![0.0; outputs * width];
    weight.dequantize(&mut exact);
    let mut out = ops.linear_transposed(&x, weight).unwrap();
    for round in 1..=2 {
        for row in 0..rows {
            for column in 0..width {
                let terms = (0..outputs)
                    .map(|k| f64::from(x.row(row)[k]) * f64::from(exact[k * width + column]));
                let expected = f64::from(round) * terms.sum::<f64>();
                let found = f64::from(out.row(row)[column]);
                assert!(
                    (found - expected).abs() <= 2e-5 * (outputs as f64).sqrt(),
                    "{rows}x{outputs}x{width} at {row},{column}: {found} for {expected}"
                );
            }
        }
        ops.linear_transposed_add(&mut out, &x, weight).unwrap();
    }
}

#[test]
fn gradients_go_back_through_weights_of_every_kind() {
    for format in [Format::F32, Format::Bf16, Format::Q8_0, Format::Q4K] {
        let block = format.block_len();
        for (rows, width, outputs) in [(1, 1, 1), (3, 2, 40), (37, 3, 300), (130, 9, 17)] {
            let width = width * block.max(7);
            let words = stored(outputs * width, format);
            check_transposed(
                rows,
                width,
                outputs,
                &weight(&words, outputs, width, format),
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]
    #[test]
    fn equals_a_plain_sum(
        rows in 1usize..40,
        width in 1usize..90,
        outputs in 1usize..150,
        format in proptest::sample::select(&Format::ALL[..]),
    ) {
        // Up to three blocks where blocks are longer than the width.
        let width = match format.block_len() {
            1 => width,
            block => block * (1 + width % 3),
        };
        check(rows, width, outputs, format);
    }
}

#[test]
fn shapes_around_tiles_and_blocks_of_the_depth() {
    for rows in [11, 12, 13, 24, 25] {
        for (width, outputs) in [(DEPTH - 1, 31), (DEPTH, 33), (DEPTH + 1, 64)] {
            check(rows, width, outputs, Format::F32);
        }
    }
}

#[test]
fn few_rows_and_more() {
    for format in Format::ALL {
        for rows in [ROWS_MIN, MANY + 1] {
            check(rows, 256, 70, format);
        }
    }
}

/// The error of matmuls in integers: no more than rounding `x` to bytes causes.
#[test]
fn rounded_rows_are_near_the_exact_ones() {
    const WIDTH: usize = 2048;
    const OUTPUTS: usize = 200;
    let ops = ops();
    for format in Format::ALL {
        let words = stored(OUTPUTS * WIDTH, format);
        let weight = weight(&words, OUTPUTS, WIDTH, format);
        let mut exact = vec![0.0; OUTPUTS * WIDTH];
        weight.dequantize(&mut exact);
        for rows in [1, 7, 40] {
            let mut x = ops.pool.take(rows, WIDTH, DType::F32).unwrap();
            x.values_mut().copy_from_slice(&numbers(rows * WIDTH, 1));
            let out = ops.linear(&x, &weight).unwrap();
            let (mut errors, mut squares) = (0.0, 0.0);
            for row in 0..rows {
                for (found, weights) in out.row(row).iter().zip(exact.chunks_exact(WIDTH)) {
                    let products = x.row(row).iter().zip(weights);
                    let expected: f64 = products.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    errors += (f64::from(*found) - expected).powi(2);
                    squares += expected * expected;
                }
            }
            let error = (errors / squares).sqrt();
            println!("{} {rows}: {error:.2e}", format.name());
            let bound = match ops.rounds_rows(format) {
                true => ROUNDED_ROWS_ERROR,
                false => 1e-6,
            };
            assert!(error < bound, "{} in {rows} rows: {error}", format.name());
        }
    }
}

#[test]
fn what_is_no_number_stays_none() {
    let ops = ops();
    for format in Format::ALL {
        for value in [f32::NAN, f32::INFINITY] {
            let mut x = ops.pool.take(2, 256, DType::F32).unwrap();
            x.values_mut().copy_from_slice(&numbers(512, 1));
            x.row_mut(1)[77] = value;
            let words = stored(40 * 256, format);
            let out = ops.linear(&x, &weight(&words, 40, 256, format)).unwrap();
            assert!(out.row(0).iter().all(|value| value.is_finite()));
            assert!(out.row(1).iter().all(|value| !value.is_finite()));
        }
    }
}

#[test]
fn more_than_one_tile() {
    check(3, 4096, 300, Format::Bf16);
    check(MANY, 4096, 300, Format::Q4K);
    // More than are packed at a time.
    for format in [Format::Bf16, Format::Q8_0] {
        check(PACKED_LEN / DEPTH + 1, 512, 20, format);
    }
}

#[test]
fn a_row_does_not_depend_on_those_beside_it() {
    const WIDTH: usize = 1024;
    let ops = ops();
    let values = numbers((MANY + 1) * WIDTH, 1);
    for format in Format::ALL {
        let words = stored(50 * WIDTH, format);
        let weight = weight(&words, 50, WIDTH, format);
        let first = |rows: usize| {
            let mut x = ops.pool.take(rows, WIDTH, DType::F32).unwrap();
            x.values_mut().copy_from_slice(&values[..rows * WIDTH]);
            ops.linear(&x, &weight).unwrap().row(0).to_vec()
        };
        let alone = first(1);
        for rows in [2, 17, MANY, MANY + 1] {
            for (found, expected) in first(rows).iter().zip(&alone) {
                assert!(
                    (found - expected).abs() <= 1e-5 * (WIDTH as f32).sqrt(),
                    "{} in {rows} rows: {found} for {expected}",
                    format.name()
                );
            }
        }
    }
}

/// The tensor's name in a container: a layer's, since other tensors are not trellis-quantized.
const NAME: &str = "layers.0.w";

/// A matrix, in a container of its own.
struct InContainer {
    tensor: Arc<CompressedTensor>,
    bytes: Vec<u8>,
}

impl InContainer {
    fn new(bytes: &[u8], shape: [usize; 2], how: CompressionMethod, tile: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tensor = TensorView::new(Dtype::BF16, shape.to_vec(), bytes).unwrap();
        let source = folder.path().join("model.safetensors");
        safetensors::serialize_to_file([(NAME, tensor)], None, &source).unwrap();
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        let target = folder.path().join("model.sluice");
        let options = CompressOptions {
            method: how,
            tile,
            tensors: Default::default(),
            all: true,
            threads: 1,
            replace: false,
        };
        let source = Source::Folder(folder.path().to_owned());
        let never = AtomicBool::new(false);
        compress(&source, &target, &options, &never, &mut |_, _| {}).unwrap();
        let container = Container::open(&target).unwrap();
        let record = &container.header().tensors[0];
        assert_ne!(record.scheme(), Some(Scheme::Plain));
        let bytes = std::fs::read(&target).unwrap();
        let place = record.offset as usize..(record.offset + record.length) as usize;
        let checkpoint = Checkpoint::open(&Source::Folder(target)).unwrap();
        Self {
            tensor: checkpoint.compressed(NAME).unwrap(),
            bytes: bytes[place].to_vec(),
        }
    }

    /// What was made of this weight.
    fn weight<'a>(&'a self, uncoded: &Weight<'a>) -> Weight<'a> {
        Weight {
            format: self.tensor.format(),
            data: WeightData::Compressed(CompressedRows {
                tensor: &self.tensor,
                bytes: &self.bytes,
                base: 0,
                first_row: 0,
            }),
            ..*uncoded
        }
    }
}

#[test]
fn compressed_weights_come_to_the_same_bits() {
    let all = with_bf16();
    // Whole vectors in rows that tiles cross, rows that are none, and such as can't lie beside each other; several chunks.
    for (width, outputs, tile) in [
        (256, 600, 512),
        (416, 300, 128),
        (200, 520, 256),
        (201, 400, 256),
    ] {
        let mut values = numbers(width * outputs, 3);
        // Values that the dictionary lacks, a few and many of them.
        for (at, value) in values.iter_mut().enumerate() {
            if at % 97 == 0 || at / 3000 % 5 == 1 {
                *value *= f32::powi(2.0, at as i32 % 90 - 60);
            }
        }
        let mut plain = vec![0_u64; width * outputs / 4];
        Format::Bf16.quantize(&values, bytemuck::cast_slice_mut(&mut plain));
        let uncoded = weight(&plain, outputs, width, Format::Bf16);
        for how in [
            CompressionMethod::Lossless(Lossless::Huffman),
            CompressionMethod::Lossless(Lossless::Dictionary),
            CompressionMethod::Trellis(TrellisTarget::Bits(4.0)),
        ] {
            let bytes = bytemuck::cast_slice(&plain);
            let container = InContainer::new(bytes, [outputs, width], how, tile);
            let compressed = container.weight(&uncoded);
            // What it is decoded to: the same, or near it.
            let mut decoded = vec![0.0; outputs * width];
            compressed.dequantize(&mut decoded);
            let decoded = Weight {
                format: Format::F32,
                data: WeightData::Host(bytemuck::cast_slice(&decoded)),
                ..uncoded
            };
            let expected = match how {
                CompressionMethod::Lossless(_) => uncoded,
                CompressionMethod::Trellis(_) | CompressionMethod::Mix(_) => decoded,
            };
            for ops in &all {
                same_bits(ops, &expected, &compressed);
            }
            let _tiles = Computing::new();
            same_bits(all.last().unwrap(), &expected, &compressed);
        }
    }
}

/// The scratch has too little space for 16 more of their rows, for many rows of `x` or for any.
#[test]
fn the_widest_compressed_weights_come_to_the_same_bits() {
    for width in [32_000, 45_000] {
        wide_weights_come_to_the_same_bits(width, 20);
    }
}

fn wide_weights_come_to_the_same_bits(width: usize, outputs: usize) {
    let mut plain = vec![0_u64; width * outputs / 4];
    let bytes = bytemuck::cast_slice_mut(&mut plain);
    Format::Bf16.quantize(&numbers(width * outputs, 3), bytes);
    let uncoded = weight(&plain, outputs, width, Format::Bf16);
    let how = CompressionMethod::Lossless(Lossless::Dictionary);
    let container = InContainer::new(bytemuck::cast_slice(&plain), [outputs, width], how, 256);
    for ops in with_bf16() {
        for rows in [1, 17] {
            let mut x = ops.pool.take(rows, width, DType::F32).unwrap();
            x.values_mut().copy_from_slice(&numbers(rows * width, 1));
            let both = [uncoded, container.weight(&uncoded)];
            let both = both.map(|weight| ops.linear(&x, &weight).unwrap());
            assert_eq!(both[0].values(), both[1].values(), "{rows} rows");
        }
    }
}

/// All outputs and some of them, of one row and of many.
fn same_bits(ops: &Ops, expected: &Weight<'_>, compressed: &Weight<'_>) {
    let width = expected.width;
    for rows in [1, 2, 17, MANY + 1] {
        let mut x = ops.pool.take(rows, width, DType::F32).unwrap();
        x.values_mut().copy_from_slice(&numbers(rows * width, 1));
        let all = [expected, compressed].map(|weight| ops.linear(&x, weight).unwrap());
        assert_eq!(all[0].values(), all[1].values(), "{rows} rows of {width}");
        let part = [expected, compressed].map(|weight| {
            let mut out = ops.linear(&x, &weight.rows(7, 290)).unwrap();
            ops.linear_add(&mut out, 0, &x, &weight.rows(9, 292))
                .unwrap();
            out
        });
        assert_eq!(part[0].values(), part[1].values(), "{rows} rows of {width}");
    }
}

/// Chunks of columns with steps of their own, some of them zero.
fn in_columns(rows: usize, width: usize) -> (CompressedTensor, Vec<u8>) {
    let values = numbers(rows * width, 4);
    let (mut chunks, mut bytes) = (Vec::new(), Vec::new());
    for first in (0..rows).step_by(CHUNK_ROWS) {
        let rows = first..rows.min(first + CHUNK_ROWS);
        let sizes = vec![1.0; rows.len()];
        let mut encoder = ColumnsEncoder::new(DType::Bf16, width, &sizes, 0.1).unwrap();
        let mut decoded = vec![0.0; rows.len()];
        for column in 0..width {
            let values: Vec<f32> = rows
                .clone()
                .map(|row| values[row * width + column])
                .collect();
            let step = [0.0, 0.05, 0.1, 0.4][column % 4];
            encoder.quantize_column(column, &values, step, &mut decoded);
        }
        let encoded = encoder.finish().unwrap();
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        chunks.push(Chunk {
            rows,
            offset: bytes.len() as u64,
            layout: encoded.layout,
        });
        bytes.extend(encoded.bytes);
    }
    let name = "columns".to_owned();
    let tensor = CompressedTensor::new(name, Scheme::Columns, Format::F32, width, 0, chunks);
    (tensor, bytes)
}

#[test]
fn columns_come_to_the_same_bits() {
    let all = with_bf16();
    // Rows of whole vectors and others, of several chunks, and more of the depth than is multiplied at a time.
    for (width, outputs) in [(256, 600), (416, 300), (200, 520), (1000, 292)] {
        let (tensor, bytes) = in_columns(outputs, width);
        tensor.check(&bytes, 0, &(0..outputs)).unwrap();
        let compressed = Weight {
            format: Format::F32,
            rows: outputs,
            width,
            data: WeightData::Compressed(CompressedRows {
                tensor: &tensor,
                bytes: &bytes,
                base: 0,
                first_row: 0,
            }),
            weights_version: 0,
        };
        let mut decoded = vec![0.0; outputs * width];
        compressed.dequantize(&mut decoded);
        let expected = Weight {
            data: WeightData::Host(bytemuck::cast_slice(&decoded)),
            ..compressed
        };
        for ops in &all {
            same_bits(ops, &expected, &compressed);
            // Chunks begin in the middle of what others begin with.
            same_bits_of_rows(ops, &expected, &compressed, 290);
        }
        let _tiles = Computing::new();
        same_bits(all.last().unwrap(), &expected, &compressed);
    }
}

fn same_bits_of_rows(ops: &Ops, expected: &Weight<'_>, compressed: &Weight<'_>, end: usize) {
    for rows in [1, MANY] {
        let mut x = ops.pool.take(rows, expected.width, DType::F32).unwrap();
        x.values_mut()
            .copy_from_slice(&numbers(rows * expected.width, 1));
        for first in [1, 100, 255] {
            let some = [expected, compressed]
                .map(|weight| ops.linear(&x, &weight.rows(first, end)).unwrap());
            assert_eq!(some[0].values(), some[1].values());
        }
    }
}

#[test]
fn tiles_of_columns_are_whole_chunks() {
    let (tensor, bytes) = in_columns(1100, 32);
    let all = Weight {
        format: Format::F32,
        rows: 1100,
        width: 32,
        data: WeightData::Compressed(CompressedRows {
            tensor: &tensor,
            bytes: &bytes,
            base: 0,
            first_row: 0,
        }),
        weights_version: 0,
    };
    for (first, last) in [(0, 1100), (10, 1000), (255, 256), (256, 512)] {
        let weight = all.rows(first, last);
        let kernel = Microkernel::of(Instructions::best());
        let grid = Grid::new(
            &RowPanels::new(0..5, 5),
            &weight,
            5 * weight.rows,
            2,
            kernel,
        );
        let mut end = 0;
        for number in 0..grid.len() {
            let (rows, columns) = grid.tile(number);
            assert!(rows.rows() == (0..5) && columns.start == end && !columns.is_empty());
            assert!(end == 0 || (first + end).is_multiple_of(CHUNK_ROWS));
            end = columns.end;
        }
        assert_eq!(end, weight.rows);
    }
}
