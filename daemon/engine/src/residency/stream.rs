//! Streaming: a thread of its own reads units ahead of the pass into a few slots, round and round through the same
//! cycle. The last unit's successor is the first of the next pass, so the reader never drains, whoever asks.
//!
//! Slots change hands by value. What the reader holds nobody else can see, so a read that is given up leaves no
//! half-filled slot behind.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    pace::Pace,
    reader::{Loaded, Reader},
};
use crate::{
    device::{Device, DeviceBuffer},
    error::EngineError,
    ledger::{Kind, Ledger},
    page::{PAGE_BYTES, Page},
    plan::{Slots, UnitPlan},
};

/// The slots and the thread that fills them.
#[derive(Debug)]
pub(super) struct Stream {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    reader: Arc<Reader>,
    /// The units in the order of a pass.
    cycle: Vec<UnitPlan>,
    state: Mutex<State>,
    changed: Condvar,
    /// Set to give up the present read.
    abandon: AtomicBool,
}

#[derive(Debug)]
struct State {
    free: Vec<DeviceBuffer<Page>>,
    /// Filled.
    ready: Vec<Ready>,
    /// Being filled.
    filling: Option<usize>,
    /// To be filled next.
    next: usize,
    /// What could not be read, with its place in the cycle. The reader pauses until somebody asks for a unit.
    failed: Option<(usize, EngineError)>,
    stopped: bool,
    stats: StreamStats,
}

/// A unit in a slot.
#[derive(Debug)]
struct Ready {
    /// In the cycle.
    place: usize,
    loaded: Loaded,
    /// Time it took.
    time: Duration,
}

impl State {
    /// What is to be read, and the slot to read it into, if there is both and no failure to be heard of first.
    fn start_next(&mut self, cycle: usize) -> Option<(usize, DeviceBuffer<Page>)> {
        if self.failed.is_some() {
            return None;
        }
        // After a jump some of what comes next may be there already.
        let next = (0..cycle)
            .map(|ahead| (self.next + ahead) % cycle)
            .find(|next| self.ready.iter().all(|ready| ready.place != *next))?;
        Some((next, self.free.pop()?))
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
}

impl StreamStats {
    /// What it cost since then. All begins anew when another plan is put in force.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            waited: self.waited.saturating_sub(before.waited),
            bytes: self.bytes.saturating_sub(before.bytes),
            copied: self.copied.saturating_sub(before.copied),
        }
    }
}

impl Stream {
    /// Memory for the slots.
    pub(super) fn slots(
        slots: Slots,
        device: &Device,
        ledger: &Ledger,
    ) -> Result<Vec<DeviceBuffer<Page>>, EngineError> {
        let pages = slots.bytes as usize / PAGE_BYTES;
        (0..slots.count)
            .map(|_| DeviceBuffer::new(device, ledger, Kind::Slots, pages))
            .collect()
    }

