//! Which of a mixture's experts the CPU computes beside a GPU, where they lie in host memory, while others are copied over the bus.
//!
//! A bus is no faster than the CPU's own memory on many machines, so that an expert with few rows is computed there sooner than it
//! is copied. Where an expert is computed follows from the rows that a pass has for it and from two numbers of the plan, and from
//! nothing else: neither from what the expert cache holds nor from how long anything took.

use std::ops::Range;

use sluice_weights::Shape;

use super::{
    Machine, Plan, PlanInput,
    experts::ExpertSplit,
    time::{PinnedBudget, TimingInput, host_s, predict},
};

/// By less than this share of a pass the CPU is not asked to compute experts: sums differ then, and predictions are not as exact.
const GAIN_MIN: f64 = 0.05;

/// Most rows that are asked for of an expert.
const ROWS_MAX: usize = 4096;

impl Plan {
    /// The same plan, with which the GPU computes all experts.
    #[must_use]
    pub fn without_cpu_experts(&self, shape: &Shape, machine: &Machine) -> Self {
        let mut plan = Self {
            cpu_experts: None,
            ..self.clone()
        };
        plan.pass = plan.time(shape, &plan.workload, machine);
        plan
    }

    /// Which experts the CPU had better compute, if that makes a usual pass shorter; `None` where it does not, or where not all
    /// experts stay in host memory.
    pub(super) fn faster_on_cpu(&self, input: &PlanInput<'_>) -> Option<ExpertSplit> {
        // By the rates alone, so that how long passes took changes no text.
        let machine = &input.machine.by_rates();
        let rates = machine.rates.as_ref()?;
        let experts = self.experts?;
        let mut pinned = PinnedBudget::new(machine.pinned_memory_limit_bytes, self.streamed());
        let mut are_kept = self.streamed().map(|group| {
            // Others have their share of the memory, too.
            let is_kept = pinned.takes(group);
            is_kept || !group.group.is_expert()
        });
        if !are_kept.all(|is_kept| is_kept) {
            return None;
        }
        let expert = self.streamed().find(|group| group.group.is_expert())?;
        let timing = TimingInput {
            experts: self.experts,
            ..self.timing_input(input.shape, &input.workload, machine)
        };
        let copy_s = expert.bytes() as f64 / rates.link_bytes_per_s?;
        let is_sooner = |rows| host_s(expert, rows, &timing).is_some_and(|cpu_s| cpu_s <= copy_s);
        let rows_max = partition_point(1..ROWS_MAX + 1, is_sooner) - 1;
        let split = |on_gpu| ExpertSplit { on_gpu, rows_max };
        let seconds = |cpu_experts| {
            let timing = TimingInput {
                cpu_experts,
                ..timing
            };
            predict(&self.groups, &timing).map_or(f64::INFINITY, |pass| pass.total_s())
        };
        // The more go to the GPU, the longer it and the bus take, and the shorter the CPU. So a pass gets shorter while that is
        // what it waits for, and then longer.
        let touched = experts.profile.touched(&experts.shape, timing.rows()) as usize;
        let one_more_is_faster =
            |on_gpu| seconds(Some(split(on_gpu + 1))) < seconds(Some(split(on_gpu)));
        let best = split(partition_point(0..touched + 1, one_more_is_faster));
        (seconds(Some(best)) < (1.0 - GAIN_MIN) * seconds(None)).then_some(best)
    }
}

/// The first of these numbers that is not so, of which the first ones are; the end where all are.
fn partition_point(numbers: Range<usize>, is_so: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (numbers.start, numbers.end);
    while low < high {
        let middle = low.midpoint(high);
        match is_so(middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}
