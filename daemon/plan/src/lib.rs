//! What lives where in which format, how much memory that takes and how long a pass is: decided before anything is
//! loaded, by functions that need no device.

pub mod decoded;
mod kv;
pub mod learned;
mod pass_time;
mod recipe;
mod spread;
mod switch_time;
mod time;
mod transition;

use sluice_formats::Format;
use sluice_machine::Kind;
use sluice_shared::{
    level::{Kv, Level},
    settings::Choices,
    units,
};
use sluice_weights::{Shape, SourceTensor, Storage, TensorPlan, Tier, UnitPlan, units};

pub use self::{
    decoded::MLP_ROWS,
    kv::{cache_format, canvas_cache_format, computed_format},
    learned::Learned,
    pass_time::PassTime,
    switch_time::{Converted, SwitchTime, switch_time},
    time::{Machine, Pinned, STAGING, keep_limit},
    transition::{Step, transition},
};

/// What a plan is made for: requests that share a pass, of which the sums are known, and the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Positions of the longest canvas, prompt included.
    pub canvas: usize,
    /// Positions decoded together, in the largest block.
    pub block: usize,
    /// Canvases that share a pass: with guidance two of a request, and as many again for each order that is tried.
    pub requests: usize,
    rows: usize,
    head_rows: usize,
    /// Rows that verify what was committed, of all requests.
    checks: usize,
    /// Places for keys and values, of all requests that keep them between passes over a canvas, and how many keep them.
    kept: usize,
    caches: usize,
    /// Rows whose distributions are kept from pass to pass, of all requests.
    compared_rows: usize,
}

impl Workload {
    /// So many requests with canvases and blocks of one size.
    #[must_use]
    pub fn new(canvas: usize, block: usize, requests: usize) -> Self {
        Self {
            canvas,
            block,
            requests,
            rows: canvas * requests,
            head_rows: block.min(canvas) * requests,
            checks: 0,
            kept: 0,
            caches: 0,
            compared_rows: 0,
        }
    }

    /// The same, with so many rows whose distributions are kept from pass to pass.
    #[must_use]
    pub fn comparing(self, compared_rows: usize) -> Self {
        Self {
            compared_rows,
            ..self
        }
    }

    /// The same, of whose canvases a pass computes at most so many positions.
    #[must_use]
    pub fn computing(self, rows: usize) -> Self {
        Self {
            rows: rows.min(self.canvas) * self.requests,
            ..self
        }
    }

    /// The same, keeping keys and values of all positions between passes.
    #[must_use]
    pub fn keeping(self) -> Self {
        Self {
            kept: self.canvas * self.requests,
            caches: self.requests,
            ..self
        }
    }

    /// The same, verifying as many rows as a block has in each request.
    #[must_use]
    pub fn checking(self) -> Self {
        Self {
            checks: self.head_rows,
            ..self
        }
    }

    /// Rows that verify what was committed, besides those of the canvases.
    #[must_use]
    pub fn checks(&self) -> usize {
        self.checks
    }

    /// Places for keys and values that are kept between passes over canvases, and in how many caches.
    #[must_use]
    pub fn kept(&self) -> (usize, usize) {
        (self.kept, self.caches)
    }

    /// Positions of all canvases that the layers compute together, at most.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows that the head reads of all requests, at most.
    #[must_use]
    pub fn head_rows(&self) -> usize {
        self.head_rows
    }

    /// Rows of all requests whose distributions are kept from pass to pass.
    #[must_use]
    pub fn compared_rows(&self) -> usize {
        self.compared_rows
    }

    /// The same, of whose rows a pass computed so many.
    pub fn with_rows(self, rows: usize) -> Self {
        Self { rows, ..self }
    }

    /// Whether all canvases are of one length.
    #[must_use]
    pub fn is_uniform(&self) -> bool {
        self.rows == self.canvas * self.requests
    }

