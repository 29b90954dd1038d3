//! Weights as computing sees them.

use sluice_codec::DecompressError;
use sluice_cuda::GpuSpan;
use sluice_formats::{Format, LANES, add_dot_products};

use crate::{CompressedTensor, OpenRows};

/// A matrix or vector of weights, where it lies.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a> {
    /// How its numbers are stored; of coded ones, what they are decoded to.
    pub format: Format,
    /// Outputs; 1 for a vector.
    pub rows: usize,
    /// Inputs.
    pub width: usize,
    /// The numbers, row after row.
    pub data: WeightData<'a>,
    /// Number of the weights' state it belongs to.
    pub weights_version: u64,
}

/// Where a weight's bytes are.
#[derive(Debug, Clone, Copy)]
pub enum WeightData<'a> {
    /// In this process.
    Host(&'a [u8]),
    /// In this process, coded.
    Compressed(CompressedRows<'a>),
    /// On a card.
    Gpu(GpuWeight<'a>),
    /// Nowhere: a rehearsal.
    None,
}

/// Rows of a tensor on a card.
#[derive(Debug, Clone, Copy)]
pub struct GpuWeight<'a> {
    /// Their bytes; of coded ones, those of the chunks from the tensor's row `base_row` on.
    pub span: GpuSpan,
    /// How they are coded, if they are.
    pub compressed: Option<GpuCompressedRows<'a>>,
    /// Memory that weights are decoded into, some rows at a time, where they aren't multiplied as they are; every weight's.
    pub decompressed: GpuSpan,
}

/// How rows on a card are coded.
#[derive(Debug, Clone, Copy)]
pub struct GpuCompressedRows<'a> {
    /// The tensor.
    pub tensor: &'a CompressedTensor,
    /// The index by which they are multiplied as they are; empty, if they aren't.
    pub index: GpuSpan,
    /// The first row of the chunks that are there, and of the index.
    pub base_row: usize,
    /// How many rows are there.
    pub base_rows: usize,
    /// The first of the rows, in the tensor.
    pub first_row: usize,
}

impl WeightData<'_> {
    /// Numbers on a card as they are, and memory there that they may be decoded into.
    #[must_use]
    pub fn on_gpu(span: GpuSpan, decoded: GpuSpan) -> Self {
        Self::Gpu(GpuWeight {
            span,
            compressed: None,
            decompressed: decoded,
        })
    }
}

/// Rows of a tensor as they are coded.
#[derive(Debug, Clone, Copy)]
pub struct CompressedRows<'a> {
    /// The tensor.
    pub tensor: &'a CompressedTensor,
    /// Coded bytes of some of it, with these rows among them.
    pub bytes: &'a [u8],
    /// Where those begin, from the tensor's first byte on.
    pub base: u64,
    /// The first of the rows, in the tensor.
    pub first_row: usize,
}

