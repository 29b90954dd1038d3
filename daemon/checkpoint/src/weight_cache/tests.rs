//! Copies of small checkpoints: what is in them, when they are refused, and what is left when writing ends early.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use ::safetensors::SafeTensors;
use rustix::fs::FlockOperation;
use sluice_machine::Profile;
use sluice_plan::{BLOCK_DEFAULT, Machine, Plan, PlanInput, WorkingMemory, Workload};
use sluice_weights::{LayerKind, Shape, TensorNaming};
use tempfile::TempDir;

use super::{write::check_free_space, *};
use crate::synth::{SynthDType, SynthOptions, SynthRouter};

/// With matrices whose bytes are no multiple of 64 when converted.
fn shape() -> Shape {
    Shape {
        naming: TensorNaming::Llada,
        layers: 2,
        hidden_size: 96,
        attention_heads: 6,
        kv_heads: 2,
        head_dim: 16,
        intermediate_size: 211,
        padded_vocab_size: 301,
        context_length: 64,
        causal: false,
        tied: false,
        biases: false,
        qk_norms: false,
        layer_kind: LayerKind::Attention,
    }
}

fn write_source(folder: &Path, seed: u64) {
    let synthesis = SynthOptions {
        shape: shape(),
        dtype: SynthDType::F32,
        seed,
        family: None,
        router: SynthRouter::default(),
        threads: 1,
    };
    let never = AtomicBool::new(false);
    synthesis.write(folder, &never, &mut |_, _| {}).unwrap();
}

/// A source in a folder `model`, and a folder for its copies.
struct Setup {
    folder: TempDir,
}

impl Setup {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        write_source(&folder.path().join("model"), 1);
        Self { folder }
    }

    fn copies(&self) -> PathBuf {
        self.folder.path().join("copies")
    }

    fn left(&self) -> Vec<String> {
        let files = fs::read_dir(self.copies()).unwrap();
        let mut names: Vec<_> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn converted_weights(&self, level: Level) -> (ConvertedWeights, Rows) {
        let source = Source::Folder(self.folder.path().join("model"));
        let checkpoint = Arc::new(Checkpoint::open(&source).unwrap());
        let shape = shape();
        let sources = checkpoint.sources(shape.tensors()).unwrap();
        let plan = Plan::new(&PlanInput {
            shape: &shape,
            sources: &sources,
            choices: level.into(),
            budget_bytes: u64::MAX,
            workload: Workload::new(16, BLOCK_DEFAULT, 1),
            working: WorkingMemory::default(),
            machine: &Machine::unmeasured(Profile::cpu(1), 0),
        });
        let plan = plan.unwrap();
        let derivative = ConvertedWeights::new(
            &self.copies(),
            &checkpoint,
            &sources,
            plan.level,
            &plan.groups,
        );
        let derivative = derivative.unwrap().expect("the level converts some");
        (
            derivative,
            Rows {
                checkpoint,
                sources,
            },
        )
    }
}

/// Reads the rows that are converted, all at once.
struct Rows {
    checkpoint: Arc<Checkpoint>,
    sources: Vec<SourceTensor>,
}

impl Rows {
    fn convert(&self, rows: &TensorPlan, out: &mut [u8]) -> Result<(), CheckpointError> {
        let entry = self.checkpoint.tensor(&self.sources[rows.tensor].spec.name);
        let row_bytes = rows.source.bytes(rows.width);
        let start = (rows.first_row * row_bytes) as u64;
        let mut bytes = vec![0; rows.rows * row_bytes];
        let end = start + bytes.len() as u64;
        self.checkpoint
            .read_part(entry.unwrap(), start..end, &mut bytes)?;
        let mut numbers = vec![0.0; rows.rows * rows.width];
        rows.source.dequantize(&bytes, &mut numbers);
        rows.storage.format().quantize(&numbers, out);
        Ok(())
    }
}

fn write(derivative: &ConvertedWeights, rows: &Rows) -> Result<Checkpoint, CheckpointError> {
    let never = AtomicBool::new(false);
    let mut last = 0;
    let convert = &mut |piece: &TensorPlan, out: &mut [u8]| rows.convert(piece, out).map(|()| true);
    let written = derivative.write(2, convert, &never, &mut |done| {
        assert!(done > last);
        last = done;
    })?;
    assert_eq!(last, derivative.tensor_bytes());
    Ok(written.expect("nobody cancels"))
}

