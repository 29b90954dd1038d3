//! The fixtures' reference outputs come out of GGUF files, too, in every dialect, whether weights are resident or streamed.

use std::cell::RefCell;

use sluice_engine::{
    EngineOptions,
    check::{fixture_forwards, fixture_logits, fixture_tokens},
};
use sluice_formats::Format;
use sluice_machine::Profile;
use sluice_ops::{Ops, device::Device, ledger::Ledger};
use sluice_plan::{BLOCK_DEFAULT, Machine, Plan, PlanError, PlanInput, WorkingMemory, Workload};
use sluice_shared::{level::Level, options::ResolvedPlanSettings};
use sluice_weights::{Shape, SourceTensor, Tier};

use tempfile::TempDir;

use super::convert::{Dialect, converted_folder, folder, folder_of};
use super::writer::kind;
use crate::checkpoints::fixture;

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
    check_logits_in(&folder(name, dialect));
}

fn check_logits_in(folder: &TempDir) {
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
            assert!(check.passes(), "{share}: {check:?}");
        }
        tiers.extend(met.into_inner());
    }
    for tier in [Tier::Device, Tier::Host, Tier::Disk] {
        assert!(tiers.contains(&tier), "nothing was read for {tier:?}");
    }
}

fn check_tokens(name: &str, dialect: Dialect, cases: usize) {
    let options = EngineOptions {
        threads: 2,
        ..EngineOptions::default()
    };
    let checks = fixture_tokens(folder(name, dialect).path(), options).unwrap();
    assert!(checks.len() >= cases);
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
    check_tokens("llada-tiny", Dialect::LlamaCpp, 30);
    check_tokens("llada-tiny-bf16", Dialect::DiffuseCpp, 30);
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

#[test]
fn logits_and_tokens_of_norms_of_heads_are_those_of_the_reference() {
    check_logits("qwen3-tiny", Dialect::LlamaCpp);
    check_tokens("qwen3-tiny", Dialect::LlamaCpp, 3);
}

#[test]
fn logits_and_tokens_of_mixtures_are_those_of_the_reference() {
    for (name, cases) in [("qwen3-moe-tiny", 3), ("llada-moe-tiny", 6)] {
        check_logits(name, Dialect::LlamaCpp);
        check_tokens(name, Dialect::LlamaCpp, cases);
    }
}

#[test]
fn logits_and_tokens_of_states_are_those_of_the_reference() {
    check_logits("rwkv7-tiny", Dialect::LlamaCpp);
    check_tokens("rwkv7-tiny", Dialect::LlamaCpp, 3);
    // The fixture's own type: no element changes.
    let bf16 = [Format::Bf16; 2];
    let file = converted_folder(&fixture("rwkv7-tiny"), Dialect::LlamaCpp, bf16);
    check_logits_in(&folder_of("rwkv7-tiny", &file));
}

/// Low-rank matrices, too: some converters quantize them.
#[test]
fn a_model_with_states_is_computed_from_blocks_as_from_their_numbers() {
    for format in [Format::Q8_0, Format::Q4_0, Format::Q4K] {
        let [blocks, numbers] = [format, Format::F32].map(|stored| {
            let source = fixture("rwkv7-tiny");
            let file = converted_folder(&source, Dialect::LlamaCpp, [format, stored]);
            let quantized = file
                .tensors
                .iter()
                .filter(|tensor| tensor.kind == kind(format));
            assert_eq!(quantized.count() > 0, stored == format);
            let folder = folder_of("rwkv7-tiny", &file);
            let ops = Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap();
            let whole = |shape: &Shape, sources: &[_]| Ok(plan(shape, sources, 1.0, 0));
            let forwards = fixture_forwards(folder.path(), &ops, &whole).unwrap();
            let logits = forwards.into_iter().flat_map(|forward| forward.found);
            (logits.collect::<Vec<f32>>(), ops.rounds_rows(format))
        });
        let squares =
            |pairs: &mut dyn Iterator<Item = f32>| pairs.map(|x| f64::from(x).powi(2)).sum::<f64>();
        let mut differences = blocks.0.iter().zip(&numbers.0).map(|(a, b)| a - b);
        let distance = squares(&mut differences) / squares(&mut numbers.0.iter().copied());
        // Where rows are rounded to 8 bits before they are multiplied, the roundings add up in the states.
        let tolerance = if blocks.1 { 0.04 } else { 1e-4 };
        assert!(
            distance.sqrt() <= tolerance,
            "{}: {distance}",
            format.name()
        );
    }
}
