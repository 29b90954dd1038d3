//! `cargo soak`: what takes too long for `cargo ci`, by hand, for as long as one likes.

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::outcome::Outcome;
use crate::steps::{Step, command, steps};
use crate::system::{cargo, has};
use crate::{clean_root, cluster};

/// Beginnings of the names of ignored tests that are run here alone.
pub(crate) const TESTS: [&str; 3] = [THOUSAND, CROWD, MIXED];
const THOUSAND: &str = "a_thousand_requests";
const CROWD: &str = "a_crowd_of_clients";
const MIXED: &str = "a_mixed_load";

/// How long clients keep a daemon busy, unless the variable says otherwise.
const MINUTES: &str = "SLUICE_LOAD_MINUTES";
const MINUTES_DEFAULT: &str = "60";

/// How many requests a mixed load has, unless the variable says otherwise.
const MIXED_REQUESTS: &str = "SLUICE_MIXED_REQUESTS";
const MIXED_REQUESTS_DEFAULT: &str = "5040";

/// Beginnings of the names of tests that change files at random, as often as the variable says.
const MUTATED: &str = "mutated_";
const MUTATIONS: &str = "SLUICE_MUTATIONS";
const MUTATIONS_DEFAULT: &str = "1000000";

/// Beginning of the names of tests that kill a daemon as often as the variable says.
const KILLED: &str = "killed_";
const KILLS: &str = "SLUICE_KILLS";
const KILLS_DEFAULT: &str = "200";

/// Tests of `fuzz/tests/sample` that take as many inputs as the variable says: those whose inputs are quick.
const FUZZED: [&str; 3] = ["token_files", "http_bodies", "http_connections"];
const FUZZ_INPUTS: &str = "SLUICE_FUZZ_INPUTS";
const FUZZ_INPUTS_DEFAULT: &str = "10000000";

/// Crates with code of their own for each kind of processor, or with `unsafe` code that reads what files say.
const LOW_LEVEL: [&str; 8] = [
    "-p",
    "sluice-codec",
    "-p",
    "sluice-formats",
    "-p",
    "sluice-ops",
    "-p",
    "sluice-checkpoint",
];

/// Crates whose threads share what they work on.
const CONCURRENT: [&str; 4] = ["-p", "sluice-engine", "-p", "sluice-daemon"];

/// What is built for the sanitizers, apart from other builds.
const SANITIZED: &str = "target/sanitizer";

pub(crate) fn run() -> ExitCode {
    let all: [Step; 12] = [
        ("hostile bytes", hostile_bytes),
        ("mutated files", mutated_files),
        ("fuzzed inputs", fuzzed_inputs),
        ("kills", kills),
        ("memory of a GPU", memory_of_a_gpu),
        ("packages", clean_root::check_release),
        ("load", load),
        ("cluster", cluster::check_crowd),
        ("mixed load", mixed_load),
        ("address sanitizer", address_sanitizer),
        ("thread sanitizer", thread_sanitizer),
        ("another processor", another_processor),
    ];
    steps(all.into_iter())
}

fn hostile_bytes() -> io::Result<Outcome> {
    command(cargo().args(["test", "--release", "--lib", "--", "--ignored"]))
}

fn mutated_files() -> io::Result<Outcome> {
    let mut test = cargo();
    test.args(["test", "--workspace", "--exclude", "sluice-measure"]);
    test.args(["--", "--nocapture", MUTATED]);
    if std::env::var_os(MUTATIONS).is_none() {
        test.env(MUTATIONS, MUTATIONS_DEFAULT);
    }
    command(&mut test)
}

fn fuzzed_inputs() -> io::Result<Outcome> {
    let mut test = cargo();
    test.args(["test", "--release", "--locked", "--manifest-path"]);
    test.args(["fuzz/Cargo.toml", "--target-dir", "target", "--"]);
    test.args(FUZZED);
    if std::env::var_os(FUZZ_INPUTS).is_none() {
        test.env(FUZZ_INPUTS, FUZZ_INPUTS_DEFAULT);
    }
    command(&mut test)
}

