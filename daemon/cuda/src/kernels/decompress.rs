//! Decompresses matrices on the GPU.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::{address, holds, size};
use sluice_formats::DType;

use crate::{error::CudaError, gpu::Gpu, launch::KernelArgument, span::GpuSpan};

/// Parts of a compressed matrix and chunks begin at multiples of this.
const ALIGN_BYTES: u64 = 64;
/// Zeros after codes and escapes.
const PAD_BYTES: u64 = 16;
/// Tiles that a warp decodes: one per lane.
pub(super) const STRIP_TILES: usize = 32;
/// Warps of a block, as in `decode.cuh`.
const WARPS: usize = 8;
/// Columns of a tile, and most rows of a chunk, of [`Compression::Columns`].
const TILE_COLUMNS: usize = 8;
const COLUMN_ROWS_MAX: u32 = 256;
/// Chunks that one launch decompresses, as in `decode.cuh`.
pub(super) const CHUNKS_MAX: usize = 128;
/// Most elements of a chunk: kernels index them with 31 bits.
const ELEMENTS_MAX: u64 = 1 << 31;
/// Most bytes of codes, which kernels index with 31 bits, too. Other codes have no more bytes than elements.
const BYTES_MAX: u64 = 1 << 31;

/// How a matrix is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Lossless: Huffman codes.
    Huffman,
    /// Lossless: four-bit dictionary indices, and escapes for rare symbols.
    Dictionary,
    /// Lossy, to a chosen bit rate: trellis-coded quantization with Huffman codes.
    Trellis,
    /// Lossy: trellis-coded quantization down the columns, each with a step and a code of its own.
    Columns,
}

impl Compression {
    /// The name that logs and kernels use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Huffman => "huffman",
            Self::Dictionary => "palette",
            Self::Trellis => "rate",
            Self::Columns => "columns",
        }
    }
}

/// Consecutive rows of a matrix that are compressed by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressedChunk {
    /// Offset of its first byte from the matrix's; a multiple of 64.
    pub start: u64,
    /// Number of rows.
    pub rows: u32,
    /// Bytes of its codes, without padding.
    pub codes_bytes: u32,
    /// Bytes of its escapes, without padding.
    pub escapes_bytes: u32,
}

impl CompressedChunk {
    /// Number of its elements.
    pub(super) fn elements(&self, width: usize) -> u64 {
        u64::from(self.rows) * width as u64
    }

    /// Number of its tiles.
    fn tiles(&self, compression: Compression, width: usize, tile: usize) -> u64 {
        match compression {
            Compression::Columns if self.rows == 0 => 0,
            Compression::Columns => width.div_ceil(TILE_COLUMNS) as u64,
            _ => self.elements(width).div_ceil(tile as u64),
        }
    }

    /// Byte ranges of its parts, relative to its start: table, steps, offsets, lengths, codes, escapes, raw bits. The
    /// codec's layout, which this crate repeats because it doesn't depend on the codec.
    pub(super) fn parts(
        &self,
        compression: Compression,
        source: DType,
        width: usize,
        tile: usize,
    ) -> [Range<u64>; 7] {
        let numbers = self.elements(width);
        let tiles = self.tiles(compression, width, tile);
        let strips = tiles.div_ceil(STRIP_TILES as u64);
        let codes = u64::from(self.codes_bytes);
        let raw = numbers * (source.bytes() as u64 - 1);
        // Tables: 256 code lengths of 4 bits; 16 symbols; 128 code lengths, 64 means of a byte and an `f32` step; the
        // step alone.
        let (table, steps, codes, escapes, raw) = match compression {
            Compression::Huffman => (128, 0, codes + PAD_BYTES, 0, raw),
            Compression::Dictionary => {
                (16, 0, codes, u64::from(self.escapes_bytes) + PAD_BYTES, raw)
            }
            Compression::Trellis => (132, self.rows.into(), codes + PAD_BYTES, 0, 0),
            Compression::Columns => (4, self.rows.into(), codes + PAD_BYTES, 0, 0),
        };
        let lengths = match compression {
            Compression::Columns => 2 * tiles,
            _ => tiles,
        };
        let mut end = 0_u64;
        [table, steps, (strips + 1) * 4, lengths, codes, escapes, raw].map(|bytes: u64| {
            let start = match bytes {
                // An absent part isn't aligned.
                0 => end,
                _ => end.next_multiple_of(ALIGN_BYTES),
            };
            end = start + bytes;
            start..end
        })
    }
}

/// A compressed matrix, or some rows of one, on the GPU. The caller has checked its bytes as far as decompression can
/// fail; other damage only changes values.
#[derive(Debug, Clone, Copy)]
pub struct CompressedGpuMatrix<'a> {
    /// How it is compressed.
    pub compression: Compression,
    /// The dtype that its elements had; irrelevant after quantization.
    pub dtype: DType,
    /// Elements of a row.
    pub width: usize,
    /// Elements of a tile: 128, 256 or 512. Of columns it follows from the rows, and this is not looked at.
    pub tile: usize,
    /// The bytes of all chunks, aligned to 16.
    pub bytes: GpuSpan,
    /// The chunks, in the order of their rows.
    pub chunks: &'a [CompressedChunk],
}

impl CompressedGpuMatrix<'_> {
    /// Number of rows of all chunks.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.rows as usize).sum()
    }

    /// Panics unless the chunks lie in the matrix's bytes.
    pub(super) fn check(&self) {
        let has_columns = self.compression == Compression::Columns;
        assert!(
            has_columns || [128, 256, 512].contains(&self.tile),
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
            // The same bounds as the codec's, which opened the container.
            let lengths_can_be = match self.compression {
                Compression::Huffman | Compression::Trellis => codes <= numbers && escapes == 0,
                Compression::Dictionary => codes == numbers.div_ceil(2) && escapes <= numbers,
                Compression::Columns => {
                    codes <= 3 * numbers + 4 * self.width as u64 && codes < BYTES_MAX
                }
            };
            assert!(
                !has_columns || chunk.rows <= COLUMN_ROWS_MAX,
                "{chunk:?} has more rows than columns have"
            );
            // Kernels trust these lengths: they bound what is read, even of damaged bytes.
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

/// A chunk as the kernels know it, passed by value with the launch.
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
    /// Decompresses all rows of a matrix, one after the other. To the dtype that they had it is bit for bit; otherwise
    /// they are upcast to `f32` and rounded as by [`Gpu::convert`].
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
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
        // Levels don't depend on the original dtype; lossless bits do.
        let kernel = match matrix.compression {
            Compression::Trellis | Compression::Columns => {
                format!("decode_{coding}_{}", dtype.name())
            }
            _ => format!("decode_{coding}_{}_{}", dtype.name(), matrix.dtype.name()),
        };
        let mut first_row = 0;
        for chunks in matrix.chunks.chunks(CHUNKS_MAX) {
            // Chunks are described in the launch's arguments, which are limited to 4 KiB: no copy has to be made and
            // waited for.
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
                let tiles = chunk.tiles(matrix.compression, width, matrix.tile);
                strips_max = strips_max.max(tiles.div_ceil(STRIP_TILES as u64) as usize);
            }
            if strips_max == 0 {
                continue;
            }
            // All warps of a block share a strip of columns; of other tiles each has its own.
            let blocks = match matrix.compression {
                Compression::Columns => strips_max,
                _ => strips_max.div_ceil(WARPS),
            };
            // Chunks differ in size; blocks beyond a shorter chunk's strips have nothing to do.
            self.send(
                &kernel,
                [blocks, chunks.len()],
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
