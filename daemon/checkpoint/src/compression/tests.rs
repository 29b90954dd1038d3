//! Folders made into containers and back.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use half::f16;
use safetensors::{Dtype, tensor::TensorView};
use sluice_codec::{
    ColumnsEncoder, Scheme,
    container::{ContainerPlan, ContainerWriter, Hash, PlannedTensor, extent_name},
};
use sluice_formats::DType;
use sluice_weights::{LayerKind, Shape, TensorNaming};
use tempfile::TempDir;

use super::*;
use crate::{
    Checkpoint, Source,
    synth::{SynthDType, SynthOptions, SynthRouter},
};

mod fused;

static GO_ON: AtomicBool = AtomicBool::new(false);

fn options() -> CompressOptions {
    CompressOptions {
        method: CompressionMethod::Lossless(Lossless::Huffman),
        tile: 256,
        tensors: Default::default(),
        all: false,
        threads: 2,
        replace: false,
    }
}

fn make(
    source: &Path,
    target: &Path,
    options: &CompressOptions,
) -> Result<CompressResult, CompressError> {
    let source = Source::Folder(source.to_owned());
    compress(&source, target, options, &GO_ON, &mut |_, _| {})
}

fn restore(container: &Path, target: &Path) -> Result<DecompressResult, CompressError> {
    let container = Container::open(container)?;
    decompress(&container, target, 2, &GO_ON, &mut |_, _| {})
}

/// Every file of a folder, by name.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let files = fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read(entry.path()).unwrap())
    });
    let mut files: Vec<_> = files.collect();
    files.sort();
    files
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// A model whose matrices are just large enough to be compressed.
fn synthetic(folder: &Path, element: SynthDType) -> PathBuf {
    let shape = Shape {
        naming: TensorNaming::Llada,
        layers: 11,
        hidden_size: 256,
        attention_heads: 4,
        kv_heads: 4,
        head_dim: 64,
        intermediate_size: 300,
        padded_vocab_size: 700,
        context_length: 64,
        causal: false,
        tied: false,
        biases: false,
        qk_norms: false,
        layer_kind: LayerKind::Attention,
    };
    let synthesis = SynthOptions {
        shape,
        dtype: element,
        seed: 3,
        family: None,
        router: SynthRouter::default(),
        threads: 2,
    };
    let target = folder.join("synthetic");
    synthesis.write(&target, &GO_ON, &mut |_, _| {}).unwrap();
    target
}

#[test]
fn every_model_here_comes_back_byte_by_byte() {
    let folder = TempDir::new().unwrap();
    let synthetic = synthetic(folder.path(), SynthDType::Bf16);
    for (index, source) in [
        repository("model"),
        repository("engine/tests/fixtures/llada-tiny"),
        repository("engine/tests/fixtures/llada-tiny-bf16"),
        repository("engine/tests/fixtures/llama-tiny"),
        repository("engine/tests/fixtures/llama-tiny-tied"),
        repository("engine/tests/fixtures/dream-tiny"),
        synthetic,
    ]
    .iter()
    .enumerate()
    {
        for (how, tile) in [
            (Lossless::Huffman, 256),
            (Lossless::Dictionary, 512),
            (Lossless::Plain, 128),
        ] {
            let container = folder.path().join(format!("{index}-{how:?}.sluice"));
            let back = folder.path().join(format!("{index}-{how:?}"));
            let options = CompressOptions {
                method: CompressionMethod::Lossless(how),
                tile,
                all: true,
                ..options()
            };
            let made = make(source, &container, &options).unwrap();
            assert_eq!(made.bytes, fs::metadata(&container).unwrap().len());
            let found = Container::open(&container).unwrap();
            assert_eq!(found.verify(&GO_ON, &mut |_| {}).unwrap(), []);
            let restored = restore(&container, &back).unwrap();
            assert_eq!(restored.original_bytes, made.original_bytes);

            let mut expected = contents(source);
            // The reference outputs beside a fixture are no part of the model.
            let left_out = |name: &str| made.skipped_files.iter().any(|left| left == name);
            expected.retain(|(name, _)| !left_out(name));
            assert!(contents(&back) == expected, "{source:?} by {how:?}");
        }
    }
}

