//! The levels that symbols stand for, and the steps of rows.
//!
//! A symbol is an integer plus [`ZERO`]. Integer k stands for k + 1/4 steps, or for the negative of that where the
//! element is of the second quantizer: together they have a level every half step. Beyond [`LINEAR_END`] the distances
//! grow with the magnitude, so that a few symbols cover outliers and the step needn't. The middle symbols, which nearly
//! all elements take, are moved to the mean of the elements that took them, by a byte in parts of a step.
//!
//! In parts of a step, levels are 16-bit integers that are computed from the symbol and its mean: looking eight
//! elements up in a table takes longer than decoding them.

use crate::{layout::TRELLIS_MEANS, simd::SimdPath};

/// Number of symbols.
pub(crate) const SYMBOLS: usize = 128;
/// The symbol of integer 0.
pub(crate) const ZERO: usize = SYMBOLS / 2;
/// Flag in a symbol: the element is of the second quantizer, whose levels are the first one's, negated.
pub(crate) const SECOND: u8 = 0x80;
/// Magnitude in steps up to which an element's nearest symbols are the nearest integers.
pub(crate) const LINEAR_MAX: f32 = 47.;
/// Magnitude in steps beyond which the distances of levels grow,
const LINEAR_END: f32 = 48.;
/// each by this factor: up to 5,000 steps, with an error of at most a tenth.
const GROWTH: f32 = 1.35;
/// Parts of a step that means are stored in.
pub(crate) const PARTS: f32 = 256.;

/// Symbols that are moved to means.
pub(crate) const MIDDLE: std::ops::Range<usize> = ZERO - MEANS / 2..ZERO + MEANS / 2;
/// Number of symbols that are moved to means.
pub(crate) const MEANS: usize = TRELLIS_MEANS;

/// The level of a symbol before means are applied, in steps.
pub(crate) fn point(symbol: usize) -> f32 {
    let at = symbol as f32 - ZERO as f32 + 0.25;
    let mut beyond = at.abs() - LINEAR_END;
    if beyond <= 0. {
        return at;
    }
    let mut end = LINEAR_END;
    // Not `powf`, whose last bits differ between platforms: levels belong to the format, so all machines need the same.
    while beyond >= 1. {
        end *= GROWTH;
        beyond -= 1.;
    }
    (end + end * (GROWTH - 1.) * beyond).copysign(at)
}

/// The symbol of this parity that is nearest to `value`, in steps.
pub(crate) fn candidate(value: f32, parity: usize) -> usize {
    let mut at = value.abs();
    if at > LINEAR_END {
        let (mut end, mut passed) = (LINEAR_END, LINEAR_END);
        while at > end * GROWTH && passed < ZERO as f32 {
            end *= GROWTH;
            passed += 1.;
        }
        at = passed + (at / end - 1.) / (GROWTH - 1.);
    }
    let centre = parity as f32 + 0.25;
    let pairs = ((at.copysign(value) - centre) * 0.5).round_ties_even();
    let pairs_max = (ZERO / 2) as f32;
    let code = pairs.clamp(-pairs_max, pairs_max - 1.) * 2. + parity as f32;
    // Always in range already, even for NaN, which casts to 0; the remainder lets the compiler see that.
    (code as i32 + ZERO as i32) as usize % SYMBOLS
}

/// A mean as the table stores it: its offset from the symbol's level, in parts of a step.
pub(crate) fn mean_part(symbol: usize, mean: f64) -> i8 {
    // The cast saturates, and maps NaN to 0.
    ((mean - f64::from(point(symbol))) * f64::from(PARTS)).round() as i8
}

/// The levels of a matrix, with what they follow from.
#[derive(Clone, Debug)]
pub(crate) struct TrellisLevels {
    /// Levels in parts of a step, by a symbol with its flag: first those of the first quantizer, then the second's.
    all: Box<[f32; 2 * SYMBOLS]>,
    /// The first symbol that is moved,
    first: u8,
    /// and the means from it on, as far as symbols are moved. A vector path looks a mean up in all of them.
    means: [[i8; 16]; MEANS / 16],
    /// How many of these sixteens have a mean, one at least.
    sixteens: usize,
    /// The matrix's step divided by [`PARTS`].
    part: f32,
}

impl TrellisLevels {
    /// Sixteens of means that there are.
    pub(super) fn sixteens(&self) -> usize {
        self.sixteens
    }

