//! What is written loads, repeats by its seed, and leaves nothing behind when it fails.

use sluice_formats::Format;
use sluice_weights::{ExpertShape, LayerKind, TensorNaming};
use tempfile::TempDir;

use super::*;
use crate::{
    Checkpoint, Source,
    family::{ModelConfig, PublishedShape},
};

fn tiny() -> SynthOptions {
    SynthOptions {
        shape: Shape {
            naming: TensorNaming::Llada,
            layers: 2,
            hidden_size: 64,
            attention_heads: 4,
            kv_heads: 2,
            head_dim: 16,
            intermediate_size: 160,
            padded_vocab_size: 256,
            context_length: 128,
            causal: false,
            tied: false,
            biases: false,
            qk_norms: false,
            layer_kind: LayerKind::Attention,
        },
        dtype: SynthDType::Bf16,
        seed: 7,
        family: None,
        router: SynthRouter::default(),
        threads: 2,
    }
}

fn write(synthesis: &SynthOptions, target: &Path) -> Result<(), SynthError> {
    synthesis.write(target, &AtomicBool::new(false), &mut |_, _| {})
}

fn written(synthesis: &SynthOptions) -> (TempDir, Checkpoint) {
    let folder = TempDir::new().unwrap();
    let target = folder.path().join("model");
    write(synthesis, &target).unwrap();
    let checkpoint = Checkpoint::open(&Source::Folder(target)).unwrap();
    (folder, checkpoint)
}

