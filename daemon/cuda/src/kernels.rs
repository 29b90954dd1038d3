//! The kernels, each behind a function that checks what it is given and chooses how many threads run.
//!
//! Matrices lie row after row without gaps. A span may be longer than what is read or written there. What is on the card
//! (ids, positions, rows, tasks) can't be checked here: a number out of range reads or writes where it should not.

mod attend;
mod decompress;
mod dequantize;
mod dictionary;
mod lm_head;
mod rows;
mod salience;

pub use self::{
    attend::{ATTEND_QUERIES, AttentionArgs, AttentionSegment, AttentionTask, HEAD_DIM_MAX},
    decompress::{CompressedChunk, CompressedGpuMatrix, Compression},
    dictionary::{
        DictionaryIndexError, DictionaryMatmul, dictionary_index, dictionary_index_bytes,
    },
    lm_head::{CompareState, LM_HEAD_TOKENS, LmHeadRow, LmHeadSampling, LmHeadState, NO_TOKEN},
    rows::RopeRows,
    salience::{SalienceArgs, SalienceScratch},
};
use sluice_formats::{DType, Format};

use crate::{blas::Matmul, error::CudaError, gpu::Gpu, launch::KernelArgument, span::GpuSpan};

/// Rows up to which the card waits for the weights and for nothing else, as `multiply_few.cuh` says.
const FEW_ROWS: usize = 8;

/// Rows from which cuBLAS, where it is found, is faster than the tile kernels.
const BLAS_ROWS: usize = 32;

/// Tiles of 128 × 128 from which on a card is busy with them; fewer are split.
const TILES_TO_BE_BUSY: usize = 64;

