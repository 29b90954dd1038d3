//! Coded tensors as a card's kernels take them.

use std::ops::Range;

use sluice_codec::{DecompressError, MatrixLayout, Scheme};
use sluice_cuda::{
    CompressedChunk, CompressedGpuMatrix, Compression, GpuSpan, dictionary_index,
    dictionary_index_bytes,
};
use sluice_formats::DType;

use super::{CompressedTensor, DamagedTensor};

/// What a card's kernels call a scheme.
///
/// # Panics
/// For what isn't coded.
pub fn gpu_compression(scheme: Scheme) -> Compression {
    match scheme {
        Scheme::Huffman => Compression::Huffman,
        Scheme::Dictionary => Compression::Dictionary,
        Scheme::Trellis => Compression::Trellis,
        Scheme::Plain => unreachable!("what is kept coded has a scheme"),
    }
}

/// A coded matrix that begins there, as those kernels take it.
pub fn chunk_at(start: u64, layout: &MatrixLayout) -> CompressedChunk {
    CompressedChunk {
        start,
        // A matrix that is too large for 32 bits is refused when a container is opened.
        rows: layout.rows() as u32,
        codes_bytes: layout.codes_len() as u32,
        escapes_bytes: layout.escapes_len() as u32,
    }
}

/// Rows of a coded tensor on a card.
pub struct GpuMatrixLayout {
    compression: Compression,
    dtype: DType,
    width: usize,
    tile: usize,
    chunks: Vec<CompressedChunk>,
}

impl GpuMatrixLayout {
    /// The matrix, whose bytes lie there.
    pub fn at(&self, bytes: GpuSpan) -> CompressedGpuMatrix<'_> {
        CompressedGpuMatrix {
            compression: self.compression,
            dtype: self.dtype,
            width: self.width,
            tile: self.tile,
            bytes,
            chunks: &self.chunks,
        }
    }
}

impl CompressedTensor {
    /// The chunks of these rows, in bytes that begin with the chunk of `base_row`.
    ///
    /// # Panics
    /// When the rows don't begin and end with a chunk, or the tensor isn't coded.
    pub fn on_gpu(&self, rows: &Range<usize>, base_row: usize) -> GpuMatrixLayout {
        let base = self.chunks_of(&(base_row..rows.end));
        let base = base.first().map_or(self.start, |first| first.offset);
        let chunks = self.chunks_of(rows);
        let whole: usize = chunks.iter().map(|chunk| chunk.rows.len()).sum();
        assert_eq!(whole, rows.len(), "rows of whole chunks are taken");
        let described = chunks
            .iter()
            .map(|chunk| chunk_at(chunk.offset - base, &chunk.layout));
        GpuMatrixLayout {
            compression: gpu_compression(self.scheme),
            dtype: self
                .format
                .dtype()
                .expect("block formats are not compressed"),
            width: self.width,
            tile: chunks.first().map_or(0, |chunk| chunk.layout.tile()),
            chunks: described.collect(),
        }
    }

    /// Most bytes of the index by which a card multiplies with these rows as they are; none where it decodes them first.
    pub fn index_bytes(&self, rows: &Range<usize>) -> u64 {
        if self.scheme != Scheme::Dictionary {
            return 0;
        }
        let matrix = self.on_gpu(rows, rows.start);
        match matrix.at(GpuSpan::default()).has_matmul() {
            true => dictionary_index_bytes(&matrix.chunks) as u64,
            false => 0,
        }
    }

    /// Makes that index of these rows' coded bytes.
    pub fn index(
        &self,
        rows: &Range<usize>,
        bytes: &[u8],
        out: &mut [u8],
    ) -> Result<(), DamagedTensor> {
        let matrix = self.on_gpu(rows, rows.start);
        let index = dictionary_index(matrix.width, matrix.tile, &matrix.chunks, bytes);
        let index = index.map_err(|damage| {
            let chunk = &self.chunks_of(rows)[damage.chunk];
            self.damage(chunk, &DecompressError::Tile(damage.tile))
        })?;
        let index: &[u8] = bytemuck::cast_slice(&index);
        out[..index.len()].copy_from_slice(index);
        Ok(())
    }
}
