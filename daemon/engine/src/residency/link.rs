//! The link from the host to a GPU: host memory that streamed weight groups are kept in or read to, and the copies from
//! there, which run beside the GPU's work.
//!
//! A group that is kept lies in pinned memory of exactly its size, from its first read for as long as it is streamed in
//! that form, and each pass copies it from there. Pinned memory has a limit, since no other program gets it. Other
//! groups are read in every pass, into one of two staging buffers, while the other one is copied from. Where the system
//! refuses more pinned memory, the rest is staged; where it pins nothing, the buffers are pageable. The same holds
//! while another model has pinned what the limit allows.
//!
//! The cycle of a pass and the expert cache have a link each, so that an expert that is wanted now does not queue behind
//! groups that are wanted later. Which groups are kept is decided once for both, as the plan did.
//!
//! Only stream marks keep order: a copy into a device buffer waits for the work that read the buffer before, and work
//! on a buffer for the copy into it. The host waits only before it writes to memory that copies are made from.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

use sluice_cuda::{CopyStream, CudaError, Gpu, GpuSpan, HostMemory, StreamMark};
use sluice_machine::page::Page;
use sluice_ops::ledger::{Ledger, PinnedEntry};
use sluice_plan::{PINNED_STAGING_BUFFERS, PinnedBudget};
use sluice_weights::{
    CompressedTensor, TensorPlan, WeightData, WeightGroup, WeightGroupPlan, layout,
};

use super::reader::{WeightReader, host_tensor};
use crate::error::EngineError;

/// The copy stream of a GPU, and the memory that copies are made from.
#[derive(Debug)]
pub(super) struct GpuLink {
    copies: CopyStream,
    pinned: HashMap<WeightGroup, Arc<HostGroup>>,
    /// Bytes of these.
    pinned_bytes: u64,
    share: LinkShare,
    /// Whether the system has refused more pinned memory.
    is_refused: bool,
    staging: [Option<StagingBuffer>; PINNED_STAGING_BUFFERS],
    /// Index of the buffer to read into next.
    next_staging: usize,
    /// The ledger that counts pinned memory.
    ledger: Ledger,
    gpu: Gpu,
}

/// What one of a model's links has of the pinned memory.
#[derive(Debug, Clone, Default)]
pub(super) struct LinkShare {
    /// The groups that are to be kept there.
    keeps: HashMap<WeightGroup, WeightGroupPlan>,
    /// Bytes of the largest group of the others.
    staging_bytes: u64,
    /// Whether a part of the limit is for staging buffers.
    pins_staging: bool,
    /// Limit of pinned bytes, of all that share the ledger.
    limit_bytes: u64,
}

/// The shares of both links.
#[derive(Debug)]
pub(super) struct LinkShares {
    /// Of the groups that every pass needs.
    pub(super) cycle: LinkShare,
    /// Of a mixture's experts.
    pub(super) experts: LinkShare,
}

impl LinkShares {
    /// Divides so many bytes between all streamed groups, which come in the order of a pass.
    pub(super) fn new<'a>(
        limit_bytes: u64,
        streamed: impl Iterator<Item = &'a WeightGroupPlan> + Clone,
    ) -> Self {
        // The same rule over the same groups as the plan's, so that exactly the planned ones are kept.
        let mut pinned = PinnedBudget::new(limit_bytes, streamed.clone());
        let share = LinkShare {
            pins_staging: pinned.has_staging(),
            limit_bytes,
            ..LinkShare::default()
        };
        let mut shares = Self {
            cycle: share.clone(),
            experts: share,
        };
        for group in streamed {
            let share = match group.group.is_expert() {
                true => &mut shares.experts,
                false => &mut shares.cycle,
            };
            if pinned.takes(group) {
                share.keeps.insert(group.group, group.clone());
            } else {
                share.staging_bytes = share.staging_bytes.max(group.staging_bytes());
            }
        }
        shares
    }
}

/// A weight group in host memory, which the GPU's copies and the CPU read.
#[derive(Debug)]
pub(super) struct HostGroup {
    group: WeightGroupPlan,
    memory: HostMemory,
    /// Where each tensor starts in it, in bytes.
    starts: Vec<usize>,
    /// How each tensor is compressed; `None` where it is not.
    compressed: Vec<Option<Arc<CompressedTensor>>>,
    /// Its entry where it is kept in pinned memory. Declared after the memory, so that it is dropped after it.
    entry: Option<PinnedEntry>,
}

