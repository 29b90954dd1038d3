//! What passes over a mixture tell of its experts.

use super::*;
use crate::residency::ExpertStats;

fn mixture(engine: Engine, budget_bytes: Option<u64>) -> World {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llada-moe-tiny");
    let settings = PlanSettings {
        budget: budget_bytes.into(),
        ..PlanSettings::default()
    };
    let model = engine.load_now(Source::Folder(folder.into()), settings);
    let model = model.unwrap();
    World { engine, model }
}

/// Has a few passes run; what they touched of experts, and what of that the cache had.
fn passes(world: &World) -> ExpertStats {
    let request = Generate {
        block_length: 8,
        ..Generate::greedy(world.model.id, vec![1, 2, 3, 4], 24)
    };
    let finished = world.submit(request, |_| {});
    finished.recv().unwrap().unwrap();
    world.engine.in_force().unwrap().passes.experts
}

fn is_measured(engine: &Engine) -> bool {
    let plan = engine.plan(&PlanOptions::default(), Workload::default());
    plan.unwrap().expert_figures().unwrap().is_measured
}

#[test]
fn passes_tell_the_same_of_experts_wherever_these_are_and_the_next_engine_begins_with_it() {
    let resident = mixture(start(), None);
    assert_eq!(resident.engine.learned_experts(), None);
    assert!(!is_measured(&resident.engine));
    assert_eq!(passes(&resident), ExpertStats::default());
    let learned = resident.engine.learned_experts().unwrap();
    assert!(is_measured(&resident.engine));

    let least = resident.least_bytes();
    let cached = mixture(start(), Some(least));
    assert!(passes(&cached).touched > 0);
    assert_eq!(cached.engine.learned_experts(), Some(learned));

    let next = start();
    next.restore_experts(&learned);
    let next = mixture(next, None);
    assert_eq!(next.engine.learned_experts(), Some(learned));
    assert!(is_measured(&next.engine));
}
