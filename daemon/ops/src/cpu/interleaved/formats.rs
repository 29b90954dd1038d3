//! How each format's bytes are read where 16 rows of them lie beside each other. Quants, scales and minima are those of
//! [`Format::quants`], elements those of [`Format::dequantize`].

use sluice_formats::{Format, interleaved::ROWS};

use crate::cpu::lanes::Lanes;

/// A group of quants of 16 rows: an element is quant · scale + minimum.
pub(super) struct Group<L: Lanes, const STEPS: usize> {
    /// Words of four quants without sign, the first in the lowest byte.
    pub(super) words: [L::Words; STEPS],
    pub(super) scale: L::Numbers,
    pub(super) minimum: L::Numbers,
}

/// A format of quants in groups of `STEPS` words.
pub(super) trait Quants<const STEPS: usize> {
    const FORMAT: Format;

    /// Reads a group of a block.
    ///
    /// # Safety
    /// As [`Lanes`]; `block` points to a block of 16 rows.
    unsafe fn group<L: Lanes>(block: *const u8, index: usize) -> Group<L, STEPS>;
}

/// A format whose elements are read as `f32`, `COUNT` at a time.
pub(super) trait Elements<const COUNT: usize> {
    const FORMAT: Format;

    /// Reads the elements from `COUNT · index` on.
    ///
    /// # Safety
    /// As [`Lanes`]; the elements of 16 rows from `at` on include these.
    unsafe fn read<L: Lanes>(at: *const u8, index: usize) -> [L::Numbers; COUNT];
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;
pub(super) struct Q8_0;
pub(super) struct Q6K;
pub(super) struct Q5K;
pub(super) struct Q5_1;
pub(super) struct Q5_0;
pub(super) struct Q4K;
pub(super) struct Q4_1;
pub(super) struct Q4_0;

/// Bytes of a half, and of a word, of all rows.
const HALF: usize = 2 * ROWS;
const WORD: usize = 4 * ROWS;

/// The low bits of each byte in a word.
const LOW_4: u32 = 0x0f0f_0f0f;
const LOW_2: u32 = 0x0303_0303;
const LOW_1: u32 = 0x0101_0101;

impl Elements<1> for F32 {
    const FORMAT: Format = Format::F32;

    #[inline(always)]
    unsafe fn read<L: Lanes>(at: *const u8, index: usize) -> [L::Numbers; 1] {
        // SAFETY: as the caller says.
        unsafe { [L::bits(L::words(at.add(index * WORD)))] }
    }
}

impl Elements<1> for F16 {
    const FORMAT: Format = Format::F16;

    #[inline(always)]
    unsafe fn read<L: Lanes>(at: *const u8, index: usize) -> [L::Numbers; 1] {
        // SAFETY: as the caller says.
        unsafe { [L::halves(at.add(index * HALF))] }
    }
}

impl Elements<2> for Bf16 {
    const FORMAT: Format = Format::Bf16;

    #[inline(always)]
    unsafe fn read<L: Lanes>(at: *const u8, index: usize) -> [L::Numbers; 2] {
        // SAFETY: as the caller says.
        unsafe {
            let pair = L::words(at.add(index * WORD));
            [
                L::bits(L::shift_left(pair, 16)),
                L::bits(L::and(pair, 0xffff_0000)),
            ]
        }
    }
}

impl Quants<8> for Q8_0 {
    const FORMAT: Format = Format::Q8_0;

    #[inline(always)]
    unsafe fn group<L: Lanes>(block: *const u8, _: usize) -> Group<L, 8> {
        // SAFETY: as the caller says.
        unsafe {
            let scale = L::halves(block);
            let mut words = all_words::<L, 8>(block.add(HALF));
            for word in &mut words {
                // Signed to unsigned: kernels multiply unsigned weights by signed inputs.
                *word = L::xor(*word, 0x8080_8080);
            }
            Group {
                words,
                scale,
                minimum: L::multiply(L::splat(-128.0), scale),
            }
        }
    }
}

impl Quants<8> for Q5_1 {
    const FORMAT: Format = Format::Q5_1;

    #[inline(always)]
    unsafe fn group<L: Lanes>(block: *const u8, _: usize) -> Group<L, 8> {
        // SAFETY: as the caller says.
        unsafe {
            Group {
                words: five_bits::<L>(block.add(2 * HALF)),
                scale: L::halves(block),
                minimum: L::halves(block.add(HALF)),
            }
        }
    }
}

impl Quants<8> for Q5_0 {
    const FORMAT: Format = Format::Q5_0;

