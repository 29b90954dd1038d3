//! A column's elements from its symbols: marks, levels and factors in one pass, so that nothing between them is written.

use super::{levels::TrellisLevels, marks::mark_word};
use crate::simd::SimdPath;

/// Computes elements from symbols without flags, each with a factor: its level times `part`, then times the factor.
/// Without `has_outliers` all symbols are known to have equidistant levels, which saves looking for others.
pub(crate) fn scale_marked(
    levels: &TrellisLevels,
    path: SimdPath,
    part: f32,
    factors: &[f32],
    symbols: &[u8],
    out: &mut [f32],
    has_outliers: bool,
) {
    assert!(symbols.len() == out.len() && factors.len() == out.len());
    let mut before = 0;
    let done = match path {
        SimdPath::Portable => 0,
        #[cfg(target_arch = "x86_64")]
        SimdPath::Avx2(features) => {
            let before = &mut before;
            // SAFETY: there is no such path on a processor without these features, and they say whether it has more.
            unsafe {
                if features.is_wide() {
                    avx512::scale_marked(levels, part, factors, symbols, out, before, has_outliers)
                } else {
                    avx2::scale_marked(levels, part, factors, symbols, out, before, has_outliers)
                }
            }
        }
    };
    let each = symbols[done..].chunks(64).zip(factors[done..].chunks(64));
    for ((symbols, factors), out) in each.zip(out[done..].chunks_mut(64)) {
        let mut marked = [0; 64];
        let marked = &mut marked[..symbols.len()];
        marked.copy_from_slice(symbols);
        mark_word(marked, &mut before);
        levels.look_up(part, marked, out);
        multiply(out, factors);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use crate::trellis::{
        levels::{
            TrellisLevels,
            avx2::{Means, has_outlier, to_f32},
        },
        marks::avx2::{flagged, load, seconds},
    };

    /// Computes as many elements as whole words have, and returns how many these are.
    #[target_feature(enable = "avx2,pclmulqdq")]
    pub(super) fn scale_marked(
        levels: &TrellisLevels,
        part: f32,
        factors: &[f32],
        symbols: &[u8],
        out: &mut [f32],
        before: &mut u64,
        has_outliers: bool,
    ) -> usize {
        // The count of shuffles is known to the compiler in each.
        let scale = match (levels.sixteens(), has_outliers) {
            (1, false) => scale_by::<1, false>,
            (2, false) => scale_by::<2, false>,
            (3, false) => scale_by::<3, false>,
            (1, true) => scale_by::<1, true>,
            (2, true) => scale_by::<2, true>,
            (3, true) => scale_by::<3, true>,
            (_, false) => scale_by::<4, false>,
            (_, true) => scale_by::<4, true>,
        };
        scale(levels, part, factors, symbols, out, before)
    }

    #[target_feature(enable = "avx2,pclmulqdq")]
    fn scale_by<const SIXTEENS: usize, const OUTLIERS: bool>(
        levels: &TrellisLevels,
        part: f32,
        factors: &[f32],
        symbols: &[u8],
        out: &mut [f32],
        before: &mut u64,
    ) -> usize {
        let means = Means::<SIXTEENS>::new(levels);
        let wide_part = _mm256_set1_ps(part);
        let (words, _) = symbols.as_chunks::<64>();
        let (outs, _) = out.as_chunks_mut::<64>();
        let (each, _) = factors.as_chunks::<64>();
        let mut past = _mm_cvtsi64_si128(*before as i64);
        for ((word, factors), out) in words.iter().zip(each).zip(outs) {
            let (halves, _) = word.as_chunks::<32>();
            let halves = [load(&halves[0]), load(&halves[1])];
            let second = seconds(halves, &mut past);
            let (outs, _) = out.as_chunks_mut::<32>();
            let (each, _) = factors.as_chunks::<32>();
            for (n, (factors, out)) in each.iter().zip(outs).enumerate() {
                if OUTLIERS && has_outlier(halves[n]) {
                    let marked = flagged(halves[n], second[n]);
                    look_up(levels, part, factors, marked, out);
                    continue;
                }
                let eights = means.in_parts(halves[n], second[n]);
                for (n, eight) in eights.iter().enumerate() {
                    let value = _mm256_mul_ps(to_f32(*eight), wide_part);
                    // SAFETY: as many elements as it reads and writes, at any address.
                    unsafe {
                        let factors = _mm256_loadu_ps(factors[8 * n..].as_ptr());
                        let value = _mm256_mul_ps(value, factors);
                        _mm256_storeu_ps(out[8 * n..].as_mut_ptr(), value);
                    }
                }
            }
        }
        *before = _mm_cvtsi128_si64(past) as u64;
        words.len() * 64
    }

    #[cold]
    #[target_feature(enable = "avx2")]
    fn look_up(
        levels: &TrellisLevels,
        part: f32,
        factors: &[f32; 32],
        marked: __m256i,
        out: &mut [f32; 32],
    ) {
        let mut symbols = [0; 32];
        // SAFETY: as many bytes as it writes, at any address.
        unsafe { _mm256_storeu_si256(symbols.as_mut_ptr().cast(), marked) };
        levels.look_up(part, &symbols, out);
        super::multiply(out, factors);
    }
}

fn multiply(out: &mut [f32], factors: &[f32]) {
    for (out, factor) in out.iter_mut().zip(factors) {
        *out *= factor;
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use crate::trellis::{
        levels::{SECOND, TrellisLevels, ZERO, avx2::LINEAR},
        marks::avx2::quantizers,
    };

    /// Computes as many elements as whole words have, and returns how many these are: as the other vector path does, but
    /// all means are in one table, and flags are masks.
    #[target_feature(enable = "avx2,pclmulqdq,avx512f,avx512bw,avx512vbmi")]
    pub(super) fn scale_marked(
        levels: &TrellisLevels,
        part: f32,
        factors: &[f32],
        symbols: &[u8],
        out: &mut [f32],
        before: &mut u64,
        has_outliers: bool,
    ) -> usize {
        let (first, means) = levels.means();
        // SAFETY: as many bytes as it reads, at any address.
        let means = unsafe { _mm512_loadu_si512(means.as_ptr().cast()) };
        let first = _mm512_set1_epi8(first as i8);
        let wide_part = _mm512_set1_ps(part);
        let (words, _) = symbols.as_chunks::<64>();
        let (outs, _) = out.as_chunks_mut::<64>();
        let (each, _) = factors.as_chunks::<64>();
        let mut past = _mm_cvtsi64_si128(*before as i64);
        for ((word, factors), out) in words.iter().zip(each).zip(outs) {
            // SAFETY: as many bytes as it reads, at any address.
            let symbols = unsafe { _mm512_loadu_si512(word.as_ptr().cast()) };
            let parities = _mm512_test_epi8_mask(symbols, _mm512_set1_epi8(1));
            let second = _mm_cvtsi128_si64(quantizers(parities, &mut past)) as u64;
            // `unpack` works within 128-bit lanes: each gets eight elements of either half of the word.
            let order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
            let symbols = _mm512_permutexvar_epi64(order, symbols);
            let codes = _mm512_sub_epi8(symbols, _mm512_set1_epi8(ZERO as i8));
            let far = _mm512_set1_epi8(LINEAR - 1);
            if has_outliers && _mm512_cmpgt_epi8_mask(_mm512_abs_epi8(codes), far) != 0 {
                look_up(levels, part, factors, word, second, out);
                continue;
            }
            let index = _mm512_sub_epi8(symbols, first);
            let has_mean = _mm512_cmplt_epu8_mask(index, _mm512_set1_epi8(64));
            let means = _mm512_maskz_permutexvar_epi8(has_mean, index, means);
            // Code and mean become a level as in `Means::in_parts`.
            let means = _mm512_xor_si512(means, _mm512_set1_epi8(i8::MIN));
            let quarter = _mm512_set1_epi16(64);
            let low = _mm512_sub_epi16(_mm512_unpacklo_epi8(means, codes), quarter);
            let high = _mm512_sub_epi16(_mm512_unpackhi_epi8(means, codes), quarter);
            let sixteens = [
                _mm512_castsi512_si256(low),
                _mm512_extracti64x4_epi64::<1>(low),
                _mm512_castsi512_si256(high),
                _mm512_extracti64x4_epi64::<1>(high),
            ];
            for (n, sixteen) in sixteens.iter().enumerate() {
                let level = _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(*sixteen));
                let second = (second >> (16 * n)) as u16;
                // Not a flipped sign, which would give -0.
                let level = _mm512_mask_sub_ps(level, second, _mm512_setzero_ps(), level);
                let value = _mm512_mul_ps(level, wide_part);
                // SAFETY: as many elements as it reads and writes, at any address.
                unsafe {
                    let factors = _mm512_loadu_ps(factors[16 * n..].as_ptr());
                    let value = _mm512_mul_ps(value, factors);
                    _mm512_storeu_ps(out[16 * n..].as_mut_ptr(), value);
                }
            }
        }
        *before = _mm_cvtsi128_si64(past) as u64;
        words.len() * 64
    }

    #[cold]
    fn look_up(
        levels: &TrellisLevels,
        part: f32,
        factors: &[f32; 64],
        symbols: &[u8; 64],
        second: u64,
        out: &mut [f32; 64],
    ) {
        let mut marked = *symbols;
        for (at, symbol) in marked.iter_mut().enumerate() {
            *symbol |= ((second >> at) as u8) << SECOND.ilog2();
        }
        levels.look_up(part, &marked, out);
        super::multiply(out, factors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trellis::{levels::MEANS, marks::mark};

    #[test]
    fn elements_are_marked_levels_times_factors() {
        let symbols: Vec<u8> = (0..300).map(|at| (at * at % 71 + 29) as u8).collect();
        let far: Vec<u8> = (0..300).map(|at| (at * 37 % 128) as u8).collect();
        let factors: Vec<f32> = (0..300).map(|at| (at % 7) as f32 * 0.3).collect();
        // One mean, some at either end, and all of them.
        for moved in [0..0, 31..32, 0..16, 46..64, 20..60, 0..MEANS] {
            let mean = |at: usize| {
                if moved.contains(&at) {
                    at as i8 - 70
                } else {
                    0
                }
            };
            let levels = TrellisLevels::new(std::array::from_fn(mean), 1.);
            let cases = [
                (&symbols, 0.37, false),
                (&symbols, 0.37, true),
                (&far, 1e-3, true),
                (&symbols, f32::NAN, false),
                (&symbols, f32::NAN, true),
            ];
            for (symbols, part, has_outliers) in cases {
                for count in [0, 1, 63, 64, 65, 256, 300] {
                    let mut marked = symbols[..count].to_vec();
                    mark(SimdPath::Portable, &mut marked);
                    let mut expected = vec![0.; count];
                    levels.look_up(part, &marked, &mut expected);
                    multiply(&mut expected, &factors[..count]);
                    for path in SimdPath::all() {
                        let mut out = vec![-1.; count];
                        let (symbols, factors) = (&symbols[..count], &factors[..count]);
                        scale_marked(
                            &levels,
                            path,
                            part,
                            factors,
                            symbols,
                            &mut out,
                            has_outliers,
                        );
                        let bits = |of: &[f32]| of.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                        assert_eq!(
                            bits(&out),
                            bits(&expected),
                            "{path:?} {moved:?} {count} {has_outliers}"
                        );
                    }
                }
            }
        }
    }
}
