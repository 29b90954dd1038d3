//! Pruned files as models.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use sluice_codec::{
    Scheme,
    container::{ContainerPlan, ContainerWriter, PlannedTensor},
};
use sluice_shared::pruning::PruneScore;

use super::*;
use crate::{
    Source,
    compression::{self, CompressError, PruneError, SourceCheck},
};

fn demonstration() -> Source {
    Source::Folder(Path::new(env!("CARGO_MANIFEST_DIR")).join("../model"))
}

fn options(heads: f64, channels: f64) -> PruneOptions {
    PruneOptions {
        shares: PruneShares { heads, channels },
        score: PruneScore::L2,
        compensate: false,
        calibration: None,
        threads: 2,
        replace: false,
    }
}

fn pruned(
    source: &Source,
    target: &Path,
    options: &PruneOptions,
) -> Result<PruneResult, CompressError> {
    let check = SourceCheck {
        remembered: None,
        progress: &mut |_| {},
    };
    let never = AtomicBool::new(false);
    prune(source, target, options, check, &never, &mut |_, _| {})
}

fn at(path: &Path) -> Source {
    Source::Folder(path.to_owned())
}

#[test]
fn a_pruned_file_is_a_smaller_model_and_says_what_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("small.sluice");
    let made = pruned(&demonstration(), &target, &options(0.3, 0.2)).unwrap();
    assert_eq!(made.record.removed_kv_heads(), (6, 20));
    assert_eq!(made.record.removed_channels(), (5 * 96, 5 * 512));
    assert_eq!(made.bytes, fs::metadata(&target).unwrap().len());
    assert!(made.kept_bytes < made.original_bytes && made.bytes < made.kept_bytes);

    let source = Checkpoint::open(&demonstration()).unwrap();
    let file = Checkpoint::open(&at(&target)).unwrap();
    let shape = file.model().unwrap().shape;
    assert_eq!(file.pruning(&shape).unwrap().unwrap(), made.record);
    let mut kept_bytes = 0;
    for tensor in file.model_sources(&shape).unwrap() {
        let spec = &tensor.spec;
        let layer = &made.record.layers[spec.layer];
        let whole = shape.tensors().into_iter();
        let whole = { whole }.find(|whole| whole.name == spec.name).unwrap();
        let parts = keep::KeptParts::of(&whole, &shape, layer);
        let read = |checkpoint: &Checkpoint| {
            let entry = checkpoint.tensor(&spec.name).unwrap();
            let mut bytes = vec![0; entry.bytes as usize];
            checkpoint
                .read_part(entry, 0..entry.bytes, &mut bytes)
                .unwrap();
            bytes
        };
        let mut expected = Vec::new();
        let width = whole.size().1;
        parts.take(
            0,
            width,
            tensor.format.bytes(1),
            &read(&source),
            &mut expected,
        );
        assert_eq!(read(&file), expected, "{}", spec.name);
        kept_bytes += expected.len() as u64;
    }
    assert_eq!(kept_bytes, made.kept_bytes);

    let never = AtomicBool::new(false);
    let container = compression::open(&target).unwrap();
    let found = compression::verify(&container, &never, &mut |_, _| {}).unwrap();
    assert!(found.is_empty());
    let back = folder.path().join("back");
    let refused = compression::decompress(&container, &back, 1, &never, &mut |_, _| {});
    assert!(matches!(refused, Err(CompressError::NoOriginal { .. })));
    assert!(!back.exists());
    let again = folder.path().join("again.sluice");
    let refused = pruned(&at(&target), &again, &options(0.1, 0.1)).unwrap_err();
    assert!(
        refused.to_string().ends_with("was pruned already"),
        "{refused}"
    );
}

#[test]
fn the_same_file_comes_of_a_folder_and_of_its_container() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let never = AtomicBool::new(false);
    let lossless = compression::CompressOptions {
        method: compression::CompressionMethod::Lossless(compression::Lossless::Huffman),
        tile: 512,
        tensors: Default::default(),
        all: false,
        threads: 1,
        replace: false,
    };
    let whole = path("whole.sluice");
    compression::compress(&demonstration(), &whole, &lossless, &never, &mut |_, _| {}).unwrap();
    let options = PruneOptions {
        score: PruneScore::Magnitude,
        ..options(0.1, 0.0)
    };
    pruned(&demonstration(), &path("a.sluice"), &options).unwrap();
    let one_thread = PruneOptions {
        threads: 1,
        ..options
    };
    pruned(&at(&whole), &path("b.sluice"), &one_thread).unwrap();
    let read = |name: &str| fs::read(path(name)).unwrap();
    assert!(read("a.sluice") == read("b.sluice"));
}

