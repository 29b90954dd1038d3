//! The trellis's code: which of two quantizers an element has, given the elements before it.
//!
//! The even and the odd symbols of each quantizer are every fourth point of the union of both quantizers' points. Which
//! quantizer comes next follows Ungerboeck's rate-1/2 code for one dimension ("Trellis-coded modulation with redundant
//! signal sets", 1987; Marcellin and Fischer, "Trellis coded quantization of memoryless and Gauss-Markov sources",
//! 1990, apply it to quantization). In polynomials over GF(2), of the symbols' parities p and the quantizers q:
//! `CHECK · q = FEED · p`. With `past = p / CHECK` the quantizers are `FEED · past`, which takes a few shifts for a
//! word of 64 elements, whatever the number of states. That is all a decoder has to do, so many states are affordable.

use super::levels::SECOND;
use crate::simd::SimdPath;

/// Exponents of `CHECK`'s terms besides 1.
pub(super) const CHECK: [u32; 2] = [1, 6];
/// Exponents of `FEED`'s terms: neither 0 nor the highest, so that both branches into a state come from the same
/// quantizer.
pub(super) const FEED: [u32; 2] = [2, 4];

/// Sets the flag of each symbol of a tile that is of the second quantizer, and clears the others'.
pub(crate) fn mark(path: SimdPath, tile: &mut [u8]) {
    // Each tile begins with a past of zeros, so that it can be decompressed alone.
    let mut before = 0;
    let done = match path {
        SimdPath::Portable => 0,
        #[cfg(target_arch = "x86_64")]
        // SAFETY: there is no such path on a processor without these features.
        SimdPath::Avx2(_) => unsafe { avx2::mark(tile, &mut before) },
    };
    for symbols in tile[done..].chunks_mut(64) {
        mark_word(symbols, &mut before);
    }
}

/// The same for the next 64 symbols of a tile, or its last ones. `before` is the past of those before them.
pub(super) fn mark_word(symbols: &mut [u8], before: &mut u64) {
    // Parities after the last symbol are zero, and nothing follows them in a tile.
    let parities = symbols.iter().rev();
    let parities = parities.fold(0, |word, symbol| word << 1 | u64::from(symbol & 1));
    let second = quantizers(parities, before);
    for (at, symbol) in symbols.iter_mut().enumerate() {
        *symbol = *symbol & !SECOND | ((second >> at) as u8) << 7;
    }
}

/// The quantizers of 64 elements, from their parities and the past of the 64 before them.
fn quantizers(parities: u64, before: &mut u64) -> u64 {
    // The part of the division that carries over from the word before.
    let mut past = parities;
    for power in CHECK {
        past ^= *before >> (64 - power);
    }
    let past = divided(past);
    let mut second = 0;
    for power in FEED {
        second ^= past << power | *before >> (64 - power);
    }
    *before = past;
    second
}

/// Division by `CHECK` modulo x^64.
const fn divided(mut past: u64) -> u64 {
    // Over GF(2), CHECK^64 = 1 + x^64 + x^384, which is 1 here, so the inverse is CHECK^63: the product of CHECK^(2^k) for
    // k from 0 to 5, each of which only scales the exponents.
    let mut doubled = 0;
    while doubled < 6 {
        let [one, other] = CHECK;
        past ^= shifted(past, one << doubled) ^ shifted(past, other << doubled);
        doubled += 1;
    }
    past
}

