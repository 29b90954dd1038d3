//! Matmuls of rows in groups, each with a matrix of its own: the experts of a mixture.

use std::ops::Range;

use sluice_weights::Weight;

use super::Product;
use crate::{Activation, cpu::CpuBackend};

impl CpuBackend {
    /// Multiplies each group of rows, of which none is empty, by its matrices. All groups' tiles are shared out together: a
    /// tile has fewer weight rows the more rows of `x` its group has, so that no thread waits for one with a large group.
    pub(crate) fn gemm_grouped<'a, const N: usize>(
        &self,
        x: &Activation,
        groups: impl Iterator<Item = (Range<usize>, &'a [Weight<'a>; N])>,
        outs: [&mut Activation; N],
    ) {
        let mut groups = groups.peekable();
        let Some((_, first)) = groups.peek() else {
            return;
        };
        let mut weights = first.iter();
        let outs = outs.map(|out| {
            let weight = weights.next().expect("each output is of a matrix");
            Product::new(weight, out.values_mut(), false).columns(x)
        });
        // Those of the same rows beside each other, since they are packed once.
        let jobs: Vec<_> = groups
            .flat_map(|(rows, weights)| {
                let each = weights.iter().zip(outs);
                each.map(move |(weight, out)| self.job(rows.clone(), weight, out))
            })
            .collect();
        self.work(x, &jobs);
    }
}
