//! Against the reference implementations' outputs: logits within 5e-4, every token list and every number of passes equal.
//! `tests/fixtures` holds the checkpoints.

use std::{fs, path::Path};

use sluice_engine::{
    EngineOptions,
    check::{CheckResult, fixture_latents, fixture_logits, fixture_tokens},
};
use sluice_machine::Profile;
use sluice_ops::{Ops, device::Device, ledger::Ledger};
use sluice_plan::{BLOCK_DEFAULT, Machine, Plan, PlanError, PlanInput, WorkingMemory, Workload};
use sluice_shared::{level::Level, options::ResolvedPlanSettings};
use sluice_weights::{Shape, SourceTensor};

use crate::checkpoints::fixture;

/// A plan for this share of what all weights take, if there is one.
fn plan(shape: &Shape, sources: &[SourceTensor], share: f64, cache: u64) -> Option<Plan> {
    let workload = Workload::new(16, BLOCK_DEFAULT, 1);
    let machine = Machine::unmeasured(Profile::cpu(2), cache);
    let mut question = PlanInput {
        shape,
        sources,
        choices: ResolvedPlanSettings::from(Level::Standard),
        budget_bytes: u64::MAX,
        workload,
        working: WorkingMemory::default(),
        machine: &machine,
    };
    let whole = Plan::new(&question).unwrap().peak_bytes();
    question.budget_bytes = (whole as f64 * share) as u64;
    match Plan::new(&question) {
        Ok(plan) => {
            assert_eq!(plan.streamed().next().is_some(), share < 1.0);
            Some(plan)
        }
        Err(PlanError::BudgetTooSmall { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

fn all_pass(checks: &[CheckResult]) {
    for check in checks {
        assert!(check.passes(), "{check:?}");
    }
}

fn check_logits(name: &str) {
    check_logits_in(&fixture(name));
}

/// Logits of all rows. Weights are resident, streamed from files that the system caches, or past its cache.
pub(crate) fn check_logits_in(folder: &Path) {
    let mut met = 0;
    for (share, cache) in [
        (1.0, 0),
        (0.9, u64::MAX),
        (0.7, 0),
        (0.5, 0),
        (0.4, u64::MAX),
    ] {
        let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
        let plan = |shape: &Shape, sources: &[_]| Ok(plan(shape, sources, share, cache));
        let checks = fixture_logits(folder, &ops, &plan).unwrap();
        all_pass(&checks);
        met += usize::from(!checks.is_empty());
    }
    assert!(met > 2, "only {met} plans were possible");
}

#[test]
fn logits_multi_head_f32() {
    check_logits("llada-tiny");
}

#[test]
fn logits_grouped_heads_bf16_shards() {
    check_logits("llada-tiny-bf16");
}

#[test]
fn logits_biases_dream() {
    check_logits("dream-tiny");
}

#[test]
fn logits_causal_scaled_rotation() {
    check_logits("llama-tiny");
}

#[test]
fn logits_causal_tied_bf16_shards() {
    check_logits("llama-tiny-tied");
}

#[test]
fn logits_norms_of_heads() {
    check_logits("qwen3-tiny");
}

#[test]
fn logits_block_diffusion() {
    check_logits("sdar-tiny");
    check_logits("fast-dllm-v2-tiny");
    check_logits("nemotron-ld-tiny");
}

#[test]
fn logits_mixtures_of_experts() {
    check_logits("qwen3-moe-tiny");
    check_logits("sdar-moe-tiny");
    check_logits("llada-moe-tiny");
    check_logits("llada2-tiny");
    check_logits("rnd1-tiny");
}

/// What a mixture's fixtures would not show if it made no difference: how much of a head is rotated, and the bias that
/// chooses experts.
#[test]
fn a_wrong_rotation_or_choice_shows() {
    let folder = tempfile::tempdir().unwrap();
    let copy = |name: &str, change: &dyn Fn(Vec<u8>) -> Vec<u8>| {
        let bytes = fs::read(fixture("llada2-tiny").join(name)).unwrap();
        fs::write(folder.path().join(name), change(bytes)).unwrap();
    };
    let whole_heads = |bytes: Vec<u8>| {
        let mut config: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        config["partial_rotary_factor"] = 1.into();
        config["rotary_dim"] = 16.into();
        config.to_string().into_bytes()
    };
    let no_bias = |bytes: Vec<u8>| {
        let mut tensors = safetensors::SafeTensors::deserialize(&bytes)
            .unwrap()
            .tensors();
        let zeros = vec![0; 64];
        let bias = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![16], &zeros);
        let bias = bias.unwrap();
        for (name, tensor) in &mut tensors {
            if name.ends_with("expert_bias") {
                *tensor = bias.clone();
            }
        }
        safetensors::serialize(tensors, None).unwrap()
    };
    type Change<'a> = &'a dyn Fn(Vec<u8>) -> Vec<u8>;
    let same: Change<'_> = &|bytes| bytes;
    for (config, model, is_right) in [
        (same, same, true),
        (&whole_heads as Change<'_>, same, false),
        (same, &no_bias, false),
    ] {
        copy("config.json", config);
        copy("model.safetensors", model);
        copy("expected.json", same);
        copy("expected.safetensors", same);
        let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
        let plan = |shape: &Shape, sources: &[_]| Ok(plan(shape, sources, 1.0, 0));
        let checks = fixture_logits(folder.path(), &ops, &plan).unwrap();
        assert!(!checks.is_empty());
        assert_eq!(checks.iter().all(CheckResult::passes), is_right);
    }
}

#[test]
fn logits_of_text_and_canvases() {
    check_logits("diffusion-gemma-tiny");
}

#[test]
fn logits_states_rwkv7() {
    check_logits("rwkv7-tiny");
}

#[test]
fn logits_windows_and_latents() {
    check_logits("ltm-tiny");
}

/// Bounds, gradients for latents and whole runs of inference, resident and streamed: backwards, too.
#[test]
fn posteriors_of_latents() {
    for (share, cache) in [(1.0, 0), (0.7, u64::MAX), (0.5, 0)] {
        let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
        let plan = |shape: &Shape, sources: &[_]| Ok(plan(shape, sources, share, cache));
        let checks = fixture_latents(&fixture("ltm-tiny"), &ops, &plan).unwrap();
        all_pass(&checks);
        assert_eq!(checks.len(), 14);
    }
}

/// The official file gives what Hugging Face's folder gives.
#[test]
fn logits_and_tokens_rwkv7_pth() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["rwkv.pth", "expected.json", "expected.safetensors"] {
        fs::copy(fixture("rwkv7-tiny").join(name), folder.path().join(name)).unwrap();
    }
    check_logits_in(folder.path());
    check_tokens_in(folder.path(), 3);
}

fn check_tokens(name: &str, cases: usize) {
    check_tokens_in(&fixture(name), cases);
}

pub(crate) fn check_tokens_in(folder: &Path, cases: usize) {
    let options = EngineOptions {
        threads: 2,
        ..EngineOptions::default()
    };
    let checks = fixture_tokens(folder, options).unwrap();
    all_pass(&checks);
    assert_eq!(checks.len(), cases);
}

#[test]
fn tokens_shifted_logits_and_dream_s_rankings() {
    check_tokens("dream-tiny", 10);
}

#[test]
fn tokens_norms_of_heads() {
    check_tokens("qwen3-tiny", 3);
}

#[test]
fn tokens_block_diffusion() {
    check_tokens("sdar-tiny", 11);
    check_tokens("fast-dllm-v2-tiny", 8);
    check_tokens("nemotron-ld-tiny", 12);
}

#[test]
fn tokens_mixtures_of_experts() {
    check_tokens("qwen3-moe-tiny", 3);
    check_tokens("sdar-moe-tiny", 11);
    check_tokens("llada-moe-tiny", 6);
    check_tokens("llada2-tiny", 16);
    check_tokens("rnd1-tiny", 3);
}

#[test]
fn tokens_of_canvases_of_random_tokens() {
    check_tokens("diffusion-gemma-tiny", 5);
}

#[test]
fn tokens_causal() {
    check_tokens("llama-tiny", 3);
    check_tokens("llama-tiny-tied", 3);
}

#[test]
fn tokens_rwkv7() {
    check_tokens("rwkv7-tiny", 3);
}

#[test]
fn tokens_of_latents() {
    check_tokens("ltm-tiny", 2);
}

#[test]
fn tokens_multi_head_f32() {
    check_tokens("llada-tiny", 31);
}

#[test]
fn tokens_grouped_heads_bf16_shards() {
    check_tokens("llada-tiny-bf16", 30);
}
