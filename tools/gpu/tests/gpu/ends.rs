//! `sluice-gpu …` that is ended early, or finds memory other than expected: what it has found is reported all the same.

use std::{fs, path::Path, process::Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sluice_shared::exit;
use tempfile::TempDir;
use testkit::stand_in;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines},
    process::{Child, ChildStderr},
};

use crate::support::{self, command, within};

/// `sluice-gpu …` while it runs.
struct Running {
    child: Child,
    said: Lines<BufReader<ChildStderr>>,
}

impl Running {
    fn start(libraries: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> Self {
        let mut child = command(libraries, environment)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            said: BufReader::new(child.stderr.take().unwrap()).lines(),
            child,
        }
    }

    /// Waits until it says so.
    async fn says(&mut self, words: &str) {
        let says = async {
            let mut said = String::new();
            while let Some(line) = self.said.next_line().await.unwrap() {
                if line.contains(words) {
                    return;
                }
                said = said + &line + "\n";
            }
            let status = self.child.wait().await;
            panic!("never said {words:?}, ended with {status:?} after:\n{said}");
        };
        within(words, says).await;
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.id().unwrap();
        let pid = Pid::from_raw(id.try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// What it printed, its exit code, and what else it said.
    async fn end(mut self) -> (Value, Option<i32>, String) {
        let mut printed = Vec::new();
        let mut output = self.child.stdout.take().unwrap();
        let rest = async {
            let mut said = String::new();
            while let Some(line) = self.said.next_line().await.unwrap() {
                said = said + &line + "\n";
            }
            said
        };
        let both = async { tokio::join!(output.read_to_end(&mut printed), rest) };
        let (_, said) = within("its output to end", both).await;
        let status = within("sluice-gpu to end", self.child.wait())
            .await
            .unwrap();
        let report = serde_json::from_slice(&printed).expect(&said);
        (report, status.code(), said)
    }
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn a_benchmark_that_is_stopped_tells_what_it_found() {
    let libraries = stand_in::build();
    // So slow there that it never comes to its end.
    let mut running = Running::start(libraries, &[], &["bench"]);
    running.says("to the GPU").await;
    running.signal(Signal::TERM);
    running.says("asked to end").await;
    running.signal(Signal::INT);
    let (report, code, _) = running.end().await;
    // What it was at may have ended before the second signal came.
    let ends = [exit::OK, exit::FAILURE].map(|code| Some(code.into()));
    assert!(ends.contains(&code), "{code:?}");
    assert_eq!(report["stopped"], true);
    assert_eq!(report["device"]["kind"], "cuda");
    let copies = &report["link"]["pinned_to_device_bytes_per_s"];
    assert!(copies.as_f64() > Some(0.0), "{report}");
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn a_check_that_is_stopped_tells_what_it_found_and_ends_by_itself() {
    let libraries = stand_in::build();
    let words = "check --no-operations --compute-dtype f32 --requests 100000";
    let arguments: Vec<&str> = words.split(' ').collect();
    let mut running = Running::start(libraries, &[], &arguments);
    running.says("answering").await;
    running.signal(Signal::TERM);
    let (report, _, said) = running.end().await;
    assert_eq!(report["stopped"], true, "{said}");
    assert_eq!(report["device"]["kind"], "cuda");
}

#[tokio::test]
#[ignore = "on the stand-in: cargo ci"]
async fn memory_that_is_not_as_planned_or_over_the_budget_fails_a_benchmark_that_goes_on() {
    let libraries = stand_in::build();
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("model");
    support::write_model(&model);
    let model = model.to_str().unwrap();
    let held = folder.path().join("held");
    let environment = [("STAND_IN_HELD_FILE", held.to_str().unwrap())];
    let words = "bench --only-passes --canvas 8,16 --passes 2 --budgets 152MiB --model";
    let arguments: Vec<&str> = words.split(' ').chain([model]).collect();
    let mut running = Running::start(libraries, &environment, &arguments);
    // The first canvas: the GPU is open, and what that took was counted.
    running.says("standard ").await;
    // Another program's, which the driver cannot tell from ours.
    fs::write(&held, (1u64 << 30).to_string()).unwrap();
    let (report, code, said) = running.end().await;
    assert_eq!(code, Some(exit::FAILURE.into()), "{said}");
    assert!(said.contains(" NOT AS PLANNED"), "{said}");
    assert!(said.contains(" OVER BUDGET"), "{said}");
    for (load, is_within) in [(0, true), (1, false)] {
        let peak = &report["loads"][load]["passes"][1]["peak"];
        assert_eq!(peak["is_as_planned"], false, "{said}");
        assert_eq!(peak["is_within_budget"], is_within, "{said}");
    }
    let failures = report["failures"].to_string();
    assert!(failures.contains("by the plan, +"), "{failures}");
    assert!(
        failures.contains("over the budget of 152 MiB"),
        "{failures}"
    );
}
