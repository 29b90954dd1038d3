//! Coded tensors as a card's kernels take them.

use std::ops::Range;

use sluice_codec::{DecodeError, Layout, Scheme};
use sluice_cuda::{
    CodedChunk, CodedMatrix, Coding, Number, Span, palette_index, palette_index_bytes,
};
use sluice_formats::Format;

use super::{CodedTensor, Damaged};

/// What a card's kernels call a scheme.
///
/// # Panics
/// For what isn't coded.
pub fn coding_of(scheme: Scheme) -> Coding {
    match scheme {
        Scheme::Huffman => Coding::Huffman,
        Scheme::Palette => Coding::Palette,
        Scheme::Rate => Coding::Rate,
        Scheme::Plain => unreachable!("what is kept coded has a scheme"),
    }
}

/// A coded matrix that begins there, as those kernels take it.
pub fn chunk_at(start: u64, layout: &Layout) -> CodedChunk {
    CodedChunk {
        start,
        // A matrix that is too large for 32 bits is refused when a container is opened.
        rows: layout.rows() as u32,
        codes_bytes: layout.codes_len() as u32,
        escapes_bytes: layout.escapes_len() as u32,
    }
}

/// Rows of a coded tensor on a card.
pub struct MatrixOnCard {
    coding: Coding,
    source: Number,
    width: usize,
    tile: usize,
    chunks: Vec<CodedChunk>,
}

impl MatrixOnCard {
    /// The matrix, whose bytes lie there.
    pub fn at(&self, bytes: Span) -> CodedMatrix<'_> {
        CodedMatrix {
            coding: self.coding,
            source: self.source,
            width: self.width,
            tile: self.tile,
            bytes,
            chunks: &self.chunks,
        }
    }
}

impl CodedTensor {
    /// The chunks of these rows, in bytes that begin with the chunk of `base_row`.
    ///
    /// # Panics
    /// When the rows don't begin and end with a chunk, or the tensor isn't coded.
    pub fn on_card(&self, rows: &Range<usize>, base_row: usize) -> MatrixOnCard {
        let base = self.chunks_of(&(base_row..rows.end));
        let base = base.first().map_or(self.start, |first| first.offset);
        let chunks = self.chunks_of(rows);
        let whole: usize = chunks.iter().map(|chunk| chunk.rows.len()).sum();
        assert_eq!(whole, rows.len(), "rows of whole chunks are taken");
        let described = chunks
            .iter()
            .map(|chunk| chunk_at(chunk.offset - base, &chunk.layout));
        MatrixOnCard {
            coding: coding_of(self.scheme),
            source: match self.format {
                Format::F32 => Number::F32,
                Format::F16 => Number::F16,
                _ => Number::Bf16,
            },
            width: self.width,
            tile: chunks.first().map_or(0, |chunk| chunk.layout.tile()),
            chunks: described.collect(),
        }
    }

    /// Most bytes of the index by which a card multiplies with these rows as they are; none where it decodes them first.
    pub fn index_bytes(&self, rows: &Range<usize>) -> u64 {
        if self.scheme != Scheme::Palette {
            return 0;
        }
        let matrix = self.on_card(rows, rows.start);
        match matrix.at(Span::default()).is_multiplied() {
            true => palette_index_bytes(&matrix.chunks) as u64,
            false => 0,
        }
    }

    /// Makes that index of these rows' coded bytes.
    pub fn index(&self, rows: &Range<usize>, bytes: &[u8], out: &mut [u8]) -> Result<(), Damaged> {
        let matrix = self.on_card(rows, rows.start);
        let index = palette_index(matrix.width, matrix.tile, &matrix.chunks, bytes);
        let index = index.map_err(|damage| {
            let chunk = &self.chunks_of(rows)[damage.chunk];
            self.damage(chunk, &DecodeError::Tile(damage.tile))
        })?;
        let index: &[u8] = bytemuck::cast_slice(&index);
        out[..index.len()].copy_from_slice(index);
        Ok(())
    }
}
