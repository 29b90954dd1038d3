//! Numbers as multiples of a step, coded to a chosen rate.
//!
//! A uniform step with an entropy coder behind it is within a quarter of a bit of what any quantizer can do, and says any
//! rate; formats of a fixed number of bits, scaled block by block, fit their scales to outliers instead (Gish and Pierce,
//! "Asymptotically efficient quantizing", has the theory). Three things bring it closer: a number takes the smaller of two
//! multiples if that costs less in bits than it loses in error, each multiple stands for the mean of the numbers that took
//! it, and a step is found by which the whole has the size, or the error, that was asked for.

use rayon::prelude::*;

use crate::{
    encode::{EncodeError, Encoded, Piece, Shape, add},
    huffman::{self, Codes},
    layout::{STRIP_TILES, Scheme},
    number::Number,
    path::Path,
};

/// Largest multiple of a step.
const CODE_MAX: f32 = 127.;
/// Symbol of zero.
const ZERO: usize = 128;
/// What a bit may cost, in squared steps. At high rates a bit more halves the step: a quarter of the error, a twelfth of a
/// squared step, from which this follows: ln 2 / 6.
const BIT_COST: f32 = 0.1155;
/// By which power of its root mean square a row's step grows. One step for all rows loses least if each row has a code of
/// its own; with one code for all, steps as the rows' sizes give shorter codes. In between is best: where rows differ by a
/// factor of 1.65 (one standard deviation), half a dB better than one step, and a whole one better than steps as the sizes.
const ROW_EXPONENT: f64 = 0.5;
/// How far from its target a search may end, in bits a number or in octaves of error.
const TOLERANCE: f64 = 0.004;
/// Tiles by which a step is found at first.
const SAMPLE_TILES: usize = 1024;
/// Steps that are tried, by a sample and by everything.
const TRIALS: [usize; 2] = [24, 6];

/// What a rate is chosen by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// Bits a number, of all but the table, which large matrices don't notice.
    Bits(f64),
    /// Root of the squared error, as a share of that of the numbers: 0.1 are 20 dB.
    Error(f64),
}

/// A rate-coded matrix, and how it compares with what it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// The matrix.
    pub encoded: Encoded,
    /// What it takes, as in [`Target::Bits`].
    pub bits: f64,
    /// What it loses, as in [`Target::Error`].
    pub error: f64,
    /// Numbers beyond 127 steps, which is what they became.
    pub clamped: usize,
}

/// Codes a matrix so that it has a size or an error as near as can be to what is asked for. `number` is what its numbers
/// were, which decoding doesn't need.
pub fn quantize(
    number: Number,
    rows: usize,
    width: usize,
    values: &[f32],
    target: Target,
    tile: usize,
) -> Result<Quantized, EncodeError> {
    let shape = Shape::new(number, rows, width, tile)?;
    quantize_by(shape, values, target, ROW_EXPONENT)
}

/// Symbols of one row as the numbers they stand for.
pub(crate) fn widen(path: Path, levels: &[f32; 256], step: f32, symbols: &[u8], out: &mut [f32]) {
    assert_eq!(symbols.len(), out.len());
    let done = match path {
        Path::Portable => 0,
        #[cfg(target_arch = "x86_64")]
        // SAFETY: there is no such path on a processor without these features.
        Path::Avx2(_) => unsafe { widen_avx2(levels, step, symbols, out) },
    };
    for (out, symbol) in out[done..].iter_mut().zip(&symbols[done..]) {
        *out = levels[usize::from(*symbol)] * step;
    }
}

/// As many whole vectors as there are; says how many numbers that was.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn widen_avx2(levels: &[f32; 256], step: f32, symbols: &[u8], out: &mut [f32]) -> usize {
    use std::arch::x86_64::*;

    let step = _mm256_set1_ps(step);
    let (out, _) = out.as_chunks_mut::<8>();
    let (symbols, _) = symbols.as_chunks::<8>();
    for (out, symbols) in out.iter_mut().zip(symbols) {
        let symbols = _mm_cvtsi64_si128(i64::from_le_bytes(*symbols));
        let indices = _mm256_cvtepu8_epi32(symbols);
        // SAFETY: a byte is an index into 256 levels.
        let levels = unsafe { _mm256_i32gather_ps::<4>(levels.as_ptr(), indices) };
        // SAFETY: as many numbers as it writes, at any address.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_mul_ps(levels, step)) };
    }
    out.len() * 8
}

