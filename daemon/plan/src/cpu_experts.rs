//! Which of a mixture's experts the CPU computes beside a GPU, where they lie in host memory, while others are copied over the bus.
//!
//! A bus is no faster than the CPU's own memory on many machines, so that an expert with few rows is computed there sooner than it
//! is copied. Where an expert is computed follows from the rows that a pass has for it and from two numbers of the plan, and from
//! nothing else: neither from what the expert cache holds nor from how long anything took.

use std::{cmp::Reverse, ops::Range};

use sluice_weights::{Storage, WeightGroupPlan};

use super::{
    Plan, PlanInput,
    time::{PinnedBudget, TimingInput, expert_rows, predict},
};

/// What a layer takes besides to move rows to the host and back: the driver's calls, and waking the threads.
const LAYER_S: f64 = 50e-6;

/// By less than this share of a pass the CPU is not asked to compute experts: sums differ then, and predictions are not as exact.
const GAIN_MIN: f64 = 0.05;

/// Most rows that are asked for of an expert.
const ROWS_MAX: usize = 4096;

/// Which experts of a layer go to the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertSplit {
    /// So many of a layer's experts, those with most rows, go to the GPU.
    pub on_gpu: usize,
    /// And all that have more rows than this, for which the CPU would take longer than the bus.
    pub rows_max: usize,
}

impl ExpertSplit {
    /// Which experts the CPU computes, if a layer's have so many rows. Of experts with as many rows the first go to the GPU.
    pub fn of_cpu(&self, rows: &[usize]) -> Vec<bool> {
        let mut touched: Vec<usize> = (0..rows.len()).filter(|&expert| rows[expert] > 0).collect();
        touched.sort_by_key(|&expert| Reverse(rows[expert]));
        let mut of_cpu = vec![false; rows.len()];
        for &expert in touched.iter().skip(self.on_gpu) {
            of_cpu[expert] = rows[expert] <= self.rows_max;
        }
        of_cpu
    }
}

/// How long the experts of a pass take where the CPU computes some of them.
pub(super) struct HostTimes<'a> {
    input: &'a TimingInput<'a>,
    /// Experts of a layer that the CPU computes, as a share of those that are touched and of all.
    shares: (f64, f64),
    /// Rows of each of them, and all that go through any.
    rows: (usize, usize),
    gpu_s: f64,
    cpu_s: f64,
}

impl<'a> HostTimes<'a> {
    /// Of a pass of which the CPU computes any.
    pub(super) fn new(input: &'a TimingInput<'a>) -> Option<Self> {
        let experts = input.experts?;
        let rows = input.rows();
        let of_cpu = experts.of_cpu(rows, input.cpu_experts);
        let touched = experts.profile.touched(&experts.shape, rows);
        let (rows_each, _) = expert_rows(&experts, rows);
        (of_cpu > 0.0).then(|| Self {
            input,
            shares: (of_cpu / touched, of_cpu / experts.shape.count as f64),
            rows: (
                rows_each,
                rows.min((of_cpu * rows_each as f64).ceil() as usize),
            ),
            gpu_s: 0.0,
            cpu_s: 0.0,
        })
    }

    /// Adds an expert, which takes so long where the GPU computes all that are touched; `None` where a rate is not known.
    pub(super) fn add(&mut self, expert: &WeightGroupPlan, gpu_s: f64) -> Option<()> {
        let (of_touched, of_all) = self.shares;
        self.gpu_s += gpu_s * (1.0 - of_touched);
        self.cpu_s += host_s(expert, self.rows.0, self.input)? * of_all;
        Some(())
    }

    /// The time of all experts: the CPU's run beside the GPU's.
    pub(super) fn experts_s(&self, link_bytes_per_s: f64) -> f64 {
        let shape = self.input.shape;
        let layers = (0..shape.layers).filter(|&layer| shape.experts(layer).is_some());
        // Rows go to the host in `f32`, and sums come back so.
        let bytes = 2 * self.rows.1 * shape.hidden_size * size_of::<f32>();
        let layer_s = LAYER_S + bytes as f64 / link_bytes_per_s;
        let cpu_s = self.cpu_s + layers.count() as f64 * layer_s;
        self.gpu_s.max(cpu_s)
    }
}

/// Seconds that the CPU takes for an expert with so many rows; `None` where a rate is not known.
fn host_s(expert: &WeightGroupPlan, rows: usize, input: &TimingInput<'_>) -> Option<f64> {
    let rates = input.machine.rates.as_ref()?;
    let of_each = expert.tensors.iter().map(|tensor| match tensor.storage {
        Storage::Plain(format) => {
            let rate = rates.host_linear(format)?;
            Some(rate.seconds(tensor.elements(), rows))
        }
        // Decompressing them takes the CPU longer than the bus takes to copy them.
        Storage::Compressed(_) => None,
    });
    of_each.sum()
}

impl Plan {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gpu_gets_those_with_most_rows_and_all_with_many() {
        let split = |on_gpu, rows_max, rows: &[usize]| {
            let of_cpu = ExpertSplit { on_gpu, rows_max }.of_cpu(rows);
            (0..rows.len())
                .filter(|&expert| of_cpu[expert])
                .collect::<Vec<_>>()
        };
        let rows = [3, 0, 1, 3, 9, 1, 3];
        assert_eq!(split(2, 4, &rows), [2, 3, 5, 6]);
        assert_eq!(split(1, 2, &rows), [2, 5]);
        assert_eq!(split(0, 9, &rows), [0, 2, 3, 4, 5, 6]);
        assert_eq!(split(6, 9, &rows), [0; 0]);
        assert_eq!(split(0, 0, &rows), [0; 0]);
    }
}
