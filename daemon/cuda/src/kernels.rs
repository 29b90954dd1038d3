//! The kernels, each behind a function that checks its arguments and chooses the number of threads.
//!
//! Matrices are row-major without gaps. A span may be longer than what is read or written. Values on the GPU (ids,
//! positions, rows, tasks) cannot be checked here: one out of range makes the kernel read or write out of bounds.

mod attend;
mod backward;
mod decompress;
mod dequantize;
mod dictionary;
mod lm_head;
mod mixture;
mod rows;
mod rwkv7;
mod salience;

pub use self::{
    attend::{
        ATTEND_HEAD_DIM_MAX, ATTEND_QUERIES, AttentionArgs, AttentionSegment, AttentionTask,
        HEAD_DIM_MAX,
    },
    backward::{
        ATTEND_BACKWARD_FLOATS, ATTEND_BACKWARD_ROWS, AttentionBackwardArgs, AttentionBackwardTask,
        CrossEntropyState,
    },
    decompress::{CompressedChunk, CompressedGpuMatrix, Compression},
    dictionary::{
        DictionaryIndexError, DictionaryMatmul, dictionary_index, dictionary_index_bytes,
    },
    lm_head::{
        CompareState, LM_HEAD_TOKENS, LmHeadMeans, LmHeadRow, LmHeadSampling, LmHeadState, NO_TOKEN,
    },
    mixture::{EXPERT_TASK_ROWS, ExpertTask, GroupedMatmul, RoutedRows, RouterRows, RouterRules},
    rows::{ElementFunction, RopeArgs, RopeRows, STACKED_VECTORS},
    rwkv7::{StateRun, TIME_MIX_HEAD_DIM, TimeMixArgs},
    salience::{SalienceArgs, SalienceScratch},
};
use sluice_formats::{DType, Format};

use crate::{blas::Matmul, error::CudaError, gpu::Gpu, launch::KernelArgument, span::GpuSpan};

/// Rows up to which reading the weights takes most of the time, as `multiply_few.cuh` explains.
pub const FEW_ROWS: usize = 8;

/// Rows from which cuBLAS, where it is found, is faster than our kernels: for one row both wait for the weights.
const BLAS_ROWS: usize = 2;

/// Number of 128 × 128 tiles from which they keep a GPU busy; with fewer, smaller tiles are used.
const TILES_TO_BE_BUSY: usize = 64;

/// A launch fails if the driver refuses it, or if work that was sent before has failed. Sizes of zero launch nothing.
impl Gpu {
    /// Dequantizes rows `ids` (`u32`) of a stored table to `f32`.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
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
        // At least one row; the ids are on the GPU, so their range cannot be checked.
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

