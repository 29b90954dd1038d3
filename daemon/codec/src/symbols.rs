//! Splits elements into symbols and raw bits, and merges them again.

use sluice_formats::DType;

use crate::simd::SimdPath;

/// Bytes of one element beside its symbol. They are kept as they are, since they look like noise.
pub(crate) const fn raw_bytes(dtype: DType) -> usize {
    dtype.bytes() - 1
}

/// Splits elements: one symbol and [`raw_bytes`] bytes each. The symbol is the exponent; of `f16` it is the high byte: sign,
/// exponent and two bits of the mantissa.
pub(crate) fn split(dtype: DType, bytes: &[u8], symbols: &mut [u8], raw: &mut [u8]) {
    let count = symbols.len();
    assert_eq!(bytes.len(), count * dtype.bytes());
    assert_eq!(raw.len(), count * raw_bytes(dtype));
    match dtype {
        DType::Bf16 => {
            let (numbers, _) = bytes.as_chunks::<2>();
            for ((symbol, raw), number) in symbols.iter_mut().zip(raw).zip(numbers) {
                // The eight exponent bits straddle the byte boundary. Sign and mantissa, eight bits as well, close up
                // to a byte.
                let bits = u16::from_le_bytes(*number);
                *symbol = (bits >> 7) as u8;
                *raw = ((bits >> 8) & 0x80 | bits & 0x7f) as u8;
            }
        }
        DType::F16 => {
            let (numbers, _) = bytes.as_chunks::<2>();
            for ((symbol, raw), number) in symbols.iter_mut().zip(raw).zip(numbers) {
                // The high byte has sign, exponent and two bits of mantissa: seven bits of low entropy and one that
                // fills the byte, so that neither half needs bit packing.
                [*raw, *symbol] = *number;
            }
        }
        DType::F32 => {
            let (numbers, _) = bytes.as_chunks::<4>();
            let (raws, _) = raw.as_chunks_mut::<3>();
            for ((symbol, raw), number) in symbols.iter_mut().zip(raws).zip(numbers) {
                // As for bf16: the sign moves down to bit 23, the exponent's lowest, so that what is left fills three
                // bytes.
                let bits = u32::from_le_bytes(*number);
                *symbol = (bits >> 23) as u8;
                let rest = (bits >> 8) & 0x80_0000 | bits & 0x7f_ffff;
                [raw[0], raw[1], raw[2], _] = rest.to_le_bytes();
            }
        }
    }
}

/// Computes the symbols alone: a first pass counts them before anything is written.
pub(crate) fn symbols(dtype: DType, bytes: &[u8], symbols: &mut [u8]) {
    assert_eq!(bytes.len(), symbols.len() * dtype.bytes());
    match dtype {
        DType::Bf16 => {
            let (numbers, _) = bytes.as_chunks::<2>();
            for (symbol, number) in symbols.iter_mut().zip(numbers) {
                *symbol = (u16::from_le_bytes(*number) >> 7) as u8;
            }
        }
        DType::F16 => {
            let (numbers, _) = bytes.as_chunks::<2>();
            for (symbol, number) in symbols.iter_mut().zip(numbers) {
                *symbol = number[1];
            }
        }
        DType::F32 => {
            let (numbers, _) = bytes.as_chunks::<4>();
            for (symbol, number) in symbols.iter_mut().zip(numbers) {
                *symbol = (u32::from_le_bytes(*number) >> 23) as u8;
            }
        }
    }
}

/// Merges symbols and raw bits into the original bytes.
pub(crate) fn merge(path: SimdPath, dtype: DType, symbols: &[u8], raw: &[u8], out: &mut [u8]) {
    assert_eq!(raw.len(), symbols.len() * raw_bytes(dtype));
    assert_eq!(out.len(), symbols.len() * dtype.bytes());
    let done = match path {
        SimdPath::Portable => 0,
        #[cfg(target_arch = "x86_64")]
        // SAFETY: there is no such path on a processor without these features.
        SimdPath::Avx2(_) => unsafe { avx2::merge(dtype, symbols, raw, out) },
    };
    // The vector path stops before the last incomplete vector; the portable path does the rest, so both see the same
    // elements.
    merge_portable(
        dtype,
        &symbols[done..],
        &raw[done * raw_bytes(dtype)..],
        &mut out[done * dtype.bytes()..],
    );
}

