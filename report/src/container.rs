//! What coded files have in them, and what came of making them, as people and scripts read it.

use serde_json::{Value, json};
use sluice_proto::v1::{
    CalibrateResult, CompressResult, CompressionSummary, ContainerContents, ContainerTensor,
    DecompressResult, ImportResult, LossPrediction, OperationKind, OptimizeResult, PruneResult,
    PruningSummary, VerifyResult, operation::Outcome,
};
use sluice_shared::{pruning::warnings, units};

/// Bits per weight after and before compression; none without elements.
fn bits_per_weight(numbers: u64, bytes: u64, original_bytes: u64) -> Option<(f64, f64)> {
    let bits = |bytes: u64| bytes as f64 * 8.0 / numbers as f64;
    (numbers > 0).then(|| (bits(bytes), bits(original_bytes)))
}

fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 100.0,
        _ => part as f64 * 100.0 / whole as f64,
    }
}

/// All of these together.
fn total(sums: &[CompressionSummary]) -> CompressionSummary {
    let none = CompressionSummary::default();
    sums.iter().fold(none, |all, sum| CompressionSummary {
        tensors: all.tensors.saturating_add(sum.tensors),
        elements: all.elements.saturating_add(sum.elements),
        bytes: all.bytes.saturating_add(sum.bytes),
        original_bytes: all.original_bytes.saturating_add(sum.original_bytes),
        ..all
    })
}

fn summary_bits_per_weight(sum: &CompressionSummary) -> Option<(f64, f64)> {
    bits_per_weight(sum.elements, sum.bytes, sum.original_bytes)
}

fn tensor_bits_per_weight(tensor: &ContainerTensor) -> Option<(f64, f64)> {
    let sizes = tensor.shape.iter();
    let numbers = sizes.fold(1, |all: u64, size| all.saturating_mul(*size));
    bits_per_weight(numbers, tensor.bytes, tensor.original_bytes)
}

/// The contents of a compressed file, as lines of text.
#[must_use]
pub fn lines(contents: &ContainerContents) -> Vec<String> {
    let all = total(&contents.summaries);
    let mut lines = vec![
        format!(
            "{}: {}, {:.1} % of {}",
            contents.path,
            units::bytes(contents.file_bytes),
            percent(contents.file_bytes, contents.original_bytes),
            units::bytes(contents.original_bytes),
        ),
        format!(
            "source {}, tiles of {} elements, {} extents, {} files",
            contents.source_hash,
            contents.tile_elements,
            units::count(contents.extents.into()),
            contents.files.iter().filter(|file| !file.is_header).count(),
        ),
        String::new(),
    ];
    if let Some(pruning) = &contents.pruning {
        let removed = removed(pruning);
        let (score, source) = (pruning.score(), &pruning.source_hash);
        let calibration = match pruning.calibration_hash.is_empty() {
            true => String::new(),
            false => format!("; calibration {}", pruning.calibration_hash),
        };
        let compensated = match pruning.is_compensated {
            true => "; compensated",
            false => "",
        };
        let line = format!(
            "pruned of {removed}; score: {score}{calibration}{compensated}; made from {source}"
        );
        lines.insert(2, line);
    }
    let names = contents
        .tensors
        .iter()
        .map(|tensor| tensor.name.chars().count());
    // At least as wide as the heading `tensor`; at most what leaves room for the other columns.
    let width = names.max().unwrap_or(0).clamp(6, 60);
    let row = |name: &str,
               shape: &str,
               number: &str,
               compression: &str,
               bytes,
               bits: Option<(f64, f64)>| {
        let bits = match bits {
            Some((bits, original)) => format!("{bits:>6.2} of {original:>2.0}"),
            None => String::new(),
        };
        let bytes = units::bytes(bytes);
        format!("{name:<width$}  {shape:>15}  {number:<5} {compression:<10} {bytes:>9} {bits}")
            .trim_end()
            .to_owned()
    };
    lines.push(format!(
        "{:<width$}  {:>15}  {:<5} {:<10} {:>9} bits per weight",
        "tensor", "shape", "", "codec", "bytes"
    ));
    for tensor in &contents.tensors {
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        lines.push(row(
            &tensor.name,
            &shape.join(" × "),
            &tensor.dtype,
            &tensor.compression().to_string(),
            tensor.bytes,
            tensor_bits_per_weight(tensor),
        ));
    }
    // Of very many tensors the daemon sends the first, but the sums are of all.
    let left = all.tensors.saturating_sub(contents.tensors.len() as u64);
    if left > 0 {
        lines.push(format!("and {} more", units::count(left)));
    }
    lines.push(String::new());
    let sums = contents.summaries.iter();
    let sums = sums.map(|sum| (sum.compression().to_string(), sum));
    for (compression, sum) in sums.chain([("in all".to_owned(), &all)]) {
        let tensors = format!("{} tensors", units::count(sum.tensors));
        lines.push(row(
            &tensors,
            "",
            "",
            &compression,
            sum.bytes,
            summary_bits_per_weight(sum),
        ));
    }
    lines.push(String::new());
    for file in &contents.files {
        let what = if file.is_header { " (its header)" } else { "" };
        lines.push(format!("{}{what}: {}", file.name, units::bytes(file.bytes)));
    }
    lines
}

