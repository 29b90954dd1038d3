//! Matrix products of the `gemm` crate behind checked views. Each call runs on the caller's thread: callers split work
//! into tiles of a fixed size, so that results don't depend on the number of threads.

use gemm::Parallelism;

/// A matrix that borrows its elements: element (row, column) lies at `row · row_stride + column · column_stride`.
#[derive(Clone, Copy)]
pub(crate) struct MatrixView<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> MatrixView<'a, T> {
    /// Rows that lie `row_stride` elements apart, from the slice's start on.
    pub(crate) fn new(data: &'a [T], rows: usize, columns: usize, row_stride: usize) -> Self {
        let view = Self {
            data,
            rows,
            columns,
            row_stride,
            column_stride: 1,
        };
        assert!(view.is_inside(), "a matrix reaches beyond its elements");
        view
    }

    /// The transpose, without a copy.
    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    fn is_inside(&self) -> bool {
        self.rows == 0
            || self.columns == 0
            || (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride
                < self.data.len()
    }
}

/// `out += scale · left · right`; `out` has rows `stride` elements apart.
///
/// # Panics
/// When inner sizes differ or `out` is too short.
pub(crate) fn add_product<T: Copy + From<u8> + 'static>(
    out: &mut [T],
    stride: usize,
    scale: T,
    left: MatrixView<'_, T>,
    right: MatrixView<'_, T>,
) {
    let (m, n, k) = (left.rows, right.columns, left.columns);
    assert_eq!(k, right.rows, "inner sizes of a product differ");
    if m == 0 || n == 0 || k == 0 {
        return;
    }
    assert!(n <= stride && (m - 1) * stride + n <= out.len());
    // SAFETY: views reach no further than their slices (`MatrixView::new`; transposing keeps that), and the assertion
    // above says the same of `out`, which is borrowed mutably and so overlaps neither. Strides fit, since slices are
    // shorter than `isize::MAX`. `gemm` has kernels for the two types that callers use, and panics for others.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            stride as isize,
            true,
            left.data.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.data.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            T::from(1),
            scale,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_three_loops() {
        let (m, n, k) = (5, 7, 9);
        let left: Vec<f64> = (0..m * k).map(|at| (at % 11) as f64 - 4.).collect();
        let right: Vec<f64> = (0..n * k).map(|at| (at % 13) as f64 - 6.).collect();
        let mut out = vec![1.; m * (n + 2)];
        let left_view = MatrixView::new(&left, m, k, k);
        // The right matrix is stored as its transpose.
        let right_view = MatrixView::new(&right, n, k, k).transposed();
        add_product(&mut out, n + 2, -2., left_view, right_view);

        for row in 0..m {
            for column in 0..n + 2 {
                let sum: f64 = (0..k)
                    .filter(|_| column < n)
                    .map(|at| left[row * k + at] * right[column.min(n - 1) * k + at])
                    .sum();
                assert_eq!(out[row * (n + 2) + column], 1. - 2. * sum);
            }
        }
    }

    #[test]
    #[should_panic(expected = "beyond")]
    fn a_view_that_is_too_long_is_refused() {
        MatrixView::new(&[0_f32; 5], 2, 3, 3);
    }
}
