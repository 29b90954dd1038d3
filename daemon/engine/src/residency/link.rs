//! The way from the host to a card: memory of the host that streamed units are kept in or read to, and the copies from there,
//! which run beside the card's work.
//!
//! A unit that is kept lies in pinned memory of exactly its size, from when it is first read for as long as it is streamed
//! alike, and each pass copies it from there. How much is kept has a limit, since what is pinned no other program gets. The
//! others are read in every pass, into one of two staging buffers, while the other one is copied from. Where the system pins
//! no more, the rest is staged; where it pins nothing, the buffers are memory as any other. So it is where another model has
//! pinned what the limit allows, until that has gone.
//!
//! Order is made of marks alone: a copy into a slot waits for the work that read the slot before, work on a slot for the copy
//! into it. The host waits only before it writes to memory that copies are made from.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use sluice_cuda::{CopyStream, CudaError, Gpu, HostMemory, Mark, Span};
use sluice_machine::page::Page;
use sluice_ops::ledger::{Ledger, PinnedEntry};
use sluice_plan::{Pinned, STAGING, keep_limit};
use sluice_weights::{Unit, UnitPlan, layout};

use super::{reader::Reader, stream::Brought};
use crate::error::EngineError;

/// The stream of copies to a card, and the memory they are made from.
#[derive(Debug)]
pub(super) struct Link {
    copies: CopyStream,
    kept: HashMap<Unit, Kept>,
    /// Those that are to be kept.
    keeps: HashSet<Unit>,
    /// Most bytes that are pinned, by all that share the account.
    limit_bytes: u64,
    /// Whether some of them are for staging buffers.
    pins_staging: bool,
    /// The system has pinned no more.
    is_refused: bool,
    staging: [Option<Staging>; STAGING],
    /// The next one to be read into.
    turn: usize,
    /// Where what is pinned is counted.
    ledger: Ledger,
    gpu: Gpu,
}

/// A unit in pinned memory.
#[derive(Debug)]
struct Kept {
    unit: UnitPlan,
    memory: HostMemory,
    /// Where each tensor starts there.
    starts: Vec<usize>,
    // After the memory: it is given back first.
    _entry: PinnedEntry,
}

/// A buffer for units that aren't kept.
#[derive(Debug)]
struct Staging {
    memory: HostMemory,
    /// Where it is pinned.
    entry: Option<PinnedEntry>,
}

/// What came of reading a unit to where it is kept.
pub(super) enum Keeping {
    /// It is there.
    Read,
    /// There is no more memory that may be pinned.
    Refused,
    /// Somebody gave it up.
    Cancelled,
}

/// A copy on its way, or done.
#[derive(Debug)]
pub(super) struct Arrival {
    /// When it began, by the card's clock.
    pub(super) begin: Mark,
    /// When all of it is there.
    pub(super) end: Mark,
}

impl Link {
    /// To this card, with at most so many bytes in pinned memory, those included that others have in this account.
    pub(super) fn new(gpu: &Gpu, limit_bytes: u64, ledger: &Ledger) -> Result<Self, EngineError> {
        Ok(Self {
            copies: CopyStream::new(gpu)?,
            kept: HashMap::new(),
            keeps: HashSet::new(),
            limit_bytes,
            pins_staging: false,
            is_refused: false,
            staging: [const { None }; STAGING],
            turn: 0,
            ledger: ledger.clone(),
            gpu: gpu.clone(),
        })
    }

    /// Lets go of what is kept of units that are streamed otherwise now, or no more, and of buffers that are larger than they
    /// need to be: what they have of the limit others want.
    pub(super) fn fit(&mut self, cycle: &[UnitPlan]) {
        let keep_limit_bytes = keep_limit(self.limit_bytes, cycle);
        let mut pinned = Pinned::new(keep_limit_bytes);
        let keeps: Vec<_> = cycle.iter().filter(|unit| pinned.takes(unit)).collect();
        self.kept.retain(|_, kept| keeps.contains(&&kept.unit));
        self.keeps = keeps.iter().map(|unit| unit.unit).collect();
        self.pins_staging = keep_limit_bytes < self.limit_bytes;
        let staged = cycle.iter().filter(|unit| !self.keeps.contains(&unit.unit));
        let most = staged.map(UnitPlan::slot_bytes).max().unwrap_or(0);
        for buffer in &mut self.staging {
            buffer.take_if(|buffer| buffer.memory.len() as u64 > most);
        }
        self.is_refused = false;
    }

