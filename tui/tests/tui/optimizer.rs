//! Optimizing, quantizing and pruning with the real daemon: what is put in force, what is written, what is refused, and the
//! way back.

use std::{fs, path::Path, process::Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    daemon::Daemon,
    support::{code, run_with_input, sluice, stderr, stdout},
};

/// Less than the demonstration model's plan takes with its own weights, and more than a measurement needs.
const BUDGET: &str = "12MiB";
/// Few texts, and no calibration: what is measured here is whether commands do what they say.
const QUICKLY: [&str; 3] = ["--uncalibrated", "--samples", "4"];

/// A daemon with a folder for its mixes, and one to work in.
struct Setting {
    daemon: Daemon,
    folder: TempDir,
}

impl Setting {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = format!("--weight-cache={}", folder.path().join("cache").display());
        Self {
            daemon: Daemon::with(&[&cache]),
            folder,
        }
    }

    fn path(&self, name: &str) -> String {
        let path = self.folder.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    }

    /// Runs a command to its good end.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.daemon.run(arguments);
        assert_eq!(code(&output), 0, "{arguments:?}: {}", stderr(&output));
        stdout(&output)
    }

    /// The result of the operation of this kind among the pictures that a command printed.
    fn result(&self, kind: &str, arguments: &[&str]) -> Value {
        let text = self.run(&[arguments, &["--json"]].concat());
        let objects = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("an object"));
        let mut ended = objects.filter(|object: &Value| object["state"] == "done");
        let ended = ended.find(|object| object["kind"] == kind);
        ended.unwrap_or_else(|| panic!("no {kind} was done: {text}"))[kind].take()
    }

    /// What the model makes of a question, and its likelihood to the last bit.
    fn answers(&self) -> (String, String) {
        let story = self.run(&[
            "generate",
            "Tell me a story about a fox.",
            "--length",
            "48",
            "--seed",
            "1",
        ]);
        let score = self.run(&[
            "score",
            "Tell me a story.",
            "Once upon a time",
            "--draws",
            "4",
            "--seed",
            "1",
            "--json",
        ]);
        let score: Value = serde_json::from_str(&score).expect("an object");
        (story, score["score"]["log_likelihood"].to_string())
    }

    fn level(&self) -> Value {
        self.daemon.done(&["status", "--json"])["settings"]["options"].take()
    }
}

fn name_of(mix: &Value) -> String {
    format!("{:08x}", mix.as_u64().expect("a mix"))
}

/// A command is refused with these words, and leaves no file.
fn refused(output: &Output, words: &str, file: &str) {
    let said = stderr(output);
    assert_ne!(code(output), 0, "{}", stdout(output));
    assert!(said.contains(words), "{words}: {said}");
    assert!(!Path::new(file).exists(), "{words}");
}

#[test]
fn an_optimized_model_is_in_force_and_in_a_file_and_undone_bit_for_bit() {
    let setting = Setting::new();
    let originals = setting.answers();
    let file = setting.path("mix.sluice");
    let optimize = [&["optimize", "--budget", BUDGET, "-o", &file], &QUICKLY[..]].concat();
    let made = setting.result("optimize", &optimize);
    let mix = name_of(&made["mix"]);
    let bits = made["bits_per_weight"].as_f64();
    assert!(bits.is_some_and(|bits| bits < 8.0), "{made}");
    assert_eq!(setting.level()["level"], "optimized");
    let optimized = setting.answers();
    assert_ne!(optimized.1, originals.1);
    assert!(setting.run(&["list"]).contains(&mix));

    // Not a second time, whichever command would write it.
    let before = fs::read(&file).expect("the file");
    for again in [
        &optimize[..],
        &["compress", "sluice-demo", "--mix", &mix, "-o", &file],
    ] {
        let output = setting.daemon.run(again);
        refused(&output, "exists", "");
    }
    assert!(fs::read(&file).expect("the file") == before);
    let later = setting.path("later.sluice");
    setting.run(&["compress", "sluice-demo", "--mix", &mix, "-o", &later]);
    assert!(fs::read(&later).expect("the file") == before);

    // The file computes what the mix does, without it.
    setting.run(&["load", &file, "--level", "standard", "--budget", "default"]);
    assert_eq!(setting.answers(), optimized);
    let other = setting.path("other.safetensors");
    setting.run(&["calibrate", "--positions", "1000", "-o", &other]);
    setting.run(&[
        "load",
        "sluice-demo",
        "--level",
        "standard",
        "--budget",
        "default",
    ]);
    assert_eq!(setting.answers(), originals);

    let of_another = ["optimize", "--budget", BUDGET, "--calibration", &other];
    let output = setting.daemon.run(&of_another);
    refused(&output, "is the calibration of mix (checkpoint", "");
}

