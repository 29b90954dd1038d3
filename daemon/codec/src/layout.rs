//! Where the parts of a compressed matrix are.
//!
//! The parts, in order, each beginning at a multiple of [`ALIGN_BYTES`]; integers and floats are little-endian:
//!
//! | part | huffman | dictionary | rate | columns | plain |
//! | --- | --- | --- | --- | --- | --- |
//! | table | 256 code lengths, 4 bits each | 16 symbols, the last one unused | 128 code lengths, 64 means, an `f32` step | an `f32` step | |
//! | steps | | | a byte a row | a byte a row | |
//! | offsets | a `u32` a strip of 32 tiles and one more, into codes | the same, into escapes | as huffman | as huffman | |
//! | lengths | a byte a tile, in units of [`MatrixLayout::unit_bytes`] | a byte a tile, escapes | as huffman | a `u16` a tile, bytes | |
//! | codes | bit streams, padded | 4 bits per weight | as huffman | as huffman | the elements as they are |
//! | escapes | | symbols that the dictionary lacks, padded | | | |
//! | raw | what the symbols leave of the elements | the same | | | |
//!
//! A tile is a number of consecutive elements; of [`Scheme::Columns`] it is [`TILE_COLUMNS`] whole columns.
//!
//! In lengths, [`WHOLE`] marks a tile whose symbols are stored uncompressed in codes (or escapes), a byte each. Padded
//! parts end with [`PAD_BYTES`] zeros, so that a decoder may read words that begin anywhere in them.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use sluice_formats::DType;

use crate::symbols::raw_bytes;

/// Parts begin at multiples of this.
pub const ALIGN_BYTES: usize = 64;
/// Tiles that share an offset: an offset a tile would take 1 % more, and a tile is at most 31 lengths away.
pub const STRIP_TILES: usize = 32;
/// Zeros after bit streams and escapes.
pub const PAD_BYTES: usize = 16;
/// Length that marks a tile whose symbols are stored uncompressed.
pub const WHOLE: u8 = 255;
/// Elements a tile may have.
pub const TILES: [usize; 3] = [128, 256, 512];

/// Columns of a tile of [`Scheme::Columns`]; the last tile may have fewer.
pub const TILE_COLUMNS: usize = 8;
/// Most rows of a matrix of [`Scheme::Columns`].
pub const COLUMN_ROWS_MAX: usize = 256;

/// Bytes of the lengths of Huffman codes.
pub(crate) const CODE_LENGTHS_BYTES: usize = 128;
/// Bytes of a dictionary.
pub(crate) const DICTIONARY_BYTES: usize = 16;
/// Bytes of the code lengths of [`Scheme::Trellis`], which has half as many symbols.
pub(crate) const TRELLIS_LENGTHS_BYTES: usize = CODE_LENGTHS_BYTES / 2;
/// Means in the table of [`Scheme::Trellis`], a byte each.
pub(crate) const TRELLIS_MEANS: usize = 64;
/// Bytes of the table of [`Scheme::Trellis`].
const TRELLIS_TABLE_BYTES: usize = TRELLIS_LENGTHS_BYTES + TRELLIS_MEANS + size_of::<f32>();

/// How a matrix is compressed. Files contain the ids, so they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Scheme {
    /// The elements are stored uncompressed.
    Plain = 0,
    /// Lossless: Huffman codes of at most eleven bits.
    Huffman = 1,
    /// Lossless, at a fixed rate: four-bit indices into a dictionary, and rare symbols as escapes.
    #[serde(rename = "palette")]
    Dictionary = 2,
    /// Lossy, to a chosen bit rate: trellis-coded quantization (TCQ), with Huffman codes for the levels.
    #[serde(rename = "rate")]
    Trellis = 3,
    /// Lossy: trellis-coded quantization down the columns, each with a step and a code of its own.
    Columns = 4,
}

impl Scheme {
    /// Every scheme, in the order of ids.
    pub const ALL: [Self; 5] = [
        Self::Plain,
        Self::Huffman,
        Self::Dictionary,
        Self::Trellis,
        Self::Columns,
    ];

