//! The CPU's operations beside a GPU: rows go to the host, and what the CPU makes of them comes back.

use std::sync::Arc;

use sluice_formats::DType;

use crate::{Activation, Backend, Ops, OpsError, Phase, Routing, cpu::CpuBackend, ledger::Ledger};

impl Ops {
    /// Whether nothing is computed, as if on a GPU.
    #[must_use]
    pub fn is_dry_run_of_gpu(&self) -> bool {
        self.device.is_gpu() && matches!(self.backend, Backend::DryRun)
    }

    /// The CPU's operations beside a GPU, on the machine's threads and with a ledger that those of all models share: what they
    /// take is no memory of the GPU's. In a dry run they are one, too.
    ///
    /// # Errors
    /// When memory cannot be allocated.
    pub fn host(&self) -> Result<&Self, OpsError> {
        if let Some(host) = self.host.get() {
            return Ok(host);
        }
        let device = self.device.host();
        let host = match self.ledger.is_dry_run() {
            true => Self::new(device, Ledger::dry_run())?,
            false => {
                let memory = &self.host_memory;
                let scratch = Arc::clone(memory.scratch(device.threads())?);
                let cpu = CpuBackend::with(device.clone(), scratch, None);
                Self::with(device, memory.ledger().clone(), Backend::Cpu(cpu))
            }
        };
        Ok(self.host.get_or_init(|| Box::new(host)))
    }

    /// These rows of `x` in `f32`, where the CPU's operations beside this GPU have them: at most `rows_max` together. The GPU is
    /// waited for.
    ///
    /// # Errors
    /// When memory cannot be allocated, or the device fails.
    pub fn rows_to_host(
        &self,
        x: &Activation,
        rows: &[usize],
        rows_max: usize,
    ) -> Result<Activation, OpsError> {
        let _timed = self.timed(Phase::Other);
        let host = self.host()?;
        let width = x.width();
        let mut out = host.pool.take(rows.len(), width, DType::F32)?;
        for (piece, rows) in rows.chunks(rows_max).enumerate() {
            let part = self.take_rows(x, &self.indices(rows.iter().copied())?)?;
            let wide_rows = if part.dtype() == DType::F32 {
                0
            } else {
                rows.len()
            };
            let wide = self.pool.take(wide_rows, width, DType::F32)?;
            if let Backend::Gpu(gpu) = &self.backend {
                let from = match wide_rows {
                    0 => &part,
                    _ => {
                        gpu.widen(&wide, &part)?;
                        &wide
                    }
                };
                let start = piece * rows_max * width;
                let to = &mut out.values_mut()[start..start + rows.len() * width];
                gpu.download(from.span(), to)?;
            }
        }
        Ok(out)
    }

    /// Adds the rows of `sums`, which the CPU's operations beside this GPU have computed, to these rows of `out`: at most
    /// `rows_max` together.
    ///
    /// # Errors
    /// When memory cannot be allocated, or the device fails.
    ///
    /// # Panics
    /// When there are more or fewer rows, or the widths differ.
    pub fn add_from_host(
        &self,
        out: &mut Activation,
        sums: &Activation,
        rows: &[usize],
        rows_max: usize,
    ) -> Result<(), OpsError> {
        assert_eq!((sums.len(), sums.width()), (rows.len(), out.width()));
        let routing = Routing::of_sums(rows);
        for start in (0..rows.len()).step_by(rows_max) {
            let piece = start..rows.len().min(start + rows_max);
            let uploaded = self.pool.take(piece.len(), out.width(), DType::F32)?;
            if let Backend::Gpu(gpu) = &self.backend {
                let values = piece.start * out.width()..piece.end * out.width();
                gpu.upload(uploaded.span(), &sums.values()[values])?;
            }
            self.add_routed(out, &uploaded, &routing, piece)?;
        }
        Ok(())
    }
}
