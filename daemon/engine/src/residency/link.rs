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

use sluice_cuda::{CopyStream, CudaError, Gpu, GpuSpan, HostMemory, StreamMark};
use sluice_machine::page::Page;
use sluice_ops::ledger::{Ledger, PinnedEntry};
use sluice_plan::{PINNED_STAGING_BUFFERS, PinnedBudget, pinned_weights_limit};
use sluice_weights::{WeightGroup, WeightGroupPlan, layout};

use super::{reader::WeightReader, stream::BroughtGroup};
use crate::error::EngineError;

/// The stream of copies to a card, and the memory they are made from.
#[derive(Debug)]
pub(super) struct GpuLink {
    copies: CopyStream,
    pinned: HashMap<WeightGroup, PinnedGroup>,
    /// Those that are to be kept.
    to_pin: HashSet<WeightGroup>,
    /// Most bytes that are pinned, by all that share the account.
    limit_bytes: u64,
    /// Whether some of them are for staging buffers.
    pins_staging: bool,
    /// The system has pinned no more.
    is_refused: bool,
    staging: [Option<StagingBuffer>; PINNED_STAGING_BUFFERS],
    /// The next one to be read into.
    next_staging: usize,
    /// Where what is pinned is counted.
    ledger: Ledger,
    gpu: Gpu,
}

/// A unit in pinned memory.
#[derive(Debug)]
struct PinnedGroup {
    group: WeightGroupPlan,
    memory: HostMemory,
    /// Where each tensor starts there.
    starts: Vec<usize>,
    // After the memory: it is given back first.
    _entry: PinnedEntry,
}

/// A buffer for units that aren't kept.
#[derive(Debug)]
struct StagingBuffer {
    memory: HostMemory,
    /// Where it is pinned.
    entry: Option<PinnedEntry>,
}

/// What came of reading a unit to where it is kept.
pub(super) enum PinOutcome {
    /// It is there.
    Read,
    /// There is no more memory that may be pinned.
    Refused,
    /// Somebody gave it up.
    Cancelled,
}

/// A copy on its way, or done.
#[derive(Debug)]
pub(super) struct CopyMarks {
    /// When it began, by the card's clock.
    pub(super) begin: StreamMark,
    /// When all of it is there.
    pub(super) end: StreamMark,
}

impl GpuLink {
    /// To this card, with at most so many bytes in pinned memory, those included that others have in this account.
    pub(super) fn new(gpu: &Gpu, limit_bytes: u64, ledger: &Ledger) -> Result<Self, EngineError> {
        Ok(Self {
            copies: CopyStream::new(gpu)?,
            pinned: HashMap::new(),
            to_pin: HashSet::new(),
            limit_bytes,
            pins_staging: false,
            is_refused: false,
            staging: [const { None }; PINNED_STAGING_BUFFERS],
            next_staging: 0,
            ledger: ledger.clone(),
            gpu: gpu.clone(),
        })
    }

    /// Lets go of what is kept of units that are streamed otherwise now, or no more, and of buffers that are larger than they
    /// need to be: what they have of the limit others want.
    pub(super) fn fit(&mut self, cycle: &[WeightGroupPlan]) {
        let keep_limit_bytes = pinned_weights_limit(self.limit_bytes, cycle);
        let mut pinned = PinnedBudget::new(keep_limit_bytes);
        let keeps: Vec<_> = cycle.iter().filter(|unit| pinned.takes(unit)).collect();
        self.pinned.retain(|_, kept| keeps.contains(&&kept.group));
        self.to_pin = keeps.iter().map(|unit| unit.group).collect();
        self.pins_staging = keep_limit_bytes < self.limit_bytes;
        let staged = cycle
            .iter()
            .filter(|unit| !self.to_pin.contains(&unit.group));
        let most = staged
            .map(WeightGroupPlan::staging_bytes)
            .max()
            .unwrap_or(0);
        for buffer in &mut self.staging {
            buffer.take_if(|buffer| buffer.memory.len() as u64 > most);
        }
        self.is_refused = false;
    }

    /// Bytes that are kept in pinned memory.
    pub(super) fn pinned_weight_bytes(&self) -> u64 {
        self.pinned
            .values()
            .map(|kept| kept.memory.len() as u64)
            .sum()
    }

    /// Whether the unit is to be kept and isn't yet.
    pub(super) fn wants(&self, group: &WeightGroupPlan) -> bool {
        !self.is_refused
            && self.to_pin.contains(&group.group)
            && !self.pinned.contains_key(&group.group)
            && self.may_pin(group.staging_bytes())
    }

    /// Whether the limit has room for so many bytes at this moment.
    fn may_pin(&self, bytes: u64) -> bool {
        let pinned_bytes = self.ledger.pinned_bytes();
        pinned_bytes.saturating_add(bytes) <= self.limit_bytes
    }

