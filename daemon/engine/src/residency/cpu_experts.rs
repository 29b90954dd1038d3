//! Experts that the CPU computes beside a GPU: which they are, and their weights in host memory.

use sluice_plan::ExpertSplit;
use sluice_weights::WeightGroup;

use super::{Bytes, GroupPlacement, Residency, WeightGuard};
use crate::error::EngineError;

impl Residency {
    /// Which experts of a layer the CPU computes beside a GPU, if the layer's have so many rows. `None`: none.
    pub(crate) fn experts_of_cpu(&self, layer: usize, rows: &[usize]) -> Option<Vec<bool>> {
        let split = self.cpu_experts?;
        // The plan has all experts in host memory. Between two plans some may be on the device.
        let mut of_cpu = split.of_cpu(rows);
        for (expert, of_cpu) in of_cpu.iter_mut().enumerate() {
            let group = || self.group(WeightGroup::Expert(layer, expert));
            *of_cpu = *of_cpu && matches!(group().placement, GroupPlacement::Cached(_));
        }
        of_cpu.contains(&true).then_some(of_cpu)
    }

    /// Has the CPU compute experts from the next pass on, as a plan says. KV caches that were kept are of no use then, as with other
    /// weights.
    pub(crate) fn set_cpu_experts(&mut self, split: Option<ExpertSplit>) {
        if self.cpu_experts != split {
            self.cpu_experts = split;
            self.weights_version += 1;
        }
    }

    /// Whether the CPU computes experts beside a GPU, so that results are not as exact as the weights.
    pub(crate) fn has_cpu_experts(&self) -> bool {
        self.cpu_experts.is_some()
    }

    /// Waits for an expert that the CPU computes beside a GPU.
    ///
    /// # Errors
    /// As [`Residency::acquire`].
    ///
    /// # Panics
    /// When it is no such expert.
    pub fn acquire_on_host(&self, group: WeightGroup) -> Result<WeightGuard<'_>, EngineError> {
        let held = self.group(group);
        let bytes = match &held.placement {
            GroupPlacement::Cached(place) => {
                let cache = self.present(self.experts.as_ref())?;
                Bytes::Host(cache.take_on_host(*place)?)
            }
            GroupPlacement::DryRun => Bytes::None,
            _ => panic!("{group:?} is not in host memory"),
        };
        Ok(self.guard(held, bytes))
    }
}
