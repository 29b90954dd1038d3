//! Sixteen lanes, and what each instruction set does with them. Kernels for weights whose rows lie beside each other, and for
//! keys and values as they are stored, are written once over this.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "all bodies are single instructions, and safe where what the trait asks of callers holds"
)]

use std::arch::{asm, x86_64::*};

use sluice_formats::interleaved::ROWS;

/// Operations on 16 lanes.
///
/// # Safety
/// All methods: the CPU has the instructions that the set is named for, and pointers are valid for 16 lanes. Whoever calls
/// them is compiled for the instructions, else each is a call of its own.
pub(super) trait Lanes {
    /// A word of four bytes in each lane.
    type Words: Copy;
    /// An `f32` in each lane.
    type Numbers: Copy;

    /// Brings a cache line in, wherever it is.
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }

    unsafe fn words(at: *const u8) -> Self::Words;
    /// Halves in 16 lanes, as `f32`.
    unsafe fn halves(at: *const u8) -> Self::Numbers;
    unsafe fn numbers(at: *const f32) -> Self::Numbers;
    /// Elements in `bf16`, one after another.
    unsafe fn upper_halves(at: *const u8) -> Self::Numbers;
    /// Signed bytes, one after another.
    unsafe fn signed_bytes(at: *const u8) -> Self::Numbers;
    unsafe fn store_words(words: Self::Words, at: *mut f32);
    unsafe fn store(numbers: Self::Numbers, at: *mut f32);

    unsafe fn and(words: Self::Words, mask: u32) -> Self::Words;
    unsafe fn xor(words: Self::Words, mask: u32) -> Self::Words;
    unsafe fn or(a: Self::Words, b: Self::Words) -> Self::Words;
    unsafe fn shift_left(words: Self::Words, bits: u32) -> Self::Words;
    unsafe fn shift_right(words: Self::Words, bits: u32) -> Self::Words;
    /// Shifts copies of the sign in.
    unsafe fn shift_right_signed(words: Self::Words, bits: u32) -> Self::Words;
    /// Signed words as `f32`.
    unsafe fn whole(words: Self::Words) -> Self::Numbers;
    /// Words as the bits of `f32`.
    unsafe fn bits(words: Self::Words) -> Self::Numbers;

    unsafe fn zero() -> Self::Numbers;
    unsafe fn splat(number: f32) -> Self::Numbers;
    unsafe fn add(a: Self::Numbers, b: Self::Numbers) -> Self::Numbers;
    unsafe fn multiply(a: Self::Numbers, b: Self::Numbers) -> Self::Numbers;
    /// `a · b + c`, rounded once.
    unsafe fn multiply_add(a: Self::Numbers, b: Self::Numbers, c: Self::Numbers) -> Self::Numbers;
    /// Sums of the products of unsigned bytes of weights, at most `bits` of each, by signed ones of a row of `x`, of which each
    /// word meets all lanes.
    unsafe fn products<const STEPS: usize>(
        weights: &[Self::Words; STEPS],
        x: &[f32; STEPS],
        bits: u32,
    ) -> Self::Words;
}

/// By AVX-512 and its byte dot products.
pub(super) struct Avx512Vnni;

/// By AVX2, in two vectors.
pub(super) struct Avx2;

/// By AVX2 with AVX-VNNI's byte dot products.
pub(super) struct AvxVnni;

impl Lanes for Avx512Vnni {
    type Words = __m512i;
    type Numbers = __m512;

