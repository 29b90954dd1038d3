//! `sluice report` against a daemon that plays a script.

use std::fs;

use fake_daemon::{ChangeScript, FakeDaemon, ScriptStep, generation_events, switch_pictures};
use serde_json::Value;
use sluice_proto::v1::{
    EosPolicy, Level, generate_request::Input, measure_fidelity_request::Samples,
};
use testkit::eventually;
use tonic::Status;

use crate::support::{Client, code, interrupt, sluice, stderr, stdout};

fn fake(script: Vec<ScriptStep>) -> FakeDaemon {
    let change = ChangeScript {
        apply: switch_pictures(Level::Moderate),
        ..ChangeScript::default()
    };
    FakeDaemon::with_changes(script, change)
}

fn levels(fake: &FakeDaemon) -> Vec<Level> {
    let seen = fake.seen.lock().unwrap();
    let applied = seen.applied.iter();
    applied
        .map(|applied| applied.options.unwrap_or_default().level())
        .collect()
}

#[test]
fn each_level_is_a_row_and_the_one_before_is_in_force_again() {
    let fake = fake(generation_events("Once upon a time."));
    let output = fake.output(&["report"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let table = stdout(&output);
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows[0].starts_with("level       bits   weights"), "{table}");
    assert_eq!(
        rows[1],
        "off        not measured: level off can only be planned"
    );
    let names: Vec<_> = rows[2..7]
        .iter()
        .filter_map(|row| row.split_whitespace().next())
        .collect();
    assert_eq!(
        names,
        ["standard", "mild", "moderate", "aggressive", "optimized"]
    );
    for row in &rows[2..7] {
        assert!(row.contains(" 0.001250   98.75 %   1.6250"), "{row}");
        assert_eq!(row.len(), rows[0].len(), "{row}");
    }
    assert!(
        rows[7].starts_with("fake: 3 samples, 1,234 tokens, seed 0; "),
        "{table}"
    );
    assert_eq!(stderr(&output), "", "no progress without a terminal");
    assert_eq!(
        levels(&fake),
        [
            Level::Standard,
            Level::Mild,
            Level::Moderate,
            Level::Aggressive,
            Level::Optimized,
            Level::Standard,
        ]
    );
    let seen = fake.seen.lock().unwrap();
    // The weights of mild are those of standard.
    let measured: Vec<_> = seen.measured.iter().map(|asked| asked.level()).collect();
    assert_eq!(
        measured,
        [
            Level::Standard,
            Level::Moderate,
            Level::Aggressive,
            Level::Optimized
        ]
    );
    let asked = &seen.measured[0];
    assert_eq!((asked.seed, asked.max_samples), (Some(0), Some(16)));
    assert!(
        matches!(&asked.samples, Some(Samples::Texts(texts)) if texts.texts[0].contains("hedgehog")),
        "the demonstration model tells stories"
    );
    // A warm-up and a measurement of each level, all alike.
    assert_eq!(seen.generate.len(), 10);
    let (warmup, request) = (&seen.generate[0], &seen.generate[1]);
    assert_eq!((warmup.length, request.length), (Some(2), Some(32)));
    assert!(matches!(request.input, Some(Input::RawText(_))));
    let sampling = request.sampling.unwrap();
    assert!(sampling.greedy && sampling.eos_policy() == EosPolicy::Suppress);
    assert_eq!(seen.generate[9], *request);
}

#[test]
fn for_scripts_a_level_is_an_object_and_a_model_is_loaded_first() {
    let fake = fake(generation_events("Once."));
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    fs::write(&text, "One.\nTwo.\n").unwrap();
    let arguments = [
        "report",
        "o/m",
        "--levels",
        "off,q8,moderate,standard",
        "--text",
        text.to_str().unwrap(),
        "--samples=5",
        "--seed=7",
        "--length=9",
        "--json",
    ];
    let output = fake.output(&arguments);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let rows: Vec<Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    let names: Vec<_> = rows
        .iter()
        .map(|row| row["level"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["off", "moderate", "standard"], "each once");
    assert_eq!(rows[0]["problem"], "level off can only be planned");
    assert!(rows[0]["fidelity"].is_null() && rows[0]["peak_device_bytes"].is_null());
    assert_eq!(rows[1]["fidelity"]["mean_kl_nats"], 0.00125);
    assert!(rows[1]["tokens_per_second"].as_f64().unwrap() > 0.0);
    assert!(rows[1]["problem"].is_null() && rows[1]["equal_to"].is_null());
    let seen = fake.seen.lock().unwrap();
    assert_eq!(seen.loaded.len(), 1);
    let asked = &seen.measured[0];
    assert!(matches!(&asked.samples, Some(Samples::Texts(texts)) if texts.texts == ["One.\nTwo."]));
    assert_eq!((asked.seed, asked.max_samples), (Some(7), Some(5)));
    assert_eq!(seen.generate[1].length, Some(9));
}

#[test]
fn what_fails_at_every_level_is_told_and_the_level_is_put_back() {
    let refusal = ScriptStep::Fail(Status::failed_precondition("no room for the canvas"));
    let fake = fake(vec![refusal]);
    let output = fake.output(&["report", "--levels", "moderate,aggressive"]);
    assert_eq!(code(&output), 1);
    let table = stdout(&output);
    assert!(
        table.contains("moderate   not measured: no room for the canvas"),
        "{table}"
    );
    assert!(
        stderr(&output).contains("no level could be measured"),
        "{}",
        stderr(&output)
    );
    assert_eq!(
        levels(&fake),
        [Level::Moderate, Level::Aggressive, Level::Standard]
    );
    let wrong = sluice(&["report", "--levels", "auto"]).output();
    assert_eq!(code(&wrong.unwrap()), 64);
}

#[test]
fn an_interrupt_puts_the_level_back() {
    let fake = fake(vec![ScriptStep::Hang]);
    let arguments = ["report", "--levels", "aggressive"];
    let child = fake.sluice(&arguments).spawn().unwrap();
    eventually("the level to be generated at", || {
        !fake.seen.lock().unwrap().generate.is_empty()
    });
    let output = interrupt(child);
    assert_eq!(code(&output), 130, "{}", stderr(&output));
    assert!(stderr(&output).contains("the report is not complete"));
    assert_eq!(levels(&fake), [Level::Aggressive, Level::Standard]);
}