    /// The first symbol that is moved to a mean, and the means from it on.
    pub(super) fn means(&self) -> (u8, &[i8; MEANS]) {
        let means = self.means.as_flattened().first_chunk();
        (self.first, means.expect("as many in all"))
    }

    /// From the means of the middle symbols and a part of the matrix's step.
    pub(crate) fn new(means: [i8; MEANS], part: f32) -> Self {
        let mut all = Box::new([0.; 2 * SYMBOLS]);
        for symbol in 0..SYMBOLS {
            let mean = match symbol {
                _ if MIDDLE.contains(&symbol) => f32::from(means[symbol - MIDDLE.start]),
                _ => 0.,
            };
            all[symbol] = point(symbol) * PARTS + mean;
            // Not `-level`, which would give -0: the vector path computes in integers, which have one zero.
            all[SYMBOLS + symbol] = 0. - all[symbol];
        }
        let moved = |mean: &i8| *mean != 0;
        let from = means.iter().position(moved).unwrap_or(0);
        let end = means.iter().rposition(moved).map_or(0, |last| last + 1);
        let mut kept = [0; MEANS];
        kept[..MEANS - from].copy_from_slice(&means[from..]);
        let (kept, _) = kept.as_chunks();
        Self {
            all,
            first: (MIDDLE.start + from) as u8,
            means: std::array::from_fn(|n| kept[n]),
            sixteens: end.saturating_sub(from).div_ceil(16).max(1),
            part,
        }
    }

    /// The first quantizer's levels, in steps.
    pub(crate) fn in_steps(&self) -> [f32; SYMBOLS] {
        std::array::from_fn(|symbol| self.all[symbol] / PARTS)
    }

    /// A row's step divided by [`PARTS`].
    pub(super) fn row_part(&self, byte: u8) -> f32 {
        self.part * row_ratio(byte)
    }

    /// Computes a row's elements from flagged symbols and the row's step byte.
    pub(crate) fn dequantize(&self, path: SimdPath, step: u8, symbols: &[u8], out: &mut [f32]) {
        self.scale(path, self.row_part(step), symbols, out);
    }

    /// Computes elements from flagged symbols: levels times `part`.
    pub(crate) fn scale(&self, path: SimdPath, part: f32, symbols: &[u8], out: &mut [f32]) {
        assert_eq!(symbols.len(), out.len());
        let done = match path {
            SimdPath::Portable => 0,
            #[cfg(target_arch = "x86_64")]
            // SAFETY: there is no such path on a processor without these features.
            SimdPath::Avx2(_) => unsafe { avx2::scale(self, part, symbols, out) },
        };
        self.look_up(part, &symbols[done..], &mut out[done..]);
    }

