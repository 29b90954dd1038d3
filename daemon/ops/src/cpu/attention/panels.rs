//! Many queries: panels of them are multiplied by packed keys, so that scores come out with a query in each lane, which makes a
//! soft-max of plain vector loops, and are then the panel that packed values are multiplied by.

use sluice_weights::HEAD_DIM_MAX;

use super::{AttentionOutput, HeadTask, TASK_LEN, TASK_ROWS, TILE_KEYS, TILE_LEN};
use crate::{
    Activation, AttentionShape,
    cpu::{
        exp,
        microkernel::{COLUMNS_MAX, MatrixRows, Microkernel, ROW_LANES_MAX, TileOutput},
        scratch::SCRATCH_LEN,
    },
};

/// Numbers of packed keys or values: no row is in a quarter of a panel's lanes, and the last panel may be all but empty.
const PACKED_LEN: usize = 4 * TILE_LEN / 3 + ROW_LANES_MAX * HEAD_DIM_MAX;
/// Numbers of a task's panels of queries.
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
    kernel: &Microkernel,
    scratch: &mut [f32],
    target: &AttentionOutput<'_>,
) {
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
    // Where sums will be is room for a panel's queries in their order.
    for (panel, packed) in queries.chunks_exact_mut(columns * dim).enumerate() {
        let loose = &mut out[..columns * dim];
        for (lane, query) in loose.chunks_exact_mut(dim).enumerate() {
            match panel * columns + lane {
                row if row < rows => task.scaled_query(row, q, dim, query),
                _ => query.fill(0.0),
            }
        }
        kernel.pack_weights(MatrixRows::new(loose, dim, columns, dim), packed);
    }
    out.fill(0.0);
    largest.fill(f32::MIN);
    sums.fill(0.0);
    let mut before = 0;
    for keys in task.tiles() {
        let count = keys.len();
        let packed_keys = &mut packed_keys[..kernel.packed_lanes(count) * dim];
        let (rows_of_keys, stride) = task.source.tile(0, task.kv_head, keys.clone(), tile);
        kernel.pack_rows(
            MatrixRows::new(rows_of_keys, stride, count, dim),
            packed_keys,
        );
        let packed_values = &mut packed_values[..kernel.packed_lanes(dim) * count];
        let (rows_of_values, stride) = task.source.tile(1, task.kv_head, keys, tile);
        kernel.pack_columns(
            MatrixRows::new(rows_of_values, stride, count, dim),
            packed_values,
        );
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
            if its_rows
                .clone()
                .all(|row| task.seen(row, before, count) == 0)
            {
                continue;
            }
            // SAFETY: a row of scores for each of the keys, and nobody else's.
            unsafe { kernel.gemm_panel(count, packed_keys, dim, 0, queries, to(scores, false)) };
            if task.seen.is_some() {
                for (lane, row) in its_rows.enumerate() {
                    let seen = task.seen(row, before, count);
                    let unseen = scores[seen * columns..].iter_mut().skip(lane);
                    unseen
                        .step_by(columns)
                        .for_each(|score| *score = f32::NEG_INFINITY);
                }
            }
            exp::exp_lanes(
                scores,
                &mut largest[lanes.clone()],
                &mut sums[lanes],
                shrunk,
            );
            let out = &mut out[panel * columns * dim..][..columns * dim];
            for out in out.chunks_exact_mut(columns) {
                for (out, shrunk) in out.iter_mut().zip(&*shrunk) {
                    *out *= shrunk;
                }
            }
            // SAFETY: a row for each number of a head, and nobody else's.
            unsafe { kernel.gemm_panel(dim, packed_values, count, 0, scores, to(out, true)) };
        }
        before += count;
    }
    for (row, sum) in sums[..rows].iter().enumerate() {
        let (panel, lane) = (row / columns, row % columns);
        let inverse = 1.0 / sum;
        let values = out[panel * columns * dim + lane..].iter().step_by(columns);
        target.write(
            task.place(row),
            dim,
            values.take(dim).map(|value| value * inverse),
        );
    }
}
