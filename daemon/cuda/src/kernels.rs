//! The kernels, each behind a function that checks what it is given and chooses how many threads run.
//!
//! Matrices lie row after row without gaps. A span may be longer than what is read or written there. What is on the card
//! (ids, positions, rows, tasks) can't be checked here: a number out of range reads or writes where it should not.

use bytemuck::{Pod, Zeroable};

use crate::{Blas, CudaError, Format, Gpu, Number, Product, Span, launch::Argument};

/// The CUDA version whose compiler made the PTX; an older driver can't read it. Linux drivers are of this version from
/// 525.60 on.
pub const CUDA_NEEDED: (u32, u32) = (12, 0);

/// Most queries that a [`Task`] may have.
pub const ATTEND_QUERIES: usize = 64;

/// Most numbers in a head that [`Gpu::attend`] takes.
pub const HEAD_DIM_MAX: usize = 256;

/// Most end tokens, and most suppressed ones, that a [`HeadChoice`] names.
pub const HEAD_TOKENS: usize = 16;

/// Stands for no token.
pub const NO_TOKEN: u32 = u32::MAX;

/// Rows up to which the card waits for the weights and for nothing else, as `multiply_few.cuh` says.
const FEW_ROWS: usize = 8;

/// Rows from which cuBLAS, where it is found, is faster than the tile kernels.
const BLAS_ROWS: usize = 32;

/// Tiles of 128 × 128 from which on a card is busy with them; fewer are split.
const TILES_TO_BE_BUSY: usize = 64;

/// Queries, of one sequence, and what they attend to.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Task {
    /// First row of the queries.
    pub query_start: u32,
    /// Rows of queries; at most [`ATTEND_QUERIES`].
    pub query_count: u32,
    /// The first of its segments.
    pub segment_start: u32,
    /// Segments of keys that all of its queries see.
    pub segment_count: u32,
}

/// Consecutive rows of keys and values.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Segment {
    /// First row.
    pub start: u32,
    /// Rows.
    pub len: u32,
}

/// What [`Gpu::attend`] reads and writes, in the numbers that it computes in.
#[derive(Debug, Clone, Copy)]
pub struct Attend {
    /// Rows as those of `q`.
    pub out: Span,
    /// Queries: `heads * head_dim` numbers a row.
    pub q: Span,
    /// Keys: `kv_heads * head_dim` numbers a row.
    pub k: Span,
    /// Values, in rows as those of `k`.
    pub v: Span,
    /// The [`Task`]s.
    pub tasks: Span,
    /// How many they are.
    pub task_count: usize,
    /// The [`Segment`]s that tasks refer to.
    pub segments: Span,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Numbers in a head: an even number up to [`HEAD_DIM_MAX`].
    pub head_dim: usize,
}

/// A row's state between pieces of the vocabulary.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct HeadState {
    /// Largest logit so far.
    pub max: f32,
    /// Plain logit of the best token.
    pub best_logit: f32,
    /// Logit of the target.
    pub target_logit: f32,
    /// The token with the best noised logit, or [`NO_TOKEN`].
    pub best: u32,
    /// Sum of `exp(logit - max)`.
    pub sum: f64,
    /// The best noised logit.
    pub best_score: f64,
}

impl HeadState {
    /// Before the first piece.
    pub const START: Self = Self {
        max: f32::NEG_INFINITY,
        best_logit: f32::NEG_INFINITY,
        target_logit: f32::NEG_INFINITY,
        best: NO_TOKEN,
        sum: 0.0,
        best_score: f64::NEG_INFINITY,
    };
}

/// What a row of the head is read for.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct HeadRow {
    /// Its place in the canvas, which fixes its noise.
    pub position: u32,
    /// 1 where an end token may be chosen.
    pub may_end: u32,
    /// A token whose logit is asked for, or [`NO_TOKEN`].
    pub target: u32,
}

