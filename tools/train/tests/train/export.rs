//! What training exports, read by the engine.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use candle_core::Device;
use half::bf16;
use safetensors::{Dtype, SafeTensors};
use sluice_checkpoint::{Checkpoint, Source, family};
use sluice_engine::{
    model::network::{Network, Sequence, VisibleKeys, logits},
    residency::{LoadOutcome, Residency, WeightReader},
};
use sluice_formats::Format;
use sluice_ops::{KvCacheShape, Ops, device, ledger::Ledger};
use sluice_plan::{Machine, Plan, PlanInput, WorkingMemory, Workload};
use sluice_shared::level::Level;
use sluice_train::{
    batch::{Batch, Part},
    config::TransformerConfig,
    export,
    model::Model,
    objective::Objective,
    quantization::Rounding,
    trainer::Trainer,
};
use sluice_weights::{Shape, TensorPart, TensorSpec};

use crate::runs::{micro, options, steps, vocabulary};

/// The weights as an export stores them.
fn rounded(model: &Model) -> Model {
    let weights = model
        .variables()
        .iter()
        .map(|(name, variable)| {
            let values = variable
                .flatten_all()
                .and_then(|flat| flat.to_vec1::<f32>());
            let round = |value: f32| bf16::from_f32(value).to_f32();
            let values = values.expect("numbers").into_iter().map(round).collect();
            (name.clone(), values)
        })
        .collect();
    Model::from_weights(model.config.clone(), weights, &Device::Cpu).expect("model")
}

/// A network after a few steps, and rows of a later one.
fn trained(folder: &Path, objective: Objective, shape: TransformerConfig) -> (Model, Part) {
    let mut options = options(folder);
    options.batch.objective = objective;
    let batch = options.batch;
    let config = TransformerConfig {
        causal: objective == Objective::Autoregressive,
        ..shape
    };
    let mut trainer = Trainer::open(options, vocabulary(), config, &Device::Cpu).expect("open");
    steps(&mut trainer, 10);
    let batch = Batch::draw(&batch, &vocabulary(), 20).expect("draw");
    let part = batch.parts.into_iter().next().expect("a part");
    (trainer.state.model, part)
}

/// The trainer's logits of all rows.
fn expected(model: &Model, part: &Part) -> Vec<f32> {
    let all: Vec<u32> = (0..part.ids.len() as u32).collect();
    model
        .logits(&part.ids, &part.pack, &all)
        .and_then(|logits| Ok(logits.flatten_all()?.to_vec1::<f32>()?))
        .expect("logits")
}

/// The engine's logits of all rows, from the exported folder.
fn found(folder: &Path, part: &Part) -> Vec<f32> {
    let checkpoint = Checkpoint::open(&Source::Folder(folder.to_owned())).expect("open");
    let config =
        family::ModelConfig::read(&checkpoint.config().expect("config"), None).expect("config");
    let shape = config.shape.clone();
    let device = device::Device::cpu(2).expect("device");
    let ops = Ops::new(device, Ledger::default()).expect("ops");
    let model = Network::new(config, &ops).expect("model");
    let weights = weights(checkpoint, &shape, Level::Off, &ops);
    let cache_shape = KvCacheShape::of(&shape, Format::F32);
    let mut all = Vec::new();
    for rows in part.pack.sequences() {
        let wanted: Vec<usize> = (0..rows.len()).collect();
        let mut cache = shape
            .causal
            .then(|| ops.kv_cache(cache_shape, rows.len()).expect("cache"));
        let sequence = Sequence {
            tokens: &part.ids[rows],
            positions: &wanted,
            wanted: &wanted,
            sees: match &mut cache {
                Some(cache) => VisibleKeys::Before { cache },
                None => VisibleKeys::Each { checks: 0 },
            },
        };
        let hidden = model
            .forward(&ops, &weights, &mut [sequence], &AtomicBool::new(false))
            .expect("forward");
        let hidden = model.final_norm(&ops, &weights, &hidden).expect("norm");
        all.extend(logits(&ops, &weights, &hidden).expect("logits"));
    }
    all
}

#[test]
fn the_engine_computes_the_same_logits() {
    for objective in [Objective::Diffusion, Objective::Autoregressive] {
        let folder = tempfile::tempdir().expect("folder");
        let (model, part) = trained(folder.path(), objective, micro());
        let output = folder.path().join("model");

        export::export(&output, &model, &vocabulary(), None).expect("export");

        let found = found(&output, &part);
        let expected = expected(&rounded(&model), &part);
        assert_eq!(found.len(), expected.len());
        let pairs = found.iter().zip(&expected);
        let largest = pairs
            .map(|(ours, theirs)| (ours - theirs).abs())
            .fold(0.0, f32::max);
        assert!(largest < 5e-4, "{objective:?}: {largest}");
    }
}

/// The weights of a tensor as the engine computes with them.
fn deployed(weights: &Residency, spec: &TensorSpec) -> Vec<f32> {
    let mut all = vec![0.0; spec.shape.iter().product()];
    if spec.part == TensorPart::Embedding {
        for (id, row) in (0..).zip(all.chunks_exact_mut(spec.shape[1])) {
            weights.embedding_row(id, row).expect("row");
        }
        return all;
    }
    let groups: Vec<_> = match spec.part {
        TensorPart::LmHead => weights.lm_head_parts().map(|(group, _)| group).collect(),
        part => vec![part.group(spec.layer)],
    };
    let mut rest = all.as_mut_slice();
    for group in groups {
        let guard = weights.acquire(group).expect("acquire");
        let weight = guard.weight(spec.part);
        let (values, behind) = rest.split_at_mut(weight.rows * weight.width);
        weight.dequantize(values);
        rest = behind;
    }
    assert!(rest.is_empty(), "{} is cut short", spec.name);
    all
}

