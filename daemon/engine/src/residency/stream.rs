//! Streaming: a thread of its own brings weight groups ahead of the pass into a few staging buffers, round and round
//! through the same cycle. The last group's successor is the first of the next pass, so the thread never idles between
//! passes or requests.
//!
//! Buffers change hands by value. What the thread holds nobody else can see, so a cancelled read leaves no half-filled
//! buffer behind.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, MutexGuard, atomic::Ordering},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use sluice_cuda::Gpu;
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

use super::{
    link::{CopyMarks, GpuLink, PinOutcome},
    monitor::Monitor,
    pace::ReadPace,
    reader::{LoadedGroup, WeightReader},
    stats::StreamStats,
    transfer::{FreeBuffer, GroupTransfer, Transfers, mark_after_use},
};
use crate::error::EngineError;

/// The staging buffers and the thread that fills them.
#[derive(Debug)]
pub(super) struct WeightStream {
    shared: Arc<StreamShared>,
    /// Returns the GPU link when it ends.
    thread: Option<JoinHandle<Option<GpuLink>>>,
}

/// The parts of a stream that outlive it.
#[derive(Default)]
pub(super) struct StreamRemains {
    /// All staging buffers, with no copy in flight.
    pub(super) staging: Vec<DeviceBuffer<Page>>,
    /// The GPU link, with the groups it keeps.
    pub(super) link: Option<GpuLink>,
}

#[derive(Debug)]
struct StreamShared {
    reader: Arc<WeightReader>,
    /// The streamed groups, in the order of a pass.
    cycle: Vec<WeightGroupPlan>,
    /// The GPU that the staging buffers are on.
    gpu: Option<Gpu>,
    monitor: Monitor<StreamState>,
}

#[derive(Debug)]
struct StreamState {
    free: Vec<FreeBuffer>,
    /// Filled; on a GPU, with their copy sent.
    ready: Vec<ReadyGroup>,
    /// Place in the cycle of the group that is being read.
    filling: Option<usize>,
    /// Place of a group that is being read to pinned memory only, while nothing else is to be done.
    pinning: Option<usize>,
    /// Place in the cycle to fill next.
    next: usize,
    /// Whether the cycle goes backwards.
    reversed: bool,
    /// A read that failed, with its place in the cycle. The thread pauses until the next `take`.
    failed: Option<(usize, EngineError)>,
    stopped: bool,
    stats: StreamStats,
    transfers: Transfers,
}

/// A group in a staging buffer.
#[derive(Debug)]
struct ReadyGroup {
    /// Place in the cycle.
    place: usize,
    loaded: LoadedGroup,
    /// How long it took to bring.
    time: Duration,
    /// On a GPU: the marks of its copy.
    arrival: Option<CopyMarks>,
}

impl ReadyGroup {
    /// Frees the buffer of a group that nobody wants. A copy into it may be in flight: the next one is sent behind it.
    fn into_free(self) -> FreeBuffer {
        FreeBuffer::new(self.loaded.memory)
    }
}

impl StreamState {
    /// The next place to read, and the buffer to read it into, if there are both and no failure has to be reported
    /// first.
    fn start_next(&mut self, cycle: usize) -> Option<(usize, FreeBuffer)> {
        if self.failed.is_some() {
            return None;
        }
        // After a jump some of the following groups may be there already.
        let next = (0..cycle)
            .map(|ahead| self.ahead(self.next, ahead, cycle))
            .find(|next| self.ready.iter().all(|ready| ready.place != *next))?;
        // The buffer that has been free for longest: on a GPU the latest ones may still be in use.
        let free = (!self.free.is_empty()).then(|| self.free.remove(0))?;
        Some((next, free))
    }

    /// The place so many after `place`, of `cycle` places.
    fn ahead(&self, place: usize, ahead: usize, cycle: usize) -> usize {
        match self.reversed {
            false => (place + ahead) % cycle,
            true => (place + cycle - ahead % cycle) % cycle,
        }
    }
}

