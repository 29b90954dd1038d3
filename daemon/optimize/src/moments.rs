//! Statistics of a linear layer's inputs: means, mean squares and, on request, the whole second-moment matrix
//! E\[x xᵀ\], which error feedback (GPTQ, arXiv 2210.17323) and compensated pruning need.
//!
//! Positions of different kinds, such as masked and clean ones of a diffusion model, are collected in separate
//! [`Moments`] and merged with a weight afterwards.

mod parts;

use rayon::prelude::*;
use thiserror::Error;

use crate::matmul::{MatrixView, add_product};

/// Rows that become one product: deep enough that a tile of sums is read and written seldom.
const ROWS: usize = 256;
/// Edge of the tiles that the lower triangle of products is stored in.
const EDGE: usize = 512;

/// Why inputs can't be added, merged or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MomentsError {
    /// The elements are not whole rows.
    #[error("{elements} elements are not whole rows of {width}")]
    NotWholeRows {
        /// Elements that were given.
        elements: usize,
        /// Elements of a row.
        width: usize,
    },
    /// An input is infinite or NaN.
    #[error("input {column} of row {row} is infinite or NaN")]
    NotFinite {
        /// Row among those that were given.
        row: usize,
        /// Input of the layer.
        column: usize,
    },
    /// Statistics of different layers, or with and without the whole matrix, can't be merged.
    #[error("statistics of different shapes can't be merged")]
    Shapes,
    /// A weight must be finite and not negative.
    #[error("a weight must be finite and not negative")]
    Weight,
}

/// Sums over the inputs of one linear layer.
#[derive(Clone, Debug)]
pub struct Moments {
    width: usize,
    rows: u64,
    /// Rows times the weights that they were merged with.
    weight: f64,
    sums: Vec<f64>,
    squares: Vec<f64>,
    products: Option<Products>,
}

/// The lower triangle of Σ x xᵀ, in tiles, and rows that aren't part of it yet.
#[derive(Clone, Debug)]
struct Products {
    /// Row-major tiles: those of the first row of tiles, then of the second, up to the diagonal.
    ///
    /// `f32` is enough: each addition brings the products of up to [`ROWS`] rows, so of 100,000 rows there are 400
    /// additions, which lose about a millionth.
    tiles: Vec<Vec<f32>>,
    pending: Vec<f32>,
}

impl Moments {
    /// Statistics without a row; `full` collects the whole second-moment matrix, not only its diagonal.
    #[must_use]
    pub fn new(width: usize, full: bool) -> Self {
        let edges = width.div_ceil(EDGE);
        let tile = |row: usize, column: usize| vec![0.; edge(width, row) * edge(width, column)];
        Self {
            width,
            rows: 0,
            weight: 0.,
            sums: vec![0.; width],
            squares: vec![0.; width],
            products: full.then(|| Products {
                tiles: (0..edges)
                    .flat_map(|row| (0..=row).map(move |column| tile(row, column)))
                    .collect(),
                pending: Vec::new(),
            }),
        }
    }

    /// Adds rows of inputs, one after another in `rows`. The result doesn't depend on how rows are split into calls.
    ///
    /// # Errors
    /// When the elements are not whole rows, or one isn't finite; nothing is added then.
    pub fn add(&mut self, rows: &[f32]) -> Result<(), MomentsError> {
        let width = self.width;
        if !rows.len().is_multiple_of(width.max(1)) || width == 0 && !rows.is_empty() {
            let elements = rows.len();
            return Err(MomentsError::NotWholeRows { elements, width });
        }
        if let Some(at) = rows.iter().position(|value| !value.is_finite()) {
            let (row, column) = (at / width, at % width);
            return Err(MomentsError::NotFinite { row, column });
        }
        for row in rows.chunks_exact(width.max(1)) {
            let sums = self.sums.iter_mut().zip(&mut self.squares);
            for ((sum, square), &value) in sums.zip(row) {
                let value = f64::from(value);
                *sum += value;
                *square += value * value;
            }
            self.rows += 1;
            self.weight += 1.;
        }
        if let Some(products) = &mut self.products {
            products.add(width, rows);
        }
        Ok(())
    }

    /// Adds another layer's share of the same statistics, each of its rows counted `weight` times.
    ///
    /// # Errors
    /// When widths differ, only one has the whole matrix, or the weight is negative or not finite.
    pub fn merge(&mut self, mut other: Self, weight: f64) -> Result<(), MomentsError> {
        if !(weight.is_finite() && weight >= 0.) {
            return Err(MomentsError::Weight);
        }
        if self.width != other.width || self.products.is_some() != other.products.is_some() {
            return Err(MomentsError::Shapes);
        }
        let add = |own: &mut [f64], other: &[f64]| {
            for (own, other) in own.iter_mut().zip(other) {
                *own += weight * other;
            }
        };
        add(&mut self.sums, &other.sums);
        add(&mut self.squares, &other.squares);
        self.rows += other.rows;
        self.weight += weight * other.weight;
        if let (Some(own), Some(other)) = (&mut self.products, &mut other.products) {
            own.flush(self.width);
            other.flush(self.width);
            let tiles = own.tiles.par_iter_mut().zip(&other.tiles);
            tiles.for_each(|(own, other)| {
                for (own, other) in own.iter_mut().zip(other) {
                    *own += weight as f32 * other;
                }
            });
        }
        Ok(())
    }

