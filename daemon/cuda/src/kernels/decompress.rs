//! Matrices that are coded, decoded on the card.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::{address, holds, size};
use sluice_formats::DType;

use crate::{error::CudaError, gpu::Gpu, launch::KernelArgument, span::GpuSpan};

/// Parts of a coded matrix begin at multiples of this, and so do chunks.
const ALIGN_BYTES: u64 = 64;
/// Zeros after codes and escapes.
const PAD_BYTES: u64 = 16;
/// Tiles that a warp decodes.
pub(super) const STRIP_TILES: usize = 32;
/// Warps of a block, as `decode.cuh` says.
const WARPS: usize = 8;
/// Chunks that one launch decodes, as `decode.cuh` says.
pub(super) const CHUNKS_MAX: usize = 128;
/// Most numbers in a chunk: their places have 31 bits.
const ELEMENTS_MAX: u64 = 1 << 31;

/// How a matrix is coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Without loss: symbols by Huffman codes.
    Huffman,
    /// Without loss: symbols by four bits each, rare ones beside.
    Dictionary,
    /// To a chosen rate: levels of a step, by Huffman codes.
    Trellis,
}

impl Compression {
    /// The name that logs and kernels use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Huffman => "huffman",
            Self::Dictionary => "palette",
            Self::Trellis => "rate",
        }
    }
}

/// Consecutive rows of a matrix that are coded by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressedChunk {
    /// Where it begins, in bytes from the matrix's first; a multiple of 64.
    pub start: u64,
    /// Rows.
    pub rows: u32,
    /// Bytes of its codes, without padding.
    pub codes_bytes: u32,
    /// Bytes of its escapes, without padding.
    pub escapes_bytes: u32,
}

impl CompressedChunk {
    /// How many numbers it has.
    pub(super) fn elements(&self, width: usize) -> u64 {
        u64::from(self.rows) * width as u64
    }

    /// Its parts, in bytes from its start on: table, steps, offsets, lengths, codes, escapes, raw. The codec's layout.
    pub(super) fn parts(
        &self,
        compression: Compression,
        source: DType,
        width: usize,
        tile: usize,
    ) -> [Range<u64>; 7] {
        let numbers = self.elements(width);
        let tiles = numbers.div_ceil(tile as u64);
        let strips = tiles.div_ceil(STRIP_TILES as u64);
        let codes = u64::from(self.codes_bytes);
        let raw = numbers * (source.bytes() as u64 - 1);
        let (table, steps, codes, escapes, raw) = match compression {
            Compression::Huffman => (128, 0, codes + PAD_BYTES, 0, raw),
            Compression::Dictionary => {
                (16, 0, codes, u64::from(self.escapes_bytes) + PAD_BYTES, raw)
            }
            Compression::Trellis => (132, self.rows.into(), codes + PAD_BYTES, 0, 0),
        };
        let mut end = 0_u64;
        [table, steps, (strips + 1) * 4, tiles, codes, escapes, raw].map(|bytes: u64| {
            let start = match bytes {
                // What isn't there has no place of its own.
                0 => end,
                _ => end.next_multiple_of(ALIGN_BYTES),
            };
            end = start + bytes;
            start..end
        })
    }
}

/// A coded matrix, or some rows of one, on the card. Its bytes were checked as far as decoding can fail: other bytes would be
/// decoded to other numbers.
#[derive(Debug, Clone, Copy)]
pub struct CompressedGpuMatrix<'a> {
    /// How it is coded.
    pub compression: Compression,
    /// What its numbers were; of rate-coded ones no matter.
    pub dtype: DType,
    /// Numbers of a row.
    pub width: usize,
    /// Numbers of a tile: 128, 256 or 512.
    pub tile: usize,
    /// All bytes that chunks are in, aligned to 16.
    pub bytes: GpuSpan,
    /// The chunks, in the order of their rows.
    pub chunks: &'a [CompressedChunk],
}

impl CompressedGpuMatrix<'_> {
    /// Rows of all chunks.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.rows as usize).sum()
    }

    /// That its chunks lie in its bytes.
    pub(super) fn check(&self) {
        assert!(
            [128, 256, 512].contains(&self.tile),
            "tiles of {} numbers",
            self.tile
        );
        assert!(
            self.bytes.address().is_multiple_of(16),
            "coded bytes are read in 16 bytes"
        );
        for chunk in self.chunks {
            let numbers = chunk.elements(self.width);
            let codes = u64::from(chunk.codes_bytes);
            let escapes = u64::from(chunk.escapes_bytes);
            let lengths_can_be = match self.compression {
                Compression::Huffman | Compression::Trellis => codes <= numbers && escapes == 0,
                Compression::Dictionary => codes == numbers.div_ceil(2) && escapes <= numbers,
            };
            assert!(
                numbers < ELEMENTS_MAX && lengths_can_be,
                "{chunk:?} is none of rows of {}",
                self.width
            );
            let [.., raw] = chunk.parts(self.compression, self.dtype, self.width, self.tile);
            let end = chunk.start.checked_add(raw.end);
            assert!(
                chunk.start.is_multiple_of(ALIGN_BYTES)
                    && end.is_some_and(|end| end <= self.bytes.bytes() as u64),
                "{chunk:?} doesn't lie in {:?}",
                self.bytes
            );
        }
    }
}

/// What the kernels know of a chunk.
#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct Chunk {
    start: u64,
    first_row: u32,
    rows: u32,
    codes_bytes: u32,
    escapes_bytes: u32,
}

impl Gpu {
    /// All rows of a coded matrix as numbers, one after the other. Into numbers as they were it is bit for bit; otherwise they
    /// are widened to `f32` and narrowed as [`Gpu::convert`] does.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When `out` is too short, or chunks don't lie in the matrix's bytes.
    pub fn decompress(
        &self,
        dtype: DType,
        out: GpuSpan,
        matrix: &CompressedGpuMatrix<'_>,
    ) -> Result<(), CudaError> {
        matrix.check();
        let width = matrix.width;
        holds("out", out, matrix.rows() * width, dtype.bytes());
        let coding = matrix.compression.name();
        let kernel = match matrix.compression {
            Compression::Trellis => format!("decode_{coding}_{}", dtype.name()),
            _ => format!("decode_{coding}_{}_{}", dtype.name(), matrix.dtype.name()),
        };
        let mut first_row = 0;
        for chunks in matrix.chunks.chunks(CHUNKS_MAX) {
            let mut described = [Chunk::default(); CHUNKS_MAX];
            let mut strips_max = 0;
            for (described, chunk) in described.iter_mut().zip(chunks) {
                *described = Chunk {
                    start: chunk.start,
                    first_row,
                    rows: chunk.rows,
                    codes_bytes: chunk.codes_bytes,
                    escapes_bytes: chunk.escapes_bytes,
                };
                first_row = first_row
                    .checked_add(chunk.rows)
                    .expect("rows of a matrix have 32 bits");
                let tiles = (chunk.rows as usize * width).div_ceil(matrix.tile);
                strips_max = strips_max.max(tiles.div_ceil(STRIP_TILES));
            }
            if strips_max == 0 {
                continue;
            }
            self.send(
                &kernel,
                [strips_max.div_ceil(WARPS), chunks.len()],
                WARPS as u32 * 32,
                &[
                    address(out),
                    address(matrix.bytes),
                    size(width),
                    size(matrix.tile),
                    KernelArgument::Bytes(bytemuck::bytes_of(&described)),
                ],
            )?;
        }
        Ok(())
    }
}
