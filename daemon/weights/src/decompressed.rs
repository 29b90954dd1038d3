//! Which weights a GPU decodes before it multiplies with them, and in which pieces.

use sluice_formats::Format;
use sluice_machine::GpuProfile;

use super::Storage;

/// Most bytes of it, but for rows so long that no piece has room. Less keeps a large card waiting between launches, more
/// gains nothing.
pub const BYTES_MAX: usize = 64 << 20;
/// Rows of a piece are whole multiples of this, as a container's chunks and the tiles of a multiply are.
pub const ROWS: usize = 256;
/// Rows of input from which cuBLAS multiplies decoded blocks faster than our own kernels those that they decode: what
/// decoding takes more of the card's memory is then little beside the multiply.
const BLAS_ROWS: usize = 256;
/// What a weight on a card is, as far as it decides whether it is decoded first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuStorage {
    /// Numbers or blocks of this format.
    Plain(Format),
    /// Coded, with an index by which it can be multiplied.
    DictionaryIndexed,
    /// Coded.
    Compressed,
}

/// Whether a card decodes a weight before it multiplies so many rows with it.
pub fn is_decompressed_first(gpu: &GpuProfile, storage: GpuStorage, rows: usize) -> bool {
    let gains = gpu.workspace_bytes > 0 && rows >= BLAS_ROWS;
    match storage {
        GpuStorage::Plain(format) if format.block_len() == 1 => false,
        GpuStorage::Plain(format) => gains || !format.has_gpu_matmul(),
        GpuStorage::DictionaryIndexed => gains,
        GpuStorage::Compressed => true,
    }
}

impl Storage {
    /// What it is on a card.
    pub fn on_gpu(self) -> GpuStorage {
        match self {
            Self::Plain(format) => GpuStorage::Plain(format),
            Self::Compressed(coding) if coding.index_bytes > 0 => GpuStorage::DictionaryIndexed,
            Self::Compressed(_) => GpuStorage::Compressed,
        }
    }
}

/// Rows of a piece that are decoded at once of a matrix of so many, in so much memory; `None` when that is too little.
pub fn piece_rows(rows: usize, row_bytes: usize, bytes: usize) -> Option<usize> {
    let most = bytes / row_bytes.max(1) / ROWS * ROWS;
    if rows * row_bytes <= bytes {
        return Some(rows.max(1));
    }
    let pieces = rows.div_ceil((most > 0).then_some(most)?);
    // Of about the same size.
    Some(rows.div_ceil(pieces).next_multiple_of(ROWS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_alike_and_have_room() {
        for (rows, row_bytes, bytes, expected) in [
            (12_288, 8192, BYTES_MAX, Some(6144)),
            (4096, 8192, BYTES_MAX, Some(4096)),
            (4096, 24_576, BYTES_MAX, Some(2048)),
            (1000, 100, 30_000, Some(256)),
            (1000, 100, 99_999, Some(512)),
            (1000, 100, 100_000, Some(1000)),
            (300, 100, 25_599, None),
            (200, 100, 20_000, Some(200)),
            (0, 100, 0, Some(1)),
        ] {
            let found = piece_rows(rows, row_bytes, bytes);
            assert_eq!(found, expected, "{rows} rows in {bytes} bytes");
            assert!(found.is_none_or(|rows| rows * row_bytes <= bytes.max(row_bytes)));
        }
    }
}
