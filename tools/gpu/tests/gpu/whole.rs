//! `tools/measure/on_gpu.py`, which runs everything that is wanted from a machine with a GPU, at a small size.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use testkit::stand_in;
use tokio::process::Command;

/// All parts but PyTorch's.
const PARTS: [&str; 8] = [
    "check",
    "standard",
    "operations",
    "requests",
    "moderate",
    "aggressive",
    "dual-cache",
    "mild",
];

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn one_command_runs_every_part() {
    let libraries = stand_in::build();
    let folder = TempDir::new().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // Tests of the daemon build it; it lies beside this crate's program.
    let sluiced = Path::new(env!("CARGO_BIN_EXE_sluice-gpu")).with_file_name("sluiced");
    assert!(sluiced.exists(), "build the workspace first");
    let shape =
        "--layers 2 --hidden-size 256 --attention-heads 4 --intermediate-size 512 --vocab-size 512";
    let output = Command::new("python3")
        .arg(source.join("tools/measure/on_gpu.py"))
        .arg(folder.path().join("out"))
        .arg("--sluiced")
        .arg(&sluiced)
        .args(["--shape", shape, "--parts", &PARTS.join(",")])
        .args(["--operations", "--hidden-size 256", "--budgets", "1GB"])
        .args(["--minutes", "10", "--canvas", "8", "--passes", "2"])
        .args(["--requests", "10", "--together", "1,2"])
        .env("LD_LIBRARY_PATH", libraries)
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let found = std::fs::read(folder.path().join("out/on_gpu.json")).unwrap();
    let found: Value = serde_json::from_slice(&found).unwrap();
    assert!(found["machine"]["sluiced"].is_string(), "{found}");
    for part in PARTS {
        let [run] = &found["parts"][part].as_array().unwrap()[..] else {
            panic!("{part}: {said}");
        };
        // Other tests run every check to its end; of what the stand-in takes minutes for, the minutes' share is enough here.
        let ends: &[&str] = match part {
            "check" => &[
                "done",
                "cut short, its time was up",
                "stopped, its time was up",
            ],
            _ => &["done"],
        };
        let outcome = run["outcome"].as_str().unwrap();
        assert!(ends.contains(&outcome), "{part} {outcome}: {said}");
        assert_eq!(run["report"]["device"]["kind"], "cuda", "{part}");
    }
    let check = &found["parts"]["check"][0]["report"];
    assert!(check["checks"].as_array().unwrap().len() > 20, "{check}");
}