    /// Reads a unit to where it is kept, if there is such memory.
    pub(super) fn pin(
        &mut self,
        reader: &WeightReader,
        group: &WeightGroupPlan,
        cancel: &AtomicBool,
    ) -> Result<PinOutcome, EngineError> {
        let bytes = group.staging_bytes();
        let Some(entry) = self.ledger.pin(bytes, self.limit_bytes) else {
            return Ok(PinOutcome::Refused);
        };
        let mut memory = match HostMemory::pinned(&self.gpu, bytes as usize) {
            Ok(memory) => memory,
            Err(CudaError::OutOfPinnedMemory { .. }) => {
                self.is_refused = true;
                return Ok(PinOutcome::Refused);
            }
            Err(error) => return Err(error.into()),
        };
        let Some(starts) = read(reader, group, &mut memory, cancel)? else {
            return Ok(PinOutcome::Cancelled);
        };
        let unit = group.clone();
        let kept = PinnedGroup {
            group: unit,
            memory,
            starts,
            _entry: entry,
        };
        self.pinned.insert(kept.group.group, kept);
        Ok(PinOutcome::Read)
    }

    /// Sends a unit to a slot, after the work that the slot was used for; `None` when reading it was cancelled.
    pub(super) fn send(
        &mut self,
        reader: &WeightReader,
        group: &WeightGroupPlan,
        staging: GpuSpan,
        used: Option<&StreamMark>,
        cancel: &AtomicBool,
    ) -> Result<Option<BroughtGroup>, EngineError> {
        let begun = Instant::now();
        let mut read_since = None;
        if self.wants(group) {
            match self.pin(reader, group, cancel)? {
                PinOutcome::Read => read_since = Some(begun),
                PinOutcome::Refused => {}
                PinOutcome::Cancelled => return Ok(None),
            }
        }
        let staged;
        let (memory, from) = match self.pinned.get(&group.group) {
            Some(kept) => (&kept.memory, &kept.starts),
            None => {
                read_since = Some(begun);
                let turn = self.ready_staging(group.staging_bytes())?;
                let buffer = self.staging[turn].as_mut();
                let memory = &mut buffer.expect("it was made ready").memory;
                let Some(starts) = read(reader, group, memory, cancel)? else {
                    return Ok(None);
                };
                staged = starts;
                (&*memory, &staged)
            }
        };
        let places = layout::resident(group.sizes()).placements;
        let parts = group.tensors.iter().zip(&places).zip(from);
        let parts = parts.map(|((tensor, place), &start)| {
            let bytes = tensor.bytes() as usize;
            let to = staging.part(place.offset as usize, bytes);
            (to, start..start + bytes)
        });
        if let Some(used) = used {
            self.copies.begin_after(used)?;
        }
        let begin = self.copies.mark()?;
        self.copies.copy(memory, parts)?;
        let end = self.copies.mark()?;
        Ok(Some(BroughtGroup {
            arrival: Some(CopyMarks { begin, end }),
            starts: places.iter().map(|place| place.offset as usize).collect(),
            read_since,
        }))
    }

    /// Makes the staging buffer ready whose turn it is, of this size at least: pinned if that may be and can be had. Tells
    /// which it is.
    fn ready_staging(&mut self, bytes: u64) -> Result<usize, EngineError> {
        let may_pin = self.pins_staging && !self.is_refused && self.may_pin(bytes);
        let turn = self.next_staging;
        self.next_staging = (turn + 1) % PINNED_STAGING_BUFFERS;
        // One that could not be pinned, beside another model, is once there is room.
        let is_good = |buffer: &StagingBuffer| {
            buffer.memory.len() as u64 >= bytes && (buffer.entry.is_some() || !may_pin)
        };
        if !self.staging[turn].as_ref().is_some_and(is_good) {
            // The old one first: there may be no room for both.
            self.staging[turn] = None;
            self.staging[turn] = Some(self.new_staging(bytes)?);
        }
        Ok(turn)
    }

    fn new_staging(&mut self, bytes: u64) -> Result<StagingBuffer, EngineError> {
        let entry = match self.pins_staging && !self.is_refused {
            true => self.ledger.pin(bytes, self.limit_bytes),
            false => None,
        };
        if let Some(entry) = entry {
            match HostMemory::pinned(&self.gpu, bytes as usize) {
                Ok(memory) => {
                    return Ok(StagingBuffer {
                        memory,
                        entry: Some(entry),
                    });
                }
                Err(CudaError::OutOfPinnedMemory { .. }) => self.is_refused = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(StagingBuffer {
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
    reader: &WeightReader,
    group: &WeightGroupPlan,
    memory: &mut HostMemory,
    cancel: &AtomicBool,
) -> Result<Option<Vec<usize>>, EngineError> {
    let bytes = memory.to_write()?;
    let pages: &mut [Page] = bytemuck::cast_slice_mut(bytes);
    reader.stream(group, pages, cancel)
}

/// What a unit's way took, and how long work waited for it, by the card's clock: known once both are past.
#[derive(Debug)]
pub(super) struct GroupTransfer {
    pub(super) arrival: CopyMarks,
    /// Around the wait.
    pub(super) asked: StreamMark,
    pub(super) got: StreamMark,
}

/// The card's times of one passage.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TransferTimes {
    pub(super) copied: Duration,
    pub(super) waited: Duration,
}

impl GroupTransfer {
    /// Its times, if all of it is past.
    pub(super) fn times(&self) -> Result<Option<TransferTimes>, CudaError> {
        let waited = self.got.since(&self.asked)?;
        let copied = self.arrival.end.since(&self.arrival.begin)?;
        Ok(copied
            .zip(waited)
            .map(|(copied, waited)| TransferTimes { copied, waited }))
    }
}
