//! Matmuls of a mixture of experts: each row is multiplied by the matrix of its expert.

use sluice_weights::Weight;

use crate::{
    Activation, Backend, Ops, OpsError, Phase, all,
    gpu::{ExpertTasks, task_words},
};

impl Ops {
    /// `x · expertᵀ` where rows are sorted by expert: those from `offsets[e]` to `offsets[e + 1]` are multiplied by
    /// `experts[e]`, and stay in their order. On the CPU a row's result is that of [`Ops::linear`] with this row and its expert.
    ///
    /// Where a tensor has the matrices of all experts, one after another, [`Weight::rows`] cuts them out. Experts without rows
    /// are not read. On a GPU two launches multiply all of them, but for those that have to be decompressed first; it chooses
    /// kernels by the number of an expert's rows and of all rows of the pass, `pass_rows`, so that the choice does not depend
    /// on which experts are multiplied together.
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
        pass_rows: usize,
    ) -> Result<Activation, OpsError> {
        let (experts, _) = experts.as_chunks::<1>();
        let [out] = self.grouped_linear_each(x, experts, offsets, pass_rows)?;
        Ok(out)
    }

    /// [`Ops::grouped_linear`] with several matrices of each expert, which on the CPU are multiplied in one go.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn grouped_linear_each<const N: usize>(
        &self,
        x: &Activation,
        experts: &[[Weight<'_>; N]],
        offsets: &[usize],
        pass_rows: usize,
    ) -> Result<[Activation; N], OpsError> {
        let first = experts.first().expect("there are experts");
        let outputs = first.map(|weight| weight.rows);
        let has_shape = |expert: &[Weight<'_>; N]| {
            let widths = expert.iter().all(|weight| weight.width == x.width());
            widths && expert.map(|weight| weight.rows) == outputs
        };
        assert!(
            experts.iter().all(has_shape),
            "the shapes of experts differ, or the widths of rows and weights"
        );
        assert!(
            offsets.len() == experts.len() + 1
                && offsets.is_sorted()
                && (offsets[0], offsets[experts.len()]) == (0, x.len()),
            "the offsets are not those of all experts and rows"
        );
        let _timed = self.timed(Phase::Matmul);
        let take = |outputs| self.pool.take(x.len(), outputs, self.device.dtype());
        let mut outs = all(outputs.map(take))?;
        let groups = (offsets.array_windows().zip(experts))
            .map(|(&[from, to], expert)| (from..to, expert))
            .filter(|(rows, _)| !rows.is_empty());
        match &self.backend {
            Backend::Cpu(cpu) => cpu.gemm_grouped(x, groups, outs.each_mut()),
            Backend::Gpu(gpu) => {
                for (index, out) in outs.iter().enumerate() {
                    let of_matrix = groups.clone().map(|(rows, each)| (rows, &each[index]));
                    let (tasks, others) = ExpertTasks::new(x, of_matrix, pass_rows);
                    let uploaded = self.indices_in(task_words(x.len()), tasks.words())?;
                    gpu.matmul_grouped(x, &tasks, &uploaded, out)?;
                    for (rows, weight) in others {
                        let target = out.rows_span(rows.start, rows.len());
                        gpu.matmul_rows(x, rows, weight, (target, out.dtype()), false)?;
                    }
                }
            }
            // The memory of the GPU's tasks.
            Backend::DryRun if self.device.is_gpu() => {
                drop(self.indices_in(task_words(x.len()), None)?);
            }
            Backend::DryRun => {}
        }
        Ok(outs)
    }
}
