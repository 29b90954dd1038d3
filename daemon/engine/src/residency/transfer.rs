//! What is the same for all device memory that a thread fills while passes run: filling it, from files or over the link
//! to a GPU, handing it over, and the times that this took.
//!
//! On a GPU memory is handed over as soon as its copy is sent, and comes back as soon as the work on it is sent: marks
//! in the GPU's streams keep the two apart, and neither thread waits for the GPU.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use sluice_cuda::{CudaError, Gpu, StreamMark};
use sluice_machine::page::Page;
use sluice_ops::device::DeviceBuffer;
use sluice_weights::WeightGroupPlan;

use super::{
    link::{BroughtGroup, CopyMarks, GpuLink},
    reader::WeightReader,
    stats::StreamStats,
};
use crate::error::EngineError;

/// Device memory that may be filled; on a GPU, after this mark.
#[derive(Debug)]
pub(super) struct FreeBuffer {
    pub(super) memory: DeviceBuffer<Page>,
    /// Stands behind the work that used it; `None` where none has.
    pub(super) used: Option<Arc<StreamMark>>,
}

impl FreeBuffer {
    /// Memory that nothing has used yet.
    pub(super) fn new(memory: DeviceBuffer<Page>) -> Self {
        Self { memory, used: None }
    }

    /// Reads a group into it, or sends one to it on a GPU; `None` when cancelled.
    pub(super) fn fill(
        &mut self,
        reader: &WeightReader,
        group: &WeightGroupPlan,
        link: Option<&mut GpuLink>,
        cancel: &AtomicBool,
    ) -> Result<Option<BroughtGroup>, EngineError> {
        if let Some(link) = link {
            return link.send(
                reader,
                group,
                self.memory.span(),
                self.used.as_deref(),
                cancel,
            );
        }
        let begun = Instant::now();
        let starts = reader.stream(group, self.memory.host_mut(), cancel)?;
        Ok(starts.map(|starts| BroughtGroup {
            starts,
            arrival: None,
            read_since: Some(begun),
        }))
    }
}

/// A mark behind the work that was sent so far, which may still read memory that its user gives back. If no mark can be
/// had, the work is waited for; if that fails, too, the GPU has failed and nothing is copied any more.
pub(super) fn mark_after_use(gpu: &Gpu) -> Option<Arc<StreamMark>> {
    let mark = gpu.mark().ok();
    if mark.is_none() {
        drop(gpu.synchronize());
    }
    mark.map(Arc::new)
}

/// Marks of a group's copy and of the work that waited for it; times are known once both have passed.
#[derive(Debug)]
pub(super) struct GroupTransfer {
    arrival: CopyMarks,
    /// Marks before and after the wait.
    asked: StreamMark,
    got: StreamMark,
}

/// A group's times by the GPU's clock.
#[derive(Debug, Clone, Copy)]
struct TransferTimes {
    copied: Duration,
    waited: Duration,
}

impl GroupTransfer {
    /// Makes work that is sent from now on begin after a copy, if there is one that none has waited for. Nobody should
    /// hold a lock: driver calls may take long. The GPU's wait is measured from `asked`.
    pub(super) fn receive(
        gpu: &Gpu,
        arrival: &mut Option<CopyMarks>,
        asked: StreamMark,
    ) -> Result<Option<Self>, CudaError> {
        let Some(copy) = arrival else {
            return Ok(None);
        };
        gpu.begin_after(&copy.end)?;
        let got = gpu.mark()?;
        // Only now: after a failure it is waited for again.
        Ok(arrival.take().map(|arrival| Self {
            arrival,
            asked,
            got,
        }))
    }

    /// The times, if all marks have passed.
    fn times(&self) -> Result<Option<TransferTimes>, CudaError> {
        let waited = self.got.since(&self.asked)?;
        let copied = self.arrival.end.since(&self.arrival.begin)?;
        Ok(copied
            .zip(waited)
            .map(|(copied, waited)| TransferTimes { copied, waited }))
    }
}

/// Transfers to a GPU whose times are not read yet.
#[derive(Debug, Default)]
pub(super) struct Transfers(VecDeque<GroupTransfer>);

impl Transfers {
    /// Most of them: those of a few passes. Bounded, since nobody need ask for the times.
    const MAX: usize = 16_384;

    pub(super) fn add(&mut self, transfer: Option<GroupTransfer>) {
        let Some(transfer) = transfer else {
            return;
        };
        if self.0.len() == Self::MAX {
            self.0.pop_front();
        }
        self.0.push_back(transfer);
    }

    /// Adds up the times of those that have completed.
    pub(super) fn settle(&mut self, stats: &mut StreamStats) {
        self.0.retain(|transfer| match transfer.times() {
            Ok(Some(times)) => {
                stats.waited += times.waited;
                stats.copied += times.copied;
                false
            }
            Ok(None) => true,
            // The GPU has failed, which whoever waits for it is told.
            Err(_) => false,
        });
    }
}
