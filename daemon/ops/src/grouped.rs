//! Matmuls of a mixture of experts: each row is multiplied by the matrix of its expert.

use sluice_weights::Weight;

use crate::{Activation, Backend, Ops, OpsError, Phase};

impl Ops {
    /// `x · expertᵀ` where rows are sorted by expert: those from `offsets[e]` to `offsets[e + 1]` are multiplied by
    /// `experts[e]`, and stay in their order. A row's result is that of [`Ops::linear`] with this row and its expert.
    ///
    /// Where a tensor has the matrices of all experts, one after another, [`Weight::rows`] cuts them out. Experts without rows
    /// are not read. On a GPU the experts are multiplied one after another.
    ///
    /// # Errors
    /// When memory cannot be allocated, or the device fails.
    ///
    /// # Panics
    /// When the offsets don't rise from 0 to the number of rows, with one more of them than there are experts; when there are no
    /// experts, or their shapes or the widths differ.
    pub fn grouped_linear(
        &self,
        x: &Activation,
        experts: &[Weight<'_>],
        offsets: &[usize],
    ) -> Result<Activation, OpsError> {
        let outputs = experts.first().expect("there are experts").rows;
        assert!(
            (experts.iter()).all(|expert| (expert.rows, expert.width) == (outputs, x.width())),
            "the shapes of experts differ, or the widths of rows and weights"
        );
        assert!(
            offsets.len() == experts.len() + 1
                && offsets.is_sorted()
                && (offsets[0], offsets[experts.len()]) == (0, x.len()),
            "the offsets are not those of all experts and rows"
        );
        let _timed = self.timed(Phase::Matmul);
        let mut out = self.pool.take(x.len(), outputs, self.device.dtype())?;
        let groups = (offsets.array_windows().zip(experts))
            .map(|(&[from, to], expert)| (from..to, expert))
            .filter(|(rows, _)| !rows.is_empty());
        match &self.backend {
            Backend::Cpu(cpu) => cpu.gemm_grouped(x, groups, out.values_mut()),
            Backend::Gpu(gpu) => {
                for (rows, expert) in groups {
                    let target = out.rows_span(rows.start, rows.len());
                    gpu.matmul_rows(x, rows, expert, (target, out.dtype()), false)?;
                }
            }
            Backend::DryRun => {}
        }
        Ok(out)
    }
}
