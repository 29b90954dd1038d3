//! Models from containers of coded weights on a card: decoded there where they are multiplied, they compute what they do
//! uncoded. Against the stand-in, which runs the card's kernels on the CPU.

#[path = "../../cuda/tests/stand_in/mod.rs"]
mod stand_in;

#[path = "../../cuda/tests/here/mod.rs"]
mod here;

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use sluice_engine::{
    Engine, EngineError, Generate, Options, Outcome, Settings, Work,
    checkpoint::{
        Source,
        coded::{Compression, How, Lossless, Scheme, Target, compress},
    },
    device::{Choice, Number},
    event::Generated,
    plan::{Plan, PlanError, Storage},
};
use sluice_shared::{level::Level, sampling::EosPolicy};

fn demonstration() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model")
}

/// A container of the demonstration model.
fn write(target: &Path, how: How) {
    let options = Compression {
        how,
        tile: 512,
        keep: Vec::new(),
        all: false,
        threads: 2,
        replace: true,
    };
    let never = AtomicBool::new(false);
    let source = Source::Folder(demonstration());
    compress(&source, target, &options, &never, &mut |_, _| {}).unwrap();
}

fn engine(device: Choice) -> Engine {
    let options = Options {
        device,
        number: Some(Number::F32),
        threads: 2,
        ..Options::default()
    };
    Engine::start(options).unwrap()
}

fn settings(level: Level, budget_bytes: Option<u64>) -> Settings {
    Settings {
        level,
        budget_bytes,
        ..Settings::default()
    }
}

/// A few words, and the plan that they were written under.
fn run(engine: &Engine, source: &Path, settings: Settings) -> (Generated, Plan) {
    let source = Source::Folder(source.to_owned());
    let model = engine.load_now(source, settings).unwrap();
    let text = model.text.as_ref().expect("the tokenizer is inside");
    let prompt = text.encode_chat(&[("user", "Tell me a story.")]).unwrap();
    let request = Generate {
        block_length: 4,
        steps: 4,
        eos: EosPolicy::Suppress,
        ..Generate::greedy(model.id, prompt, 8)
    };
    let Outcome::Generated(generated) = engine.run(Work::Generate(request)).unwrap() else {
        unreachable!("nobody cancels")
    };
    let plan = Plan::clone(&engine.in_force().expect("a model is loaded").plan);
    assert!(generated.peak_device_bytes <= plan.budget_bytes);
    assert!(generated.peak_device_bytes <= plan.peak_bytes());
    (generated, plan)
}

/// The least budget that a model can be loaded with.
fn least_bytes(engine: &Engine, source: &Path, level: Level) -> u64 {
    let source = Source::Folder(source.to_owned());
    match engine.load_now(source, settings(level, Some(1))) {
        Err(EngineError::Plan(PlanError::BudgetTooSmall { least_bytes, .. })) => least_bytes,
        other => panic!("{:?}", other.err()),
    }
}

fn is_coded(plan: &Plan, scheme: Scheme) -> bool {
    let mut tensors = plan.units.iter().flat_map(|unit| &unit.tensors);
    tensors
        .any(|tensor| matches!(tensor.storage, Storage::Coded(coding) if coding.scheme == scheme))
}

fn check(name: &str, how: How, scheme: Scheme, expected: &Generated) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    write(&path, how);
    let engine = engine(Choice::Cuda(0));
    // Coded where it lies, and coded on its way to the card.
    let resident = run(&engine, &path, settings(Level::Mild, None));
    let least = least_bytes(&engine, &path, Level::Standard);
    let streamed = run(&engine, &path, settings(Level::Standard, Some(least)));
    assert!(streamed.1.streamed_bytes() > 0 && streamed.1.pinned_bytes > 0);
    for (generated, plan) in [resident, streamed] {
        assert!(is_coded(&plan, scheme));
        // Of a palette for the usual canvas alone: these few rows are multiplied with it as it is.
        assert!(plan.slots.decoded_bytes > 0);
        assert_eq!(generated.tokens, expected.tokens, "{name}");
    }
}

#[test]
fn what_was_coded_without_loss_computes_what_it_was() {
    if !here::open_stand_in() {
        return;
    }
    let plain = engine(Choice::Cuda(0));
    let (expected, _) = run(&plain, &demonstration(), settings(Level::Standard, None));
    drop(plain);
    for (name, coder, scheme) in [
        ("huffman.sluice", Lossless::Huffman, Scheme::Huffman),
        ("palette.sluice", Lossless::Palette, Scheme::Palette),
    ] {
        check(name, How::Lossless(coder), scheme, &expected);
    }
}

#[test]
fn what_was_coded_to_a_rate_computes_what_the_cpu_does() {
    if !here::open_stand_in() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rate.sluice");
    let how = || How::Rate(Target::Bits(4.5));
    write(&path, how());
    let (expected, _) = run(&engine(Choice::Cpu), &path, settings(Level::Standard, None));
    check("rate.sluice", how(), Scheme::Rate, &expected);
}
