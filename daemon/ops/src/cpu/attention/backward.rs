//! Gradients of attention: the scores of some queries and the keys that they see are computed again, and everything that
//! a key head's queries pass back is added up by one task, in the order of queries.

use std::{mem, ops::Range};

use rayon::prelude::*;
use sluice_machine::Instructions;

use crate::{
    Activation, AttentionShape,
    backward::BackwardRange,
    cpu::{
        CpuBackend, exp,
        heads_output::{HeadsOutput, OutputPart},
        scratch::SCRATCH_LEN,
        vectors::{LANES, with_vectors},
    },
};

/// Most queries whose scores exist at a time.
const QUERIES: usize = 64;
/// Keys whose gradients are added up at a time.
const KEYS: usize = 256;

impl CpuBackend {
    pub(crate) fn attend_backward(
        &self,
        [d_q, d_k, d_v]: &mut [Activation; 3],
        inputs: [&Activation; 3],
        d_out: &Activation,
        shape: AttentionShape,
        ranges: &[BackwardRange],
    ) {
        let tasks: Vec<_> = (ranges.iter())
            .flat_map(|range| (0..shape.kv_heads).map(move |head| (range, head)))
            .collect();
        let instructions = self.instructions();
        self.run(|| {
            let [d_q, d_k, d_v] = [d_q, d_k, d_v].map(HeadsOutput::new);
            tasks.par_iter().for_each(|&(range, kv_head)| {
                let group = shape.heads / shape.kv_heads;
                let heads = kv_head * group..(kv_head + 1) * group;
                // SAFETY: ranges have queries and keys of their own, and tasks of a range their heads.
                let outputs = unsafe {
                    [
                        d_q.part(range.queries.clone(), heads.clone()),
                        d_k.part(range.keys.clone(), kv_head..kv_head + 1),
                        d_v.part(range.keys.clone(), kv_head..kv_head + 1),
                    ]
                };
                let task = Task {
                    range,
                    inputs,
                    d_out,
                    dim: shape.head_dim,
                    kv_head,
                    instructions,
                };
                self.scratch
                    .with(|scratch| task.run(heads, outputs, scratch));
            });
        });
    }
}

/// A key head of a range.
struct Task<'a> {
    range: &'a BackwardRange,
    inputs: [&'a Activation; 3],
    d_out: &'a Activation,
    dim: usize,
    kv_head: usize,
    instructions: Instructions,
}

impl Task<'_> {
    fn run(
        &self,
        heads: Range<usize>,
        [mut d_q, mut d_k, mut d_v]: [OutputPart<'_>; 3],
        scratch: &mut [f32],
    ) {
        let dim = self.dim;
        for row in self.range.keys.clone() {
            for out in [&mut d_k, &mut d_v] {
                out.write((row, self.kv_head), dim, std::iter::repeat_n(0.0, dim));
            }
        }
        let all = self.range.queries.len();
        let most = self.range.keys.len();
        let most = match self.range.window {
            Some(window) => most.min(window + QUERIES - 1),
            None => most,
        };
        let fixed = KEYS * dim;
        let step = (SCRATCH_LEN - fixed) / (3 * dim + 2 * most + KEYS);
        let step = step.clamp(1, QUERIES);
        for head in heads {
            for from in (0..all).step_by(step) {
                let part = from..all.min(from + step);
                self.block(head, part, [&mut d_q, &mut d_k, &mut d_v], scratch);
            }
        }
    }

    /// Some queries of one head.
    fn block(
        &self,
        head: usize,
        part: Range<usize>,
        [d_q, d_k, d_v]: [&mut OutputPart<'_>; 3],
        scratch: &mut [f32],
    ) {
        let Self {
            range,
            dim,
            kv_head,
            instructions,
            ..
        } = *self;
        let [q, k, v] = self.inputs;
        let keys = range.keys_of(&part);
        let (queries, count) = (part.len(), keys.len());
        let scale = (dim as f32).sqrt().recip();
        let mut rest = scratch;
        let mut take = |len: usize| {
            let (own, others) = mem::take(&mut rest).split_at_mut(len);
            rest = others;
            own
        };
        let [rows_q, rows_d, out] = [0; 3].map(|_| take(queries * dim));
        let [weights, slopes] = [0; 2].map(|_| take(queries * count));
        let (transposed, sums) = (take(queries * KEYS), take(KEYS * dim));
        for (index, query) in part.clone().enumerate() {
            let row = range.queries.start + query;
            let place = head * dim..(head + 1) * dim;
            let own = index * dim..(index + 1) * dim;
            rows_d[own.clone()].copy_from_slice(&self.d_out.row(row)[place.clone()]);
            for (out, value) in rows_q[own].iter_mut().zip(&q.row(row)[place]) {
                *out = value * scale;
            }
        }
        let start = kv_head * dim;
        let [keys_there, values_there] =
            [k, v].map(|x| &x.values()[keys.start * x.width() + start..]);
        score(instructions, keys_there, k.width(), rows_q, dim, weights);
        score(instructions, values_there, v.width(), rows_d, dim, slopes);
        let rows = weights
            .chunks_exact_mut(count)
            .zip(slopes.chunks_exact_mut(count));
        for ((weights, slopes), query) in rows.zip(part.clone()) {
            let seen = range.seen(query);
            let seen = seen.start - keys.start..seen.end - keys.start;
            for unseen in [0..seen.start, seen.end..count] {
                weights[unseen.clone()].fill(0.0);
                slopes[unseen].fill(0.0);
            }
            let (weights, slopes) = (&mut weights[seen.clone()], &mut slopes[seen]);
            let most = exp::max(instructions, weights);
            let inverse = 1.0 / exp::exp_sum(instructions, weights, most);
            weights.iter_mut().for_each(|weight| *weight *= inverse);
            let mean: f32 = weights.iter().zip(&*slopes).map(|(a, b)| a * b).sum();
            for (slope, weight) in slopes.iter_mut().zip(&*weights) {
                *slope = weight * (*slope - mean);
            }
        }
        out.fill(0.0);
        weigh(instructions, keys_there, k.width(), slopes, dim, out);
        for (out, query) in out.chunks_exact(dim).zip(part) {
            let values = out.iter().map(|value| value * scale);
            d_q.write((range.queries.start + query, head), dim, values);
        }
        // Queries are scaled already, so the gradients of keys are as well.
        for (weights, rows, target) in [(&*slopes, &*rows_q, d_k), (&*weights, &*rows_d, d_v)] {
            for first in (0..count).step_by(KEYS) {
                let here = first..count.min(first + KEYS);
                let (transposed, sums) = (
                    &mut transposed[..here.len() * queries],
                    &mut sums[..here.len() * dim],
                );
                for (query, weights) in weights.chunks_exact(count).enumerate() {
                    for (key, weight) in weights[here.clone()].iter().enumerate() {
                        transposed[key * queries + query] = *weight;
                    }
                }
                sums.fill(0.0);
                weigh(instructions, rows, dim, transposed, dim, sums);
                for (sum, key) in sums.chunks_exact(dim).zip(here) {
                    target.add((keys.start + key, kv_head), dim, sum);
                }
            }
        }
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
