//! Solves with a factor: B (C Cᵀ)⁻¹ for many rows B.

use rayon::prelude::*;

use super::{Factor, PANEL, inverse_lower};
use crate::matmul::{MatrixView, add_product};

/// Rows that a thread solves at a time: enough of them that upcasting the factor takes little of the time.
const ROWS: usize = 128;

impl Factor {
    /// Replaces each row b, of as many elements as there are inputs, by b (H + damping)⁻¹.
    ///
    /// # Panics
    /// When the elements are not whole rows.
    pub fn solve_rows(&self, rows: &mut [f32]) {
        let width = self.width;
        assert!(rows.len().is_multiple_of(width), "not whole rows");
        let inverses: Vec<Vec<f64>> = (0..width)
            .into_par_iter()
            .step_by(PANEL)
            .map(|start| {
                let count = PANEL.min(width - start);
                inverse_lower(&self.part(start, count, start, count), count)
            })
            .collect();
        rows.par_chunks_mut(ROWS * width).for_each(|rows| {
            let mut solved: Vec<f64> = rows.iter().map(|value| f64::from(*value)).collect();
            // y Cᵀ = b, from the first panel to the last.
            for (panel, inverse) in inverses.iter().enumerate() {
                for before in 0..panel {
                    self.subtract(&mut solved, before, panel, (panel, before), true);
                }
                self.divide(&mut solved, panel, inverse, true);
            }
            // x C = y, from the last panel to the first.
            for (panel, inverse) in inverses.iter().enumerate().rev() {
                for after in panel + 1..inverses.len() {
                    self.subtract(&mut solved, after, panel, (after, panel), false);
                }
                self.divide(&mut solved, panel, inverse, false);
            }
            for (value, solved) in rows.iter_mut().zip(solved) {
                *value = solved as f32;
            }
        });
    }

    /// (H + damping)⁻¹, row-major, `width × width`.
    #[must_use]
    pub fn inverse(&self) -> Vec<f32> {
        let mut rows = vec![0.; self.width * self.width];
        rows.iter_mut()
            .step_by(self.width + 1)
            .for_each(|value| *value = 1.);
        self.solve_rows(&mut rows);
        rows
    }

    /// Takes the columns of panel `from`, times a part of C or of its transpose, out of panel `to`.
    fn subtract(
        &self,
        solved: &mut [f64],
        from: usize,
        to: usize,
        (row, column): (usize, usize),
        transposed: bool,
    ) {
        let (width, size) = (self.width, |panel| self.panel_size(panel));
        let height = solved.len() / width;
        let part = self.part(row * PANEL, size(row), column * PANEL, size(column));
        let part = MatrixView::new(&part, size(row), size(column), size(column));
        let part = if transposed { part.transposed() } else { part };
        // Copied, since both panels lie in the same rows.
        let source: Vec<f64> = solved
            .chunks_exact(width)
            .flat_map(|line| &line[from * PANEL..][..size(from)])
            .copied()
            .collect();
        let source = MatrixView::new(&source, height, size(from), size(from));
        add_product(&mut solved[to * PANEL..], width, -1., source, part);
    }

    /// Multiplies a panel's columns by the inverse of its diagonal part.
    fn divide(&self, solved: &mut [f64], panel: usize, inverse: &[f64], transposed: bool) {
        let (width, size) = (self.width, self.panel_size(panel));
        let inverse = MatrixView::new(inverse, size, size, size);
        let inverse = if transposed {
            inverse.transposed()
        } else {
            inverse
        };
        let source: Vec<f64> = solved
            .chunks_exact_mut(width)
            .flat_map(|line| {
                let part = &mut line[panel * PANEL..][..size];
                let copy = part.to_vec();
                part.fill(0.);
                copy
            })
            .collect();
        let source = MatrixView::new(&source, source.len() / size, size, size);
        add_product(&mut solved[panel * PANEL..], width, 1., source, inverse);
    }

    fn panel_size(&self, panel: usize) -> usize {
        PANEL.min(self.width - panel * PANEL)
    }

    fn part(&self, row: usize, rows: usize, column: usize, columns: usize) -> Vec<f64> {
        let lines = self.lower[row * self.width..].chunks_exact(self.width);
        lines
            .take(rows)
            .flat_map(|line| line[column..column + columns].iter().map(|v| f64::from(*v)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        moments::Moments,
        testing::{correlated, gaussians},
    };

    #[test]
    fn a_solution_times_the_matrix_is_what_was_asked() {
        let (width, rows) = (2 * PANEL + 19, ROWS + 3);
        let mut moments = Moments::new(width, true);
        moments.add(&correlated(1, 500, width)).unwrap();
        let moments = moments.second_moments().unwrap();
        let factor = Factor::new(&moments, 1e-2).unwrap();
        let asked = gaussians(9, rows * width);
        let mut solved = asked.clone();
        factor.solve_rows(&mut solved);

        for row in [0, 5, ROWS + 2] {
            for column in (0..width).step_by(13) {
                let sum: f64 = (0..width)
                    .map(|at| {
                        let moment = f64::from(moments.values()[at * width + column]);
                        let added = if at == column { factor.added() } else { 0. };
                        f64::from(solved[row * width + at]) * (moment + added)
                    })
                    .sum();
                assert!((sum - f64::from(asked[row * width + column])).abs() < 1e-3);
            }
        }
    }
}
