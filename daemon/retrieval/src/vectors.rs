//! Vectors in 8 bits, and the nearest of all of them to another.
//!
//! A vector is kept as whole numbers from -127 to 127 and one scale, so that the cosine is within about 0.005 of that of
//! floats. A search compares a query with every vector, in memory: 384 MB for a million of 384 elements.

use std::collections::HashSet;

/// A vector in 8 bits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CodedVector {
    /// What an element of 1 stands for.
    pub(crate) scale: f32,
    pub(crate) elements: Vec<i8>,
}

impl CodedVector {
    /// Of a vector, which is brought to length 1; one of zeros or with an element that is no number becomes zeros.
    pub(crate) fn new(vector: &[f32]) -> Self {
        let length = vector
            .iter()
            .map(|&x| f64::from(x).powi(2))
            .sum::<f64>()
            .sqrt();
        let largest = vector.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        if !(length.is_finite() && length > 0.0) {
            return Self {
                scale: 0.0,
                elements: vec![0; vector.len()],
            };
        }
        let code = |x: &f32| (x / largest * 127.0).round() as i8;
        Self {
            scale: (f64::from(largest) / 127.0 / length) as f32,
            elements: vector.iter().map(code).collect(),
        }
    }
}

/// The vectors of one encoder, with the piece of each.
#[derive(Debug)]
pub(crate) struct VectorIndex {
    length: usize,
    pieces: Vec<i64>,
    scales: Vec<f32>,
    elements: Vec<i8>,
}

impl VectorIndex {
    /// With room for `count` vectors of this length.
    pub(crate) fn new(length: usize, count: usize) -> Self {
        Self {
            length,
            pieces: Vec::with_capacity(count),
            scales: Vec::with_capacity(count),
            elements: Vec::with_capacity(count * length),
        }
    }

    /// Removes the vectors of some pieces.
    pub(crate) fn remove(&mut self, pieces: &HashSet<i64>) {
        let mut kept = 0;
        for from in 0..self.pieces.len() {
            if !pieces.contains(&self.pieces[from]) {
                self.pieces[kept] = self.pieces[from];
                self.scales[kept] = self.scales[from];
                let row = from * self.length..(from + 1) * self.length;
                self.elements.copy_within(row, kept * self.length);
                kept += 1;
            }
        }
        self.pieces.truncate(kept);
        self.scales.truncate(kept);
        self.elements.truncate(kept * self.length);
    }

    pub(crate) fn push(&mut self, piece: i64, scale: f32, elements: impl Iterator<Item = i8>) {
        self.pieces.push(piece);
        self.scales.push(scale);
        let before = self.elements.len();
        self.elements.extend(elements.take(self.length));
        self.elements.resize(before + self.length, 0);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.elements.capacity() + self.scales.capacity() * 4 + self.pieces.capacity() * 8
    }

    /// The pieces whose vectors are the nearest to a query's, the nearest first, of those that are `wanted`, with the cosine. What
    /// has no direction is near nothing.
    pub(crate) fn nearest(
        &self,
        query: &CodedVector,
        count: usize,
        wanted: impl Fn(i64) -> bool,
    ) -> Vec<(i64, f32)> {
        if query.scale == 0.0 {
            return Vec::new();
        }
        let mut best: Vec<(f32, i64)> = Vec::with_capacity(2 * count + 1);
        let mut least = f32::NEG_INFINITY;
        let keep = |best: &mut Vec<(f32, i64)>| {
            best.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            best.truncate(count);
        };
        let rows = self.elements.chunks_exact(self.length.max(1));
        for ((row, scale), &piece) in rows.zip(&self.scales).zip(&self.pieces) {
            let cosine = dot(row, &query.elements) as f32 * scale * query.scale;
            if cosine > least && *scale > 0.0 && wanted(piece) {
                best.push((cosine, piece));
                if best.len() > 2 * count {
                    keep(&mut best);
                    least = best.last().map_or(least, |&(cosine, _)| cosine);
                }
            }
        }
        keep(&mut best);
        best.into_iter()
            .map(|(cosine, piece)| (piece, cosine))
            .collect()
    }
}

/// The sum of products. Up to 2^16 elements it fits.
fn dot(a: &[i8], b: &[i8]) -> i32 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { dot_avx2(a, b) };
    }
    products(a, b)
}

/// The same, compiled for AVX2.
///
/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn dot_avx2(a: &[i8], b: &[i8]) -> i32 {
    products(a, b)
}

#[inline(always)]
fn products(a: &[i8], b: &[i8]) -> i32 {
    let products = a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b));
    products.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers from -1 to 1 by a linear congruence.
    fn vector(seed: u64, length: usize) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    fn cosine(a: &[f32], b: &[f32]) -> f32 {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
    }

    #[test]
    fn the_nearest_are_found_with_their_cosines() {
        let length = 384;
        let vectors: Vec<_> = (0..500).map(|seed| vector(seed, length)).collect();
        let mut index = VectorIndex::new(length, 1);
        for (piece, vector) in (0..).zip(&vectors) {
            let coded = CodedVector::new(vector);
            index.push(piece, coded.scale, coded.elements.into_iter());
        }
        let other = vector(1000, length).into_iter();
        let query = vector(77, length).into_iter().zip(other);
        let query: Vec<f32> = query.map(|(a, b)| a + 0.5 * b).collect();
        let found = index.nearest(&CodedVector::new(&query), 10, |piece| piece != 3);
        assert_eq!(found.len(), 10);
        assert_eq!(found[0].0, 77);
        assert!(found.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        for (piece, found) in found {
            let exact = cosine(&query, &vectors[piece as usize]);
            assert!((found - exact).abs() < 0.005, "{found} for {exact}");
        }
    }

    #[test]
    fn what_has_no_direction_is_near_nothing() {
        for vector in [[0.0; 3], [f32::NAN, 1.0, 0.0], [f32::INFINITY, 1.0, 0.0]] {
            assert_eq!(CodedVector::new(&vector).scale, 0.0);
        }
        let mut index = VectorIndex::new(2, 2);
        for (piece, vector) in [(1, [0.0, 0.0]), (2, [-1.0, -1.0])] {
            let coded = CodedVector::new(&vector);
            index.push(piece, coded.scale, coded.elements.into_iter());
        }
        let nearest = |vector: &[f32]| index.nearest(&CodedVector::new(vector), 5, |_| true);
        assert!(nearest(&[0.0, 0.0]).is_empty());
        assert_eq!(nearest(&[1.0, 1.0])[0].0, 2);
        assert_eq!(nearest(&[1.0, 1.0]).len(), 1);
    }
}
