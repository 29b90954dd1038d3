//! `cargo model`: the demonstration model from nothing but a seed. Killed at any time, it goes on where it was.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::system::{cargo, root};

/// Checkpoints and judgements, below the repository.
const FOLDER: &str = "target/model";

/// Trains, exports, judges, and writes the card. With a yardstick, an autoregressive network is trained on as many
/// steps to compare with.
pub(crate) fn run(yardstick: bool) -> ExitCode {
    match make(yardstick) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("model: {error}");
            ExitCode::FAILURE
        }
    }
}

fn make(yardstick: bool) -> io::Result<()> {
    let folder = root().join(FOLDER);
    std::fs::create_dir_all(&folder)?;
    let path = |name: &str| format!("{FOLDER}/{name}");
    let (run, beside) = (path("run"), path("yardstick"));
    let (judgement, curve) = (path("judge.json"), path("curve.json"));
    let output = "daemon/model";

    done(&mut train(&["train", "--output", &run]))?;
    if yardstick {
        let objective = ["--objective", "autoregressive"];
        done(train(&["train", "--output", &beside]).args(objective))?;
    }
    done(&mut train(&[
        "export",
        "--checkpoint",
        &run,
        "--output",
        output,
    ]))?;
    let judge = ["judge", "--model", output, "--json"];
    into_file(&mut train(&judge), &root().join(&judgement))?;
    into_file(train(&judge).arg("--curve"), &root().join(&curve))?;
    let mut card = train(&["card", "--checkpoint", &run, "--model", output]);
    card.args(["--judgement", &judgement, "--curve", &curve]);
    if yardstick {
        card.args(["--yardstick", &beside]);
    }
    done(&mut card)
}

/// `sluice-train` with these arguments, in the repository's root.
fn train(arguments: &[&str]) -> Command {
    let mut command = cargo();
    command
        .args(["run", "--quiet", "--release", "-p", "sluice-train", "--"])
        .args(arguments)
        .current_dir(root());
    command
}

fn into_file(command: &mut Command, path: &Path) -> io::Result<()> {
    done(command.stdout(Stdio::from(File::create(path)?)))
}

fn done(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "sluice-train ended with {status}"
        )))
    }
}
