//! `sluiced plan`: what it prints of published shapes and of checkpoints, and what it refuses.

use std::process::Output;

use serde_json::Value;
use sluice_checkpoint::family::PUBLISHED_SHAPES;
use sluice_shared::exit;
use tempfile::TempDir;

use crate::support::{checkpoints, run};

async fn plan(arguments: &[&str]) -> Output {
    let folder = TempDir::new().unwrap();
    run(folder.path(), &[&["plan"], arguments].concat()).await
}

fn code(output: &Output) -> u8 {
    output.status.code().unwrap() as u8
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn a_published_shape_is_planned_without_a_file() {
    let ask = ["--shape", "llada-8b", "--budget", "4GiB", "--canvas", "64"];
    let output = plan(&[&ask[..], &["--json"]].concat()).await;
    assert_eq!(code(&output), exit::OK, "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let budget = 4u64 << 30;
    assert_eq!(json["budget_bytes"], budget);
    let peak = json["peak_bytes"].as_u64().unwrap();
    assert!(peak <= budget && peak > budget / 2, "{peak}");
    assert!(json["streamed_bytes_per_pass"].as_u64().unwrap() > 10 << 30);
    assert_eq!(json["layers"].as_array().unwrap().len(), 34);

    let output = plan(&ask).await;
    let table = text(&output.stdout);
    let first = "llada-8b at level standard within 4.00 GiB; canvas 64, block 32, 1 request";
    assert_eq!(table.lines().next(), Some(first));
    for words in [
        "\npeak ",
        "\npass ",
        "\nstreamed ",
        "\nstaging ",
        "streamed from ",
    ] {
        assert!(table.contains(words), "{table}");
    }
}

#[tokio::test]
async fn all_published_shapes_are_planned_at_once() {
    let ask = ["--all", "--budget", "8GiB"];
    let output = plan(&[&ask[..], &["--json"]].concat()).await;
    assert_eq!(code(&output), exit::OK, "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["shapes"].as_array().unwrap();
    assert_eq!(rows.len(), PUBLISHED_SHAPES.len());
    let row = |name: &str| rows.iter().find(|row| row["shape"] == name).unwrap();
    // The most faithful level at which it fits, and no more than the budget.
    let fits = |name: &str| (row(name)["fit"].clone(), row(name)["level"].clone());
    let expected = |fit: &str, level: &str| (Value::from(fit), Value::from(level));
    assert_eq!(fits("sdar-1.7b"), expected("resident", "standard"));
    assert_eq!(fits("llada-8b"), expected("resident", "moderate"));
    assert_eq!(fits("llama-3-70b").0, "streamed");
    assert!(
        row("llama-3-70b")["streamed_bytes_per_pass"]
            .as_u64()
            .unwrap()
            > 20 << 30
    );
    let peaks = rows.iter().map(|row| row["peak_bytes"].as_u64().unwrap());
    assert!(peaks.max().unwrap() <= 8 << 30);
    assert_eq!(row("llada2-mini")["license"], "apache-2.0");
    assert_eq!(row("llada-1b")["license"], Value::Null);
    // What a pass writes is published, or one token.
    let a_pass = |name: &str| row(name)["tokens_per_pass"].as_f64().unwrap();
    assert_eq!([a_pass("llada2-mini"), a_pass("qwen3-8b")], [2.6, 1.0]);

    // As a table, whose columns stand below each other.
    let output = plan(&[&ask[..], &["--level", "aggressive", "--canvas", "64"]].concat()).await;
    let table = text(&output.stdout);
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines[0], "published shapes within 8.00 GiB");
    let column = lines[1].find("LEVEL").unwrap();
    for line in &lines[2..2 + PUBLISHED_SHAPES.len()] {
        assert!(line[column..].starts_with("aggressive "), "{line}");
    }
    assert!(
        table.contains("\nnote: tokens a pass are those that"),
        "{table}"
    );

    // Too little for most is a reason in the row.
    let output = plan(&["--all", "--budget", "64MiB"]).await;
    assert_eq!(code(&output), exit::OK);
    assert!(text(&output.stdout).contains("too small"));
    for conflict in [["--shape", "llada-8b"], ["--model", "x"]] {
        let output = plan(&[&["--all"][..], &conflict].concat()).await;
        assert_eq!(code(&output), exit::USAGE, "{conflict:?}");
    }
}

#[tokio::test]
async fn a_checkpoint_is_planned_from_its_headers() {
    let folder = checkpoints::fixture("llada-tiny");
    let folder = folder.to_str().unwrap();
    let output = plan(&["--model", folder, "--level", "moderate", "--json"]).await;
    assert_eq!(code(&output), exit::OK, "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["model"], "llada-tiny");
    assert_eq!(json["workload"]["canvas_length"], 256);
    assert_eq!(json["layers"][1]["groups"][0]["format"]["dtype"], "q8_0");
    assert_eq!(json["is_lossless"], false);
    assert!(json["pass_ms"].as_f64().unwrap() > 0.0);
}

#[tokio::test]
async fn what_can_not_be_planned_is_explained() {
    let preset = ["--shape", "llada-8b"];
    let cases: [(&[&str], u8, &[&str]); 8] = [
        (
            &["--shape", "gpt-9"],
            exit::USAGE,
            &["gpt-9", "llada-8b", "dream-7b"],
        ),
        (&[], exit::USAGE, &["--shape", "--model"]),
        (
            &["--preset", "llada-8b"],
            exit::USAGE,
            &["tip: '--preset' is now '--shape'"],
        ),
        (
            &["--shape", "llada-8b", "--level", "extreme"],
            exit::USAGE,
            &["known are off, standard"],
        ),
        (
            &["--shape", "llada-8b", "--budget", "-5"],
            exit::USAGE,
            &["write it like 4GiB"],
        ),
        (
            &["--shape", "llada-8b", "--canvas", "0"],
            exit::USAGE,
            &["workload.canvas_length: must be at least 1"],
        ),
        (
            &["--shape", "llada-8b", "--canvas", "4097"],
            exit::FAILURE,
            &["a canvas of 4097 positions exceeds the model's context length of 4096"],
        ),
        (
            &["--model", "nowhere"],
            exit::FAILURE,
            &["nowhere", "hint: check the path"],
        ),
    ];
    for (arguments, expected, words) in cases {
        let output = plan(arguments).await;
        let said = text(&output.stderr);
        assert_eq!(code(&output), expected, "{arguments:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{arguments:?}: {said}");
        }
    }

    let output = plan(&[&preset[..], &["--budget", "64MiB"]].concat()).await;
    let said = text(&output.stderr);
    assert_eq!(code(&output), exit::FAILURE);
    let (_, least) = said
        .split_once("sluice budget ")
        .expect("names the minimum");
    let least = least.split_whitespace().next().unwrap();
    let output = plan(&[&preset[..], &["--budget", least]].concat()).await;
    assert_eq!(code(&output), exit::OK, "{}", text(&output.stderr));
}
