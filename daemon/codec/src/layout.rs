//! Where in a coded matrix its parts are.
//!
//! The parts, in order, each beginning at a multiple of [`ALIGN_BYTES`]; integers and floats are little-endian:
//!
//! | part | huffman | palette | rate | plain |
//! | --- | --- | --- | --- | --- |
//! | table | 256 code lengths, 4 bits each | 16 symbols, the last one unused | 128 code lengths, 64 means, an `f32` step | |
//! | steps | | | a byte a row | |
//! | offsets | a `u32` a strip of 32 tiles and one more, into codes | the same, into escapes | as huffman | |
//! | lengths | a byte a tile, in units of [`MatrixLayout::unit_bytes`] | a byte a tile, escapes | as huffman | |
//! | codes | bit streams, padded | 4 bits a number | as huffman | the numbers as they are |
//! | escapes | | symbols that the palette lacks, padded | | |
//! | raw | what the symbols leave of the numbers | the same | | |
//!
//! In lengths, [`WHOLE`] marks a tile whose symbols are in codes (or escapes) as they are, a byte each. What is padded ends
//! with [`PAD_BYTES`] zeros, so that a decoder may read words that begin anywhere in it.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use sluice_formats::DType;

use crate::symbols::raw_bytes;

/// Parts begin at multiples of this.
pub const ALIGN_BYTES: usize = 64;
/// Tiles that share an offset.
pub const STRIP_TILES: usize = 32;
/// Zeros after bit streams and escapes.
pub const PAD_BYTES: usize = 16;
/// Length of a tile whose symbols are kept as they are.
pub const WHOLE: u8 = 255;
/// Numbers a tile may have.
pub const TILES: [usize; 3] = [128, 256, 512];

/// Bytes of the lengths of Huffman codes.
pub(crate) const CODE_LENGTHS_BYTES: usize = 128;
/// Bytes of a palette.
pub(crate) const DICTIONARY_BYTES: usize = 16;
/// Bytes of the code lengths of [`Scheme::Rate`], which has half as many symbols.
pub(crate) const TRELLIS_LENGTHS_BYTES: usize = CODE_LENGTHS_BYTES / 2;
/// Means in the table of [`Scheme::Rate`], a byte each.
pub(crate) const TRELLIS_MEANS: usize = 64;
/// Bytes of the table of [`Scheme::Rate`].
const TRELLIS_TABLE_BYTES: usize = TRELLIS_LENGTHS_BYTES + TRELLIS_MEANS + size_of::<f32>();

/// How a matrix is coded. The ids are in files, and stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Scheme {
    /// Not at all.
    Plain = 0,
    /// Without loss: symbols by Huffman codes of at most eleven bits.
    Huffman = 1,
    /// Without loss, at a fixed rate: symbols by four bits each, rare ones beside.
    #[serde(rename = "palette")]
    Dictionary = 2,
    /// To a chosen rate: levels of a step, by Huffman codes.
    #[serde(rename = "rate")]
    Trellis = 3,
}

impl Scheme {
    /// Every scheme.
    pub const ALL: [Self; 4] = [Self::Plain, Self::Huffman, Self::Dictionary, Self::Trellis];

    /// The scheme that has this id in files.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.id() == id)
    }

    /// What stands for it in files.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }
}

/// Why there is no such matrix.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// Tiles have one of a few sizes.
    #[error("a tile of {0} elements is not supported; use 128, 256 or 512")]
    Tile(usize),
    /// Too much for memory, or for offsets of 32 bits.
    #[error("a matrix of {rows} x {width} elements is too large to compress")]
    TooLarge {
        /// Its rows.
        rows: usize,
        /// Numbers of a row.
        width: usize,
    },
    /// A length that the scheme and the shape leave no choice about is another one, or above what it can be.
    #[error("{part} has {found} bytes; at most {expected} are possible")]
    Part {
        /// Which part.
        part: &'static str,
        /// Bytes that it has, or has at most.
        expected: usize,
        /// Bytes that it was said to have.
        found: usize,
    },
}