/// The contents of a compressed file as a JSON object, with bits per weight beside bytes.
#[must_use]
pub fn json(contents: &ContainerContents) -> Value {
    let rounded = |bits: Option<(f64, f64)>| bits.map(|(bits, _)| (bits * 1e4).round() / 1e4);
    let all = total(&contents.summaries);
    let mut value = json!(contents);
    value["elements"] = json!(all.elements);
    value["bits_per_weight"] = json!(rounded(summary_bits_per_weight(&all)));
    for (index, sum) in contents.summaries.iter().enumerate() {
        value["summaries"][index]["bits_per_weight"] = json!(rounded(summary_bits_per_weight(sum)));
    }
    for (index, tensor) in contents.tensors.iter().enumerate() {
        value["tensors"][index]["bits_per_weight"] = json!(rounded(tensor_bits_per_weight(tensor)));
    }
    value
}

/// What a job is doing.
#[must_use]
pub fn verb(kind: OperationKind) -> &'static str {
    match kind {
        OperationKind::Compress => "compressing",
        OperationKind::Decompress => "writing",
        OperationKind::Verify => "verifying",
        OperationKind::Prune => "pruning",
        OperationKind::Calibrate => "calibrating",
        OperationKind::Optimize => "optimizing",
        OperationKind::Remember => "remembering",
        _ => "working",
    }
}

/// What came of a job, in a line, of the file or folder that it was about.
///
/// # Errors
/// When the file is damaged; the line says so.
pub fn outcome(path: &str, result: &Outcome, elapsed_ms: f64) -> Result<String, String> {
    match result {
        Outcome::Compress(made) => Ok(compressed(path, made, elapsed_ms)),
        Outcome::Decompress(made) => Ok(decompressed(path, made, elapsed_ms)),
        Outcome::Verify(found) => verified(path, found),
        Outcome::Prune(made) => Ok(pruned(path, made, elapsed_ms)),
        Outcome::Calibrate(made) => Ok(calibrated(path, made, elapsed_ms)),
        Outcome::Optimize(made) => Ok(optimized(path, made, elapsed_ms)),
        Outcome::Imported(made) => Ok(imported(path, made, elapsed_ms)),
        // Of no work on files.
        _ => Ok(format!(
            "{path}: done in {}",
            units::duration_ms(elapsed_ms)
        )),
    }
}

/// What should be known beside [`outcome`]: tensors left out, work gone on with, places that are damaged.
#[must_use]
pub fn notices(result: &Outcome) -> Vec<String> {
    match result {
        Outcome::Compress(made) => written(&made.omitted_files, made.resumed_tensors),
        Outcome::Prune(made) => {
            let mut notices = written(&made.omitted_files, made.resumed_tensors);
            let pruning = made.pruning.clone().unwrap_or_default();
            notices.extend(warnings(pruning.head_share, pruning.channel_share));
            notices
        }
        Outcome::Verify(found) => {
            let places = found.damage.iter();
            places.map(|place| format!("damaged: {place}")).collect()
        }
        _ => Vec::new(),
    }
}

