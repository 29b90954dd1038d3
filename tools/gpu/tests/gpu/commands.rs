//! `sluice-gpu check` and `sluice-gpu bench` on the stand-in for NVIDIA's libraries, whatever this machine has.

use std::path::Path;

use sluice_shared::exit;
use tempfile::TempDir;
use testkit::stand_in;

use crate::support::{self, command, within};

/// What `sluice-gpu …` prints, and its exit code.
async fn gpu(
    libraries: &Path,
    environment: &[(&str, &str)],
    arguments: &[&str],
) -> (serde_json::Value, Option<i32>) {
    let output = command(libraries, environment).args(arguments).output();
    let output = within("sluice-gpu to end", output).await.unwrap();
    let report = serde_json::from_slice(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    (report.expect(&said), output.status.code())
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn a_check_reports_what_it_found_before_the_gpu_failed() {
    let libraries = stand_in::build();
    let failing = [("STAND_IN_FAIL_KERNEL", "multiply_few_f32_q6_k")];
    let (report, code) = gpu(libraries, &failing, &["check", "--compute-dtype", "f32"]).await;
    assert_eq!(code, Some(exit::FAILURE.into()));
    assert_eq!(report["device"]["kind"], "cuda");
    assert_eq!(report["failed"], 1);
    let checks = report["checks"].as_array().unwrap();
    let (last, before) = checks.split_last().unwrap();
    assert!(before.len() > 50 && before.iter().all(|check| check["passes"] == true));
    assert_eq!(last["passes"], false);
    assert!(
        last["cause"]
            .as_str()
            .unwrap()
            .contains("illegal memory access"),
        "{last}"
    );
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn a_benchmark_compares_the_account_with_what_the_driver_says() {
    let libraries = stand_in::build();
    let model = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../daemon/engine/tests/fixtures/llada-tiny"
    );
    let arguments = [
        "bench",
        "--only-passes",
        "--model",
        model,
        "--canvas",
        "8",
        "--passes",
        "2",
    ];
    let (report, code) = gpu(libraries, &[], &arguments).await;
    assert_eq!(code, Some(exit::OK.into()), "{report}");
    let load = &report["loads"][0];
    assert_eq!(load["passes"][0]["pass_s"].as_array().unwrap().len(), 2);
    let gpu = &load["gpu"];
    assert_eq!(gpu["agrees"], true);
    assert_eq!(gpu["kept_bytes"], 0);
    assert!(
        gpu["counted_bytes"].as_u64() <= gpu["taken_bytes"].as_u64(),
        "{gpu}"
    );
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn a_benchmark_streams_within_a_budget_and_goes_on_when_a_part_fails() {
    let libraries = stand_in::build();
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("model");
    support::write_model(&model);
    let model = model.to_str().unwrap();
    // The driver takes 128 MiB, the model some 30; nothing fits the first budget.
    let arguments = [
        "bench",
        "--only-passes",
        "--model",
        model,
        "--budgets",
        "130MiB,152MiB,190MiB",
        "--canvas",
        "8",
        "--passes",
        "2",
        "--requests",
        "2",
    ];
    let (report, code) = gpu(libraries, &[], &arguments).await;
    assert_eq!(code, Some(exit::FAILURE.into()), "{report}");
    let failures = report["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 1, "{report}");
    assert!(failures[0]["cause"].as_str().unwrap().contains("too small"));
    let [resident, streamed, fits] = &report["loads"].as_array().unwrap()[..] else {
        panic!("{report}");
    };
    assert_eq!(resident["passes"][0]["streamed_bytes"], 0);
    assert_eq!(resident["requests"], serde_json::Value::Null);
    assert_eq!(resident["same_tokens"], serde_json::Value::Null);
    assert_eq!(streamed["same_tokens"], true);
    let pass = &streamed["passes"][0];
    assert!(pass["streamed_bytes"].as_u64() > Some(0), "{pass}");
    assert!(pass["streaming_efficiency"].as_f64() > Some(0.0), "{pass}");
    assert_eq!(pass["floors"]["gpu_is_measured"], true);
    assert_eq!(pass["peak"]["is_within_budget"], true, "{pass}");
    assert_eq!(streamed["requests"][0]["most_shared_by"], 2, "{streamed}");
    assert_eq!(fits["as_without_budget"], true);
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn a_benchmark_times_whole_passes_and_those_of_a_block_apart() {
    let libraries = stand_in::build();
    let model = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../daemon/engine/tests/fixtures/llada-tiny"
    );
    let words = "bench --only-passes --kv-cache dual --canvas 128 --passes 3 --model";
    let arguments: Vec<&str> = words.split(' ').chain([model]).collect();
    let (report, code) = gpu(libraries, &[], &arguments).await;
    assert_eq!(code, Some(exit::OK.into()), "{report}");
    let rows = report["loads"][0]["passes"][0]["rows"].to_string();
    assert_eq!(rows, "[128,32,32]");
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn a_check_finds_no_leak_and_ends_when_its_time_is_up() {
    let libraries = stand_in::build();
    let arguments = [
        "check",
        "--no-operations",
        "--compute-dtype",
        "f32",
        "--requests",
        "10",
    ];
    let (report, code) = gpu(libraries, &[], &arguments).await;
    assert_eq!(code, Some(exit::OK.into()), "{report}");
    let checks = report["checks"].as_array().unwrap();
    let names: Vec<_> = checks.iter().map(|check| &check["name"]).collect();
    assert!(
        names
            .iter()
            .any(|name| *name == "10 requests: bytes not given back, by the driver's")
    );
    let beside_plan = "requests: most held by the driver's account, beside the plan";
    assert!(names.iter().any(|name| *name == beside_plan), "{names:?}");
    let during = report["requests"]["during"].as_array().unwrap();
    assert_eq!(during.last().unwrap()["answered"], 10);
    assert_eq!(report["stopped"], false);

    let words = "check --compute-dtype f32 --requests 10 --minutes 0";
    let (report, code) = gpu(libraries, &[], &words.split(' ').collect::<Vec<_>>()).await;
    assert_eq!(code, Some(exit::OK.into()), "{report}");
    assert_eq!(report["device"]["kind"], "cuda");
    assert_eq!(report["stopped"], true);
    assert_eq!(report["checks"], serde_json::json!([]));
    assert_eq!(report["requests"], serde_json::Value::Null);
}
