//! Dictionary coding at a fixed rate: four-bit indices into fifteen symbols; rarer symbols are escapes, stored
//! separately in order.
//!
//! Fifteen exponents cover all but a few in ten thousand of a language model's weights. One byte shuffle looks up
//! sixteen symbols at once, so that decoding is about as fast as copying.

use crate::{layout::DICTIONARY_BYTES, simd::SimdPath};

/// Index that stands for a symbol outside of the dictionary.
pub(crate) const ESCAPE: u8 = 15;
/// Most escapes of a tile; one with more stores all of its symbols as escapes.
pub(crate) const ESCAPES_MAX: usize = 254;

/// The fifteen most frequent symbols, sorted; the sixteenth entry, 0, is the placeholder of escapes.
pub(crate) fn dictionary(counts: &[u64; 256]) -> [u8; DICTIONARY_BYTES] {
    let mut symbols: Vec<u8> = (0..=255).collect();
    // Stable: of equally frequent symbols the smaller ones are taken, on every machine.
    symbols.sort_by_key(|symbol| std::cmp::Reverse(counts[usize::from(*symbol)]));
    let mut palette = [0; DICTIONARY_BYTES];
    palette[..usize::from(ESCAPE)].copy_from_slice(&symbols[..usize::from(ESCAPE)]);
    // Sorted, so that equal sets of symbols give equal tables.
    palette[..usize::from(ESCAPE)].sort_unstable();
    palette
}

/// The index of each symbol; [`ESCAPE`] for those that the dictionary lacks.
pub(crate) fn indices(dictionary: &[u8; DICTIONARY_BYTES]) -> [u8; 256] {
    let mut indices = [ESCAPE; 256];
    for (index, symbol) in (0..ESCAPE).zip(dictionary) {
        indices[usize::from(*symbol)] = index;
    }
    indices
}

/// Looks up symbols by their indices, two a byte, the first one in the low half. Escapes yield the dictionary's last
/// entry until [`patch`] replaces them.
pub(crate) fn decompress(
    path: SimdPath,
    dictionary: &[u8; DICTIONARY_BYTES],
    codes: &[u8],
    out: &mut [u8],
) {
    assert_eq!(codes.len(), out.len().div_ceil(2));
    let done = match path {
        SimdPath::Portable => 0,
        #[cfg(target_arch = "x86_64")]
        // SAFETY: there is no such path on a processor without these features.
        SimdPath::Avx2(_) => unsafe { decompress_avx2(dictionary, codes, out) },
    };
    // Whole vectors are 32 symbols each, so the rest begins with a whole byte of codes.
    decompress_portable(dictionary, &codes[done / 2..], &mut out[done..]);
}

fn decompress_portable(dictionary: &[u8; DICTIONARY_BYTES], codes: &[u8], out: &mut [u8]) {
    for (pair, code) in out.chunks_mut(2).zip(codes) {
        pair[0] = dictionary[usize::from(code & 15)];
        if let Some(second) = pair.get_mut(1) {
            *second = dictionary[usize::from(code >> 4)];
        }
    }
}

/// Writes a tile's escapes where its index is [`ESCAPE`], testing sixteen indices at a time, most of which have none.
/// Surplus escapes are ignored; where there are too few, the placeholder stays.
pub(crate) fn patch(codes: &[u8], escapes: &[u8], out: &mut [u8]) {
    let mut escapes = escapes.iter();
    for (codes, out) in codes.chunks(8).zip(out.chunks_mut(16)) {
        let mut word = [0; 8];
        word[..codes.len()].copy_from_slice(codes);
        let word = u64::from_le_bytes(word);
        // One bit for each nibble that is 15: the AND of its four bits.
        let pairs = word & word >> 1;
        let mut found = pairs & pairs >> 2 & 0x1111_1111_1111_1111;
        while found != 0 {
            let place = found.trailing_zeros() as usize / 4;
            // A tile of an odd length has an unused last index, which is 15 in hostile bytes.
            let Some(out) = out.get_mut(place) else {
                return;
            };
            let Some(escape) = escapes.next() else {
                return;
            };
            *out = *escape;
            found &= found - 1;
        }
    }
}

/// Processes whole vectors only; returns how many symbols that was.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn decompress_avx2(dictionary: &[u8; DICTIONARY_BYTES], codes: &[u8], out: &mut [u8]) -> usize {
    use std::arch::x86_64::*;

    // SAFETY: as many bytes as it reads, at any address.
    let palette = unsafe { _mm_loadu_si128(dictionary.as_ptr().cast()) };
    let palette = _mm256_broadcastsi128_si256(palette);
    let (out, _) = out.as_chunks_mut::<32>();
    let (codes, _) = codes.as_chunks::<16>();
    for (out, codes) in out.iter_mut().zip(codes) {
        // SAFETY: as many bytes as it reads, at any address.
        let codes = unsafe { _mm_loadu_si128(codes.as_ptr().cast()) };
        let wide = _mm256_cvtepu8_epi16(codes);
        // Each code byte is widened to 16 bits and its high nibble moved to the high byte, so that indices come out in
        // order.
        let both = _mm256_or_si256(wide, _mm256_slli_epi16::<4>(wide));
        let indices = _mm256_and_si256(both, _mm256_set1_epi8(15));
        // The shuffle looks up within 128-bit lanes, hence the dictionary in both of them.
        let symbols = _mm256_shuffle_epi8(palette, indices);
        // SAFETY: as many bytes as it writes, at any address.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), symbols) };
    }
    out.len() * 32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frequent_symbols_are_in_the_palette() {
        let mut counts = [0; 256];
        for (count, more) in counts[100..120].iter_mut().zip(101..) {
            *count = more;
        }

        let palette = dictionary(&counts);

        assert_eq!(palette[..15], (105..120).collect::<Vec<u8>>());
        let indices = indices(&palette);
        assert_eq!((indices[104], indices[105], indices[119]), (15, 0, 14));
    }

    proptest! {
        #[test]
        fn any_bytes_mean_the_same_in_both_ways(
            palette in prop::array::uniform16(any::<u8>()),
            codes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0xf3), Just(0xff)], 1..=256),
            escapes in prop::collection::vec(any::<u8>(), 0..20),
            odd in any::<bool>(),
        ) {
            let count = codes.len() * 2 - usize::from(odd);
            let mut left = escapes.iter();
            let expected: Vec<u8> = (0..count)
                .map(|i| codes[i / 2] >> (i % 2 * 4) & 15)
                .map(|index| match index {
                    ESCAPE => *left.next().unwrap_or(&palette[15]),
                    index => palette[usize::from(index)],
                })
                .collect();
            for path in SimdPath::all() {
                let mut out = vec![0; count];
                decompress(path, &palette, &codes, &mut out);
                patch(&codes, &escapes, &mut out);
                prop_assert_eq!(&out, &expected);
            }
        }
    }
}