    #[inline(always)]
    unsafe fn words(at: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(at.cast()) }
    }

    #[inline(always)]
    unsafe fn halves(at: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }

    #[inline(always)]
    unsafe fn numbers(at: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn upper_halves(at: *const u8) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn signed_bytes(at: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()))) }
    }

    #[inline(always)]
    unsafe fn store_words(words: __m512i, at: *mut f32) {
        unsafe { _mm512_storeu_si512(at.cast(), words) }
    }

    #[inline(always)]
    unsafe fn store(numbers: __m512, at: *mut f32) {
        unsafe { _mm512_storeu_ps(at, numbers) }
    }

    #[inline(always)]
    unsafe fn and(words: __m512i, mask: u32) -> __m512i {
        unsafe { _mm512_and_si512(words, _mm512_set1_epi32(mask.cast_signed())) }
    }

    #[inline(always)]
    unsafe fn xor(words: __m512i, mask: u32) -> __m512i {
        unsafe { _mm512_xor_si512(words, _mm512_set1_epi32(mask.cast_signed())) }
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn shift_left(words: __m512i, bits: u32) -> __m512i {
        unsafe { _mm512_sllv_epi32(words, _mm512_set1_epi32(bits.cast_signed())) }
    }

    #[inline(always)]
    unsafe fn shift_right(words: __m512i, bits: u32) -> __m512i {
        unsafe { _mm512_srlv_epi32(words, _mm512_set1_epi32(bits.cast_signed())) }
    }

    #[inline(always)]
    unsafe fn shift_right_signed(words: __m512i, bits: u32) -> __m512i {
        unsafe { _mm512_srav_epi32(words, _mm512_set1_epi32(bits.cast_signed())) }
    }

    #[inline(always)]
    unsafe fn whole(words: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(words) }
    }

    #[inline(always)]
    unsafe fn bits(words: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(words) }
    }

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(number: f32) -> __m512 {
        unsafe { _mm512_set1_ps(number) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn multiply(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn multiply_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn products<const STEPS: usize>(
        weights: &[__m512i; STEPS],
        x: &[f32; STEPS],
        _bits: u32,
    ) -> __m512i {
        unsafe {
            let mut sums = _mm512_setzero_si512();
            for step in 0..STEPS {
                let x = _mm512_set1_epi32(x[step].to_bits().cast_signed());
                sums = _mm512_dpbusd_epi32(sums, weights[step], x);
            }
            sums
        }
    }
}

/// What AVX2's two vectors do alike, whatever multiplies bytes.
macro_rules! two_vectors {
    ($set:ty, $products:ident) => {
        impl Lanes for $set {
            type Words = [__m256i; 2];
            type Numbers = [__m256; 2];

            #[inline(always)]
            unsafe fn words(at: *const u8) -> Self::Words {
                unsafe {
                    [
                        _mm256_loadu_si256(at.cast()),
                        _mm256_loadu_si256(at.add(32).cast()),
                    ]
                }
            }

            #[inline(always)]
            unsafe fn halves(at: *const u8) -> Self::Numbers {
                unsafe {
                    [
                        _mm256_cvtph_ps(_mm_loadu_si128(at.cast())),
                        _mm256_cvtph_ps(_mm_loadu_si128(at.add(16).cast())),
                    ]
                }
            }

            #[inline(always)]
            unsafe fn numbers(at: *const f32) -> Self::Numbers {
                unsafe { [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(ROWS / 2))] }
            }

            #[inline(always)]
            unsafe fn upper_halves(at: *const u8) -> Self::Numbers {
                unsafe {
                    let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
                    let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.add(16).cast()));
                    [
                        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
                    ]
                }
            }

            #[inline(always)]
            unsafe fn signed_bytes(at: *const u8) -> Self::Numbers {
                unsafe {
                    let bytes = _mm_loadu_si128(at.cast());
                    [
                        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))),
                    ]
                }
            }

            #[inline(always)]
            unsafe fn store_words(words: Self::Words, at: *mut f32) {
                unsafe {
                    _mm256_storeu_si256(at.cast(), words[0]);
                    _mm256_storeu_si256(at.add(ROWS / 2).cast(), words[1]);
                }
            }

            #[inline(always)]
            unsafe fn store(numbers: Self::Numbers, at: *mut f32) {
                unsafe {
                    _mm256_storeu_ps(at, numbers[0]);
                    _mm256_storeu_ps(at.add(ROWS / 2), numbers[1]);
                }
            }

            #[inline(always)]
            unsafe fn and(words: Self::Words, mask: u32) -> Self::Words {
                let mask = unsafe { _mm256_set1_epi32(mask.cast_signed()) };
                unsafe {
                    [
                        _mm256_and_si256(words[0], mask),
                        _mm256_and_si256(words[1], mask),
                    ]
                }
            }

            #[inline(always)]
            unsafe fn xor(words: Self::Words, mask: u32) -> Self::Words {
                let mask = unsafe { _mm256_set1_epi32(mask.cast_signed()) };
                unsafe {
                    [
                        _mm256_xor_si256(words[0], mask),
                        _mm256_xor_si256(words[1], mask),
                    ]
                }
            }

            #[inline(always)]
            unsafe fn or(a: Self::Words, b: Self::Words) -> Self::Words {
                unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
            }

            #[inline(always)]
            unsafe fn shift_left(words: Self::Words, bits: u32) -> Self::Words {
                let bits = unsafe { _mm_cvtsi32_si128(bits.cast_signed()) };
                unsafe {
                    [
                        _mm256_sll_epi32(words[0], bits),
                        _mm256_sll_epi32(words[1], bits),
                    ]
                }
            }

            #[inline(always)]
            unsafe fn shift_right(words: Self::Words, bits: u32) -> Self::Words {
                let bits = unsafe { _mm_cvtsi32_si128(bits.cast_signed()) };
                unsafe {
                    [
                        _mm256_srl_epi32(words[0], bits),
                        _mm256_srl_epi32(words[1], bits),
                    ]
                }
            }

            #[inline(always)]
            unsafe fn shift_right_signed(words: Self::Words, bits: u32) -> Self::Words {
                let bits = unsafe { _mm_cvtsi32_si128(bits.cast_signed()) };
                unsafe {
                    [
                        _mm256_sra_epi32(words[0], bits),
                        _mm256_sra_epi32(words[1], bits),
                    ]
                }
            }

            #[inline(always)]
            unsafe fn whole(words: Self::Words) -> Self::Numbers {
                unsafe { [as_numbers(words[0]), as_numbers(words[1])] }
            }

            #[inline(always)]
            unsafe fn bits(words: Self::Words) -> Self::Numbers {
                unsafe { [_mm256_castsi256_ps(words[0]), _mm256_castsi256_ps(words[1])] }
            }

            #[inline(always)]
            unsafe fn zero() -> Self::Numbers {
                unsafe { [_mm256_setzero_ps(); 2] }
            }

            #[inline(always)]
            unsafe fn splat(number: f32) -> Self::Numbers {
                unsafe { [_mm256_set1_ps(number); 2] }
            }

            #[inline(always)]
            unsafe fn add(a: Self::Numbers, b: Self::Numbers) -> Self::Numbers {
                unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
            }

            #[inline(always)]
            unsafe fn multiply(a: Self::Numbers, b: Self::Numbers) -> Self::Numbers {
                unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
            }

            #[inline(always)]
            unsafe fn multiply_add(
                a: Self::Numbers,
                b: Self::Numbers,
                c: Self::Numbers,
            ) -> Self::Numbers {
                unsafe {
                    [
                        _mm256_fmadd_ps(a[0], b[0], c[0]),
                        _mm256_fmadd_ps(a[1], b[1], c[1]),
                    ]
                }
            }

            #[inline(always)]
            unsafe fn products<const STEPS: usize>(
                weights: &[Self::Words; STEPS],
                x: &[f32; STEPS],
                bits: u32,
            ) -> Self::Words {
                // Loops, and no closures: those would be functions that are compiled for no instructions.
                unsafe {
                    let mut bytes = [_mm256_setzero_si256(); STEPS];
                    for step in 0..STEPS {
                        bytes[step] = _mm256_set1_epi32(x[step].to_bits().cast_signed());
                    }
                    let mut halves = [[_mm256_setzero_si256(); STEPS]; 2];
                    for step in 0..STEPS {
                        halves[0][step] = weights[step][0];
                        halves[1][step] = weights[step][1];
                    }
                    [
                        $products(&halves[0], &bytes, bits),
                        $products(&halves[1], &bytes, bits),
                    ]
                }
            }
        }
    };
}

