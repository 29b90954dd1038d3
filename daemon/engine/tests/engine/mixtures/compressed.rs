//! Mixtures in `.sluice` files, whatever tensors they were made of.

use std::sync::atomic::AtomicBool;

use sluice_checkpoint::{
    compression::{CompressionMethod, Lossless, Scheme, TrellisTarget},
    family::PublishedShape,
    synth::{SynthDType, SynthOptions, SynthRouter},
};
use sluice_engine::{
    Engine, EngineOptions, Generate, Outcome, PlanSettings, Work, event::GenerationResult,
};
use sluice_formats::DType;
use sluice_ops::device::DeviceChoice;
use sluice_plan::Plan;
use sluice_shared::{
    decoding::{Decoding, KvCacheReuse},
    level::Level,
    sampling::{EosPolicy, KvCacheMode},
};
use sluice_weights::{GemmaShape, LayerKind, Shape, Storage, WeightGroup};
use testkit::here;

use super::*;
use crate::{checkpoints::write_container, containers::least_bytes, loading::settings};

/// Changes how a model's tensors are stored.
type Fuse = fn(&mut Tensors);

#[test]
fn compressed_files_compute_what_the_reference_does() {
    let fused: [(&str, Fuse, usize); 4] = [
        ("qwen3-moe-tiny", fuse_gates_and_ups, 3),
        ("llada2-tiny", |_| {}, 16),
        ("llada2-tiny", fuse_each, 16),
        ("diffusion-gemma-tiny", |_| {}, 5),
    ];
    for (name, fuse, tokens) in fused {
        let folder = changed(name, |_| {}, fuse);
        let target = folder.path().join("whole.sluice");
        let method = CompressionMethod::Lossless(Lossless::Huffman);
        write_container(folder.path(), &target, method, 256);
        // A folder with the compressed file alone is that file.
        fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        check_logits_in(folder.path());
        check_tokens_in(folder.path(), tokens);
    }
}

/// A mixture of random weights whose matrices are just large enough to be compressed.
fn synthetic(folder: &Path, like: &str) {
    let like = PublishedShape::find(like).unwrap();
    let mut shape = Shape {
        layers: 3,
        hidden_size: 256,
        attention_heads: 4,
        kv_heads: 2,
        head_dim: 128,
        intermediate_size: 256,
        padded_vocab_size: 512,
        context_length: 512,
        ..like.shape().clone()
    };
    match &mut shape.layer_kind {
        LayerKind::Mixture(experts) | LayerKind::Gemma(GemmaShape { experts, .. }) => {
            (experts.count, experts.intermediate_size) = (EXPERTS, 256);
        }
        _ => unreachable!("it has experts"),
    }
    if let LayerKind::Mixture(experts) = &mut shape.layer_kind {
        experts.shared_intermediate_size = experts.shared_intermediate_size.min(256);
    }
    if let LayerKind::Gemma(gemma) = &mut shape.layer_kind {
        (gemma.full_step, gemma.full_head_dim) = (3, 256);
    }
    let synthesis = SynthOptions {
        shape,
        dtype: SynthDType::Bf16,
        seed: 3,
        family: Some(like.family()),
        router: SynthRouter::default(),
        threads: 2,
    };
    let never = AtomicBool::new(false);
    synthesis.write(folder, &never, &mut |_, _| {}).unwrap();
}

/// Tokens, and the plan that they were written under.
fn run(source: &Path, settings: PlanSettings) -> (GenerationResult, Plan) {
    run_on(DeviceChoice::Cpu, source, settings)
}

/// The same on another device, in `f32`.
fn run_on(device: DeviceChoice, source: &Path, settings: PlanSettings) -> (GenerationResult, Plan) {
    let engine = Engine::start(EngineOptions {
        device,
        compute_dtype: Some(DType::F32),
        threads: 2,
        ..EngineOptions::default()
    })
    .unwrap();
    let source = Source::Folder(source.to_owned());
    let model = engine.load_now(source, settings).unwrap();
    let blocks = model.info.mask.and_then(|mask| mask.blocks);
    let renoises = model.info.mask.is_some_and(|mask| mask.is_random());
    let length = blocks.map_or(16, |blocks| blocks.length);
    let policy = match renoises {
        true => "renoise:steps=4",
        false => "reference",
    };
    let request = Generate {
        policy: policy.parse().unwrap(),
        block_length: length,
        causal_attention_before: blocks.is_some_and(|blocks| blocks.causal_attention_before),
        eos: EosPolicy::Suppress,
        decoding: Decoding {
            kv_cache: KvCacheReuse {
                mode: blocks.map_or(KvCacheMode::None, |_| KvCacheMode::Blocks),
                ..KvCacheReuse::default()
            },
            ..Decoding::default()
        },
        ..Generate::greedy(model.id, vec![5, 6, 7], length)
    };
    let Outcome::Generated(generated) = engine.run(Work::Generate(request)).unwrap() else {
        unreachable!("nobody cancels")
    };
    let plan = Plan::clone(&engine.in_force().expect("a model is loaded").plan);
    assert!(generated.peak_device_bytes <= plan.budget_bytes);
    (generated, plan)
}

