//! Which weights live where in which format, how much memory that takes and how long a pass is: decided before anything
//! is loaded, by functions that need no device.

pub mod corrections;
mod cpu_experts;
pub mod decompressed;
mod experts;
mod kv_cache;
mod pass_time;
mod recipe;
pub mod sharing;
mod spread;
mod switch_estimate;
mod time;
mod transition;

use std::collections::HashMap;

use sluice_formats::Format;
use sluice_machine::MemoryKind;
use sluice_shared::{
    level::{CpuExperts, KvCacheFormat, Level},
    options::ResolvedPlanSettings,
    units,
};
use sluice_weights::{
    Shape, SourceTensor, Storage, TensorPlan, Tier, WeightGroupPlan, weight_groups,
};

pub use self::{
    corrections::TimeCorrections,
    decompressed::MLP_ROWS,
    experts::{ExpertFigures, ExpertProfile, ExpertSplit, LearnedExperts, PlannedExperts},
    kv_cache::{compute_format, resolve_canvas_kv_cache_format, resolve_kv_cache_format},
    pass_time::PassTime,
    switch_estimate::{ConversionSource, SwitchEstimate, estimate_switch},
    time::{Machine, PINNED_STAGING_BUFFERS, PinnedBudget},
    transition::{TransitionStep, transition},
};

/// The requests that share a pass: their sums, and the longest of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Positions of the longest canvas, prompt included.
    pub canvas_length: usize,
    /// Positions decoded together, in the largest block.
    pub block_length: usize,
    /// Canvases that share a pass: with guidance two for a request, and as many again for each order that is tried.
    pub batch_requests: usize,
    rows: usize,
    /// Rows of a usual pass, where only the first ones have more.
    usual_rows: Option<usize>,
    lm_head_rows: usize,
    /// Rows that verify what was committed, of all requests.
    checks: usize,
    /// Positions of the KV caches that requests keep between passes over a canvas, and the number of those caches.
    cached_rows: usize,
    kv_caches: usize,
    /// Rows whose distributions are kept from pass to pass, of all requests.
    compared_rows: usize,
    /// Rows through which gradients for latents go, of all requests.
    thought_rows: usize,
}

impl Workload {
    /// A workload of so many requests with canvases and blocks of one size.
    #[must_use]
    pub fn new(canvas: usize, block: usize, requests: usize) -> Self {
        Self {
            canvas_length: canvas,
            block_length: block,
            batch_requests: requests,
            // By default a pass computes every position; `computing` lowers that for windows and caches.
            rows: canvas * requests,
            usual_rows: None,
            // The LM head reads masked rows of the open block and no others.
            lm_head_rows: block.min(canvas) * requests,
            checks: 0,
            cached_rows: 0,
            kv_caches: 0,
            compared_rows: 0,
            thought_rows: 0,
        }
    }

    /// The workload of passes over texts that a sentence encoder reads, at most `longest` tokens each and `rows` together, so
    /// many texts at once. All rows are read at their end.
    #[must_use]
    pub fn of_texts(longest: usize, texts: usize, rows: usize) -> Self {
        Self {
            lm_head_rows: rows,
            ..Self::new(longest, longest, texts).with_rows(rows)
        }
    }

    /// The workload, with so many rows whose distributions are kept from pass to pass.
    #[must_use]
    pub fn comparing(self, compared_rows: usize) -> Self {
        Self {
            compared_rows,
            ..self
        }
    }

    /// The workload, with so many rows through which gradients for latents go.
    #[must_use]
    pub fn thinking(self, thought_rows: usize) -> Self {
        Self {
            thought_rows,
            ..self
        }
    }

    /// Rows of all requests through which gradients for latents go.
    #[must_use]
    pub fn thought_rows(&self) -> usize {
        self.thought_rows
    }

    /// The workload, of whose canvases a pass computes at most so many positions.
    #[must_use]
    pub fn computing(self, rows: usize) -> Self {
        Self {
            rows: rows.min(self.canvas_length) * self.batch_requests,
            ..self
        }
    }

    /// The workload, with a KV cache of all positions kept between passes.
    #[must_use]
    pub fn with_kv_cache(self) -> Self {
        Self {
            cached_rows: self.canvas_length * self.batch_requests,
            kv_caches: self.batch_requests,
            ..self
        }
    }

