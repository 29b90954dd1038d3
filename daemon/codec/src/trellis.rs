//! Trellis-coded quantization (TCQ): elements become levels of a step, entropy-coded to a chosen bit rate.
//!
//! A uniform step with an entropy coder behind it is within a quarter of a bit of the rate-distortion bound, and
//! reaches any rate (Gish and Pierce, "Asymptotically efficient quantizing"). Formats with a fixed number of bits,
//! scaled block by block, fit their scales to outliers instead. Most of the quarter is due to the shape of the cells:
//! they are cubes, where spheres would lose 1.53 dB less. A trellis gets closer to spheres (`viterbi`): two quantizers
//! with half as many levels take turns, by a rule that depends on the elements before (`marks`), and the encoder chooses
//! the levels of a tile together. One table serves both, because their levels are each other's negatives (`levels`). Three
//! more things help: a level's error is weighed against the bits that it takes, each level is the mean of the elements
//! that took it, and the step is searched for which the whole has the requested size or error (`fit`).
//!
//! On Gaussian values, at 3, 3.5, 4 and 4.5 bits, it reaches 17.3, 20.3, 23.2 and 26.2 dB; a single quantizer reached
//! 15.9, 19.0, 22.0 and 25.1, and `q4_0` reaches 21.3 at 4.5 bits. The rate-distortion bound is 0.8 dB away: 0.3 of
//! them are tile lengths, row steps and the table, and more states would hardly improve the other 0.5 (`viterbi`).
//!
//! It is made for two to five bits. There are 128 symbols: a step is at least a sixteenth of a standard deviation,
//! which takes six bits. With smaller steps, more and more elements would lie beyond the equidistant levels.

mod elements;
mod fit;
mod levels;
mod marks;
mod viterbi;

use rayon::prelude::*;

use sluice_formats::DType;

use crate::{
    encode::{EncodeError, Encoded, EncodedPiece, MatrixShape},
    huffman::{self, Codes},
    layout::{CODE_LENGTHS_BYTES, MatrixLayout, Scheme, TRELLIS_LENGTHS_BYTES},
};
use fit::{FittedSteps, SampleRows, SymbolSums};

pub(crate) use elements::scale_marked;
pub(crate) use fit::{BIT_COST, ROW_EXPONENT};
#[cfg(test)]
pub(crate) use levels::mean_part;
pub(crate) use levels::{
    LINEAR_MAX, MEANS, MIDDLE, PARTS, SECOND, SYMBOLS, TrellisLevels, ZERO, candidate, point,
    row_byte, row_ratio,
};
pub(crate) use marks::mark;
pub(crate) use viterbi::{SymbolCosts, ViterbiSearch};

/// What a quantization aims at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TrellisTarget {
    /// Bits per weight, including tables, steps, offsets and lengths.
    Bits(f64),
    /// Root mean square error relative to the elements' root mean square: 0.1 is 20 dB.
    Error(f64),
}

/// A trellis-quantized matrix with its size and error.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedMatrix {
    /// The compressed matrix.
    pub encoded: Encoded,
    /// Its size, as in [`TrellisTarget::Bits`].
    pub bits: f64,
    /// Its error, as in [`TrellisTarget::Error`].
    pub error: f64,
}

/// Quantizes the chunks of a larger matrix with one step, which is found from a sample. Each chunk has a Huffman code
/// of its own, and as many bits as its elements need.
#[derive(Clone, Debug)]
pub struct Quantizer {
    tile: usize,
    fitted: FittedSteps,
}

impl Quantizer {
    /// Fits step and costs to a sample, so that matrices of this shape come as near to the target as possible. The
    /// sample is whole rows, or the same number of elements of each of many rows.
    pub fn fit(
        (rows, width): (usize, usize),
        (part, sample): (usize, &[f32]),
        target: TrellisTarget,
        tile: usize,
    ) -> Result<Self, EncodeError> {
        Self::fit_by((rows, width), (part, sample), target, tile, ROW_EXPONENT)
    }

    fn fit_by(
        (rows, width): (usize, usize),
        (part, sample): (usize, &[f32]),
        target: TrellisTarget,
        tile: usize,
        exponent: f64,
    ) -> Result<Self, EncodeError> {
        // Any dtype gives the same layout: trellis-quantized weights have no raw bits.
        let number = DType::F32;
        let numbers = MatrixShape::new(number, rows, width, tile)?.elements;
        // With codes of length 0 the layout's size is exactly the overhead.
        let beside = MatrixLayout::new(Scheme::Trellis, number, rows, width, tile, 0, 0)?;
        // A tile's codes are rounded up to whole units, by half a unit on average.
        let padding = beside.tiles() * (beside.unit_bytes() * 8 - 1) / 2;
        let beside_bits = (beside.bytes() * 8 + padding) as f64 / numbers.max(1) as f64;
        let sample = SampleRows::new(part, tile, sample, exponent);
        Ok(Self {
            tile,
            fitted: FittedSteps::new(&sample, target, beside_bits),
        })
    }