#[test]
fn a_copy_is_a_safetensors_file_of_what_storing_gives() {
    let setup = Setup::new();
    for level in [Level::Moderate, Level::Aggressive] {
        let (derivative, rows) = setup.converted_weights(level);
        assert!(derivative.open().unwrap().is_none());
        let copy = write(&derivative, &rows).unwrap();

        let bytes = fs::read(derivative.path()).unwrap();
        let (header, _) = SafeTensors::read_metadata(&bytes).unwrap();
        let data_start = header + 8;
        assert_eq!(data_start % PAGE_BYTES, 0);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        assert!(
            file.names()
                .iter()
                .any(|name| name.starts_with(PADDING_NAME))
        );
        let source = fs::read(setup.folder.path().join("model/model.safetensors")).unwrap();
        let source = SafeTensors::deserialize(&source).unwrap();
        // Seven matrices in each layer, and the LM head.
        assert_eq!(derivative.tensors.len(), 2 * 7 + 1);
        for tensor in &derivative.tensors {
            let found = file.tensor(&tensor.name).unwrap();
            let place = found.data().as_ptr() as usize - bytes.as_ptr() as usize;
            assert_eq!(place % ALIGNMENT as usize, 0, "{}", tensor.name);
            let numbers: Vec<f32> = source
                .tensor(&tensor.name)
                .unwrap()
                .data()
                .chunks_exact(4)
                .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
                .collect();
            let format = tensor.plan.storage.format();
            let mut expected = vec![0; format.bytes(numbers.len())];
            format.quantize(&numbers, &mut expected);
            assert_eq!(found.data(), expected, "{}", tensor.name);
            let entry = copy.tensor(&tensor.name).unwrap();
            assert_eq!(entry.format, Ok(format));
            assert_eq!(entry.shape, [tensor.plan.rows, tensor.plan.width]);
            let mut read = vec![0; expected.len()];
            copy.read_part(entry, 0..read.len() as u64, &mut read)
                .unwrap();
            assert_eq!(read, expected, "{}", tensor.name);
        }
    }
    assert_eq!(setup.left().len(), 2);
}

#[test]
fn a_file_in_its_place_that_is_not_it_is_refused_and_written_over() {
    let setup = Setup::new();
    let (derivative, rows) = setup.converted_weights(Level::Moderate);
    write(&derivative, &rows).unwrap();
    let path = derivative.path();
    let whole = fs::read(&path).unwrap();
    let with = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let mut bytes = whole.clone();
        let at = bytes
            .windows(from.len())
            .position(|window| window == from.as_bytes());
        let at = at.unwrap_or_else(|| panic!("{from} is not in the header"));
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        bytes
    };
    for (broken, words) in [
        (Vec::new(), "too short"),
        (b"garbage, and more of it".to_vec(), "no safetensors file"),
        (
            whole[..whole.len() - 1].to_vec(),
            "is truncated or damaged: its header declares",
        ),
        (
            with("\"sluice.version\":\"1\"", "\"sluice.version\":\"0\""),
            "sluice.version is \"0\", not \"1\"",
        ),
        (
            with(&derivative.fingerprint, "0123456789abcdef"),
            "sluice.source is",
        ),
        (with("moderate", "medieval"), "sluice.level is"),
        (with("\"q8_0\"", "\"q9_0\""), "\"q9_0\", not \"q8_0\""),
        (with("[301,102]", "[102,301]"), "has shape [102, 301]"),
        (
            with("\"model.transformer.ff_out", "\"model.transformer.ff_ouz"),
            "is missing",
        ),
    ] {
        fs::write(&path, broken).unwrap();
        let error = derivative.open().unwrap_err().to_string();
        assert!(error.contains(words), "{error} has no {words}");
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        write(&derivative, &rows).unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
}

