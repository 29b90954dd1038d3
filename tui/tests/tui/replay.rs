//! Saved runs, which need no daemon.

use std::fs;

use fake_daemon::{FakeDaemon, generation_events};

use crate::support::{Client, code, run_with_input, sluice, stderr, stdout};

#[test]
fn what_generate_printed_can_be_replayed() {
    let fake = FakeDaemon::start(generation_events("once upon a time"));
    let run = fake.output(&["generate", "hi", "--json"]).stdout;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.jsonl");
    fs::write(&file, &run).unwrap();
    let file = file.to_str().expect("a plain name");

    let output = sluice(&["replay", file]).output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stdout(&output), "once upon a time\n");
    assert_eq!(stderr(&output), "");
    let output = sluice(&["replay", file, "--json"]).output().unwrap();
    assert_eq!(output.stdout, run);
    let output = run_with_input(sluice(&["replay", "-"]), &run);
    assert_eq!(stdout(&output), "once upon a time\n");

    // Whoever wrote it was stopped in the middle of the last event.
    let half = &run[..run.len() - 9];
    let output = run_with_input(sluice(&["replay", "-"]), half);
    assert_eq!(code(&output), 0);
    assert_eq!(stderr(&output), "the run was saved before its end\n");
}

#[test]
fn what_is_no_run_is_told_with_its_line() {
    let output = run_with_input(sluice(&["replay", "-"]), b"{\"event\":\"queued\"}\nhello\n");
    assert_eq!(code(&output), 1);
    let told = stderr(&output);
    assert!(
        told.contains("standard input, line 2: expected value"),
        "{told}"
    );
    let output = sluice(&["replay", "/nowhere/run.jsonl"]).output().unwrap();
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("open /nowhere/run.jsonl: "));
    assert_eq!(code(&sluice(&["replay"]).output().unwrap()), 64);
}
