//! Mixtures of experts: the router's choice, products of rows with the weights of their expert, and the sum of these.

use bytemuck::{Pod, Zeroable};
use sluice_formats::{DType, Format};

use super::{
    ELEMENT_THREADS, address, holds, holds_weights, size, suits_few, vector_format,
    weight_alignment,
};
use crate::{error::CudaError, gpu::Gpu, launch::KernelArgument, span::GpuSpan};

/// Most rows of an expert in one task.
pub const EXPERT_TASK_ROWS: usize = 64;

/// Outputs of a tile of the kernel for more rows.
const TILE_OUTPUTS: usize = 64;

/// Some rows of one expert, as kernels read it: at most [`EXPERT_TASK_ROWS`].
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct ExpertTask {
    /// Address of the expert's weights.
    pub weights: u64,
    /// The first of the rows, among those of all experts.
    pub first_row: u32,
    /// How many there are.
    pub rows: u32,
}

/// The products of [`Gpu::grouped_matmul`].
#[derive(Debug, Clone, Copy)]
pub struct GroupedMatmul {
    /// Results in the compute dtype: `outputs` for each row.
    pub out: GpuSpan,
    /// Rows of `width` elements in the compute dtype, sorted by expert.
    pub x: GpuSpan,
    /// Tasks ([`ExpertTask`]): first those of few rows, then the others.
    pub tasks: GpuSpan,
    /// How many tasks have few rows ([`FEW_ROWS`](crate::FEW_ROWS) at most), and how many have more.
    pub counts: [usize; 2],
    /// Rows of all tasks.
    pub rows: usize,
    /// Rows of each expert's weights.
    pub outputs: usize,
    /// Their width.
    pub width: usize,
}

/// How a router chooses, as `choose_experts` reads it, by value.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct RouterRules {
    /// Experts that there are.
    pub experts: u32,
    /// Experts of a row.
    pub per_row: u32,
    /// Whether scores are sigmoids of the logits (1) or their softmax (0).
    pub sigmoid: u32,
    /// Equal groups of neighbouring experts.
    pub groups: u32,
    /// Groups that are chosen from.
    pub kept_groups: u32,
    /// Whether (1) an expert counts as its share of those chosen, times `scale`, or (0) as its score.
    pub shares: u32,
    /// Whether the experts' own numbers are factors of what they count (1) or a bias of the choice (0).
    pub own_are_factors: u32,
    /// What logits are multiplied by before a softmax.
    pub logit_scale: f32,
    /// What shares are multiplied by.
    pub scale: f32,
}

/// The input and output of [`Gpu::choose_experts`].
#[derive(Debug, Clone, Copy)]
pub struct RouterRows<'a> {
    /// Logits (`f32`) of each row, which are overwritten.
    pub logits: GpuSpan,
    /// Twice as much memory.
    pub scratch: GpuSpan,
    /// Number of rows.
    pub rows: usize,
    /// A number of each expert's own, in a plain format.
    pub own: Option<(GpuSpan, Format)>,
    /// How the router chooses.
    pub rules: &'a RouterRules,
    /// The experts of each row (`u32`), the best first.
    pub chosen: GpuSpan,
    /// What each counts (`f32`).
    pub weights: GpuSpan,
}

/// The input of [`Gpu::add_routed`]; all but `x` are `u32`.
#[derive(Debug, Clone, Copy)]
pub struct RoutedRows {
    /// Rows in the compute dtype, as experts gave them.
    pub x: GpuSpan,
    /// How many.
    pub count: usize,
    /// Rows that something is added to, each once.
    pub rows: GpuSpan,
    /// How many.
    pub row_count: usize,
    /// Where the entries of each begin, and the end.
    pub starts: GpuSpan,
    /// For each row of `x` its number and the bits of the `f32` that it is multiplied by.
    pub entries: GpuSpan,
}

impl Gpu {
    /// Whether [`Gpu::grouped_matmul`] can multiply `x` with an expert's weights of this format.
    #[must_use]
    pub fn has_grouped_matmul(
        dtype: DType,
        format: Format,
        width: usize,
        [x, weights]: [GpuSpan; 2],
    ) -> bool {
        format.has_gpu_matmul()
            && weights.address().is_multiple_of(weight_alignment(format))
            && suits_few(dtype, format, width, [x, weights])
    }