    #[inline(always)]
    unsafe fn group<L: Lanes>(block: *const u8, _: usize) -> Group<L, 8> {
        // SAFETY: as the caller says.
        unsafe {
            let scale = L::halves(block);
            Group {
                words: five_bits::<L>(block.add(HALF)),
                scale,
                minimum: L::multiply(L::splat(-16.0), scale),
            }
        }
    }
}

impl Quants<8> for Q4_1 {
    const FORMAT: Format = Format::Q4_1;

    #[inline(always)]
    unsafe fn group<L: Lanes>(block: *const u8, _: usize) -> Group<L, 8> {
        // SAFETY: as the caller says.
        unsafe {
            Group {
                words: four_bits::<L>(block.add(2 * HALF)),
                scale: L::halves(block),
                minimum: L::halves(block.add(HALF)),
            }
        }
    }
}

impl Quants<8> for Q4_0 {
    const FORMAT: Format = Format::Q4_0;

    #[inline(always)]
    unsafe fn group<L: Lanes>(block: *const u8, _: usize) -> Group<L, 8> {
        // SAFETY: as the caller says.
        unsafe {
            let scale = L::halves(block);
            Group {
                words: four_bits::<L>(block.add(HALF)),
                scale,
                minimum: L::multiply(L::splat(-8.0), scale),
            }
        }
    }
}

/// Bytes of the scales that the K formats with minima begin with: two halves, three words.
const K_SCALES: usize = 2 * HALF + 3 * WORD;

impl Quants<8> for Q4K {
    const FORMAT: Format = Format::Q4K;

    #[inline(always)]
    unsafe fn group<L: Lanes>(block: *const u8, index: usize) -> Group<L, 8> {
        // SAFETY: as the caller says.
        unsafe {
            // 32 bytes hold two groups, the first in their low halves.
            let mut words = all_words::<L, 8>(block.add(K_SCALES + index / 2 * 8 * WORD));
            for word in &mut words {
                *word = L::and(L::shift_right(*word, 4 * (index as u32 % 2)), LOW_4);
            }
            let (scale, minimum) = scale_and_minimum::<L>(block, index);
            Group {
                words,
                scale,
                minimum,
            }
        }
    }
}

impl Quants<8> for Q5K {
    const FORMAT: Format = Format::Q5K;

    #[inline(always)]
    unsafe fn group<L: Lanes>(block: *const u8, index: usize) -> Group<L, 8> {
        // SAFETY: as the caller says.
        unsafe {
            // A byte of high bits serves eight groups, one bit for each.
            let bits = block.add(K_SCALES);
            let mut words = all_words::<L, 8>(bits.add((1 + index / 2) * 8 * WORD));
            for (word, high) in words.iter_mut().zip(all_words::<L, 8>(bits)) {
                let low = L::and(L::shift_right(*word, 4 * (index as u32 % 2)), LOW_4);
                // To the high half of each byte, the same for four groups, then to its lowest bit.
                let high = L::shift_left(high, 4 - 4 * (index as u32 / 4));
                let high = L::and(L::shift_right(high, index as u32 % 4), 16 * LOW_1);
                *word = L::or(low, high);
            }
            let (scale, minimum) = scale_and_minimum::<L>(block, index);
            Group {
                words,
                scale,
                minimum,
            }
        }
    }
}

impl Quants<4> for Q6K {
    const FORMAT: Format = Format::Q6K;

