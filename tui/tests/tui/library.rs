//! The commands for models on disk, against a daemon that plays a script.

use fake_daemon::{ChangeScript, FakeDaemon, operation};
use sluice_proto::v1::{
    ModelRef, Operation, OperationKind, OperationProgress, PullPlan, model_ref::By,
    operation::Detail,
};

use crate::support::{Client, code, interrupt, said, stderr, stdout};

fn pulling(hangs: bool) -> FakeDaemon {
    let plan = PullPlan {
        name: "o/m:Q8_0".into(),
        files: 3,
        total_bytes: 4 << 30,
        present_bytes: 1 << 30,
        folder: "/models/o/m:Q8_0".into(),
        ..Default::default()
    };
    let progress = OperationProgress {
        item: "m.gguf".into(),
        done: 2 << 30,
        total: Some(4 << 30),
        ..Default::default()
    };
    let begun = operation(OperationKind::Pull);
    let planned = Operation {
        detail: Some(Detail::PullPlan(plan)),
        ..begun.clone()
    };
    let stalled = Operation {
        notices: vec!["the hub stalls\x1b[2J".into()],
        ..planned.clone()
    };
    let under_way = Operation {
        progress: Some(progress),
        ..stalled.clone()
    };
    let pull = vec![begun, planned, stalled, under_way];
    let change = ChangeScript {
        pull,
        hangs,
        ..Default::default()
    };
    FakeDaemon::with_changes(Vec::new(), change)
}

#[test]
fn a_pull_tells_what_comes_and_what_came() {
    let fake = pulling(false);
    let mut command = fake.sluice(&["pull", "o/m", "--file", "m.gguf", "--revision", "v1"]);
    let output = command.env("HF_TOKEN", "hf_mine").output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "pulled o/m (available): 3.00 GiB of safetensors, from /models/o/m\n"
    );
    let told = stderr(&output);
    assert!(
        told.contains(
            "o/m:Q8_0: 3 files, 4.00 GiB, 1.00 GiB already downloaded; into /models/o/m:Q8_0"
        ),
        "{told}"
    );
    assert!(told.contains("note: the hub stalls"), "{told}");
    assert!(told.contains("`sluice load o/m`"), "{told}");
    assert!(
        !told.contains('\x1b') && !told.contains("hf_mine"),
        "{told:?}"
    );
    let seen = fake.seen.lock().unwrap();
    let asked = &seen.pulled[0];
    assert_eq!(asked.model, By::Name("o/m".into()).into());
    assert_eq!(
        (
            asked.file_name.as_str(),
            asked.revision.as_str(),
            asked.hub_token.as_str()
        ),
        ("m.gguf", "v1", "hf_mine")
    );
}

