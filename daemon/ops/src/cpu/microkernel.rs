//! The matmul's innermost part: rows of `x` and rows of weights are packed so that both are read from front to back,
//! and small tiles of the output are kept in registers while the depth goes by (the layout of GotoBLAS and BLIS). Which
//! instructions do it is chosen when the program runs.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "x86_64")]
mod bf16;
pub(super) mod pairs;
pub(super) mod portable;
mod row_panels;
#[cfg(any(test, target_arch = "x86_64"))]
pub(super) mod tiles;

#[cfg(target_arch = "x86_64")]
use sluice_machine::InstructionSet;
use sluice_machine::Instructions;

use self::pairs::PairKernel;
pub(super) use self::row_panels::RowPanels;

/// How much of the depth is multiplied at a time: a panel of 32 weight rows takes 32 KiB then, and stays in a core's
/// nearest cache while rows of `x` go by. An output is the sum of those of such blocks, each of them summed one element
/// after another, whatever tile it is in: it depends neither on the rows beside it nor on how weights are shared out.
pub(super) const DEPTH: usize = 256;

/// The same for matmuls in integers: 20 KiB of a panel of 32 weight rows.
pub(super) const QUANTS_DEPTH: usize = 512;

/// Words in a cache line. Vectors that straddle them take twice as long to load.
pub(in crate::cpu) const LINE: usize = 16;

/// Bytes that one prefetch brings in.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;

/// The most lanes of a packed panel of rows that a kernel has, and the most columns.
pub(super) const ROW_LANES_MAX: usize = 64;
pub(super) const COLUMNS_MAX: usize = 32;

/// The kernel of one instruction set.
pub(super) struct Microkernel {
    /// Rows of `x` that a tile of the output has, at most.
    pub(super) rows: usize,
    /// Elements from one depth of a packed panel of rows to the next.
    pub(super) row_lanes: usize,
    /// Weight rows in a panel: columns of a tile.
    pub(super) columns: usize,
    transpose: Transpose,
    tile: Tile,
}

/// Writes element `k` of row `i` at `k * lanes + i`. Lanes between the last row and the next whole vector get arbitrary
/// values.
///
/// # Safety
/// The CPU has the kernel's instructions, and no more rows are given than the target has lanes.
type Transpose = unsafe fn(rows: MatrixRows<'_>, out: &mut [f32], lanes: usize);

/// Multiplies so many packed rows of `x` by a packed panel of weights, over the depth of both.
///
/// # Safety
/// The CPU has the kernel's instructions. The output's columns of these rows are nobody else's.
type Tile = unsafe fn(rows: usize, x: &[f32], panel: &[f32], out: TileOutput);

/// A [`Tile`] for the number of rows that the function is compiled for.
#[cfg(target_arch = "x86_64")]
type TileOf = unsafe fn(x: &[f32], panel: &[f32], out: TileOutput);

/// Rows of elements in memory.
#[derive(Clone, Copy)]
pub(super) struct MatrixRows<'a> {
    /// The elements from the first row's first one on.
    values: &'a [f32],
    /// Elements from the beginning of a row to that of the next.
    stride: usize,
    count: usize,
    /// How many elements of each row are used.
    depth: usize,
}

impl<'a> MatrixRows<'a> {
    /// # Panics
    /// When the values end before the rows do.
    pub(super) fn new(values: &'a [f32], stride: usize, count: usize, depth: usize) -> Self {
        assert!(count > 0 && depth <= stride && (count - 1) * stride + depth <= values.len());
        Self {
            values,
            stride,
            count,
            depth,
        }
    }

    /// Some of the rows.
    fn part(self, from: usize, count: usize) -> Self {
        let values = &self.values[from * self.stride..];
        Self::new(values, self.stride, count, self.depth)
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    pub(super) fn row(&self, index: usize) -> &'a [f32] {
        &self.values[index * self.stride..][..self.depth]
    }
}

/// Where a tile's output goes.
#[derive(Clone, Copy)]
pub(super) struct TileOutput {
    pub(super) start: *mut f32,
    /// Elements from the beginning of a row to that of the next.
    pub(super) stride: usize,
    pub(super) columns: usize,
    /// Whether to add to what the output holds.
    pub(super) adds: bool,
}

impl TileOutput {
    /// Its rows from this one on.
    pub(super) fn at_row(&self, row: usize) -> Self {
        Self {
            start: self.start.wrapping_add(row * self.stride),
            ..*self
        }
    }

