//! Stored weights to test with, and what they stand for: written one weight at a time, as GGUF describes the formats.

use half::{bf16, f16};
use sluice_formats::Format;

/// A random number generator with the same output in every run.
pub(crate) struct Random(u64);

impl Random {
    /// The source of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next output of SplitMix64.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A number between two others.
    pub(crate) fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * (self.next() >> 40) as f32 / (1 << 24) as f32
    }
}

/// Random weights as they are stored, all of them of about the size of 1.
pub(crate) fn stored(random: &mut Random, format: Format, count: usize) -> Vec<u8> {
    let len = format.bytes(count);
    let mut bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
    let mut scale = |bytes: &mut [u8], size: f32| {
        let scale = f16::from_f32(random.between(-size, size));
        bytes.copy_from_slice(&scale.to_le_bytes());
    };
    match format {
        Format::F32 => bytes
            .chunks_exact_mut(4)
            .for_each(|bytes| bytes.copy_from_slice(&random.between(-1.0, 1.0).to_le_bytes())),
        Format::F16 => bytes
            .chunks_exact_mut(2)
            .for_each(|bytes| scale(bytes, 1.0)),
        Format::Bf16 => bytes.chunks_exact_mut(2).for_each(|bytes| {
            bytes.copy_from_slice(&bf16::from_f32(random.between(-1.0, 1.0)).to_le_bytes());
        }),
        Format::Q8_0 => bytes
            .chunks_exact_mut(34)
            .for_each(|block| scale(&mut block[..2], 0.01)),
        Format::Q6K => bytes
            .chunks_exact_mut(210)
            .for_each(|block| scale(&mut block[208..], 3e-4)),
        Format::Q4K | Format::Q5K => {
            let blocks = bytes.chunks_exact_mut(format.block_bytes());
            blocks.for_each(|block| {
                scale(&mut block[..2], 1e-3);
                scale(&mut block[2..4], 1e-2);
            });
        }
        Format::Q5_0 | Format::Q4_0 => bytes
            .chunks_exact_mut(format.block_bytes())
            .for_each(|block| scale(&mut block[..2], 0.06)),
        Format::Q5_1 | Format::Q4_1 => {
            let blocks = bytes.chunks_exact_mut(format.block_bytes());
            blocks.for_each(|block| {
                scale(&mut block[..2], 0.03);
                scale(&mut block[2..4], 0.5);
            });
        }
        Format::Q3K => bytes
            .chunks_exact_mut(110)
            .for_each(|block| scale(&mut block[108..], 8e-3)),
        Format::Q2K => bytes.chunks_exact_mut(84).for_each(|block| {
            scale(&mut block[80..82], 0.02);
            scale(&mut block[82..], 0.06);
        }),
    }
    bytes
}

/// What stored weights stand for, each product and difference rounded by itself.
pub(crate) fn dequantize(format: Format, bytes: &[u8]) -> Vec<f32> {
    let half = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
    let blocks = bytes.chunks_exact(format.block_bytes());
    blocks
        .flat_map(|block| {
            (0..format.block_len()).map(move |i| match format {
                Format::F32 => f32::from_le_bytes(block.try_into().expect("four bytes")),
                Format::F16 => half(block),
                Format::Bf16 => bf16::from_le_bytes([block[0], block[1]]).to_f32(),
                Format::Q8_0 => f32::from(block[2 + i].cast_signed()) * half(block),
                Format::Q6K => q6_k(block, i),
                Format::Q5K => {
                    let high = block[16 + i % 32] >> (i / 32) & 1;
                    six_bits(block, i, half_of(&block[48..], i) | high << 4)
                }
                Format::Q4K => six_bits(block, i, half_of(&block[16..], i)),
                Format::Q5_1 => {
                    let quant = block[8 + i % 16] >> (4 * (i / 16)) & 15 | bit(&block[4..], i) << 4;
                    f32::from(quant) * half(block) + half(&block[2..])
                }
                Format::Q5_0 => {
                    let quant = block[6 + i % 16] >> (4 * (i / 16)) & 15 | bit(&block[2..], i) << 4;
                    f32::from(i16::from(quant) - 16) * half(block)
                }
                Format::Q4_1 => {
                    let quant = block[4 + i % 16] >> (4 * (i / 16)) & 15;
                    f32::from(quant) * half(block) + half(&block[2..])
                }
                Format::Q4_0 => {
                    let quant = block[2 + i % 16] >> (4 * (i / 16)) & 15;
                    f32::from(i16::from(quant) - 8) * half(block)
                }
                Format::Q3K => q3_k(block, i),
                Format::Q2K => {
                    let both = block[i / 16];
                    let quant = block[16 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
                    half(&block[80..]) * f32::from(both & 15) * f32::from(quant)
                        - half(&block[82..]) * f32::from(both >> 4)
                }
            })
        })
        .collect()
}

fn q6_k(block: &[u8], i: usize) -> f32 {
    let above = f16::from_le_bytes([block[208], block[209]]).to_f32();
    let (part, place) = (i / 128, i % 128);
    let low = block[64 * part + place % 64] >> (4 * (place / 64)) & 15;
    let high = block[128 + 32 * part + place % 32] >> (2 * (place / 32)) & 3;
    let scale = f32::from(block[192 + i / 16].cast_signed());
    above * scale * (i32::from(low | high << 4) - 32) as f32
}

/// Bit `i` of some bytes.
fn bit(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 8] >> (i % 8) & 1
}

/// The four bits of weight `i` where each group of 64 has 32 bytes.
fn half_of(halves: &[u8], i: usize) -> u8 {
    halves[32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2)) & 15
}

/// A weight of a block with 6-bit scales and minima.
fn six_bits(block: &[u8], i: usize, quant: u8) -> f32 {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    let (packed, group) = (&block[4..16], i / 32);
    let (scale, minimum) = if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        (
            packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
            packed[group + 4] >> 4 | packed[group] >> 6 << 4,
        )
    };
    half(0) * f32::from(scale) * f32::from(quant) - half(2) * f32::from(minimum)
}

fn q3_k(block: &[u8], i: usize) -> f32 {
    let above = f16::from_le_bytes([block[108], block[109]]).to_f32();
    let (packed, group) = (&block[96..108], i / 16);
    let low = packed[group % 8] >> (4 * (group / 8)) & 15;
    let high = packed[8 + group % 4] >> (2 * (group / 4)) & 3;
    let pair = block[32 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
    let quant = i16::from(pair)
        - if block[i % 32] >> (i / 32) & 1 == 0 {
            4
        } else {
            0
        };
    above * f32::from(i16::from(low | high << 4) - 32) * f32::from(quant)
}