#[test]
fn layers_are_extents_in_the_order_of_a_pass() {
    let folder = TempDir::new().unwrap();
    let source = synthetic(folder.path(), SynthDType::Bf16);
    let target = folder.path().join("a.sluice");
    let made = make(&source, &target, &options()).unwrap();
    assert!(made.bytes < made.original_bytes);

    let container = Container::open(&target).unwrap();
    let extents: Vec<&str> = container
        .header()
        .extents
        .iter()
        .map(|e| &e.name[..])
        .collect();
    let blocks = (0..11).map(|layer| format!("model.transformer.blocks.{layer}"));
    let mut expected = vec!["model.transformer.wte.weight".to_owned()];
    expected.extend(blocks);
    expected.push("model.transformer.ln_f.weight".to_owned());
    expected.push("model.transformer.ff_out.weight".to_owned());
    assert_eq!(extents, expected);
    for tensor in &container.header().tensors {
        let scheme = match &tensor.shape[..] {
            [_] => Scheme::Plain,
            _ if tensor.name.contains("wte") => Scheme::Plain,
            _ => Scheme::Huffman,
        };
        assert_eq!(tensor.scheme(), Some(scheme), "{}", tensor.name);
        assert_eq!(expected[tensor.extent], extent_name(&tensor.name));
    }
}

#[test]
fn what_is_to_be_kept_stays_plain() {
    let folder = TempDir::new().unwrap();
    let source = synthetic(folder.path(), SynthDType::F32);
    let target = folder.path().join("a.sluice");
    let options = CompressOptions {
        tensors: TensorFilter {
            keep: vec![Glob::new("*.blocks.3.*"), Glob::new("*blocks.?.q_proj*")],
            ..TensorFilter::default()
        },
        all: true,
        ..options()
    };
    make(&source, &target, &options).unwrap();

    let container = Container::open(&target).unwrap();
    let scheme = |name: &str| {
        let tensor = container.tensor(&format!("model.transformer.{name}.weight"));
        tensor.unwrap().scheme().unwrap()
    };
    assert_eq!(scheme("blocks.3.ff_out"), Scheme::Plain);
    assert_eq!(scheme("blocks.4.q_proj"), Scheme::Plain);
    assert_eq!(scheme("blocks.10.q_proj"), Scheme::Huffman);
    assert_eq!(scheme("blocks.4.ff_out"), Scheme::Huffman);
    assert_eq!(scheme("wte"), Scheme::Huffman);
}

#[test]
fn only_what_is_named_is_compressed_and_a_name_of_nothing_is_an_error() {
    let folder = TempDir::new().unwrap();
    let source = synthetic(folder.path(), SynthDType::F32);
    let target = folder.path().join("a.sluice");
    let only = |patterns: &[&str], min_bytes| CompressOptions {
        tensors: TensorFilter {
            only: patterns.iter().map(|one| Glob::new(one)).collect(),
            min_bytes,
            ..TensorFilter::default()
        },
        ..options()
    };
    let refused = make(&source, &target, &only(&["*.nothing.*", "lm_head"], 0)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "no tensor is named like '*.nothing.*' or 'lm_head'; there are \
         'model.transformer.blocks.0.q_proj.weight' and 'model.transformer.blocks.0.k_proj.weight'"
    );
    assert!(refused.hint().is_some_and(|hint| hint.contains("--only")));
    assert!(!target.exists() && !partial_of(&target).exists());

    make(&source, &target, &only(&["*.nothing.*", "*.ff_out.*"], 0)).unwrap();
    let container = Container::open(&target).unwrap();
    let compressed = |tensor: &&TensorRecord| tensor.scheme() != Some(Scheme::Plain);
    let tensors = &container.header().tensors;
    let names: Vec<_> = tensors.iter().filter(compressed).collect();
    assert!(!names.is_empty());
    assert!(names.iter().all(|tensor| tensor.name.contains("ff_out")));
    let back = folder.path().join("back");
    restore(&target, &back).unwrap();

    // Larger than any tensor: all of them stay as they are.
    let target = folder.path().join("b.sluice");
    make(&source, &target, &only(&[], 1 << 40)).unwrap();
    let container = Container::open(&target).unwrap();
    let tensors = &container.header().tensors;
    assert!(tensors.iter().all(|tensor| !compressed(&tensor)));
}

