//! All levels from a plain checkpoint, in any order: `mild` codes the weights on the way in and computes what the
//! checkpoint computes; a level that cannot be had gives way to one that is no less faithful.

use std::{fs, path::Path, sync::Arc};

use sluice_checkpoint::{Source, synth::SynthDType};
use sluice_engine::{
    Budget, Engine, EngineError, EngineOptions, Generate, Outcome, PlanOptions, Work,
    runtime::ModelOutline,
};
use sluice_machine::Profile;
use sluice_plan::{BLOCK_DEFAULT, Machine, Plan, PlanError, Workload};
use sluice_shared::level::Level;
use sluice_weights::Storage;
use tempfile::TempDir;

use crate::{
    checkpoints::demonstration,
    loading::{apply, load, settings},
    small,
};

fn engine(copies: Option<&Path>) -> Engine {
    Engine::start(EngineOptions {
        threads: 2,
        weight_cache: copies.map(Path::to_owned),
        ..EngineOptions::default()
    })
    .unwrap()
}

/// Tokens of an answer, which are the same as long as weights are; the plan's promise is kept meanwhile.
fn tokens(engine: &Engine) -> (Vec<u32>, bool) {
    let model = engine.model().expect("a model is loaded");
    let prompt = match &model.tokenizer {
        Some(text) => text
            .encode_chat(&[("user", "Tell me a story about Mia and a kite.")])
            .unwrap(),
        None => vec![1, 2, 3],
    };
    let request = Generate {
        block_length: 16,
        ..Generate::greedy(model.id, prompt, 32)
    };
    let Outcome::Generated(generated) = engine.run(Work::Generate(request)).unwrap() else {
        unreachable!("nobody cancels")
    };
    let plan = &engine.in_force().unwrap().plan;
    assert!(generated.peak_device_bytes <= plan.budget_bytes);
    (generated.tokens, generated.is_lossless)
}

fn to(level: Level) -> PlanOptions {
    PlanOptions {
        level: Some(level),
        ..PlanOptions::default()
    }
}

fn is_compressed(plan: &Plan) -> bool {
    let mut tensors = plan.groups.iter().flat_map(|group| &group.tensors);
    tensors
        .any(|tensor| matches!(tensor.storage, Storage::Compressed(coding) if coding.is_lossless()))
}

/// Nothing but the containers and their journals is looked for.
fn copies(folder: &Path) -> Vec<String> {
    let Ok(files) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let name = |file: fs::DirEntry| file.file_name().into_string().unwrap();
    let names = files.map(|file| name(file.unwrap()));
    names.filter(|name| name.contains("mild")).collect()
}

/// A copy that the disk has damaged is thrown away and made again, whether a load or a switch finds it.
#[test]
fn a_damaged_copy_is_made_again() {
    let folder = TempDir::new().unwrap();
    let first = engine(Some(folder.path()));
    let (_, loaded) = load(&first, &demonstration(), settings(Level::Mild, None));
    loaded.unwrap();
    let (expected, _) = tokens(&first);
    drop(first);
    let path = folder.path().join(&copies(folder.path())[0]);
    let whole = fs::read(&path).unwrap();
    for (first, is_damaged) in [
        (Level::Mild, false),
        (Level::Mild, true),
        (Level::Standard, true),
    ] {
        let mut bytes = whole.clone();
        if is_damaged {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 16;
        }
        fs::write(&path, bytes).unwrap();
        let engine = engine(Some(folder.path()));
        let (loading, loaded) = load(&engine, &demonstration(), settings(first, None));
        loaded.unwrap();
        if first == Level::Standard {
            apply(&engine, to(Level::Mild)).unwrap();
        } else {
            // An intact copy is compared again, since the file was written anew, and taken.
            assert_eq!(loading.conversion.is_empty(), !is_damaged);
            let mut notices = loading.notices.iter();
            assert_eq!(notices.any(|notice| notice.contains("damaged")), is_damaged);
        }
        assert!(is_compressed(&engine.in_force().unwrap().plan));
        assert_eq!(tokens(&engine), (expected.clone(), true));
        // But for what it says of its origin, in the same order each time.
        let now = fs::read(&path).unwrap();
        assert_eq!(now.len(), whole.len());
        assert!(
            now[now.len() / 2] == whole[whole.len() / 2],
            "it is whole again"
        );
    }
}