    /// `out = x / sqrt(mean(x²) + epsilon) · weight` for each row of `x` (`f32`); `weight` has a plain format.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
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
        // A number for the kernel, not a kernel for each format: the weight is a vector of any plain format.
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
                KernelArgument::U32(weight_format),
                size(rows),
                size(width),
                KernelArgument::F32(epsilon),
            ],
        )
    }

    /// Adds `x / sqrt(mean(x²) + epsilon) · weight` to each row of `out`; both are `f32`, and `weight` has a plain format.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short, or the weights' format has blocks.
    pub fn add_rms_norm(
        &self,
        out: GpuSpan,
        x: GpuSpan,
        (weight, weight_format): (GpuSpan, Format),
        [rows, width]: [usize; 2],
        epsilon: f32,
    ) -> Result<(), CudaError> {
        holds("out", out, rows * width, 4);
        holds("x", x, rows * width, 4);
        holds_weights(weight, weight_format, width);
        let weight_format = vector_format(weight_format);
        if rows == 0 || width == 0 {
            return Ok(());
        }
        self.send(
            "add_rms_norm_f32",
            [rows, 1],
            REDUCE_THREADS,
            &[
                address(out),
                address(x),
                address(weight),
                KernelArgument::U32(weight_format),
                size(rows),
                size(width),
                KernelArgument::F32(epsilon),
            ],
        )
    }

    /// Each head of each row of `x`, in place, divided by the root of its mean square plus `epsilon`, times `weight`, if
    /// there is one, which has a plain format and is as wide as a head. `sizes`: rows, heads of a row, elements of a head.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short, or the weights' format has blocks.
    pub fn rms_norm_heads(
        &self,
        dtype: DType,
        x: GpuSpan,
        weight: Option<(GpuSpan, Format)>,
        sizes: [usize; 3],
        epsilon: f32,
    ) -> Result<(), CudaError> {
        let [rows, heads, head_dim] = sizes;
        holds("x", x, rows * heads * head_dim, dtype.bytes());
        let (weight, weight_format) = match weight {
            Some((weight, format)) => {
                holds_weights(weight, format, head_dim);
                (address(weight), vector_format(format))
            }
            None => (KernelArgument::Address(0), 0),
        };
        if rows * heads * head_dim == 0 {
            return Ok(());
        }
        self.send(
            &format!("rms_norm_heads_{}", dtype.name()),
            [rows, heads.div_ceil(HEADS_OF_BLOCK)],
            REDUCE_THREADS,
            &[
                address(x),
                weight,
                KernelArgument::U32(weight_format),
                size(heads),
                size(head_dim),
                KernelArgument::F32(epsilon),
            ],
        )
    }

    /// `gate = silu(gate) · up`.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
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

    /// `gate = gelu(gate) · up`, GELU by the hyperbolic tangent.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn gelu_mul(
        &self,
        dtype: DType,
        gate: GpuSpan,
        up: GpuSpan,
        count: usize,
    ) -> Result<(), CudaError> {
        holds("gate", gate, count, dtype.bytes());
        holds("up", up, count, dtype.bytes());
        self.elements("gelu_multiply", dtype, [gate, up], count)
    }

    /// Adds `y` to `x` (`f32`).
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn add(&self, dtype: DType, x: GpuSpan, y: GpuSpan, count: usize) -> Result<(), CudaError> {
        holds("x", x, count, 4);
        holds("y", y, count, dtype.bytes());
        self.elements("add", dtype, [x, y], count)
    }

    /// Converts `x` (`f32`) to the compute dtype. In half precision, values out of range saturate.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
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

    /// Gathers rows of `x` by their indices `rows` (`u32`); elements have 2 or 4 bytes.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
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
        // At least one row; the indices are on the GPU, so their range cannot be checked.
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

    /// `out = x · weightsᵀ`, by the fastest way for the shape: cuBLAS, where it is found and the weights are in the
    /// compute dtype, or [our own kernels](Self::matmul_by_kernels). Products are summed in `f32`; in half precision,
    /// results out of range saturate.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short, the width is not whole blocks, results are added to a dtype other than `f32`, or the
    /// format [has no kernel](Format::has_gpu_matmul).
    pub fn matmul(&self, dtype: DType, format: Format, matmul: Matmul) -> Result<(), CudaError> {
        // cuBLAS needs both factors in one dtype.
        if matmul.rows >= BLAS_ROWS
            && format.name() == dtype.name()
            && self.matmul_by_blas(dtype, matmul)?
        {
            return Ok(());
        }
        self.matmul_by_kernels(dtype, format, matmul)
    }

    /// Multiplies by cuBLAS, for weights in the compute dtype. Returns false if there is no cuBLAS.
    ///
    /// # Errors
    /// As [`matmul`](Self::matmul).
    ///
    /// # Panics
    /// As [`matmul`](Self::matmul).
    pub fn matmul_by_blas(&self, dtype: DType, matmul: Matmul) -> Result<bool, CudaError> {
        let Some(blas) = self.blas() else {
            return Ok(false);
        };
        blas.gemm(dtype, matmul).map_err(|refused| {
            // cuBLAS has a code of its own for work that failed before; the driver's error says more, and whether the
            // context has ended.
            self.synchronize().err().unwrap_or(refused)
        })?;
        let (rows, outputs) = (matmul.rows, matmul.outputs);
        // Of the results only f16 can overflow: bf16 has the exponents of the `f32` sums.
        if dtype != DType::F16 || matmul.out_is_f32 || rows == 0 || outputs == 0 {
            return Ok(true);
        }
        // cuBLAS overflows to infinity where our kernels saturate.
        self.send(
            "saturate_f16",
            [rows, outputs.div_ceil(ELEMENT_THREADS as usize)],
            ELEMENT_THREADS,
            &[address(matmul.out), size(outputs), size(matmul.out_stride)],
        )?;
        Ok(true)
    }

    /// Multiplies without cuBLAS: one kernel for few rows, two for tiles.
    ///
    /// # Errors
    /// As [`matmul`](Self::matmul).
    ///
    /// # Panics
    /// As [`matmul`](Self::matmul).
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
        // Adding to rounded sums would lose bits with every addition.
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
        let few = rows <= FEW_ROWS && suits_few(dtype, format, width, [x, weights]);
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

    /// Launches a kernel with one thread for each of `count` elements.
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
        /// CUDA's limits for the blocks of a grid, in its first and second dimension.
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

