//! Models from containers of compressed weights on a GPU: decompressed there for the matmul, they compute what they do
//! uncompressed. Against the stand-in, which runs the GPU's kernels on the CPU.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use sluice_checkpoint::{
    Checkpoint, CheckpointError, Source,
    compression::{CompressionMethod, Lossless, Scheme, TrellisTarget},
    quantize::MatrixQuantizer,
    weight_cache::{MixMatrix, MixRecord, Mixes},
};
use sluice_engine::{
    Engine, EngineError, EngineOptions, Generate, MeasureFidelity, Outcome, PlanSettings, Work,
    event::GenerationResult,
};
use sluice_formats::DType;
use sluice_ops::device::DeviceChoice;
use sluice_plan::{Plan, PlanError};
use sluice_shared::{level::Level, mix::MixId, sampling::EosPolicy};
use sluice_weights::{Shape, Storage, TensorPart, TensorSpec};
use testkit::here;

use crate::{
    loading::settings,
    small::{
        self, compressed,
        loaded::{engine, least_bytes},
    },
};

/// A few tokens, and the plan that they were written under.
fn run(engine: &Engine, source: &Path, settings: PlanSettings) -> (GenerationResult, Plan) {
    let source = Source::Folder(source.to_owned());
    let model = engine.load_now(source, settings).unwrap();
    let request = Generate {
        block_length: 4,
        steps: 4,
        eos: EosPolicy::Suppress,
        ..Generate::greedy(model.id, vec![1, 2, 3], 8)
    };
    let Outcome::Generated(generated) = engine.run(Work::Generate(request)).unwrap() else {
        unreachable!("nobody cancels")
    };
    let plan = Plan::clone(&engine.in_force().expect("a model is loaded").plan);
    assert!(generated.peak_device_bytes <= plan.budget_bytes);
    assert!(generated.peak_device_bytes <= plan.peak_bytes());
    (generated, plan)
}

fn is_compressed(plan: &Plan, scheme: Scheme) -> bool {
    let mut tensors = plan.groups.iter().flat_map(|group| &group.tensors);
    tensors.any(
        |tensor| matches!(tensor.storage, Storage::Compressed(coding) if coding.scheme == scheme),
    )
}