    /// Its columns from this one on.
    pub(super) fn at_column(&self, column: usize) -> Self {
        Self {
            start: self.start.wrapping_add(column),
            columns: self.columns - column,
            ..*self
        }
    }

    /// Writes or adds the first of `values` to a row.
    ///
    /// # Safety
    /// The row's columns are nobody else's.
    pub(super) unsafe fn write(&self, row: usize, values: &[f32]) {
        for (column, &value) in values[..self.columns].iter().enumerate() {
            let place = self.start.wrapping_add(row * self.stride + column);
            // SAFETY: as the caller says.
            unsafe { *place = if self.adds { *place + value } else { value } };
        }
    }
}

/// What multiplies pairs by these instructions, if they have such products.
pub(super) fn pair_kernel(instructions: Instructions) -> Option<&'static dyn PairKernel> {
    #[cfg(test)]
    if tiles::model::computes() {
        return Some(&tiles::model::PAIRS);
    }
    #[cfg(target_arch = "x86_64")]
    {
        if instructions.has(InstructionSet::Amx) {
            return Some(&bf16::TILES);
        }
        if instructions.has(InstructionSet::Avx512Bf16) {
            return Some(&bf16::PAIRS);
        }
    }
    // Elsewhere there is none.
    let _ = instructions;
    None
}

