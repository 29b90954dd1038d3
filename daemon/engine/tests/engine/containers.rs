//! Models from containers of compressed weights: what was compressed without loss computes what the checkpoint
//! computes, whether it is decompressed when it is loaded, as it is streamed, or within the matmul.

use std::{fs, path::Path};

use sluice_checkpoint::{
    Source,
    compression::{CompressionMethod, Container, Lossless, Scheme, TensorRecord},
};
use sluice_engine::{
    Budget, Engine, EngineOptions, Generate, Outcome, PlanOptions, PlanSettings, Work,
    error::EngineError, event::GenerationResult,
};
use sluice_plan::Plan;
use sluice_shared::level::{EmbeddingPlacement, Level};
use sluice_weights::Storage;

use crate::{
    checkpoints::{demonstration, write_container},
    loading::settings,
};

/// Writes a container of the demonstration model.
fn write(target: &Path, how: CompressionMethod, tile: usize) {
    write_container(&demonstration(), target, how, tile);
}

fn engine() -> Engine {
    Engine::start(EngineOptions {
        threads: 2,
        ..EngineOptions::default()
    })
    .unwrap()
}

/// A text, and the plan that it was written under.
pub(crate) fn run(
    source: &Path,
    settings: PlanSettings,
) -> Result<(GenerationResult, Plan), EngineError> {
    let engine = engine();
    let model = engine.load_now(Source::Folder(source.to_owned()), settings)?;
    let text = model.tokenizer.as_ref().expect("the tokenizer is inside");
    let prompt = text.encode_chat(&[("user", "Tell me a story about Mia and a kite.")]);
    let request = Generate {
        block_length: 16,
        ..Generate::greedy(model.id, prompt.unwrap(), 48)
    };
    let Outcome::Generated(generated) = engine.run(Work::Generate(request))? else {
        unreachable!("nobody cancels")
    };
    let plan = Plan::clone(&engine.in_force().expect("a model is loaded").plan);
    assert!(generated.peak_device_bytes <= plan.budget_bytes);
    Ok((generated, plan))
}

/// The least bytes that a model of this file can have at a level.
pub(crate) fn least_bytes(source: &Path, level: Level) -> u64 {
    let engine = engine();
    let source = Source::Folder(source.to_owned());
    engine
        .load_now(source, settings(Level::Standard, None))
        .unwrap();
    let workload = engine.in_force().unwrap().plan.workload;
    let change = PlanOptions {
        level: Some(level),
        budget: Some(Budget::Bytes(1)),
        embedding: Some(EmbeddingPlacement::Host),
        ..PlanOptions::default()
    };
    match engine.plan(&change, workload).unwrap_err() {
        EngineError::Plan(sluice_plan::PlanError::BudgetTooSmall { least_bytes, .. }) => {
            least_bytes
        }
        error => panic!("{error}"),
    }
}

fn is_compressed(plan: &Plan, scheme: Scheme) -> bool {
    let mut tensors = plan.groups.iter().flat_map(|group| &group.tensors);
    tensors.any(
        |tensor| matches!(tensor.storage, Storage::Compressed(coding) if coding.scheme == scheme),
    )
}