    /// The workload with block diffusion, in blocks of so many positions: keys and values of finished blocks are kept, and a
    /// usual pass computes the open one. What has that already stays as it is.
    #[must_use]
    pub fn in_blocks(self, block_length: usize) -> Self {
        match self.usual_rows {
            Some(_) => self,
            None => Self {
                block_length,
                lm_head_rows: (self.lm_head_rows)
                    .max(block_length.min(self.canvas_length) * self.batch_requests),
                usual_rows: Some(block_length.min(self.canvas_length) * self.batch_requests),
                ..self.with_kv_cache()
            },
        }
    }

    /// Rows that the layers compute in a usual pass.
    #[must_use]
    pub fn usual_rows(&self) -> usize {
        self.usual_rows.unwrap_or(self.rows)
    }

    /// The workload, verifying as many rows as a block has in each request.
    #[must_use]
    pub fn checking(self) -> Self {
        Self {
            checks: self.lm_head_rows,
            ..self
        }
    }

    /// The workload, of whose passes some read so many rows at their end.
    #[must_use]
    pub fn reading(self, rows: usize) -> Self {
        Self {
            lm_head_rows: self.lm_head_rows.max(rows),
            ..self
        }
    }

    /// Rows that verify what was committed, besides those of the canvases.
    #[must_use]
    pub fn checks(&self) -> usize {
        self.checks
    }

    /// Positions of KV caches that are kept between passes over canvases, and the number of caches.
    #[must_use]
    pub fn cached_rows(&self) -> (usize, usize) {
        (self.cached_rows, self.kv_caches)
    }

    /// Most positions of all canvases that the layers compute together.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Most rows that the LM head reads, of all requests.
    #[must_use]
    pub fn lm_head_rows(&self) -> usize {
        self.lm_head_rows
    }

    /// Rows of all requests whose distributions are kept from pass to pass.
    #[must_use]
    pub fn compared_rows(&self) -> usize {
        self.compared_rows
    }

    /// The workload, with so many rows computed by a pass.
    pub fn with_rows(self, rows: usize) -> Self {
        Self { rows, ..self }
    }

    /// Whether all canvases have one length.
    #[must_use]
    pub fn is_uniform(&self) -> bool {
        self.rows == self.canvas_length * self.batch_requests
    }

    /// The workload of a pass that the requests of both share.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        Self {
            // The longest of both, for what depends on one canvas; rows and caches of all of them add up.
            canvas_length: self.canvas_length.max(other.canvas_length),
            block_length: self.block_length.max(other.block_length),
            batch_requests: self.batch_requests + other.batch_requests,
            rows: self.rows + other.rows,
            usual_rows: self
                .usual_rows
                .zip(other.usual_rows)
                .map(|(own, other)| own + other),
            lm_head_rows: self.lm_head_rows + other.lm_head_rows,
            checks: self.checks + other.checks,
            cached_rows: self.cached_rows + other.cached_rows,
            kv_caches: self.kv_caches + other.kv_caches,
            compared_rows: self.compared_rows + other.compared_rows,
            thought_rows: self.thought_rows + other.thought_rows,
        }
    }

    /// The workload of a pass that has room for either of the two.
    #[must_use]
    pub fn widest(&self, other: &Self) -> Self {
        Self {
            canvas_length: self.canvas_length.max(other.canvas_length),
            block_length: self.block_length.max(other.block_length),
            batch_requests: self.batch_requests.max(other.batch_requests),
            rows: self.rows.max(other.rows),
            usual_rows: self.usual_rows.max(other.usual_rows),
            lm_head_rows: self.lm_head_rows.max(other.lm_head_rows),
            checks: self.checks.max(other.checks),
            cached_rows: self.cached_rows.max(other.cached_rows),
            kv_caches: self.kv_caches.max(other.kv_caches),
            compared_rows: self.compared_rows.max(other.compared_rows),
            thought_rows: self.thought_rows.max(other.thought_rows),
        }
    }
}

/// The canvas of a plan that is asked for without a request.
pub const CANVAS_DEFAULT: usize = 256;
// On GSM8K, LLaDA-8B-Instruct reaches 12.9 without blocks, because end tokens fill the canvas, and 73.8 with blocks of
// 32.
/// The block of such a plan: LLaDA's.
pub const BLOCK_DEFAULT: usize = 32;