    /// The scheme that has this id in files.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.id() == id)
    }

    /// Whether the original bytes come back.
    #[must_use]
    pub const fn is_lossless(self) -> bool {
        !matches!(self, Self::Trellis | Self::Columns)
    }

    /// The id that files store.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }
}

/// Why a matrix cannot have the layout that a header describes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// The tile size is not one of [`TILES`].
    #[error("a tile of {0} elements is not supported; use 128, 256 or 512")]
    Tile(usize),
    /// The matrix exceeds the address space, or offsets of 32 bits.
    #[error("a matrix of {rows} x {width} elements is too large to compress")]
    TooLarge {
        /// Rows of the matrix.
        rows: usize,
        /// Elements of a row.
        width: usize,
    },
    /// More rows than [`COLUMN_ROWS_MAX`] of [`Scheme::Columns`].
    #[error("columns of {0} rows are not supported; at most 256 are")]
    Rows(usize),
    /// A part's length is not the one that scheme and shape require, or is above the maximum.
    #[error("{part} has {found} bytes; at most {expected} are possible")]
    Part {
        /// The part: `codes` or `escapes`.
        part: &'static str,
        /// The required length in bytes, or the maximum.
        expected: usize,
        /// The declared length in bytes.
        found: usize,
    },
}

/// A matrix's shape and scheme, and the byte ranges of its parts that follow from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixLayout {
    scheme: Scheme,
    dtype: DType,
    rows: usize,
    width: usize,
    tile: usize,
    codes_len: usize,
    escapes_len: usize,
    elements: usize,
    tiles: usize,
    parts: [Range<usize>; 7],
}

impl MatrixLayout {
    /// From what a header says of a matrix. `codes_len` and `escapes_len` are without padding; those that follow from
    /// the shape (codes of a dictionary or of plain elements, escapes of anything but a dictionary) are checked.
    pub fn new(
        scheme: Scheme,
        dtype: DType,
        rows: usize,
        width: usize,
        tile: usize,
        codes_len: usize,
        escapes_len: usize,
    ) -> Result<Self, LayoutError> {
        if !TILES.contains(&tile) {
            return Err(LayoutError::Tile(tile));
        }
        // All sizes come from untrusted headers, so every product and sum below is checked.
        let too_large = LayoutError::TooLarge { rows, width };
        let numbers = rows
            .checked_mul(width)
            // The widest dtype has four bytes, and no allocation is larger than `isize::MAX`.
            .filter(|numbers| *numbers <= isize::MAX as usize / 4)
            .ok_or(too_large.clone())?;
        let (tile, tiles) = match scheme {
            Scheme::Columns if rows > COLUMN_ROWS_MAX => return Err(LayoutError::Rows(rows)),
            // Without rows there is nothing in the columns. The size of other schemes' tiles doesn't matter.
            Scheme::Columns if rows == 0 => (TILE_COLUMNS * COLUMN_ROWS_MAX, 0),
            Scheme::Columns => (TILE_COLUMNS * rows, width.div_ceil(TILE_COLUMNS)),
            _ => (tile, numbers.div_ceil(tile)),
        };
        let compressed = matches!(scheme, Scheme::Huffman | Scheme::Trellis | Scheme::Columns);
        let exact = |part, expected, found| {
            if expected == found {
                Ok(())
            } else {
                Err(LayoutError::Part {
                    part,
                    expected,
                    found,
                })
            }
        };
        // Codes and escapes are never longer than the symbols themselves, a byte each, because a tile that would grow
        // is stored uncompressed. Strip offsets are `u32`.
        let within = |part, found| {
            let expected = match scheme {
                // An escape and its symbol have 18 bits, a column's class and step four bytes at most.
                Scheme::Columns => numbers
                    .saturating_mul(3)
                    .saturating_add(width.saturating_mul(4)),
                _ => numbers,
            };
            let expected = expected.min(u32::MAX as usize);
            if found <= expected {
                Ok(())
            } else {
                Err(LayoutError::Part {
                    part,
                    expected,
                    found,
                })
            }
        };
        match scheme {
            Scheme::Plain => exact("codes", numbers * dtype.bytes(), codes_len)?,
            Scheme::Dictionary => exact("codes", numbers.div_ceil(2), codes_len)?,
            // A tile that its codes wouldn't shorten is stored uncompressed.
            Scheme::Huffman | Scheme::Trellis | Scheme::Columns => within("codes", codes_len)?,
        }
        match scheme {
            Scheme::Dictionary => within("escapes", escapes_len)?,
            _ => exact("escapes", 0, escapes_len)?,
        }

        // One offset more than strips: a strip's end is then always the next offset.
        let tiled = scheme != Scheme::Plain;
        let lossless = matches!(scheme, Scheme::Huffman | Scheme::Dictionary);
        let lengths = [
            match scheme {
                Scheme::Plain => 0,
                Scheme::Huffman => CODE_LENGTHS_BYTES,
                Scheme::Dictionary => DICTIONARY_BYTES,
                Scheme::Trellis => TRELLIS_TABLE_BYTES,
                Scheme::Columns => size_of::<f32>(),
            },
            // A matrix of width 0 may declare any number of rows; their step bytes still count.
            if scheme.is_lossless() { 0 } else { rows },
            if tiled {
                (tiles.div_ceil(STRIP_TILES) + 1) * 4
            } else {
                0
            },
            match scheme {
                Scheme::Plain => 0,
                Scheme::Columns => 2 * tiles,
                _ => tiles,
            },
            codes_len + if compressed { PAD_BYTES } else { 0 },
            match scheme {
                Scheme::Dictionary => escapes_len + PAD_BYTES,
                _ => 0,
            },
            if lossless {
                numbers * raw_bytes(dtype)
            } else {
                0
            },
        ];
        // Places of parts are not stored: reader and writer compute them by this one loop, so that no file can make
        // parts overlap.
        let mut parts: [Range<usize>; 7] = Default::default();
        let mut end = 0_usize;
        for (part, length) in parts.iter_mut().zip(lengths) {
            // An absent part isn't aligned: otherwise it would leave a gap before the next part.
            let start = if length == 0 {
                end
            } else {
                end.checked_next_multiple_of(ALIGN_BYTES)
                    .ok_or(too_large.clone())?
            };
            end = start
                .checked_add(length)
                .filter(|end| *end <= isize::MAX as usize)
                .ok_or(too_large.clone())?;
            *part = start..end;
        }
        Ok(Self {
            scheme,
            dtype,
            rows,
            width,
            tile,
            codes_len,
            escapes_len,
            elements: numbers,
            tiles,
            parts,
        })
    }

