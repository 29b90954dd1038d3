//! Multiplications by palette-coded weights as they are. What a palette lacks is looked up in an index, which is made of the
//! coded bytes when they come to the card.

use bytemuck::{Pod, Zeroable};
use thiserror::Error;

use super::{
    FEW_ROWS, address,
    decompress::{CHUNKS_MAX, CompressedChunk, CompressedGpuMatrix, Compression, STRIP_TILES},
    holds, shape_of, size,
};
use sluice_formats::DType;

use crate::{error::CudaError, gpu::Gpu, launch::KernelArgument, span::GpuSpan};

/// Rows of every chunk but the last, as `palette_weights.cuh` says.
const CHUNK_ROWS: u32 = 256;
/// Numbers that are read at once: rows are whole times so many.
const RUN: usize = 16;
/// An escape's column has 16 bits, of which the highest number stands for none.
const WIDTH_MAX: usize = u16::MAX as usize;
/// The index of a symbol that the palette lacks.
const ESCAPE: u8 = 15;
/// The length of a tile whose symbols are all kept as they are.
const WHOLE: u8 = 255;
/// After a row's last escape.
const NONE: u32 = u32::MAX;

/// A product of rows and palette-coded weights: `out[rows, outputs] = x[rows, width] · weightsᵀ`.
#[derive(Debug, Clone, Copy)]
pub struct DictionaryMatmul<'a> {
    /// The result, in the numbers of `x` or in `f32`.
    pub out: GpuSpan,
    /// Whether the result is `f32`, whatever `x` is.
    pub out_is_f32: bool,
    /// Numbers from one row of the result to the next: as many as there are rows of weights, or more.
    pub out_stride: usize,
    /// The rows.
    pub x: GpuSpan,
    /// How many they are.
    pub rows: usize,
    /// The weights, which must be [multiplied as they are](CompressedGpuMatrix::has_matmul).
    pub weights: &'a CompressedGpuMatrix<'a>,
    /// The [`dictionary_index`] of a matrix that they are rows of, aligned to 4 bytes.
    pub index: GpuSpan,
    /// How many rows that matrix has.
    pub index_rows: usize,
    /// Which of them the weights begin with.
    pub first_row: usize,
    /// Whether the product is added to what `out` holds.
    pub accumulate: bool,
}

/// Coded bytes that no index can be made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("tile {tile} of the dictionary-coded chunk {chunk} is damaged")]
pub struct DictionaryIndexError {
    /// Which of the chunks.
    pub chunk: usize,
    /// Which of its tiles.
    pub tile: usize,
}

impl CompressedGpuMatrix<'_> {
    /// Whether [`Gpu::matmul_dictionary`] takes it as it is: palette-coded bf16, in rows of whole times 16 numbers and fewer
    /// than 65,536, in chunks of 256 rows but for the last. Others are [decoded](Gpu::decompress) first.
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

/// Most bytes that the [`dictionary_index`] of such chunks has.
#[must_use]
pub fn dictionary_index_bytes(chunks: &[CompressedChunk]) -> usize {
    let words = |chunk: &CompressedChunk| 2 * chunk.rows as usize + chunk.escapes_bytes as usize;
    (chunks.iter().map(words).sum::<usize>() + 2) * size_of::<u32>()
}

/// The numbers that palettes lack of a matrix of bf16: where each row's begin among them, and where the last row's end; then
/// row by row a column and a number each, and what stands for none. `bytes` are those that the chunks are in.
///
/// # Errors
/// When the symbols of a tile that lacks some aren't where they are said to be, or not as many.
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
            starts.push(escapes.len() as u32);
            while let Some((_, column, number)) = found.next_if(|(of, ..)| *of == row) {
                escapes.push((column as u32) << 16 | u32::from(number));
            }
            escapes.push(NONE);
        }
    }
    starts.push(escapes.len() as u32);
    // Kernels look one further.
    escapes.push(NONE);
    starts.append(&mut escapes);
    Ok(starts)
}

/// Row, column and bits of each number of a chunk that isn't what its palette says, in order; else the first tile that is
/// damaged.
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
        // Tiles are whole bytes, but for the last.
        let of_codes = &codes[of_tile.start / 2..of_tile.end.div_ceil(2)];
        for (sixteen, codes) in of_codes.chunks(8).enumerate() {
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

/// Whether one of up to 16 indices is an escape's.
fn has_escapes(codes: &[u8]) -> bool {
    let mut word = [0; 8];
    word[..codes.len()].copy_from_slice(codes);
    let word = u64::from_le_bytes(word);
    let pairs = word & word >> 1;
    pairs & pairs >> 2 & 0x1111_1111_1111_1111 != 0
}

/// What the kernels know of a chunk: where its parts are.
#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct Chunk {
    table: u64,
    codes: u64,
    raw: u64,
}

impl Gpu {
    /// A product with weights that stay coded: each is decoded on its way to the multiplication. For many rows it is what
    /// [`Gpu::matmul_by_kernels`] gives with the decoded weights, bit for bit.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When a span is too short, the weights can't be multiplied as they are, or results are added to other numbers than `f32`.
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
        holds("index", index, 2 * (index_rows + 1), size_of::<u32>());
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
