//! The sums that statistics consist of, for files: row by row, since a whole matrix takes gigabytes.

use super::{EDGE, Moments, MomentsError, Products, ROWS, edge};

impl Moments {
    /// Statistics of so many rows with these sums; `full` makes room for the products, which
    /// [`Moments::set_products_row`] fills.
    ///
    /// # Errors
    /// When the sums don't have one length, or one isn't finite.
    pub fn from_sums(
        rows: u64,
        sums: Vec<f64>,
        squares: Vec<f64>,
        full: bool,
    ) -> Result<Self, MomentsError> {
        if sums.len() != squares.len() {
            return Err(MomentsError::Shapes);
        }
        let each = sums.iter().zip(&squares);
        if let Some(column) = each
            .clone()
            .position(|(sum, square)| !sum.is_finite() || !square.is_finite())
        {
            return Err(MomentsError::NotFinite { row: 0, column });
        }
        Ok(Self {
            rows,
            weight: rows as f64,
            sums: sums.clone(),
            squares,
            ..Self::new(sums.len(), full)
        })
    }

    /// Σ x, one for each input.
    #[must_use]
    pub fn sums(&self) -> &[f64] {
        &self.sums
    }

    /// Σ x², one for each input.
    #[must_use]
    pub fn squares(&self) -> &[f64] {
        &self.squares
    }

    /// Whether the whole matrix was collected.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.products.is_some()
    }

    /// Copies a row of the lower triangle of Σ x xᵀ, up to the diagonal: `row + 1` elements. Without the matrix `out`
    /// stays as it is.
    ///
    /// # Panics
    /// When `out` has another length.
    pub fn copy_products_row(&mut self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), row + 1, "a row up to the diagonal");
        let width = self.width;
        if let Some(products) = &mut self.products {
            products.flush(width);
            products.each_part(width, row, |columns, part| {
                out[columns].copy_from_slice(part);
            });
        }
    }

    /// Sets such a row.
    ///
    /// # Errors
    /// When an element isn't finite; nothing is set then.
    ///
    /// # Panics
    /// When `values` has another length.
    pub fn set_products_row(&mut self, row: usize, values: &[f32]) -> Result<(), MomentsError> {
        assert_eq!(values.len(), row + 1, "a row up to the diagonal");
        if let Some(column) = values.iter().position(|value| !value.is_finite()) {
            return Err(MomentsError::NotFinite { row, column });
        }
        let width = self.width;
        if let Some(products) = &mut self.products {
            products.each_part(width, row, |columns, part| {
                part.copy_from_slice(&values[columns]);
            });
            // Tiles on the diagonal are whole: the other half of them is the same.
            let first = row / EDGE * EDGE;
            let tile = products.tile(row / EDGE, row / EDGE);
            let tile_width = edge(width, row / EDGE);
            for column in first..row {
                tile[(column - first) * tile_width + row - first] = values[column];
            }
        }
        Ok(())
    }

    /// Bytes that statistics of this width take at most.
    #[must_use]
    pub fn bytes_of(width: usize, full: bool) -> u64 {
        let (width, edge) = (width as u64, EDGE.min(width) as u64);
        let products = match full {
            // The tiles of the triangle, and rows that wait for their product.
            true => (width * (width + edge) / 2 + ROWS as u64 * width) * size_of::<f32>() as u64,
            false => 0,
        };
        2 * width * size_of::<f64>() as u64 + products
    }
}

impl Products {
    fn tile(&mut self, row: usize, column: usize) -> &mut [f32] {
        &mut self.tiles[row * (row + 1) / 2 + column]
    }

    /// Calls `with` for the parts of a row of the triangle, with the columns of each.
    fn each_part(
        &mut self,
        width: usize,
        row: usize,
        mut with: impl FnMut(std::ops::Range<usize>, &mut [f32]),
    ) {
        let (tile_row, inside) = (row / EDGE, row % EDGE);
        for tile_column in 0..=tile_row {
            let first = tile_column * EDGE;
            let tile_width = edge(width, tile_column);
            let end = (first + tile_width).min(row + 1);
            let line = &mut self.tile(tile_row, tile_column)[inside * tile_width..];
            with(first..end, &mut line[..end - first]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gaussians;

    #[test]
    fn statistics_are_the_same_after_a_way_through_their_parts() {
        // More than one tile, and rows that wait.
        let width = EDGE + 7;
        let inputs = gaussians(1, (ROWS + 3) * width);
        let mut moments = Moments::new(width, true);
        moments.add(&inputs).unwrap();
        let (sums, squares) = (moments.sums().to_vec(), moments.squares().to_vec());
        let mut again = Moments::from_sums(moments.rows(), sums, squares, true).unwrap();
        for row in 0..width {
            let mut values = vec![0.0; row + 1];
            moments.copy_products_row(row, &mut values);
            again.set_products_row(row, &values).unwrap();
        }
        assert_eq!(again.second_moments(), moments.second_moments());
        assert_eq!(again.means(), moments.means());
        // Both halves of the tiles on the diagonal: rows that are added later find them.
        again.add(&inputs).unwrap();
        moments.add(&inputs).unwrap();
        assert_eq!(again.second_moments(), moments.second_moments());
        assert!(Moments::bytes_of(width, true) >= moments.bytes() as u64);
        assert!(!Moments::new(width, false).is_full() && again.is_full());
    }

    #[test]
    fn sums_that_can_not_be_are_refused() {
        let from = |sums: &[f64], squares: &[f64]| {
            Moments::from_sums(1, sums.to_vec(), squares.to_vec(), true).err()
        };
        assert_eq!(from(&[0.0], &[0.0]), None);
        assert_eq!(from(&[0.0], &[0.0, 1.0]), Some(MomentsError::Shapes));
        let infinite = from(&[0.0, 1.0], &[0.0, f64::INFINITY]);
        assert_eq!(
            infinite,
            Some(MomentsError::NotFinite { row: 0, column: 1 })
        );
        let mut moments = Moments::new(2, true);
        assert!(moments.set_products_row(1, &[0.0, f32::NAN]).is_err());
    }
}