impl Default for Workload {
    fn default() -> Self {
        Self::new(CANVAS_DEFAULT, BLOCK_DEFAULT, 1)
    }
}

/// Buffers that streamed weight groups pass through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StagingBuffers {
    /// The number of buffers.
    pub count: usize,
    /// Bytes of each.
    pub bytes_each: u64,
    /// Bytes of GPU memory into which weights are decompressed, some rows at a time, streamed or not.
    pub decompress_bytes: u64,
    /// Buffers of the expert cache: each keeps one expert of a mixture, whichever passes touch most.
    pub expert_buffers: usize,
    /// Bytes of each of them.
    pub expert_buffer_bytes: u64,
}

impl StagingBuffers {
    /// Bytes of all buffers, of the decompression memory and of the expert cache.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.count as u64 * self.bytes_each
            + self.decompress_bytes
            + self.expert_buffers as u64 * self.expert_buffer_bytes
    }

    /// Buffers for a model between the plan of these and that of `new`, while these groups are where they are.
    #[must_use]
    pub fn of_both(&self, new: &Self, groups: &[WeightGroupPlan]) -> Self {
        let largest = |experts: bool| {
            let streamed = groups.iter().filter(|group| group.is_streamed());
            let streamed = streamed.filter(|group| group.group.is_expert() == experts);
            streamed.map(WeightGroupPlan::staging_bytes).max()
        };
        let (buffer, slot) = (largest(false), largest(true));
        Self {
            count: buffer.map_or(0, |_| self.count.max(new.count)),
            bytes_each: buffer.unwrap_or(0),
            // Groups have the forms of either plan until all have changed.
            decompress_bytes: self.decompress_bytes.max(new.decompress_bytes),
            // The new plan's number, where it has any: there is room for these in the end.
            expert_buffers: match (slot, new.expert_buffers) {
                (None, _) => 0,
                (Some(_), 0) => self.expert_buffers,
                (Some(_), slots) => slots,
            },
            expert_buffer_bytes: slot.unwrap_or(0),
        }
    }
}

/// Memory besides weights and staging buffers, found by a dry run of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkingMemory {
    /// Bytes that the GPU's driver takes for its context.
    pub context_bytes: u64,
    /// What no plan changes of the model: its tables, such as rotary angles, and the weights of a learned prior.
    pub tables_bytes: u64,
    /// Activations of the workload.
    pub activation_bytes: u64,
    /// KV caches that are kept from pass to pass; 0 where each pass computes the whole canvas.
    pub kv_cache_bytes: u64,
    /// The format of those KV caches; `None` where there are none.
    pub kv_cache_format: Option<Format>,
    /// States of sequences, of models without attention.
    pub state_bytes: u64,
    /// Logits of one piece of the vocabulary.
    pub logits_bytes: u64,
    /// Scratch memory of all threads.
    pub scratch_bytes: u64,
    /// Rows that go through an MLP together; 0: all of a pass.
    pub mlp_rows: usize,
    /// Host memory, beside a GPU's, where the CPU computes experts.
    pub host: HostWorkingMemory,
}

/// Host memory of what the CPU computes beside a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostWorkingMemory {
    /// Activations of the workload.
    pub activation_bytes: u64,
    /// Scratch memory of all threads.
    pub scratch_bytes: u64,
}

impl WorkingMemory {
    /// The sum of all these that is the device's.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.context_bytes
            + self.tables_bytes
            + self.activation_bytes
            + self.kv_cache_bytes
            + self.state_bytes
            + self.logits_bytes
            + self.scratch_bytes
    }
}

/// The input of a plan.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// The model's shape.
    pub shape: &'a Shape,
    /// The checkpoint's tensors.
    pub sources: &'a [SourceTensor],
    /// The level and the other settings, resolved.
    pub choices: ResolvedPlanSettings,
    /// Most bytes of the device's memory that the plan may take.
    pub budget_bytes: u64,
    /// The requests to plan for.
    pub workload: Workload,
    /// Memory besides weights and staging buffers.
    pub working: WorkingMemory,
    /// The machine that computes.
    pub machine: &'a Machine,
}

