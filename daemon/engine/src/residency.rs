//! Where weights live and how operations get them: [`Residency::acquire`] gives a guard over a weight group, resident
//! or streamed, and nothing that computes knows which.

mod buffers;
mod change;
mod convert;
mod cpu_experts;
mod experts;
mod link;
mod monitor;
mod pace;
mod reader;
mod stats;
mod stream;
mod transfer;
mod visits;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::AtomicBool},
};

use sluice_codec::Scheme;
use sluice_cuda::GpuSpan;
use sluice_machine::{
    MemoryKind, Profile,
    page::{PAGE_BYTES, Page},
};
use sluice_ops::{
    device::{Device, DeviceBuffer},
    ledger::Ledger,
};
use sluice_plan::{ExpertSplit, Plan, StagingBuffers};
use sluice_weights::{
    KeptKvHeads, Storage, TensorPart, TensorPlan, Tier, Weight, WeightData, WeightFormat,
    WeightGroup, WeightGroupPlan, layout,
};

pub(crate) use self::change::GroupPreparation;
use self::{
    experts::{ExpertCache, ExpertInUse},
    link::{GpuLink, HostGroup},
    reader::LoadedGroup,
    stream::{StagedGroup, WeightStream},
    visits::ExpertVisits,
};
pub use self::{
    reader::WeightReader,
    stats::{ExpertStats, ExpertTouches, StreamStats},
};
use crate::error::EngineError;

/// All weights of a loaded model, or of one in a dry run.
#[derive(Debug)]
pub struct Residency {
    groups: Vec<GroupEntry>,
    index: HashMap<WeightGroup, usize>,
    staging: StagingBuffers,
    stream: Option<WeightStream>,
    /// Where not all experts of a mixture are on the device.
    experts: Option<ExpertCache>,
    visits: ExpertVisits,
    /// Which experts the CPU computes beside a GPU.
    cpu_experts: Option<ExpertSplit>,
    /// The stream's link to a GPU, while no stream holds it.
    link: Option<GpuLink>,
    /// The expert cache's link, while no cache holds it.
    expert_link: Option<GpuLink>,
    /// GPU memory into which weights are decompressed.
    decompressed: Option<DeviceBuffer<Page>>,
    /// `None` in a dry run.
    reader: Option<Arc<WeightReader>>,
    device: Device,
    ledger: Ledger,
    weights_version: u64,
}

/// A weight group, and where it is.
#[derive(Debug)]
struct GroupEntry {
    plan: WeightGroupPlan,
    placement: GroupPlacement,
}

#[derive(Debug)]
enum GroupPlacement {
    /// In the device's memory.
    Resident(LoadedGroup),
    /// Read in every pass; its index in the stream's cycle.
    Streamed(usize),
    /// In the expert cache when passes touch it; its place there.
    Cached(usize),
    /// Read row by row from the checkpoint.
    Rows,
    /// Counted, but not there: in a dry run, and while a group is replaced.
    DryRun,
}

/// Has groups brought in the reverse of their order.
pub(crate) struct ReversedOrder<'a>(&'a Residency);

impl Drop for ReversedOrder<'_> {
    fn drop(&mut self) {
        if let Some(stream) = &self.0.stream {
            stream.set_reversed(false);
        }
    }
}

/// The state of a weight group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightGroupState {
    /// Which group it is.
    pub group: WeightGroup,
    /// Where its bytes live between passes.
    pub tier: Tier,
    /// How its largest tensor is stored.
    pub storage: Storage,
    /// Bytes in the form in which it is used.
    pub bytes: u64,
    /// Whether it is in a staging buffer at present, or in the expert cache.
    pub in_flight: bool,
}

/// The outcome of a load.
pub enum LoadOutcome<T> {
    /// The loaded value.
    Done(T),
    /// The load was cancelled.
    Cancelled,
}

