//! The expert cache: slots for as many of a mixture's experts as the budget has room for, whichever passes touch. A thread of its own
//! reads what the router has chosen and is not there, and, while nothing is wanted, what the next layers' last visits touched.
//!
//! As with staging buffers, slots change hands by value: nobody sees one that is being filled. On a GPU they do so as soon as what
//! they hold, or the work on it, is sent ([`transfer`](super::transfer)). Which expert goes for another follows
//! from what passes have touched ([`usage`]), and moves bytes only: no result depends on it.

mod on_host;
mod slots;
mod usage;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, MutexGuard, atomic::Ordering},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use sluice_cuda::{Gpu, StreamMark};
use sluice_formats::interleaved;
use sluice_machine::{
    MemoryKind,
    page::{PAGE_BYTES, Page},
};
use sluice_ops::{
    OpsError,
    device::{Device, DeviceBuffer},
    ledger::Ledger,
};
use sluice_plan::StagingBuffers;
use sluice_weights::WeightGroupPlan;

use self::{
    slots::{CacheState, CachedExpert, VisitMarks},
    usage::ExpertUsage,
};
use super::{
    link::{BroughtGroup, GpuLink, LinkShare},
    monitor::Monitor,
    pace::ReadPace,
    reader::{LoadedGroup, WeightReader},
    stats::{ExpertStats, StreamStats},
    transfer::{FreeBuffer, GroupTransfer, Transfers, mark_after_use},
};
use crate::error::EngineError;

/// Passes ask for experts more often than this, layer by layer.
const IDLE: Duration = Duration::from_millis(200);

/// The slots and the thread that fills them.
#[derive(Debug)]
pub(super) struct ExpertCache {
    shared: Arc<CacheShared>,
    /// The index of each of the model's layers among those with experts.
    layers: BTreeMap<usize, usize>,
    slots: (usize, u64),
    /// Returns the GPU link when it ends.
    thread: Option<JoinHandle<Option<GpuLink>>>,
}

#[derive(Debug)]
struct CacheShared {
    reader: Arc<WeightReader>,
    /// The experts, in the order of a pass. One that is on the device besides is never asked for.
    experts: Vec<WeightGroupPlan>,
    interleaves: bool,
    /// The GPU that the slots are on.
    gpu: Option<Gpu>,
    monitor: Monitor<CacheState>,
}

impl ExpertCache {
    /// Allocates a cache's slots.
    pub(super) fn slots(
        staging: &StagingBuffers,
        device: &Device,
        ledger: &Ledger,
    ) -> Result<Vec<DeviceBuffer<Page>>, EngineError> {
        let pages = staging.expert_buffer_bytes as usize / PAGE_BYTES;
        // An allocation for each, since they change hands one by one.
        let slot = || DeviceBuffer::new(device, ledger, MemoryKind::StagingBuffers, pages);
        let slots = (0..staging.expert_buffers).map(|_| slot());
        Ok(slots.collect::<Result<_, _>>()?)
    }

