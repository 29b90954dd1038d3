//! Multiplies by dictionary-coded weights without decompressing them first. Escapes are looked up in an index, which is
//! built from the compressed bytes when they come to the GPU.

use bytemuck::{Pod, Zeroable};
use thiserror::Error;

use super::{
    FEW_ROWS, address,
    decompress::{CHUNKS_MAX, CompressedChunk, CompressedGpuMatrix, Compression, STRIP_TILES},
    holds, shape_of, size,
};
use sluice_formats::DType;

use crate::{error::CudaError, gpu::Gpu, launch::KernelArgument, span::GpuSpan};

/// Rows of every chunk but the last, as in `palette_weights.cuh`.
const CHUNK_ROWS: u32 = 256;
/// Elements that are read at once: rows are a multiple of it.
const RUN: usize = 16;
/// Largest width: an escape's column has 16 bits, and the largest value stands for none.
const WIDTH_MAX: usize = u16::MAX as usize;
/// Index of a symbol that the dictionary lacks.
const ESCAPE: u8 = 15;
/// Length of a tile whose symbols are all escapes.
const WHOLE: u8 = 255;
/// End mark after a row's last escape.
const NONE: u32 = u32::MAX;

/// Arguments of [`Gpu::matmul_dictionary`]: `out[rows, outputs] = x[rows, width] · weightsᵀ`.
#[derive(Debug, Clone, Copy)]
pub struct DictionaryMatmul<'a> {
    /// The result, in the dtype of `x` or in `f32`.
    pub out: GpuSpan,
    /// Whether the result is `f32`, whatever the dtype of `x`.
    pub out_is_f32: bool,
    /// Elements from one row of the result to the next: the number of weight rows, or more.
    pub out_stride: usize,
    /// The left factor, `rows` × `width`, in the compute dtype.
    pub x: GpuSpan,
    /// Rows of `x`.
    pub rows: usize,
    /// The weights, for which [`has_matmul`](CompressedGpuMatrix::has_matmul) must hold.
    pub weights: &'a CompressedGpuMatrix<'a>,
    /// The [`dictionary_index`] of the matrix that these rows belong to, aligned to 4 bytes.
    pub index: GpuSpan,
    /// Number of rows of that matrix.
    pub index_rows: usize,
    /// Index in that matrix of the first row of `weights`.
    pub first_row: usize,
    /// Whether the product is added to what `out` holds.
    pub accumulate: bool,
}

/// Compressed bytes that no index can be built from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("tile {tile} of the dictionary-coded chunk {chunk} is damaged")]
pub struct DictionaryIndexError {
    /// Index of the chunk.
    pub chunk: usize,
    /// Index of the tile in the chunk.
    pub tile: usize,
}

impl CompressedGpuMatrix<'_> {
    /// Whether [`Gpu::matmul_dictionary`] supports it: dictionary-coded bf16, with a width that is a multiple of 16 and
    /// less than 65,536, in chunks of 256 rows but for the last. Others are [decompressed](Gpu::decompress) first.
    #[must_use]
    pub fn has_matmul(&self) -> bool {
        let whole_chunks = self.chunks.split_last().is_some_and(|(last, others)| {
            last.rows <= CHUNK_ROWS && others.iter().all(|chunk| chunk.rows == CHUNK_ROWS)
        });
        self.compression == Compression::Dictionary
            && self.dtype == DType::Bf16
            && self.width.is_multiple_of(RUN)
            && self.width <= WIDTH_MAX
            && whole_chunks
    }
}

/// Upper bound for the bytes of the [`dictionary_index`] of these chunks. The header alone gives it, so that memory can
/// be planned before any bytes are read.
#[must_use]
pub fn dictionary_index_bytes(chunks: &[CompressedChunk]) -> usize {
    let words = |chunk: &CompressedChunk| 2 * chunk.rows as usize + chunk.escapes_bytes as usize;
    (chunks.iter().map(words).sum::<usize>() + 2) * size_of::<u32>()
}