/// A plan: which weight group lives where in which format, and what follows from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The plan's level, never `auto`.
    pub level: Level,
    /// Most bytes that it may take.
    pub budget_bytes: u64,
    /// The requests that it was made for.
    pub workload: Workload,
    /// The weight groups, in the order of a pass.
    pub groups: Vec<WeightGroupPlan>,
    /// Buffers that streamed weight groups pass through; none where nothing is streamed.
    pub staging: StagingBuffers,
    /// Bytes of pinned host memory that streamed weight groups are kept in, for a GPU to copy from.
    pub pinned_bytes: u64,
    /// Memory besides weights and staging buffers.
    pub working: WorkingMemory,
    /// What passes touch of a mixture's experts; `None` without a mixture.
    pub experts: Option<PlannedExperts>,
    /// Which of them the CPU computes beside a GPU; `None`: none.
    pub cpu_experts: Option<ExpertSplit>,
    /// The predicted time of a pass; `None` where the machine's rates are not known.
    pub pass: Option<PassTime>,
    /// Other levels that would store exactly the same weights. Without `off`, which is the same as `standard` in this.
    pub equal_levels: Vec<Level>,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Even the smallest plan exceeds the budget.
    #[error(
        "the budget of {budget} is too small: level {level} needs at least {least} for a canvas of {canvas} positions{fits}",
        budget = units::bytes(*budget_bytes),
        least = units::bytes_to_type(*least_bytes),
        fits = fitting.map_or_else(String::new, |(level, bytes)| {
            format!("; the less faithful level {level} would fit in {}", units::bytes(bytes))
        })
    )]
    BudgetTooSmall {
        /// The budget that was given.
        budget_bytes: u64,
        /// Bytes of the smallest plan that works.
        least_bytes: u64,
        /// The level that was asked for.
        level: Level,
        /// Positions of the canvas that was asked for.
        canvas: usize,
        /// The most faithful of the levels that would fit, and its bytes; `None` where nobody looked for one or none
        /// fits.
        fitting: Option<(Level, u64)>,
    },
    /// The GPU cannot keep a KV cache in this format.
    #[error("this GPU computes in {dtype} and cannot hold a KV cache in {asked}")]
    KvCacheFormat {
        /// The format that was asked for.
        asked: KvCacheFormat,
        /// The dtype in which the GPU computes.
        dtype: &'static str,
    },
    /// The checkpoint's weights are not compressed, and a compressed copy has no place.
    #[error(
        "level {level} needs losslessly compressed weights: the checkpoint has none, and no weight cache folder is configured to \
         compress them into"
    )]
    NotCompressed {
        /// The level that was asked for.
        level: Level,
    },
    /// The canvas is longer than the model's context.
    #[error("a canvas of {canvas} positions exceeds the model's context length of {context}")]
    CanvasTooLong {
        /// Positions that were asked for.
        canvas: usize,
        /// Positions of the model's context.
        context: usize,
    },
    /// A part of the workload is zero.
    #[error("{what} must be at least 1")]
    ZeroWorkload {
        /// Which part was given as 0.
        what: &'static str,
    },
}

// More gain little: in llama.cpp, prefill with streamed experts went from 1014 to 1518 tokens/s with 3 buffers, to 1600
// at most with 4, and no further with 6 (PR #28414).
/// Staging buffers for weight groups that come from the host: an MLP holds two at once, one is being filled.
const HOST_STAGING_BUFFERS: usize = 3;
/// From disk, one more buffer is kept filled ahead.
const DISK_STAGING_BUFFERS: usize = 4;

