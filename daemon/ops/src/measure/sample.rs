//! Weights compressed in every way, to measure and to check with.

use std::ops::Range;

use half::bf16;
use sluice_codec::{
    ColumnsEncoder, EncodeError, Encoded, Lossless, Scheme, TrellisTarget, encode, quantize,
};
use sluice_cuda::{self as cuda, CompressedChunk, CompressedGpuMatrix, dictionary_index};
use sluice_formats::{DType, noise::Noise};
use sluice_machine::MemoryKind;
use sluice_weights::{chunk_at, gpu_compression};

use crate::{
    OpsError,
    device::{Device, DeviceBuffer},
    ledger::Ledger,
};

const TILE: usize = 512;
/// Bits per weight of the trellis-quantized sample.
const BITS: f64 = 4.0;
/// Step of the sample that is quantized by columns, beside the weights' deviation of 0.58: about as many bits.
const COLUMN_STEP: f32 = 0.155;
/// Chunks begin at multiples of this.
const CHUNK_ALIGNMENT: usize = 64;

/// A compressed matrix of bf16 weights that are distributed like a model's.
pub struct CompressedSample {
    /// How it is compressed.
    pub scheme: Scheme,
    /// Its bytes, and where they lie.
    pub encoded: Encoded,
}

impl CompressedSample {
    /// A matrix of this shape, which is one chunk, in each way of compressing it.
    pub fn all(rows: usize, width: usize) -> impl Iterator<Item = Self> {
        let noise = Noise::new(1);
        // Sums of four uniform values are nearly normal.
        let uniform = |place: u64| noise.uniform(0, place, 0) as f32 - 0.5;
        let weights: Vec<bf16> = (0..(rows * width) as u64)
            .map(|place| bf16::from_f32((0..4).map(|draw| uniform(4 * place + draw)).sum()))
            .collect();
        let without_loss = |coder| {
            let bytes = bytemuck::cast_slice(&weights);
            encode(DType::Bf16, rows, width, bytes, coder, TILE)
        };
        let values: Vec<f32> = weights.iter().map(|weight| weight.to_f32()).collect();
        let target = TrellisTarget::Bits(BITS);
        let to_a_rate = quantize(DType::Bf16, rows, width, &values, target, TILE);
        let compressed = [
            (Scheme::Huffman, without_loss(Lossless::Huffman)),
            (Scheme::Dictionary, without_loss(Lossless::Dictionary)),
            (
                Scheme::Trellis,
                to_a_rate.map(|quantized| quantized.encoded),
            ),
            (Scheme::Columns, by_columns(rows, width, &values)),
        ];
        let sample = |(scheme, encoded)| Self { scheme, encoded };
        compressed
            .into_iter()
            .filter_map(|(scheme, encoded)| Some((scheme, encoded.ok()?)))
            .map(sample)
    }
}

fn by_columns(rows: usize, width: usize, values: &[f32]) -> Result<Encoded, EncodeError> {
    let mut encoder = ColumnsEncoder::new(DType::Bf16, width, &vec![1.0; rows], COLUMN_STEP)?;
    let (mut column, mut decoded) = (vec![0.0; rows], vec![0.0; rows]);
    for at in 0..width {
        for (value, row) in column.iter_mut().zip(values.chunks(width)) {
            *value = row[at];
        }
        encoder.quantize_column(at, &column, COLUMN_STEP, &mut decoded);
    }
    encoder.finish()
}

/// A sample on a GPU, repeated: each copy is a chunk with bytes of its own, which come from the GPU's memory as those
/// of weights do.
pub struct GpuSample {
    compression: cuda::Compression,
    width: usize,
    tile: usize,
    chunks: Vec<CompressedChunk>,
    bytes: Vec<u8>,
    memory: DeviceBuffer<u8>,
}

impl GpuSample {
    /// Uploads `copies` copies of the sample.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn new(
        device: &Device,
        ledger: &Ledger,
        sample: &CompressedSample,
        copies: usize,
    ) -> Result<Self, OpsError> {
        let Encoded { layout, bytes } = &sample.encoded;
        let stride = bytes.len().next_multiple_of(CHUNK_ALIGNMENT);
        let mut all = vec![0; copies * stride];
        for copy in all.chunks_mut(stride) {
            copy[..bytes.len()].copy_from_slice(bytes);
        }
        let memory =
            DeviceBuffer::filled(device, ledger, MemoryKind::Scratch, all.len(), |memory| {
                memory.copy_from_slice(&all);
            })?;
        Ok(Self {
            compression: gpu_compression(sample.scheme),
            width: layout.width(),
            tile: layout.tile(),
            chunks: (0..copies)
                .map(|copy| chunk_at((copy * stride) as u64, layout))
                .collect(),
            bytes: all,
            memory,
        })
    }

    /// All copies, one below the other.
    pub fn matrix(&self) -> CompressedGpuMatrix<'_> {
        self.part(0..self.chunks.len())
    }

    /// Some of the copies.
    pub fn part(&self, copies: Range<usize>) -> CompressedGpuMatrix<'_> {
        CompressedGpuMatrix {
            compression: self.compression,
            dtype: DType::Bf16,
            width: self.width,
            tile: self.tile,
            bytes: self.memory.span(),
            chunks: &self.chunks[copies],
        }
    }

    /// The index by which dictionary-compressed weights are [multiplied as they are](cuda::Gpu::matmul_dictionary).
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn index(&self, device: &Device, ledger: &Ledger) -> Result<DeviceBuffer<u32>, OpsError> {
        let index = dictionary_index(self.width, self.tile, &self.chunks, &self.bytes);
        let index = index.expect("it was coded here");
        DeviceBuffer::filled(device, ledger, MemoryKind::Scratch, index.len(), |memory| {
            memory.copy_from_slice(&index);
        })
    }

    /// Bytes of all copies.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }
}
