//! Lossless compression of a matrix.

use rayon::prelude::*;
use thiserror::Error;

use sluice_formats::DType;

use crate::{
    dictionary::{self, ESCAPE, ESCAPES_MAX},
    huffman::{self, Codes},
    layout::{LayoutError, MatrixLayout, STRIP_TILES, Scheme, WHOLE},
    symbols::{raw_bytes, split, symbols},
};

/// Strips that one thread compresses at a time.
const PIECE_STRIPS: usize = 16;

/// Lossless compression schemes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lossless {
    /// Store the elements uncompressed.
    Plain,
    /// Huffman codes, the smallest result.
    Huffman,
    /// Four-bit dictionary indices, the fastest to decompress.
    Dictionary,
}

/// A compressed matrix that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Byte ranges of its parts.
    pub layout: MatrixLayout,
    /// The bytes of all parts, as `layout` has them.
    pub bytes: Vec<u8>,
}

/// Why a matrix cannot be compressed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// Shape, tile size or size in bytes is not supported.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The input has not as many elements as the shape.
    #[error("{found} bytes or elements were given; the shape requires {expected}")]
    Length {
        /// Bytes or elements that the shape requires.
        expected: usize,
        /// Bytes or elements that were given.
        found: usize,
    },
    /// Quantization needs finite elements: infinity and NaN have no nearest level.
    #[error("element {0} is infinite or NaN")]
    NotFinite(usize),
}

/// Compresses a matrix of little-endian elements, row by row, losslessly.
pub fn encode(
    dtype: DType,
    rows: usize,
    width: usize,
    bytes: &[u8],
    scheme: Lossless,
    tile: usize,
) -> Result<Encoded, EncodeError> {
    let shape = MatrixShape::new(dtype, rows, width, tile)?;
    // Checked before anything is sliced; the product cannot overflow, as `MatrixShape::new` has bounded it.
    if bytes.len() != shape.elements * dtype.bytes() {
        return Err(EncodeError::Length {
            expected: shape.elements * dtype.bytes(),
            found: bytes.len(),
        });
    }
    if scheme == Lossless::Plain {
        let layout = shape.layout(Scheme::Plain, bytes.len(), 0)?;
        return Ok(Encoded {
            layout,
            bytes: bytes.to_vec(),
        });
    }
    let piece_bytes = shape.piece_elements() * dtype.bytes();
    // Two passes over the input, since one table serves the whole matrix: first count symbols, then write codes. Pieces
    // are whole strips, so the result doesn't depend on the number of threads.
    let counts = bytes
        .par_chunks(piece_bytes)
        .map(|bytes| {
            let mut counts = [0; 256];
            count(&symbols_of(dtype, bytes), &mut counts);
            counts
        })
        .reduce(|| [0; 256], add);
    let mut encoded = if scheme == Lossless::Huffman {
        let lengths = huffman::code_lengths(&counts);
        let codes = Codes::new(&lengths).expect("lengths of a complete code were just made");
        let pieces: Vec<EncodedPiece> = bytes
            .par_chunks(piece_bytes)
            .map(|bytes| shape.huffman(&codes, &symbols_of(dtype, bytes)))
            .collect();
        shape.assemble(Scheme::Huffman, &huffman::pack_lengths(&lengths), &pieces)?
    } else {
        let palette = dictionary::dictionary(&counts);
        let indices = dictionary::indices(&palette);
        let pieces: Vec<EncodedPiece> = bytes
            .par_chunks(piece_bytes)
            .map(|bytes| shape.dictionary(&indices, &symbols_of(dtype, bytes)))
            .collect();
        shape.assemble(Scheme::Dictionary, &palette, &pieces)?
    };
    // Raw bits have a fixed place per element, so threads write them straight into the result.
    let raw = encoded.layout.raw();
    encoded.bytes[raw]
        .par_chunks_mut(shape.piece_elements() * raw_bytes(dtype))
        .zip(bytes.par_chunks(piece_bytes))
        .for_each(|(raw, bytes)| {
            let mut symbols = vec![0; bytes.len() / dtype.bytes()];
            split(dtype, bytes, &mut symbols, raw);
        });
    Ok(encoded)
}

fn symbols_of(dtype: DType, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0; bytes.len() / dtype.bytes()];
    symbols(dtype, bytes, &mut out);
    out
}

/// Adds the frequencies of `symbols` to `counts`.
pub(crate) fn count(symbols: &[u8], counts: &mut [u64; 256]) {
    for symbol in symbols {
        counts[usize::from(*symbol)] += 1;
    }
}

/// Sums the frequencies of two parts.
pub(crate) fn add(mut one: [u64; 256], other: [u64; 256]) -> [u64; 256] {
    for (one, other) in one.iter_mut().zip(other) {
        *one += other;
    }
    one
}

/// Shape of a matrix that is being compressed, checked by [`MatrixShape::new`].
#[derive(Clone, Copy)]
pub(crate) struct MatrixShape {
    dtype: DType,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) tile: usize,
    pub(crate) elements: usize,
}

/// Some whole strips of a matrix, compressed.
#[derive(Default)]
pub(crate) struct EncodedPiece {
    codes: Vec<u8>,
    escapes: Vec<u8>,
    lengths: Vec<u8>,
    /// Bytes of each strip, in codes or in escapes.
    strips: Vec<usize>,
}

