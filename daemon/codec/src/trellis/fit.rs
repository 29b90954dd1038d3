//! Searches the step, and the costs of symbols, for which a matrix reaches its target.

use rayon::prelude::*;

use super::{
    TrellisTarget,
    levels::{self, MEANS, MIDDLE, PARTS, SECOND, SYMBOLS, TrellisLevels},
    marks::mark,
    viterbi::{SymbolCosts, ViterbiSearch},
};
use crate::{encode::add, huffman, simd::SimdPath};

/// The price of a bit in squared steps (the Lagrange multiplier of rate-distortion optimization). At high rates one
/// more bit halves the step, which quarters the error: the derivative is 2 ln 2 of the error, and that is a twelfth of
/// a squared step, less what the trellis gains (1.2 dB). Values from 0.08 to 0.12 make no difference.
pub(crate) const BIT_COST: f32 = 0.09;
/// The power of its root mean square by which a row's step grows. One step for all rows loses least if each row has a
/// code of its own; with one code for all, steps proportional to the rows' sizes give shorter codes. In between is
/// best: where rows differ by a factor of 1.65 (one standard deviation), half a dB better than one step, and a whole
/// one better than steps as the sizes.
pub(crate) const ROW_EXPONENT: f64 = 0.5;
/// How far from its target a fit may end, in bits per weight or in octaves of error.
const TOLERANCE: f64 = 0.002;
/// Rounds that learn costs: the code lengths of one round are the costs of the next.
const ROUNDS_LEARNING: usize = 6;
/// Rounds in all.
const ROUNDS: usize = 14;
/// Least number of tiles to learn costs from; of four times as many or more, every fourth tile is used.
const TILES_LEARNING: usize = 512;
/// Bits that a symbol without a code is priced at.
const BITS_RARE: u8 = huffman::BITS_MAX as u8 + 1;
/// Tiles that a thread takes at a time.
const TILES_TOGETHER: usize = 16;

/// The fitted parameters of a quantization.
#[derive(Clone, Debug)]
pub(super) struct FittedSteps {
    /// Base-2 logarithm of the step of a row whose root mean square is 1.
    pub(super) step: f64,
    /// [`ROW_EXPONENT`], but in tests.
    pub(super) exponent: f64,
    pub(super) prices: SymbolCosts,
}

/// The result of quantizing a sample.
struct Outcome {
    lengths: [u8; 256],
    levels: [f32; SYMBOLS],
    bits: f64,
    error: f64,
}

impl FittedSteps {
    /// Fits to a sample. `beside_bits` are the bits per weight besides codes.
    pub(super) fn new(rows: &SampleRows<'_>, target: TrellisTarget, beside_bits: f64) -> Self {
        let mut trial = Self::first(rows, target);
        let mut best: Option<(f64, Self)> = None;
        for round in 0..ROUNDS {
            let learning = round + 1 < ROUNDS_LEARNING;
            // A sample of the sample is enough to learn costs, and four times as fast.
            let few = learning && rows.tiles() >= 4 * TILES_LEARNING;
            let outcome = rows.outcome(&trial, if few { 4 } else { 1 });
            // Distance to the target in octaves of step: at high rates an octave of step is one bit, or one octave of
            // error. So a round is about a Newton step.
            let beyond = match target {
                TrellisTarget::Bits(bits) => bits - beside_bits - outcome.bits,
                TrellisTarget::Error(error) => (outcome.error / error).log2(),
            };
            let off = beyond.abs();
            // While costs change from round to round, a hit would be a coincidence; only rounds with final costs count.
            if !learning && best.as_ref().is_none_or(|(least, _)| off < *least) {
                best = Some((off, trial.clone()));
            }
            if !learning && off < TOLERANCE {
                break;
            }
            if learning {
                // Entropy-constrained quantization: costs follow from code lengths, which follow from costs (Chou,
                // Lookabaugh and Gray 1989).
                trial.learn(&outcome);
            }
            // At most four octaves a round: far from the target, rate and step aren't related linearly.
            trial.step = rows.possible(trial.step - beyond.clamp(-4., 4.));
        }
        best.expect("not all rounds are for learning").1
    }