    /// Quantizes a matrix. `dtype` is the dtype that its elements had; decompression doesn't need it.
    pub fn quantize(
        &self,
        dtype: DType,
        rows: usize,
        width: usize,
        values: &[f32],
    ) -> Result<QuantizedMatrix, EncodeError> {
        let shape = MatrixShape::new(dtype, rows, width, self.tile)?;
        if values.len() != shape.elements {
            return Err(EncodeError::Length {
                expected: shape.elements,
                found: values.len(),
            });
        }
        // The first such element, not any, so that the error doesn't depend on threads.
        if let Some(at) = values.par_iter().position_first(|value| !value.is_finite()) {
            return Err(EncodeError::NotFinite(at));
        }
        let matrix = SampleRows::new(width, self.tile, values, self.fitted.exponent);
        let mut fitted = self.fitted.clone();
        // A chunk may be much larger or smaller in magnitude than the sample: the step must suit this one, or all
        // elements would be zero or overflow.
        fitted.step = matrix.possible(fitted.step);
        let (part, mut steps) = matrix.steps(&fitted);
        // A matrix of width 0 has rows without a size, but each row has a step byte.
        steps.resize(rows, 0);
        // Choosing symbols takes nearly all the time, so tiles are shared among threads by whole strips, as `assemble`
        // needs them.
        let tiles: Vec<usize> = (0..matrix.tiles()).collect();
        let chosen: Vec<(Vec<u8>, SymbolSums)> = tiles
            .par_chunks(shape.piece_elements() / self.tile)
            .map_init(ViterbiSearch::new, |search, tiles| {
                let mut symbols = Vec::with_capacity(tiles.len() * self.tile);
                let mut sums = SymbolSums::default();
                for tile in tiles {
                    matrix.choose(
                        *tile,
                        (part, &steps),
                        &fitted,
                        search,
                        &mut symbols,
                        &mut sums,
                    );
                }
                (symbols, sums)
            })
            .collect();
        // Floating-point sums are added in the order of pieces, so the result doesn't depend on the number of threads.
        let sums = chosen.iter().map(|(_, sums)| sums);
        let sums = sums.fold(SymbolSums::default(), |all, sums| all.add(sums));
        let lengths = huffman::code_lengths(&sums.counts);
        let codes = Codes::new(&lengths).expect("lengths of a complete code were just made");
        let pieces: Vec<EncodedPiece> = chosen
            .par_iter()
            .map(|(symbols, _)| shape.huffman(&codes, symbols))
            .collect();
        // The means of the elements that chose a level minimize the error after the choice (Lloyd's condition).
        let means = sums.means();
        let mut table = huffman::pack_lengths(&lengths)[..TRELLIS_LENGTHS_BYTES].to_vec();
        table.extend(means.iter().map(|mean| *mean as u8));
        table.extend(part.to_le_bytes());
        let mut encoded = shape.assemble(Scheme::Trellis, &table, &pieces)?;
        let places = encoded.layout.steps();
        encoded.bytes[places].copy_from_slice(&steps);
        Ok(QuantizedMatrix {
            bits: encoded.bytes.len() as f64 * 8. / shape.elements.max(1) as f64,
            error: sums.error(means),
            encoded,
        })
    }
}

/// Quantizes a matrix so that its size or error is as near to the target as possible.
pub fn quantize(
    dtype: DType,
    rows: usize,
    width: usize,
    values: &[f32],
    target: TrellisTarget,
    tile: usize,
) -> Result<QuantizedMatrix, EncodeError> {
    let quantizer = Quantizer::fit((rows, width), (width, values), target, tile)?;
    quantizer.quantize(dtype, rows, width, values)
}

