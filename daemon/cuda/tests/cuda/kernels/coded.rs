//! Coded matrices to test with: made by the codec, which also says what they decode to.

use half::{bf16, f16};
use sluice_codec as codec;
use sluice_codec::{Encoded, Layout, Lossless, Target};
use sluice_cuda::{CodedChunk, CodedMatrix, Coding, Gpu, GpuMemory, Number};

use super::formats::Random;

/// A matrix in coded chunks.
#[derive(Clone)]
pub(crate) struct Sample {
    pub(crate) coding: Coding,
    pub(crate) source: Number,
    pub(crate) width: usize,
    pub(crate) tile: usize,
    pub(crate) layouts: Vec<Layout>,
    pub(crate) chunks: Vec<CodedChunk>,
    pub(crate) bytes: Vec<u8>,
}

/// Numbers about zero: Gaussian ones, or some that are now and then far out.
pub(crate) fn weights(random: &mut Random, count: usize, far_out: bool) -> Vec<f32> {
    let mut gaussian = || (0..12).map(|_| random.between(0.0, 1.0)).sum::<f32>() - 6.0;
    (0..count)
        .map(|_| {
            let size = match far_out {
                // Student's t of three degrees.
                true => ((0..3).map(|_| gaussian().powi(2)).sum::<f32>() / 3.0).sqrt(),
                false => 1.0,
            };
            0.02 * gaussian() / size.max(1e-3)
        })
        .collect()
}

/// Numbers as they lie in memory.
pub(crate) fn bytes_of(number: Number, values: &[f32]) -> Vec<u8> {
    let each = |value: &f32| match number {
        Number::F32 => value.to_le_bytes().to_vec(),
        Number::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
        Number::Bf16 => bf16::from_f32(*value).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(each).collect()
}

impl Sample {
    /// Codes chunks of so many rows. Bytes between chunks are poison.
    pub(crate) fn new(
        coding: Coding,
        source: Number,
        rows: &[usize],
        width: usize,
        tile: usize,
        numbers: &[u8],
    ) -> Self {
        let kind = match source {
            Number::F32 => codec::Number::F32,
            Number::F16 => codec::Number::F16,
            Number::Bf16 => codec::Number::Bf16,
        };
        let mut sample = Self {
            coding,
            source,
            width,
            tile,
            layouts: Vec::new(),
            chunks: Vec::new(),
            bytes: Vec::new(),
        };
        let mut rest = numbers;
        for &rows in rows {
            let (of_chunk, after) = rest.split_at(rows * width * source.bytes());
            rest = after;
            let lossless = |scheme| codec::encode(kind, rows, width, of_chunk, scheme, tile);
            let Encoded { layout, bytes } = match coding {
                Coding::Huffman => lossless(Lossless::Huffman).unwrap(),
                Coding::Palette => lossless(Lossless::Palette).unwrap(),
                Coding::Rate => {
                    let values = wide(source, of_chunk);
                    let target = Target::Bits(4.0);
                    codec::quantize(kind, rows, width, &values, target, tile)
                        .unwrap()
                        .encoded
                }
            };
            let start = sample.bytes.len().next_multiple_of(64);
            sample.bytes.resize(start, 0xff);
            sample.bytes.extend(&bytes);
            sample.chunks.push(CodedChunk {
                start: start as u64,
                rows: rows as u32,
                codes_bytes: layout.codes_len() as u32,
                escapes_bytes: layout.escapes_len() as u32,
            });
            sample.layouts.push(layout);
        }
        sample
    }

    /// What it decodes to, widened.
    pub(crate) fn values(&self) -> Vec<f32> {
        let mut values = Vec::new();
        for (chunk, layout) in self.chunks.iter().zip(&self.layouts) {
            let bytes = &self.bytes[chunk.start as usize..][..layout.bytes()];
            let coded = codec::Coded::new(layout.clone(), bytes).unwrap();
            let before = values.len();
            values.resize(before + layout.numbers(), 0.0);
            coded
                .widen_rows(0..layout.rows(), &mut values[before..])
                .unwrap();
        }
        values
    }

    /// Its bytes on the card, with nothing after them.
    pub(crate) fn upload(&self, gpu: &Gpu) -> GpuMemory {
        let memory = gpu.allocate(self.bytes.len()).unwrap();
        gpu.upload(memory.span(), &self.bytes).unwrap();
        memory
    }

    pub(crate) fn matrix(&self, memory: &GpuMemory) -> CodedMatrix<'_> {
        CodedMatrix {
            coding: self.coding,
            source: self.source,
            width: self.width,
            tile: self.tile,
            bytes: memory.span(),
            chunks: &self.chunks,
        }
    }
}

/// Numbers, widened.
pub(crate) fn wide(number: Number, bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(number.bytes())
        .map(|bytes| match number {
            Number::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            Number::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            Number::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        })
        .collect()
}