fn kills() -> io::Result<Outcome> {
    let mut test = cargo();
    test.args(["test", "--test", "daemon", "--"]);
    test.args(["--include-ignored", "--nocapture", KILLED]);
    if std::env::var_os(KILLS).is_none() {
        test.env(KILLS, KILLS_DEFAULT);
    }
    command(&mut test)
}

fn memory_of_a_gpu() -> io::Result<Outcome> {
    command(cargo().args(["test", "--test", "engine", "--", "--ignored", THOUSAND]))
}

fn load() -> io::Result<Outcome> {
    let mut test = cargo();
    test.args([
        "test",
        "--test",
        "daemon",
        "--",
        "--ignored",
        "--nocapture",
        CROWD,
    ]);
    if std::env::var_os(MINUTES).is_none() {
        test.env(MINUTES, MINUTES_DEFAULT);
    }
    command(&mut test)
}

/// With all features, of which a mixed load takes most.
fn mixed_load() -> io::Result<Outcome> {
    let mut test = cargo();
    test.args(["test", "-p", "sluice-daemon", "--features", "installed"]);
    test.args(["--test", "http", "--", "--ignored", "--nocapture", MIXED]);
    if std::env::var_os(MIXED_REQUESTS).is_none() {
        test.env(MIXED_REQUESTS, MIXED_REQUESTS_DEFAULT);
    }
    command(&mut test)
}

fn address_sanitizer() -> io::Result<Outcome> {
    sanitized("address", &[], &LOW_LEVEL)
}

/// The standard library has to be built with it, too: of locks that it doesn't see it reports races.
fn thread_sanitizer() -> io::Result<Outcome> {
    let root = Command::new("rustup")
        .args(["run", "nightly", "rustc", "--print", "sysroot"])
        .output();
    let root = root.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let sources = root.is_ok_and(|root| Path::new(&root).join("lib/rustlib/src").is_dir());
    if !sources {
        return Ok(Outcome::Skipped(
            "it needs the standard library's sources: rustup component add rust-src --toolchain nightly"
                .to_owned(),
        ));
    }
    sanitized("thread", &["-Zbuild-std"], &CONCURRENT)
}

/// Runs the tests inside crates under a sanitizer.
fn sanitized(sanitizer: &str, options: &[&str], crates: &[&str]) -> io::Result<Outcome> {
    if !has("rustup", &["run", "nightly", "rustc", "--version"]) {
        return Ok(Outcome::Skipped(
            "it needs a nightly compiler: rustup toolchain install nightly".to_owned(),
        ));
    }
    let mut tests = Command::new("rustup");
    tests.args(["run", "nightly", "cargo", "test", "--lib"]);
    tests.args(["--target", &target()?, "--target-dir", SANITIZED]);
    tests.args(options).args(crates);
    // What one step sets for its Cargo must not reach this one's.
    tests.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    command(tests.env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}")))
}

/// The kernels for processors without AVX-512, on one that has it.
fn another_processor() -> io::Result<Outcome> {
    let emulators = [
        ("qemu-x86_64", "qemu-x86_64 -cpu Haswell"),
        // It knows nothing later than AVX2.
        ("valgrind", "valgrind --tool=none --quiet"),
    ];
    let Some((_, runner)) = emulators
        .iter()
        .find(|(program, _)| has(program, &["--version"]))
    else {
        return Ok(Outcome::Skipped(
            "it needs an emulator; on Debian: apt-get install qemu-user or valgrind".to_owned(),
        ));
    };
    let variable = target()?.to_uppercase().replace('-', "_");
    command(
        cargo()
            .args(["test", "--lib"])
            .args(LOW_LEVEL)
            .env(format!("CARGO_TARGET_{variable}_RUNNER"), runner),
    )
}

/// The target of this machine, as the compiler names it.
fn target() -> io::Result<String> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| io::Error::other("rustc does not say its host"))
}