#[test]
fn an_interrupted_run_is_resumed_only_with_the_same_choice_of_tensors() {
    let folder = TempDir::new().unwrap();
    let source = Source::Folder(synthetic(folder.path(), SynthDType::Bf16));
    let target = folder.path().join("a.sluice");
    let with = |only: &[&str], min_bytes| CompressOptions {
        tensors: TensorFilter {
            only: only.iter().map(|one| Glob::new(one)).collect(),
            min_bytes,
            ..TensorFilter::default()
        },
        ..options()
    };
    let stop_early = |options: &CompressOptions| {
        let stop = AtomicBool::new(false);
        let mut seen = Vec::new();
        let result = compress(&source, &target, options, &stop, &mut |name, _| {
            if !seen.iter().any(|known| known == name) {
                seen.push(name.to_owned());
            }
            stop.store(seen.len() > 20, Ordering::Relaxed);
        });
        assert!(matches!(
            result,
            Err(CompressError::Cancelled | CompressError::Container(ContainerError::Cancelled))
        ));
    };
    let run = |options: &CompressOptions| {
        let made = compress(&source, &target, options, &GO_ON, &mut |_, _| {}).unwrap();
        fs::remove_file(&target).unwrap();
        made.resumed
    };
    for (first, then, is_resumed) in [
        (with(&["*ff*"], 0), with(&["*ff*"], 0), true),
        (with(&["*ff*"], 0), with(&["*q_proj*"], 0), false),
        (with(&["*ff*"], 0), with(&[], 0), false),
        (with(&[], 1 << 20), with(&[], 1 << 20), true),
        (with(&[], 1 << 20), with(&[], 1 << 21), false),
        (with(&[], 0), with(&[], 0), true),
    ] {
        stop_early(&first);
        assert_eq!(run(&then) > 0, is_resumed, "{first:?} then {then:?}");
    }
}

#[test]
fn noise_stays_plain() {
    let folder = TempDir::new().unwrap();
    let mut state = 1u64;
    let noise: Vec<u8> = (0..512 * 512 * 2)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    let header = br#"{"a.0.w":{"dtype":"BF16","shape":[512,512],"data_offsets":[0,524288]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header, &noise].concat();
    let source = folder.path().join("noise");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("model.safetensors"), &file).unwrap();
    let target = folder.path().join("a.sluice");
    make(&source, &target, &options()).unwrap();
    let container = Container::open(&target).unwrap();
    assert_eq!(container.header().tensors[0].scheme(), Some(Scheme::Plain));
    let back = folder.path().join("back");
    restore(&target, &back).unwrap();
    assert!(fs::read(back.join("model.safetensors")).unwrap() == file);
}