    /// Bytes that are kept in pinned memory.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept
            .values()
            .map(|kept| kept.memory.len() as u64)
            .sum()
    }

    /// Whether the unit is to be kept and isn't yet.
    pub(super) fn wants(&self, unit: &UnitPlan) -> bool {
        !self.is_refused
            && self.keeps.contains(&unit.unit)
            && !self.kept.contains_key(&unit.unit)
            && self.may_pin(unit.slot_bytes())
    }

    /// Whether the limit has room for so many bytes at this moment.
    fn may_pin(&self, bytes: u64) -> bool {
        let pinned_bytes = self.ledger.pinned_bytes();
        pinned_bytes.saturating_add(bytes) <= self.limit_bytes
    }

    /// Reads a unit to where it is kept, if there is such memory.
    pub(super) fn keep(
        &mut self,
        reader: &Reader,
        unit: &UnitPlan,
        cancel: &AtomicBool,
    ) -> Result<Keeping, EngineError> {
        let bytes = unit.slot_bytes();
        let Some(entry) = self.ledger.pin(bytes, self.limit_bytes) else {
            return Ok(Keeping::Refused);
        };
        let mut memory = match HostMemory::pinned(&self.gpu, bytes as usize) {
            Ok(memory) => memory,
            Err(CudaError::OutOfPinnedMemory { .. }) => {
                self.is_refused = true;
                return Ok(Keeping::Refused);
            }
            Err(error) => return Err(error.into()),
        };
        let Some(starts) = read(reader, unit, &mut memory, cancel)? else {
            return Ok(Keeping::Cancelled);
        };
        let unit = unit.clone();
        let kept = Kept {
            unit,
            memory,
            starts,
            _entry: entry,
        };
        self.kept.insert(kept.unit.unit, kept);
        Ok(Keeping::Read)
    }

    /// Sends a unit to a slot, after the work that the slot was used for; `None` when reading it was cancelled.
    pub(super) fn send(
        &mut self,
        reader: &Reader,
        unit: &UnitPlan,
        slot: Span,
        used: Option<&Mark>,
        cancel: &AtomicBool,
    ) -> Result<Option<Brought>, EngineError> {
        let begun = Instant::now();
        let mut read_since = None;
        if self.wants(unit) {
            match self.keep(reader, unit, cancel)? {
                Keeping::Read => read_since = Some(begun),
                Keeping::Refused => {}
                Keeping::Cancelled => return Ok(None),
            }
        }
        let staged;
        let (memory, from) = match self.kept.get(&unit.unit) {
            Some(kept) => (&kept.memory, &kept.starts),
            None => {
                read_since = Some(begun);
                let turn = self.ready_staging(unit.slot_bytes())?;
                let buffer = self.staging[turn].as_mut();
                let memory = &mut buffer.expect("it was made ready").memory;
                let Some(starts) = read(reader, unit, memory, cancel)? else {
                    return Ok(None);
                };
                staged = starts;
                (&*memory, &staged)
            }
        };
        let places = layout::resident(unit.sizes()).places;
        let parts = unit.tensors.iter().zip(&places).zip(from);
        let parts = parts.map(|((tensor, place), &start)| {
            let bytes = tensor.bytes() as usize;
            let to = slot.part(place.offset as usize, bytes);
            (to, start..start + bytes)
        });
        if let Some(used) = used {
            self.copies.begin_after(used)?;
        }
        let begin = self.copies.mark()?;
        self.copies.copy(memory, parts)?;
        let end = self.copies.mark()?;
        Ok(Some(Brought {
            arrival: Some(Arrival { begin, end }),
            starts: places.iter().map(|place| place.offset as usize).collect(),
            read_since,
        }))
    }

    /// Makes the staging buffer ready whose turn it is, of this size at least: pinned if that may be and can be had. Tells
    /// which it is.
    fn ready_staging(&mut self, bytes: u64) -> Result<usize, EngineError> {
        let may_pin = self.pins_staging && !self.is_refused && self.may_pin(bytes);
        let turn = self.turn;
        self.turn = (turn + 1) % STAGING;
        // One that could not be pinned, beside another model, is once there is room.
        let is_good = |buffer: &Staging| {
            buffer.memory.len() as u64 >= bytes && (buffer.entry.is_some() || !may_pin)
        };
        if !self.staging[turn].as_ref().is_some_and(is_good) {
            // The old one first: there may be no room for both.
            self.staging[turn] = None;
            self.staging[turn] = Some(self.new_staging(bytes)?);
        }
        Ok(turn)
    }

    fn new_staging(&mut self, bytes: u64) -> Result<Staging, EngineError> {
        let entry = match self.pins_staging && !self.is_refused {
            true => self.ledger.pin(bytes, self.limit_bytes),
            false => None,
        };
        if let Some(entry) = entry {
            match HostMemory::pinned(&self.gpu, bytes as usize) {
                Ok(memory) => {
                    return Ok(Staging {
                        memory,
                        entry: Some(entry),
                    });
                }
                Err(CudaError::OutOfPinnedMemory { .. }) => self.is_refused = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Staging {
            memory: HostMemory::pageable(&self.gpu, bytes as usize)?,
            entry: None,
        })
    }

    /// The card.
    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Waits until nothing is on its way.
    pub(super) fn wait(&self) -> Result<(), EngineError> {
        Ok(self.copies.wait()?)
    }
}

/// Reads a unit from files; where each of its tensors starts, or `None` when cancelled.
fn read(
    reader: &Reader,
    unit: &UnitPlan,
    memory: &mut HostMemory,
    cancel: &AtomicBool,
) -> Result<Option<Vec<usize>>, EngineError> {
    let bytes = memory.to_write()?;
    let pages: &mut [Page] = bytemuck::cast_slice_mut(bytes);
    reader.stream(unit, pages, cancel)
}

/// What a unit's way took, and how long work waited for it, by the card's clock: known once both are past.
#[derive(Debug)]
pub(super) struct Passage {
    pub(super) arrival: Arrival,
    /// Around the wait.
    pub(super) asked: Mark,
    pub(super) got: Mark,
}

/// The card's times of one passage.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PassageTimes {
    pub(super) copied: Duration,
    pub(super) waited: Duration,
}

impl Passage {
    /// Its times, if all of it is past.
    pub(super) fn times(&self) -> Result<Option<PassageTimes>, CudaError> {
        let waited = self.got.since(&self.asked)?;
        let copied = self.arrival.end.since(&self.arrival.begin)?;
        Ok(copied
            .zip(waited)
            .map(|(copied, waited)| PassageTimes { copied, waited }))
    }
}
