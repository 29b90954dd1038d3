//! Loops over the elements of a row.

use super::vectors::{LANES, with_vectors};

#[inline(always)]
fn rms_norm_body(out: &mut [f32], row: &[f32], scale: &[f32], epsilon: f32) {
    let inverse = inverse_rms(row, epsilon);
    for ((out, value), scale) in out.iter_mut().zip(row).zip(scale) {
        *out = value * inverse * scale;
    }
}

#[inline(always)]
fn add_rms_norm_body(out: &mut [f32], row: &[f32], scale: &[f32], epsilon: f32) {
    let inverse = inverse_rms(row, epsilon);
    for ((out, value), scale) in out.iter_mut().zip(row).zip(scale) {
        *out += value * inverse * scale;
    }
}

#[inline(always)]
fn rms_norm_heads_body(row: &mut [f32], scale: &[f32], epsilon: f32) {
    for head in row.chunks_exact_mut(scale.len()) {
        let inverse = inverse_rms(head, epsilon);
        for (value, scale) in head.iter_mut().zip(scale) {
            *value = *value * inverse * scale;
        }
    }
}

#[inline(always)]
fn bare_norm_heads_body(row: &mut [f32], head_dim: usize, epsilon: f32) {
    for head in row.chunks_exact_mut(head_dim) {
        let inverse = inverse_rms(head, epsilon);
        head.iter_mut().for_each(|value| *value *= inverse);
    }
}

#[inline(always)]
fn rotate_body(
    row: &mut [f32],
    [head_dim, pair_distance]: [usize; 2],
    cos: &[f32],
    sin: &[f32],
    direction: f32,
) {
    for head in row.chunks_exact_mut(head_dim) {
        // Halves, as Hugging Face's models rotate them; weights of files whose pairs are neighbours are put in order
        // when they are read. There are as many pairs as cosines; what is in none stays as it is.
        let (low, high) = head.split_at_mut(pair_distance);
        for ((low, high), (cos, sin)) in low.iter_mut().zip(high).zip(cos.iter().zip(sin)) {
            let (a, b, sin) = (*low, *high, sin * direction);
            *low = a * cos - b * sin;
            *high = b * cos + a * sin;
        }
    }
}

#[inline(always)]
fn layer_norm_body(out: &mut [f32], row: &[f32], scale: &[f32], bias: &[f32], epsilon: f32) {
    let mean = sum_of(row, |value| value) / row.len() as f32;
    // The mean is taken off before squares are summed: where it is large beside the spread, the difference of two
    // sums would be lost.
    let squares = sum_of(row, |value| (value - mean) * (value - mean));
    let inverse = (squares / row.len() as f32 + epsilon).sqrt().recip();
    for (((out, value), scale), bias) in out.iter_mut().zip(row).zip(scale).zip(bias) {
        *out = (value - mean) * inverse * scale + bias;
    }
}

#[inline(always)]
fn rms_norm_backward_body(d_x: &mut [f32], x: &[f32], d_out: &[f32], scale: &[f32], epsilon: f32) {
    let count = x.len() as f32;
    let squares = sum_of(x, |value| value * value);
    let inverse = (squares / count + epsilon).sqrt().recip();
    let mut products = [0.0; LANES];
    let chunks = x
        .chunks(LANES)
        .zip(d_out.chunks(LANES))
        .zip(scale.chunks(LANES));
    for ((x, d_out), scale) in chunks {
        for (lane, x) in x.iter().enumerate() {
            products[lane] += x * d_out[lane] * scale[lane];
        }
    }
    let along = products.iter().sum::<f32>() * inverse * inverse * inverse / count;
    for (((d_x, x), d_out), scale) in d_x.iter_mut().zip(x).zip(d_out).zip(scale) {
        *d_x += d_out * scale * inverse - x * along;
    }
}

/// One divided by the root mean square, of whose square `epsilon` more is taken.
#[inline(always)]
fn inverse_rms(row: &[f32], epsilon: f32) -> f32 {
    // The compiler does not reorder floating-point sums, so the sums of lanes are apart.
    let squares = sum_of(row, |value| value * value);
    (squares / row.len() as f32 + epsilon).sqrt().recip()
}

/// The sum over a row, in independent sums as many as the widest vectors have lanes.
#[inline(always)]
fn sum_of(row: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    let mut chunks = row.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (sum, &value) in sums.iter_mut().zip(chunk) {
            *sum += term(value);
        }
    }
    for (sum, &value) in sums.iter_mut().zip(chunks.remainder()) {
        *sum += term(value);
    }
    sums.iter().sum()
}

with_vectors! {
    /// The row divided by its root mean square, times `scale` element by element.
    rms_norm, rms_norm_body, (out: &mut [f32], row: &[f32], scale: &[f32], epsilon: f32)
}

with_vectors! {
    /// The same, added to `out`.
    add_rms_norm, add_rms_norm_body, (out: &mut [f32], row: &[f32], scale: &[f32], epsilon: f32)
}

with_vectors! {
    /// Each head of the row, as wide as `scale`, divided by its root mean square, times `scale` element by element.
    rms_norm_heads, rms_norm_heads_body, (row: &mut [f32], scale: &[f32], epsilon: f32)
}

with_vectors! {
    /// Each head of the row divided by its root mean square.
    bare_norm_heads, bare_norm_heads_body, (row: &mut [f32], head_dim: usize, epsilon: f32)
}

with_vectors! {
    /// Adds to `d_x` the gradient that a row's norm passes back for `d_out`.
    rms_norm_backward, rms_norm_backward_body,
    (d_x: &mut [f32], x: &[f32], d_out: &[f32], scale: &[f32], epsilon: f32)
}

with_vectors! {
    /// The row at mean 0 and variance 1, times `scale`, plus `bias`, element by element.
    layer_norm, layer_norm_body, (out: &mut [f32], row: &[f32], scale: &[f32], bias: &[f32], epsilon: f32)
}

#[inline(always)]
fn rotate_neighbours_body(
    row: &mut [f32],
    head_dim: usize,
    cos: &[f32],
    sin: &[f32],
    direction: f32,
) {
    for head in row.chunks_exact_mut(head_dim) {
        let rotated = &mut head[..2 * cos.len()];
        let pairs = rotated.as_chunks_mut::<2>().0.iter_mut();
        for ([a, b], (cos, sin)) in pairs.zip(cos.iter().zip(sin)) {
            let sin = sin * direction;
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

with_vectors! {
    /// Rotates the pairs of neighbours of each head by these angles; back, where the direction is −1.
    rotate_neighbours, rotate_neighbours_body,
    (row: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32], direction: f32)
}

with_vectors! {
    /// Rotates the first pairs of each head, whose elements lie so far apart, by these angles; back, where the direction is
    /// −1.
    rotate, rotate_body,
    (row: &mut [f32], sizes: [usize; 2], cos: &[f32], sin: &[f32], direction: f32)
}