/// Merges symbols and raw bits, upcast to `f32`.
pub(crate) fn upcast(path: SimdPath, dtype: DType, symbols: &[u8], raw: &[u8], out: &mut [f32]) {
    assert_eq!(raw.len(), symbols.len() * raw_bytes(dtype));
    assert_eq!(out.len(), symbols.len());
    let done = match path {
        SimdPath::Portable => 0,
        #[cfg(target_arch = "x86_64")]
        // SAFETY: there is no such path on a processor without these features.
        SimdPath::Avx2(_) => unsafe { avx2::upcast(dtype, symbols, raw, out) },
    };
    upcast_portable(
        dtype,
        &symbols[done..],
        &raw[done * raw_bytes(dtype)..],
        &mut out[done..],
    );
}

/// Upcasts uncompressed elements to `f32`.
pub(crate) fn upcast_plain(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * dtype.bytes());
    match dtype {
        DType::Bf16 => {
            for (out, number) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*number)) << 16);
            }
        }
        DType::F16 => {
            for (out, number) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = f32_of_f16(u16::from_le_bytes(*number));
            }
        }
        DType::F32 => {
            for (out, number) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*number);
            }
        }
    }
}

fn merge_portable(dtype: DType, symbols: &[u8], raw: &[u8], out: &mut [u8]) {
    match dtype {
        DType::Bf16 => {
            let (out, _) = out.as_chunks_mut::<2>();
            for ((out, symbol), raw) in out.iter_mut().zip(symbols).zip(raw) {
                *out = bf16_bits(*symbol, *raw).to_le_bytes();
            }
        }
        DType::F16 => {
            let (out, _) = out.as_chunks_mut::<2>();
            for ((out, symbol), raw) in out.iter_mut().zip(symbols).zip(raw) {
                *out = [*raw, *symbol];
            }
        }
        DType::F32 => {
            let (out, _) = out.as_chunks_mut::<4>();
            let (raw, _) = raw.as_chunks::<3>();
            for ((out, symbol), raw) in out.iter_mut().zip(symbols).zip(raw) {
                *out = f32_bits(*symbol, *raw).to_le_bytes();
            }
        }
    }
}

fn upcast_portable(dtype: DType, symbols: &[u8], raw: &[u8], out: &mut [f32]) {
    match dtype {
        DType::Bf16 => {
            for ((out, symbol), raw) in out.iter_mut().zip(symbols).zip(raw) {
                *out = f32::from_bits(u32::from(bf16_bits(*symbol, *raw)) << 16);
            }
        }
        DType::F16 => {
            for ((out, symbol), raw) in out.iter_mut().zip(symbols).zip(raw) {
                *out = f32_of_f16(u16::from_le_bytes([*raw, *symbol]));
            }
        }
        DType::F32 => {
            let (raw, _) = raw.as_chunks::<3>();
            for ((out, symbol), raw) in out.iter_mut().zip(symbols).zip(raw) {
                *out = f32::from_bits(f32_bits(*symbol, *raw));
            }
        }
    }
}

fn bf16_bits(symbol: u8, raw: u8) -> u16 {
    let (symbol, raw) = (u16::from(symbol), u16::from(raw));
    (raw & 0x80) << 8 | symbol << 7 | raw & 0x7f
}

fn f32_bits(symbol: u8, raw: [u8; 3]) -> u32 {
    let rest = u32::from_le_bytes([raw[0], raw[1], raw[2], 0]);
    (rest & 0x80_0000) << 8 | u32::from(symbol) << 23 | rest & 0x7f_ffff
}