    /// The same from the table.
    pub(super) fn look_up(&self, part: f32, symbols: &[u8], out: &mut [f32]) {
        for (out, symbol) in out.iter_mut().zip(symbols) {
            *out = self.all[usize::from(*symbol)] * part;
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use std::arch::x86_64::*;

    use super::{SECOND, TrellisLevels, ZERO};

    /// Integers below this magnitude have equidistant levels.
    pub(in super::super) const LINEAR: i8 = 48;

    /// Computes elements from flagged symbols, as many as whole vectors have, and returns how many these are.
    #[target_feature(enable = "avx2")]
    pub(super) fn scale(
        levels: &TrellisLevels,
        part: f32,
        symbols: &[u8],
        out: &mut [f32],
    ) -> usize {
        // The count of shuffles is known to the compiler in each.
        match levels.sixteens {
            1 => scale_by::<1>(levels, part, symbols, out),
            2 => scale_by::<2>(levels, part, symbols, out),
            3 => scale_by::<3>(levels, part, symbols, out),
            _ => scale_by::<4>(levels, part, symbols, out),
        }
    }

    #[target_feature(enable = "avx2")]
    fn scale_by<const SIXTEENS: usize>(
        levels: &TrellisLevels,
        part: f32,
        symbols: &[u8],
        out: &mut [f32],
    ) -> usize {
        let means = Means::<SIXTEENS>::new(levels);
        let wide_part = _mm256_set1_ps(part);
        let (symbols, _) = symbols.as_chunks::<32>();
        let (outs, _) = out.as_chunks_mut::<32>();
        for (symbols, out) in symbols.iter().zip(outs) {
            // SAFETY: as many bytes as it reads, at any address.
            let marked = unsafe { _mm256_loadu_si256(symbols.as_ptr().cast()) };
            if has_outlier(marked) {
                levels.look_up(part, symbols, out);
                continue;
            }
            let second = _mm256_cmpgt_epi8(_mm256_setzero_si256(), marked);
            let symbols = _mm256_andnot_si256(_mm256_set1_epi8(SECOND as i8), marked);
            let eights = means.in_parts(symbols, second);
            for (n, eight) in eights.iter().enumerate() {
                let value = _mm256_mul_ps(to_f32(*eight), wide_part);
                // SAFETY: as many elements as it writes, at any address.
                unsafe { _mm256_storeu_ps(out[8 * n..].as_mut_ptr(), value) };
            }
        }
        symbols.len() * 32
    }

    /// Whether a symbol is beyond the equidistant levels: its vector is looked up in the table. Outliers are rare, so the
    /// branch predicts well.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in super::super) fn has_outlier(marked: __m256i) -> bool {
        let symbols = _mm256_andnot_si256(_mm256_set1_epi8(SECOND as i8), marked);
        let codes = _mm256_sub_epi8(symbols, _mm256_set1_epi8(ZERO as i8));
        let far = _mm256_cmpgt_epi8(_mm256_abs_epi8(codes), _mm256_set1_epi8(LINEAR - 1));
        _mm256_movemask_epi8(far) != 0
    }

    /// Means in registers.
    pub(in super::super) struct Means<const SIXTEENS: usize> {
        tables: [__m256i; SIXTEENS],
        firsts: [__m256i; SIXTEENS],
    }

    impl<const SIXTEENS: usize> Means<SIXTEENS> {
        /// `SIXTEENS` is what `levels` has.
        #[inline]
        #[target_feature(enable = "avx2")]
        pub(in super::super) fn new(levels: &TrellisLevels) -> Self {
            let zero = _mm256_setzero_si256();
            let (mut tables, mut firsts) = ([zero; SIXTEENS], [zero; SIXTEENS]);
            for (n, some) in levels.means[..SIXTEENS].iter().enumerate() {
                // SAFETY: as many bytes as it reads, at any address.
                let some = unsafe { _mm_loadu_si128(some.as_ptr().cast()) };
                tables[n] = _mm256_broadcastsi128_si256(some);
                let first = levels.first.wrapping_add(16 * n as u8);
                firsts[n] = _mm256_set1_epi8(first as i8);
            }
            Self { tables, firsts }
        }

        /// The levels of symbols without flags, none of them an outlier, in parts of a step. All bits of `second` are set
        /// where a symbol is of the second quantizer, or none.
        #[inline]
        #[target_feature(enable = "avx2")]
        pub(in super::super) fn in_parts(&self, symbols: __m256i, second: __m256i) -> [__m128i; 4] {
            let codes = _mm256_sub_epi8(symbols, _mm256_set1_epi8(ZERO as i8));
            // Flipping the sign bit adds 128, so that a mean is an unsigned low byte below its code. The level is code ·
            // 256 + 64 + mean: 64 too much is subtracted again.
            let mut means = _mm256_set1_epi8(i8::MIN);
            for n in 0..SIXTEENS {
                // A table of up to 64 means is a few shuffles of 16 entries; each yields zero for indices outside of its
                // 16: saturating addition maps indices above 15 to bytes with the highest bit set, which the shuffle turns
                // into zero.
                let index = _mm256_sub_epi8(symbols, self.firsts[n]);
                let index = _mm256_adds_epu8(index, _mm256_set1_epi8(0x70));
                means = _mm256_xor_si256(means, _mm256_shuffle_epi8(self.tables[n], index));
            }
            let quarter = _mm256_set1_epi16(64);
            // -1 or 1 in 16 bits.
            let sign = _mm256_or_si256(second, _mm256_set1_epi8(1));
            let parts = |means, sign| _mm256_sign_epi16(_mm256_sub_epi16(means, quarter), sign);
            let even = parts(
                _mm256_unpacklo_epi8(means, codes),
                _mm256_unpacklo_epi8(sign, second),
            );
            let odd = parts(
                _mm256_unpackhi_epi8(means, codes),
                _mm256_unpackhi_epi8(sign, second),
            );
            // `unpack` works within 128-bit lanes: each lane holds eight elements of the first half, then eight of the
            // second.
            [
                _mm256_castsi256_si128(even),
                _mm256_castsi256_si128(odd),
                _mm256_extracti128_si256::<1>(even),
                _mm256_extracti128_si256::<1>(odd),
            ]
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in super::super) fn to_f32(eight: __m128i) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(eight))
    }
}