fn quantize_by(
    shape: Shape,
    values: &[f32],
    target: Target,
    row_exponent: f64,
) -> Result<Quantized, EncodeError> {
    if values.len() != shape.numbers {
        return Err(EncodeError::Length {
            expected: shape.numbers,
            found: values.len(),
        });
    }
    if let Some(at) = values.par_iter().position_first(|value| !value.is_finite()) {
        return Err(EncodeError::NotFinite(at));
    }
    let matrix = Matrix::new(shape, values, row_exponent);
    let tiles = shape.numbers.div_ceil(shape.tile);
    let mut best = Trial::first(matrix.first_step(target));
    if matrix.squares > 0. {
        if tiles > 2 * SAMPLE_TILES {
            let sample: Vec<usize> = (0..SAMPLE_TILES)
                .map(|i| i * tiles / SAMPLE_TILES)
                .collect();
            best = matrix.search(&sample, best, target, TRIALS[0]);
            best = matrix.search(&(0..tiles).collect::<Vec<_>>(), best, target, TRIALS[1]);
        } else {
            best = matrix.search(&(0..tiles).collect::<Vec<_>>(), best, target, TRIALS[0]);
        }
    }
    matrix.write(&best)
}

/// A matrix that is being quantized.
struct Matrix<'a> {
    shape: Shape,
    values: &'a [f32],
    rows: Vec<Row>,
    /// Sum of all squares.
    squares: f64,
}

/// What a row's step depends on.
#[derive(Clone, Copy)]
struct Row {
    largest: f32,
    /// Its step as a multiple of that of the matrix.
    scale: f64,
}

/// A step, and what came of it.
#[derive(Clone)]
struct Trial {
    /// Base-2 logarithm of the step.
    step: f64,
    /// What each symbol's bits cost, in squared steps.
    costs: [f32; 256],
    levels: [f32; 256],
    bits: f64,
    error: f64,
}

/// Sums by symbol, each number weighted by its squared step.
#[derive(Clone)]
struct Sums {
    counts: [u64; 256],
    weights: [f64; 256],
    multiples: [f64; 256],
    squares: f64,
    clamped: usize,
}

impl<'a> Matrix<'a> {
    fn new(shape: Shape, values: &'a [f32], exponent: f64) -> Self {
        let squares = |row: &[f32]| row.iter().map(|value| f64::from(*value).powi(2)).sum();
        let width = shape.width.max(1);
        let sums: Vec<f64> = values.par_chunks(width).map(squares).collect();
        let squares: f64 = sums.iter().sum();
        let mut rows: Vec<Row> = values
            .par_chunks(width)
            .zip(&sums)
            .map(|(row, sum)| Row {
                largest: row
                    .iter()
                    .fold(0., |largest, value| value.abs().max(largest)),
                scale: if *sum > 0. {
                    (sum / squares * shape.rows as f64).powf(exponent / 2.)
                } else {
                    1.
                },
            })
            .collect();
        // Rows without numbers have steps too.
        rows.resize(
            shape.rows,
            Row {
                largest: 0.,
                scale: 1.,
            },
        );
        Self {
            shape,
            values,
            rows,
            squares,
        }
    }

    /// A step that is about right, by what Gaussian numbers would need.
    fn first_step(&self, target: Target) -> f64 {
        let bits = match target {
            Target::Bits(bits) => bits.clamp(0.1, 16.),
            Target::Error(error) => -error.clamp(1e-5, 1.).log2() + 0.25,
        };
        self.possible(self.deviation().log2() + 2.05 - bits)
    }

    fn deviation(&self) -> f64 {
        (self.squares / self.shape.numbers.max(1) as f64).sqrt()
    }

