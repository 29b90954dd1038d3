//! Compressed tensors: where their chunks lie, their sizes, and access to their rows.

mod gpu;

use std::ops::Range;

use sluice_codec::{
    CompressedMatrix, DecompressError, MatrixLayout, Scheme,
    container::{ALIGN_BYTES, CHUNK_ROWS, Chunk},
};
use sluice_formats::Format;

pub use self::gpu::{chunk_at, gpu_compression};

/// Compressed bytes that no encoder produces; the text names the tensor and the tile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DamagedTensor(pub String);

/// A compressed tensor: consecutive chunks of rows, each a compressed matrix of its own.
#[derive(Debug, PartialEq, Eq)]
pub struct CompressedTensor {
    name: String,
    scheme: Scheme,
    /// The format that its rows decompress to.
    format: Format,
    width: usize,
    /// Offset of its first byte in the file.
    start: u64,
    chunks: Vec<Chunk>,
    /// Whether the chunks' lengths are an estimate, because nobody has compressed it yet.
    is_estimate: bool,
}

/// Relative sizes of the parts that depend on the weights' values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompressionShares {
    /// Bytes of codes per element.
    pub codes: f64,
    /// Bytes of a dictionary's escapes per element.
    pub escapes: f64,
}

/// Rows of a tensor in one chunk, ready to be decompressed.
pub struct OpenRows<'a> {
    /// The chunk that holds the rows.
    pub matrix: CompressedMatrix<'a>,
    /// The rows, as indices in the chunk.
    pub local: Range<usize>,
    /// The rows, as indices in the tensor.
    pub rows: Range<usize>,
}

impl OpenRows<'_> {
    /// Decompresses rows of the chunk to their original bytes; quantized ones to `f32`.
    pub fn decompress(&self, rows: Range<usize>, out: &mut [u8]) -> Result<(), DecompressError> {
        let layout = self.matrix.layout();
        if layout.scheme().is_lossless() {
            // Lossless rows keep their format; quantized ones have values that fit no 16-bit dtype exactly.
            return self.matrix.decompress_rows(rows, out);
        }
        let mut numbers = vec![0.0_f32; rows.len() * layout.width()];
        self.matrix.decompress_rows_f32(rows, &mut numbers)?;
        out.copy_from_slice(bytemuck::cast_slice(&numbers));
        Ok(())
    }
}

/// The intersection of `rows` and a chunk.
pub fn open_rows<'a>(
    compressed: CompressedMatrix<'a>,
    chunk: &Chunk,
    rows: &Range<usize>,
) -> OpenRows<'a> {
    let here = rows.start.max(chunk.rows.start)..rows.end.min(chunk.rows.end);
    OpenRows {
        matrix: compressed,
        local: here.start - chunk.rows.start..here.end - chunk.rows.start,
        rows: here,
    }
}

impl CompressedTensor {
    /// A tensor that begins at offset `start` of a file, in these chunks.
    pub fn new(
        name: String,
        scheme: Scheme,
        format: Format,
        width: usize,
        start: u64,
        chunks: Vec<Chunk>,
    ) -> Self {
        Self {
            name,
            scheme,
            format,
            width,
            start,
            chunks,
            is_estimate: false,
        }
    }

    /// An estimated tensor, as if it were compressed in tiles of this size; `None` if there is no layout for it.
    pub fn estimated(
        name: &str,
        (rows, width): (usize, usize),
        format: Format,
        scheme: Scheme,
        tile: usize,
        shares: CompressionShares,
    ) -> Option<Self> {
        let number = format.dtype()?;
        let mut chunks = Vec::new();
        let mut end = 0_u64;
        for start in (0..rows).step_by(CHUNK_ROWS) {
            let rows = start..(start + CHUNK_ROWS).min(rows);
            let numbers = rows.len() * width;
            let share = |share: f64| (numbers as f64 * share).ceil() as usize;
            let (codes, escapes) = match scheme {
                // A dictionary code has four bits, whatever the weights are.
                Scheme::Dictionary => (numbers.div_ceil(2), share(shares.escapes)),
                _ => (share(shares.codes), 0),
            };
            let layout = MatrixLayout::new(scheme, number, rows.len(), width, tile, codes, escapes);
            // Chunks as the writer makes them, so that the estimate includes their alignment.
            let chunk = Chunk {
                rows,
                offset: end.next_multiple_of(ALIGN_BYTES),
                layout: layout.ok()?,
            };
            end = chunk.end();
            chunks.push(chunk);
        }
        Some(Self {
            name: name.to_owned(),
            scheme,
            format,
            width,
            start: 0,
            chunks,
            is_estimate: true,
        })
    }