#[test]
fn a_model_of_one_rate_is_in_force_and_in_a_file() {
    let setting = Setting::new();
    let file = setting.path("q.sluice");
    let quantize = [&["quantize", "--bits", "3.5"], &QUICKLY[..]].concat();
    let made = setting.result("optimize", &quantize);
    assert_eq!(made["bits_per_weight"], 3.5);
    assert!(made["prediction"].is_null(), "{made}");
    assert_eq!(setting.level()["level"], "optimized");
    let quantized = setting.answers();
    setting.run(&["level", "standard"]);
    let to_file = [&quantize[..], &["--no-apply", "-o", &file]].concat();
    let again = setting.result("optimize", &to_file);
    assert_eq!(again["mix"], made["mix"]);
    assert_eq!(setting.level()["level"], "standard");
    setting.run(&["load", &file]);
    assert_eq!(setting.answers(), quantized);
    let inspected = setting.daemon.done(&["inspect", &file, "--json"]);
    let bytes = inspected["container"]["file_bytes"]
        .as_u64()
        .expect("bytes");
    let original = inspected["container"]["original_bytes"].as_u64();
    assert!(bytes * 5 < original.expect("bytes") * 2, "{inspected}");
}

#[test]
fn a_pruned_model_takes_the_place_of_the_original_and_gives_it_back() {
    let setting = Setting::new();
    let originals = setting.answers();
    let file = setting.path("small.sluice");
    let prune = [
        "prune",
        "sluice-demo",
        "-o",
        &file,
        "--channels",
        "0.3",
        "--load",
    ];
    setting.run(&prune);
    assert_ne!(setting.answers(), originals);
    refused(&setting.daemon.run(&prune), "exists", "");
    // It is a model like any other: what is left of it can be calibrated, and quantized by that.
    setting.run(&["calibrate", "--positions", "2048"]);
    let quantized = setting.result("optimize", &["quantize", "--bits", "4.5", "--samples", "4"]);
    let kl = quantized["measured_kl_nats"].as_f64();
    assert!(kl.is_some_and(|kl| kl < 0.1), "{quantized}");
    assert_eq!(setting.level()["level"], "optimized");
    setting.run(&["load", "sluice-demo"]);
    assert_eq!(setting.answers(), originals);
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_written() {
    let setting = Setting::new();
    let originals = setting.answers();
    let file = setting.path("no.sluice");
    let output = ["-o", file.as_str()];
    for (arguments, words) in [
        (
            &["compress", "sluice-demo", "--mix", "00000001"][..],
            "there is no mix 00000001",
        ),
        (
            &["compress", "sluice-demo", "--mix", "none"],
            "invalid value 'none' for '--mix",
        ),
        // The default budget has room for everything.
        (
            &["optimize", "--uncalibrated"],
            "there is nothing to quantize",
        ),
        (
            &["optimize", "--budget", "1MiB"],
            "level optimized needs at least",
        ),
        (
            &["optimize", "--budget", "0"],
            "invalid value '0' for '--budget",
        ),
        (
            &["optimize", "--budget", BUDGET, "--max-pass-ms", "NaN"],
            "max_pass_ms",
        ),
        (
            &["optimize", "--budget", BUDGET, "--max-pass-ms", "-1"],
            "max_pass_ms",
        ),
        (&["quantize"], "--bits"),
        (
            &["quantize", "--bits", "9"],
            "must be between 1.75 and 8, not 9",
        ),
        (
            &["quantize", "--bits", "NaN"],
            "must be between 1.75 and 8, not NaN",
        ),
        (
            &["prune", "sluice-demo", "--heads", "1"],
            "must be at least 0 and below 1, not 1",
        ),
        (
            &["prune", "sluice-demo", "--heads", "NaN"],
            "must be at least 0 and below 1, not NaN",
        ),
        (
            &["prune", "sluice-demo", "--channels=-0.1"],
            "must be at least 0 and below 1, not -0.1",
        ),
        (
            &["prune", "sluice-demo"],
            "required arguments were not provided",
        ),
    ] {
        let run = setting.daemon.run(&[arguments, &output].concat());
        refused(&run, words, &file);
    }
    let missing = setting.path("none.safetensors");
    let text = setting.path("text.safetensors");
    fs::write(&text, "Once upon a time.").expect("a file");
    for (calibration, words) in [
        (&*missing, "is missing"),
        (&*text, "is damaged, or no calibration"),
    ] {
        let arguments = ["optimize", "--budget", BUDGET, "--calibration", calibration];
        let run = setting.daemon.run(&[&arguments[..], &output].concat());
        refused(&run, words, &file);
    }
    let socket = setting.daemon.socket.to_str().expect("UTF-8");
    let mut few = sluice(&["--socket", socket, "optimize", "-", "--budget", BUDGET]);
    few.args(output);
    let run = run_with_input(few, b"Once upon a time.\n");
    refused(&run, "a calibration needs at least 512", &file);
    assert_eq!(setting.answers(), originals);
}