#[test]
fn a_run_that_was_stopped_leaves_nothing_that_looks_finished_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("small.sluice");
    let stop = AtomicBool::new(false);
    let total = std::sync::atomic::AtomicU64::new(0);
    let check = SourceCheck {
        remembered: None,
        progress: &mut |_| {},
    };
    let options = options(0.1, 0.1);
    let stopped = prune(
        &demonstration(),
        &target,
        &options,
        check,
        &stop,
        &mut |_, amount| {
            total.store(amount.total_bytes, std::sync::atomic::Ordering::Relaxed);
            if amount.done_bytes > amount.total_bytes * 3 / 4 {
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        },
    );
    assert!(matches!(stopped, Err(CompressError::Cancelled)));
    assert!(!target.exists() && compression::partial_of(&target).exists());
    let resumed = pruned(&demonstration(), &target, &options).unwrap();
    assert!(resumed.resumed > 0);
    let other = folder.path().join("other.sluice");
    pruned(&demonstration(), &other, &options).unwrap();
    assert!(fs::read(&target).unwrap() == fs::read(&other).unwrap());
    let refused = pruned(&demonstration(), &target, &options).unwrap_err();
    assert!(refused.to_string().contains("exists"), "{refused}");
}

#[test]
fn wrong_shares_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("small.sluice");
    for (heads, channels) in [
        (1.0, 0.0),
        (-0.1, 0.0),
        (0.0, f64::NAN),
        (0.9, 0.0),
        (0.0, 0.0),
    ] {
        let refused = pruned(&demonstration(), &target, &options(heads, channels));
        assert!(
            matches!(refused, Err(CompressError::Prune(_))),
            "{heads} {channels}: {refused:?}"
        );
    }
    for (score, compensate) in [(PruneScore::Obs, false), (PruneScore::L2, true)] {
        let options = PruneOptions {
            score,
            compensate,
            ..options(0.1, 0.1)
        };
        let refused = pruned(&demonstration(), &target, &options).unwrap_err();
        assert!(
            refused.to_string().ends_with("needs a calibration"),
            "{refused}"
        );
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let error = CompressError::from(PruneError::Share {
        units: "heads",
        share: 1.0,
    });
    assert!(error.hint().is_some());
}

/// A container with the tensors and files of another, but this record.
fn with_record(from: &Path, record: &PruningRecord, target: &Path) {
    let container = compression::open(from).unwrap();
    let checkpoint = Checkpoint::open(&at(from)).unwrap();
    let tensors = &container.header().tensors;
    let planned = tensors.iter().map(|tensor| PlannedTensor {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        dtype: tensor.dtype.clone(),
        extent: tensor.name.clone(),
    });
    let files = container.header().files.iter().map(|file| {
        let bytes = match file.name == RECORD_FILE {
            true => record.to_bytes(),
            false => container.read_file(file).unwrap(),
        };
        (file.name.clone(), bytes)
    });
    let plan = ContainerPlan {
        tile: 512,
        tensors: planned.collect(),
        shards: Vec::new(),
        files: files.collect(),
        identity: "changed".to_owned(),
    };
    let never = AtomicBool::new(false);
    let mut writer = ContainerWriter::begin(target, plan, &never, &mut |_| {}).unwrap();
    for tensor in tensors {
        let entry = checkpoint.tensor(&tensor.name).unwrap();
        let mut bytes = vec![0; entry.bytes as usize];
        checkpoint
            .read_part(entry, 0..entry.bytes, &mut bytes)
            .unwrap();
        writer.begin_tensor(Scheme::Plain).unwrap();
        writer.plain(&bytes).unwrap();
        writer.end_tensor(tensor.original_hash).unwrap();
    }
    writer.finish(true).unwrap();
}

#[test]
fn a_record_that_does_not_fit_is_refused_by_file_or_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("small.sluice");
    let other = folder.path().join("other.sluice");
    let made = pruned(&demonstration(), &target, &options(0.2, 0.1)).unwrap();
    let refused = |change: &dyn Fn(&mut PruningRecord)| {
        let mut record = made.record.clone();
        change(&mut record);
        with_record(&target, &record, &other);
        let file = Checkpoint::open(&at(&other)).unwrap();
        let shape = file.model().unwrap().shape;
        file.model_sources(&shape)
            .map_err(|error| error.to_string())
    };
    assert!(refused(&|_| {}).is_ok());
    let said = refused(&|record| record.channels = 500).unwrap_err();
    assert!(
        said.contains("sluice-optimization.json in")
            && said.contains("other.sluice")
            && said.contains("it is of a model with 5 layers of 4 KV heads and 500 channels"),
        "{said}"
    );
    let said = refused(&|record| {
        record.layers[1].removed_channels.pop();
    });
    let said = said.unwrap_err();
    assert!(
        said.contains("model.transformer.blocks.1.ff_proj.weight")
            && said.contains("[448, 256]")
            && said.contains("[449, 256]"),
        "{said}"
    );

    // A damaged file shows by its checksum.
    let mut bytes = fs::read(&target).unwrap();
    let wanted = b"\"is_compensated\"";
    let found = bytes
        .windows(wanted.len())
        .position(|window| window == wanted);
    bytes[found.unwrap() + 1] = b'I';
    fs::write(&other, bytes).unwrap();
    let file = Checkpoint::open(&at(&other)).unwrap();
    let shape = file.model().unwrap().shape;
    let said = file.model_sources(&shape).unwrap_err().to_string();
    assert!(said.contains("it doesn't match its checksum"), "{said}");
}
