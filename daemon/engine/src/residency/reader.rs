//! Bringing a unit's bytes from files to where they are computed with: read as they are, or converted on the way.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use sluice_checkpoint::{Checkpoint, CheckpointError, ReadMode, TensorEntry};
use sluice_codec::DecompressError;
use sluice_cuda::GpuSpan;
use sluice_machine::{
    Workers,
    mapped::MappedBuffer,
    page::{PAGE_BYTES, Page},
};
use sluice_ops::{
    OpsError,
    device::{Device, DeviceBuffer},
};
use sluice_plan::Plan;
use sluice_weights::{
    CompressedRange, CompressedRows, CompressedTensor, GpuCompressedRows, GpuWeight, OpenRows,
    SourceTensor, Storage, TensorPlan, Tier, WeightData, WeightGroupPlan,
    layout::{self, GroupLayout, TensorPlacement},
};

use super::convert;
use crate::error::EngineError;

/// Numbers are at least so aligned in files that were written with care.
const ELEMENT_BYTES: usize = 4;

/// The files that weights come from.
#[derive(Debug, Clone)]
pub struct WeightReader {
    checkpoint: Arc<Checkpoint>,
    /// Of each of the model's tensors, in the checkpoint.
    entries: Vec<TensorEntry>,
    /// The same, as they are coded there or in a copy beside.
    compressed: CompressedFile,
    /// Converted copies on disk, with the tensors they have: on the way from one level to another, two are read from.
    converted: Vec<(Arc<Checkpoint>, Vec<Option<TensorEntry>>)>,
    /// Most bytes a second that are streamed.
    limit_bytes_per_s: Option<u64>,
    /// Most bytes of what a card streams that are kept in pinned memory.
    pinned_memory_limit_bytes: u64,
}

/// A container that tensors are coded in: the checkpoint, or a copy of it.
#[derive(Debug, Clone)]
struct CompressedFile {
    container: Arc<Checkpoint>,
    /// Of each of the model's tensors, where its coded bytes lie, if it is coded.
    entries: Vec<Option<(TensorEntry, Arc<CompressedTensor>)>>,
}

impl CompressedFile {
    fn new(container: Arc<Checkpoint>, sources: &[SourceTensor]) -> Self {
        let entries = entries(&container, sources).map(|entry| {
            let entry = entry?;
            Some((Checkpoint::as_compressed(&entry), entry.compressed()?))
        });
        Self {
            entries: entries.collect(),
            container,
        }
    }

    fn entry(&self, tensor: usize) -> Option<&(TensorEntry, Arc<CompressedTensor>)> {
        self.entries[tensor].as_ref()
    }
}

/// A unit's bytes in the device's memory.
#[derive(Debug)]
pub(crate) struct LoadedGroup {
    pub(crate) memory: DeviceBuffer<Page>,
    /// Where each tensor starts, in bytes.
    pub(crate) starts: Vec<usize>,
    /// Of each tensor, how it is coded, if it is kept so.
    pub(crate) compressed: Vec<Option<Arc<CompressedTensor>>>,
}

impl LoadedGroup {
    /// The bytes of the unit's tensor of this number; on a card `decoded` is where they may be decoded into.
    pub(crate) fn tensor(
        &self,
        index: usize,
        tensor: &TensorPlan,
        decoded: GpuSpan,
    ) -> WeightData<'_> {
        let (start, len) = (self.starts[index], tensor.bytes() as usize);
        let coded = match (&self.compressed[index], tensor.storage) {
            (Some(coded), Storage::Compressed(coding)) => Some((coded, coding)),
            _ => None,
        };
        match &self.memory {
            DeviceBuffer::Host(pages) => {
                let bytes: &[u8] = bytemuck::cast_slice(pages);
                let bytes = &bytes[start..start + len];
                match coded {
                    Some((tensor_coded, coding)) => WeightData::Compressed(CompressedRows {
                        tensor: tensor_coded,
                        bytes,
                        base: coding.start,
                        first_row: tensor.first_row,
                    }),
                    None => WeightData::Host(bytes),
                }
            }
            on_card @ DeviceBuffer::Gpu(_) => {
                let all = on_card.span().part(start, len);
                WeightData::Gpu(GpuWeight {
                    span: coded.map_or(all, |(_, coding)| all.part(0, coding.bytes as usize)),
                    compressed: coded.map(|(tensor_coded, coding)| GpuCompressedRows {
                        tensor: tensor_coded,
                        index: index_of(coding, all),
                        base_row: tensor.first_row,
                        base_rows: tensor.rows,
                        first_row: tensor.first_row,
                    }),
                    decompressed: decoded,
                })
            }
        }
    }
}