#[test]
fn training_for_a_level_rounds_to_the_very_weights_of_the_engine() {
    // As wide as a block of 256 weights, or aggressive would take another format.
    let shape = TransformerConfig {
        d_model: 256,
        n_layers: 2,
        mlp_hidden_size: 256,
        ..micro()
    };
    for objective in [Objective::Diffusion, Objective::Autoregressive] {
        let folder = tempfile::tempdir().expect("folder");
        let (model, _) = trained(folder.path(), objective, shape.clone());
        let output = folder.path().join("model");
        export::export(&output, &model, &vocabulary(), None).expect("export");
        for level in [Level::Moderate, Level::Aggressive] {
            let rounding = Rounding::new(level, &model.config).expect("rounding");

            let rounded = rounding.apply(&model, 2).expect("round");

            let ops = Ops::new(device::Device::cpu(2).expect("device"), Ledger::default());
            let checkpoint = Checkpoint::open(&Source::Folder(output.clone())).expect("open");
            let shape = checkpoint.model().expect("configuration").shape;
            let weights = weights(checkpoint, &shape, level, &ops.expect("ops"));
            for (spec, (_, variable)) in shape.tensors().iter().zip(rounded.variables()) {
                let flat = variable.flatten_all().expect("flat");
                let ours = flat.to_vec1::<f32>().expect("numbers");
                assert!(
                    ours == deployed(&weights, spec),
                    "{level} stores {} otherwise",
                    spec.name
                );
            }
        }
    }
}

/// All weights of a checkpoint at a level.
fn weights(checkpoint: Checkpoint, shape: &Shape, level: Level, ops: &Ops) -> Residency {
    let sources = checkpoint.sources(shape.tensors()).expect("tensors");
    let plan = Plan::new(&PlanInput {
        shape,
        sources: &sources,
        choices: level.into(),
        budget_bytes: u64::MAX,
        workload: Workload::default(),
        working: WorkingMemory::default(),
        machine: &Machine::unmeasured(ops.device().profile(), 0),
    })
    .expect("plan");
    let reader = Arc::new(WeightReader::new(Arc::new(checkpoint), &sources));
    let never = AtomicBool::new(false);
    let (device, ledger) = (ops.device(), ops.ledger());
    match Residency::load(&plan, reader, device, ledger, &never, &mut |_| {}).expect("load") {
        LoadOutcome::Done(weights) => weights,
        LoadOutcome::Cancelled => unreachable!("nobody cancels"),
    }
}

#[test]
fn the_export_is_a_whole_llada_folder() {
    let folder = tempfile::tempdir().expect("folder");
    let vocabulary = vocabulary();
    let model = Model::random(micro(), 5, vocabulary.mask_id, &Device::Cpu).expect("model");
    let output = folder.path().join("model");

    export::export(&output, &model, &vocabulary, None).expect("export");

    let file = std::fs::read(output.join("model.safetensors")).expect("weights");
    let tensors = SafeTensors::deserialize(&file).expect("read weights");
    let found: BTreeMap<String, Vec<usize>> = tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, view.shape().to_vec()))
        .collect();
    assert_eq!(found, micro().tensors().into_iter().collect());
    assert!(
        tensors
            .tensors()
            .iter()
            .all(|(_, view)| view.dtype() == Dtype::BF16)
    );
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(output.join("config.json")).expect("config"))
            .expect("json");
    assert_eq!(config["model_type"], "llada");
    assert_eq!(config["mask_token_id"], vocabulary.mask_id);
    assert_eq!(config["mlp_hidden_size"], 96);
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ] {
        assert!(output.join(name).exists(), "{name} is missing");
    }
}

#[test]
fn a_causal_network_is_exported_as_a_whole_llama_folder() {
    let folder = tempfile::tempdir().expect("folder");
    let vocabulary = vocabulary();
    let config = TransformerConfig {
        causal: true,
        ..micro()
    };
    let model = Model::random(config.clone(), 5, vocabulary.mask_id, &Device::Cpu).expect("model");

    export::export(folder.path(), &model, &vocabulary, None).expect("export");

    let checkpoint = Checkpoint::open(&Source::Folder(folder.path().to_owned())).expect("open");
    let found = checkpoint.model().expect("configuration");
    assert_eq!(found.family, family::Family::Llama);
    assert_eq!(found.shape, config.shape());
    assert_eq!(found.eos_token_ids, vocabulary.eos_ids());
    let file = std::fs::read(folder.path().join("model.safetensors")).expect("weights");
    let tensors = SafeTensors::deserialize(&file).expect("read weights");
    let names: BTreeSet<_> = tensors.names().into_iter().collect();
    for name in [
        "model.embed_tokens.weight",
        "model.layers.2.self_attn.q_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "lm_head.weight",
    ] {
        assert!(names.contains(name), "{name} is missing");
    }
    // Trained on, it is what it was.
    assert_eq!(
        export::read_config(folder.path()).expect("shape"),
        config.clone().into()
    );
    let again =
        export::read(folder.path(), &config.into(), &vocabulary, &Device::Cpu).expect("read");
    let weights = |model: &Model| export::weights(model).expect("weights");
    assert_eq!(weights(&again), weights(&model));
}
