//! Bringing a unit's bytes from files to where they are computed with: read as they are, or converted on the way.

use std::sync::{Arc, atomic::AtomicBool};

use super::{convert, weight::Data};
use crate::{
    checkpoint::{Checkpoint, TensorEntry},
    device::{Device, DeviceBuffer},
    error::EngineError,
    page::{PAGE_BYTES, Page},
    plan::{
        SourceTensor, TensorPlan, Tier, UnitPlan,
        layout::{self, Layout, Place},
    },
};

/// Numbers are at least so aligned in files that were written with care.
const NUMBER_BYTES: usize = 4;

/// The files that weights come from.
#[derive(Debug, Clone)]
pub struct Reader {
    checkpoint: Arc<Checkpoint>,
    /// Of each of the model's tensors, in the checkpoint.
    entries: Vec<TensorEntry>,
    /// Converted copies on disk, with the tensors they have: on the way from one level to another, two are read from.
    derivatives: Vec<(Arc<Checkpoint>, Vec<Option<TensorEntry>>)>,
}

/// A unit's bytes in the device's memory.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) memory: DeviceBuffer<Page>,
    /// Where each tensor starts, in bytes.
    pub(crate) starts: Vec<usize>,
}

impl Loaded {
    /// The bytes of a tensor.
    pub(crate) fn tensor(&self, index: usize, len: usize) -> Data<'_> {
        let start = self.starts[index];
        match &self.memory {
            DeviceBuffer::Host(pages) => {
                let bytes: &[u8] = bytemuck::cast_slice(pages);
                Data::Host(&bytes[start..start + len])
            }
            on_card @ DeviceBuffer::Gpu(_) => Data::Card(on_card.span().part(start, len)),
        }
    }
}

impl Reader {
    /// Reads from the checkpoint, whose headers `sources` were checked against.
    ///
    /// # Panics
    /// When they were not.
    #[must_use]
    pub fn new(checkpoint: Arc<Checkpoint>, sources: &[SourceTensor]) -> Self {
        Self {
            entries: entries(&checkpoint, sources)
                .map(|entry| entry.expect("every source was checked against the checkpoint"))
                .collect(),
            checkpoint,
            derivatives: Vec::new(),
        }
    }

    /// The checkpoint.
    pub(crate) fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.checkpoint
    }

    /// Reads converted tensors from `derivative`, too, where it has them; no more from one that it has all of.
    pub(crate) fn with_derivative(
        mut self,
        derivative: Arc<Checkpoint>,
        sources: &[SourceTensor],
    ) -> Self {
        let entries: Vec<_> = entries(&derivative, sources).collect();
        let format = |entry: &Option<TensorEntry>| entry.as_ref().map(|entry| entry.format.clone());
        let has_all_of = |old: &[Option<TensorEntry>]| {
            let mut pairs = old.iter().zip(&entries);
            pairs.all(|(old, new)| old.is_none() || format(old) == format(new))
        };
        self.derivatives.retain(|(_, old)| !has_all_of(old));
        self.derivatives.push((derivative, entries));
        self
    }

    /// Whether all of a unit lies on disk as it is kept for computing, so that it can be streamed. What lies in a copy
    /// that has changed since it was opened doesn't.
    pub(crate) fn has_stored(&self, unit: &UnitPlan) -> bool {
        let is_sound = |(file, entry): (&Checkpoint, &TensorEntry)| {
            // Nothing can take the place of the checkpoint itself: who reads it is told.
            std::ptr::eq(file, &*self.checkpoint) || file.check_unchanged(entry).is_ok()
        };
        unit.tensors
            .iter()
            .all(|tensor| self.stored(tensor).is_some_and(is_sound))
    }

    /// How many converted copies have changed since they were opened.
    pub(crate) fn changed_derivatives(&self) -> usize {
        let changed = |(copy, _): &&(Arc<Checkpoint>, _)| copy.check_all_unchanged().is_err();
        self.derivatives.iter().filter(changed).count()
    }

    /// Reads a unit to where it stays, converting what is stored otherwise; `None` when cancelled.
    pub(crate) fn load(
        &self,
        unit: &UnitPlan,
        mut memory: DeviceBuffer<Page>,
        device: &Device,
        cancel: &AtomicBool,
    ) -> Result<Option<Loaded>, EngineError> {
        let layout = layout::resident(&unit.tensors);
        // What goes to a card is put together here first: one unit for each load under way.
        let mut staging = Vec::new();
        let pages: &mut [Page] = match &mut memory {
            DeviceBuffer::Host(pages) => pages,
            DeviceBuffer::Gpu(_) => {
                staging = bytemuck::zeroed_vec(layout.bytes as usize / PAGE_BYTES);
                &mut staging
            }
        };
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(pages);
        for (tensor, place) in unit.tensors.iter().zip(&layout.places) {
            let out = &mut bytes[place.offset as usize..][..place.bytes as usize];
            let done = match self.stored(tensor) {
                Some((checkpoint, entry)) => {
                    read_in_pieces(checkpoint, entry, tensor, out, cancel)?
                }
                None => self.convert(tensor, device, out, cancel)?,
            };
            if !done {
                return Ok(None);
            }
        }
        if let Some(gpu) = device.gpu() {
            // Nobody knows of this memory yet: passes of the model that serves go on.
            gpu.upload_beside(memory.span(), bytemuck::cast_slice(&staging))?;
        }
        Ok(Some(Loaded {
            memory,
            starts: starts(&layout),
        }))
    }

    /// Reads a tensor of the checkpoint and stores it as the plan says; false when cancelled.
    pub(crate) fn convert(
        &self,
        tensor: &TensorPlan,
        device: &Device,
        out: &mut [u8],
        cancel: &AtomicBool,
    ) -> Result<bool, EngineError> {
        let entry = &self.entries[tensor.tensor];
        self.checkpoint.check_unchanged(entry)?;
        let read = |part, out: &mut [u8]| self.checkpoint.read_part(entry, part, out);
        let done = convert::convert(device, tensor, read, out, cancel)?;
        self.checkpoint.check_unchanged(entry)?;
        Ok(done)
    }

    /// Reads a unit into a slot; `None`, with the slot's memory lost to nobody, when cancelled.
    ///
    /// # Panics
    /// When the unit isn't stored as it is kept.
    pub(crate) fn stream(
        &self,
        unit: &UnitPlan,
        memory: &mut [Page],
        cancel: &AtomicBool,
    ) -> Result<Option<Vec<usize>>, EngineError> {
        let layout = layout::slot(&unit.tensors);
        let mut starts = Vec::with_capacity(layout.places.len());
        for (tensor, place) in unit.tensors.iter().zip(&layout.places) {
            let (checkpoint, entry) = self
                .stored(tensor)
                .expect("what is streamed is stored as it is kept");
            let start = match unit.tier == Tier::Disk && place.is_direct {
                true => read_direct(checkpoint, entry, tensor, place, memory, cancel)?,
                false => {
                    let bytes: &mut [u8] = bytemuck::cast_slice_mut(memory);
                    let out = &mut bytes[place.offset as usize..][..tensor.bytes() as usize];
                    read_in_pieces(checkpoint, entry, tensor, out, cancel)?
                        .then_some(place.offset as usize)
                }
            };
            match start {
                Some(start) => starts.push(start),
                None => return Ok(None),
            }
        }
        Ok(Some(starts))
    }

    /// One row of a tensor as it is stored in the checkpoint.
    pub(crate) fn row(
        &self,
        tensor: &TensorPlan,
        row: usize,
        out: &mut [u8],
    ) -> Result<(), EngineError> {
        let entry = &self.entries[tensor.tensor];
        let start = (row * out.len()) as u64;
        self.checkpoint
            .read_part(entry, start..start + out.len() as u64, out)?;
        Ok(self.checkpoint.check_unchanged(entry)?)
    }

    /// Whether the file behind a tensor of the checkpoint is still what it was.
    pub(crate) fn check_unchanged(&self, tensor: &TensorPlan) -> Result<(), EngineError> {
        Ok(self
            .checkpoint
            .check_unchanged(&self.entries[tensor.tensor])?)
    }

    /// Where a tensor lies as it is kept for computing.
    fn stored(&self, tensor: &TensorPlan) -> Option<(&Checkpoint, &TensorEntry)> {
        let format = tensor.storage.format();
        if format == tensor.source {
            return Some((&self.checkpoint, &self.entries[tensor.tensor]));
        }
        self.derivatives.iter().find_map(|(derivative, entries)| {
            let entry = entries[tensor.tensor].as_ref()?;
            (entry.format == Ok(format)).then_some((&**derivative, entry))
        })
    }
}