/// Builds the index of the escapes of a bf16 matrix: the position of each row's first escape and of the last row's end,
/// then for each row the escapes (column in the high half, bf16 bits in the low half) and an end mark. The chunks lie
/// in `bytes`.
///
/// # Errors
/// When a tile's escapes lie outside of their part, or are too many or too few.
///
/// # Panics
/// When chunks don't lie in the bytes, or rows are too long.
pub fn dictionary_index(
    width: usize,
    tile: usize,
    chunks: &[CompressedChunk],
    bytes: &[u8],
) -> Result<Vec<u32>, DictionaryIndexError> {
    assert!(
        width <= WIDTH_MAX && dictionary_index_bytes(chunks) / size_of::<u32>() < NONE as usize,
        "columns have 16 bits, and places in the index 32"
    );
    let mut starts = Vec::new();
    let mut escapes = Vec::new();
    for (at, chunk) in chunks.iter().enumerate() {
        let found = escapes_of(width, tile, chunk, bytes);
        let found = found.map_err(|tile| DictionaryIndexError { chunk: at, tile })?;
        let mut found = found.into_iter().peekable();
        for row in 0..chunk.rows as usize {
            // Counted from the first escape, whose address kernels are given apart: a launch for some of the rows takes
            // the same index.
            starts.push(escapes.len() as u32);
            // Sorted by row and column, so that a thread finds the next escape by looking at one word.
            while let Some((_, column, number)) = found.next_if(|(of, ..)| *of == row) {
                escapes.push((column as u32) << 16 | u32::from(number));
            }
            escapes.push(NONE);
        }
    }
    starts.push(escapes.len() as u32);
    // Kernels read one word ahead.
    escapes.push(NONE);
    starts.append(&mut escapes);
    Ok(starts)
}

/// Row, column and bits of each escape of a chunk, in order; or the first damaged tile.
fn escapes_of(
    width: usize,
    tile: usize,
    chunk: &CompressedChunk,
    bytes: &[u8],
) -> Result<Vec<(usize, usize, u16)>, usize> {
    let bytes = &bytes[chunk.start as usize..];
    let parts = chunk.parts(Compression::Dictionary, DType::Bf16, width, tile);
    let [table, _, offsets, lengths, codes, escapes, raw] =
        parts.map(|part| &bytes[part.start as usize..part.end as usize]);
    let escapes = &escapes[..chunk.escapes_bytes as usize];
    let numbers = chunk.rows as usize * width;
    let (mut found, mut start) = (Vec::new(), 0_usize);
    for (at, &length) in lengths.iter().enumerate() {
        if at % STRIP_TILES == 0 {
            let offset = offsets.get(at / STRIP_TILES * 4..);
            let offset = offset
                .and_then(|offset| offset.first_chunk::<4>())
                .ok_or(at)?;
            start = u32::from_le_bytes(*offset) as usize;
        }
        let of_tile = at * tile..numbers.min((at + 1) * tile);
        let whole = length == WHOLE;
        let count = if whole { of_tile.len() } else { length.into() };
        let end = start.checked_add(count).ok_or(at)?;
        let mut symbols = escapes.get(start..end).ok_or(at)?.iter();
        start = end;
        // A tile begins on a whole byte of codes, since only the last one can have an odd number of elements.
        let of_codes = &codes[of_tile.start / 2..of_tile.end.div_ceil(2)];
        for (sixteen, codes) in of_codes.chunks(8).enumerate() {
            // Most groups of sixteen have no escape.
            if !whole && !has_escapes(codes) {
                continue;
            }
            let first = of_tile.start + sixteen * RUN;
            for place in first..of_tile.end.min(first + RUN) {
                let index = codes[(place - first) / 2] >> (place % 2 * 4) & 15;
                if !whole && index != ESCAPE {
                    continue;
                }
                let symbol = *symbols.next().ok_or(at)?;
                if index == ESCAPE {
                    let (symbol, raw) = (u16::from(symbol), u16::from(raw[place]));
                    let number = (raw & 0x80) << 8 | symbol << 7 | raw & 0x7f;
                    found.push((place / width, place % width, number));
                // A tile that stores all of its symbols stores those of the dictionary as well, where the kernel will
                // take the dictionary's: both must agree.
                } else if symbol != table[usize::from(index)] {
                    return Err(at);
                }
            }
        }
        if symbols.next().is_some() {
            return Err(at);
        }
    }
    Ok(found)
}