    /// The compression scheme.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The dtype that the matrix decompresses to; for lossy schemes the dtype that it had before.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows of the matrix, 0 or more.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Elements of a tile; the last one may have fewer. Of [`Scheme::Columns`] these follow from the rows.
    #[must_use]
    pub fn tile(&self) -> usize {
        self.tile
    }

    /// Bytes of codes, without padding.
    #[must_use]
    pub fn codes_len(&self) -> usize {
        self.codes_len
    }

    /// Bytes of escapes, without padding.
    #[must_use]
    pub fn escapes_len(&self) -> usize {
        self.escapes_len
    }

    /// Elements of the matrix: rows × width.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Tiles of the matrix. An uncompressed matrix is counted in tiles, too.
    #[must_use]
    pub fn tiles(&self) -> usize {
        self.tiles
    }

    /// Index range of one tile's elements in the matrix, row after row; of [`Scheme::Columns`] column after column. Empty
    /// beyond the last tile.
    #[must_use]
    pub fn tile_elements(&self, tile: usize) -> Range<usize> {
        let place = |tile: usize| tile.saturating_mul(self.tile).min(self.elements);
        place(tile)..place(tile.saturating_add(1))
    }

    /// Bytes that one step of a compressed tile's length byte stands for.
    #[must_use]
    pub fn unit_bytes(&self) -> usize {
        match self.scheme {
            Scheme::Columns => 1,
            // A tile's length is one byte, so tiles of 512 count in pairs of bytes.
            _ => (self.tile / 256).max(1),
        }
    }

