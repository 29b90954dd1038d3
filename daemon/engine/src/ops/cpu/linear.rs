//! `linear`: one multiply for every format. A tile of weights is decoded into a thread's
//! scratch and multiplied from there by a well-kept `f32` kernel; weights that are `f32`
//! already are multiplied where they lie. A format is a way to decode, and nothing else.

use std::slice;

use gemm::Parallelism;
use rayon::prelude::*;

use super::{Cpu, scratch::SCRATCH_LEN};
use crate::{
    ops::Activation,
    residency::{Data, Weight},
};

/// Weights in a tile, at most: 2 MiB when widened, so that a tile stays in the cache that
/// the rows stream past, and packing the rows anew for each tile stays small beside the
/// multiply.
const TILE_WEIGHTS: usize = 1 << 19;

/// Rows up to which packing weights for the kernel costs more than it gains. Tiles are then
/// [`SQUARE`] weight rows, small enough for a core's own cache, and are multiplied in squares.
const FEW_ROWS: usize = 128;

/// Rows and columns of an output that the kernel computes as dot products where its inputs
/// lie, without packing them.
const SQUARE: usize = 16;

/// Products of a single row that wait to be added to what is there.
const DOTS: usize = 256;
/// Tiles for each thread where each costs something to begin with: so few that this is little, and enough that no thread waits
/// long for another.
const TILES: usize = 4;

impl Cpu {
    /// `x · weightᵀ` into `out`, or added to it.
    pub(in crate::ops) fn multiply(
        &self,
        x: &Activation,
        weight: &Weight<'_>,
        out: &mut [f32],
        adds: bool,
    ) {
        self.run(|| self.multiply_here(x, weight, out, adds));
    }

    /// `x · weightᵀ` into rows of `out` that begin `stride` numbers apart.
    pub(in crate::ops) fn multiply_apart(
        &self,
        x: &Activation,
        weight: &Weight<'_>,
        out: &mut [f32],
        stride: usize,
    ) {
        self.run(|| self.multiply_to(x, weight, out, stride, false));
    }

    /// The same on the device's threads, which must be the caller's.
    pub(in crate::ops) fn multiply_here(
        &self,
        x: &Activation,
        weight: &Weight<'_>,
        out: &mut [f32],
        adds: bool,
    ) {
        assert_eq!(out.len(), x.len() * weight.rows);
        self.multiply_to(x, weight, out, weight.rows, adds);
    }

    fn multiply_to(
        &self,
        x: &Activation,
        weight: &Weight<'_>,
        out: &mut [f32],
        stride: usize,
        adds: bool,
    ) {
        assert_eq!(
            x.width(),
            weight.width,
            "the widths of rows and weights differ"
        );
        if x.is_empty() || weight.rows == 0 {
            return;
        }
        // Every row ends inside, and before the next begins.
        assert!(weight.rows <= stride && (x.len() - 1) * stride + weight.rows <= out.len());
        let Tiling { tile, piece } = Tiling::new(x.len(), weight, self.device.threads());
        let tiles = weight.rows.div_ceil(tile);
        let out = Columns {
            start: out.as_mut_ptr(),
            stride,
            columns: weight.rows,
            rows: x.len(),
            adds,
        };
        (0..tiles).into_par_iter().for_each(|number| {
            let from = number * tile;
            let to = weight.rows.min(from + tile);
            let part = weight.rows(from, to);
            // Dot products decode the weights anew for every row of input: two rows took 1.4 to 2.1 times as long as by
            // widening once, four rows 2.3 to 3.8 times (a core of an EPYC, 576 outputs of 1536, `q8_0` to `q4_k`). That way
            // four rows take but a tenth to a quarter more than one.
            if x.len() == 1 && part.has_dots() {
                return dot_tile(x, &part, &out, from);
            }
            if let Some(values) = part.as_f32() {
                return multiply_tile(x, values, &out, from);
            }
            self.scratch.with(|scratch| {
                part.widen_by(piece, scratch, |row, values| {
                    multiply_tile(x, values, &out, from + row);
                });
            });
        });
    }
}

/// How a matrix of weights is shared out.
struct Tiling {
    /// Rows that a thread takes at a time.
    tile: usize,
    /// Rows of them that are widened at a time: they fit a thread's scratch.
    piece: usize,
}

impl Tiling {
    /// For so many rows of input. Few of them want pieces of a square, which are tiles, unless those cost something to begin with;
    /// more want as many as fit, but few enough that every thread gets some; whole kernel tiles of 16.
    fn new(rows: usize, weight: &Weight<'_>, threads: usize) -> Self {
        let fitting = SCRATCH_LEN / weight.width.max(1);
        let several = weight
            .rows
            .div_ceil(threads * TILES)
            .next_multiple_of(SQUARE);
        if rows == 1 && weight.has_dots() {
            return Self {
                tile: several,
                piece: several,
            };
        }
        let piece = if rows <= FEW_ROWS {
            SQUARE
        } else {
            let fitting = TILE_WEIGHTS / weight.width.max(1);
            let share = weight.rows.div_ceil(threads);
            fitting.min(share).next_multiple_of(SQUARE)
        };
        let piece = piece.min(fitting.max(1));
        let tile = match weight.data {
            Data::Coded(_) => several.max(piece),
            _ => piece,
        };
        Self { tile, piece }
    }
}