/// Whether the experts are compressed so, and the routers are not quantized.
fn are_compressed(plan: &Plan, scheme: Scheme) -> bool {
    let schemes = |is_meant: fn(WeightGroup) -> bool| {
        let groups = plan
            .groups
            .iter()
            .filter(move |group| is_meant(group.group));
        let tensors = groups.flat_map(|group| &group.tensors);
        tensors.map(|tensor| match tensor.storage {
            Storage::Compressed(coding) => Some(coding.scheme),
            _ => None,
        })
    };
    let is_router = |group| matches!(group, WeightGroup::Router(_));
    assert!(schemes(is_router).all(|scheme| scheme.is_none_or(Scheme::is_lossless)));
    schemes(WeightGroup::is_expert).all(|found| found == Some(scheme))
}

/// Loads a mixture at all levels from files that it is compressed to, resident and with experts that are streamed.
fn check_levels(like: &str, fuse: Fuse) {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    synthetic(&model, like);
    change(&model, fuse);
    let (expected, _) = run(&model, settings(Level::Standard, None));
    let (mild, _) = run(&model, settings(Level::Mild, None));
    assert_eq!(mild.tokens, expected.tokens, "{like}");
    let path = folder.path().join("whole.sluice");
    for (coder, scheme) in [
        (Lossless::Huffman, Scheme::Huffman),
        (Lossless::Dictionary, Scheme::Dictionary),
    ] {
        write_container(&model, &path, CompressionMethod::Lossless(coder), 256);
        for level in [Level::Off, Level::Standard, Level::Mild] {
            let (generated, plan) = run(&path, settings(level, None));
            assert_eq!(
                generated.tokens, expected.tokens,
                "{like}: {coder:?} at {level}"
            );
            assert!(generated.is_lossless);
            assert_eq!(are_compressed(&plan, scheme), level == Level::Mild);
            if level == Level::Off {
                continue;
            }
            let least = least_bytes(&path, level);
            let (generated, plan) = run(&path, settings(level, Some(least + (1 << 20))));
            assert!(plan.staging.expert_buffers > 0);
            assert_eq!(
                generated.tokens, expected.tokens,
                "{like}: {coder:?} streamed at {level}"
            );
            assert_eq!(are_compressed(&plan, scheme), level == Level::Mild);
        }
        let coarse = |source: &Path| run(source, settings(Level::Aggressive, None)).0.tokens;
        assert_eq!(coarse(&path), coarse(&model), "{like}");
    }
    let bits = TrellisTarget::Bits(5.0);
    write_container(&model, &path, CompressionMethod::Trellis(bits), 256);
    let (whole, plan) = run(&path, settings(Level::Mild, None));
    assert!(are_compressed(&plan, Scheme::Trellis) && !whole.is_lossless);
    let least = least_bytes(&path, Level::Mild);
    let (streamed, plan) = run(&path, settings(Level::Mild, Some(least + (1 << 20))));
    assert!(plan.staging.expert_buffers > 0 && are_compressed(&plan, Scheme::Trellis));
    assert_eq!(streamed.tokens, whole.tokens, "{like}");
}

#[test]
#[ignore = "seconds of both cores: cargo ci"]
fn mixtures_are_the_same_at_all_lossless_levels() {
    check_levels("llada2-mini", fuse_each);
    check_levels("qwen3-30b-a3b", fuse_gates_and_ups);
    check_levels("diffusion-gemma-26b-a4b", |_| {});
}

/// The head is summed by what a canvas is told, from whatever it is stored as.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn canvases_are_told_on_a_gpu_what_they_are_on_the_cpu() {
    here::open_stand_in();
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    synthetic(&model, "diffusion-gemma-26b-a4b");
    let (expected, _) = run(&model, settings(Level::Standard, None));
    let path = folder.path().join("whole.sluice");
    let method = CompressionMethod::Lossless(Lossless::Huffman);
    write_container(&model, &path, method, 256);
    for (source, level) in [(&model, Level::Standard), (&path, Level::Mild)] {
        let (found, _) = run_on(DeviceChoice::Cuda(0), source, settings(level, None));
        // Where two tokens are nearly equal, either may be written.
        let pairs = found.tokens.iter().zip(&expected.tokens);
        let differing = pairs.filter(|(found, expected)| found != expected).count();
        assert_eq!(found.tokens.len(), expected.tokens.len());
        assert!(
            differing <= expected.tokens.len() / 50,
            "{level}: {differing}"
        );
    }
    for level in [Level::Moderate, Level::Aggressive] {
        let (found, plan) = run_on(DeviceChoice::Cuda(0), &model, settings(level, None));
        assert!(plan.staging.decompress_bytes > 0 && !found.is_lossless);
    }
}