/// Row steps per octave.
const STEPS_AN_OCTAVE: f64 = 8.;
/// The byte of a row whose step is the matrix's.
const STEP_SAME: u8 = 64;
/// 2^(i/8), written out so that every machine computes the same steps.
const STEP_RATIOS: [f32; 8] = [
    1.,
    1.090_507_7,
    1.189_207_1,
    1.296_839_6,
    std::f32::consts::SQRT_2,
    1.542_210_8,
    1.681_792_8,
    1.834_008_1,
];

/// A row's step as a byte, from its ratio to the matrix's: eight steps an octave, from 8 octaves below to 24 above.
/// Byte 0 is step 0.
pub(crate) fn row_byte(ratio: f64) -> u8 {
    if ratio > 0. {
        let step = ratio.log2() * STEPS_AN_OCTAVE + f64::from(STEP_SAME);
        step.round().clamp(1., 255.) as u8
    } else {
        0
    }
}

/// The factor from the matrix's step to a row's, by the row's byte.
pub(crate) fn row_ratio(byte: u8) -> f32 {
    if byte == 0 {
        return 0.;
    }
    // Powers of two are built from exponent bits: exact, and no call of `exp2` per row.
    let power = u32::from(127 + byte / 8 - STEP_SAME / 8);
    STEP_RATIOS[usize::from(byte % 8)] * f32::from_bits(power << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_rise_and_their_nearest_are_found() {
        let points: [f32; SYMBOLS] = std::array::from_fn(point);
        assert_eq!(points[ZERO..ZERO + 3], [0.25, 1.25, 2.25]);
        assert!(points.is_sorted());
        assert!(points[0] < -5000. && points[SYMBOLS - 1] > 4500.);
        for (symbol, point) in points.iter().enumerate() {
            assert_eq!(candidate(*point, symbol % 2), symbol);
        }
        for (value, end) in [(f32::INFINITY, SYMBOLS - 2), (f32::NEG_INFINITY, 0)] {
            assert_eq!(candidate(value, 0), end);
        }
        assert!(candidate(f32::NAN, 1) < SYMBOLS);
        let means = std::array::from_fn(|at| {
            let symbol = MIDDLE.start + at;
            mean_part(symbol, f64::from(points[symbol]) - 0.2)
        });
        let levels = TrellisLevels::new(means, 1.).in_steps();
        let moved = |symbol: usize| if MIDDLE.contains(&symbol) { -0.2 } else { 0. };
        for symbol in 0..SYMBOLS {
            assert!((levels[symbol] - points[symbol] - moved(symbol)).abs() < 0.002);
        }
    }

    #[test]
    fn rows_have_steps_near_what_they_need() {
        for needed in [1., 0.01, 33., 1e5] {
            let found = f64::from(row_ratio(row_byte(needed)));
            assert!((found / needed).log2().abs() < 0.5001 / STEPS_AN_OCTAVE);
        }
        assert_eq!(row_ratio(row_byte(0.)), 0.);
        assert_eq!(row_ratio(STEP_SAME), 1.);
    }

    #[test]
    fn rows_upcast_alike_in_both_ways() {
        // Of some symbol's levels one is 0.
        let means = std::array::from_fn(|at| (at * 77 % 256 + 32) as i8);
        let symbols: Vec<u8> = (0..=255)
            .chain(70..170)
            .chain((0..=200).map(|i| 40 + i % 48))
            .collect();
        for part in [0.000_13, f32::NAN, f32::INFINITY, 0., 1e-43] {
            let levels = TrellisLevels::new(means, part);
            for step in [0, 1, 64, 77, 255] {
                let wide = SimdPath::all().into_iter().map(|path| {
                    let mut out = vec![0.; symbols.len()];
                    levels.dequantize(path, step, &symbols, &mut out);
                    out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                });
                let wide: Vec<_> = wide.collect();
                assert!(wide.iter().all(|one| *one == wide[0]));
            }
        }
    }
}