    /// Inputs of the layer.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows that were added, whatever their weights.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// E\[x\], one for each input; zeros if nothing was added.
    #[must_use]
    pub fn means(&self) -> Vec<f64> {
        self.averages(&self.sums)
    }

    /// E\[x²\], one for each input: the diagonal of the second-moment matrix.
    #[must_use]
    pub fn mean_squares(&self) -> Vec<f64> {
        self.averages(&self.squares)
    }

    /// The fluctuation Var(x) of each input, as FLAP (arXiv 2312.11983) uses it.
    #[must_use]
    pub fn variances(&self) -> Vec<f64> {
        let both = self.means().into_iter().zip(self.mean_squares());
        both.map(|(mean, square)| (square - mean * mean).max(0.))
            .collect()
    }

    /// E\[x xᵀ\], not centred; `None` if only the diagonal was collected. Takes `4 · width²` bytes.
    #[must_use]
    pub fn second_moments(&mut self) -> Option<SecondMoments> {
        let (width, scale) = (self.width, self.scale() as f32);
        let products = self.products.as_mut()?;
        products.flush(width);
        let mut values = vec![0.; width * width];
        for (at, tile) in products.tiles.iter().enumerate() {
            let (row, column) = tile_place(at);
            let tile_width = edge(width, column);
            for (y, line) in tile.chunks_exact(tile_width).enumerate() {
                for (x, value) in line.iter().enumerate() {
                    let (y, x) = (row * EDGE + y, column * EDGE + x);
                    values[y * width + x] = value * scale;
                    values[x * width + y] = value * scale;
                }
            }
        }
        Some(SecondMoments { width, values })
    }

    /// Bytes that these statistics hold.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let products = self.products.as_ref().map_or(0, |products| {
            let tiles: usize = products.tiles.iter().map(Vec::len).sum();
            (tiles + products.pending.capacity()) * size_of::<f32>()
        });
        (self.sums.len() + self.squares.len()) * size_of::<f64>() + products
    }

    fn scale(&self) -> f64 {
        if self.weight > 0. {
            1. / self.weight
        } else {
            0.
        }
    }

    fn averages(&self, sums: &[f64]) -> Vec<f64> {
        sums.iter().map(|sum| sum * self.scale()).collect()
    }
}

impl Products {
    /// Whole blocks of rows are multiplied at once; what is left waits for more.
    fn add(&mut self, width: usize, rows: &[f32]) {
        let block = ROWS * width;
        let mut rest = rows;
        while !rest.is_empty() {
            if self.pending.is_empty() && rest.len() >= block {
                let (whole, after) = rest.split_at(block);
                self.multiply(width, whole);
                rest = after;
            } else {
                let (part, after) = rest.split_at(rest.len().min(block - self.pending.len()));
                self.pending.extend_from_slice(part);
                rest = after;
                if self.pending.len() == block {
                    self.flush(width);
                }
            }
        }
    }

    fn flush(&mut self, width: usize) {
        let pending = std::mem::take(&mut self.pending);
        self.multiply(width, &pending);
        self.pending = pending;
        self.pending.clear();
    }

    /// A symmetric rank-k update: tiles are independent, so threads share them.
    fn multiply(&mut self, width: usize, rows: &[f32]) {
        let count = rows.len() / width.max(1);
        if count == 0 {
            return;
        }
        let part =
            |tile: usize| MatrixView::new(&rows[tile * EDGE..], count, edge(width, tile), width);
        self.tiles
            .par_iter_mut()
            .enumerate()
            .for_each(|(at, tile)| {
                let (row, column) = tile_place(at);
                let tile_width = edge(width, column);
                add_product(tile, tile_width, 1., part(row).transposed(), part(column));
            });
    }
}

/// Rows or columns of a tile.
fn edge(width: usize, tile: usize) -> usize {
    EDGE.min(width - tile * EDGE)
}

/// Row and column of a tile in the lower triangle.
fn tile_place(at: usize) -> (usize, usize) {
    let mut row = 0;
    while (row + 1) * (row + 2) / 2 <= at {
        row += 1;
    }
    (row, at - row * (row + 1) / 2)
}

/// E\[x xᵀ\] of a layer's inputs: symmetric, `width × width`, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct SecondMoments {
    width: usize,
    values: Vec<f32>,
}