impl WeightStream {
    /// Allocates the staging buffers.
    pub(super) fn staging(
        staging: StagingBuffers,
        device: &Device,
        ledger: &Ledger,
    ) -> Result<Vec<DeviceBuffer<Page>>, EngineError> {
        let pages = staging.bytes_each as usize / PAGE_BYTES;
        // An allocation for each buffer, since buffers change hands one by one.
        (0..staging.count)
            .map(|_| {
                Ok(DeviceBuffer::new(
                    device,
                    ledger,
                    MemoryKind::StagingBuffers,
                    pages,
                )?)
            })
            .collect()
    }

    /// Starts to bring the groups of `cycle` to `staging`, by a link where those are on a GPU.
    pub(super) fn start(
        reader: Arc<WeightReader>,
        cycle: Vec<WeightGroupPlan>,
        staging: Vec<DeviceBuffer<Page>>,
        link: Option<GpuLink>,
    ) -> Result<Self, EngineError> {
        let free = staging.into_iter().map(FreeBuffer::new);
        let shared = Arc::new(StreamShared {
            reader,
            cycle,
            gpu: link.as_ref().map(|link| link.gpu().clone()),
            monitor: Monitor::new(StreamState {
                free: free.collect(),
                ready: Vec::new(),
                filling: None,
                pinning: None,
                next: 0,
                reversed: false,
                failed: None,
                stopped: false,
                stats: StreamStats::default(),
                transfers: Transfers::default(),
            }),
        });
        // A thread of its own: it blocks in reads and in waits, which a thread of the pool that computes must not.
        let thread = thread::Builder::new()
            .name("sluice-prefetch".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.fill_staging(link)
            })
            .map_err(|error| EngineError::Ops(OpsError::Threads(error.to_string())))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Waits for the group at this place of the cycle. On a GPU, work that is sent from now on waits for it; the host
    /// waits only until its copy is sent.
    pub(super) fn take(&self, place: usize) -> Result<StagedGroup, EngineError> {
        let begun = Instant::now();
        let gpu = self.shared.gpu.as_ref();
        // Marked before the lock: the GPU's wait is measured from the last work that was sent until the copy has
        // arrived.
        let asked = gpu.map(Gpu::mark).transpose()?;
        let mut state = self.shared.monitor.state();
        if let Some((failed, _)) = state.failed.take() {
            // Nobody waited for it when it failed, and the file may be whole by now: it is tried again.
            state.next = failed;
            self.shared.monitor.notify();
        }
        let mut ready = loop {
            if let Some(index) = state.ready.iter().position(|ready| ready.place == place) {
                break state.ready.swap_remove(index);
            }
            if let Some((failed, error)) = state.failed.take() {
                state.next = place;
                // An error is returned only to whoever wants that group; another failed one is read again in its turn.
                if failed == place {
                    return Err(error);
                }
            }
            self.shared.give_up_pinning(&state, place);
            if state.filling != Some(place) && state.next != place {
                // Out of turn: the pass before was given up. The cycle restarts from here.
                state.next = place;
                self.shared.monitor.abandon.store(true, Ordering::Relaxed);
            }
            if state.filling != Some(place) && state.free.is_empty() {
                // Ready groups are not the wanted one, or it would have been found: their buffers are needed.
                let stale = std::mem::take(&mut state.ready);
                state
                    .free
                    .extend(stale.into_iter().map(ReadyGroup::into_free));
            }
            self.shared.monitor.notify();
            state = self.shared.monitor.wait(state);
        };
        // Counted here and not when it was read: what was read for a pass that was given up has served nobody.
        state.stats.bytes += self.shared.cycle[place].bytes();
        let slot = StagedGroup {
            loaded: Some(ready.loaded),
            shared: Arc::clone(&self.shared),
        };
        match gpu.zip(asked) {
            // The GPU waits and not this thread.
            Some((gpu, asked)) => {
                drop(state);
                let transfer = GroupTransfer::receive(gpu, &mut ready.arrival, asked)?;
                self.shared.monitor.state().transfers.add(transfer);
            }
            None => {
                // On the CPU the host's clock tells both times. With a GPU it would tell only when the copy was sent.
                state.stats.waited += begun.elapsed();
                state.stats.copied += ready.time;
            }
        }
        Ok(slot)
    }