impl WeightReader {
    /// Reads from the checkpoint, whose headers `sources` were checked against.
    ///
    /// # Panics
    /// When they were not.
    #[must_use]
    pub fn new(checkpoint: Arc<Checkpoint>, sources: &[SourceTensor]) -> Self {
        let entries: Vec<TensorEntry> = entries(&checkpoint, sources)
            .map(|entry| entry.expect("every source was checked against the checkpoint"))
            .collect();
        Self {
            compressed: CompressedFile::new(Arc::clone(&checkpoint), sources),
            entries,
            checkpoint,
            converted: Vec::new(),
            limit_bytes_per_s: None,
            pinned_memory_limit_bytes: 0,
        }
    }

    /// Keeps at most so many bytes of what a card streams in pinned memory of the host; at first none.
    #[must_use]
    pub fn with_pinned_memory_limit(mut self, bytes: u64) -> Self {
        self.pinned_memory_limit_bytes = bytes;
        self
    }

    /// Most bytes of what a card streams that are kept in pinned memory.
    pub(crate) fn pinned_memory_limit_bytes(&self) -> u64 {
        self.pinned_memory_limit_bytes
    }

    /// Streams at most so many bytes a second.
    pub(crate) fn with_limit(mut self, bytes_per_s: Option<u64>) -> Self {
        self.limit_bytes_per_s = bytes_per_s;
        self
    }

    /// Most bytes a second that are streamed.
    pub(crate) fn limit_bytes_per_s(&self) -> Option<u64> {
        self.limit_bytes_per_s
    }

