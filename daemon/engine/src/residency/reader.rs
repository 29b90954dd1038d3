//! Reading weight groups from files to the memory that they are used in, as they are stored or converted on the way.

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
    CompressedRange, CompressedRows, CompressedTensor, GpuCompressedRows, GpuWeight,
    InterleavedRows, OpenRows, SourceTensor, Storage, TensorPlan, Tier, WeightData,
    WeightGroupPlan,
    layout::{self, GroupLayout, TensorPlacement},
};

use super::convert;
use crate::error::EngineError;

/// Least alignment of tensors in carefully written files.
const ELEMENT_BYTES: usize = 4;

/// The files that weights are read from.
#[derive(Debug, Clone)]
pub struct WeightReader {
    checkpoint: Arc<Checkpoint>,
    /// The checkpoint's entry of each of the model's tensors.
    entries: Vec<TensorEntry>,
    /// The tensors that are stored compressed, in the checkpoint or a copy beside it.
    compressed: CompressedFile,
    /// Files of mixes, with the mix's number: during a switch between two mixes, two are read from.
    mixes: Vec<(u32, CompressedFile)>,
    /// Converted copies on disk, with the tensors they have: during a switch between two levels, two are read from.
    converted: Vec<(Arc<Checkpoint>, Vec<Option<TensorEntry>>)>,
    /// Limit of the bytes a second that are streamed; `None` without one.
    limit_bytes_per_s: Option<u64>,
    /// Limit of the streamed bytes that are kept in pinned memory for a GPU.
    pinned_memory_limit_bytes: u64,
}

