//! How long experts take of which the CPU computes some beside a GPU.

use sluice_weights::{Storage, WeightGroupPlan};

use super::{TimingInput, expert_rows};

/// What a layer takes besides to move rows to the host and back: the driver's calls, and waking the threads.
const LAYER_S: f64 = 50e-6;

/// How long the experts of a pass take where the CPU computes some of them.
pub(crate) struct HostTimes<'a> {
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
    pub(crate) fn new(input: &'a TimingInput<'a>) -> Option<Self> {
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
    pub(crate) fn add(&mut self, expert: &WeightGroupPlan, gpu_s: f64) -> Option<()> {
        let (of_touched, of_all) = self.shares;
        self.gpu_s += gpu_s * (1.0 - of_touched);
        self.cpu_s += host_s(expert, self.rows.0, self.input)? * of_all;
        Some(())
    }

    /// The time of all experts: the CPU's run beside the GPU's.
    pub(crate) fn experts_s(&self, link_bytes_per_s: f64) -> f64 {
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
pub(crate) fn host_s(
    expert: &WeightGroupPlan,
    rows: usize,
    input: &TimingInput<'_>,
) -> Option<f64> {
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