impl HostGroup {
    /// The bytes of the group's tensor with this index.
    pub(super) fn tensor(&self, index: usize, tensor: &TensorPlan) -> WeightData<'_> {
        let compressed = self.compressed[index].as_ref();
        host_tensor(&self.memory[self.starts[index]..], compressed, tensor)
    }

    /// Whether it stays for later passes.
    pub(super) fn is_kept(&self) -> bool {
        self.entry.is_some()
    }
}

/// A buffer for groups that are not kept.
#[derive(Debug)]
struct StagingBuffer {
    memory: HostMemory,
    /// Its reservation; `None` where it is not pinned.
    entry: Option<PinnedEntry>,
}

/// The result of reading a group into pinned memory.
pub(super) enum PinOutcome {
    /// The group is in pinned memory.
    Read,
    /// No more memory may be pinned.
    Refused,
    /// The read was cancelled.
    Cancelled,
}

/// A group that was brought to a staging buffer.
pub(super) struct BroughtGroup {
    /// Where each tensor starts in it, in bytes.
    pub(super) starts: Vec<usize>,
    /// On a GPU: the marks of its copy.
    pub(super) arrival: Option<CopyMarks>,
    /// When reading its files began; `None` where it was in pinned memory.
    pub(super) read_since: Option<Instant>,
}

/// A copy that was sent.
#[derive(Debug)]
pub(super) struct CopyMarks {
    /// When it began, by the GPU's clock.
    pub(super) begin: StreamMark,
    /// When it is complete.
    pub(super) end: StreamMark,
}

impl GpuLink {
    /// A link to this GPU, which keeps nothing before it is [fitted](Self::fit).
    pub(super) fn new(gpu: &Gpu, ledger: &Ledger) -> Result<Self, EngineError> {
        Ok(Self {
            copies: CopyStream::new(gpu)?,
            pinned: HashMap::new(),
            pinned_bytes: 0,
            share: LinkShare::default(),
            is_refused: false,
            staging: [const { None }; PINNED_STAGING_BUFFERS],
            next_staging: 0,
            ledger: ledger.clone(),
            gpu: gpu.clone(),
        })
    }

    /// Frees pinned groups that are streamed in another form now, or no more, and buffers that are larger than
    /// necessary: others want their share of the limit.
    pub(super) fn fit(&mut self, share: LinkShare) {
        self.pinned
            .retain(|group, kept| share.keeps.get(group) == Some(&kept.group));
        let bytes = self.pinned.values().map(|kept| kept.memory.len() as u64);
        self.pinned_bytes = bytes.sum();
        for buffer in &mut self.staging {
            buffer.take_if(|buffer| buffer.memory.len() as u64 > share.staging_bytes);
        }
        // Other groups may need less than the system refused before.
        self.is_refused = false;
        self.share = share;
    }

    /// Bytes that are kept in pinned memory.
    pub(super) fn pinned_weight_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    /// Whether the group is to be kept and is not yet, and the limit allows it at this moment.
    pub(super) fn wants(&self, group: &WeightGroupPlan) -> bool {
        self.lacks(group) && self.may_pin(group.staging_bytes())
    }

    /// Whether the group is to be kept and is not yet.
    pub(super) fn lacks(&self, group: &WeightGroupPlan) -> bool {
        !self.is_refused
            && self.share.keeps.contains_key(&group.group)
            && !self.pinned.contains_key(&group.group)
    }

    /// Whether the limit allows so many bytes at this moment.
    fn may_pin(&self, bytes: u64) -> bool {
        let pinned_bytes = self.ledger.pinned_bytes();
        pinned_bytes.saturating_add(bytes) <= self.share.limit_bytes
    }

    /// Reads a group into pinned memory, if that can be allocated.
    pub(super) fn pin(
        &mut self,
        reader: &WeightReader,
        group: &WeightGroupPlan,
        cancel: &AtomicBool,
    ) -> Result<PinOutcome, EngineError> {
        let bytes = group.staging_bytes();
        let Some(entry) = self.ledger.pin(bytes, self.share.limit_bytes) else {
            return Ok(PinOutcome::Refused);
        };
        // Exactly its size: pools that round up to powers of two have locked up to 1.9 times what was asked for (vLLM,
        // SGLang).
        let mut memory = match HostMemory::pinned(&self.gpu, bytes as usize) {
            Ok(memory) => memory,
            // The system's own limit: not an error, and asking again for each group would only take time.
            Err(CudaError::OutOfPinnedMemory { .. }) => {
                self.is_refused = true;
                return Ok(PinOutcome::Refused);
            }
            Err(error) => return Err(error.into()),
        };
        // A cancelled read frees the memory: kept half-filled, the group would be taken for whole.
        let Some(starts) = read(reader, group, &mut memory, cancel)? else {
            return Ok(PinOutcome::Cancelled);
        };
        let unit = group.clone();
        let kept = HostGroup {
            group: unit,
            memory,
            starts,
            compressed: reader.compressed(group),
            entry: Some(entry),
        };
        self.pinned_bytes += kept.memory.len() as u64;
        self.pinned.insert(kept.group.group, Arc::new(kept));
        Ok(PinOutcome::Read)
    }

