//! Saved runs, which need no daemon.

use std::{fs, path::Path};

use fake_daemon::{FakeDaemon, generation_events};
use serde_json::Value;

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

/// Keys that runs of November 2026 have, and those of the same values today.
const RENAMED: [(&str, &str); 15] = [
    ("committed", "committed_positions"),
    ("cut", "is_truncated"),
    ("decode_ms", "decompress_ms"),
    ("done", "done_steps"),
    ("epoch", "weights_version"),
    ("exact", "is_exact"),
    ("fresh", "is_fresh"),
    ("head_ms", "lm_head_ms"),
    ("head_rows", "lm_head_rows"),
    ("multiply_ms", "matmul_ms"),
    ("pass_in_block", "passes_in_block"),
    ("requests", "batch_requests"),
    ("sampling", "settings"),
    ("seed_drawn", "is_seed_drawn"),
    ("switching", "weight_switch"),
];

/// Whether everything of the old value is in the new one, under its name of today.
fn has_all(new: &Value, old: &Value, at: &str) {
    match old {
        Value::Object(fields) => {
            for (key, value) in fields {
                let today = match &key[..] {
                    "steps" if fields.contains_key("done") => "total_steps",
                    "tokens" if value.get(0).is_some_and(Value::is_number) => "token_ids",
                    key => {
                        let row = RENAMED.iter().find(|(then, _)| *then == key);
                        row.map_or(key, |(_, now)| now)
                    }
                };
                has_all(&new[today], value, &format!("{at}.{key}"));
            }
        }
        Value::Array(items) => {
            assert_eq!(new.as_array().map(Vec::len), Some(items.len()), "{at}");
            for (index, item) in items.iter().enumerate() {
                has_all(&new[index], item, &format!("{at}[{index}]"));
            }
        }
        other => assert_eq!(new, other, "{at}"),
    }
}

#[test]
fn runs_that_earlier_builds_saved_open_with_everything_in_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for name in ["causal", "chat", "edit", "pins", "switch"] {
        let file = folder.join(format!("run-2026-11-{name}.jsonl"));
        let old = fs::read_to_string(&file).unwrap();
        let file = file.to_str().expect("a plain name");
        let output = sluice(&["replay", file, "--json"]).output().unwrap();
        assert_eq!(code(&output), 0, "{name}: {}", stderr(&output));
        let new = stdout(&output);
        assert_eq!(new.lines().count(), old.lines().count(), "{name}");
        for (number, (new, old)) in new.lines().zip(old.lines()).enumerate() {
            let line = |text| serde_json::from_str::<Value>(text).unwrap();
            has_all(
                &line(new),
                &line(old),
                &format!("{name}, line {}", number + 1),
            );
        }
    }
}