    /// Bytes of all elements when they are decompressed.
    #[must_use]
    pub fn plain_bytes(&self) -> usize {
        self.elements * self.dtype.bytes()
    }

    /// Bytes of the compressed matrix, all parts together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.parts[6].end
    }

    /// Byte range of the table: Huffman code lengths, or the dictionary; for [`Scheme::Trellis`] also the means and the
    /// step; for [`Scheme::Columns`] the step alone.
    #[must_use]
    pub fn table(&self) -> Range<usize> {
        self.parts[0].clone()
    }

    /// Byte range of the rows' steps, one byte each.
    #[must_use]
    pub fn steps(&self) -> Range<usize> {
        self.parts[1].clone()
    }

    /// Byte range of the strips' offsets, a `u32` each.
    #[must_use]
    pub fn offsets(&self) -> Range<usize> {
        self.parts[2].clone()
    }

    /// Byte range of the tiles' lengths, one byte each, or two of [`Scheme::Columns`].
    #[must_use]
    pub fn lengths(&self) -> Range<usize> {
        self.parts[3].clone()
    }

    /// Byte range of the codes with their padding.
    #[must_use]
    pub fn codes(&self) -> Range<usize> {
        self.parts[4].clone()
    }

    /// Byte range of the escapes with their padding.
    #[must_use]
    pub fn escapes(&self) -> Range<usize> {
        self.parts[5].clone()
    }

    /// Byte range of the raw bits.
    #[must_use]
    pub fn raw(&self) -> Range<usize> {
        self.parts[6].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other() {
        let layout =
            MatrixLayout::new(Scheme::Huffman, DType::Bf16, 3, 1000, 256, 1001, 0).unwrap();

        assert_eq!((layout.elements(), layout.tiles()), (3000, 12));
        assert_eq!(layout.table(), 0..128);
        assert_eq!(layout.steps(), 128..128);
        assert_eq!(layout.offsets(), 128..136);
        assert_eq!(layout.lengths(), 192..204);
        assert_eq!(layout.codes(), 256..256 + 1001 + 16);
        assert_eq!(layout.raw(), 1280..4280);
        assert_eq!(layout.bytes(), 4280);
        assert_eq!(layout.tile_elements(11), 2816..3000);
        assert_eq!(layout.tile_elements(usize::MAX), 3000..3000);
    }

    #[test]
    fn every_scheme_keeps_its_id() {
        let ids = Scheme::ALL.map(Scheme::id);
        assert_eq!(ids, [0, 1, 2, 3, 4]);
        assert_eq!(ids.map(Scheme::from_id), Scheme::ALL.map(Some));
        assert_eq!(Scheme::from_id(5), None);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let layout = |scheme, rows, width, tile, codes, escapes| {
            MatrixLayout::new(scheme, DType::F32, rows, width, tile, codes, escapes)
        };
        for scheme in Scheme::ALL {
            assert_eq!(layout(scheme, 1, 1, 100, 0, 0), Err(LayoutError::Tile(100)));
            for (rows, width) in [
                (usize::MAX, usize::MAX),
                (usize::MAX, 1),
                (1 << 40, 1 << 40),
                (isize::MAX as usize, 1),
            ] {
                assert_eq!(
                    layout(scheme, rows, width, 256, 1, 0),
                    Err(LayoutError::TooLarge { rows, width })
                );
            }
        }
        assert!(layout(Scheme::Trellis, usize::MAX, 0, 128, 0, 0).is_err());
        assert!(layout(Scheme::Trellis, isize::MAX as usize, 0, 128, 0, 0).is_err());
        assert!(layout(Scheme::Huffman, 2, 8, 128, 17, 0).is_err());
        assert!(layout(Scheme::Huffman, 2, 8, 128, 16, 1).is_err());
        assert!(layout(Scheme::Dictionary, 2, 8, 128, 9, 0).is_err());
        assert!(layout(Scheme::Dictionary, 2, 8, 128, 8, 17).is_err());
        assert!(layout(Scheme::Plain, 2, 8, 128, 63, 0).is_err());
        assert!(layout(Scheme::Huffman, 1 << 30, 8, 128, u32::MAX as usize + 1, 0).is_err());
    }
}
