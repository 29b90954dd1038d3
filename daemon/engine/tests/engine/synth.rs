//! A checkpoint of random weights is a checkpoint like any other: the engine loads it and
//! computes with it.

use std::sync::atomic::AtomicBool;

use sluice_checkpoint::{
    Source,
    synth::{SynthDType, SynthOptions, SynthRouter},
};
use sluice_engine::{Engine, EngineOptions, Generate, ModelId, Outcome, PlanSettings, Work};
use sluice_shared::{level::Level, sampling::EosPolicy};
use sluice_weights::{
    LayerKind, RECURRENT_CONTEXT_LENGTH, RWKV7_HEAD_DIM, Rwkv7Ranks, Shape, TensorNaming,
};

/// With heads that share keys, a MLP whose width is odd, and more than one block of elements.
fn shape() -> Shape {
    Shape {
        naming: TensorNaming::Llada,
        layers: 3,
        hidden_size: 96,
        attention_heads: 6,
        kv_heads: 2,
        head_dim: 16,
        intermediate_size: 211,
        padded_vocab_size: 6_000,
        context_length: 64,
        causal: false,
        tied: false,
        biases: false,
        qk_norms: false,
        layer_kind: LayerKind::Attention,
    }
}

#[test]
fn a_synthetic_checkpoint_loads_and_generates() {
    for element in SynthDType::ALL {
        check(&shape(), element);
    }
}

#[test]
fn so_does_one_of_every_other_family() {
    for (causal, tied, biases) in [
        (true, false, false),
        (true, true, false),
        (true, true, true),
        (false, false, true),
    ] {
        let other = Shape {
            naming: TensorNaming::HuggingFace,
            // Of its own, as some have it.
            head_dim: 20,
            causal,
            tied,
            biases,
            ..shape()
        };
        check(&other, SynthDType::Bf16);
    }
}

#[test]
fn so_does_one_with_a_state() {
    let ranks = Rwkv7Ranks {
        decay: 32,
        learning_rate: 16,
        value: 8,
        gate: 64,
    };
    let shape = Shape {
        naming: TensorNaming::HuggingFace,
        hidden_size: 128,
        attention_heads: 2,
        kv_heads: 2,
        head_dim: RWKV7_HEAD_DIM,
        intermediate_size: 512,
        context_length: RECURRENT_CONTEXT_LENGTH,
        causal: true,
        layer_kind: LayerKind::Rwkv7(ranks),
        ..shape()
    };
    check(&shape, SynthDType::Bf16);
}

/// Written, then loaded as it is and in eight bits, with a converted copy on disk.
fn check(shape: &Shape, element: SynthDType) {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start(EngineOptions {
        threads: 2,
        queue_max: 1,
        weight_cache: Some(folder.path().join("copies")),
        keep_converted: true,
        ..EngineOptions::default()
    })
    .unwrap();
    let target = folder.path().join("model");
    let synthesis = SynthOptions {
        shape: shape.clone(),
        dtype: element,
        seed: 3,
        family: None,
        router: SynthRouter::default(),
        threads: 2,
    };
    let never = AtomicBool::new(false);
    synthesis.write(&target, &never, &mut |_, _| {}).unwrap();
    for level in [Level::Standard, Level::Moderate, Level::Moderate] {
        let settings = PlanSettings {
            level,
            ..PlanSettings::default()
        };
        let source = Source::Folder(target.clone());
        let loaded = engine.load_now(source, settings).unwrap();
        assert_eq!(loaded.info.parameters, shape.parameters());
        if level == Level::Standard {
            assert_eq!(loaded.info.formats.len(), 1);
            assert_eq!(loaded.info.formats[0].format.name(), element.name());
        }
        generate(&engine, loaded.id, shape);
    }
}

fn generate(engine: &Engine, model: ModelId, shape: &Shape) {
    let request = Generate {
        block_length: 8,
        steps: 8,
        eos: EosPolicy::Suppress,
        ..Generate::greedy(model, vec![1, 2, 3], 16)
    };
    // Logits that are NaN would be an error here.
    let Outcome::Generated(generated) = engine.run(Work::Generate(request)).unwrap() else {
        unreachable!("nobody cancels")
    };
    assert_eq!(generated.tokens.len(), 16);
    assert_eq!(generated.passes, if shape.causal { 16 } else { 8 });
    // Masked rows are alike but for what attention brings them. What a head that is the embedding finds most like
    // anything is the token itself.
    let tokens = generated.tokens;
    let differ = tokens.iter().any(|&token| token != tokens[0]);
    assert!(differ || shape.tied, "{tokens:?}");
}