impl Residency {
    /// Reads the plan's resident groups one by one, and starts to stream the rest. `progress` is called with the number
    /// of groups done.
    ///
    /// # Errors
    /// When a tensor cannot be read, or memory cannot be allocated.
    pub fn load(
        plan: &Plan,
        reader: Arc<WeightReader>,
        device: &Device,
        ledger: &Ledger,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(usize),
    ) -> Result<LoadOutcome<Self>, EngineError> {
        let mut residency = Self {
            groups: Vec::with_capacity(plan.groups.len()),
            index: index(&plan.groups),
            staging: plan.staging,
            stream: None,
            experts: None,
            visits: ExpertVisits::default(),
            cpu_experts: plan.cpu_experts,
            link: None,
            expert_link: None,
            decompressed: None,
            reader: Some(reader),
            device: device.clone(),
            ledger: ledger.clone(),
            weights_version: 0,
        };
        for (number, group) in plan.groups.iter().enumerate() {
            progress(number);
            // One after the other: on its way to a GPU each group is assembled in host memory, which all at once would
            // fill.
            let place = match group.tier {
                Tier::Device => match residency.bring(group, device, cancel)? {
                    LoadOutcome::Done(loaded) => GroupPlacement::Resident(loaded),
                    LoadOutcome::Cancelled => return Ok(LoadOutcome::Cancelled),
                },
                // Placed properly by `start_stream`, once the whole cycle is known.
                Tier::Host | Tier::Disk => GroupPlacement::Rows,
            };
            residency.groups.push(GroupEntry {
                plan: group.clone(),
                placement: place,
            });
        }
        residency.start_stream()?;
        progress(plan.groups.len());
        Ok(LoadOutcome::Done(residency))
    }

    /// Weight groups that are counted and not there: a pass over them shows what memory it takes besides weights.
    #[must_use]
    pub fn dry_run(groups: &[WeightGroupPlan]) -> Self {
        let held = groups.iter().map(|group| GroupEntry {
            plan: group.clone(),
            placement: GroupPlacement::DryRun,
        });
        Self {
            groups: held.collect(),
            index: index(groups),
            // The plan counts weights and staging buffers by itself. A dry run finds what comes on top of them.
            staging: StagingBuffers::default(),
            stream: None,
            experts: None,
            visits: ExpertVisits::default(),
            cpu_experts: None,
            link: None,
            expert_link: None,
            decompressed: None,
            reader: None,
            // Never asked: nothing is streamed in a dry run, and its operations have a device of the right profile.
            device: Device::dry_run(Profile::cpu(0)),
            ledger: Ledger::dry_run(),
            weights_version: 0,
        }
    }

    /// Reads a group into memory of its own.
    fn bring(
        &self,
        group: &WeightGroupPlan,
        device: &Device,
        cancel: &AtomicBool,
    ) -> Result<LoadOutcome<LoadedGroup>, EngineError> {
        let pages = layout::resident(group.sizes()).bytes as usize / PAGE_BYTES;
        // Before the read, so that a refusal by the budget costs no time.
        let memory = DeviceBuffer::new(device, &self.ledger, MemoryKind::Weights, pages)?;
        let loaded = self.reader().load(group, memory, device, cancel)?;
        Ok(match loaded {
            Some(loaded) => LoadOutcome::Done(loaded),
            None => LoadOutcome::Cancelled,
        })
    }

    /// Loads a group in another plan's form, in memory of its own beside the one in force.
    pub(crate) fn load_converted(
        &self,
        group: &WeightGroupPlan,
        device: &Device,
        cancel: &AtomicBool,
    ) -> Result<LoadOutcome<LoadedGroup>, EngineError> {
        self.bring(group, device, cancel)
    }

