//! `cargo ci`: everything that CI runs, step by step.

use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::outcome::Outcome;
use crate::steps::{Step, command, ended, steps};
use crate::system::{TemporaryFolder, cargo, has, root};
use crate::{
    clean_root, clients, cluster, container, examples, first_build, layers, manifests, ptx, soak,
    units, words,
};

/// The version whose rules `deny.toml` is written for.
const CARGO_DENY_VERSION: &str = "0.20.2";

/// The program that checks the schema, as npm names it.
const BUF: &str = "@bufbuild/buf@1.75.0";

/// Whether the tests belong to this run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tests {
    Run,
    /// They ran already.
    Leave,
}

const TESTS: Step = ("test", tests);
const CHECKS: [Step; 20] = [
    ("format", format),
    ("layers", layers::check),
    ("schema", schema),
    ("first build", first_build::check),
    ("lints", lints),
    ("words", words),
    ("slow tests", slow_tests),
    ("fuzz targets", fuzz_targets),
    ("docs", docs),
    ("licences", licences),
    ("advisories", advisories),
    ("unit files", units::check),
    ("packages", clean_root::check),
    ("container recipe", container::check),
    ("manifests", manifests::check),
    ("examples", examples::check),
    ("kernels", ptx::ci_step),
    // Last: they leave a daemon with all features where others look for one without.
    ("features", features),
    ("clients", clients::check),
    ("cluster", cluster::check),
];

pub(crate) fn run(tests: Tests) -> ExitCode {
    let tests = (tests == Tests::Run).then_some(TESTS);
    steps(tests.into_iter().chain(CHECKS))
}

pub(crate) fn run_units() -> ExitCode {
    steps([("unit files", units::check as fn() -> _)].into_iter())
}

pub(crate) fn run_clean_root() -> ExitCode {
    steps([("packages", clean_root::check as fn() -> _)].into_iter())
}

pub(crate) fn run_words() -> ExitCode {
    steps([("words", words as fn() -> _)].into_iter())
}

pub(crate) fn run_layers() -> ExitCode {
    steps([("layers", layers::check as fn() -> _)].into_iter())
}

/// With programs as they are now.
pub(crate) fn run_examples() -> ExitCode {
    let build: fn() -> io::Result<Outcome> = || command(cargo().args(["build", "--bins"]));
    steps([("build", build), ("examples", examples::check as _)].into_iter())
}

pub(crate) fn run_clients() -> ExitCode {
    steps([("clients", clients::check as fn() -> _)].into_iter())
}

pub(crate) fn run_cluster() -> ExitCode {
    let manifests: fn() -> io::Result<Outcome> = manifests::check;
    steps([("manifests", manifests), ("cluster", cluster::check as _)].into_iter())
}

/// With programs as they are now.
fn words() -> io::Result<Outcome> {
    match command(cargo().arg("build").args(TESTED).arg("--bins"))? {
        Outcome::Passed => words::check(),
        other => Ok(other),
    }
}

/// Whose tests CI runs: those of `tools`, too, which `cargo test` leaves out. What only measures has none, and would be built
/// with other features of its dependencies.
const TESTED: [&str; 3] = ["--workspace", "--exclude", "sluice-measure"];

/// Tests that `cargo test` leaves out so that it takes minutes: those that compute the GPU's kernels with the processor, and those
/// that keep both cores busy for seconds. All ignored tests beside the libraries' own are such.
fn slow_tests() -> io::Result<Outcome> {
    if std::env::var_os("CXX").is_none() && !has("c++", &["--version"]) {
        return Ok(Outcome::Skipped(
            "there is no C++ compiler for the stand-in; on Debian: apt-get install g++".to_owned(),
        ));
    }
    let mut tests = cargo();
    tests.arg("test").args(TESTED);
    // All but `http`, which another feature's build has.
    tests.args(["--no-fail-fast", "--test", "[!h]*", "--", "--ignored"]);
    for test in soak::TESTS {
        tests.args(["--skip", test]);
    }
    tests_of(&mut tests)
}

fn tests() -> io::Result<Outcome> {
    tests_of(cargo().arg("test").args(TESTED))
}

/// What begins the lines of `testkit::not_run`: a test passed without having run, for want of what isn't in the repository.
const NOT_RUN: &str = "not run: ";

/// Runs tests, and counts those that say they didn't run.
fn tests_of(command: &mut Command) -> io::Result<Outcome> {
    if io::stderr().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = command.current_dir(root()).stderr(Stdio::piped()).spawn()?;
    let mut not_run = 0;
    for line in BufReader::new(child.stderr.take().expect("piped")).lines() {
        let line = line?;
        eprintln!("{line}");
        not_run += usize::from(line.starts_with(NOT_RUN));
    }
    let outcome = ended(command, child.wait()?);
    Ok(match outcome {
        Outcome::Passed if not_run > 0 => {
            Outcome::Skipped(format!("all others passed, {not_run} could not run here"))
        }
        outcome => outcome,
    })
}

