//! Models from containers of compressed weights on a GPU: decompressed there for the matmul, they compute what they do
//! uncompressed. Against the stand-in, which runs the GPU's kernels on the CPU.

use std::path::Path;

use sluice_checkpoint::{
    Source,
    compression::{CompressionMethod, Lossless, Scheme, TrellisTarget},
};
use sluice_engine::{Engine, Generate, Outcome, PlanSettings, Work, event::GenerationResult};
use sluice_ops::device::DeviceChoice;
use sluice_plan::Plan;
use sluice_shared::{level::Level, sampling::EosPolicy};
use sluice_weights::{Shape, Storage};
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
        // Dictionary-compressed weights are multiplied as they are, by so few rows.
        assert_eq!(
            plan.staging.decompress_bytes > 0,
            scheme != Scheme::Dictionary
        );
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
