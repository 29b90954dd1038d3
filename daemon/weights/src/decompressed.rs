//! Which weights a GPU decompresses or dequantizes before it multiplies, and in which pieces.

use sluice_formats::Format;
use sluice_machine::GpuProfile;

use super::Storage;

/// Bytes of the buffer for decompressed weights, unless a single piece of rows is longer. A smaller one keeps a large
/// GPU waiting between launches, a larger one gains nothing.
pub const BYTES_MAX: usize = 64 << 20;
/// Rows of a piece are multiples of this, as a container's chunks and matmul tiles are.
pub const ROWS: usize = 256;
/// Rows of input from which dequantizing first and cuBLAS beat kernels that dequantize on the way, which are fast for
/// fewer. On an H100 both take the same time at about 10 rows of `q8_0`, `q6_k`, `q4_k` and of dictionary codes.
const BLAS_ROWS: usize = 9;

/// How a weight is stored on a GPU, as far as it decides whether it is decompressed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuStorage {
    /// In this plain or block format.
    Plain(Format),
    /// Dictionary-coded, with an index that lets kernels multiply by it directly.
    DictionaryIndexed,
    /// Compressed in another way, which no kernel multiplies by.
    Compressed,
}

impl GpuStorage {
    /// Whether elements lie side by side, each by itself.
    pub fn is_plain(self) -> bool {
        matches!(self, Self::Plain(format) if format.block_len() == 1)
    }
}

/// Whether a GPU decompresses or dequantizes a weight before it multiplies `rows` rows by it.
pub fn is_decompressed_first(gpu: &GpuProfile, storage: GpuStorage, rows: usize) -> bool {
    // Without cuBLAS there is no workspace, and our kernels dequantize on the way.
    let gains = gpu.workspace_bytes > 0 && rows >= BLAS_ROWS;
    match storage {
        // cuBLAS and our kernels both read plain formats as they are.
        _ if storage.is_plain() => false,
        // A format without a kernel has to be dequantized, however few rows there are.
        GpuStorage::Plain(format) => gains || !format.has_gpu_matmul(),
        GpuStorage::DictionaryIndexed => gains,
        GpuStorage::Compressed => true,
    }
}

impl Storage {
    /// How it is stored on a GPU.
    pub fn on_gpu(self) -> GpuStorage {
        match self {
            Self::Plain(format) => GpuStorage::Plain(format),
            Self::Compressed(coding) if coding.index_bytes > 0 => GpuStorage::DictionaryIndexed,
            Self::Compressed(_) => GpuStorage::Compressed,
        }
    }
}

/// Rows of a piece that is decompressed at once, for a matrix of `rows` rows and a buffer of `bytes`; `None` if the
/// buffer is too small.
pub fn piece_rows(rows: usize, row_bytes: usize, bytes: usize) -> Option<usize> {
    // Whole chunks of a container: `CompressedTensor::on_gpu` takes nothing else.
    let most = bytes / row_bytes.max(1) / ROWS * ROWS;
    if rows * row_bytes <= bytes {
        return Some(rows.max(1));
    }
    let pieces = rows.div_ceil((most > 0).then_some(most)?);
    // Pieces of about the same size: a short last one would keep the GPU less busy.
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