/// A matrix's shape and coding, and from them the places of its parts.
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
    /// From what a header says of a matrix. `codes_len` and `escapes_len` are without padding; those that follow from the
    /// shape (codes of a palette or of plain numbers, escapes of anything but a palette) are checked.
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
        let too_large = LayoutError::TooLarge { rows, width };
        let numbers = rows
            .checked_mul(width)
            .filter(|numbers| *numbers <= isize::MAX as usize / 4)
            .ok_or(too_large.clone())?;
        let tiles = numbers.div_ceil(tile);
        let coded = matches!(scheme, Scheme::Huffman | Scheme::Trellis);
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
        let within = |part, found| {
            let expected = numbers.min(u32::MAX as usize);
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
            // A tile that its codes wouldn't shorten is kept as it is.
            Scheme::Huffman | Scheme::Trellis => within("codes", codes_len)?,
        }
        match scheme {
            Scheme::Dictionary => within("escapes", escapes_len)?,
            _ => exact("escapes", 0, escapes_len)?,
        }

        let tiled = scheme != Scheme::Plain;
        let lossless = matches!(scheme, Scheme::Huffman | Scheme::Dictionary);
        let lengths = [
            match scheme {
                Scheme::Plain => 0,
                Scheme::Huffman => CODE_LENGTHS_BYTES,
                Scheme::Dictionary => DICTIONARY_BYTES,
                Scheme::Trellis => TRELLIS_TABLE_BYTES,
            },
            // Rows without numbers are as many as a header likes.
            if scheme == Scheme::Trellis { rows } else { 0 },
            if tiled {
                (tiles.div_ceil(STRIP_TILES) + 1) * 4
            } else {
                0
            },
            if tiled { tiles } else { 0 },
            codes_len + if coded { PAD_BYTES } else { 0 },
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
        let mut parts: [Range<usize>; 7] = Default::default();
        let mut end = 0_usize;
        for (part, length) in parts.iter_mut().zip(lengths) {
            // A part that isn't there has no bytes, and so no place of its own.
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

    /// How it is coded.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// What its numbers are when they aren't coded; of rate-coded ones, what they were.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Numbers of a tile; the last one may have fewer.
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

    /// Numbers in all.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Tiles in all; plain numbers are counted in tiles too.
    #[must_use]
    pub fn tiles(&self) -> usize {
        self.tiles
    }

    /// Numbers of one tile, as places in the matrix; none beyond the last one.
    #[must_use]
    pub fn tile_elements(&self, tile: usize) -> Range<usize> {
        let place = |tile: usize| tile.saturating_mul(self.tile).min(self.elements);
        place(tile)..place(tile.saturating_add(1))
    }

    /// What lengths of coded tiles are counted in.
    #[must_use]
    pub fn unit_bytes(&self) -> usize {
        (self.tile / 256).max(1)
    }

    /// Bytes that a tile of plain numbers would take as they were.
    #[must_use]
    pub fn plain_bytes(&self) -> usize {
        self.elements * self.dtype.bytes()
    }

    /// Bytes of all parts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.parts[6].end
    }

    /// Lengths of Huffman codes, or the palette; of rate-coded numbers what levels follow from, too.
    #[must_use]
    pub fn table(&self) -> Range<usize> {
        self.parts[0].clone()
    }

    /// The step of each row.
    #[must_use]
    pub fn steps(&self) -> Range<usize> {
        self.parts[1].clone()
    }

    /// Where each strip begins.
    #[must_use]
    pub fn offsets(&self) -> Range<usize> {
        self.parts[2].clone()
    }

    /// The length of each tile.
    #[must_use]
    pub fn lengths(&self) -> Range<usize> {
        self.parts[3].clone()
    }

    /// The codes, and what they are padded with.
    #[must_use]
    pub fn codes(&self) -> Range<usize> {
        self.parts[4].clone()
    }

    /// Symbols that the palette lacks, and what they are padded with.
    #[must_use]
    pub fn escapes(&self) -> Range<usize> {
        self.parts[5].clone()
    }

    /// What the symbols leave of the numbers.
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
        assert_eq!(ids, [0, 1, 2, 3]);
        assert_eq!(ids.map(Scheme::from_id), Scheme::ALL.map(Some));
        assert_eq!(Scheme::from_id(4), None);
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