/// The matmul kernel for a shape, its grid, and the threads of a block: the one for few rows, or one for tiles.
/// `outputs` are this launch's, `all_outputs` the whole matrix's.
fn shape_of(
    few: bool,
    rows: usize,
    outputs: usize,
    all_outputs: usize,
) -> (&'static str, [usize; 2], u32) {
    if few {
        ("multiply_few", [outputs.div_ceil(8), 1], 128)
    // Chosen by all outputs, so that a matrix that takes several launches is multiplied by one kernel throughout.
    } else if rows.div_ceil(128) * all_outputs.div_ceil(128) >= TILES_TO_BE_BUSY && rows > 64 {
        // With 64 rows and fewer, half of each tile of 128 would be empty.
        ("multiply", [rows.div_ceil(128), outputs.div_ceil(128)], 256)
    } else {
        (
            "multiply_small",
            [rows.div_ceil(64), outputs.div_ceil(64)],
            128,
        )
    }
}

/// Threads of a block that reduces a row, as in `reduce.cuh`.
const REDUCE_THREADS: u32 = 256;
/// Heads that a block norms, a warp each.
const HEADS_OF_BLOCK: usize = REDUCE_THREADS as usize / 32;

/// Threads of a block in which each processes one element.
const ELEMENT_THREADS: u32 = 256;

/// The grid with a thread for each of `count` elements.
fn threads(count: usize) -> [usize; 2] {
    [count.div_ceil(ELEMENT_THREADS as usize), 1]
}

/// The number that kernels know a vector's format by.
fn vector_format(format: Format) -> u32 {
    match format {
        Format::F32 => 0,
        Format::F16 => 1,
        Format::Bf16 => 2,
        _ => panic!("vectors are dense"),
    }
}

fn address(span: GpuSpan) -> KernelArgument<'static> {
    KernelArgument::Address(span.address())
}

fn size_64(size: usize) -> KernelArgument<'static> {
    // Counts of elements, unlike rows and widths, may need more than 32 bits.
    KernelArgument::U64(size as u64)
}

fn size(size: usize) -> KernelArgument<'static> {
    KernelArgument::U32(u32::try_from(size).expect("sizes of a matrix have 32 bits"))
}

/// Whether the kernel for few rows can read these: it loads 16 bytes at a time.
fn suits_few(dtype: DType, format: Format, width: usize, [x, weights]: [GpuSpan; 2]) -> bool {
    // Plain weights and rows are both loaded by 16 bytes, so the narrower of the two decides.
    let element = match format.block_len() {
        1 => format.block_bytes().min(dtype.bytes()),
        _ => dtype.bytes(),
    };
    (width * element).is_multiple_of(16)
        && x.address().is_multiple_of(16)
        && (format.block_len() > 1 || weights.address().is_multiple_of(16))
}

fn holds(name: &str, span: GpuSpan, count: usize, element_bytes: usize) {
    // Structures need the alignment of their largest field, at most 8 bytes.
    let alignment = 1 << element_bytes.trailing_zeros().min(3);
    assert!(
        span.bytes() >= count * element_bytes && span.address().is_multiple_of(alignment),
        "{name}: {count} elements of {element_bytes} bytes don't lie in {span:?}"
    );
}

/// The alignment with which kernels read weights.
fn weight_alignment(format: Format) -> u64 {
    match format {
        Format::F32 => 4,
        // Blocks of a multiple of 16 bytes are read in loads of 16.
        Format::Q5K | Format::Q4K => 16,
        _ => 2,
    }
}

fn holds_weights(span: GpuSpan, format: Format, count: usize) {
    let alignment = weight_alignment(format);
    assert!(
        span.bytes() >= format.bytes(count) && span.address().is_multiple_of(alignment),
        "{count} weights in {} don't lie in {span:?}",
        format.name()
    );
}
