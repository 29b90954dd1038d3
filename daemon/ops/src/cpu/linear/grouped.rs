//! Matmuls of rows in groups, each with a matrix of its own: the experts of a mixture.

use std::ops::Range;

use sluice_weights::Weight;

use super::Product;
use crate::{Activation, cpu::CpuBackend};

impl CpuBackend {
    /// Multiplies each group of rows, of which none is empty, by its matrix. All groups' tiles are shared out together: a
    /// tile has fewer weight rows the more rows of `x` its group has, so that no thread waits for one with a large group.
    pub(crate) fn gemm_grouped<'a>(
        &self,
        x: &Activation,
        groups: impl Iterator<Item = (Range<usize>, &'a Weight<'a>)>,
        out: &mut [f32],
    ) {
        let mut groups = groups.peekable();
        let Some((_, first)) = groups.peek() else {
            return;
        };
        let out = Product::new(first, out, false).columns(x);
        let jobs: Vec<_> = groups
            .map(|(rows, weight)| self.job(rows, weight, out))
            .collect();
        self.work(x, &jobs);
    }
}