#[test]
fn tensors_of_any_kind_go_along() {
    let folder = TempDir::new().unwrap();
    let header = br#"{"__metadata__":{"format":"pt"},"b":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]},
        "e":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[3,5]},"i":{"dtype":"I64","shape":[],"data_offsets":[5,13]},
        "n":{"dtype":"F32","shape":[0,4],"data_offsets":[13,13]}}"#;
    let file = [
        &(header.len() as u64).to_le_bytes()[..],
        header,
        b"0123456789abc",
    ]
    .concat();
    let source = folder.path().join("odd");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("model.safetensors"), file).unwrap();
    fs::create_dir(source.join("more")).unwrap();
    fs::write(source.join(".hidden"), "x").unwrap();
    fs::write(source.join("pytorch_model.bin"), "x").unwrap();
    fs::write(source.join("LICENSE"), "yours").unwrap();
    let target = folder.path().join("a.sluice");
    let made = make(&source, &target, &options()).unwrap();
    assert_eq!(made.skipped_files, [".hidden", "more", "pytorch_model.bin"]);
    let back = folder.path().join("back");
    restore(&target, &back).unwrap();
    fs::remove_dir(source.join("more")).unwrap();
    let mut expected = contents(&source);
    expected.retain(|(name, _)| !made.skipped_files.contains(name));
    assert_eq!(contents(&back), expected);
}

#[test]
fn a_cancelled_run_goes_on_from_any_tensor() {
    let folder = TempDir::new().unwrap();
    let source = Source::Folder(synthetic(folder.path(), SynthDType::Bf16));
    let target = folder.path().join("a.sluice");
    let expected = folder.path().join("b.sluice");
    compress(&source, &expected, &options(), &GO_ON, &mut |_, _| {}).unwrap();
    let expected = fs::read(expected).unwrap();
    let mut runs = 0;
    let mut resumed = 0;
    let made = loop {
        // Each run gets a little further than the one before it.
        let cancel = AtomicBool::new(false);
        let seen = AtomicUsize::new(0);
        let result = compress(&source, &target, &options(), &cancel, &mut |_, _| {
            if seen.fetch_add(1, Ordering::Relaxed) == runs * 4 {
                cancel.store(true, Ordering::Relaxed);
            }
        });
        match result {
            Ok(made) => break made,
            Err(CompressError::Cancelled) => {}
            Err(other) => panic!("{other}"),
        }
        assert!(!target.exists());
        runs += 1;
        resumed += 1;
    };
    assert!(
        resumed > 5 && made.resumed > 50,
        "{resumed} {}",
        made.resumed
    );
    assert!(fs::read(&target).unwrap() == expected);
    assert!(!partial_of(&target).exists() && !journal_of(&target).exists());
}

#[test]
fn a_resumed_run_knows_no_error_of_all_numbers() {
    let folder = TempDir::new().unwrap();
    let source = Source::Folder(synthetic(folder.path(), SynthDType::Bf16));
    let target = folder.path().join("a.sluice");
    let options = CompressOptions {
        method: CompressionMethod::Trellis(TrellisTarget::Bits(4.)),
        ..options()
    };
    let cancel = AtomicBool::new(false);
    let result = compress(&source, &target, &options, &cancel, &mut |_, amount| {
        let is_half = amount.done_bytes > amount.total_bytes / 2;
        cancel.store(is_half, Ordering::Relaxed);
    });
    assert!(matches!(result, Err(CompressError::Cancelled)));
    let made = compress(&source, &target, &options, &GO_ON, &mut |_, _| {}).unwrap();
    assert!(made.resumed > 0);
    assert_eq!(made.error, None);
}