    /// Initial step and costs, from the entropy of a quantized Gaussian.
    fn first(rows: &SampleRows<'_>, target: TrellisTarget) -> Self {
        let bits = match target {
            TrellisTarget::Bits(bits) => bits.clamp(0.1, 7.),
            TrellisTarget::Error(error) => (-error.clamp(1e-5, 1.).log2() + 0.1).min(7.),
        };
        // A Gaussian of `deviation` steps has an entropy of log2(deviation · sqrt(2πe)) bits; log2(sqrt(2πe)) is 2.05,
        // and sqrt(2π) is 2.507.
        let deviation = (bits - 2.05).exp2();
        let levels = TrellisLevels::new([0; MEANS], 1.).in_steps();
        let cost = |level: f32| {
            let squares = (f64::from(level) / deviation).powi(2);
            let bits = (deviation * 2.507).log2() + squares / 2. * std::f64::consts::LOG2_E;
            bits.clamp(1., f64::from(BITS_RARE)) as f32 * BIT_COST
        };
        Self {
            step: rows.possible(rows.deviation().log2() * (1. - rows.exponent) - deviation.log2()),
            exponent: rows.exponent,
            prices: SymbolCosts {
                levels,
                costs: levels.map(cost),
            },
        }
    }

    fn learn(&mut self, outcome: &Outcome) {
        self.prices.levels = outcome.levels;
        for (cost, bits) in self.prices.costs.iter_mut().zip(outcome.lengths) {
            *cost = f32::from(if bits == 0 { BITS_RARE } else { bits }) * BIT_COST;
        }
    }
}

/// Rows of elements, cut into tiles, with the rows' root mean squares.
pub(super) struct SampleRows<'a> {
    width: usize,
    tile: usize,
    values: &'a [f32],
    /// Root mean square of each row.
    sizes: Vec<f64>,
    exponent: f64,
}

impl<'a> SampleRows<'a> {
    /// `width` is the length of a row; of a sample, that of the part of each row that it contains.
    pub(super) fn new(width: usize, tile: usize, values: &'a [f32], exponent: f64) -> Self {
        let size = |row: &[f32]| (squares(row) / row.len() as f64).sqrt();
        let sizes = values.par_chunks(width.max(1)).map(size).collect();
        Self {
            width,
            tile,
            values,
            sizes,
            exponent,
        }
    }

    pub(super) fn deviation(&self) -> f64 {
        let squares: f64 = self.sizes.iter().map(|size| size * size).sum();
        let deviation = (squares / self.sizes.len().max(1) as f64).sqrt();
        // Callers take its logarithm, which would be infinite for a matrix of zeros.
        deviation.max(f64::from(f32::MIN_POSITIVE))
    }

    /// Clamps a step to the useful range: elements must not all become zero, nor so many of them lie beyond the
    /// equidistant levels that a smaller step would take fewer bits and lose more.
    pub(super) fn possible(&self, step: f64) -> f64 {
        let same = self.deviation().log2() * (1. - self.exponent);
        // Four octaves below: a sixteenth of a standard deviation, for which 128 symbols still suffice.
        step.max(same - 4.).min(same + 13.)
    }

    /// The matrix's step divided by [`PARTS`], and the rows' steps relative to it, as bytes.
    pub(super) fn steps(&self, fitted: &FittedSteps) -> (f32, Vec<u8>) {
        let deviation = self.deviation();
        let matrix = (fitted.step + deviation.log2() * self.exponent).exp2();
        // Keeps the largest level finite: 5,000 steps of 256 parts, and row factors.
        let most = f32::MAX / (1 << 22) as f32;
        let part = (matrix as f32 / PARTS).clamp(f32::MIN_POSITIVE, most);
        let byte = |size: &f64| levels::row_byte((size / deviation).powf(self.exponent));
        (part, self.sizes.iter().map(byte).collect())
    }

    pub(super) fn tiles(&self) -> usize {
        self.values.len().div_ceil(self.tile)
    }

    /// Quantizes every `stride`-th tile and reports rate and error.
    fn outcome(&self, fitted: &FittedSteps, stride: usize) -> Outcome {
        let (part, steps) = self.steps(fitted);
        let tiles: Vec<usize> = (0..self.tiles()).step_by(stride).collect();
        let sums = tiles
            .par_chunks(TILES_TOGETHER)
            .map_init(ViterbiSearch::new, |search, tiles| {
                let mut sums = SymbolSums::default();
                let mut symbols = Vec::new();
                for tile in tiles {
                    symbols.clear();
                    self.choose(
                        *tile,
                        (part, &steps),
                        fitted,
                        search,
                        &mut symbols,
                        &mut sums,
                    );
                }
                sums
            })
            .reduce(SymbolSums::default, |one, other| one.add(&other));
        let lengths = huffman::code_lengths(&sums.counts);
        // The size follows from code lengths; nothing is encoded while fitting.
        let bits = sums.counts.iter().zip(lengths);
        let bits: u64 = bits.map(|(count, bits)| count * u64::from(bits)).sum();
        let means = sums.means();
        Outcome {
            lengths,
            levels: TrellisLevels::new(means, 1.).in_steps(),
            bits: bits as f64 / sums.counts.iter().sum::<u64>().max(1) as f64,
            error: sums.error(means),
        }
    }