/// Whether one of up to 16 indices is [`ESCAPE`].
fn has_escapes(codes: &[u8]) -> bool {
    let mut word = [0; 8];
    word[..codes.len()].copy_from_slice(codes);
    let word = u64::from_le_bytes(word);
    // One bit for each nibble of ones, as in the codec.
    let pairs = word & word >> 1;
    pairs & pairs >> 2 & 0x1111_1111_1111_1111 != 0
}

/// Places of a chunk's parts, as the kernels know them.
#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct Chunk {
    table: u64,
    codes: u64,
    raw: u64,
}

impl Gpu {
    /// Multiplies by weights that stay compressed: each is decompressed in registers. For many rows the result is bit
    /// for bit that of [`Gpu::matmul_by_kernels`] with decompressed weights.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short, the weights aren't supported, or results are added to a dtype other than `f32`.
    pub fn matmul_dictionary(
        &self,
        dtype: DType,
        matmul: DictionaryMatmul<'_>,
    ) -> Result<(), CudaError> {
        let DictionaryMatmul {
            out,
            out_is_f32,
            out_stride,
            x,
            rows,
            weights,
            index,
            index_rows,
            first_row,
            accumulate,
        } = matmul;
        assert!(weights.has_matmul(), "such weights are decoded first");
        weights.check();
        let (outputs, width) = (weights.rows(), weights.width);
        let out_is_f32 = out_is_f32 || dtype == DType::F32;
        assert!(out_is_f32 || !accumulate, "sums are f32");
        assert!(out_stride >= outputs, "rows of the result overlap");
        let out_bytes = if out_is_f32 { 4 } else { dtype.bytes() };
        if rows == 0 || outputs == 0 {
            return Ok(());
        }
        holds("out", out, (rows - 1) * out_stride + outputs, out_bytes);
        holds("x", x, rows * width, dtype.bytes());
        assert!(first_row + outputs <= index_rows, "rows beyond the index");
        // A start and an end mark for each row, and one more of both. How many escapes lie between them only the index
        // says.
        holds("index", index, 2 * (index_rows + 1), size_of::<u32>());
        // Widths are multiples of 16 elements, so every row is aligned if the first one is.
        let few = rows <= FEW_ROWS && x.address().is_multiple_of(16);
        let mut first = 0;
        for chunks in weights.chunks.chunks(CHUNKS_MAX) {
            let mut described = [Chunk::default(); CHUNKS_MAX];
            for (described, chunk) in described.iter_mut().zip(chunks) {
                let [table, .., codes, _, raw] =
                    chunk.parts(weights.compression, weights.dtype, width, weights.tile);
                *described = Chunk {
                    table: chunk.start + table.start,
                    codes: chunk.start + codes.start,
                    raw: chunk.start + raw.start,
                };
            }
            let some: usize = chunks.iter().map(|chunk| chunk.rows as usize).sum();
            let (kind, grid, block) = shape_of(few, rows, some, outputs);
            let word = size_of::<u32>() as u64;
            self.send(
                &format!("{kind}_palette_{}", dtype.name()),
                grid,
                block,
                &[
                    // A launch covers some columns of the result; the stride still spans all of them.
                    KernelArgument::Address(out.address() + (first * out_bytes) as u64),
                    KernelArgument::U32(out_is_f32.into()),
                    address(x),
                    address(weights.bytes),
                    KernelArgument::Address(index.address() + (first_row + first) as u64 * word),
                    KernelArgument::Address(index.address() + (index_rows as u64 + 1) * word),
                    size(rows),
                    size(some),
                    size(width),
                    size(out_stride),
                    KernelArgument::F32(if accumulate { 1.0 } else { 0.0 }),
                    KernelArgument::Bytes(bytemuck::bytes_of(&described)),
                ],
            )?;
            first += some;
        }
        Ok(())
    }
}