/// How a token is chosen from a row's logits.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct HeadChoice {
    /// Scale of the Gumbel noise; 0: the largest logit.
    pub temperature: f64,
    /// Where noise comes from.
    pub noise_key: u64,
    /// Number of the pass, which fixes the noise with the position.
    pub pass: u64,
    /// Guidance weight w: logits are u + (w + 1)(c − u).
    pub guidance: f32,
    /// 1 where there is guidance: as many unconditional rows follow the conditional ones.
    pub has_guidance: u32,
    /// Ids from here on are unused rows of the head, never chosen.
    pub vocabulary: u32,
    /// Never chosen.
    pub mask: u32,
    /// How many of `ends` there are.
    pub end_count: u32,
    /// How many of `suppressed` there are.
    pub suppressed_count: u32,
    /// Chosen only in rows that may end.
    pub ends: [u32; HEAD_TOKENS],
    /// Tokens whose logit counts as −∞, for choice and probability alike.
    pub suppressed: [u32; HEAD_TOKENS],
}

/// Two heads' state in a row between pieces of the vocabulary.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct CompareState {
    /// Largest logits so far.
    pub max: [f32; 2],
    /// Their tokens.
    pub top: [u32; 2],
    /// Sums of `exp(logit - max)`.
    pub sum: [f64; 2],
    /// Logits of the target.
    pub target: [f32; 2],
    /// Sum of `exp(one - max of one) · (one - other)`.
    pub difference: f64,
}

