//! Streaming: a thread of its own brings units ahead of the pass into a few slots, round and round through the same
//! cycle. The last unit's successor is the first of the next pass, so the thread never drains, whoever asks.
//!
//! Slots change hands by value. What the thread holds nobody else can see, so a read that is given up leaves no
//! half-filled slot behind. On a card a slot changes hands as soon as its copy is sent, and comes back as soon as the work on
//! it is: marks in the card's streams keep the two apart, and neither thread waits for the card.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use sluice_cuda::{Gpu, StreamMark};
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
    link::{CopyMarks, GpuLink, GroupTransfer, PinOutcome},
    pace::ReadPace,
    reader::{LoadedGroup, WeightReader},
};
use crate::error::EngineError;

/// Units on their way through a card at most, of which the times are not known yet: those of a few passes.
const TRANSFERS_MAX: usize = 4096;

/// The slots and the thread that fills them.
#[derive(Debug)]
pub(super) struct WeightStream {
    shared: Arc<StreamShared>,
    /// Gives back the way to the card.
    thread: Option<JoinHandle<Option<GpuLink>>>,
}

/// What a stream leaves when it ends.
#[derive(Default)]
pub(super) struct StreamRemains {
    /// All of them, with nothing on its way to or from them.
    pub(super) staging: Vec<DeviceBuffer<Page>>,
    /// The way to the card, with what it keeps.
    pub(super) link: Option<GpuLink>,
}

#[derive(Debug)]
struct StreamShared {
    reader: Arc<WeightReader>,
    /// The units in the order of a pass.
    cycle: Vec<WeightGroupPlan>,
    /// The card that the slots are on.
    gpu: Option<Gpu>,
    state: Mutex<StreamState>,
    changed: Condvar,
    /// Set to give up the present read.
    abandon: AtomicBool,
}

#[derive(Debug)]
struct StreamState {
    free: Vec<FreeBuffer>,
    /// Filled; on a card, on their way.
    ready: Vec<ReadyGroup>,
    /// Being filled.
    filling: Option<usize>,
    /// Being read to where it is kept, while nothing else is to be done.
    pinning: Option<usize>,
    /// To be filled next.
    next: usize,
    /// What could not be read, with its place in the cycle. The reader pauses until somebody asks for a unit.
    failed: Option<(usize, EngineError)>,
    stopped: bool,
    stats: StreamStats,
    /// What went through a card of late.
    transfers: Vec<GroupTransfer>,
}

/// A slot that nobody needs, or, on a card, nobody after this mark.
#[derive(Debug)]
struct FreeBuffer {
    memory: DeviceBuffer<Page>,
    used: Option<StreamMark>,
}

/// A unit in a slot.
#[derive(Debug)]
struct ReadyGroup {
    /// In the cycle.
    place: usize,
    loaded: LoadedGroup,
    /// Time it took to bring.
    time: Duration,
    /// On a card: when it is there.
    arrival: Option<CopyMarks>,
}

impl ReadyGroup {
    /// The slot, once nobody wants the unit. A copy into it may be on its way: the next one is sent after it.
    fn into_free(self) -> FreeBuffer {
        FreeBuffer {
            memory: self.loaded.memory,
            used: None,
        }
    }
}

impl StreamState {
    /// What is to be read, and the slot to read it into, if there is both and no failure to be heard of first.
    fn start_next(&mut self, cycle: usize) -> Option<(usize, FreeBuffer)> {
        if self.failed.is_some() {
            return None;
        }
        // After a jump some of what comes next may be there already.
        let next = (0..cycle)
            .map(|ahead| (self.next + ahead) % cycle)
            .find(|next| self.ready.iter().all(|ready| ready.place != *next))?;
        // The one that has been free for longest: what is on a card may be in use a little longer.
        let free = (!self.free.is_empty()).then(|| self.free.remove(0))?;
        Some((next, free))
    }