/// What is foreseen of a checkpoint at `mild` before anything is compressed.
fn foreseen(source: &Path, engine: &Engine) -> Plan {
    let outline = ModelOutline::of_checkpoint(
        &Source::Folder(source.to_owned()),
        Machine::unmeasured(Profile::cpu(2), u64::MAX),
    )
    .unwrap();
    let workload = engine.in_force().unwrap().plan.workload;
    let plan = outline.plan(Level::Mild, u64::MAX, workload).unwrap();
    assert!(plan.is_estimate());
    plan
}

#[test]
fn mild_of_a_plain_folder_is_compressed_on_the_way_in_and_read_by_the_next_load() {
    let folder = TempDir::new().unwrap();
    let plain = engine(None);
    let (_, loaded) = load(&plain, &demonstration(), settings(Level::Standard, None));
    loaded.unwrap();
    let (expected, _) = tokens(&plain);
    let standard = Arc::clone(&plain.in_force().unwrap().plan);

    for is_first in [true, false] {
        let engine = engine(Some(folder.path()));
        let (loading, loaded) = load(&engine, &demonstration(), settings(Level::Mild, None));
        loaded.unwrap();
        assert_eq!(loading.conversion.is_empty(), !is_first);
        assert!(loading.notices.is_empty(), "{:?}", loading.notices);
        let plan = Arc::clone(&engine.in_force().unwrap().plan);
        assert_eq!(plan.level, Level::Mild);
        assert!(is_compressed(&plan) && !plan.is_estimate());
        assert_eq!(tokens(&engine), (expected.clone(), true));
        // A quarter less: 12 bits of 16.
        let share = plan.resident_bytes() as f64 / standard.resident_bytes() as f64;
        assert!((0.74..0.78).contains(&share), "{share}");
        assert_eq!(copies(folder.path()).len(), 1);

        // What was foreseen is hardly more, and not less.
        let foreseen = foreseen(&demonstration(), &engine);
        let ratio = foreseen.resident_bytes() as f64 / plan.resident_bytes() as f64;
        assert!((1.0..1.005).contains(&ratio), "{ratio}");

        // Streamed, it is the same.
        let least = match apply(
            &engine,
            PlanOptions {
                budget: Some(Budget::Bytes(1)),
                ..PlanOptions::default()
            },
        ) {
            Err(EngineError::Plan(PlanError::BudgetTooSmall { least_bytes, .. })) => least_bytes,
            other => panic!("{other:?}"),
        };
        let budget = PlanOptions {
            budget: Some(Budget::Bytes(least)),
            ..PlanOptions::default()
        };
        let plan = apply(&engine, budget).unwrap();
        assert!(plan.streamed_bytes() > 0 && is_compressed(&plan));
        assert_eq!(tokens(&engine), (expected.clone(), true));
        assert!(engine.memory().used_bytes <= least);
    }
}

#[test]
fn all_levels_are_switched_to_from_a_plain_folder_in_any_order() {
    use Level::{Aggressive, Auto, Mild, Moderate, Off, Standard};
    let folder = TempDir::new().unwrap();
    let engine = engine(Some(folder.path()));
    let (_, loaded) = load(&engine, &demonstration(), settings(Standard, None));
    loaded.unwrap();
    let (expected, _) = tokens(&engine);
    for level in [
        Mild, Off, Moderate, Mild, Aggressive, Auto, Standard, Aggressive, Mild, Moderate, Off,
    ] {
        let plan = apply(&engine, to(level)).unwrap_or_else(|error| panic!("{level}: {error}"));
        assert!(!plan.is_estimate());
        assert_eq!(engine.settings().level, level);
        if level != Auto {
            assert_eq!(plan.level, level);
            assert_eq!(is_compressed(&plan), level == Mild);
        }
        let (found, is_lossless) = tokens(&engine);
        if let Some(expects_lossless) = level.is_lossless() {
            assert_eq!(is_lossless, expects_lossless, "{level}");
        }
        if is_lossless {
            assert_eq!(found, expected, "{level}");
        }
    }
    assert_eq!(copies(folder.path()).len(), 1, "coded once");
}

#[test]
fn numbers_of_other_kinds_are_compressed_as_far_as_that_saves_something() {
    for (element, share) in [
        (SynthDType::F32, 0.86..0.90),
        (SynthDType::F16, 0.82..0.90),
        (SynthDType::Bf16, 0.74..0.78),
    ] {
        let folder = TempDir::new().unwrap();
        let model = folder.path().join("model");
        small::write_as(&model, small::shape(3), element, 1);
        let engine = engine(Some(&folder.path().join("copies")));
        let (_, loaded) = load(&engine, &model, settings(Level::Standard, None));
        loaded.unwrap();
        let (expected, _) = tokens(&engine);
        let standard = engine.in_force().unwrap().plan.resident_bytes();
        let plan = apply(&engine, to(Level::Mild)).unwrap();
        assert_eq!(tokens(&engine), (expected, true));
        let found = plan.resident_bytes() as f64 / standard as f64;
        assert!(share.contains(&found), "{element:?}: {found}");
        let foreseen = foreseen(&model, &engine).resident_bytes() as f64;
        let ratio = foreseen / plan.resident_bytes() as f64;
        assert!((1.0..1.02).contains(&ratio), "{element:?}: {ratio}");
    }
}

