//! Weights as operations see them.

use std::ops::Range;

use sluice_codec::{DecompressError, Scheme};
use sluice_cuda::GpuSpan;
use sluice_formats::{
    Format,
    interleaved::{self, ROWS},
};

use crate::{CompressedTensor, OpenRows};

/// A matmul returns no error, so damage has to be found when the bytes are read.
const CHECKED: &str = "coded bytes are checked when they are read";

/// A matrix or vector of weights, wherever it lies.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a> {
    /// The format of its elements; for compressed ones the format that they decompress to.
    pub format: Format,
    /// Number of outputs; 1 for a vector.
    pub rows: usize,
    /// Number of inputs: elements of a row.
    pub width: usize,
    /// The weights, row after row.
    pub data: WeightData<'a>,
    /// Version of the weights that it belongs to.
    pub weights_version: u64,
}

/// Where a weight's bytes are.
#[derive(Debug, Clone, Copy)]
pub enum WeightData<'a> {
    /// In this process's memory.
    Host(&'a [u8]),
    /// In this process's memory, rows beside each other.
    Interleaved(InterleavedRows<'a>),
    /// In this process's memory, compressed.
    Compressed(CompressedRows<'a>),
    /// On a GPU.
    Gpu(GpuWeight<'a>),
    /// Nowhere: a dry run, which only counts memory.
    None,
}

/// Rows of a tensor on a GPU.
#[derive(Debug, Clone, Copy)]
pub struct GpuWeight<'a> {
    /// Their bytes; for compressed rows those of the chunks from the tensor's row `base_row` on.
    pub span: GpuSpan,
    /// How they are compressed, if they are.
    pub compressed: Option<GpuCompressedRows<'a>>,
    /// Shared buffer that weights are decompressed into, some rows at a time, if no kernel multiplies by them directly.
    pub decompressed: GpuSpan,
}

/// How rows on a GPU are compressed.
#[derive(Debug, Clone, Copy)]
pub struct GpuCompressedRows<'a> {
    /// The tensor that the rows belong to.
    pub tensor: &'a CompressedTensor,
    /// The index for multiplying by them directly; empty if they are decompressed first.
    pub index: GpuSpan,
    /// First row of the chunks on the GPU, and of the index.
    pub base_row: usize,
    /// Number of rows of these chunks.
    pub base_rows: usize,
    /// Index in the tensor of the first row of this weight.
    pub first_row: usize,
}

impl WeightData<'_> {
    /// Uncompressed weights on a GPU, with the buffer that they may be dequantized into.
    #[must_use]
    pub fn on_gpu(span: GpuSpan, decoded: GpuSpan) -> Self {
        Self::Gpu(GpuWeight {
            span,
            compressed: None,
            decompressed: decoded,
        })
    }
}

/// Rows of a tensor whose rows lie [beside each other](interleaved).
#[derive(Debug, Clone, Copy)]
pub struct InterleavedRows<'a> {
    /// All bytes of the tensor's rows.
    pub bytes: &'a [u8],
    /// Index of the first row of this weight among them.
    pub first_row: usize,
}

/// Elements of a row that are read at once, whole blocks of every format, and space for as many.
pub const PIECE: usize = 512;
/// Space for the bytes of [`PIECE`] elements in any format.
pub type PieceBuffer = [u32; PIECE];

/// Compressed rows of a tensor.
#[derive(Debug, Clone, Copy)]
pub struct CompressedRows<'a> {
    /// The tensor that the rows belong to.
    pub tensor: &'a CompressedTensor,
    /// Compressed bytes of some of its chunks, which include these rows.
    pub bytes: &'a [u8],
    /// Offset of `bytes` from the tensor's first byte.
    pub base: u64,
    /// Index in the tensor of the first row of this weight.
    pub first_row: usize,
}

