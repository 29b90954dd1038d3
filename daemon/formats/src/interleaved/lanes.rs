//! Reads interleaved rows to panels of a matmul. The loops are over lanes, whole vectors of whatever CPU they are compiled
//! for, and give the same quants, scales and minima as [`Format::quants`] does row by row.

use super::{Lanes, ROWS};
use crate::{Format, blocks::widest};

/// Where 16 rows' quants go: of each piece, lanes of these rows, `step` pieces from one to the next. Kernels whose panels
/// have 32 columns take two panels of 16 by turns.
#[derive(Debug)]
pub struct Panel<'a> {
    /// Words of four quants without sign, the first in the lowest byte.
    pub words: &'a mut [Lanes<u32>],
    /// A scale for each group of quants.
    pub scales: &'a mut [Lanes<f32>],
    /// A minimum for each group: an element is quant · scale + minimum.
    pub minima: &'a mut [Lanes<f32>],
    /// Pieces from one of these rows' to the next.
    pub step: usize,
}

/// A block's part of a panel.
struct Block<'a> {
    words: &'a mut [Lanes<u32>],
    scales: &'a mut [Lanes<f32>],
    minima: &'a mut [Lanes<f32>],
    step: usize,
}

impl Block<'_> {
    #[inline(always)]
    fn set_word(&mut self, index: usize, word: Lanes<u32>) {
        self.words[index * self.step] = word;
    }

    #[inline(always)]
    fn set_group(&mut self, index: usize, scale: Lanes<f32>, minimum: Lanes<f32>) {
        self.scales[index * self.step] = scale;
        self.minima[index * self.step] = minimum;
    }
}

/// Reads blocks of 16 interleaved rows.
///
/// # Panics
/// When the format has no [groups](Format::groups), the bytes are not whole blocks, or the panel is too small.
pub fn quants(format: Format, bytes: &[u8], panel: Panel<'_>) {
    match format {
        Format::Q8_0 => all_q8_0(bytes, panel),
        Format::Q6K => all_q6_k(bytes, panel),
        Format::Q5K => all_q5_k(bytes, panel),
        Format::Q5_1 => all_q5_1(bytes, panel),
        Format::Q5_0 => all_q5_0(bytes, panel),
        Format::Q4K => all_q4_k(bytes, panel),
        Format::Q4_1 => all_q4_1(bytes, panel),
        Format::Q4_0 => all_q4_0(bytes, panel),
        _ => unreachable!("formats without groups are dequantized"),
    }
}

