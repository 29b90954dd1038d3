//! What streamed weights pass through: staging buffers and the stream that fills them, the expert cache, and a GPU's
//! decompression memory. All are fitted to the plan in force.

use std::sync::Arc;

use sluice_cuda::GpuSpan;
use sluice_machine::{
    MemoryKind,
    page::{PAGE_BYTES, Page},
};
use sluice_ops::device::DeviceBuffer;
use sluice_weights::WeightGroupPlan;

use super::{
    GroupPlacement, Residency,
    experts::ExpertCache,
    link::GpuLink,
    stream::{StreamRemains, WeightStream},
};
use crate::error::EngineError;

impl Residency {
    /// Starts to stream all groups that are neither on the device nor read row by row, from the first of them. Staging
    /// buffers of the right size are reused.
    pub(super) fn start_stream(&mut self) -> Result<(), EngineError> {
        let mut cycle = Vec::new();
        let mut experts = 0;
        for held in &mut self.groups {
            let is_expert = held.plan.group.is_expert();
            if held.plan.is_streamed() {
                held.placement = match is_expert {
                    true => GroupPlacement::Cached(experts),
                    false => GroupPlacement::Streamed(cycle.len()),
                };
                if !is_expert {
                    cycle.push(held.plan.clone());
                }
            }
            experts += usize::from(is_expert);
        }
        // The state is consistent from here on: if memory cannot be allocated below, the next pass tries again.
        let mut slots = self.end_stream();
        self.fit_decompression_buffer()?;
        let is_same = slots.len() == self.staging.count
            && slots
                .iter()
                .all(|slot| slot.bytes() == self.staging.bytes_each);
        if !is_same {
            // Freed before new ones are allocated: a plan counts one set.
            slots.clear();
        }
        self.fit_expert_cache()?;
        if cycle.is_empty() {
            // Nothing is streamed, so the link's pinned memory goes back to other programs.
            self.link = None;
            return Ok(());
        }
        if !is_same {
            slots = WeightStream::staging(self.staging, &self.device, &self.ledger)?;
        }
        let reader = Arc::clone(self.reader());
        let mut link = match (self.link.take(), self.device.gpu()) {
            (None, Some(gpu)) => {
                let limit_bytes = reader.pinned_memory_limit_bytes();
                Some(GpuLink::new(gpu, limit_bytes, &self.ledger)?)
            }
            (link, _) => link,
        };
        if let Some(link) = &mut link {
            // Before the thread starts: the link is the thread's alone from then on.
            link.fit(&cycle);
        }
        self.stream = Some(WeightStream::start(reader, cycle, slots, link)?);
        Ok(())
    }

    /// Starts or ends the expert cache, as the plan in force says; one that serves goes on with what it has.
    fn fit_expert_cache(&mut self) -> Result<(), EngineError> {
        let reader = Arc::clone(self.reader());
        let experts = (self.groups.iter())
            .map(|held| &held.plan)
            .filter(|plan| plan.group.is_expert());
        if !experts.clone().any(WeightGroupPlan::is_streamed) {
            self.experts = None;
            return Ok(());
        }
        let is_same = (self.experts.as_ref())
            .is_some_and(|cache| cache.serves(&reader, experts.clone(), &self.staging));
        if !is_same {
            let experts = experts.cloned().collect();
            // The old slots are freed before new ones are allocated.
            self.experts = None;
            self.experts = Some(ExpertCache::start(
                reader,
                experts,
                &self.staging,
                &self.device,
                &self.ledger,
            )?);
        }
        Ok(())
    }

    /// Allocates or frees decompression memory, as the staging buffers in force say.
    fn fit_decompression_buffer(&mut self) -> Result<(), EngineError> {
        let bytes = self.staging.decompress_bytes;
        if self.decompress_bytes() == bytes {
            return Ok(());
        }
        // The old memory is freed before more is taken.
        self.decompressed = None;
        if bytes > 0 {
            let pages = bytes as usize / PAGE_BYTES;
            self.decompressed = Some(DeviceBuffer::new(
                &self.device,
                &self.ledger,
                MemoryKind::StagingBuffers,
                pages,
            )?);
        }
        Ok(())
    }

    /// Has at least so much decompression memory, until the next change of the plan: for weights of another one.
    ///
    /// # Errors
    /// When it cannot be allocated.
    pub(crate) fn raise_decompression(&mut self, bytes: u64) -> Result<(), EngineError> {
        self.staging.decompress_bytes = self.staging.decompress_bytes.max(bytes);
        self.fit_decompression_buffer()
    }

    fn decompress_bytes(&self) -> u64 {
        self.decompressed.as_ref().map_or(0, DeviceBuffer::bytes)
    }

    /// The decompression memory; empty on the CPU.
    pub(super) fn decompressed(&self) -> GpuSpan {
        let decoded = self.decompressed.as_ref();
        decoded.map_or_else(GpuSpan::default, DeviceBuffer::on_gpu)
    }

    /// Ends the stream and returns its staging buffers, with no copy in flight. The GPU link stays for the next stream.
    pub(super) fn end_stream(&mut self) -> Vec<DeviceBuffer<Page>> {
        let StreamRemains {
            staging: slots,
            link,
        } = self
            .stream
            .take()
            .map(WeightStream::end)
            .unwrap_or_default();
        // Kept across streams: what is pinned took a read from disk.
        self.link = link.or(self.link.take());
        slots
    }

    /// Starts the stream again where its staging buffers, or decompression memory, could not be allocated before.
    pub(crate) fn ensure_stream(&mut self) -> Result<(), EngineError> {
        let is_any = |experts: bool| {
            let mut groups = self.groups.iter().map(|held| &held.plan);
            groups.any(|plan| plan.is_streamed() && plan.group.is_expert() == experts)
        };
        let lacks_stream =
            self.stream.is_none() && is_any(false) || self.experts.is_none() && is_any(true);
        match lacks_stream || self.decompress_bytes() != self.staging.decompress_bytes {
            true => self.start_stream(),
            false => Ok(()),
        }
    }
}
