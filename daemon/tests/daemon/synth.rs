//! `sluiced synth`: what it writes serves, and what it can't write it refuses.

use std::{fs, path::Path, process::Output};

use sluice_shared::exit;
use tempfile::TempDir;

use crate::support::{Daemon, done, generate, run, tokens};

const TINY: [&str; 12] = [
    "synth",
    "--layers=2",
    "--hidden-size=64",
    "--attention-heads=4",
    "--kv-heads=2",
    "--intermediate-size=160",
    "--vocab-size=300",
    "--context-length=128",
    "--dtype=f32",
    "--seed=5",
    "--threads=2",
    "model",
];

fn code(output: &Output) -> u8 {
    output.status.code().unwrap() as u8
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The tiny shape with another value for one flag.
fn with(change: &'static str) -> Vec<&'static str> {
    let (flag, _) = change.split_once('=').unwrap();
    let same = |argument: &&str| {
        argument
            .split_once('=')
            .is_some_and(|(name, _)| name == flag)
    };
    let kept = TINY.into_iter().filter(|argument| !same(argument));
    kept.chain([change]).collect()
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

#[tokio::test]
async fn a_synthetic_model_serves_requests_of_ids() {
    let folder = TempDir::new().unwrap();
    let output = run(folder.path(), &TINY).await;
    assert_eq!(code(&output), exit::OK, "{}", stderr(&output));
    // Two tables, two layers and five norms.
    let parameters = 2 * 300 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 160 * 64) + 5 * 64;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with("model: "), "{said}");
    assert!(
        said.contains(&sluice_shared::units::count(parameters)),
        "{said}"
    );
    assert_eq!(stderr(&output), "");

    let daemon = Daemon::with_model(&folder.path().join("model"), &[]).await;
    let model = daemon.snapshot().await.model.unwrap();
    let shape = model.shape.unwrap();
    assert_eq!((shape.parameters, shape.has_tokenizer), (parameters, false));
    let events = generate(&daemon, tokens(&[1, 2], 8)).await.unwrap();
    assert_eq!(done(&events).token_ids.len(), 8);

    // It isn't written twice.
    let again = run(folder.path(), &TINY).await;
    assert_eq!(code(&again), exit::FAILURE);
    assert!(stderr(&again).contains("exists and is not an empty folder"));
}

#[tokio::test]
async fn what_makes_no_model_is_refused_before_anything_is_written() {
    let folder = TempDir::new().unwrap();
    let cases: [(&[&str], &[&str]); 5] = [
        (
            &["synth", "--shape", "gpt-9", "model"],
            &[
                "gpt-9",
                "llada-8b",
                "llada-1b",
                "tinyllama-1.1b",
                "llama-3.1-8b",
                "dream-7b",
            ],
        ),
        (&["synth", "model"], &["--shape", "--layers"]),
        (&["synth", "--shape", "llada-8b"], &["<DIR>"]),
        (
            &["synth", "--shape", "llada-8b", "--kv-heads", "2", "model"],
            &["--kv-heads", "cannot be used with"],
        ),
        (
            &["synth", "--shape", "llada2-mini", "--layers", "0", "model"],
            &["--layers is 0"],
        ),
    ];
    for (arguments, words) in cases {
        let output = run(folder.path(), arguments).await;
        assert_eq!(code(&output), exit::USAGE, "{arguments:?}");
        for word in words {
            assert!(stderr(&output).contains(word), "{}", stderr(&output));
        }
    }
    for (change, words) in [
        (
            "--attention-heads=7",
            "--attention-heads is 7, which does not divide the hidden size 64",
        ),
        (
            "--attention-heads=0",
            "--attention-heads is 0, not a whole number from 1 to 64",
        ),
        ("--kv-heads=3", "--kv-heads is 3, which does not divide"),
        (
            "--layers=0",
            "--layers is 0, not a whole number from 1 to 4096",
        ),
        (
            "--hidden-size=99999999999",
            "--hidden-size is 99999999999, not a",
        ),
        ("--vocab-size=0", "--vocab-size is 0"),
        (
            "--context-length=18446744073709551615",
            "--context-length is 18446744073709551615",
        ),
        ("--intermediate-size=-1", "--intermediate-size"),
        ("--dtype=q4_k", "bf16, f16, f32"),
        ("--seed=red", "--seed"),
        ("--threads=0", "must be between 1 and 1024"),
    ] {
        let output = run(folder.path(), &with(change)).await;
        assert_eq!(code(&output), exit::USAGE, "{change}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
    // Each number may be, but no disk here holds hundreds of TiB.
    let absurd = [
        "synth",
        "--layers=4096",
        "--hidden-size=65536",
        "--attention-heads=64",
        "--intermediate-size=65536",
        "--vocab-size=65536",
        "model",
    ];
    let output = run(folder.path(), &absurd).await;
    assert_eq!(code(&output), exit::FAILURE);
    assert!(
        stderr(&output).contains("are free there"),
        "{}",
        stderr(&output)
    );
    assert!(is_empty(folder.path()));
}