    /// Begins to read the units of `cycle` into `free`.
    pub(super) fn start(
        reader: Arc<Reader>,
        cycle: Vec<UnitPlan>,
        free: Vec<DeviceBuffer<Page>>,
    ) -> Result<Self, EngineError> {
        let shared = Arc::new(Shared {
            reader,
            cycle,
            state: Mutex::new(State {
                free,
                ready: Vec::new(),
                filling: None,
                next: 0,
                failed: None,
                stopped: false,
                stats: StreamStats::default(),
            }),
            changed: Condvar::new(),
            abandon: AtomicBool::new(false),
        });
        let thread = thread::Builder::new()
            .name("sluice-prefetch".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.fill_slots()
            })
            .map_err(|error| EngineError::Threads(error.to_string()))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Waits for the unit at this place of the cycle.
    pub(super) fn take(&self, place: usize) -> Result<Slot, EngineError> {
        let begun = Instant::now();
        let mut state = self.shared.state();
        if let Some((failed, _)) = state.failed.take() {
            // Nobody waited for it then, and the file may be whole again.
            state.next = failed;
            self.shared.changed.notify_all();
        }
        let Ready { loaded, time, .. } = loop {
            if let Some(index) = state.ready.iter().position(|ready| ready.place == place) {
                break state.ready.swap_remove(index);
            }
            if let Some((failed, error)) = state.failed.take() {
                state.next = place;
                if failed == place {
                    return Err(error);
                }
            }
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
                    .extend(stale.into_iter().map(|ready| ready.loaded.memory));
            }
            self.shared.changed.notify_all();
            state = self.shared.wait(state);
        };
        state.stats.waited += begun.elapsed();
        state.stats.bytes += self.shared.cycle[place].bytes();
        state.stats.copied += time;
        drop(state);
        Ok(Slot {
            loaded: Some(loaded),
            shared: Arc::clone(&self.shared),
        })
    }

    /// Ends it and gives the slots back; none may be in use.
    pub(super) fn into_slots(mut self) -> Vec<DeviceBuffer<Page>> {
        self.stop();
        let mut state = self.shared.state();
        let ready = std::mem::take(&mut state.ready);
        let mut slots = std::mem::take(&mut state.free);
        slots.extend(ready.into_iter().map(|ready| ready.loaded.memory));
        slots
    }

    fn stop(&mut self) {
        // Together: a reader that has looked at one of them and is about to wait would miss the call.
        let mut state = self.shared.state();
        state.stopped = true;
        self.shared.abandon.store(true, Ordering::Relaxed);
        drop(state);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the reader has shown itself as a unit that never came.
            drop(thread.join());
        }
    }

    /// What streaming cost so far.
    pub(super) fn stats(&self) -> StreamStats {
        self.shared.state().stats
    }

    /// Places of the cycle that wait filled, and the one being filled.
    pub(super) fn in_flight(&self) -> Vec<usize> {
        let state = self.shared.state();
        let ready = state.ready.iter().map(|ready| ready.place);
        ready.chain(state.filling).collect()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
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
    fn fill_slots(&self) {
        let mut pace = self.reader.limit_bytes_per_s().map(Pace::new);
        let mut state = self.state();
        loop {
            if state.stopped {
                return;
            }
            let Some((next, mut memory)) = state.start_next(self.cycle.len()) else {
                state = self.wait(state);
                continue;
            };
            state.filling = Some(next);
            state.next = (next + 1) % self.cycle.len();
            self.abandon.store(false, Ordering::Relaxed);
            drop(state);
            let begun = Instant::now();
            let unit = &self.cycle[next];
            let read = || self.reader.stream(unit, memory.host_mut(), &self.abandon);
            // Whoever waits for this unit must hear of it, whatever happens.
            let mut result =
                catch_unwind(AssertUnwindSafe(read)).unwrap_or(Err(EngineError::Panicked));
            if let (Some(pace), Ok(Some(_))) = (&mut pace, &result)
                && !self.wait_until(pace.due(begun, unit.file_bytes()))
            {
                result = Ok(None);
            }
            state = self.state();
            state.filling = None;
            match result {
                Ok(Some(starts)) => {
                    let coded = self.reader.coded(&self.cycle[next]);
                    let loaded = Loaded {
                        memory,
                        starts,
                        coded,
                    };
                    state.ready.push(Ready {
                        place: next,
                        loaded,
                        time: begun.elapsed(),
                    });
                }
                Ok(None) => state.free.push(memory),
                Err(error) => {
                    state.free.push(memory);
                    state.failed = Some((next, error));
                }
            }
            self.changed.notify_all();
        }
    }
}

/// A filled slot in use; dropped, it goes back to the reader.
#[derive(Debug)]
pub(super) struct Slot {
    /// Taken by drop alone.
    loaded: Option<Loaded>,
    shared: Arc<Shared>,
}

impl Slot {
    pub(super) fn loaded(&self) -> &Loaded {
        self.loaded.as_ref().expect("only drop takes it")
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(loaded) = self.loaded.take() {
            self.shared.state().free.push(loaded.memory);
            self.shared.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests;