/// Compiles a block's loop into a function for all blocks of some rows.
macro_rules! reader {
    ($name:ident = $block:ident, $format:expr) => {
        fn $name(bytes: &[u8], panel: Panel<'_>) {
            #[inline(always)]
            fn all(bytes: &[u8], panel: Panel<'_>) {
                const LEN: usize = $format.block_len();
                const GROUPS: usize = match $format.groups() {
                    Some(groups) => LEN / groups.len,
                    None => unreachable!(),
                };
                let (blocks, rest) = bytes.as_chunks::<{ ROWS * $format.block_bytes() }>();
                assert!(rest.is_empty(), "not whole blocks of rows");
                let step = panel.step;
                for (index, block) in blocks.iter().enumerate() {
                    $block(
                        block,
                        Block {
                            words: &mut panel.words[index * LEN / 4 * step..],
                            scales: &mut panel.scales[index * GROUPS * step..],
                            minima: &mut panel.minima[index * GROUPS * step..],
                            step,
                        },
                    );
                }
            }
            widest!(all(bytes: &[u8], panel: Panel<'_>));
        }
    };
}

reader! { all_q8_0 = q8_0, Format::Q8_0 }
reader! { all_q6_k = q6_k, Format::Q6K }
reader! { all_q5_k = q5_k, Format::Q5K }
reader! { all_q5_1 = q5_1, Format::Q5_1 }
reader! { all_q5_0 = q5_0, Format::Q5_0 }
reader! { all_q4_k = q4_k, Format::Q4K }
reader! { all_q4_1 = q4_1, Format::Q4_1 }
reader! { all_q4_0 = q4_0, Format::Q4_0 }

/// Bytes of a half, and of a word, of all rows.
const HALVES: usize = 2 * ROWS;
const WORDS: usize = 4 * ROWS;

/// The low bits of each byte in a word.
const LOW_4: u32 = 0x0f0f_0f0f;
const LOW_2: u32 = 0x0303_0303;
const LOW_1: u32 = 0x0101_0101;

#[inline(always)]
fn q8_0(block: &[u8; ROWS * Format::Q8_0.block_bytes()], mut out: Block<'_>) {
    let scale = halves(block, 0);
    // Signed to unsigned: the integer kernels multiply unsigned weights by signed inputs.
    out.set_group(0, scale, scale.map(|scale| -128.0 * scale));
    for index in 0..8 {
        out.set_word(
            index,
            words(block, HALVES, index).map(|word| word ^ 0x8080_8080),
        );
    }
}

#[inline(always)]
fn q5_1(block: &[u8; ROWS * Format::Q5_1.block_bytes()], mut out: Block<'_>) {
    out.set_group(0, halves(block, 0), halves(block, HALVES));
    five_bits(block, 2 * HALVES, &mut out);
}

#[inline(always)]
fn q5_0(block: &[u8; ROWS * Format::Q5_0.block_bytes()], mut out: Block<'_>) {
    let scale = halves(block, 0);
    out.set_group(0, scale, scale.map(|scale| -16.0 * scale));
    five_bits(block, HALVES, &mut out);
}

#[inline(always)]
fn q4_1(block: &[u8; ROWS * Format::Q4_1.block_bytes()], mut out: Block<'_>) {
    out.set_group(0, halves(block, 0), halves(block, HALVES));
    four_bits(block, 2 * HALVES, &mut out);
}

#[inline(always)]
fn q4_0(block: &[u8; ROWS * Format::Q4_0.block_bytes()], mut out: Block<'_>) {
    let scale = halves(block, 0);
    out.set_group(0, scale, scale.map(|scale| -8.0 * scale));
    four_bits(block, HALVES, &mut out);
}

#[inline(always)]
fn q4_k(block: &[u8; ROWS * Format::Q4K.block_bytes()], mut out: Block<'_>) {
    scales_and_minima(block, &mut out);
    for index in 0..32 {
        let word = words(block, 2 * HALVES + 3 * WORDS, index);
        // 32 bytes hold two groups, the first in their low halves.
        let place = index / 8 * 16 + index % 8;
        out.set_word(place, word.map(|word| word & LOW_4));
        out.set_word(place + 8, word.map(|word| word >> 4 & LOW_4));
    }
}

#[inline(always)]
fn q5_k(block: &[u8; ROWS * Format::Q5K.block_bytes()], mut out: Block<'_>) {
    scales_and_minima(block, &mut out);
    let after_scales = 2 * HALVES + 3 * WORDS;
    for column in 0..8 {
        // A byte of high bits serves eight groups, one bit for each.
        let bits = words(block, after_scales, column);
        for part in 0..4 {
            let word = words(block, after_scales + 8 * WORDS, 8 * part + column);
            let place = 16 * part + column;
            let low = lanes(|lane| word[lane] & LOW_4 | (bits[lane] >> (2 * part) & LOW_1) << 4);
            let high =
                lanes(|lane| word[lane] >> 4 & LOW_4 | (bits[lane] >> (2 * part + 1) & LOW_1) << 4);
            out.set_word(place, low);
            out.set_word(place + 8, high);
        }
    }
}

#[inline(always)]
fn q6_k(block: &[u8; ROWS * Format::Q6K.block_bytes()], mut out: Block<'_>) {
    let (high_at, scales_at) = (32 * WORDS, 48 * WORDS);
    let above = halves(block, 52 * WORDS);
    for index in 0..4 {
        let packed = words(block, scales_at, index);
        for byte in 0..4 {
            let scale = lanes(|lane| {
                let signed = (packed[lane] >> (8 * byte)) as u8;
                above[lane] * f32::from(signed.cast_signed())
            });
            // Quants are stored with an offset of 32, which becomes a minimum.
            let minimum = scale.map(|scale| -32.0 * scale);
            out.set_group(4 * index + byte, scale, minimum);
        }
    }
    for part in 0..2 {
        for column in 0..8 {
            let high = words(block, high_at, 8 * part + column);
            let low = [0, 8].map(|after| words(block, 0, 16 * part + after + column));
            for quarter in 0..4 {
                let low = low[quarter % 2];
                // Quarters 0 and 1 are the low halves of 64 bytes, 2 and 3 their high halves.
                let word = lanes(|lane| {
                    let low = low[lane] >> (4 * (quarter / 2)) & LOW_4;
                    low | (high[lane] >> (2 * quarter) & LOW_2) << 4
                });
                out.set_word(32 * part + 8 * quarter + column, word);
            }
        }
    }
}

/// Nibbles: the low halves of 16 bytes are the first quants, the high halves the others.
#[inline(always)]
fn four_bits(block: &[u8], at: usize, out: &mut Block<'_>) {
    for index in 0..4 {
        let word = words(block, at, index);
        out.set_word(index, word.map(|word| word & LOW_4));
        out.set_word(index + 4, word.map(|word| word >> 4 & LOW_4));
    }
}

/// As [`four_bits`], with the quants' highest bits in a word before them, lowest bit first.
#[inline(always)]
fn five_bits(block: &[u8], at: usize, out: &mut Block<'_>) {
    let bits = words(block, at, 0);
    // Bits 0 to 3 to bit 4 of bytes 0 to 3: each shift brings one of them to its place, the mask removes the others.
    let spread = |bits: u32| ((bits | bits << 7 | bits << 14 | bits << 21) & LOW_1) << 4;
    let high = |index: usize| bits.map(|bits| spread(bits >> (4 * index) & 15));
    for index in 0..4 {
        let word = words(block, at + WORDS, index);
        let (first, second) = (high(index), high(index + 4));
        out.set_word(index, lanes(|lane| word[lane] & LOW_4 | first[lane]));
        out.set_word(
            index + 4,
            lanes(|lane| word[lane] >> 4 & LOW_4 | second[lane]),
        );
    }
}

/// Six-bit scales and minima of eight groups, after the two halves that multiply them: see `scales_and_minima` of the rows'
/// own layout.
#[inline(always)]
fn scales_and_minima(block: &[u8], out: &mut Block<'_>) {
    let (above, minimum_above) = (halves(block, 0), halves(block, HALVES));
    let [first, second, third] = [0, 1, 2].map(|index| words(block, 2 * HALVES, index));
    let product = |above: f32, bits: u32| above * (bits as f32);
    for group in 0..4 {
        let shift = 8 * group;
        out.set_group(
            group,
            lanes(|lane| product(above[lane], first[lane] >> shift & 63)),
            lanes(|lane| -product(minimum_above[lane], second[lane] >> shift & 63)),
        );
        let high = |word: u32| (word >> (shift + 6) & 3) << 4;
        out.set_group(
            group + 4,
            lanes(|lane| product(above[lane], third[lane] >> shift & 15 | high(first[lane]))),
            lanes(|lane| {
                let bits = third[lane] >> (shift + 4) & 15 | high(second[lane]);
                -product(minimum_above[lane], bits)
            }),
        );
    }
}

/// Dequantizes 16 interleaved rows: element `k` of all of them goes to `out[k * step]`. The values are those of
/// [`Format::dequantize`].
///
/// # Panics
/// When the format isn't a plain one or `q8_0`, the bytes are not whole pieces, or `out` is too small.
pub fn dequantize(format: Format, bytes: &[u8], out: &mut [Lanes<f32>], step: usize) {
    match format {
        Format::F32 => f32s(bytes, out, step),
        Format::F16 => f16s(bytes, out, step),
        Format::Bf16 => bf16s(bytes, out, step),
        Format::Q8_0 => signed_bytes(bytes, out, step),
        _ => unreachable!("other formats are multiplied in integers"),
    }
}

fn f32s(bytes: &[u8], out: &mut [Lanes<f32>], step: usize) {
    #[inline(always)]
    fn all(bytes: &[u8], out: &mut [Lanes<f32>], step: usize) {
        for (piece, out) in bytes
            .as_chunks::<WORDS>()
            .0
            .iter()
            .zip(out.iter_mut().step_by(step))
        {
            *out = words(piece, 0, 0).map(f32::from_bits);
        }
    }
    widest!(all(bytes: &[u8], out: &mut [Lanes<f32>], step: usize));
}

fn f16s(bytes: &[u8], out: &mut [Lanes<f32>], step: usize) {
    #[inline(always)]
    fn all(bytes: &[u8], out: &mut [Lanes<f32>], step: usize) {
        for (piece, out) in bytes
            .as_chunks::<HALVES>()
            .0
            .iter()
            .zip(out.iter_mut().step_by(step))
        {
            *out = halves(piece, 0);
        }
    }
    widest!(all(bytes: &[u8], out: &mut [Lanes<f32>], step: usize));
}

fn bf16s(bytes: &[u8], out: &mut [Lanes<f32>], step: usize) {
    #[inline(always)]
    fn all(bytes: &[u8], out: &mut [Lanes<f32>], step: usize) {
        for (index, piece) in bytes.as_chunks::<WORDS>().0.iter().enumerate() {
            let pair = words(piece, 0, 0);
            out[2 * index * step] = pair.map(|pair| f32::from_bits(pair << 16));
            out[(2 * index + 1) * step] = pair.map(|pair| f32::from_bits(pair & 0xffff_0000));
        }
    }
    widest!(all(bytes: &[u8], out: &mut [Lanes<f32>], step: usize));
}

fn signed_bytes(bytes: &[u8], out: &mut [Lanes<f32>], step: usize) {
    #[inline(always)]
    fn all(bytes: &[u8], out: &mut [Lanes<f32>], step: usize) {
        let blocks = bytes.as_chunks::<{ ROWS * Format::Q8_0.block_bytes() }>().0;
        for (index, block) in blocks.iter().enumerate() {
            let scale = halves(block, 0);
            for word in 0..8 {
                let quants = words(block, HALVES, word);
                for byte in 0..4 {
                    let quant = |lane: usize| (quants[lane] >> (8 * byte)) as u8;
                    out[(32 * index + 4 * word + byte) * step] =
                        lanes(|lane| f32::from(quant(lane).cast_signed()) * scale[lane]);
                }
            }
        }
    }
    widest!(all(bytes: &[u8], out: &mut [Lanes<f32>], step: usize));
}

#[inline(always)]
fn lanes<T>(of: impl FnMut(usize) -> T) -> Lanes<T> {
    std::array::from_fn(of)
}

/// The words with this index of all rows, counted from byte `at` of the block.
#[inline(always)]
fn words(block: &[u8], at: usize, index: usize) -> Lanes<u32> {
    let bytes: &[u8; WORDS] = block[at + index * WORDS..]
        .first_chunk()
        .expect("it lies inside the block");
    let words = bytes.as_chunks::<4>().0;
    lanes(|lane| u32::from_le_bytes(words[lane]))
}

/// The halves at byte `at` of all rows, as `f32`.
#[inline(always)]
fn halves(block: &[u8], at: usize) -> Lanes<f32> {
    let bytes: &[u8; HALVES] = block[at..].first_chunk().expect("it lies inside the block");
    let halves = bytes.as_chunks::<2>().0;
    lanes(|lane| {
        // By integers and a product, which compilers make vectors of on every CPU. Shifted to the places of an `f32`'s
        // bits, exponent and fraction stand for the number times 2^-112, subnormal ones included.
        let bits = u32::from(u16::from_le_bytes(halves[lane]));
        let size = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        // The largest exponent stands for infinity and what is no number.
        let odd = if bits & 0x7c00 == 0x7c00 {
            0x7f80_0000
        } else {
            0
        };
        f32::from_bits(size.to_bits() | odd | (bits & 0x8000) << 16)
    })
}
