//! The comparison of two LM heads on a GPU.

use sluice_cuda as cuda;
use sluice_cuda::{Gpu, GpuSpan};
use sluice_formats::DType;
use sluice_machine::MemoryKind;
use sluice_weights::Weight;

use super::{ComparisonRow, ComparisonSide};
use crate::{
    Activation, OpsError,
    device::{Device, DeviceBuffer},
    gpu::GpuBackend,
    ledger::Ledger,
};

/// The states of rows during a comparison of two LM heads.
pub(super) struct GpuComparison {
    gpu: Gpu,
    states: DeviceBuffer<cuda::CompareState>,
    target_ids: DeviceBuffer<u32>,
    targets: Vec<u32>,
}

impl GpuComparison {
    pub(super) fn read(&self) -> Result<Vec<ComparisonRow>, OpsError> {
        let mut states = vec![cuda::CompareState::START; self.targets.len()];
        self.gpu
            .download(self.states.span(), bytemuck::cast_slice_mut(&mut states))?;
        let rows = states
            .iter()
            .zip(&self.targets)
            .map(|(state, &target)| ComparisonRow {
                target,
                sides: [0, 1].map(|side| ComparisonSide {
                    max: state.max[side],
                    top: state.top[side] as usize,
                    sum: state.sum[side],
                    target: state.target[side],
                }),
                difference: state.difference,
            });
        Ok(rows.collect())
    }
}

impl GpuBackend {
    pub(super) fn start_comparison(
        &self,
        targets: &[u32],
        device: &Device,
        ledger: &Ledger,
    ) -> Result<GpuComparison, OpsError> {
        let comparison = GpuComparison {
            gpu: self.gpu.clone(),
            states: DeviceBuffer::new(device, ledger, MemoryKind::Logits, targets.len())?,
            target_ids: DeviceBuffer::new(device, ledger, MemoryKind::Logits, targets.len())?,
            targets: targets.to_vec(),
        };
        // Memory of a GPU begins with arbitrary contents.
        let start = vec![cuda::CompareState::START; targets.len()];
        self.upload(comparison.states.span(), &start)?;
        self.upload(comparison.target_ids.span(), targets)?;
        Ok(comparison)
    }

    pub(super) fn compare_lm_heads(
        &self,
        comparison: &GpuComparison,
        logits: [GpuSpan; 2],
        x: [&Activation; 2],
        pieces: &[Weight<'_>; 2],
        first: usize,
    ) -> Result<(), OpsError> {
        let columns = pieces[0].rows;
        let bytes = x[0].len() * columns * size_of::<f32>();
        let logits = logits.map(|logits| logits.part(0, bytes));
        for side in 0..2 {
            self.matmul(x[side], &pieces[side], logits[side], DType::F32, false)?;
        }
        Ok(self.gpu.reduce_comparison(
            comparison.states.span(),
            logits[0],
            logits[1],
            comparison.target_ids.span(),
            comparison.targets.len(),
            columns,
            first,
        )?)
    }
}
