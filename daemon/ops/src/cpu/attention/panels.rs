//! Attention of many queries: packed panels of them are multiplied by packed keys, so that scores come out with a query
//! in each lane. The softmax is then plain vector loops, and its result already is the panel that packed values are
//! multiplied by.

use sluice_machine::Instructions;
use sluice_weights::HEAD_DIM_MAX;

use super::{
    super::heads_output::OutputPart, HeadTask, TASK_LEN, TASK_ROWS, TILE_KEYS, TILE_LEN, Tile,
};
use crate::{
    Activation, AttentionShape,
    cpu::{
        exp,
        microkernel::{COLUMNS_MAX, MatrixRows, Microkernel, ROW_LANES_MAX, TileOutput},
        scratch::SCRATCH_LEN,
        vectors::LANES,
    },
};

/// Elements of packed keys or values: at least three quarters of a panel's lanes hold rows, and the last panel may be
/// almost empty.
const PACKED_LEN: usize = 4 * TILE_LEN / 3 + ROW_LANES_MAX * HEAD_DIM_MAX;
/// Elements of a task's panels of queries.
const PANELS_LEN: usize = TASK_LEN + COLUMNS_MAX * HEAD_DIM_MAX;
const SCORES_LEN: usize = COLUMNS_MAX * TILE_KEYS;
const ROWS_LEN: usize = TASK_ROWS + COLUMNS_MAX;

const _: () = assert!(
    TILE_LEN + 2 * PACKED_LEN + 2 * PANELS_LEN + SCORES_LEN + 2 * ROWS_LEN + COLUMNS_MAX
        <= SCRATCH_LEN
);

pub(super) fn attend(
    task: &HeadTask<'_>,
    shape: AttentionShape,
    q: &Activation,
    instructions: Instructions,
    scratch: &mut [f32],
    mut target: OutputPart<'_>,
) {
    let kernel = Microkernel::of(instructions);
    let (dim, rows, columns) = (shape.head_dim, task.rows(), kernel.columns);
    let panels = rows.div_ceil(columns);
    let (tile, scratch) = scratch.split_at_mut(TILE_LEN);
    let (packed_keys, scratch) = scratch.split_at_mut(PACKED_LEN);
    let (packed_values, scratch) = scratch.split_at_mut(PACKED_LEN);
    let (queries, scratch) = scratch.split_at_mut(panels * columns * dim);
    let (out, scratch) = scratch.split_at_mut(panels * columns * dim);
    let (scores, scratch) = scratch.split_at_mut(SCORES_LEN);
    let (largest, scratch) = scratch.split_at_mut(panels * columns);
    let (sums, scratch) = scratch.split_at_mut(panels * columns);
    let shrunk = &mut scratch[..columns];
    // `out` is not used yet: it lends the space in which a panel's queries stand in their order before they are packed.
    for (panel, packed) in queries.chunks_exact_mut(columns * dim).enumerate() {
        let loose = &mut out[..columns * dim];
        for (lane, query) in loose.chunks_exact_mut(dim).enumerate() {
            match panel * columns + lane {
                row if row < rows => task.scaled_query(row, q, dim, query),
                // Lanes without a query compute scores of zeros, which nobody reads: cheaper than a kernel for every
                // panel width.
                _ => query.fill(0.0),
            }
        }
        // Queries stand in the place of weights, and keys in that of rows: scores then come out with a query in each
        // lane.
        kernel.pack_weights(MatrixRows::new(loose, dim, columns, dim), 0, packed);
    }
    out.fill(0.0);
    largest.fill(f32::MIN);
    sums.fill(0.0);
    let mut before = 0;
    for Tile {
        source,
        keys,
        position,
    } in task.tiles()
    {
        let count = keys.len();
        // Packed once for up to 512 rows: packing takes as long as a few queries' worth of arithmetic.
        let packed_keys = &mut packed_keys[..kernel.packed_lanes(count) * dim];
        let (rows_of_keys, stride) = source.tile(0, task.kv_head, keys.clone(), tile);
        kernel.pack_rows(
            MatrixRows::new(rows_of_keys, stride, count, dim),
            packed_keys,
        );
        let packed_values = &mut packed_values[..kernel.packed_lanes(dim) * count];
        let (rows_of_values, stride) = source.tile(1, task.kv_head, keys, tile);
        kernel.pack_columns(
            MatrixRows::new(rows_of_values, stride, count, dim),
            packed_values,
        );
        let [panels_of_keys, panels_of_values] = [count, dim].map(|rows| kernel.row_panels(rows));
        let scores = &mut scores[..count * columns];
        for (panel, queries) in queries.chunks_exact(columns * dim).enumerate() {
            let to = |start: &mut [f32], adds| TileOutput {
                start: start.as_mut_ptr(),
                stride: columns,
                columns,
                adds,
            };
            let lanes = panel * columns..(panel + 1) * columns;
            let its_rows = lanes.start..lanes.end.min(rows);
            // Autoregressive: later tiles lie behind all queries of the early panels, or before the windows of the last.
            if its_rows
                .clone()
                .all(|row| task.seen(row, before, count).is_empty())
            {
                continue;
            }
            // SAFETY: a row of scores for each of the keys, and nobody else's.
            unsafe { kernel.gemm_panel(&panels_of_keys, packed_keys, queries, to(scores, false)) };
            // Of −∞ the weight is zero: what a query doesn't see changes nothing.
            if task.seen.is_some() {
                for (lane, row) in its_rows.enumerate() {
                    let seen = task.seen(row, before, count);
                    for keys in [0..seen.start, seen.end..count] {
                        let unseen = &mut scores[keys.start * columns..keys.end * columns];
                        let unseen = unseen.iter_mut().skip(lane).step_by(columns);
                        unseen.for_each(|score| *score = f32::NEG_INFINITY);
                    }
                }
            }
            exp::exp_lanes(
                instructions,
                scores,
                position % LANES,
                &mut largest[lanes.clone()],
                &mut sums[lanes],
                shrunk,
            );
            let out = &mut out[panel * columns * dim..][..columns * dim];
            // Rescaling before the second matmul adds to `out`: afterwards old and new terms have the same maximum.
            for out in out.chunks_exact_mut(columns) {
                for (out, shrunk) in out.iter_mut().zip(&*shrunk) {
                    *out *= shrunk;
                }
            }
            // SAFETY: a row for each element of a head, and nobody else's.
            unsafe { kernel.gemm_panel(&panels_of_values, packed_values, scores, to(out, true)) };
        }
        before += count;
    }
    for (row, sum) in sums[..rows].iter().enumerate() {
        let (panel, lane) = (row / columns, row % columns);
        let inverse = 1.0 / sum;
        // The output is transposed, elements by queries: a query is every `columns`-th element.
        let values = out[panel * columns * dim + lane..].iter().step_by(columns);
        let head = &mut tile[..dim];
        for (out, value) in head.iter_mut().zip(values) {
            *out = value * inverse;
        }
        task.rotate_back(head);
        target.write(task.place(row), dim, head.iter().copied());
    }
}