    /// Starts to bring what is wanted of the experts to these slots, by a link where they are on a GPU.
    pub(super) fn start(
        reader: Arc<WeightReader>,
        experts: Vec<WeightGroupPlan>,
        slots: Vec<DeviceBuffer<Page>>,
        device: &Device,
        link: Option<GpuLink>,
    ) -> Result<Self, EngineError> {
        let mut layers = BTreeMap::new();
        let mut counts: Vec<usize> = Vec::new();
        for layer in experts.iter().filter_map(|expert| expert.group.layer()) {
            let next = counts.len();
            let index = *layers.entry(layer).or_insert(next);
            counts.resize(layers.len(), 0);
            counts[index] += 1;
        }
        let slot_bytes = slots.first().map_or(0, DeviceBuffer::bytes);
        let slot_count = slots.len();
        let state = CacheState {
            free: slots.into_iter().map(FreeBuffer::new).collect(),
            ready: BTreeMap::new(),
            in_use: BTreeSet::new(),
            wanted: BTreeSet::new(),
            filling: None,
            last_visits: vec![ExpertStats::default(); counts.len()],
            usage: ExpertUsage::new(counts),
            slots: slot_count,
            failed: None,
            share: None,
            stats: StreamStats {
                // A link that has served another cache has kept what it had.
                pinned_bytes: link.as_ref().map_or(0, GpuLink::pinned_weight_bytes),
                ..StreamStats::default()
            },
            transfers: Transfers::default(),
            visits: 0,
            marks: device.gpu().map(|gpu| VisitMarks {
                gpu: gpu.clone(),
                ended: None,
            }),
            last_visit: None,
            next_to_pin: 0,
            on_host: BTreeMap::new(),
            wanted_on_host: None,
            bringing_on_host: None,
        };
        let shared = Arc::new(CacheShared {
            reader,
            experts,
            interleaves: device.interleaves_weights(),
            gpu: link.as_ref().map(|link| link.gpu().clone()),
            monitor: Monitor::new(state),
        });
        // A thread of its own: it blocks in reads, which a thread of the pool that computes must not.
        let thread = thread::Builder::new()
            .name("sluice-experts".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.fill_slots(link)
            })
            .map_err(|error| EngineError::Ops(OpsError::Threads(error.to_string())))?;
        Ok(Self {
            shared,
            layers,
            slots: (slot_count, slot_bytes),
            thread: Some(thread),
        })
    }

    /// Whether it serves these experts, as far as they are not on the device, from these files through such slots.
    pub(super) fn serves<'a>(
        &self,
        reader: &Arc<WeightReader>,
        experts: impl Iterator<Item = &'a WeightGroupPlan>,
        staging: &StagingBuffers,
    ) -> bool {
        let mut pairs = self.shared.experts.iter().zip(experts);
        Arc::ptr_eq(&self.shared.reader, reader)
            && self.slots == (staging.expert_buffers, staging.expert_buffer_bytes)
            && pairs.all(|(own, asked)| own == asked || !asked.is_streamed())
    }

    /// Has the GPU link keep what this share says from now on.
    pub(super) fn fit_link(&self, share: LinkShare) {
        self.shared.monitor.state().share = Some(share);
        self.shared.monitor.notify();
    }

    /// Says which experts of a layer a pass is about to use, in their order: what is missing is read in that order. Besides, the
    /// CPU computes some.
    ///
    /// # Panics
    /// When the layer has no experts here.
    pub(super) fn want(
        &self,
        layer: usize,
        experts: impl Iterator<Item = usize>,
        of_cpu: impl Iterator<Item = usize>,
    ) {
        let layer = self.layers[&layer];
        // Before the lock: driver calls may take long.
        let ended = self.shared.gpu.as_ref().and_then(mark_after_use);
        let mut guard = self.shared.monitor.state();
        let state = &mut *guard;
        state.visits += 1;
        state.last_visit = Some(Instant::now());
        if let Some(marks) = &mut state.marks {
            marks.ended = ended;
        }
        let first = state.usage.first(layer);
        let places: Vec<usize> = experts.map(|expert| first + expert).collect();
        state.usage.visit(layer, &places);
        let mut visit = ExpertStats {
            touched: places.len() as u64,
            ..ExpertStats::default()
        };
        for expert in of_cpu {
            visit.touched += 1;
            visit.computed_by_cpu += 1;
            visit.cpu_bytes += self.shared.experts[first + expert].bytes();
        }
        for place in &places {
            match state.ready.get(place) {
                Some(CachedExpert { is_new: false, .. }) => visit.hits += 1,
                Some(_) => visit.fetched_ahead += 1,
                None if state.filling == Some(*place) => visit.fetched_ahead += 1,
                None => visit.missed += 1,
            }
        }
        state.last_visits[layer] = visit;
        state.stats.experts += visit;
        state.wanted = places.into_iter().collect();
        // A read that had failed is tried again: the file may be whole by now.
        state.failed = None;
        drop(guard);
        self.shared.monitor.notify();
    }

    /// An expert, if it is there. On a GPU, work that is sent from now on waits for its copy.
    pub(super) fn try_take(&self, place: usize) -> Option<ExpertInUse> {
        let expert = self.in_use(&mut self.shared.monitor.state(), place)?;
        // If the GPU cannot be told to wait it has failed, which whoever waits for the expert is told.
        self.receive(expert, None).ok()
    }

    /// Waits for an expert; on a GPU, until its copy is sent. Nobody else may hold as many as there are slots.
    pub(super) fn take(&self, place: usize) -> Result<ExpertInUse, EngineError> {
        let begun = Instant::now();
        // Marked before the lock: the GPU's wait is measured from the last work that was sent until the copy has
        // arrived.
        let asked = self.shared.gpu.as_ref().map(Gpu::mark).transpose()?;
        let mut state = self.shared.monitor.state();
        loop {
            if let Some(expert) = self.in_use(&mut state, place) {
                if asked.is_none() {
                    state.stats.waited += begun.elapsed();
                }
                drop(state);
                return self.receive(expert, asked);
            }
            if let Some((failed, error)) = state.failed.take()
                && failed == place
            {
                return Err(error);
            }
            // Whoever asks out of turn has given up what comes before.
            state.wanted = state.wanted.split_off(&place);
            state.wanted.insert(place);
            self.shared.monitor.notify();
            state = self.shared.monitor.wait(state);
        }
    }

    fn in_use(&self, state: &mut CacheState, place: usize) -> Option<ExpertInUse> {
        let mut expert = state.ready.remove(&place)?;
        state.wanted.remove(&place);
        state.in_use.insert(place);
        if std::mem::take(&mut expert.is_new) {
            // Counted here and not when it was read: what was read for nothing has served nobody.
            state.stats.bytes += self.shared.experts[place].bytes();
            if self.shared.gpu.is_none() {
                state.stats.copied += std::mem::take(&mut expert.time);
            }
        }
        Some(ExpertInUse {
            place,
            expert: Some(expert),
            shared: Arc::clone(&self.shared),
        })
    }

    /// Makes a GPU's work wait for the copy of an expert, from `asked` on or from now. Once is enough: all work is sent to one stream.
    fn receive(
        &self,
        mut taken: ExpertInUse,
        asked: Option<StreamMark>,
    ) -> Result<ExpertInUse, EngineError> {
        let expert = taken.expert.as_mut().expect("only drop takes it");
        if let Some(gpu) = &self.shared.gpu
            && expert.arrival.is_some()
        {
            let asked = asked.map_or_else(|| gpu.mark(), Ok)?;
            let transfer = GroupTransfer::receive(gpu, &mut expert.arrival, asked)?;
            self.shared.monitor.state().transfers.add(transfer);
        }
        Ok(taken)
    }

    /// Time and bytes of reading so far, and where the experts were that passes have touched.
    pub(super) fn stats(&self) -> StreamStats {
        let mut guard = self.shared.monitor.state();
        let state = &mut *guard;
        state.transfers.settle(&mut state.stats);
        state.stats
    }

    /// What the last visit of each of the model's layers that have experts came to.
    pub(super) fn last_visits(&self) -> Vec<(usize, ExpertStats)> {
        let state = self.shared.monitor.state();
        let layers = self.layers.iter();
        layers
            .map(|(&layer, &index)| (layer, state.last_visits[index]))
            .collect()
    }

    /// The places of the experts that are in slots.
    pub(super) fn held(&self) -> Vec<usize> {
        let state = self.shared.monitor.state();
        state.ready.keys().chain(&state.in_use).copied().collect()
    }

    /// Ends the cache, and returns the GPU link with the experts it keeps. No expert may be in use.
    pub(super) fn end(mut self) -> Option<GpuLink> {
        self.stop()
    }

    fn stop(&mut self) -> Option<GpuLink> {
        // Under the lock: a thread that has looked at it and is about to wait would miss the wake-up.
        let state = self.shared.monitor.state();
        self.shared.monitor.abandon.store(true, Ordering::Relaxed);
        drop(state);
        self.shared.monitor.notify();
        // A panic has shown itself as an expert that never came.
        let link = self.thread.take()?.join().ok().flatten();
        // Copies and work may use the slots, which are about to be freed. If waiting fails the GPU has failed, which whoever uses
        // it next is told.
        if let Some(link) = &link {
            drop(link.wait());
        }
        if let Some(gpu) = &self.shared.gpu {
            drop(gpu.synchronize());
        }
        link
    }
}