    /// The nearest step by which numbers have a multiple: neither all of them none, nor any of them more than 32 bits.
    fn possible(&self, step: f64) -> f64 {
        let deviation = self.deviation().max(f64::from(f32::MIN_POSITIVE)).log2();
        step.max(deviation - 20.)
            .min(deviation + 13.)
            .clamp(-149., 126.)
    }

    /// Tries steps until one meets the target, or there are enough of them. All but the first begin with what the last one
    /// found.
    fn search(&self, tiles: &[usize], first: Trial, target: Target, trials: usize) -> Trial {
        let mut best: Option<(f64, Trial)> = None;
        let (mut low, mut high) = (f64::NEG_INFINITY, f64::INFINITY);
        let mut trial = first;
        for _ in 0..trials {
            trial = self.fit(tiles, &trial);
            // Rises with the step, by about one an octave.
            let beyond = match target {
                Target::Bits(bits) => bits - trial.bits,
                Target::Error(error) => (trial.error / error).log2(),
            };
            if best.as_ref().is_none_or(|(least, _)| beyond.abs() < *least) {
                best = Some((beyond.abs(), trial.clone()));
            }
            if beyond.abs() < TOLERANCE || high - low < 1e-6 {
                break;
            }
            if beyond > 0. {
                high = trial.step;
            } else {
                low = trial.step;
            }
            let next = trial.step - beyond.clamp(-4., 4.);
            let next = if next > low && next < high {
                next
            } else {
                (low + high) / 2.
            };
            trial.step = self.possible(next);
        }
        best.expect("there is a trial at least").1
    }

