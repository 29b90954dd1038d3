use sluice_formats::{DType, Format, noise::Noise};
use sluice_machine::Instructions;

use super::*;
use crate::{
    Ops,
    cpu::{
        byte_kernel::{BLOCK, ROWS},
        packed::{LOOSE_LEN, Packing},
        scratch::{PACKED_LEN, SCRATCH_LEN},
    },
    device::Device,
    ledger::Ledger,
};

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let noise = Noise::new(seed);
    (0..count)
        .map(|i| noise.uniform(0, i as u64, 0) as f32 - 0.5)
        .collect()
}

fn stored(values: &[f32], format: Format) -> Vec<u8> {
    let mut bytes = vec![0; format.bytes(values.len())];
    quantize::store(format, values, &mut bytes);
    bytes
}

/// A row's bytes, and its blocks' scales, as every kernel rounds them.
fn rounded(row: &[f32]) -> (Vec<i8>, Vec<f32>) {
    let (mut bytes, mut scales) = (Vec::new(), Vec::new());
    for block in row.chunks_exact(BLOCK) {
        let size = block.iter().fold(0.0, |size: f32, x| size.max(x.abs()));
        let inverse = if size > 0.0 { 127.0 / size } else { 0.0 };
        bytes.extend(block.iter().map(|x| (x * inverse).round_ties_even() as i8));
        scales.push(size / 127.0);
    }
    (bytes, scales)
}

/// Products of rounded rows, by every kernel that runs here, beside plain sums.
fn check(x: &[f32], bytes: &[u8], width: usize, format: Format) {
    let groups = format.groups().expect("formats with groups are asked for");
    let rows = x.len() / width;
    let columns = bytes.len() / format.bytes(width);
    let weight = Weight {
        format,
        rows: columns,
        width,
        data: WeightData::Host(bytes),
        weights_version: 0,
    };
    let mut widened = vec![0.0; columns * width];
    format.dequantize(bytes, &mut widened);
    let x_rounded: Vec<f64> = (x.chunks_exact(width))
        .flat_map(|row| {
            let (bytes, scales) = rounded(row);
            let numbers = bytes.into_iter().enumerate();
            let numbers = numbers.map(|(k, byte)| f64::from(byte) * f64::from(scales[k / BLOCK]));
            numbers.collect::<Vec<_>>()
        })
        .collect();
    let stride = columns + 3;
    let ops = Ops::new(Device::cpu(1).unwrap(), Ledger::default()).unwrap();
    let x = ops.matrix(rows, width, x, DType::F32).unwrap();
    let (mut scratch, mut loose) = (vec![0.0; SCRATCH_LEN], [0.0; LOOSE_LEN]);
    let mut packed = vec![0.0; PACKED_LEN];
    for kernel in ByteKernel::all() {
        for adds in [false, true] {
            let mut out = vec![1.0; rows * stride];
            let target = TileOutput {
                start: out.as_mut_ptr(),
                stride,
                columns,
                adds,
            };
            let products = QuantizedGemm {
                kernel,
                groups,
                interleaved: None,
            };
            let packing = Packing::bytes(Instructions::best(), products.rounded_panels());
            for piece in packing.pieces(0..rows, width, PACKED_LEN) {
                let x = piece.pack(&x, &mut packed, &mut loose);
                let target = target.at_row(x.panels.rows().start);
                // SAFETY: the output has all rows and columns, and nobody else has it.
                unsafe { products.gemm(&x, &weight, 0..columns, target, &mut scratch) };
            }
            for (index, found) in out.into_iter().enumerate() {
                let (row, column) = (index / stride, index % stride);
                if column >= columns {
                    assert!(found == 1.0, "written beyond the columns");
                    continue;
                }
                let x = &x_rounded[row * width..][..width];
                let products = x.iter().zip(&widened[column * width..][..width]);
                let products = products.map(|(x, w)| x * f64::from(*w));
                let (sum, sizes) = products.fold((0.0, 0.0), |(sum, sizes), product| {
                    (sum + product, sizes + product.abs())
                });
                let expected = sum + f64::from(u8::from(adds));
                assert!(
                    (f64::from(found) - expected).abs() <= 3e-6 * (sizes + 1.0),
                    "{} of {rows} rows at {row}, {column}: {found} for {expected}",
                    format.name()
                );
            }
        }
    }
}

fn formats() -> impl Iterator<Item = Format> {
    (Format::ALL.into_iter()).filter(|format| format.groups().is_some())
}

/// For every tile, some beside each other, parts of panels, and more than a block of the depth.
#[test]
fn kernels_equal_a_plain_sum() {
    for format in formats() {
        for rows in 1..=2 * ROWS + 1 {
            for (blocks, columns) in [(1, 1), (1, 33), (3, COLUMNS_MAX + 13)] {
                let width = 256 * blocks;
                let weights = stored(&numbers(columns * width, 2), format);
                check(&numbers(rows * width, 1), &weights, width, format);
            }
        }
    }
}

/// Blocks that end before a block of the depth does.
#[test]
fn kernels_equal_a_plain_sum_of_few_groups() {
    for format in formats().filter(|format| format.block_len() == BLOCK) {
        for rows in [1, 5] {
            let weights = stored(&numbers(20 * 3 * BLOCK, 2), format);
            check(&numbers(rows * 3 * BLOCK, 1), &weights, 3 * BLOCK, format);
        }
    }
}

/// What is added up in 16 bits fits there even so.
#[test]
fn the_largest_products_fit() {
    const WIDTH: usize = 512;
    const COLUMNS: usize = 17;
    for format in formats() {
        let group = format.groups().map_or(1, |groups| groups.len);
        // One at the other end, for scales and minima to span.
        let weights: Vec<f32> = (0..COLUMNS * WIDTH)
            .map(|k| if k % group == 0 { -1.0 } else { 1.0 })
            .collect();
        let mut weights = stored(&weights, format);
        if format == Format::Q8_0 {
            for block in weights.chunks_exact_mut(format.block_bytes()) {
                // -128, which rounding never comes to.
                block[2..].fill(0x80);
            }
        }
        for x in [1.0, -1.0] {
            for rows in [1, ROWS] {
                check(&vec![x; rows * WIDTH], &weights, WIDTH, format);
            }
        }
    }
}

#[test]
fn rows_are_rounded_alike() {
    let mut x = numbers(4 * BLOCK, 3);
    x[BLOCK..2 * BLOCK].fill(0.0);
    // Halves, which are rounded to even.
    let halves = (0..BLOCK).map(|k| k as f32 - 15.5);
    x.splice(2 * BLOCK..3 * BLOCK, halves);
    x[2 * BLOCK] = 127.0;
    let (expected, expected_scales) = rounded(&x);
    for kernel in ByteKernel::all() {
        for group in [16, BLOCK] {
            let groups = x.len() / group;
            let mut bytes = vec![0; x.len()];
            let mut numbers = vec![0.0; 2 * groups * kernel.lanes];
            // SAFETY: the CPU runs the kernel.
            unsafe { (kernel.round)(&x, &mut bytes, &mut numbers, 1, kernel.lanes, group) };
            assert_eq!(bytes, expected);
            for (index, numbers) in numbers.chunks_exact(2 * kernel.lanes).enumerate() {
                let scale = expected_scales[index * group / BLOCK];
                let sum: i32 = (expected[index * group..][..group].iter())
                    .map(|&byte| i32::from(byte))
                    .sum();
                assert_eq!(numbers[1], scale);
                assert_eq!(numbers[kernel.lanes + 1], scale * sum as f32);
            }
        }
    }
}