/// Aligns the stack of the function that this becomes part of to cache lines. The compiler doesn't do so for vectors that it
/// spills: those of tiles straddled lines or not by what stood above them on the stack, which made a fifth of their time.
#[inline(always)]
pub(super) fn align_stack() {
    #[repr(align(64))]
    struct Line(#[expect(dead_code, reason = "only its place matters")] u8);
    let line = Line(0);
    // SAFETY: there are no instructions: the variable is asked for in memory, where it has its alignment.
    unsafe {
        asm!("/* {0} */", in(reg) &raw const line, options(readonly, nostack, preserves_flags));
    };
}

/// How many words of weights of so many bits can be added up in 16 bits: each lane adds two products with a factor up
/// to 127.
pub(super) const fn run(bits: u32) -> usize {
    i16::MAX as usize / (2 * 127 * ((1 << bits) - 1))
}

/// Adds the products of each lane's four bytes, of weights without sign, in 32 bits, without saturation. It is assembly since
/// the intrinsic would be a call from functions that are compiled for AVX2 alone, and those are for both kernels.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn add_products(mut sums: __m256i, weights: __m256i, x: __m256i) -> __m256i {
    // SAFETY: only reached through `VNNI_KERNEL`, whose caller made sure of the instruction. It reads and writes registers
    // alone.
    unsafe {
        asm!(
            "{{vex}} vpdpbusd {sums}, {weights}, {x}",
            sums = inout(ymm_reg) sums,
            weights = in(ymm_reg) weights,
            x = in(ymm_reg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Signed words as `f32`. It is assembly since the compiler makes five instructions of the intrinsic where it knows that there are
/// no negative ones: it converts those as words without sign, for which AVX2 has no instruction.
#[inline]
#[target_feature(enable = "avx2")]
fn as_numbers(words: __m256i) -> __m256 {
    let numbers;
    // SAFETY: it reads and writes registers alone.
    unsafe {
        asm!(
            "vcvtdq2ps {numbers}, {words}",
            numbers = lateout(ymm_reg) numbers,
            words = in(ymm_reg) words,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    numbers
}

/// Adds pairs of 16-bit elements into 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn wide(short: __m256i) -> __m256i {
    _mm256_madd_epi16(short, _mm256_set1_epi16(1))
}

/// The low and the high halves of bytes: products of each fit in 16 bits, as those of whole bytes don't.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles(bytes: __m256i) -> [__m256i; 2] {
    let low = _mm256_set1_epi8(15);
    [
        _mm256_and_si256(bytes, low),
        _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low),
    ]
}

/// Adds pairs of 16-bit sums of both halves' products into 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn wide_nibbles(low: __m256i, high: __m256i) -> __m256i {
    let high = _mm256_madd_epi16(high, _mm256_set1_epi16(16));
    _mm256_add_epi32(wide(low), high)
}

/// By `maddubs`, whose sums of two are added in 16 bits for as long as they fit.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn products_in_16_bits<const STEPS: usize>(
    weights: &[__m256i; STEPS],
    x: &[__m256i; STEPS],
    bits: u32,
) -> __m256i {
    // SAFETY: as the caller says.
    unsafe {
        let mut sums = _mm256_setzero_si256();
        if bits == 8 {
            let (mut low, mut high) = (sums, sums);
            for (&weights, &x) in weights.iter().zip(x) {
                let weights = nibbles(weights);
                low = _mm256_add_epi16(low, _mm256_maddubs_epi16(weights[0], x));
                high = _mm256_add_epi16(high, _mm256_maddubs_epi16(weights[1], x));
            }
            return wide_nibbles(low, high);
        }
        let run = run(bits).min(STEPS);
        for (weights, x) in weights.chunks_exact(run).zip(x.chunks_exact(run)) {
            let mut short = _mm256_setzero_si256();
            for (&weights, &x) in weights.iter().zip(x) {
                short = _mm256_add_epi16(short, _mm256_maddubs_epi16(weights, x));
            }
            sums = _mm256_add_epi32(sums, wide(short));
        }
        sums
    }
}

/// By byte dot products, in 32 bits.
///
/// # Safety
/// The CPU has AVX-VNNI.
#[inline(always)]
unsafe fn products_in_32_bits<const STEPS: usize>(
    weights: &[__m256i; STEPS],
    x: &[__m256i; STEPS],
    _bits: u32,
) -> __m256i {
    // SAFETY: as the caller says.
    unsafe {
        let mut sums = _mm256_setzero_si256();
        for (&weights, &x) in weights.iter().zip(x) {
            sums = add_products(sums, weights, x);
        }
        sums
    }
}

two_vectors! { Avx2, products_in_16_bits }
two_vectors! { AvxVnni, products_in_32_bits }