impl Microkernel {
    /// The best one of these instructions.
    pub(super) fn of(instructions: Instructions) -> &'static Self {
        #[cfg(target_arch = "x86_64")]
        {
            if instructions.has(InstructionSet::Avx512) {
                return &avx512::KERNEL;
            }
            if instructions.has(InstructionSet::Avx2) {
                return &avx2::KERNEL;
            }
        }
        // Elsewhere there is this one alone.
        let _ = instructions;
        &portable::KERNEL
    }

    /// All that this CPU can run.
    #[cfg(test)]
    pub(super) fn all() -> Vec<&'static Self> {
        let all = Instructions::all().iter();
        let mut all: Vec<_> = all.map(|&instructions| Self::of(instructions)).collect();
        all.dedup_by(|a, b| std::ptr::eq(*a, *b));
        all
    }

    /// Elements that so many packed rows of `x` take for each of the depth.
    pub(super) fn packed_lanes(&self, rows: usize) -> usize {
        rows.div_ceil(self.rows) * self.row_lanes
    }

    /// Packs rows of `x`, panel after panel.
    ///
    /// # Panics
    /// When `packed` has another length than [`Microkernel::packed_lanes`] says.
    pub(super) fn pack_rows(&self, x: MatrixRows<'_>, packed: &mut [f32]) {
        assert_eq!(packed.len(), self.packed_lanes(x.count) * x.depth);
        let panels = packed.chunks_exact_mut(self.row_lanes * x.depth);
        for ((from, count), panel) in self.row_panels(x.count).iter().zip(panels) {
            // SAFETY: `of` made sure of the instructions; a panel has lanes for as many rows as tiles have.
            unsafe { (self.transpose)(x.part(from, count), panel, self.row_lanes) };
        }
    }

    /// Packs columns as if each were a row: element `k` of all rows becomes row `k`, whose depth is the number of rows.
    /// Values of attention come this way, and need no transposition for it.
    ///
    /// # Panics
    /// When `packed` has another length than [`Microkernel::packed_lanes`] says.
    pub(super) fn pack_columns(&self, rows: MatrixRows<'_>, packed: &mut [f32]) {
        let lanes = self.row_lanes;
        assert_eq!(packed.len(), self.packed_lanes(rows.depth) * rows.count);
        let panels = packed.chunks_exact_mut(lanes * rows.count);
        for ((from, _), panel) in self.row_panels(rows.depth).iter().zip(panels) {
            // A panel has fewer own rows than lanes: the lanes beyond them hold a copy of the next panel's, or nothing,
            // and are not read.
            match lanes {
                _ if from + lanes > rows.depth => {
                    let len = rows.depth - from;
                    for (row, lanes) in panel.chunks_exact_mut(lanes).enumerate() {
                        lanes[..len].copy_from_slice(&rows.row(row)[from..]);
                    }
                }
                8 => copy_lanes::<8>(rows, from, panel),
                16 => copy_lanes::<16>(rows, from, panel),
                _ => copy_lanes::<ROW_LANES_MAX>(rows, from, panel),
            }
        }
    }

    /// Packs rows of weights into lanes of a panel, from `lane` on. Lanes between the last row and the next whole vector get
    /// arbitrary values.
    ///
    /// # Panics
    /// When the panel has not so many lanes, or another depth.
    pub(super) fn pack_weights(&self, weights: MatrixRows<'_>, lane: usize, panel: &mut [f32]) {
        // Unused columns are computed with whatever their lanes hold, and not stored: a tile writes `out.columns` of
        // them.
        self.transpose(weights, &mut panel[lane..], self.columns, lane);
    }

    /// Packs a panel of weights that come input by input: of each the weights of all outputs, of which the panel takes
    /// those from `from` on. Where fewer are left, the other lanes keep what they hold.
    ///
    /// # Panics
    /// When `packed` has not as many elements as lanes and inputs make.
    pub(super) fn pack_inputs(&self, inputs: MatrixRows<'_>, from: usize, packed: &mut [f32]) {
        let lanes = self.columns;
        assert_eq!(packed.len(), lanes * inputs.count);
        match lanes {
            _ if from + lanes > inputs.depth => {
                let len = inputs.depth - from;
                for (input, lanes) in packed.chunks_exact_mut(lanes).enumerate() {
                    lanes[..len].copy_from_slice(&inputs.row(input)[from..]);
                }
            }
            16 => copy_lanes::<16>(inputs, from, packed),
            _ => copy_lanes::<COLUMNS_MAX>(inputs, from, packed),
        }
    }

    /// Writes word `k` of row `i` at `k * lanes + i`: only moves bits, so that words of packed bytes may go through it.
    /// `out` begins at this lane; where there are fewer lanes than a vector has, up to a vector behind them is
    /// overwritten.
    ///
    /// # Panics
    /// When there are more rows than lanes from there on, or `out` is too short.
    pub(super) fn transpose(
        &self,
        rows: MatrixRows<'_>,
        out: &mut [f32],
        lanes: usize,
        lane: usize,
    ) {
        assert!(lane + rows.count <= lanes && lane + out.len() >= lanes * rows.depth);
        // SAFETY: `of` made sure of the instructions; rows and lanes were compared.
        unsafe { (self.transpose)(rows, out, lanes) };
    }

    /// Multiplies packed panels of `x` by a panel of weights. The output begins at the first of these rows.
    ///
    /// # Safety
    /// The output's columns of all rows are nobody else's.
    pub(super) unsafe fn gemm_panel(
        &self,
        rows: &RowPanels,
        packed: &[f32],
        panel: &[f32],
        out: TileOutput,
    ) {
        assert!(out.columns <= self.columns && panel.len().is_multiple_of(self.columns));
        // The panel of weights (32 KiB) stays in L1 while the panels of `x` go past it.
        for (first, count, x) in self.panels(rows, packed, panel.len() / self.columns) {
            // SAFETY: `of` made sure of the instructions; the caller vouches for the output, of whose rows these are some.
            unsafe { (self.tile)(count, x, panel, out.at_row(first)) };
        }
    }

    /// Of each panel of packed rows the first row, the number of rows, and its elements, [`Microkernel::row_lanes`] for each of
    /// the depth.
    pub(super) fn panels<'a>(
        &self,
        rows: &RowPanels,
        packed: &'a [f32],
        depth: usize,
    ) -> impl Iterator<Item = (usize, usize, &'a [f32])> {
        let panels = packed.chunks_exact(depth * self.row_lanes);
        let rows = rows.iter().zip(panels);
        rows.map(|((first, count), x)| (first, count, x))
    }

    /// The panels of so many rows of `x`.
    pub(super) fn row_panels(&self, rows: usize) -> RowPanels {
        RowPanels::new(0..rows, self.rows)
    }
}

/// Prefetches memory into the second-level cache; it may lie beyond any allocation.
pub(super) fn prefetch(start: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for from in (0..len).step_by(CACHE_LINE) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint, which reads nothing, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(from).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, len);
}

