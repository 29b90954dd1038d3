//! Plans, levels and budgets against a daemon that plays a script.

use std::{os::unix::fs::symlink, path::Path, process::Command};

use fake_daemon::{ChangeScript, FakeDaemon, job, operation, plan, switch_pictures};
use sluice_proto::v1::{
    Level, Operation, OperationKind, OperationProgress, OperationStage, PlanOptions, PlannedChange,
    RestoreTarget, VerifyResult,
    model_ref::By,
    operation::{Detail, Outcome},
    plan_options::Budget::{self, BudgetBytes, DefaultBudget},
};
use testkit::eventually;

use crate::support::{Client, code, interrupt, stderr, stdout};

/// A load of which the plan is known.
fn planned() -> Operation {
    let change = PlannedChange {
        plan: Some(plan(Level::Moderate)),
        ..Default::default()
    };
    Operation {
        detail: Some(Detail::PlannedChange(change)),
        ..operation(OperationKind::Load)
    }
}

/// The level and the budget of a request's options.
fn said(options: Option<PlanOptions>) -> (Level, Option<Budget>) {
    let options = options.unwrap_or_default();
    (options.level(), options.budget)
}

#[test]
fn a_load_takes_a_level_and_a_budget_and_tells_its_plan() {
    let change = ChangeScript {
        load: vec![planned()],
        ..Default::default()
    };
    let fake = FakeDaemon::with_changes(vec![], change);
    let output = fake.output(&["load", "x", "--level", "moderate", "--budget", "4GiB"]);
    assert!(stdout(&output).starts_with("loaded fake (ready)"));
    assert_eq!(
        stderr(&output),
        "plan: level moderate, peak 3.00 GiB of 4.00 GiB, a pass 620 ms, streamed nothing\n"
    );
    let loaded = &fake.seen.lock().unwrap().loaded[0];
    assert_eq!(
        said(loaded.options),
        (Level::Moderate, Some(BudgetBytes(4 << 30)))
    );
}

#[test]
fn an_interrupt_cancels_a_load() {
    let change = ChangeScript {
        hangs: true,
        ..Default::default()
    };
    let fake = FakeDaemon::with_changes(vec![], change);
    let child = fake.sluice(&["load", "x"]).spawn().unwrap();
    eventually("the load", || !fake.seen.lock().unwrap().loaded.is_empty());
    let output = interrupt(child);
    assert_eq!(code(&output), 130);
    assert_eq!(
        stderr(&output),
        "error: interrupted; the load was cancelled\n"
    );
    assert_eq!(fake.seen.lock().unwrap().operations_cancelled, [5]);
}

#[test]
fn a_load_for_scripts_is_a_line_a_picture() {
    let reading = Operation {
        notices: vec!["slow disk".into()],
        progress: Some(OperationProgress {
            stage: OperationStage::Loading.into(),
            ..Default::default()
        }),
        ..planned()
    };
    let change = ChangeScript {
        load: vec![planned(), reading],
        ..Default::default()
    };
    let fake = FakeDaemon::with_changes(vec![], change);
    let output = fake.output(&["load", "x", "--json"]);
    assert_eq!((code(&output), &*stderr(&output)), (0, ""));
    let lines: Vec<serde_json::Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    let states: Vec<_> = lines.iter().map(|line| line["state"].as_str()).collect();
    let expected = ["running", "running", "running", "done"].map(Some);
    assert_eq!(states, expected);
    assert_eq!(lines[1]["planned_change"]["plan"]["level"], "moderate");
    assert_eq!(lines[2]["notices"][0], "slow disk");
    assert_eq!(lines[2]["progress"]["stage"], "loading");
    assert_eq!(lines[3]["load"]["model"]["name"], "fake");
}