/// Files that a container that was written does not have, and tensors that an earlier run had written.
fn written(omitted_files: &[String], resumed_tensors: u64) -> Vec<String> {
    let left_out = omitted_files.iter().map(|name| format!("omitted: {name}"));
    let resumed = (resumed_tensors > 0).then(|| {
        let resumed = units::count(resumed_tensors);
        format!("resumed after {resumed} tensors of an earlier run")
    });
    left_out.chain(resumed).collect()
}

/// What was removed from what, in words.
fn removed(pruning: &PruningSummary) -> String {
    format!(
        "{} of {} KV heads, {:.1} % of the feed-forward channels",
        units::count(pruning.removed_kv_heads),
        units::count(pruning.kv_heads),
        percent(pruning.removed_channels, pruning.channels),
    )
}

/// A pruned file that was made, in a line.
fn pruned(path: &str, made: &PruneResult, elapsed_ms: f64) -> String {
    format!(
        "{path}: {size}, {kept} of {original} of weights, without {removed}, pruned in {took}",
        size = units::bytes(made.file_bytes),
        kept = units::bytes(made.kept_bytes),
        original = units::bytes(made.original_bytes),
        removed = removed(&made.pruning.clone().unwrap_or_default()),
        took = units::duration_ms(elapsed_ms),
    )
}

/// What went into memory, in a line.
fn imported(collection: &str, made: &ImportResult, elapsed_ms: f64) -> String {
    let counted = |number: u64, what: &str| match number {
        0 => String::new(),
        number => format!(", {} {what}", units::count(number)),
    };
    format!(
        "{collection}: {sources} in {pieces}{unchanged}{skipped}, in {took}",
        sources = units::several(made.sources, "source"),
        pieces = units::several(made.pieces, "piece"),
        unchanged = counted(made.unchanged, "unchanged"),
        skipped = counted(made.skipped, "skipped"),
        took = units::duration_ms(elapsed_ms),
    )
}

/// A file that was made, in a line.
fn compressed(path: &str, made: &CompressResult, elapsed_ms: f64) -> String {
    let loss = match made.relative_error {
        Some(0.0) => ", no error".to_owned(),
        // 20 and not 10, since the error is the root of a ratio of squares.
        Some(error) => format!(", error {:.1} dB", 20.0 * error.log10()),
        None => String::new(),
    };
    format!(
        "{path}: {size}, {percent:.1} % of {original}{loss}, compressed in {took}",
        size = units::bytes(made.file_bytes),
        percent = percent(made.file_bytes, made.original_bytes),
        original = units::bytes(made.original_bytes),
        took = units::duration_ms(elapsed_ms),
    )
}

/// A calibration, in a line.
fn calibrated(path: &str, made: &CalibrateResult, elapsed_ms: f64) -> String {
    let sweeps = match made.sweeps {
        0 | 1 => String::new(),
        sweeps => format!(" in {sweeps} sweeps"),
    };
    let masked = match made.masked_positions {
        0 => String::new(),
        masked => format!(", {} of them masked", units::count(masked)),
    };
    format!(
        "{path}: {size}, {positions} positions{masked}, {passes} passes{sweeps}, measured in {took}",
        size = units::bytes(made.file_bytes),
        positions = units::count(made.positions),
        passes = units::count(made.passes),
        took = units::duration_ms(elapsed_ms),
    )
}