/// A container with compressed tensors: the checkpoint, or a compressed copy of it.
#[derive(Debug, Clone)]
struct CompressedFile {
    container: Arc<Checkpoint>,
    /// For each of the model's tensors its compressed bytes, or `None` where it is not compressed.
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

/// A weight group's bytes in the device's memory.
#[derive(Debug)]
pub(crate) struct LoadedGroup {
    pub(crate) memory: DeviceBuffer<Page>,
    /// Where each tensor starts, in bytes.
    pub(crate) starts: Vec<usize>,
    /// How each tensor is compressed; `None` where it is not.
    pub(crate) compressed: Vec<Option<Arc<CompressedTensor>>>,
    /// Whether rows lie beside each other, of tensors that [are interleaved](TensorPlan::is_interleaved).
    pub(crate) is_interleaved: bool,
}

impl LoadedGroup {
    /// The bytes of the group's tensor with this index; on a GPU `decoded` is the memory into which they may be
    /// decompressed.
    pub(crate) fn tensor(
        &self,
        index: usize,
        tensor: &TensorPlan,
        decoded: GpuSpan,
    ) -> WeightData<'_> {
        let (start, len) = (self.starts[index], tensor.bytes() as usize);
        let compressed = self.compressed[index].as_ref();
        match &self.memory {
            DeviceBuffer::Host(pages) => {
                let bytes: &[u8] = bytemuck::cast_slice(pages);
                match host_tensor(&bytes[start..], compressed, tensor) {
                    WeightData::Host(bytes) if self.is_interleaved && tensor.is_interleaved() => {
                        WeightData::Interleaved(InterleavedRows {
                            bytes,
                            first_row: 0,
                        })
                    }
                    as_stored => as_stored,
                }
            }
            on_gpu @ DeviceBuffer::Gpu(_) => {
                let coded = match (compressed, tensor.storage) {
                    (Some(coded), Storage::Compressed(coding)) => Some((coded, coding)),
                    _ => None,
                };
                let all = on_gpu.span().part(start, len);
                WeightData::Gpu(GpuWeight {
                    // The index lies behind the compressed bytes, in the same memory, and is no part of them.
                    span: coded.map_or(all, |(_, coding)| all.part(0, coding.bytes as usize)),
                    compressed: coded.map(|(tensor_compressed, coding)| GpuCompressedRows {
                        tensor: tensor_compressed,
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

/// A tensor in host memory that begins with it, as it is stored.
pub(super) fn host_tensor<'a>(
    bytes: &'a [u8],
    compressed: Option<&'a Arc<CompressedTensor>>,
    tensor: &TensorPlan,
) -> WeightData<'a> {
    let bytes = &bytes[..stored_bytes(tensor)];
    match (compressed, tensor.storage) {
        (Some(compressed), Storage::Compressed(coding)) => WeightData::Compressed(CompressedRows {
            tensor: compressed,
            bytes,
            base: coding.start,
            first_row: tensor.first_row,
        }),
        _ => WeightData::Host(bytes),
    }
}

impl WeightReader {
    /// A reader of the checkpoint, whose headers `sources` were checked against.
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
            mixes: Vec::new(),
            converted: Vec::new(),
            limit_bytes_per_s: None,
            pinned_memory_limit_bytes: 0,
        }
    }

    /// Sets the limit of streamed bytes that are kept in pinned host memory; 0 at first.
    #[must_use]
    pub fn with_pinned_memory_limit(mut self, bytes: u64) -> Self {
        self.pinned_memory_limit_bytes = bytes;
        self
    }

    /// Limit of streamed bytes that are kept in pinned host memory.
    pub(crate) fn pinned_memory_limit_bytes(&self) -> u64 {
        self.pinned_memory_limit_bytes
    }

    /// Sets the limit of the bytes a second that are streamed.
    pub(crate) fn with_limit(mut self, bytes_per_s: Option<u64>) -> Self {
        self.limit_bytes_per_s = bytes_per_s;
        self
    }

    /// Limit of the bytes a second that are streamed.
    pub(crate) fn limit_bytes_per_s(&self) -> Option<u64> {
        self.limit_bytes_per_s
    }

    /// The checkpoint that it reads.
    pub(crate) fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.checkpoint
    }

    /// Also reads converted tensors from `converted`, where it has them, and no more from copies that it replaces.
    pub(crate) fn with_converted(
        mut self,
        converted: Arc<Checkpoint>,
        sources: &[SourceTensor],
    ) -> Self {
        let entries: Vec<_> = entries(&converted, sources).collect();
        let format = |entry: &Option<TensorEntry>| entry.as_ref().map(|entry| entry.format.clone());
        // An older copy with the same formats is superfluous; one with other formats is still read from during a
        // switch.
        let has_all_of = |old: &[Option<TensorEntry>]| {
            let mut pairs = old.iter().zip(&entries);
            pairs.all(|(old, new)| old.is_none() || format(old) == format(new))
        };
        self.converted.retain(|(_, old)| !has_all_of(old));
        self.converted.push((converted, entries));
        self
    }

    /// Reads compressed tensors from a compressed copy of the checkpoint, which is not compressed itself.
    pub(crate) fn with_compressed(
        mut self,
        weights: Arc<Checkpoint>,
        sources: &[SourceTensor],
    ) -> Self {
        // A lock on the file: no daemon may evict a copy that is in use.
        weights.hold();
        self.compressed = CompressedFile::new(weights, sources);
        self
    }

    /// Also reads the quantized weights of a mix, which the sources name by this number.
    pub(crate) fn with_mix(
        mut self,
        mix: u32,
        weights: Arc<Checkpoint>,
        sources: &[SourceTensor],
    ) -> Self {
        weights.hold();
        self.mixes.retain(|(known, _)| *known != mix);
        self.mixes
            .push((mix, CompressedFile::new(weights, sources)));
        self
    }

    /// Reads no more from copies that a plan does not use: others may evict them then.
    pub(crate) fn only_for(mut self, plan: &Plan) -> Self {
        let tensors = || plan.groups.iter().flat_map(|group| &group.tensors);
        let is_of_use = |entries: &[Option<TensorEntry>]| {
            tensors().any(|tensor| {
                let format = tensor.storage.format();
                let entry = entries[tensor.tensor].as_ref();
                // Weights in the source's format are read from the checkpoint, whatever copies have.
                format != tensor.source && entry.is_some_and(|entry| entry.format == Ok(format))
            })
        };
        self.converted.retain(|(_, entries)| is_of_use(entries));
        self.mixes.retain(|(mix, file)| {
            let is_used = tensors().any(|tensor| tensor.storage.mix() == *mix);
            if !is_used {
                file.container.release();
            }
            is_used
        });
        // A compressed checkpoint is a container itself, which stays open.
        let is_copy = !Arc::ptr_eq(&self.compressed.container, &self.checkpoint);
        let is_compressed = |tensor: &TensorPlan| matches!(tensor.storage, Storage::Compressed(range) if range.mix == 0);
        if is_copy && !tensors().any(is_compressed) {
            // Only released: the planner keeps it open, and another plan may want it again.
            self.compressed.container.release();
            self.compressed = CompressedFile {
                container: Arc::clone(&self.checkpoint),
                entries: vec![None; self.compressed.entries.len()],
            };
        }
        self
    }

    /// Whether all of a group lies on disk in the form in which it is used, so that it can be streamed. Copies that
    /// have changed since they were opened do not count.
    pub(crate) fn has_stored(&self, group: &WeightGroupPlan) -> bool {
        let is_sound = |(file, entry): (&Checkpoint, &TensorEntry)| {
            // The checkpoint itself cannot be replaced: if it has changed, reading it fails and says so.
            std::ptr::eq(file, &*self.checkpoint) || file.check_unchanged(entry).is_ok()
        };
        group
            .tensors
            .iter()
            .all(|tensor| self.stored(tensor).is_some_and(is_sound))
    }

    /// How many copies have changed since they were opened.
    pub(crate) fn changed_converted(&self) -> usize {
        let copies = self.converted.iter().map(|(copy, _)| copy);
        let compressed = Some(&self.compressed.container)
            .filter(|compressed| !Arc::ptr_eq(compressed, &self.checkpoint));
        let mixes = self.mixes.iter().map(|(_, file)| &file.container);
        let changed = |copy: &&Arc<Checkpoint>| copy.check_all_unchanged().is_err();
        let all = copies.chain(compressed).chain(mixes);
        all.filter(changed).count()
    }

    /// Reads a group to resident memory, converting tensors that are stored otherwise; `None` when cancelled.
    pub(crate) fn load(
        &self,
        group: &WeightGroupPlan,
        mut memory: DeviceBuffer<Page>,
        device: &Device,
        cancel: &AtomicBool,
    ) -> Result<Option<LoadedGroup>, EngineError> {
        let layout = layout::resident(group.sizes());
        // For a GPU the group is assembled in host memory first: one group for each load in progress.
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
                // A compressed source goes the way of conversions, which decompress on all threads.
                Some((checkpoint, entry)) if !entry.is_compressed() => {
                    read_in_pieces(checkpoint, entry, tensor, out, cancel, Some(workers))?
                }
                _ => self.convert(tensor, workers, out, cancel)?,
            };
            let interleaves = device.interleaves_weights() && tensor.is_interleaved();
            if !done || interleaves && !convert::interleave(workers, tensor, out, cancel) {
                return Ok(None);
            }
        }
        let starts = starts(&layout);
        // Before the upload, which then copies the index with the group.
        self.check_compressed(group, bytes, &starts)?;
        if let Some(gpu) = device.gpu() {
            // No pass uses this memory yet, so the copy runs beside the passes of the model that serves.
            gpu.upload_beside(memory.span(), bytemuck::cast_slice(&staging))?;
        }
        Ok(Some(LoadedGroup {
            memory,
            starts,
            compressed: self.compressed(group),
            is_interleaved: device.interleaves_weights(),
        }))
    }