const fn shifted(word: u64, by: u32) -> u64 {
    match word.checked_shl(by) {
        Some(word) => word,
        None => 0,
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use std::arch::x86_64::*;

    use super::{CHECK, FEED, SECOND, divided};

    /// Marks as many symbols as whole words have, and returns how many these are.
    #[target_feature(enable = "avx2,pclmulqdq")]
    pub(super) fn mark(tile: &mut [u8], before: &mut u64) -> usize {
        let (words, _) = tile.as_chunks_mut::<64>();
        let mut past = _mm_cvtsi64_si128(*before as i64);
        for word in words.iter_mut() {
            let (halves, _) = word.as_chunks_mut::<32>();
            let both = [load(&halves[0]), load(&halves[1])];
            let second = seconds(both, &mut past);
            for (n, half) in halves.iter_mut().enumerate() {
                let marked = flagged(both[n], second[n]);
                // SAFETY: as many bytes as it writes, at any address.
                unsafe { _mm256_storeu_si256(half.as_mut_ptr().cast(), marked) };
            }
        }
        *before = _mm_cvtsi128_si64(past) as u64;
        words.len() * 64
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in super::super) fn load(symbols: &[u8; 32]) -> __m256i {
        // SAFETY: as many bytes as it reads, at any address.
        unsafe { _mm256_loadu_si256(symbols.as_ptr().cast()) }
    }

    /// Which of 64 symbols are of the second quantizer: all bits of these. The low half of `before` is the past of the
    /// symbols before them.
    #[inline]
    #[target_feature(enable = "avx2,pclmulqdq")]
    pub(in super::super) fn seconds(
        [low, high]: [__m256i; 2],
        before: &mut __m128i,
    ) -> [__m256i; 2] {
        // Bit 0 of each byte is shifted to bit 7, which `movemask` collects; what comes from the neighbour ends below it.
        let parities = |half| {
            let parities = _mm256_movemask_epi8(_mm256_slli_epi16::<7>(half));
            u64::from(parities as u32)
        };
        let second = quantizers(parities(high) << 32 | parities(low), before);
        let second = _mm256_broadcastq_epi64(second);
        // Each byte lane gets the byte that contains its bit, then tests the bit.
        let bytes = _mm256_setr_epi8(
            0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, //
            2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3,
        );
        let bits = _mm256_set1_epi64x(i64::from_le_bytes([1, 2, 4, 8, 16, 32, 64, 128]));
        let tested = |bytes| {
            let second = _mm256_shuffle_epi8(second, bytes);
            _mm256_cmpeq_epi8(_mm256_and_si256(second, bits), bits)
        };
        let bytes_high = _mm256_add_epi8(bytes, _mm256_set1_epi8(4));
        [tested(bytes), tested(bytes_high)]
    }

    /// Symbols with their flags.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in super::super) fn flagged(symbols: __m256i, second: __m256i) -> __m256i {
        let mark = _mm256_set1_epi8(SECOND as i8);
        let symbols = _mm256_andnot_si256(mark, symbols);
        _mm256_or_si256(symbols, _mm256_and_si256(mark, second))
    }

    /// As the plain one; a division is a product without carries here. Only the low halves count.
    #[inline]
    #[target_feature(enable = "avx2,pclmulqdq")]
    pub(in super::super) fn quantizers(parities: u64, before: &mut __m128i) -> __m128i {
        const INVERSE: u64 = divided(1);
        const OVER: [i32; 4] = [
            64 - CHECK[0] as i32,
            64 - CHECK[1] as i32,
            64 - FEED[0] as i32,
            64 - FEED[1] as i32,
        ];
        let carried = _mm_xor_si128(
            _mm_srli_epi64::<{ OVER[0] }>(*before),
            _mm_srli_epi64::<{ OVER[1] }>(*before),
        );
        let past = _mm_xor_si128(_mm_cvtsi64_si128(parities as i64), carried);
        let past = _mm_clmulepi64_si128::<0>(past, _mm_cvtsi64_si128(INVERSE as i64));
        let fed = _mm_xor_si128(
            _mm_slli_epi64::<{ FEED[0] as i32 }>(past),
            _mm_slli_epi64::<{ FEED[1] as i32 }>(past),
        );
        let carried = _mm_xor_si128(
            _mm_srli_epi64::<{ OVER[2] }>(*before),
            _mm_srli_epi64::<{ OVER[3] }>(*before),
        );
        *before = past;
        _mm_xor_si128(fed, carried)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Element by element, as the code is defined.
    pub(in super::super) fn mark_slowly(tile: &mut [u8]) {
        let (mut parities, mut seconds) = (vec![], vec![]);
        for (at, symbol) in tile.iter_mut().enumerate() {
            let before =
                |of: &[u8], power: u32| at.checked_sub(power as usize).map_or(0, |at| of[at]);
            let second = CHECK.iter().map(|power| before(&seconds, *power));
            let parity = FEED.iter().map(|power| before(&parities, *power));
            let second = second.chain(parity).fold(0, |sum, bit| sum ^ bit);
            parities.push(*symbol & 1);
            seconds.push(second);
            *symbol = *symbol & !SECOND | second << 7;
        }
    }

    proptest! {
        #[test]
        fn marks_are_those_of_the_code(symbols in prop::collection::vec(any::<u8>(), 0..512)) {
            let mut expected = symbols.clone();
            mark_slowly(&mut expected);
            for path in SimdPath::all() {
                let mut marked = symbols.clone();
                mark(path, &mut marked);
                prop_assert_eq!(&marked, &expected);
            }
        }
    }
}