#[test]
fn help_names_the_key_that_a_result_has_for_scripts() {
    let change = ChangeScript {
        apply: switch_pictures(Level::Moderate),
        job: vec![Operation {
            outcome: Some(Outcome::Verify(VerifyResult::default())),
            ..job()
        }],
        ..Default::default()
    };
    let fake = FakeDaemon::with_changes(vec![], change);
    for (arguments, key) in [
        (&["load", "x"][..], "load"),
        (&["pull", "o/m"], "pull"),
        (&["level", "moderate"], "apply"),
        (&["budget", "4GiB"], "apply"),
        (&["restore"], "apply"),
        (&["verify", "/m.sluice"], "verify"),
    ] {
        let output = fake.output(&[arguments, &["--json"]].concat());
        let last = stdout(&output);
        let last = last.lines().last().expect("a line");
        let last: serde_json::Value = serde_json::from_str(last).expect("an object");
        assert!(last[key].is_object(), "{arguments:?}: {last}");
        let help = stdout(&fake.output(&[arguments[0], "--help"]));
        assert!(help.contains(&format!("\"{key}\"")), "{help}");
        assert!(!help.contains("event"), "{help}");
    }
}

#[test]
fn an_interrupt_leaves_a_switch_alone_and_says_so() {
    let change = ChangeScript {
        apply: switch_pictures(Level::Moderate)[..4].to_vec(),
        hangs: true,
        ..Default::default()
    };
    let fake = FakeDaemon::with_changes(vec![], change);
    let child = fake.sluice(&["level", "moderate"]).spawn().unwrap();
    eventually("the switch", || {
        !fake.seen.lock().unwrap().applied.is_empty()
    });
    let output = interrupt(child);
    assert_eq!(code(&output), 130);
    assert!(
        stderr(&output).contains("error: interrupted; the switch continues\nhint: "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_level_is_predicted_then_measured() {
    let change = ChangeScript {
        apply: switch_pictures(Level::Moderate),
        ..Default::default()
    };
    let fake = FakeDaemon::with_changes(vec![], change);
    let output = fake.output(&["level", "moderate", "--budget", "4GiB"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "\
level     standard → moderate
budget    4.00 GiB
peak      4.00 GiB → 3.00 GiB, predicted
a pass    1.8 s → 620 ms, predicted
streamed  2.00 GiB a pass → nothing
in force  after 2.3 s, with 2.00 GiB held on the device
"
    );
    assert_eq!(stderr(&output), "note: a copy is written\u{fffd}[2J\n");
    let json = stdout(&fake.output(&["level", "moderate", "--json"]));
    let events: Vec<serde_json::Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    let stages: Vec<_> = events
        .iter()
        .map(|event| event["progress"]["stage"].as_str())
        .collect();
    let (converting, switching) = (Some("converting"), Some("switching"));
    assert_eq!(stages, [None, converting, converting, switching, switching]);
    assert_eq!(events[0]["planned_change"]["plan"]["pass_ms"], 620.0);
    assert_eq!(events[4]["elapsed_ms"], 2300.0);
    assert_eq!(events[4]["apply"]["device_bytes"], 2_u64 << 30);
    let applied = &fake.seen.lock().unwrap().applied;
    assert_eq!(
        said(applied[0].options),
        (Level::Moderate, Some(BudgetBytes(4 << 30)))
    );
    assert_eq!(said(applied[1].options).1, None);
}

#[test]
fn a_budget_and_its_default_and_a_restore_reach_the_daemon() {
    let change = ChangeScript {
        apply: switch_pictures(Level::Off),
        ..Default::default()
    };
    let fake = FakeDaemon::with_changes(vec![], change);
    for arguments in [
        &["budget", "3GiB"][..],
        &["budget", "default"],
        &["level", "mild", "--budget", "default"],
        &["restore"],
        &["restore", "--to", "source"],
    ] {
        let output = fake.output(arguments);
        assert_eq!(code(&output), 0, "{arguments:?}: {}", stderr(&output));
    }
    let seen = fake.seen.lock().unwrap();
    let asked: Vec<_> = seen
        .applied
        .iter()
        .map(|request| said(request.options))
        .collect();
    assert_eq!(
        asked,
        [
            (Level::Unspecified, Some(BudgetBytes(3 << 30))),
            (Level::Unspecified, Some(DefaultBudget(true))),
            (Level::Mild, Some(DefaultBudget(true))),
        ]
    );
    assert_eq!(seen.restored, [RestoreTarget::Start, RestoreTarget::Source]);
}

#[test]
fn a_switch_without_an_end_is_a_failure() {
    let change = ChangeScript {
        apply: switch_pictures(Level::Off)[..1].to_vec(),
        ..Default::default()
    };
    let output = FakeDaemon::with_changes(vec![], change).output(&["restore"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("without a result"));
}

#[test]
fn a_plan_is_asked_for_as_it_was_written() {
    let fake = FakeDaemon::start(vec![]);
    let output = fake.output(&["plan", "--model", "./some/model", "--budget", "6GiB"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("fake at level standard within 4.00 GiB"));
    let output = fake.output(&["plan", "--shape", "llada-8b", "--level", "mild", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("an object");
    for key in ["peak_bytes", "pass_ms", "streamed_bytes_per_pass"] {
        assert!(value[key].is_number(), "{key} in {value}");
    }
    assert!(value["layers"].is_array(), "{value}");
    assert_eq!(code(&fake.output(&["plan", "--budget", "default"])), 0);
    assert_eq!(code(&fake.output(&["plan", "--model", "some/model"])), 0);
    assert_eq!(code(&fake.output(&["plan", "./some/model"])), 0);
    let planned = &fake.seen.lock().unwrap().planned;
    let Some(By::Path(path)) = planned[0].model.clone().and_then(|model| model.by) else {
        panic!("{planned:?}");
    };
    assert!(path.starts_with('/') && path.ends_with("some/model"));
    assert_eq!(said(planned[0].options).1, Some(BudgetBytes(6 << 30)));
    assert_eq!(planned[1].model, By::Shape("llada-8b".into()).into());
    assert_eq!(planned[3].model, By::Name("some/model".into()).into());
    assert_eq!(said(planned[1].options).0, Level::Mild);
    let default = PlanOptions {
        budget: Some(DefaultBudget(true)),
        ..PlanOptions::default()
    };
    assert_eq!(
        (&planned[2].model, planned[2].options),
        (&None, Some(default))
    );
    assert_eq!(planned[4].model, planned[0].model);
}

#[test]
fn without_a_daemon_the_sibling_makes_the_plan() {
    let program = Path::new(env!("CARGO_BIN_EXE_sluice"));
    // A link needs the same file system, and the program looks beside the name it was started by.
    let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    let client = folder.path().join("sluice");
    std::fs::hard_link(program, &client).unwrap();
    let run = |arguments: &[&str]| {
        Command::new(&client)
            .args(["--socket", "/nonexistent/sluice.sock", "plan"])
            .args(arguments)
            .env("PATH", "/nonexistent")
            .output()
            .unwrap()
    };
    let alone = run(&["--shape", "llada-8b"]);
    assert_eq!(code(&alone), 1);
    assert!(
        stderr(&alone).contains("there is no sluiced"),
        "{}",
        stderr(&alone)
    );
    let sibling = folder.path().join("sluiced");
    symlink("/bin/echo", &sibling).unwrap();
    let output = run(&["--shape", "llada-8b", "--budget", "1KiB", "--json"]);
    assert_eq!(
        stdout(&output),
        "plan --shape=llada-8b --budget=1KiB --json\n"
    );
    std::fs::remove_file(&sibling).unwrap();
    symlink("/bin/false", &sibling).unwrap();
    let output = run(&["--shape", "llada-8b"]);
    assert_eq!((code(&output), stderr(&output).as_str()), (1, ""));
    // The loaded model's plan is only the daemon's to make.
    let output = run(&[]);
    assert_eq!(code(&output), 69);
    assert!(stderr(&output).contains("--shape"), "{}", stderr(&output));
}