/// The output matrix, of which each tile writes columns of its own.
struct Columns {
    start: *mut f32,
    /// From the beginning of a row to that of the next.
    stride: usize,
    /// Numbers in a row.
    columns: usize,
    rows: usize,
    /// Whether to add to what is there.
    adds: bool,
}

// SAFETY: tiles are disjoint rows of weights, so that `multiply_tile` and `dot_tile`, which alone write, write disjoint
// columns.
unsafe impl Sync for Columns {}

/// `x · tileᵀ` into the columns from `column` on.
fn multiply_tile(x: &Activation, tile: &[f32], out: &Columns, column: usize) {
    let depth = x.width();
    let columns = tile.len() / depth;
    assert!(column + columns <= out.columns && x.len() == out.rows);
    let x = x.values();
    let (square_columns, square_rows) = if out.rows <= FEW_ROWS {
        (SQUARE, SQUARE)
    } else {
        (columns, out.rows)
    };
    for from_column in (0..columns).step_by(square_columns) {
        let columns = square_columns.min(columns - from_column);
        for from_row in (0..out.rows).step_by(square_rows) {
            let rows = square_rows.min(out.rows - from_row);
            // SAFETY: the kernel reads `columns` rows of `tile` from `from_column` on and
            // `rows` rows of `x` from `from_row` on, of `depth` numbers each, which both
            // hold. It writes at `start + row * stride + column + j` with `row` below
            // `out.rows` and `j` below the tile's columns, which the assertion keeps inside
            // the output's; no other tile writes there. Strides are numbers of elements that
            // fit `isize` since the slices exist.
            unsafe {
                gemm::gemm(
                    columns,
                    rows,
                    depth,
                    out.start.add(from_row * out.stride + column + from_column),
                    out.stride as isize,
                    1,
                    out.adds,
                    tile.as_ptr().add(from_column * depth),
                    1,
                    depth as isize,
                    x.as_ptr().add(from_row * depth),
                    depth as isize,
                    1,
                    1.0,
                    1.0,
                    false,
                    false,
                    false,
                    Parallelism::None,
                );
            }
        }
    }
}