    /// The checkpoint.
    pub(crate) fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.checkpoint
    }

    /// Reads converted tensors from `derivative`, too, where it has them; no more from one that it has all of.
    pub(crate) fn with_converted(
        mut self,
        converted: Arc<Checkpoint>,
        sources: &[SourceTensor],
    ) -> Self {
        let entries: Vec<_> = entries(&converted, sources).collect();
        let format = |entry: &Option<TensorEntry>| entry.as_ref().map(|entry| entry.format.clone());
        let has_all_of = |old: &[Option<TensorEntry>]| {
            let mut pairs = old.iter().zip(&entries);
            pairs.all(|(old, new)| old.is_none() || format(old) == format(new))
        };
        self.converted.retain(|(_, old)| !has_all_of(old));
        self.converted.push((converted, entries));
        self
    }

    /// Reads what is kept coded from a copy of the checkpoint, which isn't coded itself.
    pub(crate) fn with_compressed(
        mut self,
        weights: Arc<Checkpoint>,
        sources: &[SourceTensor],
    ) -> Self {
        weights.hold();
        self.compressed = CompressedFile::new(weights, sources);
        self
    }

    /// Reads no more from copies that a plan has no use for: others may delete them then.
    pub(crate) fn only_for(mut self, plan: &Plan) -> Self {
        let tensors = || plan.groups.iter().flat_map(|unit| &unit.tensors);
        let is_of_use = |entries: &[Option<TensorEntry>]| {
            tensors().any(|tensor| {
                let format = tensor.storage.format();
                let entry = entries[tensor.tensor].as_ref();
                format != tensor.source && entry.is_some_and(|entry| entry.format == Ok(format))
            })
        };
        self.converted.retain(|(_, entries)| is_of_use(entries));
        let is_copy = !Arc::ptr_eq(&self.compressed.container, &self.checkpoint);
        let is_coded = |tensor: &TensorPlan| matches!(tensor.storage, Storage::Compressed(_));
        if is_copy && !tensors().any(is_coded) {
            // Whoever plans keeps it open, and another plan may want it again.
            self.compressed.container.release();
            self.compressed = CompressedFile {
                container: Arc::clone(&self.checkpoint),
                entries: vec![None; self.compressed.entries.len()],
            };
        }
        self
    }

    /// Whether all of a unit lies on disk as it is kept for computing, so that it can be streamed. What lies in a copy
    /// that has changed since it was opened doesn't.
    pub(crate) fn has_stored(&self, group: &WeightGroupPlan) -> bool {
        let is_sound = |(file, entry): (&Checkpoint, &TensorEntry)| {
            // Nothing can take the place of the checkpoint itself: who reads it is told.
            std::ptr::eq(file, &*self.checkpoint) || file.check_unchanged(entry).is_ok()
        };
        group
            .tensors
            .iter()
            .all(|tensor| self.stored(tensor).is_some_and(is_sound))
    }

    /// How many converted copies have changed since they were opened.
    pub(crate) fn changed_converted(&self) -> usize {
        let copies = self.converted.iter().map(|(copy, _)| copy);
        let coded =
            Some(&self.compressed.container).filter(|coded| !Arc::ptr_eq(coded, &self.checkpoint));
        let changed = |copy: &&Arc<Checkpoint>| copy.check_all_unchanged().is_err();
        copies.chain(coded).filter(changed).count()
    }

    /// Reads a unit to where it stays, converting what is stored otherwise; `None` when cancelled.
    pub(crate) fn load(
        &self,
        group: &WeightGroupPlan,
        mut memory: DeviceBuffer<Page>,
        device: &Device,
        cancel: &AtomicBool,
    ) -> Result<Option<LoadedGroup>, EngineError> {
        let layout = layout::resident(group.sizes());
        // What goes to a card is put together here first: one unit for each load under way.
        let staged_pages = match &memory {
            DeviceBuffer::Host(_) => 0,
            DeviceBuffer::Gpu(_) => layout.bytes as usize / PAGE_BYTES,
        };
        let mut staging =
            MappedBuffer::zeroed(staged_pages).ok_or_else(|| no_staging(layout.bytes))?;
        let pages: &mut [Page] = match &mut memory {
            DeviceBuffer::Host(pages) => pages,
            DeviceBuffer::Gpu(_) => &mut staging,
        };
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(pages);
        let workers = device.workers();
        for (tensor, place) in group.tensors.iter().zip(&layout.placements) {
            let out = &mut bytes[place.offset as usize..][..stored_bytes(tensor)];
            let done = match self.stored(tensor) {
                Some((checkpoint, entry)) if !entry.is_compressed() => {
                    read_in_pieces(checkpoint, entry, tensor, out, cancel, Some(workers))?
                }
                _ => self.convert(tensor, workers, out, cancel)?,
            };
            if !done {
                return Ok(None);
            }
        }
        let starts = starts(&layout);
        self.check_compressed(group, bytes, &starts)?;
        if let Some(gpu) = device.gpu() {
            // Nobody knows of this memory yet: passes of the model that serves go on.
            gpu.upload_beside(memory.span(), bytemuck::cast_slice(&staging))?;
        }
        Ok(Some(LoadedGroup {
            memory,
            starts,
            compressed: self.compressed(group),
        }))
    }

    /// Reads a tensor of the checkpoint and stores it as the plan says, on the machine's threads; false when cancelled.
    pub(crate) fn convert(
        &self,
        tensor: &TensorPlan,
        workers: &Workers,
        out: &mut [u8],
        cancel: &AtomicBool,
    ) -> Result<bool, CheckpointError> {
        let entry = &self.entries[tensor.tensor];
        if entry.is_compressed() {
            let decode = |open: &OpenRows<'_>, out: &mut [u8]| {
                convert::decompress(workers, tensor, open, out)
            };
            return read_compressed(
                &self.checkpoint,
                entry,
                tensor,
                ReadMode::PageCache,
                out,
                cancel,
                decode,
            );
        }
        self.checkpoint.check_unchanged(entry)?;
        let read = |part, out: &mut [u8]| self.checkpoint.read_part(entry, part, out);
        let done = convert::convert(workers, tensor, read, out, cancel)?;
        self.checkpoint.check_unchanged(entry)?;
        Ok(done)
    }

    /// Reads a unit into a slot; `None`, with the slot's memory lost to nobody, when cancelled.
    ///
    /// # Panics
    /// When the unit isn't stored as it is kept.
    pub(crate) fn stream(
        &self,
        group: &WeightGroupPlan,
        memory: &mut [Page],
        cancel: &AtomicBool,
    ) -> Result<Option<Vec<usize>>, EngineError> {
        let layout = layout::staging(group.sizes());
        let mut starts = Vec::with_capacity(layout.placements.len());
        for (tensor, place) in group.tensors.iter().zip(&layout.placements) {
            let (checkpoint, entry) = self
                .stored(tensor)
                .expect("what is streamed is stored as it is kept");
            let is_direct = group.tier == Tier::Disk && place.is_direct;
            let start = if is_direct && !entry.is_compressed() {
                read_direct(checkpoint, entry, tensor, place, memory, cancel)?
            } else {
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(memory);
                let out = &mut bytes[place.offset as usize..][..stored_bytes(tensor)];
                let done = if entry.is_compressed() {
                    let via = if is_direct {
                        ReadMode::Disk
                    } else {
                        ReadMode::PageCache
                    };
                    // By this thread alone: the others compute.
                    let decode = |open: &OpenRows<'_>, out: &mut [u8]| {
                        open.decompress(open.local.clone(), out)
                    };
                    read_compressed(checkpoint, entry, tensor, via, out, cancel, decode)?
                } else {
                    // Passes wait for it.
                    read_in_pieces(checkpoint, entry, tensor, out, cancel, None)?
                };
                done.then_some(place.offset as usize)
            };
            match start {
                Some(start) => starts.push(start),
                None => return Ok(None),
            }
        }
        self.check_compressed(group, bytemuck::cast_slice_mut(memory), &starts)?;
        Ok(Some(starts))
    }

    /// How each of a unit's tensors is coded, where it is kept so.
    pub(crate) fn compressed(&self, group: &WeightGroupPlan) -> Vec<Option<Arc<CompressedTensor>>> {
        let coded = |tensor: &TensorPlan| match tensor.storage {
            Storage::Compressed(_) => {
                let (_, coded) = self.compressed.entry(tensor.tensor)?;
                Some(Arc::clone(coded))
            }
            Storage::Plain(_) => None,
        };
        group.tensors.iter().map(coded).collect()
    }

    /// Checks coded bytes as far as multiplying from them can fail, and puts beside them what a card multiplies by.
    fn check_compressed(
        &self,
        group: &WeightGroupPlan,
        memory: &mut [u8],
        starts: &[usize],
    ) -> Result<(), EngineError> {
        for (tensor, &start) in group.tensors.iter().zip(starts) {
            if let (Storage::Compressed(coding), Some((entry, coded))) =
                (tensor.storage, self.compressed.entry(tensor.tensor))
            {
                let all = &mut memory[start..start + tensor.bytes() as usize];
                let (bytes, beside) = all.split_at_mut(coding.bytes as usize);
                let rows = tensor.first_row..tensor.first_row + tensor.rows;
                let path = self.compressed.container.path_of(entry);
                let damaged = |damaged| CheckpointError::damaged(path, damaged);
                (coded.check(bytes, coding.start, &rows)).map_err(damaged)?;
                if coding.index_bytes > 0 {
                    let gap = (coding.index_start() - coding.bytes) as usize;
                    (coded.index(&rows, bytes, &mut beside[gap..])).map_err(damaged)?;
                }
            }
        }
        Ok(())
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
        if matches!(tensor.storage, Storage::Compressed(_)) {
            let (entry, _) = self.compressed.entry(tensor.tensor)?;
            return Some((&self.compressed.container, entry));
        }
        let format = tensor.storage.format();
        if format == tensor.source {
            return Some((&self.checkpoint, &self.entries[tensor.tensor]));
        }
        self.converted.iter().find_map(|(derivative, entries)| {
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

fn starts(layout: &GroupLayout) -> Vec<usize> {
    let starts = layout.placements.iter().map(|place| place.offset as usize);
    starts.collect()
}

/// The host has no memory for a unit on its way to a card.
fn no_staging(bytes: u64) -> EngineError {
    EngineError::Ops(OpsError::OutOfMemory {
        purpose: "a weight group on its way to the GPU",
        needed_bytes: bytes,
        used_bytes: 0,
        limit_bytes: None,
        free_bytes: None,
    })
}

/// The index beside coded bytes, in the memory of both.
fn index_of(compression: CompressedRange, all: GpuSpan) -> GpuSpan {
    match compression.index_bytes {
        0 => GpuSpan::default(),
        bytes => all.part(compression.index_start() as usize, bytes as usize),
    }
}

/// Bytes of a tensor that are stored: without what is made of them when they are read.
fn stored_bytes(tensor: &TensorPlan) -> usize {
    match tensor.storage {
        Storage::Compressed(coding) => coding.bytes as usize,
        _ => tensor.bytes() as usize,
    }
}

/// The rows of a plan's tensor, as bytes of the stored one.
fn part_of(tensor: &TensorPlan) -> std::ops::Range<u64> {
    let start = match tensor.storage {
        Storage::Compressed(coding) => coding.start,
        storage => storage.bytes(tensor.first_row, tensor.width),
    };
    start..start + stored_bytes(tensor) as u64
}

/// Reads through the system's cache, looking for a cancel now and then, and giving way to passes.
fn read_in_pieces(
    checkpoint: &Checkpoint,
    entry: &TensorEntry,
    tensor: &TensorPlan,
    out: &mut [u8],
    cancel: &AtomicBool,
    gives_way_on: Option<&Workers>,
) -> Result<bool, CheckpointError> {
    /// Some milliseconds of a disk.
    const PIECE_BYTES: usize = 8 << 20;
    checkpoint.check_unchanged(entry)?;
    let part = part_of(tensor);
    let mut at = part.start;
    checkpoint.will_need(entry, part);
    for piece in out.chunks_mut(PIECE_BYTES) {
        if cancel.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let end = at + piece.len() as u64;
        match gives_way_on {
            None => checkpoint.read_part(entry, at..end, piece)?,
            Some(workers) => {
                let mut result = Ok(());
                workers.beside(|| {
                    let begun = Instant::now();
                    result = checkpoint.read_part(entry, at..end, piece);
                    // A pass's threads wait for the one whose core this took.
                    begun.elapsed()
                });
                result?;
            }
        }
        at = end;
    }
    // Half of it may be of what was written meanwhile.
    checkpoint.check_unchanged(entry)?;
    Ok(true)
}

/// Reads what is decoded on the way: `decode` is given rows of each chunk, and the space for them. False when cancelled.
fn read_compressed(
    checkpoint: &Checkpoint,
    entry: &TensorEntry,
    tensor: &TensorPlan,
    via: ReadMode,
    out: &mut [u8],
    cancel: &AtomicBool,
    decode: impl Fn(&OpenRows<'_>, &mut [u8]) -> Result<(), DecompressError>,
) -> Result<bool, CheckpointError> {
    checkpoint.check_unchanged(entry)?;
    let stride = out.len() / tensor.rows;
    let rows = tensor.first_row..tensor.first_row + tensor.rows;
    let done = checkpoint.each_chunk(entry, &rows, via, cancel, &mut |open| {
        let start = (open.rows.start - rows.start) * stride;
        decode(&open, &mut out[start..start + open.rows.len() * stride])
    })?;
    checkpoint.check_unchanged(entry)?;
    Ok(done)
}

/// Reads past the system's cache; where the tensor starts, in bytes.
fn read_direct(
    checkpoint: &Checkpoint,
    entry: &TensorEntry,
    tensor: &TensorPlan,
    place: &TensorPlacement,
    memory: &mut [Page],
    cancel: &AtomicBool,
) -> Result<Option<usize>, CheckpointError> {
    checkpoint.check_unchanged(entry)?;
    let page = size_of::<Page>();
    let first = place.offset as usize / page;
    let pages = &mut memory[first..first + place.bytes as usize / page];
    let Some(start) = checkpoint.read_direct(entry, part_of(tensor), pages, cancel)? else {
        return Ok(None);
    };
    checkpoint.check_unchanged(entry)?;
    let len = stored_bytes(tensor);
    // A file with an odd header leaves numbers across the borders that arithmetic wants.
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(pages);
    let aligned = start - start % ELEMENT_BYTES;
    if aligned != start {
        bytes.copy_within(start..start + len, aligned);
    }
    Ok(Some(place.offset as usize + aligned))
}