    #[inline(always)]
    unsafe fn group<L: Lanes>(block: *const u8, index: usize) -> Group<L, 4> {
        let (high_at, scales_at, above_at) = (32 * WORD, 48 * WORD, 52 * WORD);
        // A half of the block is four quarters of two groups each: quarters 0 and 1 are the low halves of 64 bytes, 2 and 3
        // their high halves, and all of them share 32 bytes of high bits.
        let (part, quarter, side) = (index / 8, index % 8 / 2, index % 2);
        // SAFETY: as the caller says.
        unsafe {
            let low_at = block.add((16 * part + 8 * (quarter % 2) + 4 * side) * WORD);
            let high_at = block.add(high_at + (8 * part + 4 * side) * WORD);
            let mut words = all_words::<L, 4>(low_at);
            for (word, high) in words.iter_mut().zip(all_words::<L, 4>(high_at)) {
                let low = L::and(L::shift_right(*word, 4 * (quarter as u32 / 2)), LOW_4);
                let high = L::and(L::shift_right(high, 2 * quarter as u32), LOW_2);
                *word = L::or(low, L::shift_left(high, 4));
            }
            let packed = L::words(block.add(scales_at + index / 4 * WORD));
            let packed = L::shift_left(packed, 24 - 8 * (index as u32 % 4));
            let packed = L::whole(L::shift_right_signed(packed, 24));
            let scale = L::multiply(L::halves(block.add(above_at)), packed);
            Group {
                words,
                scale,
                // Quants are stored with an offset of 32, which becomes a minimum.
                minimum: L::multiply(L::splat(-32.0), scale),
            }
        }
    }
}

/// Nibbles: the low halves of four words are the first quants, the high halves the others.
///
/// # Safety
/// As [`Lanes`]; four words of 16 rows lie there.
#[inline(always)]
unsafe fn four_bits<L: Lanes>(at: *const u8) -> [L::Words; 8] {
    // SAFETY: as the caller says.
    unsafe {
        let halves = all_words::<L, 4>(at);
        let mut words = [halves[0]; 8];
        for (step, word) in words.iter_mut().enumerate() {
            *word = L::and(
                L::shift_right(halves[step % 4], 4 * (step as u32 / 4)),
                LOW_4,
            );
        }
        words
    }
}

/// As [`four_bits`], with the quants' highest bits in a word before them, lowest bit first.
///
/// # Safety
/// As [`Lanes`]; five words of 16 rows lie there.
#[inline(always)]
unsafe fn five_bits<L: Lanes>(at: *const u8) -> [L::Words; 8] {
    // SAFETY: as the caller says.
    unsafe {
        let all = L::words(at);
        let mut words = four_bits::<L>(at.add(WORD));
        for (step, word) in words.iter_mut().enumerate() {
            // Bits 0 to 3 to bit 0 of bytes 0 to 3: each shift brings one of them to its place, the mask removes the others.
            let bits = L::and(L::shift_right(all, 4 * step as u32), 15);
            let bits = L::or(bits, L::shift_left(bits, 7));
            let bits = L::and(L::or(bits, L::shift_left(bits, 14)), LOW_1);
            *word = L::or(*word, L::shift_left(bits, 4));
        }
        words
    }
}

/// One of the eight pairs of scale and minimum that a block begins with: two halves that multiply them, then six bits each
/// in three words. Those of the first four groups are the low six bits of a byte; those of the others are split into a half
/// byte and the two high bits that the first four leave.
///
/// # Safety
/// As [`Lanes`]; `block` points to a block of 16 rows.
#[inline(always)]
unsafe fn scale_and_minimum<L: Lanes>(block: *const u8, index: usize) -> (L::Numbers, L::Numbers) {
    // SAFETY: as the caller says.
    unsafe {
        let scale = L::multiply(L::halves(block), six_bits::<L>(block, index, 0, 0));
        // GGUF subtracts minima; here they are added.
        let below = L::multiply(L::splat(-1.0), L::halves(block.add(HALF)));
        (scale, L::multiply(below, six_bits::<L>(block, index, 1, 4)))
    }
}

/// Six bits of which the first four groups' are in this word, the lower ones of the others' in the third from bit `half` of a
/// byte on.
///
/// # Safety
/// As [`scale_and_minimum`].
#[inline(always)]
unsafe fn six_bits<L: Lanes>(block: *const u8, index: usize, word: usize, half: u32) -> L::Numbers {
    // SAFETY: as the caller says.
    unsafe {
        let words = all_words::<L, 3>(block.add(2 * HALF));
        let byte = 8 * (index as u32 % 4);
        let first = L::shift_right(words[word], byte);
        L::whole(if index < 4 {
            L::and(first, 63)
        } else {
            let low = L::and(L::shift_right(words[2], byte + half), 15);
            let high = L::and(L::shift_right(first, 6), 3);
            L::or(low, L::shift_left(high, 4))
        })
    }
}

/// Loads words of 16 rows.
///
/// # Safety
/// As [`Lanes`]; as many lie there.
#[inline(always)]
unsafe fn all_words<L: Lanes, const COUNT: usize>(at: *const u8) -> [L::Words; COUNT] {
    // SAFETY: as the caller says.
    unsafe {
        let mut words = [L::words(at); COUNT];
        for (step, word) in words.iter_mut().enumerate() {
            *word = L::words(at.add(step * WORD));
        }
        words
    }
}
