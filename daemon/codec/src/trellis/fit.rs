//! The step, and the costs of symbols, by which numbers take as much as they may.

use rayon::prelude::*;

use super::{
    TrellisTarget,
    levels::{self, MEANS, MIDDLE, PARTS, SYMBOLS, TrellisLevels},
    viterbi::{SECOND, SymbolCosts, ViterbiSearch, mark},
};
use crate::{encode::add, huffman, simd::SimdPath};

/// What a bit may cost, in squared steps. At high rates a bit more halves the step, and so takes three quarters of the error:
/// what is lost falls by 2 ln 2 of itself a bit, and of a squared step it is a twelfth, less what the trellis gains (1.2 dB).
/// From 0.08 to 0.12 it makes no difference.
const BIT_COST: f32 = 0.09;
/// By which power of its root mean square a row's step grows. One step for all rows loses least if each row has a code of
/// its own; with one code for all, steps as the rows' sizes give shorter codes. In between is best: where rows differ by a
/// factor of 1.65 (one standard deviation), half a dB better than one step, and a whole one better than steps as the sizes.
pub(super) const ROW_EXPONENT: f64 = 0.5;
/// How far from its target a fit may end, in bits a number or in octaves of error.
const TOLERANCE: f64 = 0.002;
/// Steps that are tried with costs of their own: the codes of each give the costs of the next.
const ROUNDS_LEARNING: usize = 6;
/// Steps that are tried in all.
const ROUNDS: usize = 14;
/// Tiles that costs are learned from, at least; of more, every fourth one.
const TILES_LEARNING: usize = 512;
/// Bits of a symbol that had no code.
const BITS_RARE: u8 = huffman::BITS_MAX as u8 + 1;
/// Tiles that a thread takes at a time.
const TILES_TOGETHER: usize = 16;

/// What a matrix is coded by.
#[derive(Clone, Debug)]
pub(super) struct FittedSteps {
    /// Base-2 logarithm of the step of a row whose root mean square is one.
    pub(super) step: f64,
    /// [`ROW_EXPONENT`], but in tests.
    pub(super) exponent: f64,
    pub(super) prices: SymbolCosts,
}

/// What came of it.
struct Outcome {
    lengths: [u8; 256],
    levels: [f32; SYMBOLS],
    bits: f64,
    error: f64,
}

impl FittedSteps {
    /// By rows that stand for all. `beside_bits`: what a number takes beside its code.
    pub(super) fn new(rows: &SampleRows<'_>, target: TrellisTarget, beside_bits: f64) -> Self {
        let mut trial = Self::first(rows, target);
        let mut best: Option<(f64, Self)> = None;
        for round in 0..ROUNDS {
            let learning = round + 1 < ROUNDS_LEARNING;
            let few = learning && rows.tiles() >= 4 * TILES_LEARNING;
            let outcome = rows.outcome(&trial, if few { 4 } else { 1 });
            // Rises with the step, by about one an octave.
            let beyond = match target {
                TrellisTarget::Bits(bits) => bits - beside_bits - outcome.bits,
                TrellisTarget::Error(error) => (outcome.error / error).log2(),
            };
            let off = beyond.abs();
            if !learning && best.as_ref().is_none_or(|(least, _)| off < *least) {
                best = Some((off, trial.clone()));
            }
            if !learning && off < TOLERANCE {
                break;
            }
            if learning {
                trial.learn(&outcome);
            }
            trial.step = rows.possible(trial.step - beyond.clamp(-4., 4.));
        }
        best.expect("not all rounds are for learning").1
    }

    /// A step that is about right, and costs, by what Gaussian numbers would have.
    fn first(rows: &SampleRows<'_>, target: TrellisTarget) -> Self {
        let bits = match target {
            TrellisTarget::Bits(bits) => bits.clamp(0.1, 7.),
            TrellisTarget::Error(error) => (-error.clamp(1e-5, 1.).log2() + 0.1).min(7.),
        };
        // Steps of a standard deviation, and the differential entropy of those.
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

/// Rows of numbers in tiles, with their sizes.
pub(super) struct SampleRows<'a> {
    width: usize,
    tile: usize,
    values: &'a [f32],
    /// Root mean squares.
    sizes: Vec<f64>,
    exponent: f64,
}

impl<'a> SampleRows<'a> {
    /// Of a sample, width means a part of each row.
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
        deviation.max(f64::from(f32::MIN_POSITIVE))
    }

    /// The nearest step by which numbers have levels: neither all of them none, nor so many of them too large for those that
    /// are equally far apart that a smaller step would take fewer bits, and lose more.
    pub(super) fn possible(&self, step: f64) -> f64 {
        let same = self.deviation().log2() * (1. - self.exponent);
        step.max(same - 4.).min(same + 13.)
    }

    /// A part of the matrix's step, and by that step those of rows as bytes.
    pub(super) fn steps(&self, fitted: &FittedSteps) -> (f32, Vec<u8>) {
        let deviation = self.deviation();
        let matrix = (fitted.step + deviation.log2() * self.exponent).exp2();
        // Whatever a level is, it is finite.
        let most = f32::MAX / (1 << 22) as f32;
        let part = (matrix as f32 / PARTS).clamp(f32::MIN_POSITIVE, most);
        let byte = |size: &f64| levels::row_byte((size / deviation).powf(self.exponent));
        (part, self.sizes.iter().map(byte).collect())
    }

    pub(super) fn tiles(&self) -> usize {
        self.values.len().div_ceil(self.tile)
    }

    /// Of all tiles, or of some at equal distances.
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

    /// Adds the symbols of a tile to `out`.
    pub(super) fn choose(
        &self,
        tile: usize,
        (part, steps): (f32, &[u8]),
        fitted: &FittedSteps,
        search: &mut ViterbiSearch,
        out: &mut Vec<u8>,
        sums: &mut SymbolSums,
    ) {
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

/// Sum of squares.
pub(super) fn squares(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum()
}

/// Sums by symbol, each number weighted by its squared step.
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
    /// Counts symbols, and takes their marks away.
    fn count(&mut self, values: &[f32], symbols: &mut [u8], step: f32) {
        let weight = f64::from(step).powi(2);
        for (value, symbol) in values.iter().zip(symbols) {
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

    /// Means of the middle symbols, as they are kept.
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

    /// Root of the squared error by these means, as a share of that of the numbers.
    pub(super) fn error(&self, means: [i8; MEANS]) -> f64 {
        let levels = TrellisLevels::new(means, 1.).in_steps();
        let gained: f64 = (0..SYMBOLS)
            .map(|symbol| {
                let level = f64::from(levels[symbol]);
                level * (2. * self.multiples[symbol] - level * self.weights[symbol])
            })
            .sum();
        if self.squares > 0. {
            ((self.squares - gained).max(0.) / self.squares).sqrt()
        } else {
            0.
        }
    }
}
