//! Figures of a GPU in words. Unknown figures are left out, never shown as 0.

use sluice_proto::v1::GpuStatus;
use sluice_shared::units;

/// Compute capability and the dtype it computes in: `capability 8.6, computes in bf16`.
#[must_use]
pub fn compute_capability(gpu: &GpuStatus) -> String {
    format!(
        "capability {}, computes in {}",
        gpu.compute_capability,
        gpu.compute_dtype()
    )
}

/// The present link between host and GPU: `PCI Express 3 x8`. Idle GPUs lower the generation.
#[must_use]
pub fn pcie_link(gpu: &GpuStatus) -> Option<String> {
    let way = pcie_lanes(gpu.pcie_generation, gpu.pcie_lanes)?;
    Some(format!("PCI Express {way}"))
}

/// The best link: `4 x8`; `None` where it is not known or the present link is the best.
#[must_use]
pub fn pcie_link_max(gpu: &GpuStatus) -> Option<String> {
    let best = pcie_lanes(gpu.pcie_generation_max, gpu.pcie_lanes_max)?;
    let now = pcie_lanes(gpu.pcie_generation, gpu.pcie_lanes);
    (Some(&best) != now.as_ref()).then_some(best)
}

fn pcie_lanes(generation: Option<u32>, width: Option<u32>) -> Option<String> {
    let generation = generation.map(|generation| generation.to_string());
    joined([generation, width.map(|width| format!("x{width}"))], " ")
}

/// Utilization, temperature and power: `37 % busy, 56 °C, 61 W of 115 W`; `None` if none of them is known.
#[must_use]
pub fn activity(gpu: &GpuStatus) -> Option<String> {
    let power = gpu.power_w.map(|power| match gpu.power_limit_w {
        Some(limit) => format!("{power:.0} W of {limit:.0} W"),
        None => format!("{power:.0} W"),
    });
    joined(
        [
            gpu.utilization_percent.map(|busy| format!("{busy} % busy")),
            gpu.temperature_c.map(|degrees| format!("{degrees} °C")),
            power,
        ],
        ", ",
    )
}

/// Clock rates: `1,500 MHz, memory 5,000 MHz`; `None` if neither is known.
#[must_use]
pub fn clocks(gpu: &GpuStatus) -> Option<String> {
    let mhz = |mhz: u32| format!("{} MHz", units::count(mhz.into()));
    let memory = gpu
        .memory_clock_mhz
        .map(|clock| format!("memory {}", mhz(clock)));
    joined([gpu.clock_mhz.map(mhz), memory], ", ")
}

/// The known parts joined by `between`; `None` if none is known.
#[must_use]
pub fn joined(words: impl IntoIterator<Item = Option<String>>, between: &str) -> Option<String> {
    let words: Vec<_> = words.into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join(between))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_left_out() {
        let gpu = GpuStatus::default();
        for words in [
            pcie_link(&gpu),
            pcie_link_max(&gpu),
            activity(&gpu),
            clocks(&gpu),
        ] {
            assert_eq!(words, None);
        }
        let gpu = GpuStatus {
            pcie_lanes: Some(8),
            temperature_c: Some(56),
            power_w: Some(60.5),
            memory_clock_mhz: Some(5000),
            ..gpu
        };
        assert_eq!(pcie_link(&gpu).unwrap(), "PCI Express x8");
        assert_eq!(activity(&gpu).unwrap(), "56 °C, 60 W");
        assert_eq!(clocks(&gpu).unwrap(), "memory 5,000 MHz");
    }

    #[test]
    fn the_best_of_a_bus_is_told_where_it_is_more() {
        let gpu = GpuStatus {
            pcie_generation: Some(1),
            pcie_generation_max: Some(4),
            pcie_lanes: Some(16),
            pcie_lanes_max: Some(16),
            ..Default::default()
        };
        assert_eq!(pcie_link(&gpu).unwrap(), "PCI Express 1 x16");
        assert_eq!(pcie_link_max(&gpu).unwrap(), "4 x16");
        let gpu = GpuStatus {
            pcie_generation: Some(4),
            ..gpu
        };
        assert_eq!(pcie_link_max(&gpu), None);
    }

    #[test]
    fn a_gpu_at_rest_is_known_to_be() {
        let gpu = GpuStatus {
            utilization_percent: Some(0),
            ..Default::default()
        };
        assert_eq!(activity(&gpu).unwrap(), "0 % busy");
    }
}