    /// One in which the requests of both share a pass.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        Self {
            canvas: self.canvas.max(other.canvas),
            block: self.block.max(other.block),
            requests: self.requests + other.requests,
            rows: self.rows + other.rows,
            head_rows: self.head_rows + other.head_rows,
            checks: self.checks + other.checks,
            kept: self.kept + other.kept,
            caches: self.caches + other.caches,
            compared_rows: self.compared_rows + other.compared_rows,
        }
    }

    /// One that has room for either.
    #[must_use]
    pub fn widest(&self, other: &Self) -> Self {
        Self {
            canvas: self.canvas.max(other.canvas),
            block: self.block.max(other.block),
            requests: self.requests.max(other.requests),
            rows: self.rows.max(other.rows),
            head_rows: self.head_rows.max(other.head_rows),
            checks: self.checks.max(other.checks),
            kept: self.kept.max(other.kept),
            caches: self.caches.max(other.caches),
            compared_rows: self.compared_rows.max(other.compared_rows),
        }
    }
}

/// Canvas of a plan, where nobody says another.
pub const CANVAS_DEFAULT: usize = 256;
/// Block of a plan: LLaDA's.
pub const BLOCK_DEFAULT: usize = 32;

impl Default for Workload {
    fn default() -> Self {
        Self::new(CANVAS_DEFAULT, BLOCK_DEFAULT, 1)
    }
}

/// Buffers that streamed units pass through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slots {
    /// How many.
    pub count: usize,
    /// Bytes of each.
    pub bytes: u64,
    /// Bytes of memory on a card that weights are decoded into, some rows at a time, streamed or not.
    pub decoded_bytes: u64,
}

impl Slots {
    /// Bytes of all.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.count as u64 * self.bytes + self.decoded_bytes
    }
}

/// Memory besides weights and slots, found by rehearsing a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Working {
    /// What the driver of a card takes for itself.
    pub context_bytes: u64,
    /// Tables of the model that no plan changes, such as rotary angles.
    pub tables_bytes: u64,
    /// Activations of the workload.
    pub activation_bytes: u64,
    /// Keys and values that are kept from pass to pass; none where each computes the whole canvas.
    pub cache_bytes: u64,
    /// How those are kept.
    pub cache: Option<Format>,
    /// Logits of one piece of the vocabulary.
    pub head_bytes: u64,
    /// Scratch of all threads.
    pub scratch_bytes: u64,
    /// Rows that go through an MLP together for it; 0: all of a pass.
    pub mlp_rows: usize,
}

impl Working {
    /// All of it.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.context_bytes
            + self.tables_bytes
            + self.activation_bytes
            + self.cache_bytes
            + self.head_bytes
            + self.scratch_bytes
    }
}

/// What a plan is made from.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The model's shape.
    pub shape: &'a Shape,
    /// Its tensors.
    pub sources: &'a [SourceTensor],
    /// How faithful it is to be, and the like.
    pub choices: Choices,
    /// Most bytes of the device's memory.
    pub budget_bytes: u64,
    /// What is to be computed.
    pub workload: Workload,
    /// Memory besides weights and slots.
    pub working: Working,
    /// What computes it.
    pub machine: &'a Machine,
}

/// What lives where in which format, and what follows from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Its level, never `auto`.
    pub level: Level,
    /// Most bytes that it may take.
    pub budget_bytes: u64,
    /// What it was made for.
    pub workload: Workload,
    /// In the order of a pass.
    pub units: Vec<UnitPlan>,
    /// Buffers that streamed units pass through; none where nothing is streamed.
    pub slots: Slots,
    /// Bytes of the host's memory that streamed units are kept in, pinned, for a card to copy from.
    pub pinned_bytes: u64,
    /// Memory besides weights and slots.
    pub working: Working,
    /// Predicted, where the machine's rates are known.
    pub pass: Option<PassTime>,
    /// Other levels that would keep the very same weights: not `off`, which keeps those of `standard`.
    pub same_as: Vec<Level>,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Not even the least that works fits.
    #[error(
        "a budget of {budget} is too small: level {level} needs at least {least} for a canvas of {canvas}{fits}",
        budget = units::bytes(*budget_bytes),
        least = units::bytes_to_type(*least_bytes),
        fits = fitting.map_or_else(String::new, |(level, bytes)| {
            format!("; level {level}, which is less faithful, would fit and take {}", units::bytes(bytes))
        })
    )]
    BudgetTooSmall {
        /// What was allowed.
        budget_bytes: u64,
        /// What works.
        least_bytes: u64,
        /// At this level.
        level: Level,
        /// For this canvas.
        canvas: usize,
        /// The most faithful of the levels that would fit, and what it would take, where that was looked for.
        fitting: Option<(Level, u64)>,
    },
    /// Keys and values can't be kept so.
    #[error("keys and values can't be kept in {asked} on a card that computes in {number}")]
    CacheFormat {
        /// Asked for.
        asked: Kv,
        /// What the card computes in.
        number: &'static str,
    },
    /// The checkpoint's weights are not coded, and a coded copy has no place.
    #[error(
        "level {level} takes weights that are coded without loss: the checkpoint has none, and there is no folder to keep a coded \
         copy of it in"
    )]
    NotCoded {
        /// Which.
        level: Level,
    },
    /// The canvas is longer than the model's context.
    #[error("a canvas of {canvas} exceeds the model's context of {context}")]
    CanvasTooLong {
        /// Asked for.
        canvas: usize,
        /// What the model has.
        context: usize,
    },
    /// Nothing to compute.
    #[error("{what} must be at least 1")]
    Zero {
        /// What was given as 0.
        what: &'static str,
    },
}