impl Plan {
    /// Makes the plan.
    ///
    /// # Errors
    /// When the budget is below the smallest plan, or the workload makes no sense for the model.
    pub fn new(input: &PlanInput<'_>) -> Result<Self, PlanError> {
        check_workload(input)?;
        let level = input.choices.level;
        if level == Level::Auto {
            return auto(input);
        }
        let mut units = weight_groups(input.sources);
        let same_as = recipe::equal_levels(level, input.machine, input.sources, &units);
        recipe::apply(
            level,
            input.choices.settings.embedding,
            input.machine,
            input.sources,
            &mut units,
        );
        let slots = place(input, &mut units)?;
        let mut plan = Self {
            level,
            budget_bytes: input.budget_bytes,
            workload: input.workload,
            pass: None,
            pinned_bytes: time::pinned_bytes(&units, input.machine),
            groups: units,
            staging: slots,
            working: input.working,
            experts: time::planned_experts(input.shape, &input.workload, input.machine),
            cpu_experts: None,
            equal_levels: same_as,
        };
        // After `place`: decompressed weights get only what it has left of the budget.
        if input.choices.decompresses() {
            plan.decompress_where_it_pays(input);
        }
        if input.choices.settings.cpu_experts == CpuExperts::Auto {
            plan.cpu_experts = plan.faster_on_cpu(input);
        }
        plan.pass = plan.time(input.shape, &input.workload, input.machine);
        Ok(plan)
    }

    /// Decompresses losslessly compressed weight groups once and for all, as far as the budget has room and a pass gets
    /// shorter by it: where memory is not short, compression only costs time.
    fn decompress_where_it_pays(&mut self, input: &PlanInput<'_>) {
        let asked = self.timing_input(input.shape, &input.workload, input.machine);
        let time = |group: &WeightGroupPlan| time::compute_s(group, &asked);
        let mut room = (self.budget_bytes).saturating_sub(self.held_bytes(input.machine));
        // In the order of a pass, first come: all layers gain about the same for a byte, so there is little to choose
        // between them.
        for group in &mut self.groups {
            let decoded = recipe::decompressed(group);
            let more = decoded
                .resident_bytes()
                .saturating_sub(group.resident_bytes());
            if decoded == *group || more > room {
                continue;
            }
            let times = time(&decoded).zip(time(group));
            // Without rates, plain weights are taken to multiply faster.
            if times.is_none_or(|(now, before)| now < before) {
                room -= more;
                *group = decoded;
            }
        }
        // Fewer tensors may need decompression now. With staging buffers the size stays as `place` set it, for any
        // streamed set.
        if self.staging.count == 0 {
            self.staging.decompress_bytes = decompressed::bytes(&self.groups, input);
        }
    }

    /// How long a pass of any workload takes under this plan; `None` where a rate is not known.
    pub fn time(&self, shape: &Shape, workload: &Workload, machine: &Machine) -> Option<PassTime> {
        time::predict(&self.groups, &self.timing_input(shape, workload, machine))
    }

    /// Seconds of a pass's matmuls with each of the model's tensors, by its index, as the rates alone have it; `None` where
    /// one is not known.
    pub fn tensor_seconds(&self, shape: &Shape, machine: &Machine) -> Option<HashMap<usize, f64>> {
        time::tensor_seconds(
            &self.groups,
            &self.timing_input(shape, &self.workload, machine),
        )
    }