    /// Says in which direction groups will be taken from now on.
    pub(super) fn set_reversed(&self, reversed: bool) {
        self.shared.monitor.state().reversed = reversed;
    }

    /// Ends the stream, once nothing is in flight. No buffer may be in use.
    pub(super) fn end(mut self) -> StreamRemains {
        let link = self.stop();
        let mut state = self.shared.monitor.state();
        let ready = std::mem::take(&mut state.ready);
        let free = std::mem::take(&mut state.free);
        // On a GPU, copies into ready buffers have arrived: `stop` has waited for all of the link's.
        let slots = ready.into_iter().map(ReadyGroup::into_free).chain(free);
        let slots = slots.map(|slot| {
            if let Some(used) = slot.used {
                // If that fails the GPU has failed, which whoever uses it next is told.
                drop(used.wait());
            }
            slot.memory
        });
        StreamRemains {
            staging: slots.collect(),
            link,
        }
    }

    fn stop(&mut self) -> Option<GpuLink> {
        // Both under the lock: a thread that has checked one of them and is about to wait would miss the wake-up.
        let mut state = self.shared.monitor.state();
        state.stopped = true;
        self.shared.monitor.abandon.store(true, Ordering::Relaxed);
        drop(state);
        self.shared.monitor.notify();
        // A panic of the thread has shown itself as a group that never came.
        let link = self.thread.take()?.join().ok().flatten();
        if let Some(link) = &link {
            // As above.
            drop(link.wait());
        }
        link
    }

    /// Time and bytes of streaming so far.
    pub(super) fn stats(&self) -> StreamStats {
        let mut guard = self.shared.monitor.state();
        let state = &mut *guard;
        state.transfers.settle(&mut state.stats);
        state.stats
    }

    /// Places of the cycle that are filled, and the one being filled.
    pub(super) fn in_flight(&self) -> Vec<usize> {
        let state = self.shared.monitor.state();
        let ready = state.ready.iter().map(|ready| ready.place);
        ready.chain(state.filling).collect()
    }
}

impl Drop for WeightStream {
    fn drop(&mut self) {
        drop(self.stop());
    }
}

impl StreamShared {
    /// The thread's loop.
    fn fill_staging(&self, mut link: Option<GpuLink>) -> Option<GpuLink> {
        let mut pace = self.reader.limit_bytes_per_s().map(ReadPace::new);
        let mut state = self.monitor.state();
        loop {
            if state.stopped {
                return link;
            }
            let Some((next, mut free)) = state.start_next(self.cycle.len()) else {
                // All buffers are full: the time is used to read groups into pinned memory, one at a time.
                state = match (self.next_to_pin(&state, link.as_ref()), &mut link) {
                    (Some(place), Some(link)) => {
                        state.pinning = Some(place);
                        self.monitor.abandon.store(false, Ordering::Relaxed);
                        drop(state);
                        self.pin(place, link, pace.as_mut())
                    }
                    _ => self.monitor.wait(state),
                };
                continue;
            };
            state.filling = Some(next);
            // Set before the read, so that a `take` of another place can redirect it while the read runs.
            state.next = state.ahead(next, 1, self.cycle.len());
            // Reset under the lock, before the read begins: a cancel was for the read before.
            self.monitor.abandon.store(false, Ordering::Relaxed);
            drop(state);
            let begun = Instant::now();
            let group = &self.cycle[next];
            let cancel = &self.monitor.abandon;
            let bring = || free.fill(&self.reader, group, link.as_mut(), cancel);
            // Whoever waits for this group must hear of it, even if reading panics.
            let mut result =
                catch_unwind(AssertUnwindSafe(bring)).unwrap_or(Err(EngineError::Panicked));
            if let (Some(pace), Ok(Some(brought))) = (&mut pace, &result)
                // With a read limit the group is withheld until its bytes are due; a cancel ends that, too.
                && let Some(since) = brought.read_since
                && !self.monitor.wait_until(pace.due(since, group.file_bytes()))
            {
                result = Ok(None);
            }
            state = self.monitor.state();
            state.filling = None;
            // The link belongs to this thread; all others see its bytes through the statistics.
            state.stats.pinned_bytes = link.as_ref().map_or(0, GpuLink::pinned_weight_bytes);
            match result {
                Ok(Some(brought)) => {
                    let coded = self.reader.compressed(group);
                    let loaded = LoadedGroup {
                        memory: free.memory,
                        starts: brought.starts,
                        compressed: coded,
                        // They pass by once, and are packed where they are multiplied.
                        is_interleaved: false,
                    };
                    state.ready.push(ReadyGroup {
                        place: next,
                        loaded,
                        time: begun.elapsed(),
                        arrival: brought.arrival,
                    });
                }
                // Nothing was sent to the buffer, so its earlier mark still says until when the GPU uses it.
                Ok(None) => state.free.push(free),
                Err(error) => {
                    state.free.push(free);
                    // Kept for the next `take`, which has it tried again. Until then nothing is read: a broken disk
                    // would fail over and over.
                    state.failed = Some((next, error));
                }
            }
            self.monitor.notify();
        }
    }

