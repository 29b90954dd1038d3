//! Attention of a few queries, such as the one of an autoregressive decoding step: keys and values are read where they
//! lie, since packing them would take longer than the arithmetic. All sums are in the order of [`super::panels`].

use sluice_machine::Instructions;

use super::{super::heads_output::OutputPart, HeadTask, Tile, stored::Kernels, tile_keys};
use crate::{
    Activation, AttentionShape,
    cpu::{exp, vectors::LANES},
};

/// Heads are padded to whole pieces of whatever kernels read at a time.
const PADDED: usize = 32;

pub(super) fn attend(
    task: &HeadTask<'_>,
    shape: AttentionShape,
    q: &Activation,
    instructions: Instructions,
    scratch: &mut [f32],
    mut target: OutputPart<'_>,
) {
    let (dim, rows) = (shape.head_dim, task.rows());
    let padded = dim.next_multiple_of(PADDED);
    let tile_keys = tile_keys(&task.shape);
    let (tile, scratch) = scratch.split_at_mut(tile_keys * padded);
    let (scores, scratch) = scratch.split_at_mut(tile_keys * rows);
    let (queries, scratch) = scratch.split_at_mut(rows * padded);
    let (out, scratch) = scratch.split_at_mut(rows * padded);
    let (largest, scratch) = scratch.split_at_mut(rows);
    let sums = &mut scratch[..rows];
    queries.fill(0.0);
    for (row, query) in queries.chunks_exact_mut(padded).enumerate() {
        task.scaled_query(row, q, dim, &mut query[..dim]);
    }
    out.fill(0.0);
    // Not −∞: `largest - most` must be a number in the first tile, where −∞ − −∞ would be NaN.
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
        let scores = &mut scores[..rows * count];
        let stored = match source.rotates {
            true => None,
            false => Kernels::of(instructions, source.shape.format, source.shape.stored_dim()),
        };
        let (kernels, keys_there) = match stored {
            Some(kernels) => (kernels, source.stored(0, task.kv_head, keys.clone())),
            None => (
                Kernels::of_f32(instructions, padded),
                source.padded(0, task.kv_head, keys.clone(), padded, tile),
            ),
        };
        kernels.score(queries, padded, keys_there, scores);
        let each = scores
            .chunks_exact_mut(count)
            .zip(out.chunks_exact_mut(padded));
        for (row, (scores, out)) in each.enumerate() {
            let seen = task.seen(row, before, count);
            scores[..seen.start].fill(f32::NEG_INFINITY);
            scores[seen.end..].fill(f32::NEG_INFINITY);
            let most = exp::max(instructions, scores).max(largest[row]);
            let shrunk = exp::exp(largest[row] - most);
            let sum = exp::exp_sum_from(instructions, scores, most, position % LANES);
            sums[row] = sums[row] * shrunk + sum;
            // Before the new terms are added, so that those of all tiles have the same scale.
            out.iter_mut().for_each(|value| *value *= shrunk);
            largest[row] = most;
        }
        before += count;
        // Values take the place of the keys in `tile`: their scores are computed, so they are not needed any more.
        let values = match stored {
            Some(_) => source.stored(1, task.kv_head, keys),
            None => source.padded(1, task.kv_head, keys, padded, tile),
        };
        kernels.weigh(scores, values, out, padded);
    }
    for (row, (out, sum)) in out.chunks_exact_mut(padded).zip(sums).enumerate() {
        // Divided once at the end, by the sum over all tiles.
        let inverse = 1.0 / *sum;
        let out = &mut out[..dim];
        out.iter_mut().for_each(|value| *value *= inverse);
        task.rotate_back(out);
        target.write(task.place(row), dim, out.iter().copied());
    }
}
