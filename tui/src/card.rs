//! What is known of a graphics card, in words. What is unknown is left out, never 0.

use sluice_proto::v1::GpuStatus;
use sluice_shared::units;

/// What its instructions are, and what it computes in: `capability 8.6, computes in bf16`.
#[must_use]
pub fn arithmetic(card: &GpuStatus) -> String {
    format!(
        "capability {}, computes in {}",
        card.compute_capability, card.compute_dtype
    )
}

/// The way between host and card: `PCI Express 3 x8`. Idle cards lower the generation.
#[must_use]
pub fn bus(card: &GpuStatus) -> Option<String> {
    let way = lanes(card.pcie_generation, card.pcie_lanes)?;
    Some(format!("PCI Express {way}"))
}

/// What it is at best, where that is more: `4 x8`.
#[must_use]
pub fn bus_at_best(card: &GpuStatus) -> Option<String> {
    let best = lanes(card.pcie_generation_max, card.pcie_lanes_max)?;
    let now = lanes(card.pcie_generation, card.pcie_lanes);
    (Some(&best) != now.as_ref()).then_some(best)
}

fn lanes(generation: Option<u32>, width: Option<u32>) -> Option<String> {
    let generation = generation.map(|generation| generation.to_string());
    joined([generation, width.map(|width| format!("x{width}"))], " ")
}

/// How busy, warm and hungry it is: `37 % busy, 56 °C, 61 W of 115 W`.
#[must_use]
pub fn activity(card: &GpuStatus) -> Option<String> {
    let power = card.power_w.map(|power| match card.power_limit_w {
        Some(limit) => format!("{power:.0} W of {limit:.0} W"),
        None => format!("{power:.0} W"),
    });
    joined(
        [
            card.utilization_percent
                .map(|busy| format!("{busy} % busy")),
            card.temperature_c.map(|degrees| format!("{degrees} °C")),
            power,
        ],
        ", ",
    )
}

/// How fast it is clocked: `1,500 MHz, memory 5,000 MHz`.
#[must_use]
pub fn clocks(card: &GpuStatus) -> Option<String> {
    let mhz = |mhz: u32| format!("{} MHz", units::count(mhz.into()));
    let memory = card
        .memory_clock_mhz
        .map(|clock| format!("memory {}", mhz(clock)));
    joined([card.clock_mhz.map(mhz), memory], ", ")
}

/// What is known of these, if anything is.
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
        let card = GpuStatus::default();
        for words in [
            bus(&card),
            bus_at_best(&card),
            activity(&card),
            clocks(&card),
        ] {
            assert_eq!(words, None);
        }
        let card = GpuStatus {
            pcie_lanes: Some(8),
            temperature_c: Some(56),
            power_w: Some(60.5),
            memory_clock_mhz: Some(5000),
            ..card
        };
        assert_eq!(bus(&card).unwrap(), "PCI Express x8");
        assert_eq!(activity(&card).unwrap(), "56 °C, 60 W");
        assert_eq!(clocks(&card).unwrap(), "memory 5,000 MHz");
    }

    #[test]
    fn the_best_of_a_bus_is_told_where_it_is_more() {
        let card = GpuStatus {
            pcie_generation: Some(1),
            pcie_generation_max: Some(4),
            pcie_lanes: Some(16),
            pcie_lanes_max: Some(16),
            ..Default::default()
        };
        assert_eq!(bus(&card).unwrap(), "PCI Express 1 x16");
        assert_eq!(bus_at_best(&card).unwrap(), "4 x16");
        let card = GpuStatus {
            pcie_generation: Some(4),
            ..card
        };
        assert_eq!(bus_at_best(&card), None);
    }

    #[test]
    fn a_card_at_rest_is_known_to_be() {
        let card = GpuStatus {
            utilization_percent: Some(0),
            ..Default::default()
        };
        assert_eq!(activity(&card).unwrap(), "0 % busy");
    }
}