/// Copies so many elements of each row. A constant count compiles to vector moves; a variable one to a call that takes
/// longer than the copy.
fn copy_lanes<const LANES: usize>(rows: MatrixRows<'_>, from: usize, panel: &mut [f32]) {
    for (row, lanes) in panel.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        let values = rows.row(row)[from..].first_chunk();
        *lanes = *values.expect("the panel's lanes lie inside the row");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_formats::noise::Noise;

    fn numbers(count: usize, seed: u64) -> Vec<f32> {
        let noise = Noise::new(seed);
        (0..count)
            .map(|i| noise.uniform(0, i as u64, 0) as f32 - 0.5)
            .collect()
    }

    #[test]
    fn columns_packed_are_rows_of_the_transpose() {
        for kernel in Microkernel::all() {
            for (count, depth) in [(1, 1), (5, kernel.rows), (7, 3 * kernel.rows + 2)] {
                let stride = depth + 3;
                let values = numbers(count * stride, 1);
                let across: Vec<f32> = (0..depth)
                    .flat_map(|k| (0..count).map(move |row| row * stride + k))
                    .map(|place| values[place])
                    .collect();
                let mut expected = vec![0.0; kernel.packed_lanes(depth) * count];
                let mut found = expected.clone();
                kernel.pack_rows(MatrixRows::new(&across, count, depth, count), &mut expected);
                kernel.pack_columns(MatrixRows::new(&values, stride, count, depth), &mut found);
                let panels = (expected.chunks_exact(kernel.row_lanes * count))
                    .zip(found.chunks_exact(kernel.row_lanes * count));
                for ((_, rows), (expected, found)) in kernel.row_panels(depth).iter().zip(panels) {
                    let lanes = expected.chunks_exact(kernel.row_lanes);
                    for (expected, found) in lanes.zip(found.chunks_exact(kernel.row_lanes)) {
                        assert_eq!(expected[..rows], found[..rows]);
                    }
                }
            }
        }
    }

    /// Every kernel that runs here, for every tile it has, some beside each other, and parts of panels.
    #[test]
    fn kernels_equal_a_plain_sum() {
        const STRIDE: usize = 40;
        for kernel in Microkernel::all() {
            for rows in 1..=2 * kernel.rows + 1 {
                for (depth, columns) in [(1, 1), (15, kernel.columns), (50, kernel.columns - 3)] {
                    let x = numbers(rows * depth, 1);
                    let weights = numbers(columns * depth, 2);
                    let mut packed = vec![0.0; kernel.packed_lanes(rows) * depth];
                    kernel.pack_rows(MatrixRows::new(&x, depth, rows, depth), &mut packed);
                    let mut panel = vec![0.0; kernel.columns * depth];
                    let loose = MatrixRows::new(&weights, depth, columns, depth);
                    kernel.pack_weights(loose, 0, &mut panel);
                    for adds in [false, true] {
                        let mut out = vec![1.0; rows * STRIDE];
                        let target = TileOutput {
                            start: out.as_mut_ptr(),
                            stride: STRIDE,
                            columns,
                            adds,
                        };
                        let panels = kernel.row_panels(rows);
                        // SAFETY: the output has all rows and columns, and nobody else has it.
                        unsafe { kernel.gemm_panel(&panels, &packed, &panel, target) };
                        for (index, found) in out.into_iter().enumerate() {
                            let (row, column) = (index / STRIDE, index % STRIDE);
                            let expected = match column < columns {
                                true => {
                                    let x = &x[row * depth..][..depth];
                                    let weights = &weights[column * depth..][..depth];
                                    let products = x.iter().zip(weights).map(|(x, w)| x * w);
                                    products.sum::<f32>() + f32::from(u8::from(adds))
                                }
                                false => 1.0,
                            };
                            assert!((found - expected).abs() < 1e-5, "{found} for {expected}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_tile_without_columns_writes_nothing() {
        for kernel in Microkernel::all() {
            for rows in 1..=kernel.rows {
                let packed = vec![1.0; kernel.packed_lanes(rows)];
                let panel = vec![1.0; kernel.columns];
                for adds in [false, true] {
                    let mut out = vec![7.0; rows * kernel.columns];
                    let target = TileOutput {
                        start: out.as_mut_ptr(),
                        stride: kernel.columns,
                        columns: 0,
                        adds,
                    };
                    // SAFETY: the output has all rows, and nobody else has it.
                    unsafe { kernel.gemm_panel(&kernel.row_panels(rows), &packed, &panel, target) };
                    assert!(out.iter().all(|&value| value == 7.0));
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn masks_have_a_bit_for_each_column() {
        for columns in 0..=32 {
            let [low, high] = avx512::masks(columns).map(u16::count_ones);
            assert_eq!(
                (low, high),
                (columns.min(16) as u32, columns.saturating_sub(16) as u32)
            );
        }
    }
}
