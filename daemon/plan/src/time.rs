//! How long a pass will take, from rates measured on this machine.
//!
//! For each resource, the demands on it are added and divided by its rate. On the CPU, copies from the system's cache,
//! decompression and matmuls share the cores and add; reads past the cache run beside them. Streamed weights are read
//! by one thread, which does one thing after the other. The expert cache has another, on the same disk and the same
//! bus, which counts as if the first one did its work. On a GPU, decompression and matmuls share the GPU; copies over
//! the bus run beside them, as does the thread that reads what is not kept in pinned memory.

mod host;

use std::collections::HashMap;

use sluice_formats::Format;
use sluice_machine::{DiskBandwidth, MemoryStats, Profile, Rates, default_pinned_memory_limit};
use sluice_shared::level::Level;
use sluice_weights::{
    CompressedRange, Shape, Storage, TensorPart, TensorPlan, Tier, WeightGroup, WeightGroupPlan,
    decompressed::is_decompressed_first,
};

use super::{
    Workload,
    corrections::{PassKind, TimeCorrections},
    experts::{ExpertSplit, PlannedExperts},
    pass_time::PassTime,
};

use self::host::HostTimes;
pub(super) use self::host::host_s;

/// The machine's properties that a plan depends on.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// The device that computes.
    pub device: Profile,
    /// Measured rates; `None` where they were not measured.
    pub rates: Option<Rates>,
    /// The speed of the disk that holds the checkpoint.
    pub disk: DiskBandwidth,
    /// Limit of the bytes a second that are streamed; `None` without one.
    pub disk_read_limit_bytes_per_s: Option<u64>,
    /// Limit of the streamed bytes that are kept in pinned host memory for a GPU.
    pub pinned_memory_limit_bytes: u64,
    /// Bytes that the engine holds, and file pages that the system can keep besides: a plan's own memory is taken from
    /// this sum.
    pub page_cache_bytes: u64,
    /// Corrections of these rates by measured passes.
    pub corrections: TimeCorrections,
}

impl Machine {
    /// A machine without known rates.
    #[must_use]
    pub fn unmeasured(device: Profile, cache_bytes: u64) -> Self {
        Self {
            device,
            rates: None,
            disk: DiskBandwidth::default(),
            disk_read_limit_bytes_per_s: None,
            pinned_memory_limit_bytes: 0,
            page_cache_bytes: cache_bytes,
            corrections: TimeCorrections::default(),
        }
    }

    /// This machine without corrections, as its rates alone have it.
    pub fn by_rates(&self) -> Self {
        Self {
            corrections: TimeCorrections::default(),
            ..self.clone()
        }
    }

    /// This machine, with what the system can keep of files at this moment, while the engine holds `held_bytes` of
    /// memory that the new plan takes the place of. The checkpoint's disk is not known yet, and nothing is limited but
    /// pinned memory, by [`default_pinned_memory_limit`].
    #[must_use]
    pub fn here(device: Profile, rates: Option<Rates>, held_bytes: u64) -> Self {
        let memory = MemoryStats::read();
        let free_bytes = memory.free_bytes;
        let memory = MemoryStats {
            free_bytes: free_bytes.map(|free| free.saturating_add(held_bytes)),
            ..memory
        };
        let is_gpu = device.gpu.is_some();
        Self {
            device,
            rates,
            disk: DiskBandwidth::default(),
            disk_read_limit_bytes_per_s: None,
            pinned_memory_limit_bytes: if is_gpu {
                default_pinned_memory_limit(&memory)
            } else {
                0
            },
            // Where the cache's size is unknown it counts as none, whatever the engine may give up.
            page_cache_bytes: (memory.page_cache_bytes)
                .map_or(0, |cache| cache.saturating_add(held_bytes)),
            corrections: TimeCorrections::default(),
        }
    }
}

/// What a prediction needs besides the weight groups.
#[derive(Clone, Copy)]
pub(super) struct TimingInput<'a> {
    pub(super) level: Level,
    pub(super) shape: &'a Shape,
    pub(super) workload: &'a Workload,
    /// Rows that go through an MLP together; 0: all of them.
    pub(super) mlp_rows: usize,
    /// What is known of a mixture's experts; `None` where the model has none.
    pub(super) experts: Option<PlannedExperts>,
    /// Share of the streamed experts that have a slot of the expert cache.
    pub(super) cached_experts: f64,
    /// Which experts the CPU computes beside a GPU.
    pub(super) cpu_experts: Option<ExpertSplit>,
    pub(super) machine: &'a Machine,
}