/// A mix, in a line.
fn optimized(path: &str, made: &OptimizeResult, elapsed_ms: f64) -> String {
    let predicted = made.prediction.as_ref().map(|prediction| {
        let LossPrediction {
            kl_nats,
            gap_kl_nats,
            uniform_kl_nats,
            ..
        } = prediction;
        format!(
            " (predicted {kl_nats:.5}, of it at most {gap_kl_nats:.6} above the best choice; one rate for all: {uniform_kl_nats:.5})"
        )
    });
    format!(
        "{path}: mix {mix:08x}, {bits:.2} bits per weight, KL {measured:.5} ± {error:.5}{predicted}, made in {took}",
        mix = made.mix,
        bits = made.bits_per_weight,
        measured = made.measured_kl_nats,
        error = made.measured_kl_standard_error,
        predicted = predicted.unwrap_or_default(),
        took = units::duration_ms(elapsed_ms),
    )
}

/// A folder that was made, in a line.
fn decompressed(path: &str, made: &DecompressResult, elapsed_ms: f64) -> String {
    format!(
        "{path}: {size} in {files} files, decompressed in {took}",
        size = units::bytes(made.original_bytes),
        files = units::count(made.files),
        took = units::duration_ms(elapsed_ms),
    )
}

/// A file that was compared with its checksums: a line, or what is wrong with it.
fn verified(path: &str, found: &VerifyResult) -> Result<String, String> {
    match found.damaged_places {
        0 => Ok(format!(
            "{path}: {size}, {tensors} tensors, all as they were written",
            size = units::bytes(found.file_bytes),
            tensors = units::count(found.tensors),
        )),
        1 => Err(format!("{path} is damaged in 1 place")),
        count => Err(format!(
            "{path} is damaged in {} places",
            units::count(count)
        )),
    }
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::Compression;

    use super::*;

    #[test]
    fn sums_are_of_all_tensors_where_only_some_are_told() {
        let sum = |compression: Compression, tensors| CompressionSummary {
            compression: compression.into(),
            tensors,
            elements: 1000 * tensors,
            bytes: 1500 * tensors,
            original_bytes: 2000 * tensors,
        };
        let contents = ContainerContents {
            path: "/a.sluice".to_owned(),
            file_bytes: 4500,
            original_bytes: 6000,
            summaries: vec![sum(Compression::None, 1), sum(Compression::Huffman, 2)],
            tensors: vec![ContainerTensor {
                name: "a".to_owned(),
                shape: vec![10, 100],
                dtype: "bf16".to_owned(),
                compression: Compression::Huffman.into(),
                bytes: 1500,
                original_bytes: 2000,
                ..Default::default()
            }],
            ..Default::default()
        };
        let lines = lines(&contents);
        assert_eq!(lines[0], "/a.sluice: 4.39 KiB, 75.0 % of 5.86 KiB");
        assert!(lines.contains(&"and 2 more".to_owned()), "{lines:?}");
        let is_total = |line: &&String| line.contains("in all");
        let total = lines.iter().find(is_total).unwrap();
        assert!(
            total.starts_with("3 tensors") && total.ends_with("12.00 of 16"),
            "{total}"
        );
        let json = json(&contents);
        assert_eq!(
            (&json["bits_per_weight"], &json["elements"]),
            (&12.0.into(), &3000.into())
        );
        assert_eq!(json["tensors"][0]["bits_per_weight"], 12.0);
    }

    #[test]
    fn results_are_a_line() {
        let told = |error| {
            let made = CompressResult {
                file_bytes: 2 << 20,
                original_bytes: 3 << 20,
                relative_error: error,
                ..Default::default()
            };
            compressed("a", &made, 1500.0)
        };
        assert_eq!(
            told(Some(0.01)),
            "a: 2.00 MiB, 66.7 % of 3.00 MiB, error -40.0 dB, compressed in 1.5 s"
        );
        assert!(told(Some(0.0)).contains(" MiB, no error, compressed"));
        assert!(told(None).contains(" MiB, compressed"));
        let found = |damaged_places| VerifyResult {
            damaged_places,
            ..Default::default()
        };
        assert!(verified("a", &found(0)).is_ok());
        assert_eq!(
            verified("a", &found(1)).unwrap_err(),
            "a is damaged in 1 place"
        );
        assert_eq!(
            verified("a", &found(1000)).unwrap_err(),
            "a is damaged in 1,000 places"
        );
    }
}