#[test]
fn a_run_into_the_source_itself_goes_on_too() {
    let folder = TempDir::new().unwrap();
    let folder = synthetic(folder.path(), SynthDType::Bf16);
    let before = contents(&folder);
    let source = Source::Folder(folder.clone());
    let target = folder.join("a.sluice");
    let cancel = AtomicBool::new(false);
    let seen = AtomicUsize::new(0);
    let result = compress(&source, &target, &options(), &cancel, &mut |_, _| {
        if seen.fetch_add(1, Ordering::Relaxed) == 20 {
            cancel.store(true, Ordering::Relaxed);
        }
    });
    assert!(matches!(result, Err(CompressError::Cancelled)));
    assert!(journal_of(&target).exists());

    let made = make(&folder, &target, &options()).unwrap();
    assert_eq!(made.resumed, 21);
    let back = folder.join("back");
    restore(&target, &back).unwrap();
    assert!(contents(&back) == before);
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = TempDir::new().unwrap();
    let source = repository("engine/tests/fixtures/llada-tiny");
    let target = folder.path().join("a.sluice");
    make(&source, &target, &options()).unwrap();
    let before = fs::read(&target).unwrap();

    let refused = |error: CompressError, words: &str| {
        assert!(error.to_string().contains(words), "{error}");
    };
    refused(make(&source, &target, &options()).unwrap_err(), "exists");
    refused(
        make(folder.path(), &folder.path().join("b"), &options()).unwrap_err(),
        "is already a .sluice file",
    );
    let nowhere = folder.path().join("no/where.sluice");
    refused(
        make(&source, &nowhere, &options()).unwrap_err(),
        "cannot write",
    );
    refused(
        restore(&source.join("config.json"), &nowhere).unwrap_err(),
        "is not a .sluice file",
    );
    refused(
        restore(&source, &nowhere).unwrap_err(),
        "is not a .sluice file",
    );
    refused(
        restore(&target, folder.path()).unwrap_err(),
        "exists and is not an empty folder",
    );
    assert!(fs::read(&target).unwrap() == before);

    let replaced = CompressOptions {
        tile: 128,
        replace: true,
        ..options()
    };
    make(&source, &target, &replaced).unwrap();
    assert_eq!(Container::open(&target).unwrap().header().tile, 128);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn no_part_of_the_source_is_replaced() {
    let folder = TempDir::new().unwrap();
    let source = synthetic(folder.path(), SynthDType::Bf16);
    let before = contents(&source);
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(source.join("config.json"), &link).unwrap();
    for (target, words) in [
        (source.join("model.safetensors"), "part of the checkpoint"),
        (
            source.join("../synthetic/config.json"),
            "part of the checkpoint",
        ),
        (link, "part of the checkpoint"),
        (source.clone(), "it is not a regular file"),
        ("/dev/null".into(), "it is not a regular file"),
    ] {
        let options = CompressOptions {
            replace: true,
            ..options()
        };
        let error = make(&source, &target, &options).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot replace") && error.contains(words),
            "{error}"
        );
        assert!(!partial_of(&target).exists());
    }
    assert!(contents(&source) == before);
}

#[test]
fn what_is_no_number_is_told_before_any_work() {
    let folder = TempDir::new().unwrap();
    let source = synthetic(folder.path(), SynthDType::F32);
    let path = source.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let entry = |name: &str| {
        let checkpoint = Checkpoint::open(&Source::Folder(source.clone())).unwrap();
        checkpoint.tensor(name).unwrap().offset as usize
    };
    // In the last layer.
    let name = "model.transformer.blocks.10.ff_out.weight";
    let at = entry(name) + 70_000 * 4;
    bytes[at..at + 4].copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
    fs::write(&path, &bytes).unwrap();

    let target = folder.path().join("a.sluice");
    let options = CompressOptions {
        method: CompressionMethod::Trellis(TrellisTarget::Bits(4.)),
        ..options()
    };
    let mut done_bytes = 0;
    let source = Source::Folder(source);
    let made = compress(&source, &target, &options, &GO_ON, &mut |_, done| {
        done_bytes = done.done_bytes;
    });
    let said = made.unwrap_err().to_string();
    assert!(
        said.contains(name) && said.contains("element 70000"),
        "{said}"
    );
    assert_eq!(done_bytes, 0);

    let options = CompressOptions {
        tensors: TensorFilter {
            keep: vec![Glob::new(name)],
            ..TensorFilter::default()
        },
        ..options
    };
    compress(&source, &target, &options, &GO_ON, &mut |_, _| {}).unwrap();
}