/// Parses a table: code lengths, and levels from means and step. `None` if it is too short.
pub(crate) fn table(bytes: &[u8]) -> Option<([u8; CODE_LENGTHS_BYTES], TrellisLevels)> {
    let (lengths, rest) = bytes.split_first_chunk::<TRELLIS_LENGTHS_BYTES>()?;
    let (means, part) = rest.split_first_chunk::<MEANS>()?;
    let part = f32::from_le_bytes(*part.first_chunk()?);
    let mut all = [0; CODE_LENGTHS_BYTES];
    all[..TRELLIS_LENGTHS_BYTES].copy_from_slice(lengths);
    Some((all, TrellisLevels::new(means.map(|mean| mean as i8), part)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CompressedMatrix;

    /// Rows of different sizes, by a factor of `e^spread` at one standard deviation.
    fn weights(rows: usize, width: usize, spread: f64, student: bool) -> Vec<f32> {
        let mut state = 7_u64;
        let mut uniform = move || {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            let bits = state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
            (bits as f64 + 0.5) / (1_u64 << 53) as f64
        };
        let mut gaussian = move || {
            let radius = (-2. * uniform().ln()).sqrt();
            radius * (std::f64::consts::TAU * uniform()).cos()
        };
        let mut values = Vec::new();
        for _ in 0..rows {
            let scale = 0.02 * (spread * gaussian()).exp();
            values.extend((0..width).map(|_| {
                let value = gaussian();
                if !student {
                    return (scale * value) as f32;
                }
                let squares: f64 = (0..5).map(|_| gaussian().powi(2)).sum();
                (scale * value / (squares / 5.).sqrt()) as f32
            }));
        }
        values
    }

    fn decibels(values: &[f32], found: &[f32]) -> f64 {
        let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
        let lost = square(&mut values.iter().zip(found).map(|(a, b)| f64::from(a - b)));
        10. * (square(&mut values.iter().map(|value| f64::from(*value))) / lost).log10()
    }

    fn back(quantized: &QuantizedMatrix) -> Vec<f32> {
        let layout = quantized.encoded.layout.clone();
        let mut out = vec![-1.; layout.elements()];
        let rows = layout.rows();
        let compressed = CompressedMatrix::new(layout, &quantized.encoded.bytes).unwrap();
        compressed.check().unwrap();
        compressed.decompress_rows_f32(0..rows, &mut out).unwrap();
        out
    }

    /// Blocks of 32 elements, four bits each, by a scale of sixteen bits that the largest of them gets to minus eight.
    fn q4_0(values: &[f32]) -> Vec<f32> {
        let block = |block: &[f32]| {
            let extreme = block.iter().fold(0_f32, |extreme, value| {
                if value.abs() > extreme.abs() {
                    *value
                } else {
                    extreme
                }
            });
            let scale = extreme / -8.;
            let inverse = if scale == 0. { 0. } else { 1. / scale };
            let kept = half::f16::from_f32(scale).to_f32();
            let code = |value: f32| (value * inverse + 8.5).floor().clamp(0., 15.) - 8.;
            block
                .iter()
                .map(|value| code(*value) * kept)
                .collect::<Vec<_>>()
        };
        values.chunks(32).flat_map(block).collect()
    }

    /// `cargo test -p sluice-codec --release decibels -- --nocapture` shows them all.
    #[test]
    fn decibels_are_those_of_a_bit_more_in_blocks() {
        let (rows, width) = (512, 4096);
        for (name, spread, student) in [
            ("gaussian", 0., false),
            ("student-t 5", 0., true),
            ("gaussian, rows differ", 0.5, false),
            ("student-t 5, rows differ", 0.5, true),
        ] {
            let values = weights(rows, width, spread, student);
            let blocks = decibels(&values, &q4_0(&values));
            println!("{name}: q4_0 {blocks:.2} dB at 4.5 bits");
            for bits in [3., 3.5, 4., 4.5] {
                let target = TrellisTarget::Bits(bits);
                let quantized = quantize(DType::Bf16, rows, width, &values, target, 256).unwrap();

                let found = decibels(&values, &back(&quantized));
                println!("    {found:.2} dB at {:.3} bits", quantized.bits);
                assert!((quantized.bits / bits - 1.).abs() < 0.003);
                assert!((found + 20. * quantized.error.log10()).abs() < 0.01);
                assert!(found > 17.1 + 5.95 * (bits - 3.));
                assert!(found > blocks + 6. * (bits - 4.) + 1.8);
            }
        }
    }

    #[test]
    fn more_bits_lose_less() {
        for (spread, student) in [(0., false), (0.5, true)] {
            let values = weights(256, 1024, spread, student);
            let mut before = 0.;
            for bits in [1.5, 2., 3., 4., 5., 5.5, 6.] {
                let target = TrellisTarget::Bits(bits);
                let quantized = quantize(DType::Bf16, 256, 1024, &values, target, 512).unwrap();

                let found = decibels(&values, &back(&quantized));
                println!("{found:.2} dB at {:.3} bits for {bits}", quantized.bits);
                // With rows of many sizes, what is far off costs at six bits what the others gain.
                assert!(
                    found > before - 0.25 && quantized.bits < bits + 0.05,
                    "{bits}"
                );
                before = found;
            }
            // Nothing breaks where no step takes as much.
            for bits in [7., 16.] {
                let target = TrellisTarget::Bits(bits);
                let quantized = quantize(DType::Bf16, 256, 1024, &values, target, 512).unwrap();
                assert!(
                    decibels(&values, &back(&quantized)) > before - 0.5,
                    "{bits}"
                );
            }
        }
    }

    #[test]
    fn rows_that_no_sample_has_are_near_what_they_were() {
        let (rows, width) = (64, 1024);
        let values = weights(rows, width, 0., false);
        for size in [0., 1e-6, 1e6] {
            let sample: Vec<f32> = values.iter().map(|value| value * size).collect();
            let target = TrellisTarget::Bits(4.);
            let quantizer = Quantizer::fit((rows, width), (width, &sample), target, 256).unwrap();

            let quantized = quantizer
                .quantize(DType::Bf16, rows, width, &values)
                .unwrap();
            let found = decibels(&values, &back(&quantized));
            assert!(
                found > if size > 1. { -0.1 } else { 20. },
                "{size}: {found}"
            );
        }
    }

    #[test]
    fn steps_between_equal_and_equally_many_lose_least() {
        let (rows, width) = (256, 1024);
        for (spread, student) in [(0., false), (0.3, false), (0.5, false), (0.5, true)] {
            let values = weights(rows, width, spread, student);
            let by = |exponent| {
                let target = TrellisTarget::Bits(3.5);
                let all = (width, &values[..]);
                let found = Quantizer::fit_by((rows, width), all, target, 256, exponent);
                let found = found.unwrap().quantize(DType::Bf16, rows, width, &values);
                let found = found.unwrap();
                -20. * found.error.log10() - 6.02 * (found.bits - 3.5)
            };
            let (one, between, each) = (by(0.), by(ROW_EXPONENT), by(1.));
            println!("spread {spread}: {one:.2}, {between:.2}, {each:.2} dB at 3.5 bits");

            assert!(between > one - 0.02 && between > each - 0.02);
            assert!(spread < 0.4 || between > one + 0.2 && between > each + 0.5);
        }
    }

    #[test]
    fn an_error_is_met() {
        let values = weights(300, 700, 0.4, true);
        for error in [0.3, 0.1, 0.04] {
            let target = TrellisTarget::Error(error);
            let quantized = quantize(DType::F32, 300, 700, &values, target, 128).unwrap();

            let found = 10_f64.powf(decibels(&values, &back(&quantized)) / -20.);
            assert!((found / error - 1.).abs() < 0.01, "{found}");
        }
    }

    #[test]
    fn what_is_far_from_all_others_is_near_what_it_was() {
        let mut values = weights(64, 1024, 0., false);
        let far = [(5, 0.4), (5 * 1024, -3.), (9 * 1024 + 77, 20.)];
        for (at, value) in far {
            values[at] = value;
        }
        let quantized =
            quantize(DType::F32, 64, 1024, &values, TrellisTarget::Bits(4.), 256).unwrap();

        let found = back(&quantized);
        for (at, value) in far {
            assert!((found[at] / value - 1.).abs() < 0.1, "{}", found[at]);
        }
        assert!(decibels(&values[10 * 1024..], &found[10 * 1024..]) > 22.5);
    }

    #[test]
    fn odd_matrices_are_compressed_too() {
        for (rows, width) in [(0, 0), (0, 5), (5, 0), (1, 1), (1, 300), (300, 1), (7, 129)] {
            for value in [0., 1., -2e-40, 3e38] {
                let values = vec![value; rows * width];
                for target in [
                    TrellisTarget::Bits(3.),
                    TrellisTarget::Bits(0.),
                    TrellisTarget::Bits(f64::NAN),
                    TrellisTarget::Error(0.),
                    TrellisTarget::Error(-1.),
                ] {
                    let found = quantize(DType::F32, rows, width, &values, target, 512).unwrap();
                    let near = back(&found).iter().all(|v| v.is_finite());
                    assert!(
                        near,
                        "{rows} x {width} of {value}: {target:?} {:?}",
                        back(&found)
                    );
                }
            }
        }
        let refused = quantize(
            DType::F32,
            1,
            3,
            &[0., 1., f32::NAN],
            TrellisTarget::Bits(3.),
            128,
        );
        assert_eq!(refused, Err(EncodeError::NotFinite(2)));
        assert!(quantize(DType::F32, 1, 3, &[0., 1.], TrellisTarget::Bits(3.), 128).is_err());
    }
}