    /// Appends the symbols of a tile to `out`, and adds them to `sums`.
    pub(super) fn choose(
        &self,
        tile: usize,
        (part, steps): (f32, &[u8]),
        fitted: &FittedSteps,
        search: &mut ViterbiSearch,
        out: &mut Vec<u8>,
        sums: &mut SymbolSums,
    ) {
        // A tile may cover parts of several rows, each of which has a step of its own.
        let path = SimdPath::best();
        let start = tile * self.tile;
        let end = self.values.len().min(start + self.tile);
        let mut scaled = [0.; 512];
        let scaled = &mut scaled[..end - start];
        let rows = || {
            let rows = start / self.width..=(end - 1) / self.width;
            rows.map(|row| {
                let within = start.max(row * self.width)..end.min((row + 1) * self.width);
                let step = part * levels::row_ratio(steps[row]) * PARTS;
                (within.start - start..within.end - start, step)
            })
        };
        scaled.copy_from_slice(&self.values[start..end]);
        for (within, step) in rows() {
            // A row of zeros has step 0; its elements stay zero instead of becoming NaN.
            let inverse = if step > 0. { 1. / step } else { 0. };
            for value in &mut scaled[within] {
                *value *= inverse;
            }
        }
        let first = out.len();
        out.resize(first + scaled.len(), 0);
        let symbols = &mut out[first..];
        search.choose(path, scaled, &fitted.prices, symbols);
        mark(path, symbols);
        for (within, step) in rows() {
            sums.count(&scaled[within.clone()], &mut symbols[within], step);
        }
    }
}

/// Sum of squares, in `f64`.
pub(super) fn squares(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum()
}

/// Statistics by symbol. Errors count in absolute terms, so each element is weighted by its squared step.
#[derive(Clone)]
pub(super) struct SymbolSums {
    pub(super) counts: [u64; 256],
    weights: [f64; SYMBOLS],
    multiples: [f64; SYMBOLS],
    squares: f64,
}

impl Default for SymbolSums {
    fn default() -> Self {
        Self {
            counts: [0; 256],
            weights: [0.; SYMBOLS],
            multiples: [0.; SYMBOLS],
            squares: 0.,
        }
    }
}

impl SymbolSums {
    /// Adds symbols to the statistics, and clears their flags.
    fn count(&mut self, values: &[f32], symbols: &mut [u8], step: f32) {
        let weight = f64::from(step).powi(2);
        for (value, symbol) in values.iter().zip(symbols) {
            // Elements of the second quantizer count with their sign flipped, since both share one table.
            let marked = *symbol & SECOND != 0;
            *symbol &= !SECOND;
            let value = f64::from(if marked { -value } else { *value });
            let symbol = usize::from(*symbol);
            self.counts[symbol] += 1;
            self.weights[symbol] += weight;
            self.multiples[symbol] += weight * value;
            self.squares += weight * value * value;
        }
    }

    pub(super) fn add(mut self, other: &Self) -> Self {
        self.counts = add(self.counts, other.counts);
        for symbol in 0..SYMBOLS {
            self.weights[symbol] += other.weights[symbol];
            self.multiples[symbol] += other.multiples[symbol];
        }
        self.squares += other.squares;
        self
    }

    /// Means of the middle symbols, as the table stores them.
    pub(super) fn means(&self) -> [i8; MEANS] {
        std::array::from_fn(|at| {
            let symbol = MIDDLE.start + at;
            if self.weights[symbol] > 0. {
                levels::mean_part(symbol, self.multiples[symbol] / self.weights[symbol])
            } else {
                0
            }
        })
    }

    /// Relative root mean square error with these means.
    pub(super) fn error(&self, means: [i8; MEANS]) -> f64 {
        let levels = TrellisLevels::new(means, 1.).in_steps();
        // Σ w (v - l)² = Σ w v² - l (2 Σ w v - l Σ w) for each symbol: the sums suffice, and no second pass over the
        // elements is needed.
        let gained: f64 = (0..SYMBOLS)
            .map(|symbol| {
                let level = f64::from(levels[symbol]);
                level * (2. * self.multiples[symbol] - level * self.weights[symbol])
            })
            .sum();
        if self.squares > 0. {
            // Rounding may leave a difference just below zero where levels fit exactly.
            ((self.squares - gained).max(0.) / self.squares).sqrt()
        } else {
            0.
        }
    }
}
