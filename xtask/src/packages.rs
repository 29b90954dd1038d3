//! Programs with packages of Python's and Node's indexes, which are fetched below `target`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::demo::Programs;
use crate::outcome::Outcome;
use crate::system::{Stopping, TemporaryFolder, has, root};

/// The oldest Python that the programs are written for.
const PYTHON: &str = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))";
/// Longer than any of them takes on a busy machine, and than packages take to be fetched.
const PATIENCE: Duration = Duration::from_secs(600);

/// Set, it lets CI pass without the programs of a language that isn't there.
const WITHOUT: &str = "SLUICE_WITHOUT_EXAMPLES";

/// Why programs didn't pass.
pub(crate) enum Trouble {
    /// What they need isn't here.
    Missing(String),
    /// Its package index cannot be reached from here.
    Unreachable(String),
    Failed(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// What these runs come to; a failure with the daemon's log.
pub(crate) fn outcome_with_log(
    runs: impl Iterator<Item = Result<(), Trouble>>,
    programs: &Programs,
) -> Outcome {
    match outcome(runs) {
        Outcome::Failed(what) => Outcome::Failed(format!("{what}\nsluiced:\n{}", programs.log())),
        other => other,
    }
}

/// What these runs come to. What cannot run is skipped with its reason; on a CI machine that is a failure, but for want of a
/// network.
pub(crate) fn outcome(runs: impl Iterator<Item = Result<(), Trouble>>) -> Outcome {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let must_run = is_set("CI") && !is_set(WITHOUT);
    let mut skipped = Vec::new();
    for run in runs {
        match run {
            Ok(()) => {}
            Err(Trouble::Missing(what)) if must_run => {
                return Outcome::Failed(format!("{what}; {WITHOUT}=1 lets this pass"));
            }
            Err(Trouble::Missing(what) | Trouble::Unreachable(what)) => skipped.push(what),
            Err(Trouble::Failed(what)) => return Outcome::Failed(what),
        }
    }
    match skipped.is_empty() {
        true => Outcome::Passed,
        false => Outcome::Skipped(skipped.join("; ")),
    }
}

/// A Python with the packages that a folder's `requirements.txt` lists; `known` is one that its index has for certain.
pub(crate) fn python_packages(venv: &Path, folder: &str, known: &str) -> Result<PathBuf, Trouble> {
    if !has("python3", &["-c", PYTHON]) {
        return Err(Trouble::Missing(format!(
            "no Python 3.10 with venv is here (Debian: python3-venv), so {folder} didn't run"
        )));
    }
    let interpreter = venv.join("bin/python");
    if !has(&interpreter.to_string_lossy(), &["-m", "pip", "--version"]) {
        fs::create_dir_all(venv)?;
        let mut make = Command::new("python3");
        let output = finish(make.args(["-m", "venv", "--clear"]).arg(venv))?;
        if !output.status.success() {
            return Err(Trouble::Missing(told("python3 -m venv", &output)));
        }
    }
    let pip = |arguments: &[&str]| {
        let mut command = Command::new(&interpreter);
        command
            .args(["-m", "pip", "--quiet", "--disable-pip-version-check"])
            .args(arguments)
            .current_dir(root().join(folder));
        command
    };
    fetch(
        "pip install",
        folder,
        &mut pip(&["install", "--retries", "2", "-r", "requirements.txt"]),
        &mut pip(&["index", "versions", "--retries", "2", known]),
    )?;
    Ok(interpreter)
}

/// Runs what fetches packages. When it fails, `question` asks the index for something that is there for certain.
pub(crate) fn fetch(
    name: &str,
    folder: &str,
    command: &mut Command,
    question: &mut Command,
) -> Result<(), Trouble> {
    let output = finish(command)?;
    if output.status.success() {
        return Ok(());
    }
    let words = told(name, &output);
    Err(match finish(question)?.status.success() {
        true => Trouble::Failed(words),
        false => {
            println!("{words}");
            Trouble::Unreachable(format!(
                "`{name}` cannot reach its package index, so {folder} didn't run"
            ))
        }
    })
}

pub(crate) fn told(name: &str, output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let (printed, warned) = (text(&output.stdout), text(&output.stderr));
    format!("`{name}` ended with {}\n{printed}\n{warned}", output.status)
}

/// The command's output, kept in files, so that no pipe fills; it is stopped when it takes too long.
pub(crate) fn finish(command: &mut Command) -> io::Result<Output> {
    let folder = TemporaryFolder::new("example-output")?;
    let file = |name: &str| fs::File::create(folder.path().join(name));
    let read = |name: &str| fs::read(Path::new(folder.path()).join(name));
    let child = command
        .stdin(Stdio::null())
        .stdout(file("out")?)
        .stderr(file("err")?)
        .spawn()?;
    let mut child = Stopping(child);
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.0.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            break child.stop(Duration::from_secs(3))?;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    Ok(Output {
        status,
        stdout: read("out")?,
        stderr: read("err")?,
    })
}