    /// Reads a tensor of the checkpoint and stores it in the plan's format, on the machine's threads; false when
    /// cancelled.
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
        // Checked before and after: a file that is overwritten meanwhile would give weights torn between old and new.
        self.checkpoint.check_unchanged(entry)?;
        Ok(done)
    }

    /// Reads a group into a staging buffer; `None` when cancelled, and then the contents are undefined.
    ///
    /// # Panics
    /// When the group is not stored in the form in which it is used.
    pub(crate) fn stream(
        &self,
        group: &WeightGroupPlan,
        memory: &mut [Page],
        cancel: &AtomicBool,
    ) -> Result<Option<Vec<usize>>, EngineError> {
        // The same layout whether reads go past the cache or not, so that a staging buffer fits the group on every
        // tier.
        let layout = layout::staging(group.sizes());
        let mut starts = Vec::with_capacity(layout.placements.len());
        for (tensor, place) in group.tensors.iter().zip(&layout.placements) {
            let (checkpoint, entry) = self
                .stored(tensor)
                .expect("what is streamed is stored as it is kept");
            let is_direct = group.tier == Tier::Disk && place.is_direct;
            // Read and not mapped: a file that is cut short under a mapping kills the process, and page faults leave
            // most of a drive's bandwidth unused.
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
                    // On this thread alone: the others compute.
                    let decode = |open: &OpenRows<'_>, out: &mut [u8]| {
                        open.decompress(open.local.clone(), out)
                    };
                    read_compressed(checkpoint, entry, tensor, via, out, cancel, decode)?
                } else {
                    // Passes wait for it, so it does not give way to them.
                    read_in_pieces(checkpoint, entry, tensor, out, cancel, None)?
                };
                done.then_some(place.offset as usize)
            };
            match start {
                Some(start) => starts.push(start),
                None => return Ok(None),
            }
        }
        // In every pass: the file may have been damaged since the last one.
        self.check_compressed(group, bytemuck::cast_slice_mut(memory), &starts)?;
        Ok(Some(starts))
    }

    /// How each of a group's tensors is compressed, where it stays compressed.
    pub(crate) fn compressed(&self, group: &WeightGroupPlan) -> Vec<Option<Arc<CompressedTensor>>> {
        let compressed = |tensor: &TensorPlan| match tensor.storage {
            Storage::Compressed(range) => {
                let (_, compressed) = self.compressed_file(range)?.entry(tensor.tensor)?;
                Some(Arc::clone(compressed))
            }
            Storage::Plain(_) => None,
        };
        group.tensors.iter().map(compressed).collect()
    }

    /// Checks compressed bytes as far as a matmul from them can fail, and writes the index that a GPU needs beside
    /// them.
    fn check_compressed(
        &self,
        group: &WeightGroupPlan,
        memory: &mut [u8],
        starts: &[usize],
    ) -> Result<(), EngineError> {
        for (tensor, &start) in group.tensors.iter().zip(starts) {
            if let Storage::Compressed(coding) = tensor.storage
                && let Some(file) = self.compressed_file(coding)
                && let Some((entry, compressed)) = file.entry(tensor.tensor)
            {
                let all = &mut memory[start..start + tensor.bytes() as usize];
                let (bytes, beside) = all.split_at_mut(coding.bytes as usize);
                let rows = tensor.first_row..tensor.first_row + tensor.rows;
                let path = file.container.path_of(entry);
                let damaged = |damaged| CheckpointError::damaged(path, damaged);
                // Checked once, here: kernels then need no bounds checks for damaged files.
                (compressed.check(bytes, coding.start, &rows)).map_err(damaged)?;
                if coding.index_bytes > 0 {
                    let gap = (coding.index_start() - coding.bytes) as usize;
                    (compressed.index(&rows, bytes, &mut beside[gap..])).map_err(damaged)?;
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
        // After the read: a row of a file that was replaced meanwhile is refused.
        Ok(self.checkpoint.check_unchanged(entry)?)
    }

    /// Checks that the file of a tensor of the checkpoint has not changed.
    pub(crate) fn check_unchanged(&self, tensor: &TensorPlan) -> Result<(), EngineError> {
        Ok(self
            .checkpoint
            .check_unchanged(&self.entries[tensor.tensor])?)
    }

    /// The container that holds such compressed rows; `None` where it is not open.
    fn compressed_file(&self, range: CompressedRange) -> Option<&CompressedFile> {
        match range.mix {
            0 => Some(&self.compressed),
            mix => {
                let mut mixes = self.mixes.iter();
                mixes.find_map(|(known, file)| (*known == mix).then_some(file))
            }
        }
    }

    /// Where a tensor lies in the form in which it is used; `None` where no file has that.
    fn stored(&self, tensor: &TensorPlan) -> Option<(&Checkpoint, &TensorEntry)> {
        if let Storage::Compressed(range) = tensor.storage {
            let file = self.compressed_file(range)?;
            let (entry, _) = file.entry(tensor.tensor)?;
            return Some((&file.container, entry));
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

/// The error for a group that does not fit in host memory on its way to a GPU.
fn no_staging(bytes: u64) -> EngineError {
    EngineError::Ops(OpsError::OutOfMemory {
        purpose: "a weight group on its way to the GPU",
        needed_bytes: bytes,
        used_bytes: 0,
        limit_bytes: None,
        free_bytes: None,
    })
}

/// The index beside compressed bytes, within the memory of both.
fn index_of(compression: CompressedRange, all: GpuSpan) -> GpuSpan {
    match compression.index_bytes {
        0 => GpuSpan::default(),
        bytes => all.part(compression.index_start() as usize, bytes as usize),
    }
}

/// Bytes of a tensor that are stored: without the index that is made when they are read.
fn stored_bytes(tensor: &TensorPlan) -> usize {
    match tensor.storage {
        Storage::Compressed(coding) => coding.bytes as usize,
        _ => tensor.bytes() as usize,
    }
}

/// The rows of a plan's tensor, as a byte range of the stored tensor.
fn part_of(tensor: &TensorPlan) -> std::ops::Range<u64> {
    let start = match tensor.storage {
        Storage::Compressed(coding) => coding.start,
        storage => storage.bytes(tensor.first_row, tensor.width),
    };
    start..start + stored_bytes(tensor) as u64
}

/// Reads through the system's cache, checking for a cancel between pieces, and giving way to passes.
fn read_in_pieces(
    checkpoint: &Checkpoint,
    entry: &TensorEntry,
    tensor: &TensorPlan,
    out: &mut [u8],
    cancel: &AtomicBool,
    gives_way_on: Option<&Workers>,
) -> Result<bool, CheckpointError> {
    /// A disk reads this in some milliseconds.
    const PIECE_BYTES: usize = 8 << 20;
    checkpoint.check_unchanged(entry)?;
    let part = part_of(tensor);
    let mut at = part.start;
    // Starts the kernel's readahead for the whole range, while the pieces are copied one after another.
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
                    // The time counts as that of all cores: a pass's threads wait for the one whose core this took.
                    begun.elapsed()
                });
                result?;
            }
        }
        at = end;
    }
    // The file may have been overwritten while it was read.
    checkpoint.check_unchanged(entry)?;
    Ok(true)
}

/// Reads a tensor that is decompressed on the way: `decode` is given rows of each chunk, and the memory for them. False
/// when cancelled.
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

/// Reads past the system's cache; returns where the tensor starts, in bytes, or `None` when cancelled.
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
    // In a file with an odd header length, elements are not aligned to their size: they are moved by a few bytes.
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(pages);
    let aligned = start - start % ELEMENT_BYTES;
    if aligned != start {
        bytes.copy_within(start..start + len, aligned);
    }
    Ok(Some(place.offset as usize + aligned))
}
