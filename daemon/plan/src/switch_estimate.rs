//! How long a switch from one plan to another takes, from rates measured on this machine: the weights that are
//! converted, and the bytes that are read.

use sluice_machine::SHARE;
use sluice_weights::{Storage, TensorPlan, Tier, WeightGroupPlan};

use super::{Machine, Plan};

/// Where the weights that a plan's level converts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConversionSource {
    /// From a copy on disk.
    WeightCache,
    /// From the checkpoint, all of them written to the weight cache first.
    WrittenToCache,
    /// From the checkpoint, converted in memory as they are brought.
    Checkpoint,
    /// From a compressed copy, which is made first.
    CompressedToCache,
}

/// How long a switch takes, and what it does in that time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SwitchEstimate {
    /// Seconds while no pass computes.
    pub idle_s: f64,
    /// Seconds while passes compute all the time; those are then a fifth longer.
    pub busy_s: f64,
    /// Weights that are converted.
    pub converted_weights: u64,
    /// Bytes that are read, of the checkpoint and of the copy.
    pub read_bytes: u64,
}

/// Estimates the switch from the groups of one plan to another plan of the same model; `None` where a rate is not
/// known.
#[must_use]
pub fn estimate_switch(
    from: &[WeightGroupPlan],
    to: &Plan,
    machine: &Machine,
    source: ConversionSource,
) -> Option<SwitchEstimate> {
    let rates = machine.rates.as_ref()?;
    let changed = || {
        let pairs = from.iter().zip(&to.groups);
        pairs.filter(|(from, to)| from != to).map(|(_, to)| to)
    };
    let is_converted = |tensor: &&TensorPlan| matches!(tensor.storage, Storage::Plain(format) if format != tensor.source);
    let tensors = |group: &'_ WeightGroupPlan| group.tensors.clone();
    let brought: Vec<TensorPlan> = (changed().filter(|group| group.tier == Tier::Device))
        .flat_map(tensors)
        .collect();
    let needs_copy = brought.iter().any(|tensor| is_converted(&tensor))
        || changed()
            .any(|group| group.is_streamed() && group.tensors.iter().any(|t| is_converted(&t)));
    // A copy holds all weights that the level converts, not only those of groups that change.
    let to_convert: Vec<TensorPlan> = match source {
        ConversionSource::WeightCache => Vec::new(),
        ConversionSource::WrittenToCache if needs_copy => {
            to.groups.iter().flat_map(tensors).collect()
        }
        // Compression has a rate of its own and is counted below.
        ConversionSource::WrittenToCache | ConversionSource::CompressedToCache => Vec::new(),
        ConversionSource::Checkpoint => brought.clone(),
    };
    let mut time = SwitchEstimate {
        idle_s: 0.0,
        busy_s: 0.0,
        converted_weights: 0,
        read_bytes: 0,
    };
    let threads = machine.device.threads.max(1) as f64;
    let mut copied_bytes = 0;
    let mut written_bytes = 0;
    for tensor in to_convert.iter().filter(is_converted) {
        let numbers = tensor.elements();
        let read_bytes = match tensor.compressed {
            // Rates are those of one thread; conversion runs on all of them.
            Some(coding) => {
                time.idle_s += rates.decompress_s(coding.scheme)? * numbers as f64 / threads;
                coding.bytes
            }
            None => tensor.source.bytes(tensor.width) as u64 * tensor.rows as u64,
        };
        time.converted_weights += numbers;
        time.read_bytes += read_bytes;
        // For other formats, conversion is as fast as copying.
        let convert_s = rates.convert_s(tensor.storage.format());
        time.idle_s += convert_s.unwrap_or(0.0) * numbers as f64 / threads;
        time.idle_s += read_bytes as f64 / rates.copy_bytes_per_s / threads;
        if source == ConversionSource::WrittenToCache {
            written_bytes += tensor.bytes();
        }
    }
    if source == ConversionSource::CompressedToCache {
        for tensor in to.groups.iter().flat_map(tensors) {
            let Storage::Compressed(coding) = tensor.storage else {
                continue;
            };
            let numbers = tensor.elements();
            let read_bytes = tensor.source.bytes(tensor.width) as u64 * tensor.rows as u64;
            time.converted_weights += numbers;
            time.read_bytes += read_bytes;
            time.idle_s += rates.compress_s * numbers as f64 / threads;
            time.idle_s += read_bytes as f64 / rates.copy_bytes_per_s;
            written_bytes += coding.bytes;
        }
    }
    for tensor in &brought {
        if source == ConversionSource::Checkpoint && is_converted(&tensor) {
            continue;
        }
        time.read_bytes += tensor.file_bytes();
        copied_bytes += tensor.file_bytes();
    }
    time.idle_s += (copied_bytes + written_bytes) as f64 / rates.copy_bytes_per_s;
    // A copy is used once it is on disk, and disks hardly write faster than they read.
    if let Some(cold) = machine.disk.cold_bytes_per_s {
        time.idle_s += written_bytes as f64 / cold;
    }
    // More bytes than the system's cache can hold come from the disk, at least as slowly.
    if let Some(cold) = machine.disk.cold_bytes_per_s
        && time.read_bytes > machine.page_cache_bytes
    {
        time.idle_s = time.idle_s.max(time.read_bytes as f64 / cold);
    }
    // A group is assembled in host memory before it is copied to the GPU, so the two times add.
    if let Some(link) = rates.link_bytes_per_s {
        let bytes: u64 = brought.iter().map(TensorPlan::bytes).sum();
        time.idle_s += bytes as f64 / link;
    }
    time.busy_s = match machine.device.gpu {
        // A GPU's passes leave the machine's threads to others.
        Some(_) => time.idle_s,
        None => time.idle_s * f64::from(SHARE),
    };
    Some(time)
}