#[test]
fn a_level_that_can_not_be_had_gives_way_to_one_that_is_no_less_faithful() {
    // No place for a compressed copy.
    let without = engine(None);
    let (loading, loaded) = load(&without, &demonstration(), settings(Level::Mild, None));
    loaded.unwrap();
    assert_eq!(without.in_force().unwrap().plan.level, Level::Standard);
    assert!(
        matches!(&loading.notices[..], [notice] if notice.starts_with("level standard (as faithful) replaces mild: ")),
        "{:?}",
        loading.notices
    );
    let substitution = without.substitution().unwrap();
    assert_eq!(
        (substitution.requested, substitution.taken),
        (Level::Mild, Level::Standard)
    );
    // A change says so instead, and leaves all as it was.
    let error = apply(&without, to(Level::Mild)).unwrap_err();
    assert!(
        matches!(error, EngineError::Plan(PlanError::NotCompressed { .. })),
        "{error}"
    );
    assert_eq!(without.in_force().unwrap().plan.level, Level::Standard);
    apply(&without, to(Level::Aggressive)).unwrap();
    assert_eq!(without.substitution(), None, "somebody has chosen since");
    assert_eq!(without.loaded_with().unwrap().level, Level::Standard);

    // No room for all of it on the device, the embedding included.
    let all = apply(&without, to(Level::Standard)).unwrap().peak_bytes();
    let less = settings(Level::Off, Some(all));
    let (loading, loaded) = load(&without, &demonstration(), less);
    loaded.unwrap();
    let plan = Arc::clone(&without.in_force().unwrap().plan);
    assert_eq!(plan.level, Level::Standard);
    assert!(
        loading.notices[0].contains("replaces off: the budget of"),
        "{:?}",
        loading.notices
    );

    // A lossy level that has nowhere to be streamed from.
    let folder = TempDir::new().unwrap();
    let model = small::write(folder.path(), 12);
    let (_, loaded) = load(&without, &model, settings(Level::Moderate, None));
    loaded.unwrap();
    let all = without.in_force().unwrap().plan.peak_bytes();
    let less = settings(Level::Moderate, Some(all * 3 / 4));
    let (loading, loaded) = load(&without, &model, less);
    loaded.unwrap();
    assert_eq!(without.in_force().unwrap().plan.level, Level::Standard);
    assert!(
        loading.notices[0].starts_with("level standard (more faithful) replaces moderate: "),
        "{:?}",
        loading.notices
    );
}

#[test]
fn where_no_level_as_faithful_fits_the_refusal_says_what_would() {
    let folder = TempDir::new().unwrap();
    let engine = engine(Some(folder.path()));
    let (_, loaded) = load(&engine, &demonstration(), settings(Level::Standard, None));
    loaded.unwrap();
    let least = |level| {
        let change = PlanOptions {
            level: Some(level),
            budget: Some(Budget::Bytes(1)),
            ..PlanOptions::default()
        };
        let workload = Workload::new(
            engine.in_force().unwrap().plan.workload.canvas_length,
            BLOCK_DEFAULT,
            1,
        );
        match engine.plan(&change, workload) {
            Err(EngineError::Plan(PlanError::BudgetTooSmall { least_bytes, .. })) => least_bytes,
            other => panic!("{other:?}"),
        }
    };
    let budget = least(Level::Mild).min(least(Level::Moderate)) - 1;
    assert!(least(Level::Aggressive) <= budget);
    let (loading, loaded) = load(
        &engine,
        &demonstration(),
        settings(Level::Standard, Some(budget)),
    );
    let error = loaded.unwrap_err();
    assert!(loading.notices.is_empty());
    let EngineError::Plan(PlanError::BudgetTooSmall { fitting, .. }) = &error else {
        panic!("{error}")
    };
    assert_eq!(fitting.unwrap().0, Level::Aggressive);
    assert!(
        error
            .to_string()
            .contains("the less faithful level aggressive would fit"),
        "{error}"
    );
}
