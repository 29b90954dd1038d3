//! The program itself, killed again and again in the middle of its work.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use sluice_train::{log, random::Random, vocabulary::Vocabulary};

const STEPS: u64 = 30;
const KILLS: usize = 6;

/// Kinds of network, and what makes each small.
const KINDS: [&[&str]; 3] = [
    &["--model", "llada"],
    &["--model", "rwkv7", "--width", "64"],
    &["--model", "ltm", "--width", "64", "--fast-steps", "2"],
];

/// Trains a small network in a process of its own, with a checkpoint after every step.
fn train(folder: &Path, kind: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_sluice-train"))
        .args(["--threads", "2", "train", "--output"])
        .arg(folder)
        .args(kind)
        .args(["--steps", &STEPS.to_string()])
        .args(["--layers", "1", "--mlp", "256", "--part-tokens", "200"])
        .args([
            "--checkpoint-seconds",
            "0",
            "--report-steps",
            "1",
            "--evaluate-steps",
            "0",
        ])
        .stdout(Stdio::null())
        .spawn()
        .expect("start sluice-train")
}

/// Step and loss of every line of the log.
fn curve(folder: &Path) -> Vec<(u64, f64)> {
    let entries = log::read(folder).expect("log");
    entries
        .iter()
        .map(|entry| (entry.step, entry.loss))
        .collect()
}

#[test]
fn the_loss_curve_joins_after_every_kill() {
    for kind in KINDS {
        joins_after_every_kill(kind);
    }
}

fn joins_after_every_kill(kind: &[&str]) {
    let root = tempfile::tempdir().expect("folder");
    let [whole, broken] = ["whole", "broken"].map(|name| root.path().join(name));
    let vocabulary = Vocabulary::train(1, 512, 500).expect("train tokenizer");
    for folder in [&whole, &broken] {
        std::fs::create_dir(folder).expect("folder");
        vocabulary
            .save(&folder.join("tokenizer.json"))
            .expect("tokenizer");
    }
    assert!(train(&whole, kind).wait().expect("wait").success());

    let mut random = Random::new(u64::from(std::process::id()), 0);
    let mut lengths = Vec::new();
    for _ in 0..KILLS {
        let mut child = train(&broken, kind);
        thread::sleep(Duration::from_millis(50 + random.below(400) as u64));
        child.kill().expect("kill");
        child.wait().expect("wait");
        lengths.push(curve(&broken).len());
    }
    assert!(train(&broken, kind).wait().expect("wait").success());

    let expected = curve(&whole);
    assert_eq!(expected.len() as u64, STEPS);
    assert_eq!(
        curve(&broken),
        expected,
        "{kind:?}, lines after each kill: {lengths:?}"
    );
}