/// The time of a pass over these groups, corrected by measured passes; `None` where a rate is not known.
pub(super) fn predict(groups: &[WeightGroupPlan], input: &TimingInput<'_>) -> Option<PassTime> {
    let kind = PassKind {
        shape: input.shape,
        level: input.level,
        rows: input.rows(),
        has_cpu_experts: input.cpu_experts.is_some(),
    };
    let time = by_rates(groups, input)?;
    Some(input.machine.corrections.correct(time, kind))
}

impl TimingInput<'_> {
    /// Rows that the layers compute.
    pub(super) fn rows(&self) -> usize {
        usual_rows(self.shape, self.workload)
    }
}

fn usual_rows(shape: &Shape, workload: &Workload) -> usize {
    // An autoregressive model's usual pass has one new token of each request.
    match shape.causal {
        true => workload.batch_requests,
        false => workload.usual_rows(),
    }
}

/// What is known of a mixture's experts; `None` where the model has none.
pub(super) fn planned_experts(
    shape: &Shape,
    workload: &Workload,
    machine: &Machine,
) -> Option<PlannedExperts> {
    let experts = *shape.mixture()?;
    Some(PlannedExperts {
        shape: experts,
        profile: machine.corrections.experts(shape),
        rows: usual_rows(shape, workload),
    })
}

fn by_rates(groups: &[WeightGroupPlan], input: &TimingInput<'_>) -> Option<PassTime> {
    let machine = input.machine;
    let rates = machine.rates.as_ref()?;
    let is_gpu = machine.device.gpu.is_some();
    let mut time = PassTime {
        compute_s: attention(input.shape, input.workload, rates)?,
        copy_s: 0.0,
        copies_overlap: is_gpu,
        disk_s: 0.0,
        reader_s: 0.0,
        cold_s: None,
        correction: 1.0,
        others_share: rates.others_share,
    };
    let limit = machine.disk_read_limit_bytes_per_s;
    let mut cold_s = machine.disk.cold_bytes_per_s.map(|_| 0.0);
    // The same rule as in `Plan::new` and in the engine's link, so that the predicted groups are those that are kept.
    let mut pinned = PinnedBudget::new(machine.pinned_memory_limit_bytes, streamed(groups));
    // Of experts, the part that passes touch and the cache does not have; the first pass finds it empty.
    let expert_shares = input.experts.map_or((1.0, 1.0), |experts| {
        let rows = input.rows();
        let read_share = experts.read_share(rows, input.cached_experts, input.cpu_experts);
        (read_share, experts.touched_share(rows))
    });
    let mut host_times = HostTimes::new(input);
    for group in groups {
        match &mut host_times {
            Some(times) if group.group.is_expert() => times.add(group, compute_s(group, input)?)?,
            _ => time.compute_s += compute_s(group, input)?,
        }
        if !group.is_streamed() {
            continue;
        }
        let (share, first_share) = match group.group.is_expert() {
            true => expert_shares,
            false => (1.0, 1.0),
        };
        let bytes = group.file_bytes() as f64 * share;
        let first_bytes = group.file_bytes() as f64 * first_share;
        if is_gpu {
            time.copy_s += group.bytes() as f64 * share / rates.link_bytes_per_s?;
            // Kept in pinned memory: read from disk by the first pass alone, then only copied.
            if pinned.takes(group) {
                if let (Some(cold_s), Some(rate)) = (&mut cold_s, machine.disk.cold_bytes_per_s) {
                    *cold_s += first_bytes / rate;
                }
                continue;
            }
        }
        let decoded = group
            .tensors
            .iter()
            .filter_map(TensorPlan::decompressed_from);
        let decode_s = decoded.map(|(coding, numbers)| {
            Some(share * rates.decompress_s(coding.scheme)? * numbers as f64)
        });
        let mut busy_s = decode_s.sum::<Option<f64>>()?;
        let mut disk_s = 0.0;
        if group.tier == Tier::Host {
            busy_s += bytes / rates.copy_bytes_per_s;
        } else {
            disk_s = bytes / machine.disk.direct_bytes_per_s?;
        }
        // One thread does both, one after the other.
        let read_s = busy_s + disk_s;
        // The limit holds a buffer back until its bytes are due, however fast they were read.
        let pause_s = limit.map_or(0.0, |limit| (bytes / limit as f64 - read_s).max(0.0));
        if let (Tier::Host, Some(cold_s), Some(rate)) =
            (group.tier, &mut cold_s, machine.disk.cold_bytes_per_s)
        {
            *cold_s += (first_bytes / rate - pause_s).max(0.0);
        }
        time.disk_s += disk_s;
        if !is_gpu {
            // The reader occupies one core, which the pool of compute threads loses.
            time.copy_s += busy_s / machine.device.threads as f64;
        }
        time.reader_s += read_s + pause_s;
    }
    if let Some(times) = host_times {
        time.compute_s += times.experts_s(rates.link_bytes_per_s?);
    }
    // Copies wait for the reader in any case: a pass is no shorter than either.
    if is_gpu {
        time.reader_s = time.reader_s.max(time.copy_s);
    }
    time.cold_s = cold_s;
    Some(time)
}