    /// Costs, levels and what comes of them, for one step and a share of the tiles.
    fn fit(&self, tiles: &[usize], from: &Trial) -> Trial {
        let mut trial = from.clone();
        let steps = self.steps(trial.step);
        let rounds = if from.bits == 0. { 3 } else { 1 };
        for _ in 0..rounds {
            let sums = self.sums(tiles, &steps, &trial);
            trial.learn(&sums);
        }
        let sums = self.sums(tiles, &steps, &trial);
        let codes = Codes::new(&huffman::code_lengths(&sums.counts)).expect("complete");
        let unit = (self.shape.tile / 256).max(1);
        let (bytes, numbers) = tiles
            .par_chunks(64)
            .map(|tiles| {
                let mut symbols = Vec::new();
                let mut total = (0, 0);
                for tile in tiles {
                    symbols.clear();
                    self.symbols(*tile, &steps, &trial, &mut symbols, None);
                    let bytes = codes.bytes(&symbols).next_multiple_of(unit);
                    total.0 += bytes.min(symbols.len());
                    total.1 += symbols.len();
                }
                total
            })
            .reduce(|| (0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        trial.bits = bytes as f64 * 8. / numbers.max(1) as f64 + self.beside_bits();
        let all: f64 = tiles.par_iter().map(|tile| self.tile_squares(*tile)).sum();
        trial.error = if all > 0. {
            (sums.lost() / all).sqrt()
        } else {
            0.
        };
        trial
    }

    /// Bits a number of what is beside the codes.
    fn beside_bits(&self) -> f64 {
        let tiles = self.shape.numbers.div_ceil(self.shape.tile);
        let bytes = self.shape.rows * 4 + tiles + (tiles.div_ceil(STRIP_TILES) + 1) * 4;
        bytes as f64 * 8. / self.shape.numbers.max(1) as f64
    }

    fn tile_squares(&self, tile: usize) -> f64 {
        let values = &self.values[self.tile(tile)];
        values.iter().map(|value| f64::from(*value).powi(2)).sum()
    }

    fn tile(&self, tile: usize) -> std::ops::Range<usize> {
        let start = tile * self.shape.tile;
        start..self.shape.numbers.min(start + self.shape.tile)
    }

    /// The step of each row. A row with numbers beyond 127 steps has a wider one if it loses less by that.
    fn steps(&self, step: f64) -> Vec<f32> {
        let step = step.exp2();
        let wider = |(at, row): (usize, &Row)| {
            let step = (step * row.scale) as f32;
            if row.largest <= step * CODE_MAX {
                return step;
            }
            let needed = row.largest / CODE_MAX;
            let values = &self.values[at * self.shape.width..(at + 1) * self.shape.width];
            let clamped: f64 = values
                .iter()
                .map(|value| f64::from(value.abs() - step * CODE_MAX).max(0.).powi(2))
                .sum();
            let square = |step: f32| f64::from(step).powi(2);
            let coarser = (square(needed) - square(step)) / 12. * values.len() as f64;
            if clamped > coarser { needed } else { step }
        };
        self.rows.par_iter().enumerate().map(wider).collect()
    }

    fn sums(&self, tiles: &[usize], steps: &[f32], trial: &Trial) -> Sums {
        tiles
            .par_chunks(64)
            .map(|tiles| {
                let mut sums = Sums::default();
                let mut symbols = Vec::new();
                for tile in tiles {
                    symbols.clear();
                    self.symbols(*tile, steps, trial, &mut symbols, Some(&mut sums));
                }
                sums
            })
            .reduce(Sums::default, Sums::add)
    }

    /// Chooses the symbols of a tile.
    fn symbols(
        &self,
        tile: usize,
        steps: &[f32],
        trial: &Trial,
        out: &mut Vec<u8>,
        mut sums: Option<&mut Sums>,
    ) {
        let mut numbers = self.tile(tile);
        while !numbers.is_empty() {
            let row = numbers.start / self.shape.width;
            let end = numbers.end.min((row + 1) * self.shape.width);
            let step = f64::from(steps[row]);
            let weight = step * step;
            let inverse = if step > 0. { 1. / step } else { 0. };
            for value in &self.values[numbers.start..end] {
                let multiple = (f64::from(*value) * inverse) as f32;
                let symbol = trial.symbol(multiple);
                out.push(symbol as u8);
                if let Some(sums) = &mut sums {
                    let multiple_wide = f64::from(multiple);
                    sums.counts[symbol] += 1;
                    sums.weights[symbol] += weight;
                    sums.multiples[symbol] += weight * multiple_wide;
                    sums.squares += weight * multiple_wide * multiple_wide;
                    sums.clamped += usize::from(multiple.abs() > CODE_MAX + 0.5);
                }
            }
            numbers.start = end;
        }
    }

    fn write(&self, trial: &Trial) -> Result<Quantized, EncodeError> {
        let shape = &self.shape;
        let steps = self.steps(trial.step);
        let tiles: Vec<usize> = (0..shape.numbers.div_ceil(shape.tile)).collect();
        let sums = self.sums(&tiles, &steps, trial);
        let mut written = trial.clone();
        written.learn(&sums);
        let lengths = huffman::code_lengths(&sums.counts);
        let codes = Codes::new(&lengths).expect("lengths of a complete code were just made");
        let pieces: Vec<Piece> = tiles
            .par_chunks(shape.piece_numbers() / shape.tile)
            .map(|tiles| {
                let mut symbols = Vec::with_capacity(tiles.len() * shape.tile);
                for tile in tiles {
                    self.symbols(*tile, &steps, trial, &mut symbols, None);
                }
                shape.huffman(&codes, &symbols)
            })
            .collect();
        let mut table = huffman::pack_lengths(&lengths).to_vec();
        table.extend(written.levels.iter().flat_map(|level| level.to_le_bytes()));
        let mut encoded = shape.assemble(Scheme::Rate, &table, &pieces)?;
        let Encoded { layout, bytes } = &mut encoded;
        for (to, step) in bytes[layout.steps()]
            .as_chunks_mut::<4>()
            .0
            .iter_mut()
            .zip(&steps)
        {
            *to = step.to_le_bytes();
        }
        let coded = layout.codes_len() as f64 * 8. / shape.numbers.max(1) as f64;
        Ok(Quantized {
            bits: coded + self.beside_bits(),
            error: if self.squares > 0. {
                (sums.lost() / self.squares).sqrt()
            } else {
                0.
            },
            clamped: sums.clamped,
            encoded,
        })
    }
}

impl Trial {
    fn first(step: f64) -> Self {
        Self {
            step,
            costs: [0.; 256],
            levels: std::array::from_fn(|symbol| symbol as f32 - ZERO as f32),
            bits: 0.,
            error: 0.,
        }
    }

    /// The symbol of a multiple: the nearest, or the next one towards zero if that costs less.
    #[inline(always)]
    fn symbol(&self, multiple: f32) -> usize {
        let code = multiple.round_ties_even().clamp(-CODE_MAX, CODE_MAX);
        let nearest = (code as i32 + ZERO as i32) as usize & 255;
        let smaller = ((code - code.signum() * f32::from(u8::from(code != 0.))) as i32
            + ZERO as i32) as usize
            & 255;
        let cost = |symbol: usize| {
            let off = multiple - self.levels[symbol];
            off * off + self.costs[symbol]
        };
        if cost(smaller) < cost(nearest) {
            smaller
        } else {
            nearest
        }
    }

    /// Levels at the means, and costs by the codes' lengths.
    fn learn(&mut self, sums: &Sums) {
        let lengths = huffman::code_lengths(&sums.counts);
        for (symbol, length) in lengths.into_iter().enumerate() {
            if sums.weights[symbol] > 0. {
                self.levels[symbol] = (sums.multiples[symbol] / sums.weights[symbol]) as f32;
            } else {
                self.levels[symbol] = symbol as f32 - ZERO as f32;
            }
            let bits = match length {
                0 => huffman::BITS_MAX as u8 + 1,
                length => length,
            };
            self.costs[symbol] = f32::from(bits) * BIT_COST;
        }
    }
}

impl Default for Sums {
    fn default() -> Self {
        Self {
            counts: [0; 256],
            weights: [0.; 256],
            multiples: [0.; 256],
            squares: 0.,
            clamped: 0,
        }
    }
}

impl Sums {
    fn add(mut self, other: Self) -> Self {
        self.counts = add(self.counts, other.counts);
        for symbol in 0..256 {
            self.weights[symbol] += other.weights[symbol];
            self.multiples[symbol] += other.multiples[symbol];
        }
        self.squares += other.squares;
        self.clamped += other.clamped;
        self
    }

    /// Squared error with all levels at their means.
    fn lost(&self) -> f64 {
        let kept: f64 = (0..256)
            .filter(|symbol| self.weights[*symbol] > 0.)
            .map(|symbol| self.multiples[symbol].powi(2) / self.weights[symbol])
            .sum();
        (self.squares - kept).max(0.)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Coded;

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

    fn back(quantized: &Quantized) -> Vec<f32> {
        let layout = quantized.encoded.layout.clone();
        let mut out = vec![-1.; layout.numbers()];
        let rows = layout.rows();
        let coded = Coded::new(layout, &quantized.encoded.bytes).unwrap();
        coded.check().unwrap();
        coded.widen_rows(0..rows, &mut out).unwrap();
        out
    }

    /// Blocks of 32 numbers, four bits each, by a scale of sixteen bits that the largest of them gets to minus eight.
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
                let target = Target::Bits(bits);
                let quantized = quantize(Number::Bf16, rows, width, &values, target, 256).unwrap();

                let found = decibels(&values, &back(&quantized));
                println!("    {found:.2} dB at {:.3} bits", quantized.bits);
                let size = quantized.encoded.bytes.len() - quantized.encoded.layout.table().len();
                assert!((size as f64 * 8. / values.len() as f64 - bits).abs() < 0.02);
                assert!((quantized.bits - bits).abs() < 0.02);
                assert!((found + 20. * quantized.error.log10()).abs() < 0.01);
                assert!(found > 15.8 + 6. * (bits - 3.));
                assert!(found > blocks + 6. * (bits - 4.) + 0.3);
            }
        }
    }