/// Slots for units that come from the host: two are held at once by an MLP, one is being filled.
const HOST_SLOTS: usize = 3;
/// From disk, one more is kept ahead.
const DISK_SLOTS: usize = 4;

impl Plan {
    /// Makes the plan.
    ///
    /// # Errors
    /// A budget below what works, or a workload that makes no sense for the model.
    pub fn new(question: &Question<'_>) -> Result<Self, PlanError> {
        check_workload(question)?;
        let level = question.choices.level;
        if level == Level::Auto {
            return auto(question);
        }
        let mut units = units(question.sources);
        let same_as = recipe::same_as(level, question.machine, question.sources, &units);
        recipe::apply(
            level,
            question.choices.settings.embedding,
            question.machine,
            question.sources,
            &mut units,
        );
        let slots = place(question, &mut units)?;
        let mut plan = Self {
            level,
            budget_bytes: question.budget_bytes,
            workload: question.workload,
            pass: None,
            pinned_bytes: time::pinned_bytes(&units, question.machine),
            units,
            slots,
            working: question.working,
            same_as,
        };
        if question.choices.decompresses() {
            plan.decode_where_it_pays(question);
        }
        plan.pass = plan.time(question.shape, &question.workload, question.machine);
        Ok(plan)
    }

    /// Has units that are coded without loss decoded once and for all, as far as there is room for that and a pass gets
    /// shorter by it: where memory isn't short, coding only costs.
    fn decode_where_it_pays(&mut self, question: &Question<'_>) {
        let asked = self.asked(question.shape, &question.workload, question.machine);
        let time = |unit: &UnitPlan| time::compute_s(unit, &asked);
        let held = self.peak_bytes() + rounded_bytes(question.machine);
        let mut room = self.budget_bytes.saturating_sub(held);
        for unit in &mut self.units {
            let decoded = recipe::decoded(unit);
            let more = decoded
                .resident_bytes()
                .saturating_sub(unit.resident_bytes());
            if decoded == *unit || more > room {
                continue;
            }
            let times = time(&decoded).zip(time(unit));
            if times.is_none_or(|(now, before)| now < before) {
                room -= more;
                *unit = decoded;
            }
        }
        if self.slots.count == 0 {
            let device = &question.machine.device;
            self.slots.decoded_bytes = decoded::bytes(&self.units, device, &question.workload);
        }
    }

    /// How long a pass of any workload takes under it; unknown where a rate is.
    pub fn time(&self, shape: &Shape, workload: &Workload, machine: &Machine) -> Option<PassTime> {
        time::predict(&self.units, &self.asked(shape, workload, machine))
    }