    fn timing_input<'a>(
        &self,
        shape: &'a Shape,
        workload: &'a Workload,
        machine: &'a Machine,
    ) -> time::TimingInput<'a> {
        time::TimingInput {
            level: self.level,
            shape,
            workload,
            mlp_rows: self.working.mlp_rows,
            experts: time::planned_experts(shape, workload, machine),
            cached_experts: self.cached_experts(),
            cpu_experts: self.cpu_experts,
            machine,
        }
    }

    /// The share of the streamed experts that the expert cache has a slot for.
    fn cached_experts(&self) -> f64 {
        let streamed = self.streamed().filter(|group| group.group.is_expert());
        self.staging.expert_buffers as f64 / streamed.count().max(1) as f64
    }

    /// Most bytes of the device's memory that are held at once.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.weight_bytes() + self.working.total_bytes()
    }

    /// Bytes of host memory, beside the peak, in which the CPU computes experts.
    #[must_use]
    pub fn cpu_expert_bytes(&self) -> u64 {
        let host = self.working.host;
        (self.cpu_experts).map_or(0, |_| host.activation_bytes + host.scratch_bytes)
    }

    /// Most bytes of the device's memory that the driver counts at once: the peak, with what it takes besides.
    #[must_use]
    pub fn held_bytes(&self, machine: &Machine) -> u64 {
        let tables = page_table_bytes(self.pinned_bytes);
        self.peak_bytes() + allocation_slack_bytes(machine) + tables
    }

    /// Bytes for weights: resident ones, and the staging buffers of the others.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.resident_bytes() + self.staging.total_bytes()
    }

    /// Bytes of weights that stay on the device.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.groups
            .iter()
            .map(WeightGroupPlan::resident_bytes)
            .sum()
    }

    /// Bytes of weights that pass through the staging buffers in every pass; of experts those that a usual pass is expected to
    /// touch and not to find in the expert cache.
    #[must_use]
    pub fn streamed_bytes(&self) -> u64 {
        let (experts, others): (Vec<_>, Vec<_>) =
            self.streamed().partition(|group| group.group.is_expert());
        let bytes = |groups: Vec<&WeightGroupPlan>| -> u64 {
            groups.into_iter().map(WeightGroupPlan::bytes).sum()
        };
        let read_share = self.experts.map_or(1.0, |experts| {
            experts.read_share(experts.rows, self.cached_experts(), self.cpu_experts)
        });
        bytes(others) + (bytes(experts) as f64 * read_share) as u64
    }

    /// What a usual pass is expected to touch of each layer's experts; `None` without a mixture.
    #[must_use]
    pub fn expert_figures(&self) -> Option<ExpertFigures> {
        let experts = self.experts?;
        let PlannedExperts {
            shape,
            profile,
            rows,
        } = experts;
        let is_streamed = self.staging.expert_buffers > 0;
        Some(ExpertFigures {
            count: shape.count,
            touched: profile.touched(&shape, rows),
            of_cpu: experts.of_cpu(rows, self.cpu_experts),
            read: match is_streamed {
                true => {
                    let share = experts.read_share(rows, self.cached_experts(), self.cpu_experts);
                    share * shape.count as f64
                }
                false => 0.0,
            },
            is_measured: profile.is_measured,
        })
    }

    /// The weight groups that pass through the staging buffers or the expert cache, in the order of a pass.
    pub fn streamed(&self) -> impl Iterator<Item = &WeightGroupPlan> {
        self.groups.iter().filter(|group| group.is_streamed())
    }

    /// Bytes by the ledger's kinds of memory.
    #[must_use]
    pub fn bytes_by_kind(&self) -> [(MemoryKind, u64); 8] {
        let working = &self.working;
        MemoryKind::ALL.map(|kind| {
            let bytes = match kind {
                MemoryKind::Context => working.context_bytes,
                // The ledger counts a model's tables as weights, so the plan does, too.
                MemoryKind::Weights => self.resident_bytes() + working.tables_bytes,
                MemoryKind::StagingBuffers => self.staging.total_bytes(),
                MemoryKind::Activations => working.activation_bytes,
                MemoryKind::KvCache => working.kv_cache_bytes,
                MemoryKind::State => working.state_bytes,
                MemoryKind::Logits => working.logits_bytes,
                MemoryKind::Scratch => working.scratch_bytes,
            };
            (kind, bytes)
        })
    }

    /// Whether it rests on an estimate of the weights' compressed size: before it can be put in force they have to be
    /// compressed, and then there is an exact plan.
    #[must_use]
    pub fn is_estimate(&self) -> bool {
        let mut tensors = self.groups.iter().flat_map(|group| &group.tensors);
        tensors.any(
            |tensor| matches!(tensor.storage, Storage::Compressed(coding) if coding.is_estimate),
        )
    }

    /// Tensors whose row length kept them from their level's format, and the format they would have had, without
    /// repetition.
    #[must_use]
    pub fn exceptions(&self) -> Vec<(TensorPlan, Storage)> {
        let mut found: Vec<(TensorPlan, Storage)> = Vec::new();
        // A mix chooses tensor by tensor: what it leaves as it is is no exception.
        if self.level == Level::Optimized {
            return found;
        }
        let from = recipe::RecipeInput::default();
        let all = self.groups.iter().flat_map(|group| &group.tensors);
        // Compressed tensors are exceptions for other reasons.
        for tensor in all.filter(|tensor| !matches!(tensor.storage, Storage::Compressed(_))) {
            let usual = recipe::storage(
                self.level,
                from,
                // A width that the blocks of every format divide: what the level would do without the row length.
                &TensorPlan {
                    width: 1 << 16,
                    ..*tensor
                },
                recipe::OtherForms::default(),
            );
            let is_known = |(known, _): &(TensorPlan, Storage)| {
                known.part == tensor.part && known.width == tensor.width
            };
            if usual != tensor.storage && !found.iter().any(is_known) {
                found.push((*tensor, usual));
            }
        }
        found
    }
}