fn entries(
    checkpoint: &Checkpoint,
    sources: &[SourceTensor],
) -> impl Iterator<Item = Option<TensorEntry>> {
    sources
        .iter()
        .map(|source| checkpoint.tensor(&source.spec.name).cloned())
}

fn starts(layout: &Layout) -> Vec<usize> {
    let starts = layout.places.iter().map(|place| place.offset as usize);
    starts.collect()
}

/// The rows of a plan's tensor, as bytes of the stored one.
fn part_of(tensor: &TensorPlan) -> std::ops::Range<u64> {
    let start = tensor.storage.bytes(tensor.first_row, tensor.width);
    start..start + tensor.bytes()
}

/// Reads through the system's cache, looking for a cancel now and then.
fn read_in_pieces(
    checkpoint: &Checkpoint,
    entry: &TensorEntry,
    tensor: &TensorPlan,
    out: &mut [u8],
    cancel: &AtomicBool,
) -> Result<bool, EngineError> {
    /// Some milliseconds of a disk.
    const PIECE_BYTES: usize = 8 << 20;
    checkpoint.check_unchanged(entry)?;
    let part = part_of(tensor);
    let mut at = part.start;
    checkpoint.will_need(entry, part);
    for piece in out.chunks_mut(PIECE_BYTES) {
        if cancel.load(std::sync::atomic::Ordering::Relaxed) {
            return Ok(false);
        }
        let end = at + piece.len() as u64;
        checkpoint.read_part(entry, at..end, piece)?;
        at = end;
    }
    // Half of it may be of what was written meanwhile.
    checkpoint.check_unchanged(entry)?;
    Ok(true)
}

/// Reads past the system's cache; where the tensor starts, in bytes.
fn read_direct(
    checkpoint: &Checkpoint,
    entry: &TensorEntry,
    tensor: &TensorPlan,
    place: &Place,
    memory: &mut [Page],
    cancel: &AtomicBool,
) -> Result<Option<usize>, EngineError> {
    checkpoint.check_unchanged(entry)?;
    let page = size_of::<Page>();
    let first = place.offset as usize / page;
    let pages = &mut memory[first..first + place.bytes as usize / page];
    let Some(start) = checkpoint.read_direct(entry, part_of(tensor), pages, cancel)? else {
        return Ok(None);
    };
    checkpoint.check_unchanged(entry)?;
    let len = tensor.bytes() as usize;
    // A file with an odd header leaves numbers across the borders that arithmetic wants.
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(pages);
    let aligned = start - start % NUMBER_BYTES;
    if aligned != start {
        bytes.copy_within(start..start + len, aligned);
    }
    Ok(Some(place.offset as usize + aligned))
}