impl MatrixShape {
    pub(crate) fn new(
        dtype: DType,
        rows: usize,
        width: usize,
        tile: usize,
    ) -> Result<Self, LayoutError> {
        let numbers = rows
            .checked_mul(width)
            // The widest dtype has four bytes, and no allocation is larger than `isize::MAX`.
            .filter(|numbers| *numbers <= isize::MAX as usize / 4)
            .ok_or(LayoutError::TooLarge { rows, width })?;
        let shape = Self {
            dtype,
            rows,
            width,
            tile,
            elements: numbers,
        };
        // Refuses unsupported tile sizes now; the layout itself isn't needed yet.
        shape.layout(Scheme::Plain, numbers * dtype.bytes(), 0)?;
        Ok(shape)
    }

    fn layout(
        &self,
        scheme: Scheme,
        codes: usize,
        escapes: usize,
    ) -> Result<MatrixLayout, LayoutError> {
        MatrixLayout::new(
            scheme, self.dtype, self.rows, self.width, self.tile, codes, escapes,
        )
    }

    /// Elements that one thread compresses at a time: whole strips.
    pub(crate) fn piece_elements(&self) -> usize {
        self.tile * STRIP_TILES * PIECE_STRIPS
    }

    /// Huffman-codes symbols; tiles that would not get shorter are stored uncompressed.
    pub(crate) fn huffman(&self, codes: &Codes, symbols: &[u8]) -> EncodedPiece {
        // `MatrixLayout::unit_bytes`, before there is a layout: its size depends on these codes.
        let unit = (self.tile / 256).max(1);
        let mut piece = EncodedPiece::default();
        for strip in symbols.chunks(self.tile * STRIP_TILES) {
            let start = piece.codes.len();
            for tile in strip.chunks(self.tile) {
                let bytes = codes.bytes(tile).next_multiple_of(unit);
                // 255 marks uncompressed tiles, so a coded tile is at most 254 units long.
                let length = u8::try_from(bytes / unit).unwrap_or(WHOLE);
                if bytes >= tile.len() || length == WHOLE {
                    piece.codes.extend_from_slice(tile);
                    piece.lengths.push(WHOLE);
                } else {
                    let end = piece.codes.len() + bytes;
                    codes.write(tile, &mut piece.codes);
                    piece.codes.resize(end, 0);
                    piece.lengths.push(length);
                }
            }
            piece.strips.push(piece.codes.len() - start);
        }
        piece
    }

    /// Replaces symbols by dictionary indices, and collects those that have none as escapes.
    fn dictionary(&self, indices: &[u8; 256], symbols: &[u8]) -> EncodedPiece {
        let mut piece = EncodedPiece::default();
        for strip in symbols.chunks(self.tile * STRIP_TILES) {
            let start = piece.escapes.len();
            for tile in strip.chunks(self.tile) {
                let index = |symbol: &u8| indices[usize::from(*symbol)];
                let pairs = tile.chunks(2).map(|pair| {
                    // Of an odd number of weights the last index is 0; `CompressedMatrix::check` refuses others.
                    let second = pair.get(1).map_or(0, index);
                    index(&pair[0]) | second << 4
                });
                piece.codes.extend(pairs);
                let escapes = || tile.iter().filter(|symbol| index(symbol) == ESCAPE);
                let count = escapes().count();
                // The length byte counts up to 254 escapes; 255 marks a tile that stores all of its symbols.
                if count > ESCAPES_MAX {
                    piece.escapes.extend_from_slice(tile);
                    piece.lengths.push(WHOLE);
                } else {
                    piece.escapes.extend(escapes());
                    piece.lengths.push(count as u8);
                }
            }
            piece.strips.push(piece.escapes.len() - start);
        }
        piece
    }

    /// Puts all pieces in their places. Raw bits and steps are left zero for the caller to fill.
    pub(crate) fn assemble(
        &self,
        scheme: Scheme,
        table: &[u8],
        pieces: &[EncodedPiece],
    ) -> Result<Encoded, LayoutError> {
        let codes = pieces.iter().map(|piece| piece.codes.len()).sum();
        let escapes = pieces.iter().map(|piece| piece.escapes.len()).sum();
        let layout = self.layout(scheme, codes, escapes)?;
        let mut bytes = vec![0; layout.bytes()];
        bytes[layout.table()].copy_from_slice(table);

        // Offsets of strips are known only now, when the lengths of all pieces before them are.
        let (mut offset, mut codes, mut escapes) =
            (0, layout.codes().start, layout.escapes().start);
        let (mut lengths, mut offsets) = (layout.lengths().start, layout.offsets().start);
        let mut put = |at: &mut usize, part: &[u8]| {
            bytes[*at..*at + part.len()].copy_from_slice(part);
            *at += part.len();
        };
        for piece in pieces {
            put(&mut codes, &piece.codes);
            put(&mut escapes, &piece.escapes);
            put(&mut lengths, &piece.lengths);
            for strip in &piece.strips {
                put(&mut offsets, &offset_bytes(offset));
                offset += strip;
            }
        }
        put(&mut offsets, &offset_bytes(offset));
        Ok(Encoded { layout, bytes })
    }
}

fn offset_bytes(offset: usize) -> [u8; 4] {
    u32::try_from(offset)
        .expect("a layout has at most as many codes or escapes")
        .to_le_bytes()
}