impl Drop for ExpertCache {
    fn drop(&mut self) {
        drop(self.stop());
    }
}

impl CacheShared {
    /// The thread's loop.
    fn fill_slots(&self, mut link: Option<GpuLink>) -> Option<GpuLink> {
        let mut pace = self.reader.limit_bytes_per_s().map(ReadPace::new);
        let mut state = self.monitor.state();
        // Only the end of the cache cancels a read.
        while !self.monitor.abandon.load(Ordering::Relaxed) {
            if let (Some(link), Some(share)) = (&mut link, state.share.take()) {
                // Without the lock: it takes the system long to free much pinned memory.
                state.on_host.clear();
                drop(state);
                link.fit(share);
                state = self.monitor.state();
                state.stats.pinned_bytes = link.pinned_weight_bytes();
                state.next_to_pin = 0;
                continue;
            }
            if let (Some(link), Some(place)) = (&mut link, state.wanted_on_host.take()) {
                state.bringing_on_host = Some(place);
                drop(state);
                self.bring_on_host(place, link, pace.as_mut());
                state = self.monitor.state();
                continue;
            }
            let Some((place, mut slot)) = state.start_next() else {
                state = self.pin_or_wait(state, link.as_mut());
                continue;
            };
            state.filling = Some(place);
            drop(state);
            let begun = Instant::now();
            let group = &self.experts[place];
            // Whoever waits for this expert must hear of it, even if reading panics.
            let bring = || self.bring(group, &mut slot, link.as_mut());
            let result =
                catch_unwind(AssertUnwindSafe(bring)).unwrap_or(Err(EngineError::Panicked));
            if let (Some(pace), Ok(Some(brought))) = (&mut pace, &result)
                // With a read limit it is withheld until its bytes are due.
                && let Some(since) = brought.read_since
            {
                self.monitor.wait_until(pace.due(since, group.file_bytes()));
            }
            state = self.monitor.state();
            state.filling = None;
            state.stats.pinned_bytes = link.as_ref().map_or(0, GpuLink::pinned_weight_bytes);
            match result {
                Ok(Some(brought)) => {
                    let loaded = LoadedGroup {
                        memory: slot.memory,
                        starts: brought.starts,
                        compressed: self.reader.compressed(group),
                        is_interleaved: self.interleaves,
                    };
                    let expert = CachedExpert {
                        loaded,
                        time: begun.elapsed(),
                        is_new: true,
                        arrival: brought.arrival,
                        used: None,
                    };
                    state.stats.experts.read += 1;
                    state.ready.insert(place, expert);
                }
                // Nothing was sent to the slot, so its earlier mark still says until when the GPU uses it.
                Ok(None) => state.free.push(slot),
                Err(error) => {
                    state.free.push(slot);
                    state.failed = Some((place, error));
                }
            }
            self.monitor.notify();
        }
        link
    }