    #[test]
    fn steps_between_equal_and_equally_many_lose_least() {
        let (rows, width) = (512, 1024);
        for (spread, student) in [(0., false), (0.3, false), (0.5, false), (0.5, true)] {
            let values = weights(rows, width, spread, student);
            let by = |exponent| {
                let shape = Shape::new(Number::Bf16, rows, width, 256).unwrap();
                let found = quantize_by(shape, &values, Target::Bits(3.5), exponent).unwrap();
                -20. * found.error.log10() - 6.02 * (found.bits - 3.5)
            };
            let (one, between, each) = (by(0.), by(ROW_EXPONENT), by(1.));
            println!("spread {spread}: {one:.2}, {between:.2}, {each:.2} dB at 3.5 bits");

            assert!(between > one - 0.02 && between > each - 0.02);
            assert!(spread < 0.4 || between > one + 0.3 && between > each + 0.5);
        }
    }

    #[test]
    fn an_error_is_met() {
        let values = weights(300, 700, 0.4, true);
        for error in [0.3, 0.1, 0.02] {
            let target = Target::Error(error);
            let quantized = quantize(Number::F32, 300, 700, &values, target, 128).unwrap();

            let found = 10_f64.powf(decibels(&values, &back(&quantized)) / -20.);
            assert!((found / error - 1.).abs() < 0.01, "{found}");
        }
    }

