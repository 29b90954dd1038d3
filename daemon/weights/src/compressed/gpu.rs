//! Compressed tensors as GPU kernels take them.

use std::ops::Range;

use sluice_codec::{DecompressError, MatrixLayout, Scheme};
use sluice_cuda::{
    CompressedChunk, CompressedGpuMatrix, Compression, GpuSpan, dictionary_index,
    dictionary_index_bytes,
};
use sluice_formats::DType;

use super::{CompressedTensor, DamagedTensor};

/// The name of a scheme for GPU kernels.
///
/// # Panics
/// For [`Scheme::Plain`].
pub fn gpu_compression(scheme: Scheme) -> Compression {
    match scheme {
        Scheme::Huffman => Compression::Huffman,
        Scheme::Dictionary => Compression::Dictionary,
        Scheme::Trellis => Compression::Trellis,
        Scheme::Columns => Compression::Columns,
        Scheme::Plain => unreachable!("what is kept coded has a scheme"),
    }
}

/// A chunk that begins at `start`, for GPU kernels.
pub fn chunk_at(start: u64, layout: &MatrixLayout) -> CompressedChunk {
    CompressedChunk {
        start,
        // Larger matrices are refused when a container is opened.
        rows: layout.rows() as u32,
        codes_bytes: layout.codes_len() as u32,
        escapes_bytes: layout.escapes_len() as u32,
    }
}

/// Chunks of some rows of a compressed tensor on a GPU.
pub struct GpuMatrixLayout {
    compression: Compression,
    dtype: DType,
    width: usize,
    tile: usize,
    chunks: Vec<CompressedChunk>,
}

impl GpuMatrixLayout {
    /// The matrix, whose bytes are at this span.
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
    /// When the rows don't begin and end with a chunk.
    pub fn on_gpu(&self, rows: &Range<usize>, base_row: usize) -> GpuMatrixLayout {
        // Offsets of chunks are the file's; on the GPU they count from the first chunk that was copied.
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

    /// Upper bound for the index that lets a GPU multiply by these rows directly; 0 if it decompresses them first.
    pub fn index_bytes(&self, rows: &Range<usize>) -> u64 {
        if self.scheme != Scheme::Dictionary {
            return 0;
        }
        // An empty span: only the shape of the chunks decides.
        let matrix = self.on_gpu(rows, rows.start);
        match matrix.at(GpuSpan::default()).has_matmul() {
            true => dictionary_index_bytes(&matrix.chunks) as u64,
            false => 0,
        }
    }

    /// Builds that index from these rows' compressed bytes, into `out`.
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
        // The index may be shorter than planned: the plan's bound is from the header alone.
        let index: &[u8] = bytemuck::cast_slice(&index);
        out[..index.len()].copy_from_slice(index);
        Ok(())
    }
}