impl<'a> Weight<'a> {
    /// The rows `from..to` of this weight.
    ///
    /// # Panics
    /// When they lie outside.
    #[must_use]
    pub fn rows(&self, from: usize, to: usize) -> Weight<'a> {
        let stride = self.format.bytes(self.width);
        Weight {
            rows: to - from,
            data: match self.data {
                // Rows of a chunk cannot be cut out of its bytes, so these stay and the row index moves.
                WeightData::Compressed(coded) => WeightData::Compressed(CompressedRows {
                    first_row: coded.first_row + from,
                    ..coded
                }),
                WeightData::Host(bytes) => WeightData::Host(&bytes[from * stride..to * stride]),
                WeightData::Interleaved(rows) => WeightData::Interleaved(InterleavedRows {
                    first_row: rows.first_row + from,
                    ..rows
                }),
                WeightData::Gpu(gpu) => WeightData::Gpu(match gpu.compressed {
                    // Chunks stay whole on the GPU: only the row index moves.
                    Some(coded) => GpuWeight {
                        compressed: Some(GpuCompressedRows {
                            first_row: coded.first_row + from,
                            ..coded
                        }),
                        ..gpu
                    },
                    None => GpuWeight {
                        span: gpu.span.part(from * stride, (to - from) * stride),
                        ..gpu
                    },
                }),
                WeightData::None => WeightData::None,
            },
            ..*self
        }
    }

    /// Its bytes as they are stored, row after row, for the CPU's operations.
    ///
    /// # Panics
    /// When they are not in this process, or not in this order.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        match self.data {
            WeightData::Host(bytes) => bytes,
            WeightData::Interleaved(_)
            | WeightData::Compressed(_)
            | WeightData::Gpu(_)
            | WeightData::None => {
                // A plan never mixes devices: only a mistake in an operation leads here.
                unreachable!("the CPU's operations are given the process's own memory")
            }
        }
    }

    /// The 16 rows from `row` on as they lie beside each other; `None` where they don't.
    #[must_use]
    pub fn side_by_side(&self, row: usize) -> Option<&'a [u8]> {
        let WeightData::Interleaved(rows) = self.data else {
            return None;
        };
        let first = rows.first_row + row;
        if row + ROWS > self.rows || !first.is_multiple_of(ROWS) {
            return None;
        }
        let stride = self.format.bytes(self.width);
        rows.bytes.get(first * stride..(first + ROWS) * stride)
    }

    /// Some elements of a row as they are stored, copied to `buffer` if they don't lie together.
    ///
    /// # Panics
    /// When they are not in this process, compressed, no whole blocks, or more than [`PIECE`].
    #[must_use]
    pub fn stored<'b>(
        &self,
        row: usize,
        elements: Range<usize>,
        buffer: &'b mut PieceBuffer,
    ) -> &'b [u8]
    where
        'a: 'b,
    {
        let stride = self.format.bytes(self.width);
        let part = self.format.bytes(elements.start)..self.format.bytes(elements.end);
        match self.data {
            WeightData::Interleaved(rows) => {
                let out = &mut bytemuck::cast_slice_mut(buffer)[..part.len()];
                let row = rows.first_row + row;
                interleaved::copy_row(self.format, self.width, rows.bytes, row, elements, out);
                out
            }
            _ => &self.bytes()[row * stride..][part],
        }
    }

    /// Dequantizes some elements of a row, on the CPU.
    ///
    /// # Panics
    /// When they are not in this process, compressed, or no whole blocks.
    pub fn dequantize_row(&self, row: usize, from: usize, out: &mut [f32]) {
        let mut buffer = [0; PIECE];
        for (out, from) in out.chunks_mut(PIECE).zip((from..).step_by(PIECE)) {
            let stored = self.stored(row, from..from + out.len(), &mut buffer);
            self.format.dequantize(stored, out);
        }
    }

    /// Its place on a GPU, for the GPU's operations.
    ///
    /// # Panics
    /// When they are not on a GPU.
    #[must_use]
    pub fn on_gpu(&self) -> GpuWeight<'a> {
        match self.data {
            WeightData::Gpu(gpu) => gpu,
            WeightData::Host(_)
            | WeightData::Interleaved(_)
            | WeightData::Compressed(_)
            | WeightData::None => {
                unreachable!("operations of a GPU are given its own memory")
            }
        }
    }

    /// Its span on a GPU, if it isn't compressed.
    ///
    /// # Panics
    /// When they are not on a GPU, or compressed there.
    #[must_use]
    pub fn span(&self) -> GpuSpan {
        let gpu = self.on_gpu();
        assert!(gpu.compressed.is_none(), "it is coded");
        gpu.span
    }

    /// Dequantizes or decompresses all elements to `f32`, on the CPU.
    ///
    /// # Panics
    /// When `out` has another length, or compressed bytes were not checked when they were read.
    pub fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), self.rows * self.width);
        match self.data {
            WeightData::Compressed(compressed) => compressed.each(self.rows, |first, open| {
                let out = &mut out[first * self.width..][..open.local.len() * self.width];
                open.matrix.decompress_rows_f32(open.local, out)
            }),
            WeightData::Interleaved(_) => {
                for (row, out) in out.chunks_exact_mut(self.width).enumerate() {
                    self.dequantize_row(row, 0, out);
                }
            }
            _ => self.format.dequantize(self.bytes(), out),
        }
    }

    /// Whether it is decompressed by columns: any of its rows take as long as all of their chunk.
    #[must_use]
    pub fn has_columns(&self) -> bool {
        matches!(self.data, WeightData::Compressed(compressed) if compressed.has_columns())
    }

    /// The chunks that its rows are in, each with the index of its first row in this weight.
    ///
    /// # Panics
    /// When it isn't compressed, or compressed bytes were not checked when they were read.
    pub fn chunks(&self) -> impl Iterator<Item = (usize, OpenRows<'a>)> + use<'a> {
        let WeightData::Compressed(compressed) = self.data else {
            unreachable!("only compressed weights are in chunks");
        };
        compressed.chunks(self.rows)
    }
}

impl<'a> CompressedRows<'a> {
    fn has_columns(self) -> bool {
        self.tensor.scheme() == Scheme::Columns
    }

    /// Opens the chunks of so many rows, with the index of each one's first row in this weight.
    fn chunks(self, rows: usize) -> impl Iterator<Item = (usize, OpenRows<'a>)> + use<'a> {
        let rows = self.first_row..self.first_row + rows;
        let chunks = self.tensor.open(self.bytes, self.base, &rows);
        chunks.map(move |open| {
            let open = open.expect(CHECKED);
            (open.rows.start - self.first_row, open)
        })
    }

    /// Calls `decode` for the rows of each chunk, with the index of the first of them in this weight.
    fn each(
        self,
        rows: usize,
        mut decode: impl FnMut(usize, OpenRows<'a>) -> Result<(), DecompressError>,
    ) {
        for (first, open) in self.chunks(rows) {
            decode(first, open).expect(CHECKED);
        }
    }
}
