//! `sluiced check`: fixtures that come out equal, that differ, that aren't known, and folders that are none.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use safetensors::SafeTensors;
use serde_json::{Value, json};
use sluice_shared::exit;
use tempfile::TempDir;

use crate::support::{checkpoints, run};

async fn check(fixtures: &Path, arguments: &[&str]) -> Output {
    let folder = TempDir::new().unwrap();
    let fixtures = fixtures.to_str().unwrap();
    let words = [&["check", "--fixtures", fixtures], arguments].concat();
    run(folder.path(), &words).await
}

/// What is told as JSON, and the exit code.
async fn report(fixtures: &Path) -> (Value, u8) {
    let output = check(fixtures, &["--json"]).await;
    let said = text(&output.stderr);
    let report = serde_json::from_slice(&output.stdout).expect(&said);
    (report, code(&output))
}

fn code(output: &Output) -> u8 {
    output.status.code().unwrap() as u8
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A copy of a fixture, to change.
struct Copied {
    folder: TempDir,
    fixture: PathBuf,
}

impl Copied {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let fixture = folder.path().join("llama-tiny");
        fs::create_dir(&fixture).unwrap();
        for file in fs::read_dir(checkpoints::fixture("llama-tiny")).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), fixture.join(file.file_name())).unwrap();
        }
        Self { folder, fixture }
    }

    fn change(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let path = self.fixture.join(file);
        let mut value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut value);
        fs::write(path, value.to_string()).unwrap();
    }
}

/// The one case with this verdict.
fn only<'a>(report: &'a Value, verdict: &str) -> &'a Value {
    assert_eq!(report[verdict], 1, "{report:#}");
    let mut cases = report["cases"].as_array().unwrap().iter();
    cases.find(|case| case["verdict"] == verdict).unwrap()
}

#[tokio::test]
async fn all_cases_of_a_fixture_are_equal() {
    let fixture = checkpoints::fixture("llama-tiny");
    let output = check(&fixture, &[]).await;
    let said = text(&output.stdout);
    assert_eq!(code(&output), exit::OK, "{said}{}", text(&output.stderr));
    let (last, cases) = {
        let mut lines: Vec<_> = said.lines().collect();
        (lines.pop().unwrap(), lines)
    };
    assert_eq!(last, "on cpu: 7 equal, 0 differ, 0 unknown, 0 failed");
    assert_eq!(cases.len(), 7);
    for case in cases {
        assert!(case.starts_with("equal    llama-tiny: "), "{case}");
    }
    let (report, code) = report(&fixture).await;
    assert_eq!((report["equal"].as_u64(), code), (Some(7), exit::OK));
    assert_eq!(report["device"], "cpu");
}

#[tokio::test]
async fn a_token_that_differs_is_told_with_its_place() {
    let copied = Copied::new();
    copied.change("expected.json", |expected| {
        let token = &mut expected["generate"][1]["generated"][0][2];
        *token = json!(token.as_u64().unwrap() + 1);
    });
    let (report, code) = report(copied.folder.path()).await;
    assert_eq!(code, exit::FAILURE);
    assert_eq!(report["equal"], 6);
    let differs = only(&report, "differs");
    assert_eq!(differs["fixture"], "llama-tiny");
    let detail = differs["detail"].as_str().unwrap();
    assert!(detail.starts_with("prompt 0, token 2: "), "{detail}");
}

#[tokio::test]
async fn a_logit_that_differs_is_told_with_its_place() {
    let copied = Copied::new();
    let path = copied.fixture.join("expected.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let expected: Value =
        serde_json::from_slice(&fs::read(copied.fixture.join("expected.json")).unwrap()).unwrap();
    let name = expected["forward"][0]["name"].as_str().unwrap();
    let start = {
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = tensors.tensor(&format!("forward.{name}.logits")).unwrap();
        tensor.data().as_ptr() as usize - bytes.as_ptr() as usize
    };
    bytes[start + 4 * 9..][..4].copy_from_slice(&1e3f32.to_le_bytes());
    fs::write(path, bytes).unwrap();
    let (report, code) = report(copied.folder.path()).await;
    assert_eq!(code, exit::FAILURE);
    let differs = only(&report, "differs");
    assert_eq!(differs["what"], format!("logits of {name}"));
    let detail = differs["detail"].as_str().unwrap();
    assert!(detail.contains("row 0, token 9: "), "{detail}");
    assert!(detail.ends_with("1000 by the reference"), "{detail}");
}

#[tokio::test]
async fn an_unknown_algorithm_is_told_and_fails_nothing() {
    let copied = Copied::new();
    copied.change("expected.json", |expected| {
        expected["generate"][0]["algorithm"] = json!("one of tomorrow");
    });
    let (report, code) = report(&copied.fixture).await;
    assert_eq!((report["equal"].as_u64(), code), (Some(6), exit::OK));
    let detail = only(&report, "unknown")["detail"].as_str().unwrap();
    assert!(detail.contains("\"one of tomorrow\""), "{detail}");
}

#[tokio::test]
async fn where_nothing_is_known_nothing_is_equal() {
    let copied = Copied::new();
    copied.change("config.json", |config| {
        config["model_type"] = json!("one-of-tomorrow");
        config["architectures"] = json!(["OneOfTomorrow"]);
    });
    let output = check(&copied.fixture, &[]).await;
    assert_eq!(code(&output), exit::FAILURE);
    let said = text(&output.stdout);
    assert!(said.starts_with("unknown  llama-tiny: all: "), "{said}");
    assert!(text(&output.stderr).contains("nothing was compared"));
}

#[tokio::test]
async fn a_case_that_can_not_be_computed_fails() {
    let copied = Copied::new();
    fs::write(copied.fixture.join("expected.json"), "{").unwrap();
    let (report, code) = report(copied.folder.path()).await;
    assert_eq!(code, exit::FAILURE);
    let detail = only(&report, "failed")["detail"].as_str().unwrap();
    assert!(detail.contains("expected.json"), "{detail}");
}

#[tokio::test]
async fn a_folder_without_fixtures_is_explained() {
    let folder = TempDir::new().unwrap();
    let absent = folder.path().join("absent");
    for (path, words) in [
        (folder.path(), "is no fixture and holds none"),
        (&*absent, "cannot read"),
    ] {
        let output = check(path, &[]).await;
        assert_eq!(code(&output), exit::FAILURE);
        let said = text(&output.stderr);
        assert!(
            said.starts_with("sluiced: ") && said.contains(words),
            "{said}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[tokio::test]
async fn a_device_that_is_not_there_or_not_named_is_refused() {
    let fixture = checkpoints::fixture("llama-tiny");
    let output = check(&fixture, &["--device", "cuda:99"]).await;
    assert_eq!(code(&output), exit::FAILURE);
    assert!(text(&output.stderr).contains("\nhint: "));
    let output = check(&fixture, &["--device", "auto"]).await;
    assert_eq!(code(&output), exit::USAGE);
}