#[test]
fn a_source_is_known_again_until_it_is_written_anew() {
    let setup = Setup::new();
    let folder = setup.folder.path();
    let (before, rows) = setup.converted_weights(Level::Moderate);
    write(&before, &rows).unwrap();

    fs::rename(folder.join("model"), folder.join("elsewhere")).unwrap();
    fs::create_dir(folder.join("other")).unwrap();
    fs::rename(folder.join("elsewhere"), folder.join("other/model")).unwrap();
    fs::rename(folder.join("other/model"), folder.join("model")).unwrap();
    assert_eq!(
        setup.converted_weights(Level::Moderate).0.path(),
        before.path()
    );

    fs::remove_dir_all(folder.join("model")).unwrap();
    write_source(&folder.join("model"), 2);
    let (after, _) = setup.converted_weights(Level::Moderate);
    assert_ne!(after.path(), before.path());
    assert!(after.open().unwrap().is_none());
}

#[test]
fn sources_of_the_same_lengths_and_times_are_told_apart_by_their_weights() {
    let setups = [1, 2].map(|seed| {
        let setup = Setup::new();
        let model = setup.folder.path().join("model");
        fs::remove_dir_all(&model).unwrap();
        write_source(&model, seed);
        let file = fs::File::options()
            .write(true)
            .open(model.join("model.safetensors"))
            .unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        (setup, file.metadata().unwrap().len())
    });
    let [(one, one_bytes), (other, other_bytes)] = setups;
    assert_eq!(one_bytes, other_bytes);
    let fingerprint = |setup: &Setup| setup.converted_weights(Level::Moderate).0.fingerprint;
    assert_ne!(fingerprint(&one), fingerprint(&other));
    assert_eq!(fingerprint(&one), fingerprint(&one));
}

#[test]
fn a_source_that_changes_underneath_is_not_copied() {
    let setup = Setup::new();
    let (derivative, rows) = setup.converted_weights(Level::Moderate);
    let path = setup.folder.path().join("model/model.safetensors");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, bytes).unwrap();
    let error = write(&derivative, &rows).unwrap_err();
    let is_change = matches!(error, CheckpointError::Changed { .. });
    assert!(is_change, "{error}");
    assert!(setup.left().is_empty());
}

#[test]
fn what_killed_writers_left_goes_and_what_somebody_writes_stays() {
    let setup = Setup::new();
    let (derivative, rows) = setup.converted_weights(Level::Moderate);
    fs::create_dir(setup.copies()).unwrap();
    let old = "model-0123456789abcdef-aggressive.safetensors.77-0.partial";
    let locked = "model-0123456789abcdef-moderate.safetensors.78-0.partial";
    let foreign = [
        "model-large-0123456789abcdef-moderate.safetensors.1-0.partial",
        "model.partial",
        "notes-0123456789abcdef-moderate.safetensors.1-0.partial",
    ];
    for name in [old, locked].iter().chain(&foreign) {
        fs::write(setup.copies().join(name), "x").unwrap();
    }
    let held = fs::File::open(setup.copies().join(locked)).unwrap();
    rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
    write(&derivative, &rows).unwrap();
    let mut expected: Vec<String> = foreign.iter().map(|&name| name.to_owned()).collect();
    expected.push(locked.to_owned());
    expected.push(derivative.file_name());
    expected.sort();
    assert_eq!(setup.left(), expected);
}

#[test]
fn a_cancelled_writer_leaves_nothing() {
    let setup = Setup::new();
    let (derivative, rows) = setup.converted_weights(Level::Moderate);
    let cancel = AtomicBool::new(false);
    let mut pieces = 0;
    let convert = &mut |piece: &TensorPlan, out: &mut [u8]| {
        rows.convert(piece, out).map(|()| !cancel.load(Relaxed))
    };
    let written = derivative.write(1, convert, &cancel, &mut |_| {
        pieces += 1;
        cancel.store(true, Relaxed);
    });
    assert!(written.unwrap().is_none());
    assert_eq!(pieces, 1);
    assert!(setup.left().is_empty());
}

#[test]
fn a_disk_without_room_is_refused_with_figures() {
    assert!(check_free_space(10, 10).is_ok());
    let error = check_free_space(11, 10).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    let words = "11 bytes are needed, and the disk has 10 free";
    assert_eq!(error.to_string(), words);
}

#[test]
fn names_are_cut_where_files_could_not_have_them() {
    let long = "ü".repeat(200);
    let name = model_name(&Source::Folder(Path::new("/models").join(long)));
    assert_eq!(name, "ü".repeat(64));
    assert_eq!(model_name(&Source::Folder("/".into())), "model");
    assert_eq!(model_name(&Source::Embedded(&[])), "embedded");
}
