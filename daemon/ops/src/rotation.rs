//! The rotation of a head before it is rounded to four or five bits: a Hadamard transform.
//!
//! Some channels of keys are several times as large as the others, and a block's scale is set by its largest element.
//! The transform spreads each over all channels. Queries are transformed, too, which leaves scores as they are, since
//! the transform is orthogonal; means of values are transformed back. It takes off up to two thirds of the divergence
//! at no bytes (docs/benchmarks.md).
//!
//! Reference: QuaRot (arXiv 2404.00456), there with heads of a power of two.

/// Rotates a head. The transform is its own inverse. A head whose length is no power of two is rotated in parts.
pub(crate) fn rotate(head: &mut [f32]) {
    let part = 1 << head.len().trailing_zeros();
    let scale = (part as f32).sqrt().recip();
    for part in head.chunks_exact_mut(part) {
        let mut half = match part.len() {
            // The first stages at once: loops over so few elements aren't vectorized.
            8.. => {
                part.as_chunks_mut().0.iter_mut().for_each(rotate_eight);
                8
            }
            _ => 1,
        };
        while half < part.len() {
            for pair in part.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (low, high) in low.iter_mut().zip(high) {
                    (*low, *high) = (*low + *high, *low - *high);
                }
            }
            half *= 2;
        }
        part.iter_mut().for_each(|value| *value *= scale);
    }
}

/// The first three stages.
fn rotate_eight([a, b, c, d, e, f, g, h]: &mut [f32; 8]) {
    for (low, high) in [
        (&mut *a, &mut *b),
        (&mut *c, &mut *d),
        (&mut *e, &mut *f),
        (&mut *g, &mut *h),
    ] {
        (*low, *high) = (*low + *high, *low - *high);
    }
    for (low, high) in [
        (&mut *a, &mut *c),
        (&mut *b, &mut *d),
        (&mut *e, &mut *g),
        (&mut *f, &mut *h),
    ] {
        (*low, *high) = (*low + *high, *low - *high);
    }
    for (low, high) in [(a, e), (b, f), (c, g), (d, h)] {
        (*low, *high) = (*low + *high, *low - *high);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_is_the_head_itself_and_products_stay() {
        for len in [1, 10, 16, 64, 80, 96, 128] {
            let head = |seed: usize| (0..len).map(move |at| ((at * 7 + seed) % 11) as f32 - 5.0);
            let [mut one, mut two]: [Vec<f32>; 2] = [head(0).collect(), head(3).collect()];
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            let (before, start) = (dot(&one, &two), one.clone());
            rotate(&mut one);
            rotate(&mut two);
            assert!((dot(&one, &two) - before).abs() < 1e-2, "{len}");
            rotate(&mut one);
            for (found, expected) in one.iter().zip(&start) {
                assert!((found - expected).abs() < 1e-5, "{len}");
            }
        }
    }

    #[test]
    fn a_large_element_is_spread_over_the_head() {
        let mut head = [0.0; 64];
        head[5] = 8.0;
        rotate(&mut head);
        assert!(head.iter().all(|value| value.abs() == 1.0));
    }
}
