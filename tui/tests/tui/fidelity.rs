//! `sluice fidelity` against a daemon that plays a script.

use std::{fs, path::PathBuf};

use fake_daemon::{ChangeScript, FakeDaemon};
use serde_json::Value;
use sluice_proto::v1::{Level, MeasureFidelityRequest, measure_fidelity_request::Samples};

use crate::support::{Client, code, run_with_input, stderr, stdout};

/// A folder with a text of three lines.
fn stories() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stories.txt");
    fs::write(&file, "One.\n\nTwo.\nThree.\n").unwrap();
    (folder, file)
}

fn text(request: &MeasureFidelityRequest) -> &str {
    match &request.samples {
        Some(Samples::Texts(texts)) => &texts.texts[0],
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_levels_are_measured_on_one_text_with_the_same_masks() {
    let fake = FakeDaemon::start(vec![]);
    let (_folder, file) = stories();
    let arguments = ["fidelity", file.to_str().unwrap(), "--level", "all"];
    let output = fake.output(&arguments);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "\
level        mean KL  same top   source    level      peak   a pass
standard    0.001250   98.75 %   1.5000   1.6250  3.00 GiB   620 ms
mild       same weights as standard: not measured again
moderate    0.001250   98.75 %   1.5000   1.6250  3.00 GiB   620 ms
aggressive  0.001250   98.75 %   1.5000   1.6250  3.00 GiB   620 ms
3 samples, 1,234 tokens, seed 99; KL and bounds in nats a token, peak and pass as planned
"
    );
    assert_eq!(stderr(&output), "", "no progress without a terminal");
    let seen = fake.seen.lock().unwrap();
    let asked: Vec<_> = seen
        .measured
        .iter()
        .map(|request| (request.level(), request.seed))
        .collect();
    assert_eq!(
        asked,
        [
            (Level::Standard, None),
            (Level::Moderate, Some(99)),
            (Level::Aggressive, Some(99))
        ]
    );
    assert!(
        seen.measured
            .iter()
            .all(|request| text(request) == "One.\n\nTwo.\nThree.")
    );
}

#[test]
fn standard_input_is_measured_at_the_level_in_force_and_as_json() {
    let fake = FakeDaemon::start(vec![]);
    let arguments = ["fidelity", "--samples", "5", "--seed", "1", "--json"];
    let output = run_with_input(fake.sluice(&arguments), b"One.\nTwo.\n");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let value: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(value["level"], "standard");
    let result = &value["result"];
    assert_eq!(result["mean_kl_nats"], 0.00125);
    assert_eq!(result["seed"], 1);
    assert_eq!(value["peak_bytes"], 3_u64 << 30);
    assert_eq!(value["pass_ms"], 620.0);
    let seen = fake.seen.lock().unwrap();
    let request = &seen.measured[0];
    assert_eq!(
        (text(request), request.level()),
        ("One.\nTwo.", Level::Unspecified)
    );
    assert_eq!((request.max_samples, request.seed), (Some(5), Some(1)));
}

#[test]
fn what_is_no_text_is_refused_before_the_daemon_is_looked_for() {
    let (folder, _) = stories();
    let with = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    for (file, problem) in [
        (with("empty", b""), "holds no text"),
        (with("blank", b" \n\n"), "holds no text"),
        (with("binary", b"ab\xff"), "is not UTF-8 at byte 2"),
        (
            with("large", &vec![b'a'; (1 << 20) + 1]),
            "holds more than 1 MiB",
        ),
        ("/nonexistent/x".to_owned(), "open /nonexistent/x: "),
        (folder.path().to_str().unwrap().to_owned(), "directory"),
    ] {
        let socket = "/nonexistent/sluice.sock";
        let arguments = ["--socket", socket, "fidelity", &file];
        let output = crate::support::sluice(&arguments).output().unwrap();
        assert_eq!(code(&output), 1, "{file}");
        let error = stderr(&output);
        assert!(
            error.starts_with("error: ") && error.contains(problem),
            "{error}"
        );
    }
    let output = crate::support::sluice(&["fidelity", "--level", "extreme"]).output();
    assert_eq!(code(&output.unwrap()), 64);
}

#[test]
fn a_level_that_can_not_be_loaded_costs_no_time() {
    let fake = FakeDaemon::start(vec![]);
    let (_folder, file) = stories();
    let file = file.to_str().unwrap();
    let output = fake.output(&["fidelity", file, "--level", "standard", "--level", "off"]);
    assert_eq!((code(&output), stdout(&output).as_str()), (1, ""));
    assert!(
        stderr(&output).starts_with("error: level off can only be planned\n"),
        "{}",
        stderr(&output)
    );
    assert!(fake.seen.lock().unwrap().measured.is_empty());
}

#[test]
fn a_measurement_without_a_result_is_a_failure() {
    let change = ChangeScript {
        hangs: true,
        ..Default::default()
    };
    let fake = FakeDaemon::with_changes(vec![], change);
    let (_folder, file) = stories();
    let output = fake.output(&["fidelity", file.to_str().unwrap()]);
    assert_eq!((code(&output), stdout(&output).as_str()), (1, ""));
    assert!(stderr(&output).contains("without a result"));
}

#[test]
fn what_was_measured_before_is_shown_without_measuring() {
    let fake = FakeDaemon::start(vec![]);
    let output = fake.output(&["fidelity", "--show"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "nothing was measured since the daemon started\n"
    );
    let (_folder, file) = stories();
    let measure = ["fidelity", file.to_str().unwrap(), "--level", "moderate"];
    assert_eq!(code(&fake.output(&measure)), 0);
    let output = fake.output(&["fidelity", "--show"]);
    let text = stdout(&output);
    let mut lines = text.lines();
    let heading = lines.next().expect("a heading");
    assert!(heading.starts_with("level        mean KL"), "{text}");
    let row = lines.next().expect("a row");
    assert!(
        row.starts_with("moderate    0.001250   98.75 %   1,234"),
        "{text}"
    );
    assert!(row.ends_with("  fake") && lines.next().is_none(), "{text}");
    let output = fake.output(&["fidelity", "--show", "--json"]);
    let row: Value = serde_json::from_str(&stdout(&output)).expect("an object");
    assert_eq!(
        (&row["model"], &row["result"]["level"]),
        (&"fake".into(), &"moderate".into())
    );
    assert_eq!(fake.seen.lock().unwrap().measured.len(), 1);
    let output = fake.output(&["fidelity", "--show", "--level", "all"]);
    assert_eq!(code(&output), 64);
}