impl CompareState {
    /// Before the first piece.
    pub const START: Self = Self {
        max: [f32::NEG_INFINITY; 2],
        top: [0; 2],
        sum: [0.0; 2],
        target: [f32::NEG_INFINITY; 2],
        difference: 0.0,
    };
}

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
        out: Span,
        ids: Span,
        table: Span,
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
        number: Number,
        out: Span,
        x: Span,
        weight: Span,
        weight_format: Format,
        rows: usize,
        width: usize,
        epsilon: f32,
    ) -> Result<(), CudaError> {
        holds("out", out, rows * width, number.bytes());
        holds("x", x, rows * width, 4);
        holds_weights(weight, weight_format, width);
        let weight_format = match weight_format {
            Format::F32 => 0,
            Format::F16 => 1,
            Format::Bf16 => 2,
            Format::Q8_0 | Format::Q6K | Format::Q4K => panic!("a norm's weights are dense"),
        };
        if rows == 0 || width == 0 {
            return Ok(());
        }
        self.send(
            &format!("rms_norm_{}", number.name()),
            [rows, 1],
            REDUCE_THREADS,
            &[
                address(out),
                address(x),
                address(weight),
                Argument::U32(weight_format),
                size(rows),
                size(width),
                Argument::F32(epsilon),
            ],
        )
    }

    /// Rotary embedding in place, on half-split pairs of each head. `table` (`f32`) has a row of `half` cosines and as many
    /// sines for each position; `positions` (`u32`) has one for each row.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When a span is too short.
    #[expect(clippy::too_many_arguments, reason = "the operation has as many")]
    pub fn rope(
        &self,
        number: Number,
        x: Span,
        table: Span,
        positions: Span,
        rows: usize,
        heads: usize,
        half: usize,
    ) -> Result<(), CudaError> {
        let pairs = rows * heads * half;
        holds("x", x, 2 * pairs, number.bytes());
        holds("positions", positions, rows, 4);
        if pairs == 0 {
            return Ok(());
        }
        holds("table", table, 2 * half, 4);
        self.send(
            &format!("rope_{}", number.name()),
            threads(pairs),
            ELEMENT_THREADS,
            &[
                address(x),
                address(table),
                address(positions),
                size(rows),
                size(heads),
                size(half),
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
    pub fn silu_multiply(
        &self,
        number: Number,
        gate: Span,
        up: Span,
        count: usize,
    ) -> Result<(), CudaError> {
        holds("gate", gate, count, number.bytes());
        holds("up", up, count, number.bytes());
        self.elements("silu_multiply", number, [gate, up], count)
    }

    /// Adds `y` to `x` (`f32`).
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When a span is too short.
    pub fn add(&self, number: Number, x: Span, y: Span, count: usize) -> Result<(), CudaError> {
        holds("x", x, count, 4);
        holds("y", y, count, number.bytes());
        self.elements("add", number, [x, y], count)
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
        number: Number,
        out: Span,
        x: Span,
        count: usize,
    ) -> Result<(), CudaError> {
        holds("out", out, count, number.bytes());
        holds("x", x, count, 4);
        self.elements("convert", number, [out, x], count)
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
        out: Span,
        x: Span,
        rows: Span,
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
    /// are computed in, else [our own kernels](Self::multiply_by_kernels). Products are added up in `f32`; in half precision,
    /// what is too large stays the largest number.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When a span is too short, the width is not whole blocks, or results are added to other numbers than `f32`.
    pub fn multiply(
        &self,
        number: Number,
        format: Format,
        product: Product,
    ) -> Result<(), CudaError> {
        if product.rows >= BLAS_ROWS
            && format.name() == number.name()
            && let Some(blas) = self.blas()
        {
            return self.multiply_by_blas(blas, number, product);
        }
        self.multiply_by_kernels(number, format, product)
    }

    fn multiply_by_blas(
        &self,
        blas: &Blas,
        number: Number,
        product: Product,
    ) -> Result<(), CudaError> {
        blas.multiply(number, product).map_err(|refused| {
            // cuBLAS has words of its own for work that failed before; the driver's say more, and whether all is over.
            self.synchronize().err().unwrap_or(refused)
        })?;
        let count = product.rows * product.outputs;
        if number != Number::F16 || product.out_is_f32 || count == 0 {
            return Ok(());
        }
        self.send(
            "saturate_f16",
            threads(count),
            ELEMENT_THREADS,
            &[address(product.out), Argument::U64(count as u64)],
        )
    }

    /// The same without cuBLAS: a kernel for few rows, or one of two for tiles.
    ///
    /// # Errors
    /// As [`multiply`](Self::multiply).
    ///
    /// # Panics
    /// As [`multiply`](Self::multiply).
    pub fn multiply_by_kernels(
        &self,
        number: Number,
        format: Format,
        product: Product,
    ) -> Result<(), CudaError> {
        let Product {
            out,
            out_is_f32,
            x,
            weights,
            rows,
            outputs,
            width,
            accumulate,
        } = product;
        let out_is_f32 = out_is_f32 || number == Number::F32;
        assert!(out_is_f32 || !accumulate, "sums are f32");
        let out_bytes = if out_is_f32 { 4 } else { number.bytes() };
        holds("out", out, rows * outputs, out_bytes);
        holds("x", x, rows * width, number.bytes());
        assert!(
            width.is_multiple_of(format.block_len()),
            "rows of {width} weights are not whole blocks"
        );
        holds_weights(weights, format, outputs * width);
        if rows == 0 || outputs == 0 {
            return Ok(());
        }
        let (kind, grid, block) = if rows <= FEW_ROWS && suits_few(number, format, &product) {
            ("multiply_few", [outputs.div_ceil(8), 1], 128)
        } else if rows.div_ceil(128) * outputs.div_ceil(128) >= TILES_TO_BE_BUSY && rows > 64 {
            ("multiply", [rows.div_ceil(128), outputs.div_ceil(128)], 256)
        } else {
            (
                "multiply_small",
                [rows.div_ceil(64), outputs.div_ceil(64)],
                128,
            )
        };
        self.send(
            &format!("{kind}_{}_{}", number.name(), format.name()),
            grid,
            block,
            &[
                address(out),
                Argument::U32(out_is_f32.into()),
                address(x),
                address(weights),
                size(rows),
                size(outputs),
                size(width),
                Argument::F32(if accumulate { 1.0 } else { 0.0 }),
            ],
        )
    }

    /// `softmax(q · kᵀ / √head_dim) · v` for each head and task. Rows that no task has are not written; a task without keys
    /// gets zeros.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When heads are odd or too long, or a span doesn't hold whole rows.
    pub fn attend(&self, number: Number, attend: Attend) -> Result<(), CudaError> {
        let Attend {
            out,
            q,
            k,
            v,
            tasks,
            task_count,
            segments,
            heads,
            kv_heads,
            head_dim,
        } = attend;
        assert!(
            head_dim.is_multiple_of(2) && head_dim <= HEAD_DIM_MAX,
            "heads of {head_dim} numbers"
        );
        assert!(
            kv_heads > 0 && heads.is_multiple_of(kv_heads),
            "{heads} heads share {kv_heads} of keys"
        );
        holds("tasks", tasks, task_count, size_of::<Task>());
        if task_count == 0 || heads == 0 || head_dim == 0 {
            return Ok(());
        }
        let row = |heads: usize| heads * head_dim * number.bytes();
        for (name, span, bytes) in [
            ("q", q, row(heads)),
            ("out", out, row(heads)),
            ("k", k, row(kv_heads)),
            ("v", v, row(kv_heads)),
        ] {
            holds(name, span, 0, number.bytes().max(4));
            assert!(
                span.bytes().is_multiple_of(bytes),
                "{name} is not whole rows"
            );
        }
        assert!(out.bytes() >= q.bytes(), "out is shorter than q");
        assert!(v.bytes() == k.bytes(), "keys and values differ");
        holds("segments", segments, 0, 4);
        // The kernels for `f32` take half of a task's queries.
        let parts = if number == Number::F32 { 2 } else { 1 };
        let dim = [64, 128, 256].into_iter().find(|&dim| head_dim <= dim);
        self.send(
            &format!(
                "attend_{}_{}",
                number.name(),
                dim.expect("heads are no longer than that")
            ),
            [parts * task_count, heads],
            128,
            &[
                address(out),
                address(q),
                address(k),
                address(v),
                address(tasks),
                address(segments),
                size(heads),
                size(kv_heads),
                size(head_dim),
                Argument::F32((head_dim as f32).sqrt().recip()),
            ],
        )
    }

    /// Takes `columns` logits (`f32`) of each row, those of the tokens from `first` on, into the rows' states. `rows` are
    /// [`HeadRow`]s, `states` [`HeadState`]s; the logits are changed.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When a span is too short, or the choice names more tokens than it holds.
    #[expect(clippy::too_many_arguments, reason = "the operation has as many")]
    pub fn head_reduce(
        &self,
        states: Span,
        logits: Span,
        rows: Span,
        row_count: usize,
        columns: usize,
        first: usize,
        choice: &HeadChoice,
    ) -> Result<(), CudaError> {
        assert!(
            choice.end_count.max(choice.suppressed_count) as usize <= HEAD_TOKENS,
            "more tokens than there is room for"
        );
        let branches = if choice.has_guidance == 0 { 1 } else { 2 };
        holds("states", states, row_count, size_of::<HeadState>());
        holds("logits", logits, branches * row_count * columns, 4);
        holds("rows", rows, row_count, size_of::<HeadRow>());
        if row_count == 0 || columns == 0 {
            return Ok(());
        }
        self.send(
            "head_reduce",
            [row_count, 1],
            REDUCE_THREADS,
            &[
                address(states),
                address(logits),
                address(rows),
                size(row_count),
                size(columns),
                size(first),
                Argument::Bytes(bytemuck::bytes_of(choice)),
            ],
        )
    }

    /// Takes `columns` logits (`f32`) of each row of two heads, those of the tokens from `first` on, into the rows'
    /// [`CompareState`]s. `targets` (`u32`) has a token, or [`NO_TOKEN`], for each row.
    ///
    /// # Errors
    /// When the card refuses it, or has failed before.
    ///
    /// # Panics
    /// When a span is too short.
    #[expect(clippy::too_many_arguments, reason = "the operation has as many")]
    pub fn compare_reduce(
        &self,
        states: Span,
        one: Span,
        other: Span,
        targets: Span,
        rows: usize,
        columns: usize,
        first: usize,
    ) -> Result<(), CudaError> {
        holds("states", states, rows, size_of::<CompareState>());
        holds("one", one, rows * columns, 4);
        holds("other", other, rows * columns, 4);
        holds("targets", targets, rows, 4);
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        self.send(
            "compare_reduce",
            [rows, 1],
            REDUCE_THREADS,
            &[
                address(states),
                address(one),
                address(other),
                address(targets),
                size(rows),
                size(columns),
                size(first),
            ],
        )
    }

    /// A kernel with a thread for each of `count` numbers.
    fn elements(
        &self,
        kind: &str,
        number: Number,
        spans: [Span; 2],
        count: usize,
    ) -> Result<(), CudaError> {
        if count == 0 {
            return Ok(());
        }
        self.send(
            &format!("{kind}_{}", number.name()),
            threads(count),
            ELEMENT_THREADS,
            &[
                address(spans[0]),
                address(spans[1]),
                Argument::U64(count as u64),
            ],
        )
    }

    fn send(
        &self,
        kernel: &str,
        grid: [usize; 2],
        block: u32,
        arguments: &[Argument<'_>],
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

/// Threads of a block that reduces a row, as `reduce.cuh` says.
const REDUCE_THREADS: u32 = 256;

/// Threads of a block where each takes a number.
const ELEMENT_THREADS: u32 = 256;

/// The grid with a thread for each of `count` numbers.
fn threads(count: usize) -> [usize; 2] {
    [count.div_ceil(ELEMENT_THREADS as usize), 1]
}

fn address(span: Span) -> Argument<'static> {
    Argument::Address(span.address())
}

fn size(size: usize) -> Argument<'static> {
    Argument::U32(u32::try_from(size).expect("sizes of a matrix have 32 bits"))
}

/// Whether the kernel for few rows can read these: in loads of 16 bytes only.
fn suits_few(number: Number, format: Format, product: &Product) -> bool {
    let element = match format.block_len() {
        1 => format.block_bytes().min(number.bytes()),
        _ => number.bytes(),
    };
    (product.width * element).is_multiple_of(16)
        && product.x.address().is_multiple_of(16)
        && (format.block_len() > 1 || product.weights.address().is_multiple_of(16))
}

fn holds(name: &str, span: Span, count: usize, element_bytes: usize) {
    // Structures need the alignment of their largest field.
    let alignment = 1 << element_bytes.trailing_zeros().min(3);
    assert!(
        span.bytes() >= count * element_bytes && span.address().is_multiple_of(alignment),
        "{name}: {count} elements of {element_bytes} bytes don't lie in {span:?}"
    );
}

fn holds_weights(span: Span, format: Format, count: usize) {
    let alignment = match format {
        Format::F32 => 4,
        Format::F16 | Format::Bf16 | Format::Q8_0 | Format::Q6K => 2,
        Format::Q4K => 16,
    };
    assert!(
        span.bytes() >= format.bytes(count) && span.address().is_multiple_of(alignment),
        "{count} weights in {} don't lie in {span:?}",
        format.name()
    );
}

/// Kernels that are compiled together.
pub(crate) struct Module {
    pub(crate) name: &'static str,
    /// For cards from capability 7.5 on, unless the module is for newer ones only.
    pub(crate) ptx_75: Option<&'static str>,
    /// For cards from capability 8.0 on.
    pub(crate) ptx_80: &'static str,
}

/// The module that a kernel is in.
pub(crate) fn module_of(kernel: &str) -> Option<&'static Module> {
    let argument = |line: &'static str, call: &str| {
        line.strip_prefix(call)?
            .strip_prefix('(')?
            .strip_suffix(')')
    };
    let mut module = None;
    for line in include_str!("../kernels/list.h").lines() {
        if let Some(name) = argument(line, "MODULE") {
            module = MODULES.iter().find(|module| module.name == name);
        } else if argument(line, "KERNEL") == Some(kernel) {
            return module;
        }
    }
    None
}

macro_rules! modules {
    (
        all: $($all:literal)*;
        from_80: $($from_80:literal)*;
    ) => {
        [
            // Compiled for the oldest card that has what it needs; newer ones take the same.
            $(Module {
                name: $all,
                ptx_75: Some(include_str!(concat!("../ptx/", $all, ".ptx"))),
                ptx_80: include_str!(concat!("../ptx/", $all, ".ptx")),
            },)*
            $(Module {
                name: $from_80,
                ptx_75: None,
                ptx_80: include_str!(concat!("../ptx/", $from_80, ".ptx")),
            },)*
        ]
    };
}

static MODULES: [Module; 15] = modules! {
    all:
        "embed" "rows_f32" "rows_f16" "multiply_f32" "multiply_f16" "multiply_few_f32" "multiply_few_f16" "attention_f32"
        "attention_f16" "head" "compare";
    from_80:
        "rows_bf16" "multiply_bf16" "multiply_few_bf16" "attention_bf16";
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_in_the_module_that_the_list_says() {
        let names = include_str!("../kernels/list.h")
            .lines()
            .filter_map(|line| line.strip_prefix("KERNEL(")?.strip_suffix(')'));
        let mut count = 0;
        for name in names {
            let module = module_of(name).unwrap_or_else(|| panic!("{name} is in no module"));
            let entry = format!(".visible .entry {name}(");
            assert!(module.ptx_80.contains(&entry), "{}: {name}", module.name);
            count += 1;
        }
        let entries: usize = MODULES
            .iter()
            .map(|module| module.ptx_80.matches(".entry ").count())
            .sum();
        assert_eq!(count, entries, "kernels that the list doesn't have");
        assert!(module_of("none").is_none());
    }
}