    /// Whether its bytes are an estimate, because nobody has compressed it yet.
    #[must_use]
    pub fn is_estimate(&self) -> bool {
        self.is_estimate
    }

    /// The format that its rows decompress to.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// The compression scheme.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Bytes of all chunks, from the first byte to the last.
    pub fn file_bytes(&self) -> u64 {
        self.chunks.last().map_or(0, |last| last.end() - self.start)
    }

    /// Byte range of these rows' chunks from the tensor's first byte; `None` if the rows don't begin and end with a
    /// chunk.
    pub fn compressed_bytes(&self, rows: &Range<usize>) -> Option<Range<u64>> {
        let chunks = self.chunks_of(rows);
        let (first, last) = (chunks.first()?, chunks.last()?);
        // A chunk is a compressed matrix of its own, so no part of one can be taken out.
        (first.rows.start == rows.start && last.rows.end == rows.end)
            .then(|| first.offset - self.start..last.end() - self.start)
    }

    /// Bytes of a decompressed row.
    pub fn row_bytes(&self) -> usize {
        self.format.bytes(self.width)
    }

    /// The rows that hold bytes `part` of the decompressed tensor.
    pub fn rows_of(&self, part: &Range<u64>) -> Range<usize> {
        // Rows of width 0 have no bytes.
        let row = (self.row_bytes() as u64).max(1);
        (part.start / row) as usize..part.end.div_ceil(row) as usize
    }

    /// Byte range in the file of the chunks that hold bytes `part` of the decompressed tensor.
    pub fn range_of(&self, part: &Range<u64>) -> Range<u64> {
        let chunks = self.chunks_of(&self.rows_of(part));
        let ends = chunks.first().zip(chunks.last());
        ends.map_or(0..0, |(first, last)| first.offset..last.end())
    }

    /// The chunks that hold these rows.
    pub fn chunks_of(&self, rows: &Range<usize>) -> &[Chunk] {
        // Chunks are sorted by rows, and there may be thousands: a binary search.
        let first = self
            .chunks
            .partition_point(|chunk| chunk.rows.end <= rows.start);
        let end = self
            .chunks
            .partition_point(|chunk| chunk.rows.start < rows.end);
        &self.chunks[first.min(end)..end]
    }

    /// Opens the chunks that hold these rows. `bytes` are compressed bytes of the tensor from offset `base` on. Opening
    /// a chunk builds its decoding tables, which takes as long as decompressing some ten thousand elements.
    ///
    /// # Panics
    /// When the bytes don't hold these rows.
    pub fn open<'a>(
        &'a self,
        bytes: &'a [u8],
        base: u64,
        rows: &Range<usize>,
    ) -> impl Iterator<Item = Result<OpenRows<'a>, DecompressError>> + use<'a> {
        let rows = rows.clone();
        self.chunks_of(&rows).iter().map(move |chunk| {
            Ok(open_rows(
                self.chunk_matrix(chunk, bytes, base)?,
                chunk,
                &rows,
            ))
        })
    }

    /// Opens one chunk; `bytes` and `base` as in [`CompressedTensor::open`].
    fn chunk_matrix<'a>(
        &self,
        chunk: &Chunk,
        bytes: &'a [u8],
        base: u64,
    ) -> Result<CompressedMatrix<'a>, DecompressError> {
        let start = (chunk.offset - self.start - base) as usize;
        CompressedMatrix::new(
            chunk.layout.clone(),
            &bytes[start..start + chunk.layout.bytes()],
        )
    }

    /// Checks the compressed bytes of some rows as far as decompressing them can fail.
    pub fn check(&self, bytes: &[u8], base: u64, rows: &Range<usize>) -> Result<(), DamagedTensor> {
        // Checked once, when they are read: matmuls rely on it, as they cannot return errors.
        for chunk in self.chunks_of(rows) {
            self.chunk_matrix(chunk, bytes, base)
                .and_then(|compressed| compressed.check_tile_bounds())
                .map_err(|error| self.damage(chunk, &error))?;
        }
        Ok(())
    }

    /// An error that names the tensor, and the tile by its index in the tensor.
    pub fn damage(&self, chunk: &Chunk, error: &DecompressError) -> DamagedTensor {
        // Tiles are counted through all chunks, as `sluiced verify` counts them.
        let earlier = self
            .chunks
            .iter()
            .take_while(|other| other.offset < chunk.offset);
        let before: usize = earlier.map(|chunk| chunk.layout.tiles()).sum();
        DamagedTensor(match error {
            DecompressError::Tile(tile) => {
                format!("tile {} of tensor {} is damaged", before + tile, self.name)
            }
            other => format!(
                "tensor {}: the tiles from {before} on are damaged: {other}",
                self.name
            ),
        })
    }
}