fn elements(checkpoint: &Checkpoint, format: Format, name: &str) -> Vec<f32> {
    let entry = checkpoint.tensor(name).unwrap();
    assert_eq!(entry.format, Ok(format));
    let count = entry.shape.iter().product();
    let mut bytes = vec![0u64; format.bytes(count).div_ceil(8)];
    let bytes = &mut bytemuck::cast_slice_mut(&mut bytes)[..format.bytes(count)];
    checkpoint
        .read_part(entry, 0..bytes.len() as u64, bytes)
        .unwrap();
    let mut values = vec![0.0; count];
    format.dequantize(bytes, &mut values);
    values
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

const LM_HEAD: &str = "model.transformer.ff_out.weight";

#[test]
fn weights_are_normal_and_norms_are_one() {
    let mut synthesis = tiny();
    // More than one block of the embedding.
    synthesis.shape.padded_vocab_size = 20_000;
    let (_folder, checkpoint) = written(&synthesis);
    let norm = elements(&checkpoint, Format::Bf16, "model.transformer.ln_f.weight");
    assert!(norm.iter().all(|&value| value == 1.0));
    let values = elements(&checkpoint, Format::Bf16, LM_HEAD);
    let count = values.len() as f64;
    let moment = |power: i32| {
        let sum: f64 = values
            .iter()
            .map(|&value| f64::from(value).powi(power))
            .sum();
        sum / count / 0.02f64.powi(power)
    };
    // Five standard errors of 1.28 million draws.
    assert!(moment(1).abs() < 0.005, "{}", moment(1));
    assert!((moment(2) - 1.0).abs() < 0.007, "{}", moment(2));
    assert!((moment(4) - 3.0).abs() < 0.06, "{}", moment(4));
    let largest = values
        .iter()
        .fold(0.0f32, |most, value| most.max(value.abs()));
    assert!(largest < 0.1, "{largest}");
}

#[test]
fn neither_threads_nor_the_element_change_the_numbers() {
    let mut synthesis = tiny();
    synthesis.shape.padded_vocab_size = 30_000;
    let (_one, two_threads) = written(&synthesis);
    synthesis.threads = 1;
    let (_two, one_thread) = written(&synthesis);
    let numbers_of = |checkpoint| elements(checkpoint, Format::Bf16, LM_HEAD);
    let values = numbers_of(&two_threads);
    assert!(values == numbers_of(&one_thread));

    synthesis.dtype = SynthDType::F32;
    let (_three, wide) = written(&synthesis);
    let wide = elements(&wide, Format::F32, LM_HEAD);
    let rounded: Vec<f32> = wide
        .iter()
        .map(|&value| half::bf16::from_f32(value).to_f32())
        .collect();
    assert!(values == rounded);
    synthesis.dtype = SynthDType::F16;
    let (_four, half) = written(&synthesis);
    let half = elements(&half, Format::F16, LM_HEAD);
    let rounded: Vec<f32> = wide
        .iter()
        .map(|&value| half::f16::from_f32(value).to_f32())
        .collect();
    assert!(half == rounded);

    synthesis.dtype = SynthDType::Bf16;
    synthesis.seed = 8;
    let (_five, other) = written(&synthesis);
    assert!(values != numbers_of(&other));
    // Nor do two blocks or two tensors hold the same.
    let block = layout::BLOCK_ELEMENTS;
    assert!(values[..block] != values[block..2 * block]);
    let embedding = elements(&two_threads, Format::Bf16, "model.transformer.wte.weight");
    assert!(values != embedding);
}

#[test]
fn shards_stay_within_their_size_and_cover_every_byte() {
    for preset in &crate::family::PUBLISHED_SHAPES {
        let layout = ShardLayout::new(preset.shape(), SynthDType::Bf16, SynthRouter::default());
        let mut weights = 0;
        for shard in 0..layout.shards() {
            let header = layout.header(shard);
            assert_eq!(header.len() % 4096, 0);
            let mut end = header.len() as u64;
            for job in layout.jobs(shard) {
                assert_eq!(job.offset, end);
                end += job.count as u64 * 2;
            }
            weights += end - header.len() as u64;
            assert!(
                end <= 4 << 30,
                "{} {}",
                preset.name,
                layout.file_name(shard)
            );
        }
        assert_eq!(weights, preset.shape().parameters() * 2, "{}", preset.name);
    }
    let large = ShardLayout::new(
        PublishedShape::find("llada-8b").unwrap().shape(),
        SynthDType::Bf16,
        SynthRouter::default(),
    );
    assert_eq!(large.file_name(3), "model-00004-of-00004.safetensors");
    let files = large.index().unwrap();
    assert_eq!(files["metadata"]["total_size"], 16_031_162_368u64);
    assert_eq!(
        files["weight_map"][LM_HEAD],
        "model-00004-of-00004.safetensors"
    );
}

#[test]
fn other_families_have_their_tensors_and_biases() {
    for (causal, biases, qk_norms, tied, family) in [
        (true, false, false, true, "llama"),
        (true, true, false, true, "qwen2"),
        (true, false, true, true, "qwen3"),
        (false, true, false, false, "Dream"),
        (false, false, true, false, "sdar"),
    ] {
        let mut synthesis = tiny();
        synthesis.shape = Shape {
            naming: TensorNaming::HuggingFace,
            causal,
            biases,
            qk_norms,
            tied,
            ..synthesis.shape
        };
        let (_folder, checkpoint) = written(&synthesis);
        let config = ModelConfig::read(&checkpoint.config().unwrap(), None).unwrap();
        assert_eq!(
            (config.family.name(), &config.shape),
            (family, &synthesis.shape)
        );
        checkpoint.sources(config.shape.tensors()).unwrap();
    }
    let mut synthesis = tiny();
    synthesis.shape.naming = TensorNaming::HuggingFace;
    synthesis.shape.biases = true;
    let (_folder, checkpoint) = written(&synthesis);
    let name = "model.layers.1.self_attn.v_proj.bias";
    assert_eq!(checkpoint.tensor(name).unwrap().shape, [32]);
    assert!(
        elements(&checkpoint, Format::Bf16, name)
            .iter()
            .all(|&value| value != 1.0)
    );
}

/// Every published shape is written with a configuration of its own family.
#[test]
fn published_shapes_are_read_as_what_they_are() {
    for preset in &crate::family::PUBLISHED_SHAPES {
        check(Some(preset.family()), preset.shape()).unwrap_or_else(|error| {
            panic!("{}: {error}", preset.name);
        });
    }
}

/// A mixture of 512 wide rows and 64 experts.
fn mixture(router: SynthRouter) -> SynthOptions {
    let like = PublishedShape::find("llada2-mini").unwrap();
    let LayerKind::Mixture(experts) = like.shape().layer_kind else {
        unreachable!("it has experts");
    };
    SynthOptions {
        family: Some(like.family()),
        shape: Shape {
            layers: 2,
            hidden_size: 512,
            padded_vocab_size: 256,
            intermediate_size: 64,
            attention_heads: 4,
            layer_kind: LayerKind::Mixture(ExpertShape {
                count: 64,
                intermediate_size: 16,
                shared_intermediate_size: 16,
                ..experts
            }),
            ..like.shape().clone()
        },
        router,
        ..tiny()
    }
}

#[test]
fn a_router_prefers_experts_by_what_all_tokens_have_in_common() {
    // How far experts are preferred by the mean token.
    let spread = |skew: f32| {
        let (_folder, checkpoint) = written(&mixture(SynthRouter {
            skew,
            ..SynthRouter::default()
        }));
        checkpoint
            .sources(checkpoint.model().unwrap().shape.tensors())
            .unwrap();
        let tokens = elements(&checkpoint, Format::Bf16, "model.word_embeddings.weight");
        let router = elements(&checkpoint, Format::Bf16, "model.layers.1.mlp.gate.weight");
        let mut mean = vec![0.0; 512];
        for token in tokens.chunks_exact(512) {
            let sums = mean.iter_mut().zip(token);
            sums.for_each(|(sum, element)| *sum += element / 256.0);
        }
        let logit = |row: &[f32]| row.iter().zip(&mean).map(|(a, b)| a * b).sum::<f32>();
        let squares = router.chunks_exact(512).map(|row| logit(row).powi(2));
        (squares.sum::<f32>() / 64.0).sqrt()
    };
    let [even, usual, double] = [0.0, 1.0, 2.0].map(spread);
    assert!(usual > 3.0 * even, "{even} {usual}");
    assert!((1.7..2.3).contains(&(double / usual)), "{usual} {double}");
}

#[test]
fn an_rwkv_7_begins_as_its_training_does() {
    let mut synthesis = tiny();
    synthesis.shape = Shape {
        layers: 2,
        padded_vocab_size: 256,
        ..PublishedShape::find("rwkv7-0.1b").unwrap().shape().clone()
    };
    let (_folder, checkpoint) = written(&synthesis);
    assert_eq!(checkpoint.model().unwrap().shape, synthesis.shape);
    checkpoint.sources(synthesis.shape.tensors()).unwrap();
    let of = |name: &str| elements(&checkpoint, Format::Bf16, &format!("model.layers.1.{name}"));
    assert!(of("attn.g_norm.weight").iter().all(|&value| value == 1.0));
    assert!(of("ffn_norm.bias").iter().all(|&value| value == 0.0));
    let mix = of("attn.x_k");
    assert!(mix.is_sorted_by(|a, b| a >= b) && mix[0] == 1.0 && mix[767] < 0.1);
    let decay = of("attn.w_lora.lora.2.bias");
    assert!(decay[0] < -7.0 && decay[767] > 2.0);
    let matrix = of("attn.w_lora.lora.0.weight");
    assert!(matrix.iter().any(|&value| value > 0.05));
}

#[test]
fn what_exists_is_not_overwritten() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("notes");
    fs::write(&file, "mine").unwrap();
    for target in [folder.path(), &file] {
        let error = write(&tiny(), target).unwrap_err();
        assert!(matches!(error, SynthError::TargetExists { .. }), "{error}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    let error = write(&tiny(), &folder.path().join("no/such/place")).unwrap_err();
    assert!(error.to_string().contains("No such file"), "{error}");
    let error = write(&tiny(), Path::new("/proc/model")).unwrap_err();
    assert!(matches!(error, SynthError::Io { .. }), "{error}");
    let error = write(&tiny(), Path::new("/")).unwrap_err();
    assert!(matches!(error, SynthError::TargetExists { .. }), "{error}");
}

#[test]
fn an_empty_folder_is_filled() {
    let folder = TempDir::new().unwrap();
    let target = folder.path().join("model");
    fs::create_dir(&target).unwrap();
    let mut told = Vec::new();
    tiny()
        .write(&target, &AtomicBool::new(false), &mut |done, total| {
            told.push((done, total));
        })
        .unwrap();
    let total = tiny().weight_bytes();
    assert_eq!(told.first(), Some(&(0, total)));
    assert_eq!(told.last(), Some(&(total, total)));
    assert!(told.is_sorted());
    let mut names: Vec<_> = fs::read_dir(&target)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_cancelled_or_failed_one_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    let target = folder.path().join("model");
    let cancel = AtomicBool::new(false);
    // In the middle: after the first blocks.
    let result = tiny().write(&target, &cancel, &mut |done, _| {
        cancel.store(done > 0, Ordering::Relaxed);
    });
    assert!(matches!(result, Err(SynthError::Cancelled)));
    assert!(is_empty(folder.path()));

    // Somebody else was faster: their file stays, ours goes.
    let result = tiny().write(&target, &AtomicBool::new(false), &mut |done, total| {
        if done == total {
            fs::write(&target, "theirs").unwrap();
        }
    });
    assert!(matches!(result, Err(SynthError::Io { .. })));
    assert_eq!(fs::read(&target).unwrap(), b"theirs");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_full_disk_is_said_with_figures() {
    let error = SynthError::Write {
        path: "/m/model.safetensors".into(),
        done_bytes: 5,
        total_bytes: 9,
        cause: io::Error::from_raw_os_error(28),
    };
    let text = error.to_string();
    assert!(
        text.starts_with("cannot write /m/model.safetensors after 5 of 9 bytes: No space left")
    );
}

#[test]
fn what_could_not_be_loaded_is_not_written() {
    type Spoil = fn(&mut Shape);
    let spoiled: [(Spoil, &str); 6] = [
        (
            |shape| shape.attention_heads = 7,
            "n_heads is 7, which does not divide the hidden size 64",
        ),
        (
            |shape| shape.kv_heads = 3,
            "n_kv_heads is 3, which does not divide the 4 attention heads",
        ),
        (|shape| shape.layers = 0, "n_layers is 0"),
        (
            |shape| shape.hidden_size = usize::MAX,
            "d_model is 18446744073709551615",
        ),
        (
            |shape| shape.head_dim = 32,
            "n_heads gives heads of 16, not 32",
        ),
        (
            |shape| shape.biases = true,
            "include_qkv_bias is true; only false is supported",
        ),
    ];
    for (spoil, words) in spoiled {
        let folder = TempDir::new().unwrap();
        let mut synthesis = tiny();
        spoil(&mut synthesis.shape);
        let error = write(&synthesis, &folder.path().join("model"))
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{error}");
        assert!(is_empty(folder.path()));
    }
}

/// Families that share a shape, or have names of their own for tensors.
#[test]
fn a_published_shape_is_of_its_family() {
    for name in ["rnd1-base", "sdar-30b-a3b", "nemotron-ld-8b"] {
        let preset = PublishedShape::find(name).unwrap();
        let mut shape = Shape {
            layers: 2,
            hidden_size: 64,
            attention_heads: 4,
            kv_heads: 2,
            head_dim: 16,
            intermediate_size: 32,
            padded_vocab_size: 256,
            context_length: 128,
            ..preset.shape().clone()
        };
        if let LayerKind::Mixture(experts) = &mut shape.layer_kind {
            (experts.count, experts.intermediate_size) = (16, 32);
        }
        let synthesis = SynthOptions {
            family: Some(preset.family()),
            shape,
            ..tiny()
        };
        let folder = TempDir::new().unwrap();
        let target = folder.path().join("model");
        let never = AtomicBool::new(false);
        let written = synthesis.write(&target, &never, &mut |_, _| {});
        written.unwrap();
        let checkpoint = Checkpoint::open(&Source::Folder(target)).unwrap();
        let model = checkpoint.model().unwrap();
        assert_eq!(
            (model.family, &model.shape),
            (preset.family(), &synthesis.shape)
        );
        checkpoint.model_sources(&model.shape).unwrap();
    }
}
