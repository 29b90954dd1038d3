//! Tensors are used as they are stored: a model from blocks computes what one from the numbers that they stand for does.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use sluice_checkpoint::{
    Checkpoint, Source,
    family::PublishedShape,
    synth::{SynthDType, SynthOptions, SynthRouter},
};
use sluice_formats::Format;
use sluice_ops::{Ops, device::Device, ledger::Ledger};
use sluice_shared::level::Level;
use sluice_weights::{ExpertShape, LayerKind, Shape, TensorNaming};

use super::{
    convert::{Dialect, converted_folder},
    run::Loaded,
};

/// Between the same sums in another order.
const TOLERANCE: f32 = 1e-4;
/// The same, as a share of the largest logit, where rows are rounded to 8 bits before they are multiplied.
const ROUNDED: f32 = 0.03;

fn rounds_rows(format: Format) -> bool {
    let ops = Ops::new(Device::cpu(1).unwrap(), Ledger::default()).unwrap();
    ops.rounds_rows(format)
}

fn write(folder: &Path, shape: Shape) {
    let synthesis = SynthOptions {
        shape,
        dtype: SynthDType::F32,
        seed: 5,
        family: None,
        router: SynthRouter::default(),
        threads: 2,
    };
    let never = AtomicBool::new(false);
    synthesis.write(folder, &never, &mut |_, _| {}).unwrap();
}

/// A checkpoint whose rows all blocks divide.
fn synthetic(folder: &Path) {
    let shape = Shape {
        naming: TensorNaming::Llada,
        layers: 2,
        hidden_size: 256,
        attention_heads: 4,
        kv_heads: 2,
        head_dim: 64,
        intermediate_size: 512,
        padded_vocab_size: 300,
        context_length: 256,
        causal: false,
        tied: false,
        biases: false,
        qk_norms: false,
        layer_kind: LayerKind::Attention,
    };
    write(folder, shape);
}

#[test]
fn every_format_is_computed_with_as_the_numbers_it_stands_for() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    synthetic(&source);
    let tokens: Vec<u32> = (0..24).map(|place| place * 7 % 299).collect();
    let mut plain = Vec::new();
    for format in Format::ALL {
        let logits = |dialect, stored| {
            let path = folder.path().join("model.gguf");
            let file = converted_folder(&source, dialect, [format, stored]);
            fs::write(&path, file.bytes()).unwrap();
            let checkpoint = Checkpoint::open(&Source::Folder(path.clone())).unwrap();
            let query = "model.transformer.blocks.1.q_proj.weight";
            assert_eq!(checkpoint.check(query, &[256, 256]).unwrap(), stored);
            Loaded::new(&path, 1.0).logits(&tokens)
        };
        // Heads whose halves are stored in turn, in blocks, beside heads in order, in plain floats.
        let found = logits(Dialect::LlamaCpp, format);
        let expected = logits(Dialect::DiffuseCpp, Format::F32);
        let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        let worst = worst.fold(0.0, f32::max);
        let largest = expected.iter().copied().fold(0.0, f32::max);
        let rounds = rounds_rows(format);
        let tolerance = if rounds { ROUNDED * largest } else { TOLERANCE };
        assert!(worst <= tolerance, "{}: {worst}", format.name());
        let rounding = match format {
            Format::F32 => {
                plain = expected.clone();
                continue;
            }
            _ => expected.iter().zip(&plain).map(|(a, b)| (a - b).abs()),
        };
        // Otherwise nothing was rounded, and nothing compared.
        assert!(
            rounds || rounding.fold(0.0, f32::max) > 2.0 * worst,
            "{}",
            format.name()
        );
    }
}

/// A mixture whose rows all blocks divide.
fn synthetic_mixture(folder: &Path) {
    let like = PublishedShape::find("qwen3-30b-a3b").unwrap().shape();
    let shape = Shape {
        layers: 2,
        hidden_size: 256,
        attention_heads: 4,
        kv_heads: 2,
        head_dim: 64,
        intermediate_size: 256,
        padded_vocab_size: 300,
        context_length: 256,
        layer_kind: LayerKind::Mixture(ExpertShape {
            count: 6,
            per_token: 2,
            intermediate_size: 256,
            shared_intermediate_size: 0,
            has_choice_bias: false,
            dense_layers: 0,
            layer_step: 1,
        }),
        ..like.clone()
    };
    write(folder, shape);
}

#[test]
fn an_expert_is_a_part_of_a_tensor_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    synthetic_mixture(&source);
    for format in Format::ALL {
        let path = folder.path().join("model.gguf");
        let mut file = converted_folder(&source, Dialect::LlamaCpp, [format; 2]);
        fs::write(&path, file.bytes()).unwrap();
        let checkpoint = Checkpoint::open(&Source::Folder(path)).unwrap();
        for matrix in ["gate", "up", "down"] {
            let all = &file
                .tensor(&format!("blk.1.ffn_{matrix}_exps.weight"))
                .bytes;
            let expected = all.chunks_exact(all.len() / 6);
            for (expert, expected) in expected.enumerate() {
                let name = format!("model.layers.1.mlp.experts.{expert}.{matrix}_proj.weight");
                assert_eq!(checkpoint.check(&name, &[256, 256]).unwrap(), format);
                let entry = checkpoint.tensor(&name).unwrap();
                let mut found = vec![0; expected.len()];
                let whole = 0..found.len() as u64;
                checkpoint.read_part(entry, whole, &mut found).unwrap();
                assert!(found == expected, "{name} in {}", format.name());
            }
        }
    }
}

#[test]
fn what_a_level_converts_is_converted_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    synthetic(&source);
    let tokens: Vec<u32> = (0..24).map(|place| place * 5 % 299).collect();
    let logits = |dialect| {
        let path = folder.path().join("model.gguf");
        let file = converted_folder(&source, dialect, [Format::Bf16; 2]);
        fs::write(&path, file.bytes()).unwrap();
        Loaded::at_level(&path, 1.0, Level::Moderate).logits(&tokens)
    };
    // Rows are quantized one by one: the same elements come out, wherever a row lay.
    assert_eq!(logits(Dialect::LlamaCpp), logits(Dialect::DiffuseCpp));
}