#[test]
fn a_pull_for_scripts_is_a_line_a_picture() {
    let fake = pulling(false);
    let output = fake.output(&["pull", "o/m", "--json"]);
    let lines: Vec<serde_json::Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let states: Vec<_> = lines
        .iter()
        .map(|line| line["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["running", "running", "running", "running", "done"]);
    assert_eq!(lines[1]["pull_plan"]["files"], 3);
    assert_eq!(lines[2]["notices"][0], "the hub stalls\u{1b}[2J");
    assert_eq!(lines[4]["pull"]["model"]["name"], "o/m");
    assert_eq!(stderr(&output), "");
}

#[test]
fn an_interrupt_cancels_the_download() {
    let fake = pulling(true);
    let mut child = fake.sluice(&["pull", "o/m"]).spawn().unwrap();
    said(child.stderr.as_mut().expect("a pipe"), "o/m:Q8_0: 3 files");
    let output = interrupt(child);
    assert_eq!(code(&output), 130);
    let told = stderr(&output);
    assert!(
        told.contains("error: interrupted; the downloaded part is kept"),
        "{told}"
    );
    assert!(
        told.contains("hint: run the same command again to resume"),
        "{told}"
    );
    assert_eq!(fake.seen.lock().unwrap().operations_cancelled, [5]);
}

#[test]
fn the_list_says_what_is_where_and_which_is_the_default() {
    let fake = FakeDaemon::start(Vec::new());
    let output = stdout(&fake.output(&["list"]));
    let lines: Vec<_> = output.lines().collect();
    assert_eq!(
        lines,
        [
            "  NAME  STATE      FAMILY        PARAMETERS      SIZE  FORMAT       LICENCE     FROM",
            "  fake  loaded     ?                      ?         ?               apache-2.0  demonstration model, inside sluiced",
            "* o/m   on disk    llada      1,500,000,000  3.00 GiB  safetensors  unknown     /models/o/m",
            "",
            "converted weights, 3.00 MiB of at most 32.0 GiB in /cache; `sluice rm --converted NAME` removes a model's",
            "  tiny  moderate    3.00 MiB  in use",
        ]
    );
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&fake.output(&["list", "--json"]))).unwrap();
    assert_eq!(json["models"][1]["origin"], "pulled");
    assert_eq!(json["models"][1]["is_default"], true);
    assert_eq!(json["converted_weights"][0]["level"], "moderate");
    assert_eq!(json["converted_weights_folder"], "/cache");
}

#[test]
fn models_are_removed_inspected_and_unloaded_by_name() {
    let fake = FakeDaemon::start(Vec::new());
    let output = fake.output(&["rm", "o/m", "--force"]);
    assert_eq!(stdout(&output), "removed o/m, 3.00 GiB freed\n");
    let output = fake.output(&["rm", "o/m", "--json"]);
    let removed: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(removed["freed_bytes"], 3_u64 << 30);
    assert_eq!(removed["kept_path"], "");
    let output = fake.output(&["rm", "--converted", "tiny"]);
    assert_eq!(stdout(&output), "there are no converted weights of tiny\n");
    assert!(fake.seen.lock().unwrap().removed[2].converted_weights_only);
    let output = fake.output(&["unload"]);
    assert_eq!(
        stdout(&output),
        "unloaded fake: device 3.00 GiB → 8.00 MiB, sluiced 4.00 GiB → 40.0 MiB resident\n"
    );
    let output = stdout(&fake.output(&["inspect", "o/m"]));
    for line in [
        "o/m (available)",
        "  path             /models/o/m",
        "  BF16                 12 with 1,500,000,000 parameters, 2.79 GiB",
        "  mild             2.00 GiB, of it weights 1.00 GiB; not yet",
        "  moderate         2.00 GiB, of it weights 1.00 GiB; fits the budget",
    ] {
        assert!(
            output.lines().any(|found| found == line),
            "{line:?} in {output}"
        );
    }
    assert!(!output.contains('\x1b'), "{output:?}");
    fake.output(&["inspect", "./src", "--json"]);
    for arguments in [&["inspect", "o/odd"][..], &["inspect", "o/odd", "--json"]] {
        let output = fake.output(arguments);
        assert_eq!(code(&output), 1);
        assert!(stdout(&output).contains("mild"), "what is known is told");
        let told = stderr(&output);
        assert!(
            told.contains("it cannot be loaded: its model_type 'odd'"),
            "{told}"
        );
        assert!(!told.contains('\x1b'), "{told:?}");
    }
    fake.output(&["load", "o/m", "--default"]);
    let seen = fake.seen.lock().unwrap();
    assert!(seen.removed[0].force);
    let model: Option<ModelRef> = By::Name("o/m".into()).into();
    assert_eq!(seen.inspected[0].model, model);
    let Some(By::Path(path)) = seen.inspected[1].model.clone().and_then(|model| model.by) else {
        panic!("{:?}", seen.inspected);
    };
    assert!(path.ends_with("/src"));
    assert!(seen.loaded[0].model == model && seen.loaded[0].make_default);
}
