//! The comparison of two heads on a GPU.

use sluice_cuda as cuda;
use sluice_cuda::{Gpu, Number, Span};
use sluice_machine::Kind;
use sluice_weights::Weight;

use super::{Row, Side};
use crate::{
    Activation, OpsError,
    device::{Device, DeviceBuffer},
    gpu::Card,
    ledger::Ledger,
};

/// The states of rows on their way through two heads.
pub(super) struct CardComparison {
    gpu: Gpu,
    states: DeviceBuffer<cuda::CompareState>,
    on_card: DeviceBuffer<u32>,
    targets: Vec<u32>,
}

impl CardComparison {
    pub(super) fn read(&self) -> Result<Vec<Row>, OpsError> {
        let mut states = vec![cuda::CompareState::START; self.targets.len()];
        self.gpu
            .download(self.states.span(), bytemuck::cast_slice_mut(&mut states))?;
        let rows = states
            .iter()
            .zip(&self.targets)
            .map(|(state, &target)| Row {
                target,
                sides: [0, 1].map(|side| Side {
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

impl Card {
    pub(super) fn start_comparison(
        &self,
        targets: &[u32],
        device: &Device,
        ledger: &Ledger,
    ) -> Result<CardComparison, OpsError> {
        let comparison = CardComparison {
            gpu: self.gpu.clone(),
            states: DeviceBuffer::new(device, ledger, Kind::Head, targets.len())?,
            on_card: DeviceBuffer::new(device, ledger, Kind::Head, targets.len())?,
            targets: targets.to_vec(),
        };
        let start = vec![cuda::CompareState::START; targets.len()];
        self.upload(comparison.states.span(), &start)?;
        self.upload(comparison.on_card.span(), targets)?;
        Ok(comparison)
    }

    pub(super) fn compare_heads(
        &self,
        comparison: &CardComparison,
        logits: [Span; 2],
        x: [&Activation; 2],
        pieces: &[Weight<'_>; 2],
        first: usize,
    ) -> Result<(), OpsError> {
        let columns = pieces[0].rows;
        let bytes = x[0].len() * columns * size_of::<f32>();
        let logits = logits.map(|logits| logits.part(0, bytes));
        for side in 0..2 {
            self.multiply(x[side], &pieces[side], logits[side], Number::F32, false)?;
        }
        Ok(self.gpu.compare_reduce(
            comparison.states.span(),
            logits[0],
            logits[1],
            comparison.on_card.span(),
            comparison.targets.len(),
            columns,
            first,
        )?)
    }
}