/// Upcasts as `vcvtph2ps` does, which makes signalling NaN quiet; the AVX2 path has to give the same bits.
fn f32_of_f16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10 & 0x1f);
    let mantissa = u32::from(bits & 0x3ff);
    let magnitude = match (exponent, mantissa) {
        (0, 0) => 0,
        (0, _) => {
            // A subnormal: its highest set bit becomes the hidden one.
            let shift = mantissa.leading_zeros() - 21;
            (113 - shift) << 23 | (mantissa << (shift + 13)) & 0x7f_ffff
        }
        (0x1f, 0) => 0x7f80_0000,
        (0x1f, _) => 0x7fc0_0000 | mantissa << 13,
        // Exponent bias: 127 - 15 = 112.
        _ => (exponent + 112) << 23 | mantissa << 13,
    };
    f32::from_bits(sign | magnitude)
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! Each function processes whole vectors only, and returns how many elements that was.

    use std::arch::x86_64::*;

    use sluice_formats::DType;

    /// Elements of one step: a vector of bytes.
    const STEP: usize = 32;

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn merge(dtype: DType, symbols: &[u8], raw: &[u8], out: &mut [u8]) -> usize {
        match dtype {
            DType::Bf16 | DType::F16 => {
                let (symbols, _) = symbols.as_chunks::<STEP>();
                let (raw, _) = raw.as_chunks::<STEP>();
                let (out, _) = out.as_chunks_mut::<{ 2 * STEP }>();
                for ((out, symbols), raw) in out.iter_mut().zip(symbols).zip(raw) {
                    let halves = halves(dtype, load(symbols), load(raw));
                    let (out, _) = out.as_chunks_mut::<32>();
                    store(&mut out[0], halves[0]);
                    store(&mut out[1], halves[1]);
                }
                symbols.len() * STEP
            }
            DType::F32 => {
                let (out, _) = out.as_chunks_mut::<32>();
                let mut done = 0;
                for (out, place) in out.iter_mut().zip((0..).step_by(8)) {
                    // The portable path does the last few elements, whose raw bytes end before a load of 28 would.
                    let Some(bits) = f32_bits(symbols, raw, place) else {
                        break;
                    };
                    store(out, bits);
                    done = place + 8;
                }
                done
            }
        }
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn upcast(dtype: DType, symbols: &[u8], raw: &[u8], out: &mut [f32]) -> usize {
        let (out, _) = out.as_chunks_mut::<8>();
        match dtype {
            DType::Bf16 | DType::F16 => {
                let (symbols, _) = symbols.as_chunks::<STEP>();
                let (raw, _) = raw.as_chunks::<STEP>();
                let (out, _) = out.as_chunks_mut::<4>();
                for ((out, symbols), raw) in out.iter_mut().zip(symbols).zip(raw) {
                    let halves = halves(dtype, load(symbols), load(raw));
                    for (out, half) in out.chunks_exact_mut(2).zip(halves) {
                        let (low, high) = (
                            _mm256_castsi256_si128(half),
                            _mm256_extracti128_si256::<1>(half),
                        );
                        for (out, eight) in out.iter_mut().zip([low, high]) {
                            let wide = if dtype == DType::Bf16 {
                                // A bf16 is the upper half of the f32 with the same value.
                                let wide = _mm256_cvtepu16_epi32(eight);
                                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
                            } else {
                                _mm256_cvtph_ps(eight)
                            };
                            store_f32(out, wide);
                        }
                    }
                }
                symbols.len() * STEP
            }
            DType::F32 => {
                let mut done = 0;
                for (out, place) in out.iter_mut().zip((0..).step_by(8)) {
                    // As in `merge`: the portable path does the last few elements.
                    let Some(bits) = f32_bits(symbols, raw, place) else {
                        break;
                    };
                    store_f32(out, _mm256_castsi256_ps(bits));
                    done = place + 8;
                }
                done
            }
        }
    }

    /// Thirty-two 16-bit elements, in order.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn halves(dtype: DType, symbols: __m256i, raw: __m256i) -> [__m256i; 2] {
        let (low, high) = match dtype {
            DType::Bf16 => {
                let sign = _mm256_set1_epi8(i8::MIN);
                // Shifts are of 16 bits; the masks drop what came from the other byte.
                let low_exponent = _mm256_and_si256(_mm256_slli_epi16::<7>(symbols), sign);
                let high_exponent = _mm256_andnot_si256(sign, _mm256_srli_epi16::<1>(symbols));
                (
                    _mm256_or_si256(low_exponent, _mm256_andnot_si256(sign, raw)),
                    _mm256_or_si256(high_exponent, _mm256_and_si256(sign, raw)),
                )
            }
            _ => (raw, symbols),
        };
        // `unpack` works within 128-bit lanes, so its two results hold elements 0..8, 16..24 and 8..16, 24..32; the
        // permutes restore the order.
        let even = _mm256_unpacklo_epi8(low, high);
        let odd = _mm256_unpackhi_epi8(low, high);
        [
            _mm256_permute2x128_si256::<0x20>(even, odd),
            _mm256_permute2x128_si256::<0x31>(even, odd),
        ]
    }

    /// Eight 32-bit elements; `None` near the end, where the 28 raw bytes that are loaded aren't all there.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn f32_bits(symbols: &[u8], raw: &[u8], place: usize) -> Option<__m256i> {
        let symbols = symbols.get(place..)?.first_chunk::<8>()?;
        let raw = raw.get(place * 3..)?;
        // Eight elements have 24 raw bytes. The second load begins at byte 12, so that each lane holds four elements of
        // three bytes.
        let (low, high) = (raw.first_chunk::<16>()?, raw.get(12..)?.first_chunk()?);
        let rest = _mm256_set_m128i(load_half(high), load_half(low));
        // Three bytes become four. A negative shuffle index makes the fourth byte zero. The pattern is the same for
        // both lanes.
        let spread = _mm256_setr_epi8(
            0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1, //
            0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1,
        );
        let rest = _mm256_shuffle_epi8(rest, spread);
        let symbols = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(*symbols)));
        let mantissa = _mm256_and_si256(rest, _mm256_set1_epi32(0x7f_ffff));
        let sign = _mm256_slli_epi32::<31>(_mm256_srli_epi32::<23>(rest));
        let exponent = _mm256_slli_epi32::<23>(symbols);
        Some(_mm256_or_si256(sign, _mm256_or_si256(exponent, mantissa)))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load(bytes: &[u8; 32]) -> __m256i {
        // SAFETY: as many bytes as it reads, at any address.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load_half(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: as many bytes as it reads, at any address.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store(out: &mut [u8; 32], vector: __m256i) {
        // SAFETY: as many bytes as it writes, at any address.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), vector) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store_f32(out: &mut [f32; 8], vector: __m256) {
        // SAFETY: as many elements as it writes, at any address.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), vector) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(dtype: DType, bits: u32) -> Vec<u8> {
        bits.to_le_bytes()[..dtype.bytes()].to_vec()
    }

    /// Every pattern of 16 bits, and of 32 bits those with every sign, exponent and end of the mantissa.
    fn every(dtype: DType) -> Vec<u8> {
        (0..1 << 16)
            .flat_map(|bits: u32| {
                let bits = match dtype {
                    DType::F32 => ((bits & 0xff80) << 16) | ((bits & 0x7f) * 0x1_0205),
                    _ => bits,
                };
                bytes_of(dtype, bits)
            })
            .collect()
    }

    #[test]
    fn every_number_comes_back() {
        for number in DType::ALL {
            for short in 0..40 {
                let bytes = &every(number)[short * number.bytes()..];
                let count = bytes.len() / number.bytes();
                let (mut symbols, mut raw) = (vec![0; count], vec![0; count * raw_bytes(number)]);
                split(number, bytes, &mut symbols, &mut raw);
                let mut alone = vec![0; count];
                super::symbols(number, bytes, &mut alone);
                assert_eq!(alone, symbols);

                let mut plain = vec![0.; count];
                upcast_plain(number, bytes, &mut plain);
                for path in SimdPath::all() {
                    let (mut merged, mut wide) = (vec![0; bytes.len()], vec![0.; count]);
                    merge(path, number, &symbols, &raw, &mut merged);
                    upcast(path, number, &symbols, &raw, &mut wide);

                    assert!(merged == bytes, "{number:?} {path:?}");
                    let bits = |numbers: &[f32]| -> Vec<u32> {
                        numbers.iter().map(|number| number.to_bits()).collect()
                    };
                    assert!(bits(&wide) == bits(&plain), "{number:?} {path:?}");
                }
            }
        }
    }

    #[test]
    fn halves_upcast_as_elsewhere() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            assert_eq!(f32_of_f16(bits).to_bits(), expected.to_bits(), "{bits:#x}");
        }
    }
}
