//! Compressed matrices to test with: made by the codec, which also says what they decode to.

use half::{bf16, f16};
use sluice_codec as codec;
use sluice_codec::{ColumnsEncoder, Encoded, Lossless, MatrixLayout, TrellisTarget};
use sluice_cuda::{CompressedChunk, CompressedGpuMatrix, Compression, Gpu, GpuMemory};
use sluice_formats::DType;

use super::formats::Random;

/// A matrix in compressed chunks.
#[derive(Clone)]
pub(crate) struct Sample {
    pub(crate) compression: Compression,
    pub(crate) source: DType,
    pub(crate) width: usize,
    pub(crate) tile: usize,
    pub(crate) layouts: Vec<MatrixLayout>,
    pub(crate) chunks: Vec<CompressedChunk>,
    pub(crate) bytes: Vec<u8>,
}

/// Weights about zero: Gaussian, or with occasional outliers.
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

/// Values as they lie in memory.
pub(crate) fn bytes_of(number: DType, values: &[f32]) -> Vec<u8> {
    let each = |value: &f32| match number {
        DType::F32 => value.to_le_bytes().to_vec(),
        DType::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
        DType::Bf16 => bf16::from_f32(*value).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(each).collect()
}

impl Sample {
    /// Compresses chunks of `rows` rows each. Bytes between chunks are poison.
    pub(crate) fn new(
        coding: Compression,
        source: DType,
        rows: &[usize],
        width: usize,
        tile: usize,
        numbers: &[u8],
    ) -> Self {
        let mut sample = Self {
            compression: coding,
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
            let lossless = |scheme| codec::encode(source, rows, width, of_chunk, scheme, tile);
            let Encoded { layout, bytes } = match coding {
                Compression::Huffman => lossless(Lossless::Huffman).unwrap(),
                Compression::Dictionary => lossless(Lossless::Dictionary).unwrap(),
                Compression::Trellis => {
                    let values = wide(source, of_chunk);
                    let target = TrellisTarget::Bits(4.0);
                    codec::quantize(source, rows, width, &values, target, tile)
                        .unwrap()
                        .encoded
                }
                Compression::Columns => columns(rows, width, &wide(source, of_chunk)),
            };
            let start = sample.bytes.len().next_multiple_of(64);
            sample.bytes.resize(start, 0xff);
            sample.bytes.extend(&bytes);
            sample.chunks.push(CompressedChunk {
                start: start as u64,
                rows: rows as u32,
                codes_bytes: layout.codes_len() as u32,
                escapes_bytes: layout.escapes_len() as u32,
            });
            sample.layouts.push(layout);
        }
        sample
    }

    /// What it decompresses to, upcast.
    pub(crate) fn values(&self) -> Vec<f32> {
        let mut values = Vec::new();
        for (chunk, layout) in self.chunks.iter().zip(&self.layouts) {
            let bytes = &self.bytes[chunk.start as usize..][..layout.bytes()];
            let compressed = codec::CompressedMatrix::new(layout.clone(), bytes).unwrap();
            let before = values.len();
            values.resize(before + layout.elements(), 0.0);
            compressed
                .decompress_rows_f32(0..layout.rows(), &mut values[before..])
                .unwrap();
        }
        values
    }

    /// Its bytes on the GPU, with nothing after them.
    pub(crate) fn upload(&self, gpu: &Gpu) -> GpuMemory {
        let memory = gpu.allocate(self.bytes.len()).unwrap();
        gpu.upload(memory.span(), &self.bytes).unwrap();
        memory
    }

    pub(crate) fn matrix(&self, memory: &GpuMemory) -> CompressedGpuMatrix<'_> {
        CompressedGpuMatrix {
            compression: self.compression,
            dtype: self.source,
            width: self.width,
            tile: self.tile,
            bytes: memory.span(),
            chunks: &self.chunks,
        }
    }
}

/// Quantizes values, row after row, column by column. Every column has a step of its own, of which some are so large
/// that nothing is left, and others so small that low bits are stored as they are, or symbols are escaped.
fn columns(rows: usize, width: usize, values: &[f32]) -> Encoded {
    let sizes: Vec<f32> = (0..rows).map(|row| (row % 5) as f32).collect();
    let mut encoder = ColumnsEncoder::new(DType::F32, width, &sizes, 0.01).unwrap();
    let mut decoded = vec![0.0; rows];
    for column in 0..width {
        let of_column: Vec<f32> = (0..rows).map(|row| values[row * width + column]).collect();
        let step = match column % 83 {
            7 => 0.0,
            at @ 9..20 => 1e-5 * 1.6_f32.powi(at as i32),
            at => 0.0012 * 1.06_f32.powi(at as i32),
        };
        encoder.quantize_column(column, &of_column, step, &mut decoded);
    }
    encoder.finish().unwrap()
}

/// Elements of `number`, upcast to `f32`.
pub(crate) fn wide(number: DType, bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(number.bytes())
        .map(|bytes| match number {
            DType::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            DType::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            DType::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        })
        .collect()
}