    fn asked<'a>(
        &self,
        shape: &'a Shape,
        workload: &'a Workload,
        machine: &'a Machine,
    ) -> time::Asked<'a> {
        time::Asked {
            level: self.level,
            shape,
            workload,
            mlp_rows: self.working.mlp_rows,
            machine,
        }
    }

    /// Most bytes of the device's memory that are held at once.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.weight_bytes() + self.working.total_bytes()
    }

    /// Bytes for weights: those that stay on the device, and the slots of the others.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.resident_bytes() + self.slots.total_bytes()
    }

    /// Bytes of weights that stay on the device.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.units.iter().map(UnitPlan::resident_bytes).sum()
    }

    /// Bytes of weights that pass through the slots in every pass.
    #[must_use]
    pub fn streamed_bytes(&self) -> u64 {
        self.streamed().map(UnitPlan::bytes).sum()
    }

    /// The units that pass through the slots, in the order of a pass.
    pub fn streamed(&self) -> impl Iterator<Item = &UnitPlan> {
        self.units.iter().filter(|unit| unit.is_streamed())
    }

    /// Bytes by the ledger's kinds.
    #[must_use]
    pub fn bytes_by_kind(&self) -> [(Kind, u64); 7] {
        let working = &self.working;
        Kind::ALL.map(|kind| {
            let bytes = match kind {
                Kind::Context => working.context_bytes,
                Kind::Weights => self.resident_bytes() + working.tables_bytes,
                Kind::Slots => self.slots.total_bytes(),
                Kind::Activations => working.activation_bytes,
                Kind::Cache => working.cache_bytes,
                Kind::Head => working.head_bytes,
                Kind::Scratch => working.scratch_bytes,
            };
            (kind, bytes)
        })
    }

    /// Whether it is made from an estimate of what weights take once they are coded: before it can be put in force they have to
    /// be, and then there is an exact one.
    #[must_use]
    pub fn is_estimate(&self) -> bool {
        let mut tensors = self.units.iter().flat_map(|unit| &unit.tensors);
        tensors.any(|tensor| matches!(tensor.storage, Storage::Coded(coding) if coding.is_estimate))
    }

    /// Tensors that a row length kept from their level's format, and what they take instead, without repetition.
    #[must_use]
    pub fn exceptions(&self) -> Vec<(TensorPlan, Storage)> {
        let mut found: Vec<(TensorPlan, Storage)> = Vec::new();
        let from = recipe::From::default();
        let all = self.units.iter().flat_map(|unit| &unit.tensors);
        // What is kept coded is so for other reasons.
        for tensor in all.filter(|tensor| !matches!(tensor.storage, Storage::Coded(_))) {
            let usual = recipe::storage(
                self.level,
                from,
                &TensorPlan {
                    width: 1 << 16,
                    ..*tensor
                },
                None,
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

fn check_workload(question: &Question<'_>) -> Result<(), PlanError> {
    let Workload {
        canvas,
        block,
        requests,
        ..
    } = question.workload;
    for (what, value) in [("canvas", canvas), ("block", block), ("requests", requests)] {
        if value == 0 {
            return Err(PlanError::Zero { what });
        }
    }
    let context = question.shape.context_length;
    if canvas > context {
        return Err(PlanError::CanvasTooLong { canvas, context });
    }
    Ok(())
}

/// What a card's driver gives in pieces, of which weights and slots fill some in part: after the changes that tests make, four
/// at most.
pub fn rounded_bytes(machine: &Machine) -> u64 {
    const PIECE_BYTES: u64 = 2 << 20;
    machine.device.card.map_or(0, |_| 4 * PIECE_BYTES)
}

/// Puts on the device what there is room for, spreads the rest evenly over the pass, and sizes the slots it goes through.
fn place(question: &Question<'_>, units: &mut [UnitPlan]) -> Result<Slots, PlanError> {
    let resident: u64 = units.iter().map(UnitPlan::resident_bytes).sum();
    let rounded = rounded_bytes(question.machine);
    let budget = question.budget_bytes.saturating_sub(rounded);
    let needed = question.working.total_bytes() + resident;
    let too_small = |least_bytes: u64| PlanError::BudgetTooSmall {
        budget_bytes: question.budget_bytes,
        least_bytes: least_bytes + rounded,
        level: question.choices.level,
        canvas: question.workload.canvas,
        fitting: None,
    };
    let decoded =
        |units: &[UnitPlan]| decoded::bytes(units, &question.machine.device, &question.workload);
    let resident_decoded = decoded(units);
    if needed + resident_decoded <= budget {
        return Ok(Slots {
            decoded_bytes: resident_decoded,
            ..Slots::default()
        });
    }
    if question.choices.level == Level::Off {
        return Err(too_small(needed + resident_decoded));
    }
    let is_card = question.machine.device.card.is_some();
    // What goes to a card goes there as it is coded.
    let forms: Vec<UnitPlan> = match is_card {
        true => units.iter().map(recipe::coded).collect(),
        false => units.to_vec(),
    };
    // Whatever is streamed of them, so that the memory doesn't depend on which are.
    let decoded_bytes = decoded(&forms).max(resident_decoded);
    let all_resident = needed + resident_decoded;
    let needed = needed + decoded_bytes;
    // What comes from the system's cache needs no fourth slot: its bytes are better spent on residency. Of a card, that one is
    // in the host's memory.
    let tries: &[_] = match is_card {
        true => &[(HOST_SLOTS, None)],
        false => &[
            (HOST_SLOTS, Some(Tier::Host)),
            (DISK_SLOTS, None),
            (HOST_SLOTS, None),
        ],
    };
    for &(count, only) in tries {
        let fitting = spread::streamed_set(units, &forms, count, needed, budget);
        let Some(streamed) = fitting else { continue };
        let slot = streamed.iter().map(|&index| forms[index].slot_bytes());
        let slots = Slots {
            count,
            bytes: slot.max().unwrap_or(0),
            decoded_bytes,
        };
        let freed: u64 = (streamed.iter().map(|&index| units[index].resident_bytes())).sum();
        let file_bytes: u64 = (streamed.iter().map(|&index| forms[index].file_bytes())).sum();
        // The cache gets what the plan leaves of the machine's memory; what is on a card takes none of it.
        let peak_bytes = needed - decoded_bytes + slots.total_bytes() - freed;
        let taken_bytes = if is_card { 0 } else { peak_bytes };
        let cache_bytes = question.machine.cache_bytes.saturating_sub(taken_bytes);
        let tier = match file_bytes <= cache_bytes {
            true => Tier::Host,
            false => Tier::Disk,
        };
        if only.is_some_and(|only| only != tier) {
            continue;
        }
        let limit_bytes = question.machine.pin_limit_bytes.min(cache_bytes);
        let all = streamed.iter().map(|&index| &forms[index]);
        let mut pinned = Pinned::new(keep_limit(limit_bytes, all));
        for index in streamed {
            units[index] = forms[index].clone();
            units[index].tier = Tier::Host;
            // What can't be kept where a card copies from is as on the CPU.
            if !pinned.takes(&units[index]) {
                units[index].tier = tier;
            }
        }
        return Ok(slots);
    }
    let streaming = needed - spread::most_saved(units, &forms, HOST_SLOTS);
    Err(too_small(streaming.min(all_resident)))
}

/// The most faithful level whose pass takes at most so many times as long as the fastest one's as is chosen; of those that lose
/// nothing, the fastest. Nobody asked for hours of coding: `mild` is among them where the weights are coded already.
fn auto(question: &Question<'_>) -> Result<Plan, PlanError> {
    let mut plans = Vec::new();
    let mut refused = None;
    for level in Level::ALL {
        if level == Level::Auto {
            continue;
        }
        let choices = Choices {
            level,
            ..question.choices
        };
        match Plan::new(&Question {
            choices,
            ..*question
        }) {
            Ok(plan) if !plan.is_estimate() => plans.push(plan),
            Ok(_) => {}
            // The last is that of the level that needs least.
            Err(error) => refused = Some(error),
        }
    }
    let seconds = |plan: &Plan| plan.pass.map_or(f64::INFINITY, |pass| pass.total_s());
    let lossless = plans.partition_point(|plan| plan.level <= Level::Mild);
    plans[..lossless].sort_by(|one, other| seconds(one).total_cmp(&seconds(other)));
    let fastest = plans
        .iter()
        .filter_map(|plan| Some(plan.pass?.total_s()))
        .min_by(f64::total_cmp);
    let is_fast = |plan: &Plan| match (plan.pass, fastest) {
        (Some(pass), Some(fastest)) => {
            pass.total_s() <= question.choices.settings.auto_factor * fastest
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
