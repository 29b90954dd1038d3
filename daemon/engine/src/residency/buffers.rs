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
    link::{GpuLink, LinkShare, LinkShares},
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
        let streamed = self.groups.iter().map(|held| &held.plan);
        let shares = LinkShares::new(
            self.reader().pinned_memory_limit_bytes(),
            streamed.filter(|plan| plan.is_streamed()),
        );
        // Before anything is brought: what one link gives up the other may take.
        let link = self.link.take();
        self.link = match cycle.is_empty() {
            // Its pinned memory goes back to other programs.
            true => None,
            false => self.fitted_link(link, shares.cycle)?,
        };
        self.fit_expert_cache(shares.experts)?;
        if cycle.is_empty() {
            return Ok(());
        }
        if !is_same {
            slots = WeightStream::staging(self.staging, &self.device, &self.ledger)?;
        }
        let reader = Arc::clone(self.reader());
        let link = self.link.take();
        self.stream = Some(WeightStream::start(reader, cycle, slots, link)?);
        Ok(())
    }

    /// A link to the GPU, with what it kept before as far as its share says so; `None` on the CPU.
    fn fitted_link(
        &self,
        link: Option<GpuLink>,
        share: LinkShare,
    ) -> Result<Option<GpuLink>, EngineError> {
        let mut link = match (link, self.device.gpu()) {
            (None, Some(gpu)) => Some(GpuLink::new(gpu, &self.ledger)?),
            (link, _) => link,
        };
        if let Some(link) = &mut link {
            link.fit(share);
        }
        Ok(link)
    }

    /// Starts or ends the expert cache, as the plan in force says; one that serves goes on with what it has.
    fn fit_expert_cache(&mut self, share: LinkShare) -> Result<(), EngineError> {
        let reader = Arc::clone(self.reader());
        let experts = (self.groups.iter())
            .map(|held| &held.plan)
            .filter(|plan| plan.group.is_expert());
        if !experts.clone().any(WeightGroupPlan::is_streamed) {
            self.end_expert_cache();
            self.expert_link = None;
            return Ok(());
        }
        if let Some(cache) = &self.experts
            && cache.serves(&reader, experts.clone(), &self.staging)
        {
            cache.fit_link(share);
            return Ok(());
        }
        let experts = experts.cloned().collect();
        // The old slots are freed before new ones are allocated.
        self.end_expert_cache();
        let link = self.expert_link.take();
        self.expert_link = self.fitted_link(link, share)?;
        let slots = ExpertCache::slots(&self.staging, &self.device, &self.ledger)?;
        let link = self.expert_link.take();
        self.experts = Some(ExpertCache::start(
            reader,
            experts,
            slots,
            &self.device,
            link,
        )?);
        Ok(())
    }

    /// Ends the expert cache, and frees its slots. The GPU link stays for the next one.
    pub(super) fn end_expert_cache(&mut self) {
        let link = self.experts.take().and_then(ExpertCache::end);
        self.expert_link = link.or(self.expert_link.take());
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