/// Sending a kernel is refused: by the driver, or because something sent before has failed. Sizes of zero send nothing.
impl Gpu {
    /// Rows `ids` (`u32`) of a stored table, decoded into `f32`.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn embed(
        &self,
        out: GpuSpan,
        ids: GpuSpan,
        table: GpuSpan,
        format: Format,
        width: usize,
        rows: usize,
    ) -> Result<(), CudaError> {
        holds("out", out, rows * width, 4);
        holds("ids", ids, rows, 4);
        if rows == 0 || width == 0 {
            return Ok(());
        }
        holds_weights(table, format, width);
        self.send(
            &format!("embed_{}", format.name()),
            [rows, 1],
            128,
            &[
                address(out),
                address(ids),
                address(table),
                size(width),
                size(rows),
            ],
        )
    }

    /// `out = x / sqrt(mean(x²) + epsilon) · weight` for each row of `x` (`f32`); `weight` is stored in a dense format.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When a span is too short, or the weights' format has blocks.
    #[expect(clippy::too_many_arguments, reason = "the operation has as many")]
    pub fn rms_norm(
        &self,
        dtype: DType,
        out: GpuSpan,
        x: GpuSpan,
        weight: GpuSpan,
        weight_format: Format,
        rows: usize,
        width: usize,
        epsilon: f32,
    ) -> Result<(), CudaError> {
        holds("out", out, rows * width, dtype.bytes());
        holds("x", x, rows * width, 4);
        holds_weights(weight, weight_format, width);
        let weight_format = vector_format(weight_format);
        if rows == 0 || width == 0 {
            return Ok(());
        }
        self.send(
            &format!("rms_norm_{}", dtype.name()),
            [rows, 1],
            REDUCE_THREADS,
            &[
                address(out),
                address(x),
                address(weight),
                weight_format,
                size(rows),
                size(width),
                KernelArgument::F32(epsilon),
            ],
        )
    }

    /// `silu(gate) · up`, in the gate's place.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn silu_mul(
        &self,
        dtype: DType,
        gate: GpuSpan,
        up: GpuSpan,
        count: usize,
    ) -> Result<(), CudaError> {
        holds("gate", gate, count, dtype.bytes());
        holds("up", up, count, dtype.bytes());
        self.elements("silu_multiply", dtype, [gate, up], count)
    }

    /// Adds `y` to `x` (`f32`).
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn add(&self, dtype: DType, x: GpuSpan, y: GpuSpan, count: usize) -> Result<(), CudaError> {
        holds("x", x, count, 4);
        holds("y", y, count, dtype.bytes());
        self.elements("add", dtype, [x, y], count)
    }

    /// `x` (`f32`) as numbers that are computed in. In half precision, what is too large stays the largest number.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn convert(
        &self,
        dtype: DType,
        out: GpuSpan,
        x: GpuSpan,
        count: usize,
    ) -> Result<(), CudaError> {
        holds("out", out, count, dtype.bytes());
        holds("x", x, count, 4);
        self.elements("convert", dtype, [out, x], count)
    }

    /// Rows of `x` at `rows` (`u32`), in that order; elements of 2 or 4 bytes.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When a span is too short, or elements have another size.
    pub fn take_rows(
        &self,
        element_bytes: usize,
        out: GpuSpan,
        x: GpuSpan,
        rows: GpuSpan,
        count: usize,
        width: usize,
    ) -> Result<(), CudaError> {
        assert!(
            element_bytes == 2 || element_bytes == 4,
            "elements of {element_bytes} bytes"
        );
        holds("out", out, count * width, element_bytes);
        holds("rows", rows, count, 4);
        if count == 0 || width == 0 {
            return Ok(());
        }
        holds("x", x, width, element_bytes);
        self.send(
            &format!("take_rows_{element_bytes}"),
            [count, 1],
            REDUCE_THREADS,
            &[
                address(out),
                address(x),
                address(rows),
                size(count),
                size(width),
            ],
        )
    }

    /// `out = x · weightsᵀ`, by what is fastest for the shape: cuBLAS where it is found and the weights are numbers as they
    /// are computed in, else [our own kernels](Self::matmul_by_kernels). Products are added up in `f32`; in half precision,
    /// what is too large stays the largest number.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When a span is too short, the width is not whole blocks, results are added to other numbers than `f32`, or the format
    /// [isn't multiplied](Format::has_gpu_matmul).
    pub fn matmul(&self, dtype: DType, format: Format, matmul: Matmul) -> Result<(), CudaError> {
        if matmul.rows >= BLAS_ROWS
            && format.name() == dtype.name()
            && self.matmul_by_blas(dtype, matmul)?
        {
            return Ok(());
        }
        self.matmul_by_kernels(dtype, format, matmul)
    }

    /// The same by cuBLAS for weights that are numbers as they are computed in, and whether there is one.
    ///
    /// # Errors
    /// As [`multiply`](Self::matmul).
    ///
    /// # Panics
    /// As [`multiply`](Self::matmul).
    pub fn matmul_by_blas(&self, dtype: DType, matmul: Matmul) -> Result<bool, CudaError> {
        let Some(blas) = self.blas() else {
            return Ok(false);
        };
        blas.gemm(dtype, matmul).map_err(|refused| {
            // cuBLAS has words of its own for work that failed before; the driver's say more, and whether all is over.
            self.synchronize().err().unwrap_or(refused)
        })?;
        let (rows, outputs) = (matmul.rows, matmul.outputs);
        if dtype != DType::F16 || matmul.out_is_f32 || rows == 0 || outputs == 0 {
            return Ok(true);
        }
        self.send(
            "saturate_f16",
            [rows, outputs.div_ceil(ELEMENT_THREADS as usize)],
            ELEMENT_THREADS,
            &[address(matmul.out), size(outputs), size(matmul.out_stride)],
        )?;
        Ok(true)
    }

    /// The same without cuBLAS: a kernel for few rows, or one of two for tiles.
    ///
    /// # Errors
    /// As [`multiply`](Self::matmul).
    ///
    /// # Panics
    /// As [`multiply`](Self::matmul).
    pub fn matmul_by_kernels(
        &self,
        dtype: DType,
        format: Format,
        matmul: Matmul,
    ) -> Result<(), CudaError> {
        let Matmul {
            out,
            out_is_f32,
            x,
            weights,
            rows,
            outputs,
            out_stride,
            width,
            accumulate,
        } = matmul;
        assert!(
            format.has_gpu_matmul(),
            "weights in {} are decoded first",
            format.name()
        );
        let out_is_f32 = out_is_f32 || dtype == DType::F32;
        assert!(out_is_f32 || !accumulate, "sums are f32");
        let out_bytes = if out_is_f32 { 4 } else { dtype.bytes() };
        holds("out", out, matmul.out_len(), out_bytes);
        holds("x", x, rows * width, dtype.bytes());
        assert!(
            width.is_multiple_of(format.block_len()),
            "rows of {width} weights are not whole blocks"
        );
        holds_weights(weights, format, outputs * width);
        if rows == 0 || outputs == 0 {
            return Ok(());
        }
        let few = rows <= FEW_ROWS && suits_few(dtype, format, &matmul);
        let (kind, grid, block) = shape_of(few, rows, outputs, outputs);
        self.send(
            &format!("{kind}_{}_{}", dtype.name(), format.name()),
            grid,
            block,
            &[
                address(out),
                KernelArgument::U32(out_is_f32.into()),
                address(x),
                address(weights),
                size(rows),
                size(outputs),
                size(width),
                size(out_stride),
                KernelArgument::F32(if accumulate { 1.0 } else { 0.0 }),
            ],
        )
    }

    /// A kernel with a thread for each of `count` numbers.
    fn elements(
        &self,
        kind: &str,
        dtype: DType,
        spans: [GpuSpan; 2],
        count: usize,
    ) -> Result<(), CudaError> {
        if count == 0 {
            return Ok(());
        }
        self.send(
            &format!("{kind}_{}", dtype.name()),
            threads(count),
            ELEMENT_THREADS,
            &[address(spans[0]), address(spans[1]), size_64(count)],
        )
    }

    fn send(
        &self,
        kernel: &str,
        grid: [usize; 2],
        block: u32,
        arguments: &[KernelArgument<'_>],
    ) -> Result<(), CudaError> {
        /// Blocks that a grid may have: in its first direction, and in its second.
        const GRID_MAX: [usize; 2] = [(1 << 31) - 1, (1 << 16) - 1];
        assert!(
            grid[0] <= GRID_MAX[0] && grid[1] <= GRID_MAX[1],
            "{kernel}: a grid of {grid:?} blocks"
        );
        self.launch(
            kernel,
            [grid[0] as u32, grid[1] as u32, 1],
            block,
            arguments,
        )
    }
}