    /// One of the weights of a group that [was loaded](Self::load_converted) beside those in force.
    pub(crate) fn converted_weight<'a>(
        &self,
        loaded: &'a LoadedGroup,
        group: &'a WeightGroupPlan,
        part: TensorPart,
    ) -> Weight<'a> {
        weight(group, Some(loaded), part, self.decompressed(), 0)
    }

    /// What brings weights: missing where its buffers could not be allocated after a change. The error counts as short
    /// memory, so something gives way and the pass is run again.
    fn present<'a, T>(&self, brings: Option<&'a T>) -> Result<&'a T, EngineError> {
        let bytes = self.staging.total_bytes();
        brings.ok_or_else(|| (self.ledger.refusal(MemoryKind::StagingBuffers, bytes)).into())
    }

    /// Waits for a weight group and holds it until the guard is dropped.
    ///
    /// # Errors
    /// When it is streamed and cannot be read, or there was no memory for staging buffers.
    ///
    /// # Panics
    /// When the model has no such group.
    pub fn acquire(&self, group: WeightGroup) -> Result<WeightGuard<'_>, EngineError> {
        let held = self.group(group);
        let bytes = match &held.placement {
            GroupPlacement::Resident(loaded) => Bytes::Resident(loaded),
            GroupPlacement::Streamed(place) => {
                let stream = self.present(self.stream.as_ref())?;
                // While the pass waits, conversions may use its cores.
                let _waiting = self.device.wait();
                Bytes::Streamed(stream.take(*place)?)
            }
            GroupPlacement::Cached(place) => {
                let cache = self.present(self.experts.as_ref())?;
                let _waiting = self.device.wait();
                Bytes::Cached(cache.take(*place)?)
            }
            GroupPlacement::Rows | GroupPlacement::DryRun => Bytes::None,
        };
        Ok(self.guard(held, bytes))
    }

    fn guard<'a>(&self, held: &'a GroupEntry, bytes: Bytes<'a>) -> WeightGuard<'a> {
        WeightGuard {
            plan: &held.plan,
            bytes,
            decompressed: self.decompressed(),
            weights_version: self.weights_version,
        }
    }

    /// Says which experts of a layer a pass is about to go through, in their order, and which of them the CPU computes. What of the
    /// others has to be read is read in that order.
    pub fn want_experts(
        &self,
        layer: usize,
        experts: impl Iterator<Item = usize> + Clone,
        is_of_cpu: impl Fn(usize) -> bool,
    ) {
        self.visits.visit(layer, experts.clone());
        if let Some(cache) = &self.experts {
            let acquired = experts.clone().filter(|&expert| !is_of_cpu(expert));
            cache.want(layer, acquired, experts.filter(|&expert| is_of_cpu(expert)));
        }
    }

    /// An expert, if acquiring it would not wait.
    ///
    /// # Panics
    /// When the model has no such expert.
    #[must_use]
    pub fn try_acquire(&self, group: WeightGroup) -> Option<WeightGuard<'_>> {
        let held = self.group(group);
        let bytes = match &held.placement {
            GroupPlacement::Resident(loaded) => Bytes::Resident(loaded),
            GroupPlacement::Cached(place) => {
                Bytes::Cached(self.experts.as_ref()?.try_take(*place)?)
            }
            GroupPlacement::Streamed(_) => return None,
            GroupPlacement::Rows | GroupPlacement::DryRun => Bytes::None,
        };
        Some(self.guard(held, bytes))
    }

    /// How many experts a pass may hold while it waits for another. On the CPU it holds none, and computes before it waits. On a
    /// GPU a wait ends when the copy is sent, and many small launches would take longer than the copies.
    pub(crate) fn experts_held_waiting(&self) -> usize {
        /// A launch for this many takes little longer than one for a single expert.
        const TOGETHER: usize = 16;
        match self.device.is_gpu() {
            // The others of the slots are free for what is waited for.
            true => TOGETHER.min(self.staging.expert_buffers / 2),
            false => 0,
        }
    }

    /// Where the experts were that the last visit of each layer touched, where not all of them are on the device.
    #[must_use]
    pub fn expert_visits(&self) -> Vec<(usize, ExpertStats)> {
        (self.experts.as_ref()).map_or_else(Vec::new, ExpertCache::last_visits)
    }

    /// Says that groups will be acquired in the reverse of their order, as gradients go, until the guard is dropped: what
    /// is streamed is then brought in that order.
    pub(crate) fn reversed(&self) -> ReversedOrder<'_> {
        if let Some(stream) = &self.stream {
            stream.set_reversed(true);
        }
        ReversedOrder(self)
    }

    /// Whether nothing is streamed, so that `acquire` never waits.
    #[must_use]
    pub fn is_resident(&self) -> bool {
        self.stream.is_none() && self.experts.is_none()
    }

    /// Parts of the LM head, in the order of the vocabulary, with the first row of each.
    pub fn lm_head_parts(&self) -> impl Iterator<Item = (WeightGroup, usize)> {
        self.groups.iter().filter_map(|held| match held.plan.group {
            WeightGroup::LmHead(_) => Some((held.plan.group, held.plan.tensors[0].first_row)),
            _ => None,
        })
    }

    /// Rows of the largest part of the LM head.
    #[must_use]
    pub fn lm_head_part_rows(&self) -> usize {
        self.lm_head_parts()
            .map(|(group, _)| self.group(group).plan.tensors[0].rows)
            .max()
            .unwrap_or(0)
    }

    /// The embedding, if it is on the device; `None` where rows are read from a file.
    ///
    /// # Errors
    /// As [`Residency::acquire`].
    pub fn embedding(&self) -> Result<Option<WeightGuard<'_>>, EngineError> {
        match self.group(WeightGroup::Embedding).placement {
            GroupPlacement::Resident(_) => self.acquire(WeightGroup::Embedding).map(Some),
            _ => Ok(None),
        }
    }

    /// A row of the embedding, from the file that holds it.
    ///
    /// # Errors
    /// When it cannot be read.
    ///
    /// # Panics
    /// When there is no such row, or `out` has another width.
    pub fn embedding_row(&self, id: u32, out: &mut [f32]) -> Result<(), EngineError> {
        let held = self.group(WeightGroup::Embedding);
        let tensor = &held.plan.tensors[0];
        // A fresh buffer is cheap here: at most a quarter of a MiB, once for every run of a token in a canvas.
        let mut bytes = vec![0; tensor.source.bytes(tensor.width)];
        self.reader().row(tensor, id as usize, &mut bytes)?;
        // No level converts the embedding, so its rows have the checkpoint's format.
        tensor.source.dequantize(&bytes, out);
        Ok(())
    }

    /// Checks that the file of the embedding's rows has not changed. Streamed groups are checked as they are read.
    ///
    /// # Errors
    /// When the file has changed.
    pub fn check_unchanged(&self) -> Result<(), EngineError> {
        let embedding = self.group(WeightGroup::Embedding);
        match embedding.placement {
            GroupPlacement::Rows => self.reader().check_unchanged(&embedding.plan.tensors[0]),
            _ => Ok(()),
        }
    }

    /// The weights version, which changes with every swap of a group.
    #[must_use]
    pub fn weights_version(&self) -> u64 {
        self.weights_version
    }

    /// Time and bytes of streaming since the last plan was put in force, and what passes have touched of a mixture's experts.
    #[must_use]
    pub fn stream_stats(&self) -> StreamStats {
        let stream = self.stream.as_ref().map(WeightStream::stats);
        let mut stats = stream.unwrap_or_default();
        stats += (self.experts.as_ref()).map_or_else(StreamStats::default, ExpertCache::stats);
        stats.touches = self.visits.touches();
        stats
    }

    /// The state of every weight group.
    #[must_use]
    pub fn groups(&self) -> Vec<WeightGroupState> {
        let in_flight = self
            .stream
            .as_ref()
            .map_or_else(Vec::new, WeightStream::in_flight);
        let cached: HashSet<usize> = (self.experts.iter()).flat_map(ExpertCache::held).collect();
        let groups = self.groups.iter().map(|held| WeightGroupState {
            group: held.plan.group,
            tier: held.plan.tier,
            storage: held.plan.storage(),
            bytes: held.plan.bytes(),
            in_flight: match &held.placement {
                GroupPlacement::Streamed(place) => in_flight.contains(place),
                GroupPlacement::Cached(place) => cached.contains(place),
                _ => false,
            },
        });
        groups.collect()
    }

    /// The present plan of every group.
    pub(crate) fn group_plans(&self) -> Vec<WeightGroupPlan> {
        self.groups.iter().map(|held| held.plan.clone()).collect()
    }

    /// The present staging buffers.
    pub(crate) fn staging(&self) -> StagingBuffers {
        self.staging
    }

    /// Whether every group is where its plan says.
    pub(crate) fn is_whole(&self) -> bool {
        let is_missing = |held: &GroupEntry| matches!(held.placement, GroupPlacement::DryRun);
        !self.groups.iter().any(is_missing)
    }

    /// Whether the weights are the checkpoint's own, bit for bit.
    #[must_use]
    pub fn is_lossless(&self) -> bool {
        let mut tensors = self.groups.iter().flat_map(|held| &held.plan.tensors);
        tensors.all(|tensor| match tensor.storage {
            Storage::Plain(format) => {
                format == tensor.source
                    // Weights that the file has quantized stay lossy when they are decompressed.
                    && tensor.compressed.is_none_or(|coding| coding.is_lossless())
            }
            Storage::Compressed(coding) => coding.is_lossless(),
        })
    }

    /// How each tensor is stored: results depend on nothing else of a plan.
    pub(crate) fn storages(&self) -> Vec<Storage> {
        let tensors = self.groups.iter().flat_map(|held| &held.plan.tensors);
        tensors.map(|tensor| tensor.storage).collect()
    }

    /// Elements of all tensors; a tied LM head isn't counted again. A pruned model has fewer than its shape.
    #[must_use]
    pub fn parameters(&self, tied: bool) -> u64 {
        let tensors = self.groups.iter().flat_map(|held| &held.plan.tensors);
        let counted = tensors.filter(|tensor| !(tied && tensor.part == TensorPart::LmHead));
        counted.map(TensorPlan::elements).sum()
    }

    /// Bytes of all weights as they are kept for computing.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.groups.iter().map(|held| held.plan.bytes()).sum()
    }

    /// Formats that occur, without repetition, compressed ones first. For tensors that are decompressed while loading,
    /// the file's.
    #[must_use]
    pub fn formats(&self) -> Vec<WeightFormat> {
        let tensors = self.groups.iter().flat_map(|held| &held.plan.tensors);
        let mut met: Vec<_> = tensors
            .map(|tensor| tensor.storage_of_file().weight_format())
            .collect();
        met.sort_by_key(|met| (met.scheme == Scheme::Plain, met.format, met.scheme.id()));
        met.dedup();
        met
    }

    fn group(&self, group: WeightGroup) -> &GroupEntry {
        let index = self.index.get(&group);
        &self.groups[*index.expect("a model acquires what its own specification named")]
    }

    fn reader(&self) -> &Arc<WeightReader> {
        self.reader.as_ref().expect("a rehearsal reads nothing")
    }
}

