//! How long a switch from one plan to another takes, from rates measured on this machine: what is converted, and what is read.

use sluice_machine::SHARE;
use sluice_weights::{Storage, TensorPlan, Tier, UnitPlan};

use super::{Machine, Plan};

/// Where the weights that a plan's level converts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Converted {
    /// From a copy on disk.
    Kept,
    /// From the checkpoint, and all of them are written to a copy first.
    Keeping,
    /// From the checkpoint, as they are brought.
    Anew,
    /// From a copy that all of them are coded into first.
    Coding,
}

/// How long a switch takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwitchTime {
    /// Seconds while no pass computes.
    pub idle_s: f64,
    /// Seconds while passes compute all the time, which then are a fifth longer.
    pub busy_s: f64,
    /// Weights that are converted.
    pub converted: u64,
    /// Bytes that are read, of the checkpoint and of the copy.
    pub read_bytes: u64,
}

/// From the units of one plan to another plan of the same model; unknown where a rate is.
#[must_use]
pub fn switch_time(
    from: &[UnitPlan],
    to: &Plan,
    machine: &Machine,
    converted: Converted,
) -> Option<SwitchTime> {
    let rates = machine.rates.as_ref()?;
    let changed = || {
        let pairs = from.iter().zip(&to.units);
        pairs.filter(|(from, to)| from != to).map(|(_, to)| to)
    };
    let is_converted = |tensor: &&TensorPlan| matches!(tensor.storage, Storage::Plain(format) if format != tensor.source);
    let tensors = |unit: &'_ UnitPlan| unit.tensors.clone();
    let brought: Vec<TensorPlan> = (changed().filter(|unit| unit.tier == Tier::Device))
        .flat_map(tensors)
        .collect();
    let needs_copy = brought.iter().any(|tensor| is_converted(&tensor))
        || changed()
            .any(|unit| unit.is_streamed() && unit.tensors.iter().any(|t| is_converted(&t)));
    // A copy has all that the level converts.
    let to_convert: Vec<TensorPlan> = match converted {
        Converted::Kept => Vec::new(),
        Converted::Keeping if needs_copy => to.units.iter().flat_map(tensors).collect(),
        Converted::Keeping | Converted::Coding => Vec::new(),
        Converted::Anew => brought.clone(),
    };
    let mut time = SwitchTime {
        idle_s: 0.0,
        busy_s: 0.0,
        converted: 0,
        read_bytes: 0,
    };
    let threads = machine.device.threads.max(1) as f64;
    let mut copied_bytes = 0;
    let mut written_bytes = 0;
    for tensor in to_convert.iter().filter(is_converted) {
        let numbers = tensor.numbers();
        let read_bytes = match tensor.coded {
            Some(coding) => {
                time.idle_s += rates.decode_s(coding.scheme)? * numbers as f64 / threads;
                coding.bytes
            }
            None => tensor.source.bytes(tensor.width) as u64 * tensor.rows as u64,
        };
        time.converted += numbers;
        time.read_bytes += read_bytes;
        // Other formats are rounded as fast as they are copied.
        let convert_s = rates.convert_s(tensor.storage.format());
        time.idle_s += convert_s.unwrap_or(0.0) * numbers as f64 / threads;
        time.idle_s += read_bytes as f64 / rates.copy_bytes_per_s / threads;
        if converted == Converted::Keeping {
            written_bytes += tensor.bytes();
        }
    }
    if converted == Converted::Coding {
        for tensor in to.units.iter().flat_map(tensors) {
            let Storage::Coded(coding) = tensor.storage else {
                continue;
            };
            let numbers = tensor.numbers();
            let read_bytes = tensor.source.bytes(tensor.width) as u64 * tensor.rows as u64;
            time.converted += numbers;
            time.read_bytes += read_bytes;
            time.idle_s += rates.code_s * numbers as f64 / threads;
            time.idle_s += read_bytes as f64 / rates.copy_bytes_per_s;
            written_bytes += coding.bytes;
        }
    }
    for tensor in &brought {
        if converted == Converted::Anew && is_converted(&tensor) {
            continue;
        }
        time.read_bytes += tensor.file_bytes();
        copied_bytes += tensor.file_bytes();
    }
    time.idle_s += (copied_bytes + written_bytes) as f64 / rates.copy_bytes_per_s;
    // A copy is used once it is on disk, and hardly any disk writes faster than it reads.
    if let Some(cold) = machine.disk.cold_bytes_per_s {
        time.idle_s += written_bytes as f64 / cold;
    }
    // What the system's cache doesn't have comes from the disk, at least as slowly.
    if let Some(cold) = machine.disk.cold_bytes_per_s
        && time.read_bytes > machine.cache_bytes
    {
        time.idle_s = time.idle_s.max(time.read_bytes as f64 / cold);
    }
    if let Some(link) = rates.link_bytes_per_s {
        let bytes: u64 = brought.iter().map(TensorPlan::bytes).sum();
        time.idle_s += bytes as f64 / link;
    }
    time.busy_s = match machine.device.card {
        // A card's passes leave the machine's threads to others.
        Some(_) => time.idle_s,
        None => time.idle_s * f64::from(SHARE),
    };
    Some(time)
}