    #[test]
    fn what_is_far_from_all_others_widens_its_row() {
        let mut values = weights(64, 1024, 0., false);
        values[5] = 0.4;
        values[5 * 1024] = -300.;
        let quantized = quantize(Number::F32, 64, 1024, &values, Target::Bits(7.), 256).unwrap();

        let found = back(&quantized);
        assert!((found[5 * 1024] / -300. - 1.).abs() < 0.001);
        assert!((found[5] / 0.4 - 1.).abs() < 0.01);
        assert!(decibels(&values[6 * 1024..], &found[6 * 1024..]) > 30.);
        // Half a step more than there are is nearer than wider steps for a whole row.
        let step = 0.001_f32;
        let mut row: Vec<f32> = values[1024..2048]
            .iter()
            .map(|v| v.clamp(-0.1, 0.1))
            .collect();
        row[7] = step * (CODE_MAX + 0.7);
        let shape = Shape::new(Number::F32, 1, 1024, 256).unwrap();
        let matrix = Matrix::new(shape, &row, 0.);
        assert_eq!(matrix.steps(f64::from(step).log2()), [step]);
        row[7] = step * (CODE_MAX + 20.);
        let matrix = Matrix::new(shape, &row, 0.);
        assert_eq!(matrix.steps(f64::from(step).log2()), [row[7] / CODE_MAX]);
    }

    #[test]
    fn odd_matrices_are_coded_too() {
        for (rows, width) in [(0, 0), (0, 5), (5, 0), (1, 1), (1, 300), (300, 1), (7, 129)] {
            for value in [0., 1., -2e-40, 3e38] {
                let values = vec![value; rows * width];
                for target in [
                    Target::Bits(3.),
                    Target::Bits(0.),
                    Target::Bits(f64::NAN),
                    Target::Error(0.),
                    Target::Error(-1.),
                ] {
                    let found = quantize(Number::F32, rows, width, &values, target, 512).unwrap();
                    let near = back(&found).iter().all(|v| v.is_finite());
                    assert!(near, "{rows} x {width} of {value}: {found:?}");
                }
            }
        }
        let refused = quantize(
            Number::F32,
            1,
            3,
            &[0., 1., f32::NAN],
            Target::Bits(3.),
            128,
        );
        assert_eq!(refused, Err(EncodeError::NotFinite(2)));
        assert!(quantize(Number::F32, 1, 3, &[0., 1.], Target::Bits(3.), 128).is_err());
    }

    #[test]
    fn rows_widen_alike_in_both_ways() {
        let levels = std::array::from_fn(|i| (i as f32 - 128.3) * 1.1);
        let symbols: Vec<u8> = (0..=255).chain(0..100).collect();
        for step in [0.013, f32::NAN, f32::INFINITY, 0.] {
            let wide = Path::all().into_iter().map(|path| {
                let mut out = vec![0.; symbols.len()];
                widen(path, &levels, step, &symbols, &mut out);
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
            let wide: Vec<_> = wide.collect();
            assert!(wide.iter().all(|one| *one == wide[0]));
        }
    }
}