fn check_workload(input: &PlanInput<'_>) -> Result<(), PlanError> {
    let Workload {
        canvas_length: canvas,
        block_length: block,
        batch_requests: requests,
        ..
    } = input.workload;
    for (what, value) in [("canvas", canvas), ("block", block), ("requests", requests)] {
        if value == 0 {
            return Err(PlanError::ZeroWorkload { what });
        }
    }
    let context = input.shape.context_length;
    if canvas > context {
        return Err(PlanError::CanvasTooLong { canvas, context });
    }
    Ok(())
}

/// Allowance for the driver's 2 MiB allocation granularity; tests see at most four partly filled pieces.
pub fn allocation_slack_bytes(machine: &Machine) -> u64 {
    const PIECE_BYTES: u64 = 2 << 20;
    machine.device.gpu.map_or(0, |_| 4 * PIECE_BYTES)
}

/// What a GPU's page tables take of its memory for so many pinned bytes of the host: 8 bytes for 4 KiB. The driver counts
/// them, the ledger doesn't. On an H100 they were 23 MiB for 11.5 GiB.
fn page_table_bytes(pinned_bytes: u64) -> u64 {
    pinned_bytes.div_ceil(4096) * 8
}

/// Keeps on the device what the budget has room for, spreads the rest evenly over the pass, and sizes the staging
/// buffers it goes through.
fn place(
    input: &PlanInput<'_>,
    groups: &mut [WeightGroupPlan],
) -> Result<StagingBuffers, PlanError> {
    let resident: u64 = groups.iter().map(WeightGroupPlan::resident_bytes).sum();
    let rounded = allocation_slack_bytes(input.machine);
    let budget = input.budget_bytes.saturating_sub(rounded);
    let needed = input.working.total_bytes() + resident;
    let too_small = |least_bytes: u64| PlanError::BudgetTooSmall {
        budget_bytes: input.budget_bytes,
        least_bytes: least_bytes + rounded,
        level: input.choices.level,
        canvas: input.workload.canvas_length,
        fitting: None,
    };
    let decoded = |units: &[WeightGroupPlan]| decompressed::bytes(units, input);
    let resident_decoded = decoded(groups);
    if needed + resident_decoded <= budget {
        return Ok(StagingBuffers {
            decompress_bytes: resident_decoded,
            ..StagingBuffers::default()
        });
    }
    // `off` promises that everything stays on the device: it is refused rather than streamed.
    if input.choices.level == Level::Off {
        return Err(too_small(needed + resident_decoded));
    }
    let is_gpu = input.machine.device.gpu.is_some();
    // Streamed to a GPU, compressed weights cross the bus as they are compressed.
    let forms: Vec<WeightGroupPlan> = match is_gpu {
        true => groups.iter().map(recipe::compressed).collect(),
        false => groups.to_vec(),
    };
    // The most that any streamed set may pin or need, so that the memory does not depend on which groups are streamed.
    let all_bytes = forms
        .iter()
        .map(WeightGroupPlan::staging_bytes)
        .sum::<u64>();
    let page_tables = match is_gpu {
        true => page_table_bytes(all_bytes.min(input.machine.pinned_memory_limit_bytes)),
        false => 0,
    };
    let budget = budget.saturating_sub(page_tables);
    let decoded_bytes = decoded(&forms).max(resident_decoded);
    let all_resident = needed + resident_decoded;
    let needed = needed + decoded_bytes;
    // From the system's cache a fourth buffer gains nothing: its bytes are better spent on residency. On a GPU the
    // fourth buffer is pinned host memory, which the plan counts apart.
    let tries: &[_] = match is_gpu {
        true => &[(HOST_STAGING_BUFFERS, None)],
        false => &[
            (HOST_STAGING_BUFFERS, Some(Tier::Host)),
            (DISK_STAGING_BUFFERS, None),
            (HOST_STAGING_BUFFERS, None),
        ],
    };
    for &(count, only) in tries {
        let fitting = spread::streamed(groups, &forms, count, needed, budget);
        let Some((streamed, buffers)) = fitting else {
            continue;
        };
        let slots = StagingBuffers {
            decompress_bytes: decoded_bytes,
            ..buffers
        };
        let freed: u64 = (streamed.iter().map(|&index| groups[index].resident_bytes())).sum();
        let file_bytes: u64 = (streamed.iter().map(|&index| forms[index].file_bytes())).sum();
        // The cache gets what the plan leaves of the machine's memory; GPU memory takes none of it.
        // Decompression memory is part of both terms, and counted once.
        let peak_bytes = needed - decoded_bytes + slots.total_bytes() - freed;
        let taken_bytes = if is_gpu { 0 } else { peak_bytes };
        let cache_bytes = input.machine.page_cache_bytes.saturating_sub(taken_bytes);
        // All or nothing: a cache smaller than what goes round through it never hits. With 11.8 GiB a pass took 6.5 s
        // from the cache and 7.1 s past it; the first one from a cold disk took 31 s through the cache and 7.9 s past
        // it.
        let tier = match file_bytes <= cache_bytes {
            true => Tier::Host,
            false => Tier::Disk,
        };
        if only.is_some_and(|only| only != tier) {
            continue;
        }
        // Pinned groups and cached files share what the machine has left.
        let limit_bytes = input.machine.pinned_memory_limit_bytes.min(cache_bytes);
        let all = streamed.iter().map(|&index| &forms[index]);
        let mut pinned = PinnedBudget::new(limit_bytes, all);
        for index in streamed {
            groups[index] = forms[index].clone();
            groups[index].tier = Tier::Host;
            // Groups beyond the pinned memory are read in every pass, as on the CPU.
            if !pinned.takes(&groups[index]) {
                groups[index].tier = tier;
            }
        }
        return Ok(slots);
    }
    // The least that works: in a small model the staging buffers may take more than streaming saves.
    let streaming = needed + page_tables - spread::most_saved(groups, &forms, HOST_STAGING_BUFFERS);
    Err(too_small(streaming.min(all_resident)))
}