    /// The next group that is to be kept in pinned memory: read while all staging buffers are full, so that later
    /// passes need not read it.
    fn next_to_pin(&self, state: &StreamState, link: Option<&GpuLink>) -> Option<usize> {
        // Not while a failure waits to be reported: the same read would fail over and over.
        let link = link.filter(|_| state.failed.is_none())?;
        let count = self.cycle.len();
        let mut places = (0..count).map(|ahead| state.ahead(state.next, ahead, count));
        places.find(|&place| link.wants(&self.cycle[place]))
    }

    /// Cancels a read into pinned memory where another group is wanted now.
    fn give_up_pinning(&self, state: &StreamState, wanted: usize) {
        if state.pinning.is_some_and(|place| place != wanted) {
            self.monitor.abandon.store(true, Ordering::Relaxed);
            self.monitor.notify();
        }
    }

    /// Reads a group into pinned memory.
    fn pin(
        &self,
        place: usize,
        link: &mut GpuLink,
        pace: Option<&mut ReadPace>,
    ) -> MutexGuard<'_, StreamState> {
        let (begun, group) = (Instant::now(), &self.cycle[place]);
        let read = || link.pin(&self.reader, group, &self.monitor.abandon);
        let result = catch_unwind(AssertUnwindSafe(read)).unwrap_or(Err(EngineError::Panicked));
        if let (Some(pace), Ok(PinOutcome::Read)) = (pace, &result) {
            self.monitor.wait_until(pace.due(begun, group.file_bytes()));
        }
        let mut state = self.monitor.state();
        state.pinning = None;
        state.stats.pinned_bytes = link.pinned_weight_bytes();
        if let Err(error) = result {
            // The next `take` restarts the prefetch.
            state.failed = Some((place, error));
        }
        state
    }
}

/// A filled staging buffer in use; dropping it returns it to the thread.
#[derive(Debug)]
pub(super) struct StagedGroup {
    /// Taken by `drop` alone.
    loaded: Option<LoadedGroup>,
    shared: Arc<StreamShared>,
}

impl StagedGroup {
    pub(super) fn loaded(&self) -> &LoadedGroup {
        self.loaded.as_ref().expect("only drop takes it")
    }
}

impl Drop for StagedGroup {
    fn drop(&mut self) {
        if let Some(loaded) = self.loaded.take() {
            let used = self.shared.gpu.as_ref().and_then(mark_after_use);
            let mut state = self.shared.monitor.state();
            state.free.push(FreeBuffer {
                memory: loaded.memory,
                used,
            });
            // The buffer is wanted for the next group: a read that only fills pinned memory gives way.
            let next = state.next;
            self.shared.give_up_pinning(&state, next);
            drop(state);
            self.shared.monitor.notify();
        }
    }
}

#[cfg(test)]
mod tests;