/// What a container computes where it lies on the GPU, and on its way there.
fn check(engine: &Engine, path: &Path, scheme: Scheme, expected: &GenerationResult) {
    let resident = run(engine, path, settings(Level::Mild, None));
    let least = least_bytes(engine, path);
    let streamed = run(engine, path, settings(Level::Standard, Some(least)));
    assert!(streamed.1.streamed_bytes() > 0 && streamed.1.pinned_bytes > 0);
    for (generated, plan) in [resident, streamed] {
        assert!(is_compressed(&plan, scheme));
        // Dictionary codes are multiplied as they are by few rows; the canvas has more.
        assert!(plan.staging.decompress_bytes > 0, "{scheme:?}");
        assert_eq!(generated.tokens, expected.tokens, "{scheme:?}");
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn compressed_weights_compute_what_they_are_decoded_to() {
    here::open_stand_in();
    let folder = tempfile::tempdir().unwrap();
    let plain = small::write(folder.path(), 4);
    let (gpu, cpu) = (engine(DeviceChoice::Cuda(0)), engine(DeviceChoice::Cpu));
    let (expected, _) = run(&gpu, &plain, settings(Level::Standard, None));
    for (coder, scheme) in [
        (Lossless::Huffman, Scheme::Huffman),
        (Lossless::Dictionary, Scheme::Dictionary),
    ] {
        let path = compressed::write_compressed(folder.path(), CompressionMethod::Lossless(coder));
        check(&gpu, &path, scheme, &expected);
    }
    // What coding to a rate loses is the same wherever it is decoded.
    let path = compressed::write_compressed(
        folder.path(),
        CompressionMethod::Trellis(TrellisTarget::Bits(4.5)),
    );
    let (expected, _) = run(&cpu, &path, settings(Level::Standard, None));
    check(&gpu, &path, Scheme::Trellis, &expected);
    let path = compressed::write_columns(folder.path());
    let (expected, _) = run(&cpu, &path, settings(Level::Standard, None));
    check(&gpu, &path, Scheme::Columns, &expected);
}

/// A mix is quantized column by column, and is stored on a GPU as on the CPU.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn mixes_compute_on_a_gpu_what_they_do_on_the_cpu() {
    here::open_stand_in();
    let folder = tempfile::tempdir().unwrap();
    let model = small::write(folder.path(), 4);
    let copies = folder.path().join("copies");
    write_mix(&model, &copies);
    let of = |device| {
        let engine = Engine::start(EngineOptions {
            device,
            compute_dtype: Some(DType::F32),
            threads: 1,
            weight_cache: Some(copies.clone()),
            ..EngineOptions::default()
        });
        let engine = engine.unwrap();
        let all = run(&engine, &model, settings(Level::Optimized, None));
        (engine, all)
    };
    let (cpu, (expected, on_cpu)) = of(DeviceChoice::Cpu);
    let (gpu, (found, on_gpu)) = of(DeviceChoice::Cuda(0));
    assert_eq!(on_gpu.level, Level::Optimized);
    assert!(is_compressed(&on_gpu, Scheme::Columns) && on_gpu.staging.decompress_bytes > 0);
    let stored = |plan: &Plan| -> Vec<Storage> {
        let tensors = plan.groups.iter().flat_map(|group| &group.tensors);
        tensors.map(|tensor| tensor.storage).collect()
    };
    assert_eq!(stored(&on_gpu), stored(&on_cpu));
    assert_eq!(found.tokens, expected.tokens);
    // The mix's LM head is decompressed beside the checkpoint's own, which needs no memory for that.
    let [on_gpu, on_cpu] = [&gpu, &cpu].map(divergence);
    assert!(
        on_cpu > 0.0 && (on_gpu / on_cpu - 1.0).abs() < 0.01,
        "{on_gpu} {on_cpu}"
    );
    // Streamed, it crosses the bus as it is.
    let least = match gpu.load_now(
        Source::Folder(model.clone()),
        settings(Level::Optimized, Some(1)),
    ) {
        Err(EngineError::Plan(PlanError::BudgetTooSmall { least_bytes, .. })) => least_bytes,
        other => panic!("{:?}", other.err()),
    };
    let (found, streamed) = run(&gpu, &model, settings(Level::Optimized, Some(least)));
    assert!(streamed.streamed_bytes() > 0 && is_compressed(&streamed, Scheme::Columns));
    assert_eq!(found.tokens, expected.tokens);
}

/// The mix's divergence from the checkpoint, in nats.
fn divergence(engine: &Engine) -> f64 {
    let request = MeasureFidelity {
        model: engine.model().expect("one is loaded").id,
        level: Some(Level::Optimized),
        samples: vec![(1..40).collect()],
        seed: 1,
    };
    match engine.run(Work::MeasureFidelity(request)).unwrap() {
        Outcome::Fidelity(found) => found.mean_kl,
        other => panic!("{other:?}"),
    }
}

/// Writes a mix of all matrices of the layers and of the LM head, four bits a weight, into the folder of converted weights.
fn write_mix(model: &Path, copies: &Path) {
    let checkpoint = Arc::new(Checkpoint::open(&Source::Folder(model.to_owned())).unwrap());
    let never = AtomicBool::new(false);
    let specs: Vec<TensorSpec> = small::shape(4)
        .tensors()
        .into_iter()
        .filter(|spec| spec.shape.len() == 2 && spec.part != TensorPart::Embedding)
        .collect();
    let matrices: Vec<MixMatrix> = specs
        .iter()
        .map(|spec| MixMatrix {
            name: spec.name.clone(),
            size: spec.size(),
            scheme: Scheme::Columns,
        })
        .collect();
    assert_eq!(matrices.len(), 4 * 7 + 1);
    let mut quantizer = MatrixQuantizer::new(&checkpoint, None, &never);
    let mixes = Mixes::new(copies, &checkpoint).unwrap();
    let all = (&matrices[..], &MixRecord::default());
    let written = mixes.write(MixId::of_hash(1), all, &never, &mut |index, writer| {
        let quantized = quantizer.quantize(&specs[index], 4.0, &mut |chunk| writer.chunk(chunk));
        match quantized {
            Ok(quantized) => Ok::<_, CheckpointError>(quantized.original_hash),
            Err(error) => panic!("{error}"),
        }
    });
    assert!(written.unwrap().is_some());
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_longer_turn_of_rows_computes_what_shorter_ones_do() {
    here::open_stand_in();
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape {
        context_length: 640,
        ..small::shape(2)
    };
    let plain = small::write_shape(folder.path(), shape);
    let container = compressed::write_compressed(
        folder.path(),
        CompressionMethod::Lossless(Lossless::Huffman),
    );
    let gpu = engine(DeviceChoice::Cuda(0));
    let long = |path: &Path, budget| {
        let source = Source::Folder(path.to_owned());
        let model = gpu.load_now(source, settings(Level::Standard, budget));
        let request = Generate {
            steps: 1,
            eos: EosPolicy::Suppress,
            ..Generate::greedy(model.unwrap().id, (1..=520).collect(), 4)
        };
        let Outcome::Generated(generated) = gpu.run(Work::Generate(request)).unwrap() else {
            unreachable!("nobody cancels")
        };
        let plan = Plan::clone(&gpu.in_force().expect("a model is loaded").plan);
        assert!(generated.peak_device_bytes <= plan.budget_bytes);
        (generated.tokens, plan)
    };
    let (expected, plan) = long(&plain, None);
    assert_eq!(plan.working.mlp_rows, 512);
    let (tokens, plan) = long(&container, None);
    assert_eq!((&tokens, plan.working.mlp_rows), (&expected, 2048));
    // As much is streamed as can be, and decoded on its way.
    let (tokens, plan) = long(&container, Some(least_bytes(&gpu, &container)));
    assert!(plan.streamed_bytes() > 0 && plan.staging.decompress_bytes > 0);
    assert_eq!(plan.working.mlp_rows, 2048);
    assert_eq!(tokens, expected);
}
