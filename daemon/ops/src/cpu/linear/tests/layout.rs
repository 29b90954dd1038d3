//! A row's products are the same bits whatever stands beside it: other rows, other threads, another layout of the weights.

use sluice_formats::interleaved;
use sluice_weights::InterleavedRows;

use super::*;

/// Which kernels compute, and from what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mode {
    pub(super) instructions: Instructions,
    pub(super) is_bf16: bool,
}

impl Mode {
    /// All kernels, for both kinds of products.
    fn all() -> impl Iterator<Item = Self> {
        Instructions::all().iter().flat_map(|&instructions| {
            [false, true].map(|is_bf16| Self {
                instructions,
                is_bf16,
            })
        })
    }

    fn device(self, threads: usize) -> Device {
        let device = Device::cpu(threads).unwrap();
        let device = device.with_instructions(self.instructions);
        match self.is_bf16 {
            true => device.with_bf16_products(),
            false => device,
        }
    }
}

/// Products of rows of `x` and weights, on so many threads.
fn products(mode: Mode, x: &[f32], weight: &Weight<'_>, threads: usize) -> Vec<f32> {
    let ops = Ops::new(mode.device(threads), Ledger::default()).unwrap();
    let rows = x.len() / weight.width;
    let x = ops.matrix(rows, weight.width, x, DType::F32).unwrap();
    ops.linear(&x, weight).unwrap().values().to_vec()
}

/// Compares with each row alone, with every other number of threads, and with the other layout.
pub(super) fn check_bits(mode: Mode, format: Format, rows: usize, width: usize, outputs: usize) {
    let x = numbers(rows * width, 1);
    let words = stored(outputs * width, format);
    let plain = weight(&words, outputs, width, format);
    let expected = products(mode, &x, &plain, 2);
    let same = |found: Vec<f32>, expected: &[f32], what: &str| {
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let case = format!("{mode:?} {format:?} {rows}x{width}x{outputs} {what}");
        assert!(bits(&found) == bits(expected), "{case}");
    };
    same(products(mode, &x, &plain, 3), &expected, "on three threads");
    let mut moved = words.clone();
    let bytes = &mut bytemuck::cast_slice_mut(&mut moved)[..format.bytes(outputs * width)];
    let interleaves = format.interleaves(width);
    if interleaves {
        interleaved::interleave(format, width, bytes, &mut Vec::new());
    }
    let beside = Weight {
        data: match interleaves {
            true => WeightData::Interleaved(InterleavedRows {
                bytes,
                first_row: 0,
            }),
            false => plain.data,
        },
        ..plain
    };
    same(products(mode, &x, &beside, 2), &expected, "interleaved");
    let (row_last, last) = (&x[(rows - 1) * width..], &expected[(rows - 1) * outputs..]);
    for weight in [&plain, &beside] {
        same(products(mode, row_last, weight, 2), last, "a row alone");
        // Rows that begin and end anywhere.
        let (from, to) = (outputs / 3, outputs - outputs / 5);
        let some = weight.rows(from, to);
        same(
            products(mode, row_last, &some, 2),
            &last[from..to],
            "some outputs",
        );
    }
    let (mut exact, mut found) = (vec![0.0; outputs * width], vec![0.0; outputs * width]);
    plain.dequantize(&mut exact);
    beside.dequantize(&mut found);
    same(found, &exact, "dequantized");
}

/// All formats, and with products of bf16 those that are rounded to it.
fn modes_and_formats() -> impl Iterator<Item = (Mode, Format)> {
    Mode::all().flat_map(|mode| {
        let formats = Format::ALL.into_iter();
        let formats = formats.filter(move |format| !mode.is_bf16 || format.block_len() == 1);
        formats.map(move |format| (mode, format))
    })
}

#[test]
fn bits_depend_on_nothing_beside_them() {
    for (mode, format) in modes_and_formats() {
        // Blocks of the depth that are whole, and one that isn't.
        let widths = match format.block_len() {
            256 => [256, 768],
            _ => [96, 544],
        };
        for width in widths {
            for (rows, outputs) in [
                (1, 3),
                (3, 1),
                (2, 40),
                (5, 48),
                (7, 64),
                (13, 70),
                (40, 33),
            ] {
                check_bits(mode, format, rows, width, outputs);
            }
        }
    }
}

#[test]
fn bits_are_those_among_thousands_of_rows() {
    for (mode, format) in modes_and_formats() {
        if matches!(format, Format::Bf16 | Format::Q8_0 | Format::Q4K) {
            check_bits(mode, format, 4096, 256, 48);
        }
    }
}