fn index(groups: &[WeightGroupPlan]) -> HashMap<WeightGroup, usize> {
    let numbered = groups.iter().enumerate();
    numbered
        .map(|(index, group)| (group.group, index))
        .collect()
}

/// A weight group, held in place while this lives.
pub struct WeightGuard<'a> {
    plan: &'a WeightGroupPlan,
    bytes: Bytes<'a>,
    decompressed: GpuSpan,
    weights_version: u64,
}

enum Bytes<'a> {
    Resident(&'a LoadedGroup),
    Streamed(StagedGroup),
    Cached(ExpertInUse),
    Host(Arc<HostGroup>),
    None,
}

impl WeightGuard<'_> {
    /// Whether its bytes were read for this guard alone, so that not many should be held at once.
    pub(crate) fn is_read_anew(&self) -> bool {
        matches!(&self.bytes, Bytes::Host(expert) if !expert.is_kept())
    }

    /// The KV heads that the group's attention has; `None` where it has the shape's.
    #[must_use]
    pub fn kept_kv_heads(&self) -> Option<&KeptKvHeads> {
        self.plan.kept_kv_heads.as_ref()
    }

    /// One of the group's weights.
    ///
    /// # Panics
    /// When the part belongs to another group, or the model has no such part.
    #[must_use]
    pub fn weight(&self, part: TensorPart) -> Weight<'_> {
        let loaded = match &self.bytes {
            Bytes::Resident(loaded) => Some(*loaded),
            Bytes::Streamed(slot) => Some(slot.loaded()),
            Bytes::Cached(expert) => Some(expert.loaded()),
            Bytes::Host(expert) => {
                return weight_with(self.plan, part, self.weights_version, |index, tensor| {
                    expert.tensor(index, tensor)
                });
            }
            Bytes::None => None,
        };
        weight(
            self.plan,
            loaded,
            part,
            self.decompressed,
            self.weights_version,
        )
    }
}

/// A weight of a group; without bytes where nothing is loaded.
fn weight<'a>(
    group: &'a WeightGroupPlan,
    loaded: Option<&'a LoadedGroup>,
    part: TensorPart,
    decoded: GpuSpan,
    weights_version: u64,
) -> Weight<'a> {
    weight_with(group, part, weights_version, |index, tensor| {
        // Without bytes in a dry run, whose operations only count memory.
        loaded.map_or(WeightData::None, |loaded| {
            loaded.tensor(index, tensor, decoded)
        })
    })
}

/// A weight of a group, whose bytes are found by its index there.
fn weight_with<'a>(
    group: &'a WeightGroupPlan,
    part: TensorPart,
    weights_version: u64,
    data: impl FnOnce(usize, &'a TensorPlan) -> WeightData<'a>,
) -> Weight<'a> {
    let tensors = &group.tensors;
    let index = tensors
        .iter()
        .position(|tensor| tensor.part == part)
        .unwrap_or_else(|| panic!("{part:?} is not in the unit held"));
    let tensor = &tensors[index];
    Weight {
        format: tensor.storage.format(),
        rows: tensor.rows,
        width: tensor.width,
        data: data(index, tensor),
        weights_version,
    }
}