fn streamed(groups: &[WeightGroupPlan]) -> impl Iterator<Item = &WeightGroupPlan> + Clone {
    groups.iter().filter(|group| group.is_streamed())
}

/// Pinned staging buffers of each link, for groups that are not kept in pinned memory: one is read into, one is copied
/// from.
pub const PINNED_STAGING_BUFFERS: usize = 2;

/// Bytes of pinned memory that streamed groups are kept in.
pub(super) fn pinned_bytes(groups: &[WeightGroupPlan], machine: &Machine) -> u64 {
    let mut pinned = PinnedBudget::new(machine.pinned_memory_limit_bytes, streamed(groups));
    let kept = streamed(groups).filter(|group| pinned.takes(group));
    kept.map(WeightGroupPlan::staging_bytes).sum()
}

/// Decides which of all streamed groups are kept in pinned memory: the first ones that fit.
#[derive(Debug)]
pub struct PinnedBudget {
    left_bytes: u64,
    has_staging: bool,
}

impl PinnedBudget {
    /// A budget of so much pinned memory for these groups: all of it is for groups that are kept where they all fit,
    /// else what the staging buffers leave.
    pub fn new<'a>(
        limit_bytes: u64,
        streamed: impl IntoIterator<Item = &'a WeightGroupPlan>,
    ) -> Self {
        // Experts have a link, and staging buffers, of their own: a pass brings both at once.
        let (mut all, mut most) = (0, [0; 2]);
        let mut is_any_on_disk = false;
        for group in streamed {
            let bytes = group.staging_bytes();
            all += bytes;
            is_any_on_disk |= group.tier == Tier::Disk;
            let most = &mut most[usize::from(group.group.is_expert())];
            *most = bytes.max(*most);
        }
        let has_staging = all > limit_bytes || is_any_on_disk;
        // Groups that are read in every pass go through staging buffers, which are to be pinned as well.
        let staging_bytes = match has_staging {
            true => PINNED_STAGING_BUFFERS as u64 * most.iter().sum::<u64>(),
            false => 0,
        };
        Self {
            left_bytes: limit_bytes.saturating_sub(staging_bytes),
            has_staging,
        }
    }

    /// Whether a part of the pinned memory is for staging buffers.
    pub fn has_staging(&self) -> bool {
        self.has_staging
    }

    /// Whether this group is kept, which comes next in the order of a pass.
    pub fn takes(&mut self, group: &WeightGroupPlan) -> bool {
        let bytes = group.staging_bytes();
        let takes = group.tier == Tier::Host && bytes <= self.left_bytes;
        if takes {
            self.left_bytes -= bytes;
        }
        takes
    }
}

/// Seconds of the matmuls with a group's weights; `None` where a rate is not known.
pub(super) fn compute_s(group: &WeightGroupPlan, input: &TimingInput<'_>) -> Option<f64> {
    let tensors = group.tensors.iter();
    tensors
        .map(|tensor| linear(group.group, tensor, input))
        .sum()
}

/// Seconds of the matmuls with each tensor by the rates, by its index; `None` where a rate is not known.
pub(super) fn tensor_seconds(
    groups: &[WeightGroupPlan],
    input: &TimingInput<'_>,
) -> Option<HashMap<usize, f64>> {
    let mut seconds = HashMap::new();
    for group in groups {
        for tensor in &group.tensors {
            // An LM head is cut into groups.
            *seconds.entry(tensor.tensor).or_insert(0.0) += linear(group.group, tensor, input)?;
        }
    }
    Some(seconds)
}

