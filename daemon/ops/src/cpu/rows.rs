//! Loops over the elements of a row.

use super::vectors::{LANES, with_vectors};

#[inline(always)]
fn rms_norm_body(out: &mut [f32], row: &[f32], scale: &[f32], epsilon: f32) {
    // Independent sums, as many as the widest vectors have lanes: floating-point sums are not reordered by the
    // compiler.
    let mut squares = [0.0; LANES];
    let mut chunks = row.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (sum, value) in squares.iter_mut().zip(chunk) {
            *sum += value * value;
        }
    }
    for (sum, value) in squares.iter_mut().zip(chunks.remainder()) {
        *sum += value * value;
    }
    let squares: f32 = squares.iter().sum();
    let inverse = (squares / row.len() as f32 + epsilon).sqrt().recip();
    for ((out, value), scale) in out.iter_mut().zip(row).zip(scale) {
        *out = value * inverse * scale;
    }
}

#[inline(always)]
fn rotate_body(row: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    for head in row.chunks_exact_mut(2 * half) {
        // Halves, as Hugging Face's models rotate them; weights of files whose pairs are neighbours are put in order
        // when they are read.
        let (low, high) = head.split_at_mut(half);
        for ((low, high), (cos, sin)) in low.iter_mut().zip(high).zip(cos.iter().zip(sin)) {
            let (a, b) = (*low, *high);
            *low = a * cos - b * sin;
            *high = b * cos + a * sin;
        }
    }
}

with_vectors! {
    /// The row divided by its root mean square, times `scale` element by element.
    rms_norm, rms_norm_body, (out: &mut [f32], row: &[f32], scale: &[f32], epsilon: f32)
}

with_vectors! {
    /// Rotates the pairs of each head, an element of its first half with one of its second, by these angles.
    rotate, rotate_body, (row: &mut [f32], cos: &[f32], sin: &[f32])
}
