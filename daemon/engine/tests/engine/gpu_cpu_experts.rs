//! Experts that the CPU computes beside a GPU, on the stand-in.

use sluice_engine::check::{fixture_forwards, fixture_logits, streamed};
use sluice_formats::DType;
use sluice_ops::{
    Ops,
    device::{Device, DeviceChoice},
    ledger::Ledger,
};
use sluice_plan::{ExpertSplit, Plan, PlanError};
use sluice_shared::level::Level;
use sluice_weights::{Shape, SourceTensor};
use testkit::here;

use crate::checkpoints::fixture;

fn operations(dtype: DType) -> Ops {
    here::open_stand_in();
    let opened = Device::open(DeviceChoice::Cuda(0), Some(dtype), 2).unwrap();
    assert!(opened.device.is_gpu());
    Ops::new(opened.device, Ledger::default()).unwrap()
}

/// Few experts on the GPU, half of them, or none; and only those with few rows on the CPU.
const SPLITS: [ExpertSplit; 4] = [
    split(1, usize::MAX),
    split(4, usize::MAX),
    split(0, usize::MAX),
    split(2, 3),
];

const fn split(on_gpu: usize, rows_max: usize) -> ExpertSplit {
    ExpertSplit { on_gpu, rows_max }
}

/// A plan with all experts in the cache and this split.
fn planned(
    ops: &Ops,
    split: ExpertSplit,
    pin_limit: u64,
) -> impl Fn(&Shape, &[SourceTensor]) -> Result<Option<Plan>, PlanError> {
    let profile = ops.device().profile();
    move |shape, sources| {
        let plan = streamed(profile, shape, sources, Level::Standard, pin_limit)?;
        assert!(plan.staging.expert_buffers > 0);
        Ok(Some(Plan {
            cpu_experts: Some(split),
            ..plan
        }))
    }
}

/// The logits are the references', wherever experts are computed, from pinned memory and without.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn logits_are_the_references_wherever_experts_are_computed() {
    for (name, splits, pin_limits) in [
        ("qwen3-moe-tiny", &SPLITS[..], &[u64::MAX, 100_000, 0][..]),
        ("llada2-tiny", &SPLITS[..1], &[u64::MAX]),
        ("sdar-moe-tiny", &SPLITS[..1], &[u64::MAX]),
    ] {
        for (split, pin_limit) in splits.iter().zip(pin_limits.iter().cycle()) {
            let ops = operations(DType::F32);
            let plan = planned(&ops, *split, *pin_limit);
            let checks = fixture_logits(&fixture(name), &ops, &plan).unwrap();
            assert!(!checks.is_empty());
            let failed: Vec<_> = checks.iter().filter(|check| !check.passes()).collect();
            assert!(failed.is_empty(), "{split:?}, {pin_limit}: {failed:#?}");
        }
    }
}

/// In 16 bits the sums differ from the GPU's; from one run to another they don't, whatever is pinned.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn the_same_is_computed_every_time() {
    let found = |split, pin_limit| {
        let ops = operations(DType::Bf16);
        let plan = planned(&ops, split, pin_limit);
        let forwards = fixture_forwards(&fixture("llada2-tiny"), &ops, &plan).unwrap();
        let logits = forwards.into_iter().map(|forward| forward.found);
        logits.collect::<Vec<_>>()
    };
    let all = found(split(usize::MAX, usize::MAX), u64::MAX);
    for split in [SPLITS[0], SPLITS[3]] {
        let once = found(split, u64::MAX);
        assert_ne!(once, all, "{split:?}");
        assert_eq!(once, found(split, 0), "{split:?}");
    }
}
