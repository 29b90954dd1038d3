//! Saved runs, which need no daemon.

use std::{fs, path::Path};

use fake_daemon::{FakeDaemon, generation_events};
use serde_json::{Value, json};
use sluice_proto::v1;
use sluice_shared::decoding::KvCacheReuse;

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

/// Checks the options that stood beside the other fields of `started`, as words, and takes them out of the old line.
fn take_options(new: &Value, old: &mut Value, at: &str) {
    let fields = old.as_object_mut().expect("an event is an object");
    let mut take = |key| fields.remove(key).expect("it was always there");
    let [steps, policy, preset, cache, window, growth, speculation] = [
        "steps",
        "policy",
        "dial",
        "cache",
        "window",
        "growth",
        "speculation",
    ]
    .map(&mut take);
    let diffusion = &new["diffusion"];
    if preset == "" {
        assert!(diffusion.is_null(), "{at}: autoregressive");
        return;
    }
    let reuse: KvCacheReuse = cache.as_str().unwrap().parse().unwrap();
    let kind = speculation.as_str().unwrap().split(':').next();
    for (key, now, then) in [
        ("steps", &diffusion["steps"], steps),
        ("policy", &diffusion["policy"], policy),
        ("preset", &diffusion["preset"], preset),
        (
            "kv_cache",
            &diffusion["kv_cache"],
            json!(v1::KvCacheReuse::from(reuse)),
        ),
        ("suffix_window", &diffusion["suffix_window"], window),
        ("canvas_growth", &diffusion["canvas_growth"], growth),
        (
            "speculation",
            &diffusion["speculation"]["kind"],
            json!(kind),
        ),
    ] {
        assert_eq!(*now, then, "{at}.{key}");
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
            let (new, mut old) = (line(new), line(old));
            let at = format!("{name}, line {}", number + 1);
            if old["event"] == "started" {
                take_options(&new, &mut old, &at);
            }
            has_all(&new, &old, &at);
        }
    }
}