#[test]
fn damage_is_told_with_its_place_and_leaves_no_folder() {
    let folder = TempDir::new().unwrap();
    let source = synthetic(folder.path(), SynthDType::Bf16);
    let target = folder.path().join("a.sluice");
    make(&source, &target, &options()).unwrap();
    let bytes = fs::read(&target).unwrap();
    let header = Container::open(&target).unwrap().header().clone();
    for (name, words) in [
        ("blocks.7.ff_out", "tile"),
        ("wte", "tile"),
        ("ln_f", "tile"),
    ] {
        let name = format!("model.transformer.{name}.weight");
        let tensor = header
            .tensors
            .iter()
            .find(|tensor| tensor.name == name)
            .unwrap();
        for part in 0..8 {
            let mut damaged = bytes.clone();
            let at = tensor.offset + tensor.length * part / 8;
            damaged[at as usize] ^= 0x10;
            fs::write(&target, damaged).unwrap();
            let back = folder.path().join("back");
            let error = restore(&target, &back).unwrap_err().to_string();
            assert!(error.contains(&name) && error.contains(words), "{error}");
            assert!(!back.exists());
        }
    }
}

#[test]
fn a_rate_is_kept_to_and_the_head_loses_nothing() {
    let folder = TempDir::new().unwrap();
    let source = synthetic(folder.path(), SynthDType::Bf16);
    let mut sizes = Vec::new();
    for (bits, all) in [(3.0, false), (5.0, false), (5.0, true)] {
        let target = folder.path().join("a.sluice");
        let options = CompressOptions {
            method: CompressionMethod::Trellis(TrellisTarget::Bits(bits)),
            replace: true,
            all,
            ..options()
        };
        let made = make(&source, &target, &options).unwrap();
        let container = Container::open(&target).unwrap();
        assert_eq!(container.verify(&GO_ON, &mut |_| {}).unwrap(), []);
        for tensor in &container.header().tensors {
            if tensor.scheme() == Some(Scheme::Trellis) {
                let found = tensor.length as f64 * 8.0 / tensor.elements().unwrap() as f64;
                // Of large tensors, half a percent; of these, rows and tiles are few.
                assert!((found / bits - 1.0).abs() < 0.02, "{found}");
                assert!(all || tensor.name.contains("blocks"));
            }
        }
        let back = folder.path().join(format!("back-{bits}-{all}"));
        restore(&target, &back).unwrap();
        sizes.push((made.bytes, made.error.unwrap()));
    }
    let [few, more, all] = sizes[..] else {
        panic!("three runs");
    };
    assert!(few.0 < more.0 && all.0 < more.0);
    // A bit more is half the error.
    assert!((3.5..4.5).contains(&(few.1 / more.1)), "{sizes:?}");
}

#[test]
fn a_container_is_compared_once_and_again_when_it_changed() {
    let folder = TempDir::new().unwrap();
    let source = synthetic(folder.path(), SynthDType::Bf16);
    let path = folder.path().join("model.sluice");
    make(&source, &path, &options()).unwrap();
    let kept = folder.path().join("kept");
    let compare = || {
        let checkpoint = Checkpoint::open(&Source::Folder(path.clone())).unwrap();
        let mut read = 0;
        let whole = checkpoint.verify(Some(&kept), &GO_ON, &mut |done, _| read = done);
        whole.map(|whole| (whole, read > 0))
    };
    assert_eq!(compare().unwrap(), (true, true));
    assert_eq!(compare().unwrap(), (true, false), "it is remembered");

    // Somebody changes a bit and sets the time back.
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let container = Container::open(&path).unwrap();
    let tensor = &container.header().tensors[3];
    bytes[tensor.offset as usize + 40] ^= 1;
    fs::write(&path, bytes).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(before).unwrap();
    let error = compare().unwrap_err().to_string();
    assert!(
        error.contains(&format!("it is damaged: tensor {}", tensor.name)),
        "{error}"
    );

    let checkpoint = Checkpoint::open(&Source::Folder(path.clone())).unwrap();
    let cancelled = AtomicBool::new(true);
    let whole = checkpoint.verify(Some(&kept), &cancelled, &mut |_, _| {});
    assert!(!whole.unwrap());
    // A folder without a list of digests has nothing to compare.
    let checkpoint = Checkpoint::open(&Source::Folder(source)).unwrap();
    assert!(
        checkpoint
            .verify(Some(&kept), &cancelled, &mut |_, _| {})
            .unwrap()
    );
}