#[cfg(test)]
mod tests {
    use sluice_checkpoint::family::Preset;
    use sluice_formats::Format;
    use sluice_machine::{Profile, Rates};
    use sluice_shared::level::Level;

    use super::*;
    use crate::{Question, Working, Workload, tests::sources_of};

    #[test]
    fn a_switch_takes_what_converting_and_reading_take() {
        let rates = Rates {
            copy_bytes_per_s: 4e9,
            link_bytes_per_s: None,
            linear: Vec::new(),
            decode: Vec::new(),
            others_share: 0.0,
            code_s: 10e-9,
            convert: vec![
                (Format::Q8_0, 1e-9),
                (Format::Q6K, 4e-9),
                (Format::Q4K, 2e-9),
            ],
        };
        let mut machine = Machine::unmeasured(Profile::cpu(2), u64::MAX);
        let preset = Preset::find("tinyllama-1.1b").unwrap();
        let shape = preset.shape();
        let sources = sources_of(shape);
        let plan = |level: Level| {
            let question = Question {
                shape,
                sources: &sources,
                choices: level.into(),
                budget_bytes: u64::MAX,
                workload: Workload::new(64, 32, 1),
                working: Working::default(),
                machine: &machine,
            };
            Plan::new(&question).unwrap()
        };
        let (standard, moderate) = (plan(Level::Standard), plan(Level::Moderate));
        let time = |machine: &Machine, converted| {
            switch_time(&standard.units, &moderate, machine, converted)
        };
        assert_eq!(
            time(&machine, Converted::Anew),
            None,
            "nothing was measured"
        );

        machine.rates = Some(rates);
        let time = |converted| time(&machine, converted).unwrap();
        let anew = time(Converted::Anew);
        let (read, written) = (2 * anew.converted, anew.converted / 32 * 34);
        // Matrices of layers and the head, on two threads.
        assert!(anew.converted > 900_000_000);
        let expected = anew.converted as f64 * 0.5e-9 + read as f64 / 8e9;
        assert!((anew.idle_s / expected - 1.0).abs() < 0.05, "{anew:?}");
        let keeping = time(Converted::Keeping);
        let more = 2.0 * written as f64 / 4e9;
        assert!(
            (keeping.idle_s / (expected + more) - 1.0).abs() < 0.05,
            "{keeping:?}"
        );
        let mut on_disk = machine.clone();
        on_disk.disk.cold_bytes_per_s = Some(1e9);
        on_disk.cache_bytes = u64::MAX;
        let on_disk = switch_time(&standard.units, &moderate, &on_disk, Converted::Keeping);
        let written_s = on_disk.unwrap().idle_s - keeping.idle_s;
        assert!((written_s / (written as f64 / 1e9) - 1.0).abs() < 0.05);
        let kept = time(Converted::Kept);
        assert_eq!(kept.converted, 0);
        assert!(
            (kept.idle_s / (written as f64 / 4e9) - 1.0).abs() < 0.05,
            "{kept:?}"
        );
        assert_eq!(kept.busy_s, kept.idle_s * f64::from(SHARE));
        let nothing = switch_time(&moderate.units, &moderate, &machine, Converted::Keeping);
        assert_eq!(nothing.unwrap().idle_s, 0.0);
    }
}
