//! `cargo pictures`: what the client's pages look like, for the documentation.

use std::io;
use std::process::{Command, ExitCode};

use crate::system::{built, cargo, root};

/// Draws the pictures of these names, or all.
pub(crate) fn run(names: &[&str]) -> ExitCode {
    match draw(names) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pictures: {error}");
            ExitCode::FAILURE
        }
    }
}

fn draw(names: &[&str]) -> io::Result<()> {
    let build = ["build", "--workspace", "--bins"];
    succeed(cargo().args(build).current_dir(root()), "the build")?;
    let program = built("pictures")?;
    let folder = root().join("docs/pictures");
    succeed(Command::new(program).arg(folder).args(names), "drawing")
}

fn succeed(command: &mut Command, what: &str) -> io::Result<()> {
    match command.status()?.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{what} failed"))),
    }
}
