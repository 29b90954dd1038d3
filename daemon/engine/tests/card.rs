//! The operations of a card and whole models on one, through the stand-in for NVIDIA's libraries that runs the card's own
//! kernels on the CPU (`daemon/cuda/stand-in`).

#[path = "../../cuda/tests/stand_in/mod.rs"]
mod stand_in;

#[path = "../../cuda/tests/here/mod.rs"]
mod here;

use std::path::{Path, PathBuf};

use sluice_engine::{
    Options,
    check::{Check, fixture_logits, fixture_tokens, operations, resident, streamed},
    device::{Choice, Device, Number},
    ledger::Ledger,
    model::shape::Shape,
    ops::Ops,
};
use sluice_shared::level::Level;

fn card(number: Number) -> Device {
    let opened = Device::open(Choice::Cuda(0), Some(number), 2).unwrap();
    assert!(opened.device.is_card() && opened.no_card.is_none());
    opened.device
}

fn all_pass(checks: &[Check]) {
    let failed: Vec<_> = checks.iter().filter(|check| !check.passes()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

fn check_operations(number: Number) {
    if !here::open_stand_in() {
        return;
    }
    let checks = operations(&card(number), 7, &mut |_| {}).unwrap();
    assert!(checks.len() > 80, "only {} checks", checks.len());
    all_pass(&checks);
}

#[test]
fn every_operation_in_f32() {
    check_operations(Number::F32);
}

#[test]
fn every_operation_in_f16() {
    check_operations(Number::F16);
}

#[test]
fn every_operation_in_bf16() {
    check_operations(Number::Bf16);
}

#[test]
fn the_cpu_passes_its_own_check() {
    let checks = operations(&Device::cpu(2).unwrap(), 7, &mut |_| {}).unwrap();
    all_pass(&checks);
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn check_fixture(name: &str, cases: usize) {
    if !here::open_stand_in() {
        return;
    }
    // With the embedding on the card, and without.
    for level in [Level::Off, Level::Standard] {
        let ops = Ops::new(card(Number::F32), Ledger::default()).unwrap();
        let profile = ops.device().profile();
        let plan =
            |shape: &Shape, sources: &[_]| resident(profile, shape, sources, level).map(Some);
        let checks = fixture_logits(&folder(name), &ops, &plan).unwrap();
        assert!(!checks.is_empty());
        all_pass(&checks);
    }
    for pin_limit in [u64::MAX, 100_000, 0] {
        let ops = Ops::new(card(Number::F32), Ledger::default()).unwrap();
        let profile = ops.device().profile();
        let plan = |shape: &Shape, sources: &[_]| {
            let plan = streamed(profile, shape, sources, Level::Standard, pin_limit)?;
            assert!(plan.streamed().count() > plan.slots.count);
            Ok(Some(plan))
        };
        let checks = fixture_logits(&folder(name), &ops, &plan).unwrap();
        assert!(!checks.is_empty());
        all_pass(&checks);
    }
    let options = Options {
        device: Choice::Cuda(0),
        number: Some(Number::F32),
        threads: 2,
        ..Options::default()
    };
    let checks = fixture_tokens(&folder(name), options).unwrap();
    assert_eq!(checks.len(), cases);
    all_pass(&checks);
}

/// What the references computed in is `f32`; in shorter numbers logits are near.
fn check_logits(number: Number) {
    if !here::open_stand_in() {
        return;
    }
    for name in ["llada-tiny", "llada-tiny-bf16"] {
        let ops = Ops::new(card(number), Ledger::default()).unwrap();
        let profile = ops.device().profile();
        let plan =
            |shape: &Shape, sources: &[_]| resident(profile, shape, sources, Level::Off).map(Some);
        let checks = fixture_logits(&folder(name), &ops, &plan).unwrap();
        assert!(!checks.is_empty());
        all_pass(&checks);
    }
}

#[test]
fn logits_in_f16() {
    check_logits(Number::F16);
}

#[test]
fn logits_in_bf16() {
    check_logits(Number::Bf16);
}

#[test]
fn a_model_with_many_heads_in_f32() {
    check_fixture("llada-tiny", 31);
}

#[test]
fn a_model_with_grouped_heads_in_bf16_shards() {
    check_fixture("llada-tiny-bf16", 30);
}

#[test]
fn a_causal_model_with_kept_keys_and_values() {
    check_fixture("llama-tiny", 3);
}

#[test]
fn a_model_with_biases_and_shifted_logits() {
    check_fixture("dream-tiny", 10);
}