impl<'a> Weight<'a> {
    /// The rows `from..to` alone.
    ///
    /// # Panics
    /// When they lie outside.
    #[must_use]
    pub fn rows(&self, from: usize, to: usize) -> Weight<'a> {
        let stride = self.format.bytes(self.width);
        Weight {
            rows: to - from,
            data: match self.data {
                WeightData::Compressed(coded) => WeightData::Compressed(CompressedRows {
                    first_row: coded.first_row + from,
                    ..coded
                }),
                WeightData::Host(bytes) => WeightData::Host(&bytes[from * stride..to * stride]),
                WeightData::Gpu(card) => WeightData::Gpu(match card.compressed {
                    Some(coded) => GpuWeight {
                        compressed: Some(GpuCompressedRows {
                            first_row: coded.first_row + from,
                            ..coded
                        }),
                        ..card
                    },
                    None => GpuWeight {
                        span: card.span.part(from * stride, (to - from) * stride),
                        ..card
                    },
                }),
                WeightData::None => WeightData::None,
            },
            ..*self
        }
    }

    /// Its bytes, for the CPU's operations.
    ///
    /// # Panics
    /// When they are not in this process.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        match self.data {
            WeightData::Host(bytes) => bytes,
            WeightData::Compressed(_) | WeightData::Gpu(_) | WeightData::None => {
                unreachable!("the CPU's operations are given the process's own memory")
            }
        }
    }

    /// Where its bytes are, for a card's operations.
    ///
    /// # Panics
    /// When they are not on a card.
    #[must_use]
    pub fn on_gpu(&self) -> GpuWeight<'a> {
        match self.data {
            WeightData::Gpu(card) => card,
            WeightData::Host(_) | WeightData::Compressed(_) | WeightData::None => {
                unreachable!("operations of a GPU are given its own memory")
            }
        }
    }

    /// Where its numbers lie on a card, as they are.
    ///
    /// # Panics
    /// When they are not on a card, or coded there.
    #[must_use]
    pub fn span(&self) -> GpuSpan {
        let card = self.on_gpu();
        assert!(card.compressed.is_none(), "it is coded");
        card.span
    }

    /// All its numbers as `f32`, on the CPU.
    ///
    /// # Panics
    /// When `out` has another length, or coded bytes were not checked when they were read.
    pub fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), self.rows * self.width);
        match self.data {
            WeightData::Compressed(coded) => coded.each(self.rows, |first, open| {
                let out = &mut out[first * self.width..][..open.local.len() * self.width];
                open.matrix.decompress_rows_f32(open.local, out)
            }),
            _ => self.format.dequantize(self.bytes(), out),
        }
    }

    /// The same, at most so many rows at a time, of which `sink` is told the first one and the numbers. `scratch` has room for
    /// them.
    ///
    /// # Panics
    /// When it has not, or coded bytes were not checked when they were read.
    pub fn dequantize_by(
        &self,
        count: usize,
        scratch: &mut [f32],
        mut sink: impl FnMut(usize, &[f32]),
    ) {
        let WeightData::Compressed(coded) = self.data else {
            for first in (0..self.rows).step_by(count) {
                let part = self.rows(first, self.rows.min(first + count));
                let values = &mut scratch[..part.rows * part.width];
                part.dequantize(values);
                sink(first, values);
            }
            return;
        };
        coded.each(self.rows, |first, open| {
            for local in open.local.clone().step_by(count) {
                let rows = local..open.local.end.min(local + count);
                let values = &mut scratch[..rows.len() * self.width];
                open.matrix.decompress_rows_f32(rows, values)?;
                sink(first + local - open.local.start, values);
            }
            Ok(())
        });
    }

    /// Whether [`Weight::dot`] can be used.
    #[must_use]
    pub fn has_dot_kernel(&self) -> bool {
        self.format.dot_kernel(self.width).is_some()
    }

    /// Products of one row of input and each of its rows, on the CPU. Coded numbers come to the same bits as those that they
    /// are decoded to.
    ///
    /// # Panics
    /// When it has none, lengths differ, or coded bytes were not checked when they were read.
    pub fn dot(&self, x: &[f32], out: &mut [f32]) {
        let dots = self
            .format
            .dot_kernel(self.width)
            .expect("rows of whole vectors");
        let WeightData::Compressed(coded) = self.data else {
            return dots(self.bytes(), x, out);
        };
        coded.each(self.rows, |first, open| {
            let mut sums = [0.0; LANES];
            let start = open.local.start;
            open.matrix
                .decompress_pieces_f32(open.local, |row, column, values| {
                    let end = column + values.len();
                    add_dot_products(values, &x[column..end], &mut sums);
                    if end == self.width {
                        out[first + row - start] = sums.iter().sum();
                        sums.fill(0.0);
                    }
                })
        });
    }
}

impl<'a> CompressedRows<'a> {
    /// Calls `decode` for the rows of each chunk: with the first of them, as these rows are counted.
    fn each(
        self,
        rows: usize,
        mut decode: impl FnMut(usize, OpenRows<'a>) -> Result<(), DecompressError>,
    ) {
        let rows = self.first_row..self.first_row + rows;
        for open in self.tensor.open(self.bytes, self.base, &rows) {
            open.and_then(|open| decode(open.rows.start - self.first_row, open))
                .expect("coded bytes are checked when they are read");
        }
    }
}