/// A model's file with these matrices, all quantized by columns, of which weight files list some.
fn quantized(target: &Path, config: &str, names: &[&str], listed: &[&str]) {
    let (rows, width) = (40, 20);
    let planned = |name: &&str| PlannedTensor {
        name: (*name).to_owned(),
        shape: vec![rows, width],
        dtype: "f16".to_owned(),
        extent: "all".to_owned(),
    };
    let zeros = vec![0; 2 * rows * width];
    let views = listed.iter().map(|name| {
        let view = TensorView::new(Dtype::F16, vec![rows, width], &zeros);
        (*name, view.unwrap())
    });
    let mut shard = safetensors::serialize(views, None).unwrap();
    shard.truncate(shard.len() - listed.len() * zeros.len());
    let plan = ContainerPlan {
        tile: 256,
        tensors: names.iter().map(planned).collect(),
        shards: vec![("model.safetensors".to_owned(), shard)],
        files: vec![("config.json".to_owned(), config.as_bytes().to_vec())],
        identity: String::new(),
    };
    let mut writer = ContainerWriter::begin(target, plan, &GO_ON, &mut |_| {}).unwrap();
    while writer.next().is_some() {
        let mut encoder = ColumnsEncoder::new(DType::F16, width, &vec![1.; rows], 0.1).unwrap();
        for column in 0..width {
            let values = vec![column as f32; rows];
            encoder.quantize_column(column, &values, 0.1, &mut vec![0.; rows]);
        }
        let chunk = encoder.finish().unwrap();
        writer.begin_tensor(Scheme::Columns).unwrap();
        writer.chunk(&chunk.layout, &chunk.bytes).unwrap();
        writer.end_tensor(Hash::of(&zeros)).unwrap();
    }
    writer.finish(false).unwrap();
}

#[test]
fn only_a_quantized_tied_lm_head_is_in_no_file() {
    let folder = TempDir::new().unwrap();
    let read = |name: &str| {
        let fixture = repository("engine/tests/fixtures").join(name);
        fs::read_to_string(fixture.join("config.json")).unwrap()
    };
    let (tied, untied) = (read("llama-tiny-tied"), read("llama-tiny"));
    let [embedding, other, head] = ["model.embed_tokens.weight", "other", "lm_head.weight"];
    let all = [embedding, other, head];
    let restored = |name: &str, config: &str, listed: &[&str]| {
        let target = folder.path().join(name);
        quantized(&target, config, &all, listed);
        let mut last = None;
        let container = Container::open(&target).unwrap();
        let back = target.with_extension("back");
        let result = decompress(&container, &back, 1, &GO_ON, &mut |_, done| {
            last = Some(done);
        });
        result.map(|made| (made, last.unwrap(), back))
    };
    let (made, last, back) = restored("a.sluice", &tied, &[embedding, other]).unwrap();
    let bytes = 2 * 2 * 40 * 20;
    assert_eq!((made.original_bytes, last.total_bytes), (bytes, bytes));
    assert_eq!(last.done_bytes, bytes);
    let file = fs::read(back.join("model.safetensors")).unwrap();
    let weights = &file[file.len() - bytes as usize..];
    let second = f16::from_le_bytes([weights[2], weights[3]]).to_f32();
    assert!((second - 1.0).abs() < 0.06, "{second}");
    for (name, config, listed, missing) in [
        ("b.sluice", &tied, &[embedding, head][..], other),
        ("c.sluice", &tied, &[embedding][..], other),
        ("d.sluice", &untied, &[embedding, other][..], head),
    ] {
        let error = restored(name, config, listed).unwrap_err().to_string();
        let words = format!("tensor {missing} is listed in no weight file");
        assert!(error.contains(&words), "{error}");
    }
}