fn linear(group: WeightGroup, tensor: &TensorPlan, input: &TimingInput<'_>) -> Option<f64> {
    let TimingInput {
        shape,
        workload,
        machine,
        ..
    } = *input;
    let rates = machine.rates.as_ref()?;
    // A GPU decompresses with all of its cores at once; its rate is that of the whole device.
    let threads = match machine.device.gpu {
        Some(_) => 1,
        None => machine.device.threads,
    };
    if tensor.rows == 1 || tensor.part.is_table() {
        return Some(0.0);
    }
    let is_last = group.layer().is_some_and(|layer| layer + 1 == shape.layers);
    let rows = match tensor.part {
        _ if shape.causal => input.rows(),
        TensorPart::LmHead => workload.lm_head_rows().min(workload.usual_rows()),
        // The last layer computes keys and values of all rows, the rest only for rows that the LM head reads.
        TensorPart::Key | TensorPart::Value => workload.usual_rows(),
        _ if is_last => workload.lm_head_rows().min(workload.usual_rows()),
        _ => workload.usual_rows(),
    };
    // Of a mixture's experts, each has its share of the rows, and some have none.
    let (rows, share) = match input.experts.filter(|_| group.is_expert()) {
        Some(experts) => expert_rows(&experts, rows),
        None => (rows, 1.0),
    };
    // What is decompressed before the matmul is so once for each chunk of rows of an MLP.
    let turn_rows = match input.mlp_rows {
        most if most > 0 && tensor.part.is_of_mlp() => most.min(rows),
        _ => rows,
    };
    let is_decoded_first = match &machine.device.gpu {
        Some(gpu) => is_decompressed_first(gpu, tensor.storage.on_gpu(), turn_rows),
        None => true,
    };
    // Compressed weights are decompressed a few rows at a time and multiplied from there; besides that the matmul takes
    // about as long as bf16's, whose weights are nearly as short.
    let (format, decode_s) = match tensor.storage {
        // A GPU decompresses within the matmul, while it waits for memory.
        Storage::Compressed(_) if !is_decoded_first => (Format::Bf16, 0.0),
        Storage::Plain(format) => (format, 0.0),
        Storage::Compressed(CompressedRange { scheme, .. }) => {
            (Format::Bf16, rates.decompress_s(scheme)?)
        }
    };
    let turns = match machine.device.gpu {
        Some(_) => rows.div_ceil(turn_rows.max(1)),
        None => 1,
    };
    // Decompression is divided among the threads; the matmul's rate was measured with all of them.
    let decode_s = decode_s * (turns as u64 * tensor.elements()) as f64 / threads as f64;
    let rate = rates.linear(format)?;
    let seconds = share * (rate.seconds(tensor.elements(), rows) + decode_s);
    // A head whose rows are summed is multiplied by from its other side, too.
    Some(match tensor.part {
        TensorPart::LmHead if shape.sums_lm_head() => 2.0 * seconds,
        _ => seconds,
    })
}

/// How many rows an expert has that has any, and how many of the experts do.
fn expert_rows(experts: &PlannedExperts, rows: usize) -> (usize, f64) {
    let PlannedExperts { shape, profile, .. } = experts;
    let touched = profile.touched(shape, rows);
    match touched > 0.0 {
        true => (
            ((rows * shape.per_token) as f64 / touched).round() as usize,
            touched / shape.count as f64,
        ),
        false => (0, 0.0),
    }
}

/// Queries with keys and scores with values: two matmuls, each with as many multiplications for a pair of positions as
/// the query heads have elements. Canvases that differ in length all count as the longest.
fn attention(shape: &Shape, workload: &Workload, rates: &Rates) -> Option<f64> {
    // An autoregressive request computes one position; how many keys it sees is not known to the plan.
    let keys = if shape.causal {
        1
    } else {
        workload.canvas_length
    };
    let pairs = (workload.usual_rows() * keys) as f64;
    let head_dims: usize = (0..shape.layers)
        .map(|layer| shape.heads(layer).head_dim)
        .sum();
    let widths = (shape.attention_heads * head_dims) as f64;
    // On the CPU attention multiplies `f32` by `f32`, which is what this rate is measured with.
    let rate = rates.linear(Format::F32)?;
    Some(2.0 * pairs * widths * rate.per_row_s())
}