#[test]
#[ignore = "seconds of both cores: cargo ci"]
fn what_is_compressed_without_loss_computes_what_the_checkpoint_does() {
    let (expected, _) = run(&demonstration(), settings(Level::Standard, None)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (name, coder, scheme) in [
        ("huffman.sluice", Lossless::Huffman, Scheme::Huffman),
        ("palette.sluice", Lossless::Dictionary, Scheme::Dictionary),
    ] {
        let path = folder.path().join(name);
        write(&path, CompressionMethod::Lossless(coder), 256);
        for level in [Level::Off, Level::Standard, Level::Mild] {
            let (generated, plan) = run(&path, settings(level, None)).unwrap();
            assert_eq!(generated.tokens, expected.tokens, "{name} at {level}");
            assert!(generated.is_lossless);
            assert_eq!(is_compressed(&plan, scheme), level == Level::Mild);
            if level == Level::Off {
                continue;
            }
            // Streamed, decoded by the reader or by the multiply.
            let least = least_bytes(&path, level);
            let (generated, plan) = run(&path, settings(level, Some(least))).unwrap();
            assert!(plan.streamed_bytes() > 0);
            assert_eq!(
                generated.tokens, expected.tokens,
                "{name} streamed at {level}"
            );
        }
        // Compressed, all of it takes less than decompressed.
        let bytes = |level| {
            run(&path, settings(level, None))
                .unwrap()
                .1
                .resident_bytes()
        };
        assert!(bytes(Level::Mild) < bytes(Level::Standard));
        // And levels with fewer bits are made from it as from the checkpoint.
        let coarse = |source: &Path| run(source, settings(Level::Aggressive, None)).unwrap().0;
        assert_eq!(coarse(&path).tokens, coarse(&demonstration()).tokens);
    }
}

#[test]
fn rate_compressed_weights_are_multiplied_from_where_they_lie() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rate.sluice");
    write(
        &path,
        CompressionMethod::Trellis(sluice_codec::TrellisTarget::Bits(6.0)),
        128,
    );
    let (all, plan) = run(&path, settings(Level::Standard, None)).unwrap();
    assert!(is_compressed(&plan, Scheme::Trellis));
    assert!(!all.is_lossless);
    let least = least_bytes(&path, Level::Standard);
    let (streamed, plan) = run(&path, settings(Level::Standard, Some(least))).unwrap();
    assert!(plan.streamed_bytes() > 0);
    assert_eq!(streamed.tokens, all.tokens);
    // Eight bits would not be fewer, and four save a fifth.
    let plan_at = |level| run(&path, settings(level, None)).unwrap().1;
    assert!(is_compressed(&plan_at(Level::Moderate), Scheme::Trellis));
    assert!(!is_compressed(&plan_at(Level::Aggressive), Scheme::Trellis));
}

#[test]
fn damage_is_named_with_its_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.sluice");
    write(&path, CompressionMethod::Lossless(Lossless::Huffman), 256);
    let whole = fs::read(&path).unwrap();
    let container = Container::open(&path).unwrap();
    let is_compressed = |record: &&TensorRecord| record.scheme() == Some(Scheme::Huffman);
    let record = container
        .header()
        .tensors
        .iter()
        .find(is_compressed)
        .unwrap();
    let chunk = container.chunks(record).next().unwrap();
    // Longer tiles than there are codes.
    let lengths = chunk.layout.lengths();
    let start = chunk.offset as usize + lengths.start;
    let mut damaged = whole.clone();
    damaged[start..start + lengths.len()].fill(254);
    fs::write(&path, &damaged).unwrap();
    for level in [Level::Standard, Level::Mild] {
        let error = run(&path, settings(level, None)).unwrap_err().to_string();
        assert!(
            error.contains(&format!("it is damaged: tensor {}", record.name)),
            "{error}"
        );
        assert!(error.contains("tile "), "{error}");
    }
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let text = run(&path, settings(Level::Mild, None))
        .unwrap_err()
        .to_string();
    assert!(text.contains("is truncated"), "{text}");
    fs::write(&path, demonstration_config()).unwrap();
    let text = run(&path, settings(Level::Mild, None))
        .unwrap_err()
        .to_string();
    assert!(text.contains("is not a .sluice file"), "{text}");
}

#[test]
#[ignore = "seconds of both cores: cargo ci"]
fn a_flipped_bit_is_refused_or_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.sluice");
    write(&path, CompressionMethod::Lossless(Lossless::Huffman), 256);
    let (expected, _) = run(&path, settings(Level::Standard, None)).unwrap();
    let whole = fs::read(&path).unwrap();
    let mut refused = 0;
    let mut random = 22_u64;
    for _ in 0..100 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let (at, bit) = ((random >> 20) as usize % whole.len(), (random >> 60) % 8);
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << bit;
        fs::write(&path, &flipped).unwrap();
        match run(&path, settings(Level::Standard, None)) {
            // Padding, checksums of tiles, and files that no model reads.
            Ok((generated, _)) => assert_eq!(generated.tokens, expected.tokens, "byte {at}"),
            Err(_) => refused += 1,
        }
    }
    println!("{refused} of 100 were refused");
    assert!(refused > 90, "{refused}");
}

fn demonstration_config() -> Vec<u8> {
    fs::read(demonstration().join("config.json")).unwrap()
}