    /// A group in host memory: kept there if that is possible, else read for this time. `None` when reading it was cancelled.
    pub(super) fn on_host(
        &mut self,
        reader: &WeightReader,
        group: &WeightGroupPlan,
        cancel: &AtomicBool,
    ) -> Result<Option<Arc<HostGroup>>, EngineError> {
        if self.wants(group)
            && let PinOutcome::Cancelled = self.pin(reader, group, cancel)?
        {
            return Ok(None);
        }
        if let Some(kept) = self.pinned.get(&group.group) {
            return Ok(Some(Arc::clone(kept)));
        }
        let mut memory = HostMemory::pageable(&self.gpu, group.staging_bytes() as usize)?;
        let starts = read(reader, group, &mut memory, cancel)?;
        Ok(starts.map(|starts| {
            Arc::new(HostGroup {
                group: group.clone(),
                memory,
                starts,
                compressed: reader.compressed(group),
                entry: None,
            })
        }))
    }

    /// Sends a group to a staging buffer on the GPU, after the work that used the buffer before; `None` when reading it
    /// was cancelled.
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
        // Read once into memory of its own, from which later passes copy. Where pinning is refused it is staged as
        // others are.
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
        // On the GPU tensors lie as resident ones do, without the partial pages that direct reads leave between them on
        // the host.
        let places = layout::resident(group.sizes()).placements;
        let parts = group.tensors.iter().zip(&places).zip(from);
        let parts = parts.map(|((tensor, place), &start)| {
            let bytes = tensor.bytes() as usize;
            let to = staging.part(place.offset as usize, bytes);
            (to, start..start + bytes)
        });
        // After the read: while the file is read, the GPU may still work on the buffer.
        if let Some(used) = used {
            self.copies.begin_after(used)?;
        }
        // Marks enclose the copy alone, so that the GPU's clock tells its bandwidth without the wait before it.
        let begin = self.copies.mark()?;
        self.copies.copy(memory, parts)?;
        let end = self.copies.mark()?;
        Ok(Some(BroughtGroup {
            arrival: Some(CopyMarks { begin, end }),
            starts: places.iter().map(|place| place.offset as usize).collect(),
            read_since,
        }))
    }

    /// Prepares the next staging buffer, with at least this size, pinned if allowed and possible. Returns its index.
    fn ready_staging(&mut self, bytes: u64) -> Result<usize, EngineError> {
        let may_pin = self.share.pins_staging && !self.is_refused && self.may_pin(bytes);
        let turn = self.next_staging;
        self.next_staging = (turn + 1) % PINNED_STAGING_BUFFERS;
        // A buffer that could not be pinned while another model held the limit is replaced once it can be.
        let is_good = |buffer: &StagingBuffer| {
            buffer.memory.len() as u64 >= bytes && (buffer.entry.is_some() || !may_pin)
        };
        if !self.staging[turn].as_ref().is_some_and(is_good) {
            // The old buffer is freed first: both may not fit.
            self.staging[turn] = None;
            self.staging[turn] = Some(self.new_staging(bytes)?);
        }
        Ok(turn)
    }

    fn new_staging(&mut self, bytes: u64) -> Result<StagingBuffer, EngineError> {
        // Reserved before it is pinned: another model may pin at the same time.
        let entry = match self.share.pins_staging && !self.is_refused {
            true => self.ledger.pin(bytes, self.share.limit_bytes),
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
        // Copies from pageable memory are slower, but a pass must not fail for want of pinned memory.
        Ok(StagingBuffer {
            memory: HostMemory::pageable(&self.gpu, bytes as usize)?,
            entry: None,
        })
    }

    /// The GPU that it copies to.
    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Waits until no copy is in flight.
    pub(super) fn wait(&self) -> Result<(), EngineError> {
        Ok(self.copies.wait()?)
    }
}

/// Reads a group from files; returns where each of its tensors starts, or `None` when cancelled.
fn read(
    reader: &WeightReader,
    group: &WeightGroupPlan,
    memory: &mut HostMemory,
    cancel: &AtomicBool,
) -> Result<Option<Vec<usize>>, EngineError> {
    // Waits for copies that still read this memory: the only wait of the host.
    let bytes = memory.to_write()?;
    let pages: &mut [Page] = bytemuck::cast_slice_mut(bytes);
    reader.stream(group, pages, cancel)
}