impl SecondMoments {
    /// Takes a symmetric matrix, row-major; only its lower triangle is read.
    ///
    /// # Errors
    /// When it isn't square or an element isn't finite.
    pub fn new(width: usize, values: Vec<f32>) -> Result<Self, MomentsError> {
        let elements = values.len();
        if width.checked_mul(width) != Some(elements) {
            return Err(MomentsError::NotWholeRows { elements, width });
        }
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            let (row, column) = (at / width, at % width);
            return Err(MomentsError::NotFinite { row, column });
        }
        Ok(Self { width, values })
    }

    /// Inputs of the layer.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// All elements, row-major.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// E\[x²\] of each input.
    #[must_use]
    pub fn diagonal(&self) -> Vec<f32> {
        let step = self.width + 1;
        self.values.iter().step_by(step).copied().collect()
    }

    /// The rows and columns of some inputs alone.
    ///
    /// # Panics
    /// When an input is out of range.
    #[must_use]
    pub fn select(&self, inputs: &[usize]) -> Self {
        let values = inputs.iter().flat_map(|&row| {
            let row = &self.values[row * self.width..][..self.width];
            inputs.iter().map(|&column| row[column])
        });
        Self {
            width: inputs.len(),
            values: values.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gaussians;

    #[test]
    fn moments_are_those_of_the_definition() {
        // More than one tile, and more than one block of rows.
        let (width, rows) = (EDGE + 5, ROWS + 9);
        let inputs = gaussians(1, rows * width);
        let mut moments = Moments::new(width, true);
        moments.add(&inputs).unwrap();
        let second = moments.second_moments().unwrap();

        let at = |row: usize, column: usize| f64::from(inputs[row * width + column]);
        for (i, j) in [
            (0, 0),
            (3, 1),
            (EDGE, 2),
            (EDGE + 4, EDGE + 4),
            (1, EDGE + 2),
        ] {
            let sum: f64 = (0..rows).map(|row| at(row, i) * at(row, j)).sum();
            let found = f64::from(second.values()[i * width + j]);
            assert!((found - sum / rows as f64).abs() < 1e-5);
        }
        let mean: f64 = (0..rows).map(|row| at(row, 7)).sum::<f64>() / rows as f64;
        assert!((moments.means()[7] - mean).abs() < 1e-12);
        let square = f64::from(second.diagonal()[7]);
        assert!((moments.mean_squares()[7] - square).abs() < 1e-5);
        assert!((moments.variances()[7] - (square - mean * mean)).abs() < 1e-5);
        assert!(moments.bytes() > 4 * width * width / 2);
    }

    #[test]
    fn calls_may_split_rows_anywhere() {
        let width = 20;
        let inputs = gaussians(2, 700 * width);
        let mut whole = Moments::new(width, true);
        whole.add(&inputs).unwrap();
        let mut parts = Moments::new(width, true);
        for part in inputs.chunks(37 * width) {
            parts.add(part).unwrap();
        }

        assert_eq!(whole.second_moments(), parts.second_moments());
        assert_eq!(whole.means(), parts.means());
    }

    #[test]
    fn merged_rows_count_as_often_as_their_weight() {
        let width = 6;
        let (masked, clean) = (gaussians(3, 50 * width), gaussians(4, 70 * width));
        let of = |rows: &[&[f32]]| {
            let mut moments = Moments::new(width, true);
            rows.iter().for_each(|rows| moments.add(rows).unwrap());
            moments
        };
        let mut merged = of(&[&clean]);
        merged.merge(of(&[&masked]), 3.).unwrap();
        let mut expected = of(&[&clean, &masked, &masked, &masked]);

        assert_eq!(merged.rows(), 120);
        let both = [&mut merged, &mut expected].map(|one| one.second_moments().unwrap());
        let pairs = both[0].values().iter().zip(both[1].values());
        assert!(pairs.clone().all(|(one, other)| (one - other).abs() < 1e-5));
        assert!((merged.means()[0] - expected.means()[0]).abs() < 1e-12);
        assert_eq!(
            merged.merge(Moments::new(7, true), 1.),
            Err(MomentsError::Shapes)
        );
        assert_eq!(
            merged.merge(Moments::new(6, true), f64::NAN),
            Err(MomentsError::Weight)
        );
    }

    #[test]
    fn what_is_not_finite_is_refused_and_changes_nothing() {
        let mut moments = Moments::new(3, false);
        let found = moments.add(&[0., 1., 2., 0., f32::NAN, 2.]);
        assert_eq!(found, Err(MomentsError::NotFinite { row: 1, column: 1 }));
        assert!(moments.add(&[1.; 4]).is_err());
        assert_eq!((moments.rows(), moments.means()), (0, vec![0.; 3]));
        assert_eq!(moments.second_moments(), None);
    }
}