/// Which of the kernels multiplies, its grid, and the threads of a block: that for few rows, or one for tiles. Of all outputs
/// a launch may have some.
fn shape_of(
    few: bool,
    rows: usize,
    outputs: usize,
    all_outputs: usize,
) -> (&'static str, [usize; 2], u32) {
    if few {
        ("multiply_few", [outputs.div_ceil(8), 1], 128)
    } else if rows.div_ceil(128) * all_outputs.div_ceil(128) >= TILES_TO_BE_BUSY && rows > 64 {
        ("multiply", [rows.div_ceil(128), outputs.div_ceil(128)], 256)
    } else {
        (
            "multiply_small",
            [rows.div_ceil(64), outputs.div_ceil(64)],
            128,
        )
    }
}

/// Threads of a block that reduces a row, as `reduce.cuh` says.
const REDUCE_THREADS: u32 = 256;

/// Threads of a block where each takes a number.
const ELEMENT_THREADS: u32 = 256;

/// The grid with a thread for each of `count` numbers.
fn threads(count: usize) -> [usize; 2] {
    [count.div_ceil(ELEMENT_THREADS as usize), 1]
}

/// How a vector is stored, as kernels are told.
fn vector_format(format: Format) -> KernelArgument<'static> {
    KernelArgument::U32(match format {
        Format::F32 => 0,
        Format::F16 => 1,
        Format::Bf16 => 2,
        _ => panic!("vectors are dense"),
    })
}

fn address(span: GpuSpan) -> KernelArgument<'static> {
    KernelArgument::Address(span.address())
}

fn size_64(size: usize) -> KernelArgument<'static> {
    KernelArgument::U64(size as u64)
}

fn size(size: usize) -> KernelArgument<'static> {
    KernelArgument::U32(u32::try_from(size).expect("sizes of a matrix have 32 bits"))
}

/// Whether the kernel for few rows can read these: in loads of 16 bytes only.
fn suits_few(dtype: DType, format: Format, matmul: &Matmul) -> bool {
    let element = match format.block_len() {
        1 => format.block_bytes().min(dtype.bytes()),
        _ => dtype.bytes(),
    };
    (matmul.width * element).is_multiple_of(16)
        && matmul.x.address().is_multiple_of(16)
        && (format.block_len() > 1 || matmul.weights.address().is_multiple_of(16))
}

fn holds(name: &str, span: GpuSpan, count: usize, element_bytes: usize) {
    // Structures need the alignment of their largest field.
    let alignment = 1 << element_bytes.trailing_zeros().min(3);
    assert!(
        span.bytes() >= count * element_bytes && span.address().is_multiple_of(alignment),
        "{name}: {count} elements of {element_bytes} bytes don't lie in {span:?}"
    );
}

fn holds_weights(span: GpuSpan, format: Format, count: usize) {
    let alignment = match format {
        Format::F32 => 4,
        // Blocks of a multiple of 16 bytes are read in loads of 16.
        Format::Q5K | Format::Q4K => 16,
        _ => 2,
    };
    assert!(
        span.bytes() >= format.bytes(count) && span.address().is_multiple_of(alignment),
        "{count} weights in {} don't lie in {span:?}",
        format.name()
    );
}