#[cfg(test)]
mod tests {
    use sluice_checkpoint::family::PublishedShape;
    use sluice_formats::Format;
    use sluice_machine::{Profile, Rates};
    use sluice_shared::level::Level;

    use super::*;
    use crate::{PlanInput, WorkingMemory, Workload, tests::sources_of};

    #[test]
    fn a_switch_takes_what_converting_and_reading_take() {
        let rates = Rates {
            copy_bytes_per_s: 4e9,
            link_bytes_per_s: None,
            linear: Vec::new(),
            host_linear: Vec::new(),
            decompress: Vec::new(),
            others_share: 0.0,
            compress_s: 10e-9,
            convert: vec![
                (Format::Q8_0, 1e-9),
                (Format::Q6K, 4e-9),
                (Format::Q4K, 2e-9),
            ],
        };
        let mut machine = Machine::unmeasured(Profile::cpu(2), u64::MAX);
        let preset = PublishedShape::find("tinyllama-1.1b").unwrap();
        let shape = preset.shape();
        let sources = sources_of(shape);
        let plan = |level: Level| {
            let question = PlanInput {
                shape,
                sources: &sources,
                choices: level.into(),
                budget_bytes: u64::MAX,
                workload: Workload::new(64, 32, 1),
                working: WorkingMemory::default(),
                machine: &machine,
            };
            Plan::new(&question).unwrap()
        };
        let (standard, moderate) = (plan(Level::Standard), plan(Level::Moderate));
        let time = |machine: &Machine, converted| {
            estimate_switch(&standard.groups, &moderate, machine, converted)
        };
        assert_eq!(
            time(&machine, ConversionSource::Checkpoint),
            None,
            "nothing was measured"
        );

        machine.rates = Some(rates);
        let time = |converted| time(&machine, converted).unwrap();
        let anew = time(ConversionSource::Checkpoint);
        let (read, written) = (2 * anew.converted_weights, anew.converted_weights / 32 * 34);
        // Matrices of layers and the LM head, on two threads.
        assert!(anew.converted_weights > 900_000_000);
        let expected = anew.converted_weights as f64 * 0.5e-9 + read as f64 / 8e9;
        assert!((anew.idle_s / expected - 1.0).abs() < 0.05, "{anew:?}");
        let keeping = time(ConversionSource::WrittenToCache);
        let more = 2.0 * written as f64 / 4e9;
        assert!(
            (keeping.idle_s / (expected + more) - 1.0).abs() < 0.05,
            "{keeping:?}"
        );
        let mut on_disk = machine.clone();
        on_disk.disk.cold_bytes_per_s = Some(1e9);
        on_disk.page_cache_bytes = u64::MAX;
        let on_disk = estimate_switch(
            &standard.groups,
            &moderate,
            &on_disk,
            ConversionSource::WrittenToCache,
        );
        let written_s = on_disk.unwrap().idle_s - keeping.idle_s;
        assert!((written_s / (written as f64 / 1e9) - 1.0).abs() < 0.05);
        let kept = time(ConversionSource::WeightCache);
        assert_eq!(kept.converted_weights, 0);
        assert!(
            (kept.idle_s / (written as f64 / 4e9) - 1.0).abs() < 0.05,
            "{kept:?}"
        );
        assert_eq!(kept.busy_s, kept.idle_s * f64::from(SHARE));
        let nothing = estimate_switch(
            &moderate.groups,
            &moderate,
            &machine,
            ConversionSource::WrittenToCache,
        );
        assert_eq!(nothing.unwrap().idle_s, 0.0);
    }
}