fn format() -> io::Result<Outcome> {
    if !has("cargo", &["fmt", "--version"]) {
        return Ok(missing("rustfmt", "rustup component add rustfmt"));
    }
    command(cargo().args(["fmt", "--all", "--check"]))
}

fn lints() -> io::Result<Outcome> {
    if !has("cargo", &["clippy", "--version"]) {
        return Ok(missing("clippy", "rustup component add clippy"));
    }
    command(cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))
}

/// What installed programs have and the workspace's own builds are without: lints, and the tests of it.
fn features() -> io::Result<Outcome> {
    const BUILT: [&str; 2] = ["--features", "sluice-daemon/installed"];
    let mut lints = cargo();
    lints.arg("clippy").args(TESTED).args(BUILT);
    lints.args(["--all-targets", "--", "-D", "warnings"]);
    match command(&mut lints)? {
        Outcome::Passed => {}
        other => return Ok(other),
    }
    // One build for both: tests of the port, and those whose names have another feature's.
    for which in [
        &["--test", "http"][..],
        &["--lib", "--test", "daemon", "--", "grammar", "documents"],
    ] {
        let mut tests = cargo();
        tests.arg("test").args(TESTED).args(BUILT).args(which);
        match tests_of(&mut tests)? {
            Outcome::Passed => {}
            other => return Ok(other),
        }
    }
    Ok(Outcome::Passed)
}

/// They are a workspace of their own, and fuzz on nightly compilers alone; a bounded sample runs on any.
fn fuzz_targets() -> io::Result<Outcome> {
    command(cargo().args([
        "test",
        "--locked",
        "--manifest-path",
        "fuzz/Cargo.toml",
        "--target-dir",
        "target",
    ]))
}

/// The schema's names and shapes, by buf's standard rules.
fn schema() -> io::Result<Outcome> {
    if !has("npx", &["--yes", BUF, "--version"]) {
        return Ok(Outcome::Skipped(format!(
            "`npx {BUF}` does not start; it needs Node.js, and the network once"
        )));
    }
    let linted = command(Command::new("npx").args(["--yes", BUF, "lint", "proto"]))?;
    if !matches!(linted, Outcome::Passed) {
        return Ok(linted);
    }
    for commit in [FROZEN, "HEAD~1"] {
        let before = TemporaryFolder::new("schema")?;
        if !export(commit, "proto", before.path())? {
            return Ok(Outcome::Skipped(format!(
                "the schema of {commit} is not in this clone; it is not compared with"
            )));
        }
        let before = before.path().join("proto");
        let against = ["--yes", BUF, "breaking", "proto", "--against"];
        let compared = command(Command::new("npx").args(against).arg(before))?;
        if !matches!(compared, Outcome::Passed) {
            return Ok(compared);
        }
    }
    Ok(Outcome::Passed)
}

/// The commit from which on the schema only grows.
const FROZEN: &str = "d246bf8";

/// Writes a folder as a commit has it below `to`; false where there is no such commit.
fn export(commit: &str, folder: &str, to: &Path) -> io::Result<bool> {
    let mut archive = Command::new("git")
        .args(["archive", commit, folder])
        .current_dir(root())
        .stdout(Stdio::piped())
        .spawn()?;
    let unpacked = Command::new("tar")
        .arg("-x")
        .arg("-C")
        .arg(to)
        .stdin(archive.stdout.take().expect("piped"))
        .status()?;
    Ok(archive.wait()?.success() && unpacked.success())
}

fn docs() -> io::Result<Outcome> {
    command(
        cargo()
            .args(["doc", "--workspace", "--no-deps"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

/// On a CI machine, what is missing is installed; at home, people decide that themselves.
fn licences() -> io::Result<Outcome> {
    let install = [
        "install",
        "cargo-deny",
        "--locked",
        "--version",
        CARGO_DENY_VERSION,
    ];
    if !has("cargo", &["deny", "--version"]) {
        if std::env::var_os("CI").is_some() {
            println!("installing cargo-deny {CARGO_DENY_VERSION}");
            command(cargo().args(install).arg("--quiet"))?;
        }
        if !has("cargo", &["deny", "--version"]) {
            return Ok(missing(
                "cargo-deny",
                &format!("cargo {}", install.join(" ")),
            ));
        }
    }
    deny(&["licenses", "bans", "sources"])
}

/// Whether a crate of the lock file has a known vulnerability.
fn advisories() -> io::Result<Outcome> {
    if !has("cargo", &["deny", "fetch", "db"]) {
        return Ok(Outcome::Skipped(
            "cargo-deny is not here, or its database of advisories cannot be fetched".to_owned(),
        ));
    }
    deny(&["--disable-fetch", "advisories"])
}

fn deny(checks: &[&str]) -> io::Result<Outcome> {
    let check = ["deny", "check", "--hide-inclusion-graph"];
    command(cargo().args(check).args(checks))
}

fn missing(tool: &str, remedy: &str) -> Outcome {
    Outcome::Skipped(format!("{tool} is not here; install it with: {remedy}"))
}