/// The single row of `x` times the tile's rows, into the columns from `column` on.
fn dot_tile(x: &Activation, tile: &Weight<'_>, out: &Columns, column: usize) {
    assert!(column + tile.rows <= out.columns && out.rows == 1);
    // SAFETY: these columns are inside the only row, and no other tile's.
    let out_tile = unsafe { slice::from_raw_parts_mut(out.start.add(column), tile.rows) };
    if !out.adds {
        return tile.dot(x.values(), out_tile);
    }
    let mut products = [0.0; DOTS];
    for (from, out) in (0..tile.rows).step_by(DOTS).zip(out_tile.chunks_mut(DOTS)) {
        let products = &mut products[..out.len()];
        tile.rows(from, from + out.len()).dot(x.values(), products);
        for (out, product) in out.iter_mut().zip(products) {
            *out += *product;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicBool};

    use proptest::prelude::*;
    use safetensors::{Dtype, tensor::TensorView};
    use sluice_cuda::Number;

    use super::*;
    use crate::{
        checkpoint::{
            Checkpoint, CodedTensor, Source,
            coded::{Compression, Container, How, Lossless, Scheme, Target, compress},
        },
        device::Device,
        format::Format,
        ledger::Ledger,
        ops::{Noise, Ops},
        residency::CodedRows,
    };

    fn ops() -> Ops {
        Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap()
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
        format.store(&numbers(count, 2), &mut bytes[..len]);
        words
    }

    fn weight(words: &[u64], rows: usize, width: usize, format: Format) -> Weight<'_> {
        Weight {
            format,
            rows,
            width,
            data: Data::Host(&bytemuck::cast_slice(words)[..format.bytes(rows * width)]),
            epoch: 0,
        }
    }

    /// Against a plain sum in `f64`, for shapes around the kernel's tile sizes.
    fn check(rows: usize, width: usize, outputs: usize, format: Format) {
        let ops = ops();
        let mut x = ops.pool.take(rows, width, Number::F32).unwrap();
        x.values_mut().copy_from_slice(&numbers(rows * width, 1));
        let words = stored(outputs * width, format);
        let weight = weight(&words, outputs, width, format);
        let mut exact = vec![0.0; outputs * width];
        weight.widen(&mut exact);
        let out = ops.linear(&x, &weight).unwrap();
        for row in 0..rows {
            for column in 0..outputs {
                let expected: f64 = (0..width)
                    .map(|k| f64::from(x.row(row)[k]) * f64::from(exact[column * width + k]))
                    .sum();
                let found = f64::from(out.row(row)[column]);
                assert!(
                    (found - expected).abs() <= 1e-5 * (width as f64).sqrt(),
                    "{} {rows}x{width}x{outputs} at {row},{column}: {found} for {expected}",
                    format.name()
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
    fn shapes_of_a_packed_pass() {
        for rows in [64, 74, 88] {
            for (width, outputs) in [(64, 64), (64, 160), (160, 64), (64, 256)] {
                check(rows, width, outputs, Format::F32);
            }
        }
    }

    #[test]
    fn few_rows_and_more() {
        for format in Format::ALL {
            for rows in [FEW_ROWS, FEW_ROWS + 1] {
                check(rows, 256, 70, format);
            }
        }
    }

    #[test]
    fn more_than_one_tile() {
        check(3, 4096, 300, Format::Bf16);
        check(FEW_ROWS + 1, 4096, 300, Format::Q4K);
    }

    #[test]
    fn a_row_does_not_depend_on_those_beside_it() {
        const WIDTH: usize = 1024;
        let ops = ops();
        let values = numbers((FEW_ROWS + 1) * WIDTH, 1);
        for format in Format::ALL {
            let words = stored(50 * WIDTH, format);
            let weight = weight(&words, 50, WIDTH, format);
            let first = |rows: usize| {
                let mut x = ops.pool.take(rows, WIDTH, Number::F32).unwrap();
                x.values_mut().copy_from_slice(&values[..rows * WIDTH]);
                ops.linear(&x, &weight).unwrap().row(0).to_vec()
            };
            let alone = first(1);
            for rows in [2, SQUARE + 1, FEW_ROWS, FEW_ROWS + 1] {
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

    /// What the matrix in a container is called: of a layer, or it wouldn't be coded to a rate.
    const NAME: &str = "layers.0.w";

    /// A matrix, in a container of its own.
    struct InContainer {
        tensor: Arc<CodedTensor>,
        bytes: Vec<u8>,
    }

    impl InContainer {
        fn new(bytes: &[u8], shape: [usize; 2], how: How, tile: usize) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let tensor = TensorView::new(Dtype::BF16, shape.to_vec(), bytes).unwrap();
            let source = folder.path().join("model.safetensors");
            safetensors::serialize_to_file([(NAME, tensor)], None, &source).unwrap();
            std::fs::write(folder.path().join("config.json"), "{}").unwrap();
            let target = folder.path().join("model.sluice");
            let options = Compression {
                how,
                tile,
                keep: Vec::new(),
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
                tensor: checkpoint.coded(NAME).unwrap(),
                bytes: bytes[place].to_vec(),
            }
        }
    }

    #[test]
    fn coded_weights_come_to_the_same_bits() {
        let ops = ops();
        // Whole vectors in rows that tiles cross, and rows that are none; several chunks.
        for (width, outputs, tile) in [(256, 600, 512), (416, 300, 128), (200, 520, 256)] {
            let mut values = numbers(width * outputs, 3);
            // Numbers that a palette lacks, a few and many of them.
            for (at, value) in values.iter_mut().enumerate() {
                if at % 97 == 0 || at / 3000 % 5 == 1 {
                    *value *= f32::powi(2.0, at as i32 % 90 - 60);
                }
            }
            let mut plain = vec![0_u64; width * outputs / 4];
            Format::Bf16.store(&values, bytemuck::cast_slice_mut(&mut plain));
            let uncoded = weight(&plain, outputs, width, Format::Bf16);
            for how in [
                How::Lossless(Lossless::Huffman),
                How::Lossless(Lossless::Palette),
                How::Rate(Target::Bits(4.0)),
            ] {
                let bytes = bytemuck::cast_slice(&plain);
                let container = InContainer::new(bytes, [outputs, width], how, tile);
                let coded = Weight {
                    data: Data::Coded(CodedRows {
                        tensor: &container.tensor,
                        bytes: &container.bytes,
                        base: 0,
                        first_row: 0,
                    }),
                    ..uncoded
                };
                // What it is decoded to: the same, or near it.
                let mut decoded = vec![0.0; outputs * width];
                coded.widen(&mut decoded);
                let decoded = Weight {
                    format: Format::F32,
                    data: Data::Host(bytemuck::cast_slice(&decoded)),
                    ..uncoded
                };
                let expected = match how {
                    How::Lossless(_) => uncoded,
                    How::Rate(_) => decoded,
                };
                for rows in [1, 2, SQUARE + 1, FEW_ROWS + 1] {
                    let mut x = ops.pool.take(rows, width, Number::F32).unwrap();
                    x.values_mut().copy_from_slice(&numbers(rows * width, 1));
                    let all = [expected, coded].map(|weight| ops.linear(&x, &weight).unwrap());
                    assert_eq!(all[0].values(), all[1].values(), "{rows} rows of {width}");
                    let part = [expected, coded].map(|weight| {
                        let mut out = ops.linear(&x, &weight.rows(7, 290)).unwrap();
                        ops.linear_add(&mut out, 0, &x, &weight.rows(9, 292))
                            .unwrap();
                        out
                    });
                    assert_eq!(part[0].values(), part[1].values(), "{rows} rows of {width}");
                }
            }
        }
    }
}