/// The most faithful level whose pass takes at most `max_slowdown` times as long as the fastest level's; of the
/// lossless levels, the fastest. `mild` is among them only where compressed weights exist: nobody asked for hours of
/// compression.
fn auto(input: &PlanInput<'_>) -> Result<Plan, PlanError> {
    let mut plans = Vec::new();
    let mut refused = None;
    for level in Level::ALL {
        // Each of the others is planned in full: whether a level fits, and how fast it is, follows from what it
        // streams.
        // A mix is for those who ask for it: its fidelity depends on the budget that it was made for.
        if matches!(level, Level::Auto | Level::Optimized) {
            continue;
        }
        let choices = ResolvedPlanSettings {
            level,
            ..input.choices
        };
        match Plan::new(&PlanInput { choices, ..*input }) {
            Ok(plan) if !plan.is_estimate() => plans.push(plan),
            Ok(_) => {}
            // Levels come in the order of falling size, so the last error is that of the level that needs least.
            Err(error) => refused = Some(error),
        }
    }
    let seconds = |plan: &Plan| plan.pass.map_or(f64::INFINITY, |pass| pass.total_s());
    // `off`, `standard` and `mild` compute the same bits, so among them only time counts. The sort is stable: at equal
    // times the simpler level stays in front.
    let lossless = plans.partition_point(|plan| plan.level <= Level::Mild);
    plans[..lossless].sort_by(|one, other| seconds(one).total_cmp(&seconds(other)));
    let fastest = plans
        .iter()
        .filter_map(|plan| Some(plan.pass?.total_s()))
        .min_by(f64::total_cmp);
    let is_fast = |plan: &Plan| match (plan.pass, fastest) {
        (Some(pass), Some(fastest)) => {
            pass.total_s() <= input.choices.settings.max_slowdown * fastest
        }
        // Without rates, fidelity decides.
        _ => true,
    };
    match plans.into_iter().find(is_fast) {
        Some(plan) => Ok(plan),
        None => Err(refused.expect("a level was planned or refused")),
    }
}

#[cfg(test)]
mod tests;
