//! The fixtures' reference outputs come out of GGUF files, too, in every dialect, whether weights are resident or streamed.

use std::cell::RefCell;

use sluice_engine::{
    EngineOptions,
    check::{fixture_logits, fixture_tokens},
};
use sluice_machine::Profile;
use sluice_ops::{Ops, device::Device, ledger::Ledger};
use sluice_plan::{BLOCK_DEFAULT, Machine, Plan, PlanError, PlanInput, WorkingMemory, Workload};
use sluice_shared::{level::Level, options::ResolvedPlanSettings};
use sluice_weights::{Shape, SourceTensor, Tier};

use super::convert::{Dialect, folder};

/// A plan for this share of what all weights take.
fn plan(shape: &Shape, sources: &[SourceTensor], share: f64, cache: u64) -> Option<Plan> {
    let machine = Machine::unmeasured(Profile::cpu(2), cache);
    let mut question = PlanInput {
        shape,
        sources,
        choices: ResolvedPlanSettings::from(Level::Standard),
        budget_bytes: u64::MAX,
        workload: Workload::new(16, BLOCK_DEFAULT, 1),
        working: WorkingMemory::default(),
        machine: &machine,
    };
    let whole = Plan::new(&question).unwrap().peak_bytes();
    question.budget_bytes = (whole as f64 * share) as u64;
    match Plan::new(&question) {
        Ok(plan) => Some(plan),
        Err(PlanError::BudgetTooSmall { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

fn check_logits(name: &str, dialect: Dialect) {
    let folder = folder(name, dialect);
    let mut tiers = Vec::new();
    for (share, cache) in [(1.0, 0), (0.7, u64::MAX), (0.7, 0)] {
        let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
        let met = RefCell::new(Vec::new());
        let plan_for = |shape: &Shape, sources: &[_]| {
            let Some(plan) = plan(shape, sources, share, cache) else {
                return Ok(None);
            };
            met.borrow_mut()
                .extend(plan.groups.iter().map(|group| group.tier));
            Ok(Some(plan))
        };
        for check in fixture_logits(folder.path(), &ops, &plan_for).unwrap() {
            assert!(check.passes(), "{dialect:?} {share}: {check:?}");
        }
        tiers.extend(met.into_inner());
    }
    for tier in [Tier::Device, Tier::Host, Tier::Disk] {
        assert!(tiers.contains(&tier), "nothing was read for {tier:?}");
    }
}

fn check_tokens(name: &str, dialect: Dialect) {
    let options = EngineOptions {
        threads: 2,
        ..EngineOptions::default()
    };
    let checks = fixture_tokens(folder(name, dialect).path(), options).unwrap();
    assert!(checks.len() >= 30);
    for check in checks {
        assert!(check.passes(), "{dialect:?}: {check:?}");
    }
}

#[test]
fn logits_of_rows_in_turn_are_those_of_the_reference() {
    check_logits("llada-tiny", Dialect::LlamaCpp);
}

#[test]
fn logits_of_rows_in_order_are_those_of_the_reference() {
    check_logits("llada-tiny", Dialect::DiffuseCpp);
}

#[test]
fn logits_of_fewer_key_heads_in_turn_are_those_of_the_reference() {
    check_logits("llada-tiny-bf16", Dialect::LlamaCpp);
}

#[test]
fn tokens_of_both_dialects_are_those_of_the_reference() {
    check_tokens("llada-tiny", Dialect::LlamaCpp);
    check_tokens("llada-tiny-bf16", Dialect::DiffuseCpp);
}

#[test]
fn logits_of_a_model_with_biases_are_those_of_the_reference() {
    check_logits("dream-tiny", Dialect::LlamaCpp);
    check_logits("dream-tiny", Dialect::DiffuseCpp);
}

#[test]
fn logits_of_a_scaled_rotation_are_those_of_the_reference() {
    check_logits("llama-tiny", Dialect::LlamaCpp);
}

#[test]
fn logits_of_a_tied_head_are_those_of_the_reference() {
    check_logits("llama-tiny-tied", Dialect::LlamaCpp);
}