    /// Multiplies the rows of each task with its weights: `x · weightsᵀ`, in at most two launches.
    ///
    /// # Errors
    /// When a launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short or not aligned to 16 bytes.
    pub fn grouped_matmul(
        &self,
        dtype: DType,
        format: Format,
        product: GroupedMatmul,
    ) -> Result<(), CudaError> {
        const TASK_BYTES: usize = size_of::<ExpertTask>();
        let GroupedMatmul {
            out,
            x,
            tasks,
            counts: [few, more],
            rows,
            outputs,
            width,
        } = product;
        holds("out", out, rows * outputs, dtype.bytes());
        holds("x", x, rows * width, dtype.bytes());
        holds("tasks", tasks, few + more, TASK_BYTES);
        assert!(x.address().is_multiple_of(16), "rows are read in 16 bytes");
        let launches = [
            ("grouped_few", few, 0, outputs.div_ceil(8)),
            ("grouped", more, few, outputs.div_ceil(TILE_OUTPUTS)),
        ];
        for (kind, count, first, across) in launches {
            if count == 0 || outputs == 0 {
                continue;
            }
            // Tiles count outputs in the grid's second dimension, and few rows in its first.
            let grid = match kind {
                "grouped_few" => [across, 1, count],
                _ => [1, across, count],
            };
            assert!(grid[1] < 1 << 16 && count < 1 << 16, "a grid of {grid:?}");
            let these = tasks.part(first * TASK_BYTES, count * TASK_BYTES);
            self.launch(
                &format!("{kind}_{}_{}", dtype.name(), format.name()),
                grid.map(|blocks| blocks as u32),
                128,
                &[
                    address(out),
                    address(x),
                    address(these),
                    size(outputs),
                    size(width),
                ],
            )?;
        }
        Ok(())
    }

    /// Chooses each row's experts from the router's logits, and what each counts.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short, or the experts' own numbers have a format with blocks.
    pub fn choose_experts(&self, router: RouterRows<'_>) -> Result<(), CudaError> {
        /// A warp takes a row.
        const ROWS_OF_BLOCK: usize = 4;
        let RouterRows {
            logits,
            scratch,
            rows,
            own,
            rules,
            chosen,
            weights,
        } = router;
        let experts = rules.experts as usize;
        holds("logits", logits, rows * experts, 4);
        holds("scratch", scratch, 2 * rows * experts, 4);
        holds("chosen", chosen, rows * rules.per_row as usize, 4);
        holds("weights", weights, rows * rules.per_row as usize, 4);
        assert!(
            rules.groups > 0 && rules.experts.is_multiple_of(rules.groups),
            "groups don't divide the experts"
        );
        let (own, own_format) = match own {
            Some((span, format)) => {
                holds_weights(span, format, experts);
                (span.address(), vector_format(format))
            }
            None => (0, 0),
        };
        if rows == 0 {
            return Ok(());
        }
        self.send(
            "choose_experts",
            [rows.div_ceil(ROWS_OF_BLOCK), 1],
            32 * ROWS_OF_BLOCK as u32,
            &[
                address(logits),
                address(scratch),
                address(chosen),
                address(weights),
                KernelArgument::Address(own),
                KernelArgument::U32(own_format),
                size(rows),
                KernelArgument::Bytes(bytemuck::bytes_of(rules)),
            ],
        )
    }

    /// Adds rows that experts gave to the rows of `out` (`f32`) that they are of, each times its factor, in the order of
    /// the entries.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn add_routed(
        &self,
        dtype: DType,
        out: GpuSpan,
        routed: RoutedRows,
        width: usize,
    ) -> Result<(), CudaError> {
        let RoutedRows {
            x,
            count,
            rows,
            row_count,
            starts,
            entries,
        } = routed;
        holds("x", x, count * width, dtype.bytes());
        holds("rows", rows, row_count, 4);
        holds("starts", starts, row_count + 1, 4);
        holds("entries", entries, 2 * count, 4);
        if row_count == 0 || width == 0 {
            return Ok(());
        }
        // At least one row; which ones is on the GPU.
        holds("out", out, width, 4);
        self.send(
            &format!("add_routed_{}", dtype.name()),
            [row_count, width.div_ceil(ELEMENT_THREADS as usize)],
            ELEMENT_THREADS,
            &[
                address(out),
                address(x),
                address(rows),
                address(starts),
                address(entries),
                size(width),
            ],
        )
    }

    /// Converts `x`, in 16 bits, to `f32`.
    ///
    /// # Errors
    /// When the launch fails, or work that was sent before has failed.
    ///
    /// # Panics
    /// When a span is too short, or `x` is `f32` already.
    pub fn to_f32(
        &self,
        dtype: DType,
        out: GpuSpan,
        x: GpuSpan,
        count: usize,
    ) -> Result<(), CudaError> {
        holds("out", out, count, 4);
        holds("x", x, count, dtype.bytes());
        self.elements("to_f32", dtype, [out, x], count)
    }
}
