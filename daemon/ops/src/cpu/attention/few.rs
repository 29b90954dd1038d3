//! Attention of a few queries, such as the one of an autoregressive decoding step: keys and values are read where they
//! lie, since packing them would take longer than the arithmetic.

use sluice_machine::Instructions;

use super::{super::heads_output::OutputPart, HeadTask, stored::Kernels, tile_keys};
use crate::{
    Activation, AttentionShape,
    cpu::{
        exp,
        vectors::{LANES, with_vectors},
    },
};

pub(super) fn attend(
    task: &HeadTask<'_>,
    shape: AttentionShape,
    q: &Activation,
    instructions: Instructions,
    scratch: &mut [f32],
    mut target: OutputPart<'_>,
) {
    let (dim, rows) = (shape.head_dim, task.rows());
    let tile_keys = tile_keys(&task.shape);
    let (tile, scratch) = scratch.split_at_mut(tile_keys * task.shape.stored_dim());
    let (scores, scratch) = scratch.split_at_mut(tile_keys * rows);
    let (queries, scratch) = scratch.split_at_mut(rows * dim);
    let (out, scratch) = scratch.split_at_mut(rows * dim);
    let (largest, scratch) = scratch.split_at_mut(rows);
    let sums = &mut scratch[..rows];
    for (row, query) in queries.chunks_exact_mut(dim).enumerate() {
        task.scaled_query(row, q, dim, query);
    }
    out.fill(0.0);
    // Not −∞: `largest - most` must be a number in the first tile, where −∞ − −∞ would be NaN.
    largest.fill(f32::MIN);
    sums.fill(0.0);
    let mut before = 0;
    for (source, keys) in task.tiles() {
        let count = keys.len();
        let scores = &mut scores[..rows * count];
        let kernels = match source.rotates {
            true => None,
            false => Kernels::of(instructions, source.shape.format, dim),
        };
        if let Some(kernels) = kernels {
            let keys = source.stored(0, task.kv_head, keys.clone());
            for (query, scores) in queries
                .chunks_exact(dim)
                .zip(scores.chunks_exact_mut(count))
            {
                kernels.score(query, keys, scores);
            }
        } else {
            let (tile_of_keys, stride) = source.tile(0, task.kv_head, keys.clone(), tile);
            score(instructions, tile_of_keys, stride, queries, dim, scores);
        }
        for (row, scores) in scores.chunks_exact_mut(count).enumerate() {
            let seen = task.seen(row, before, count);
            // The matmul below takes whole tiles, so keys that the query doesn't see get weight zero instead of being
            // skipped.
            scores[..seen.start].fill(0.0);
            scores[seen.end..].fill(0.0);
            let scores = &mut scores[seen];
            let most = exp::max(instructions, scores).max(largest[row]);
            let shrunk = (largest[row] - most).exp();
            sums[row] = sums[row] * shrunk + exp::exp_sum(instructions, scores, most);
            let out = &mut out[row * dim..][..dim];
            out.iter_mut().for_each(|value| *value *= shrunk);
            largest[row] = most;
        }
        before += count;
        if let Some(kernels) = kernels {
            let values = source.stored(1, task.kv_head, keys);
            for (out, weights) in out.chunks_exact_mut(dim).zip(scores.chunks_exact(count)) {
                kernels.weigh(weights, values, out);
            }
            continue;
        }
        // Values take the place of the keys in `tile`: their scores are computed, so they are not needed any more.
        let (tile_of_values, stride) = source.tile(1, task.kv_head, keys, tile);
        // `out` was scaled to the new maximum above, so terms of all tiles have the same scale when they are added.
        weigh(instructions, tile_of_values, stride, scores, dim, out);
    }
    for (row, (out, sum)) in out.chunks_exact_mut(dim).zip(sums).enumerate() {
        // Divided once at the end, by the sum over all tiles.
        let inverse = 1.0 / *sum;
        task.rotate_back(out);
        let values = out.iter().map(|value| value * inverse);
        target.write(task.place(row), dim, values);
    }
}

#[inline(always)]
fn score_body(keys: &[f32], stride: usize, queries: &[f32], dim: usize, scores: &mut [f32]) {
    let count = scores.len() * dim / queries.len();
    // Keys outside, queries inside: each key is loaded once and stays in L1 for all heads that share it.
    for (index, key) in keys.chunks(stride).take(count).enumerate() {
        // The last row ends with its own head, hence `chunks` above and not `chunks_exact`.
        let key = &key[..dim];
        for (row, query) in queries.chunks_exact(dim).enumerate() {
            // Several independent sums: one would make each addition wait for the one before.
            let mut sums = [0.0; LANES];
            let (query, query_rest) = query.as_chunks::<LANES>();
            let (key, key_rest) = key.as_chunks::<LANES>();
            for (query, key) in query.iter().zip(key) {
                for lane in 0..LANES {
                    sums[lane] += query[lane] * key[lane];
                }
            }
            let rest = query_rest.iter().zip(key_rest);
            let rest: f32 = rest.map(|(query, key)| query * key).sum();
            scores[row * count + index] = sums.iter().sum::<f32>() + rest;
        }
    }
}

#[inline(always)]
fn weigh_body(values: &[f32], stride: usize, weights: &[f32], dim: usize, out: &mut [f32]) {
    // Values outside, as in `score_body`. Each element of `out` gets its terms in the order of keys, whatever the
    // vectors' width.
    let count = weights.len() * dim / out.len();
    for (index, values) in values.chunks(stride).take(count).enumerate() {
        for (row, out) in out.chunks_exact_mut(dim).enumerate() {
            let weight = weights[row * count + index];
            for (out, value) in out.iter_mut().zip(values) {
                *out += weight * value;
            }
        }
    }
}

with_vectors! {
    /// Scores: the dot product of each query and each key; the scores of a query lie next to each other.
    score, score_body, (keys: &[f32], stride: usize, queries: &[f32], dim: usize, scores: &mut [f32])
}

with_vectors! {
    /// Adds to each row of `out` the value rows, each weighted by the row's weight of it.
    weigh, weigh_body, (values: &[f32], stride: usize, weights: &[f32], dim: usize, out: &mut [f32])
}
