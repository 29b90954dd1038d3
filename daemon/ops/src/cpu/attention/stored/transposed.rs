//! Words of 16 rows, of which each row has a lane.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "all bodies are plain instructions, and safe where what the trait asks of callers holds"
)]

use std::arch::x86_64::*;

use crate::cpu::lanes::{Avx2, Avx512Vnni, Lanes};

/// Words of a row that are transposed at a time.
pub(super) const WORDS: usize = 8;
/// Rows that are transposed at a time.
pub(super) const ROWS: usize = 16;

/// # Safety
/// As [`Lanes`]; rows have [`WORDS`] words.
pub(super) trait Transposed: Lanes {
    /// Word `k` of every row, for each `k`.
    unsafe fn transposed(rows: &[*const u8; ROWS]) -> [Self::Words; WORDS];

    /// The lower half of each word, as `f32`.
    unsafe fn low_halves(words: Self::Words) -> Self::Numbers;
}

impl Transposed for Avx512Vnni {
    #[inline(always)]
    unsafe fn transposed(rows: &[*const u8; ROWS]) -> [__m512i; WORDS] {
        unsafe {
            // Two rows to a vector, so that the quarters of two vectors are those of 16 rows in their order.
            let mut pairs = [_mm512_setzero_si512(); WORDS];
            for (i, pair) in pairs.iter_mut().enumerate() {
                let row = i / 4 * 8 + i % 4;
                let low = _mm512_castsi256_si512(_mm256_loadu_si256(rows[row].cast()));
                let high = _mm256_loadu_si256(rows[row + 4].cast());
                *pair = _mm512_inserti64x4::<1>(low, high);
            }
            // As a tile of 16 × 16 is transposed: pairs of rows, then fours, then quarters of vectors.
            let mut twos = pairs;
            for i in [0, 2, 4, 6] {
                twos[i] = _mm512_unpacklo_epi32(pairs[i], pairs[i + 1]);
                twos[i + 1] = _mm512_unpackhi_epi32(pairs[i], pairs[i + 1]);
            }
            let mut fours = twos;
            for i in [0, 4] {
                fours[i] = _mm512_unpacklo_epi64(twos[i], twos[i + 2]);
                fours[i + 1] = _mm512_unpackhi_epi64(twos[i], twos[i + 2]);
                fours[i + 2] = _mm512_unpacklo_epi64(twos[i + 1], twos[i + 3]);
                fours[i + 3] = _mm512_unpackhi_epi64(twos[i + 1], twos[i + 3]);
            }
            let mut out = fours;
            for i in 0..4 {
                out[i] = _mm512_shuffle_i32x4::<0x88>(fours[i], fours[i + 4]);
                out[i + 4] = _mm512_shuffle_i32x4::<0xdd>(fours[i], fours[i + 4]);
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn low_halves(words: __m512i) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)) }
    }
}

impl Transposed for Avx2 {
    #[inline(always)]
    unsafe fn transposed(rows: &[*const u8; ROWS]) -> [[__m256i; 2]; WORDS] {
        unsafe {
            let mut out = [[_mm256_setzero_si256(); 2]; WORDS];
            for half in 0..2 {
                // A row to a quarter of a vector, so that two more steps transpose.
                let mut quarters = [_mm256_setzero_si256(); WORDS];
                for i in 0..4 {
                    for part in 0..2 {
                        let low = rows[8 * half + i].wrapping_add(16 * part);
                        let high = rows[8 * half + i + 4].wrapping_add(16 * part);
                        let low = _mm256_castsi128_si256(_mm_loadu_si128(low.cast()));
                        let high = _mm_loadu_si128(high.cast());
                        quarters[4 * part + i] = _mm256_inserti128_si256::<1>(low, high);
                    }
                }
                for part in [0, 4] {
                    let (a, b) = (quarters[part], quarters[part + 1]);
                    let (c, d) = (quarters[part + 2], quarters[part + 3]);
                    let low = [_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d)];
                    let high = [_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d)];
                    out[part][half] = _mm256_unpacklo_epi64(low[0], low[1]);
                    out[part + 1][half] = _mm256_unpackhi_epi64(low[0], low[1]);
                    out[part + 2][half] = _mm256_unpacklo_epi64(high[0], high[1]);
                    out[part + 3][half] = _mm256_unpackhi_epi64(high[0], high[1]);
                }
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn low_halves(words: [__m256i; 2]) -> [__m256; 2] {
        unsafe {
            let mask = _mm256_set1_epi32(0xffff);
            let low = _mm256_and_si256(words[0], mask);
            let high = _mm256_and_si256(words[1], mask);
            // Packing goes by halves of vectors.
            let halves = _mm256_permute4x64_epi64::<0xd8>(_mm256_packus_epi32(low, high));
            [
                _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)),
            ]
        }
    }
}