    /// Adds up what is known by now of units that went through a card.
    fn settle_transfers(&mut self) {
        let stats = &mut self.stats;
        self.transfers.retain(|passage| match passage.times() {
            Ok(Some(times)) => {
                stats.waited += times.waited;
                stats.copied += times.copied;
                false
            }
            Ok(None) => true,
            // The card has failed, and whoever waits for it is told.
            Err(_) => false,
        });
        let beyond = self.transfers.len().saturating_sub(TRANSFERS_MAX);
        self.transfers.drain(..beyond);
    }
}

/// What streaming cost so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamStats {
    /// Time that passes waited for units.
    pub waited: Duration,
    /// Bytes brought for them.
    pub bytes: u64,
    /// Time in which those were brought, beside the passes or before.
    pub copied: Duration,
    /// Bytes of pinned memory that units are kept in, for a card to copy from.
    pub pinned_bytes: u64,
}

impl StreamStats {
    /// What it cost since then. All begins anew when another plan is put in force.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            waited: self.waited.saturating_sub(before.waited),
            bytes: self.bytes.saturating_sub(before.bytes),
            copied: self.copied.saturating_sub(before.copied),
            pinned_bytes: self.pinned_bytes,
        }
    }
}

impl WeightStream {
    /// Memory for the slots.
    pub(super) fn staging(
        staging: StagingBuffers,
        device: &Device,
        ledger: &Ledger,
    ) -> Result<Vec<DeviceBuffer<Page>>, EngineError> {
        let pages = staging.bytes_each as usize / PAGE_BYTES;
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

    /// Begins to bring the units of `cycle` to `slots`, by a link where they are on a card.
    pub(super) fn start(
        reader: Arc<WeightReader>,
        cycle: Vec<WeightGroupPlan>,
        staging: Vec<DeviceBuffer<Page>>,
        link: Option<GpuLink>,
    ) -> Result<Self, EngineError> {
        let free = staging
            .into_iter()
            .map(|memory| FreeBuffer { memory, used: None });
        let shared = Arc::new(StreamShared {
            reader,
            cycle,
            gpu: link.as_ref().map(|link| link.gpu().clone()),
            state: Mutex::new(StreamState {
                free: free.collect(),
                ready: Vec::new(),
                filling: None,
                pinning: None,
                next: 0,
                failed: None,
                stopped: false,
                stats: StreamStats::default(),
                transfers: Vec::new(),
            }),
            changed: Condvar::new(),
            abandon: AtomicBool::new(false),
        });
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

    /// Waits for the unit at this place of the cycle. On a card the work that is sent from now on does, and the host only until
    /// the unit is on its way.
    pub(super) fn take(&self, place: usize) -> Result<StagedGroup, EngineError> {
        let begun = Instant::now();
        let gpu = self.shared.gpu.as_ref();
        let asked = gpu.map(Gpu::mark).transpose()?;
        let mut state = self.shared.state();
        if let Some((failed, _)) = state.failed.take() {
            // Nobody waited for it then, and the file may be whole again.
            state.next = failed;
            self.shared.changed.notify_all();
        }
        let ready = loop {
            if let Some(index) = state.ready.iter().position(|ready| ready.place == place) {
                break state.ready.swap_remove(index);
            }
            if let Some((failed, error)) = state.failed.take() {
                state.next = place;
                if failed == place {
                    return Err(error);
                }
            }
            self.shared.give_up_pinning(&state, place);
            if state.filling != Some(place) && state.next != place {
                // Out of turn: a pass was given up. Begin anew from here.
                state.next = place;
                self.shared.abandon.store(true, Ordering::Relaxed);
            }
            if state.filling != Some(place) && state.free.is_empty() {
                // What is ready is not wanted now, or it would have been found.
                let stale = std::mem::take(&mut state.ready);
                state
                    .free
                    .extend(stale.into_iter().map(ReadyGroup::into_free));
            }
            self.shared.changed.notify_all();
            state = self.shared.wait(state);
        };
        state.stats.bytes += self.shared.cycle[place].bytes();
        let slot = StagedGroup {
            loaded: Some(ready.loaded),
            shared: Arc::clone(&self.shared),
        };
        match (gpu, asked, ready.arrival) {
            (Some(gpu), Some(asked), Some(arrival)) => {
                drop(state);
                gpu.begin_after(&arrival.end)?;
                let got = gpu.mark()?;
                self.shared.state().transfers.push(GroupTransfer {
                    arrival,
                    asked,
                    got,
                });
            }
            _ => {
                state.stats.waited += begun.elapsed();
                state.stats.copied += ready.time;
            }
        }
        Ok(slot)
    }

    /// Ends it, once nothing is on its way. No slot may be in use.
    pub(super) fn end(mut self) -> StreamRemains {
        let link = self.stop();
        let mut state = self.shared.state();
        let ready = std::mem::take(&mut state.ready);
        let free = std::mem::take(&mut state.free);
        let slots = ready.into_iter().map(ReadyGroup::into_free).chain(free);
        let slots = slots.map(|slot| {
            if let Some(used) = slot.used {
                // If that fails the card has failed, and whoever uses it next is told.
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
        // Together: a reader that has looked at one of them and is about to wait would miss the call.
        let mut state = self.shared.state();
        state.stopped = true;
        self.shared.abandon.store(true, Ordering::Relaxed);
        drop(state);
        self.shared.changed.notify_all();
        // A panic of the reader has shown itself as a unit that never came.
        let link = self.thread.take()?.join().ok().flatten();
        if let Some(link) = &link {
            // As above.
            drop(link.wait());
        }
        link
    }

    /// What streaming cost so far.
    pub(super) fn stats(&self) -> StreamStats {
        let mut state = self.shared.state();
        state.settle_transfers();
        state.stats
    }

    /// Places of the cycle that wait filled, and the one being filled.
    pub(super) fn in_flight(&self) -> Vec<usize> {
        let state = self.shared.state();
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
    fn state(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, StreamState>) -> MutexGuard<'a, StreamState> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until then; false if the present read is given up before.
    fn wait_until(&self, due: Instant) -> bool {
        let mut state = self.state();
        while !self.abandon.load(Ordering::Relaxed) {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let waited = self.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        false
    }

    /// The thread's life.
    fn fill_staging(&self, mut link: Option<GpuLink>) -> Option<GpuLink> {
        let mut pace = self.reader.limit_bytes_per_s().map(ReadPace::new);
        let mut state = self.state();
        loop {
            if state.stopped {
                return link;
            }
            let Some((next, free)) = state.start_next(self.cycle.len()) else {
                state = match (self.next_to_pin(&state, link.as_ref()), &mut link) {
                    (Some(place), Some(link)) => {
                        state.pinning = Some(place);
                        self.abandon.store(false, Ordering::Relaxed);
                        drop(state);
                        self.pin(place, link, pace.as_mut())
                    }
                    _ => self.wait(state),
                };
                continue;
            };
            state.filling = Some(next);
            state.next = (next + 1) % self.cycle.len();
            self.abandon.store(false, Ordering::Relaxed);
            drop(state);
            let begun = Instant::now();
            let FreeBuffer { mut memory, used } = free;
            let unit = &self.cycle[next];
            let bring = || self.bring(unit, &mut memory, used.as_ref(), link.as_mut());
            // Whoever waits for this unit must hear of it, whatever happens.
            let mut result =
                catch_unwind(AssertUnwindSafe(bring)).unwrap_or(Err(EngineError::Panicked));
            if let (Some(pace), Ok(Some(brought))) = (&mut pace, &result)
                && let Some(since) = brought.read_since
                && !self.wait_until(pace.due(since, unit.file_bytes()))
            {
                result = Ok(None);
            }
            state = self.state();
            state.filling = None;
            state.stats.pinned_bytes = link.as_ref().map_or(0, GpuLink::pinned_weight_bytes);
            match result {
                Ok(Some(brought)) => {
                    let coded = self.reader.compressed(unit);
                    let loaded = LoadedGroup {
                        memory,
                        starts: brought.starts,
                        compressed: coded,
                    };
                    state.ready.push(ReadyGroup {
                        place: next,
                        loaded,
                        time: begun.elapsed(),
                        arrival: brought.arrival,
                    });
                }
                Ok(None) => state.free.push(FreeBuffer { memory, used }),
                Err(error) => {
                    state.free.push(FreeBuffer { memory, used });
                    state.failed = Some((next, error));
                }
            }
            self.changed.notify_all();
        }
    }

    /// Reads a unit into a slot, or sends it to one on a card; `None` when it was given up.
    fn bring(
        &self,
        group: &WeightGroupPlan,
        memory: &mut DeviceBuffer<Page>,
        used: Option<&StreamMark>,
        link: Option<&mut GpuLink>,
    ) -> Result<Option<BroughtGroup>, EngineError> {
        let Some(link) = link else {
            let begun = Instant::now();
            let starts = self
                .reader
                .stream(group, memory.host_mut(), &self.abandon)?;
            return Ok(starts.map(|starts| BroughtGroup {
                starts,
                arrival: None,
                read_since: Some(begun),
            }));
        };
        link.send(&self.reader, group, memory.span(), used, &self.abandon)
    }

    /// The unit that comes next of those that are to be kept in the host's memory: read while all slots are full, so that
    /// passes to come needn't.
    fn next_to_pin(&self, state: &StreamState, link: Option<&GpuLink>) -> Option<usize> {
        let link = link.filter(|_| state.failed.is_none())?;
        let count = self.cycle.len();
        let mut places = (0..count).map(|ahead| (state.next + ahead) % count);
        places.find(|&place| link.wants(&self.cycle[place]))
    }

    /// Has a unit that is read only to be kept wait, where another one is wanted now.
    fn give_up_pinning(&self, state: &StreamState, wanted: usize) {
        if state.pinning.is_some_and(|place| place != wanted) {
            self.abandon.store(true, Ordering::Relaxed);
            self.changed.notify_all();
        }
    }

    /// Reads a unit to where it is kept.
    fn pin(
        &self,
        place: usize,
        link: &mut GpuLink,
        pace: Option<&mut ReadPace>,
    ) -> MutexGuard<'_, StreamState> {
        let (begun, unit) = (Instant::now(), &self.cycle[place]);
        let read = || link.pin(&self.reader, unit, &self.abandon);
        let result = catch_unwind(AssertUnwindSafe(read)).unwrap_or(Err(EngineError::Panicked));
        if let (Some(pace), Ok(PinOutcome::Read)) = (pace, &result) {
            self.wait_until(pace.due(begun, unit.file_bytes()));
        }
        let mut state = self.state();
        state.pinning = None;
        state.stats.pinned_bytes = link.pinned_weight_bytes();
        if let Err(error) = result {
            // Whoever asks for another unit next has all go on.
            state.failed = Some((place, error));
        }
        state
    }
}

/// What was brought to a slot.
pub(super) struct BroughtGroup {
    /// Where each tensor starts there.
    pub(super) starts: Vec<usize>,
    /// On a card: when it is there.
    pub(super) arrival: Option<CopyMarks>,
    /// When files began to be read for it.
    pub(super) read_since: Option<Instant>,
}

/// A filled slot in use; dropped, it goes back to the reader.
#[derive(Debug)]
pub(super) struct StagedGroup {
    /// Taken by drop alone.
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
            // Work on the card still reads it. Where no mark can be had that work is waited for; if that fails, too, the card
            // has failed, and nothing is copied any more.
            let used = self.shared.gpu.as_ref().and_then(|gpu| {
                let mark = gpu.mark().ok();
                if mark.is_none() {
                    drop(gpu.synchronize());
                }
                mark
            });
            let mut state = self.shared.state();
            state.free.push(FreeBuffer {
                memory: loaded.memory,
                used,
            });
            let next = state.next;
            self.shared.give_up_pinning(&state, next);
            drop(state);
            self.shared.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests;