    /// The next expert to read into pinned memory, of those that are to be kept there.
    fn next_to_pin(&self, state: &mut CacheState, link: &GpuLink) -> Option<usize> {
        let places = state.next_to_pin..self.experts.len();
        let next = { places }.find(|&place| link.lacks(&self.experts[place]));
        state.next_to_pin = next.unwrap_or(self.experts.len());
        // Others may hold the limit for now.
        next.filter(|&place| link.wants(&self.experts[place]))
    }

    /// Reads an expert into pinned memory, so that no pass has to, if there is one and no pass has asked for experts lately:
    /// pinning cannot be interrupted. Otherwise waits.
    fn pin_or_wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, CacheState>,
        link: Option<&mut GpuLink>,
    ) -> MutexGuard<'a, CacheState> {
        // With a read limit, disks are spared what no pass needs.
        let is_limited = self.reader.limit_bytes_per_s().is_some();
        let link = link.filter(|_| !is_limited && state.failed.is_none());
        let next = link.and_then(|link| Some((self.next_to_pin(&mut state, link)?, link)));
        let Some((place, link)) = next else {
            return self.monitor.wait(state);
        };
        let since = state.last_visit.map_or(IDLE, |last| last.elapsed());
        if since < IDLE {
            return self.monitor.wait_for(state, IDLE - since);
        }
        // Tried once: one that can't be read is told of when somebody asks for it.
        state.next_to_pin = place + 1;
        drop(state);
        let read = || link.pin(&self.reader, &self.experts[place], &self.monitor.abandon);
        drop(catch_unwind(AssertUnwindSafe(read)));
        let mut state = self.monitor.state();
        state.stats.pinned_bytes = link.pinned_weight_bytes();
        state
    }

    /// Brings an expert to a slot; `None` when cancelled.
    fn bring(
        &self,
        expert: &WeightGroupPlan,
        slot: &mut FreeBuffer,
        link: Option<&mut GpuLink>,
    ) -> Result<Option<BroughtGroup>, EngineError> {
        let brought = slot.fill(&self.reader, expert, link, &self.monitor.abandon)?;
        if let (Some(brought), true) = (&brought, self.interleaves) {
            interleave(expert, &brought.starts, slot.memory.host_mut());
        }
        Ok(brought)
    }
}

/// Makes rows lie beside each other, as those of all weights that stay: an expert serves ten passes or more.
fn interleave(group: &WeightGroupPlan, starts: &[usize], memory: &mut [Page]) {
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(memory);
    let mut scratch = Vec::new();
    for (tensor, &start) in group.tensors.iter().zip(starts) {
        if tensor.is_interleaved() {
            let (format, width) = (tensor.storage.format(), tensor.width);
            let rows = &mut bytes[start..][..tensor.bytes() as usize];
            interleaved::interleave(format, width, rows, &mut scratch);
        }
    }
}

/// An expert in use; dropping it returns it to the cache.
#[derive(Debug)]
pub(super) struct ExpertInUse {
    place: usize,
    /// Taken by `drop` alone.
    expert: Option<CachedExpert>,
    shared: Arc<CacheShared>,
}

impl ExpertInUse {
    pub(super) fn loaded(&self) -> &LoadedGroup {
        &self.expert.as_ref().expect("only drop takes it").loaded
    }
}

impl Drop for ExpertInUse {
    fn drop(&mut self) {
        if let Some(mut expert) = self.expert.take() {
            let mut state = self.shared.monitor.state();
            expert.used = Some(state.visits);
            state.in_use.remove(&self.place);
            state.ready.insert(self.place, expert);
            drop(state);
            // Its slot may serve another now.
            self.shared.monitor.notify();
        }
    }
}

#[cfg(test)]
mod tests;
