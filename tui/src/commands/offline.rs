//! Commands that the program `sluiced` carries out itself where no daemon runs.

use std::{
    env, io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use sluice_shared::exit;

use crate::{connection::DaemonConnection, output::Failure};

/// Connects to the daemon. Where none runs, `sluiced` takes over with the arguments of `alone`, or the failure has its hint
/// why that is not possible.
pub(super) async fn daemon(
    socket: PathBuf,
    alone: Result<Vec<String>, String>,
) -> Result<DaemonConnection, Failure> {
    DaemonConnection::connect(socket)
        .await
        .map_err(|failure| match alone {
            _ if failure.code() != exit::UNREACHABLE => failure,
            Ok(words) => in_our_place(&words),
            Err(hint) => failure.with_hint(hint),
        })
}

/// A flag and its value in one word, so that a value with a leading dash is not taken for a flag.
pub(super) fn flag(name: &str, value: Option<impl std::fmt::Display>) -> Option<String> {
    value.map(|value| format!("{name}={value}"))
}

/// The hint where no daemon runs, and nothing else does the work.
pub(super) const START_HINT: &str = "start it with `sluiced` (or `systemctl start sluice`)";

/// The hint where no daemon runs and its work cannot be done in its place.
pub(super) fn offline_hint(command: &str) -> String {
    format!("{START_HINT}; or do it without a daemon: `sluiced {command}`")
}

/// Replaces this process by `sluiced`, so that output, exit code and signals are its own. Returns only if that failed.
pub(super) fn in_our_place(words: &[String]) -> Failure {
    let program = sibling(env::current_exe());
    let error = Command::new(&program).args(words).exec();
    missing(&program, &error)
}

/// The failure if the daemon's program cannot be started.
pub(super) fn missing(program: &Path, error: &io::Error) -> Failure {
    let shown = program.display();
    let failure = match error.kind() {
        io::ErrorKind::NotFound => Failure::new(format!("no daemon runs, and there is no {shown}")),
        _ => Failure::new(format!(
            "no daemon runs, and {shown} cannot be started: {error}"
        )),
    };
    failure.with_hint(
        "start the daemon with `sluiced`, or put that program next to `sluice` or on the PATH",
    )
}

/// `sluiced` beside this program, else the one on the `PATH`.
pub(super) fn sibling(own: io::Result<PathBuf>) -> PathBuf {
    let beside = own.map(|own| own.with_file_name("sluiced"));
    match beside {
        Ok(path) if path.is_file() => path,
        _ => Path::new("sluiced").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_program_beside_this_one_the_path_is_searched() {
        let folder = tempfile::tempdir().unwrap();
        let own = || Ok(folder.path().join("sluice"));
        assert_eq!(sibling(own()), Path::new("sluiced"));
        std::fs::write(folder.path().join("sluiced"), "").unwrap();
        assert_eq!(sibling(own()), folder.path().join("sluiced"));
        assert_eq!(sibling(Err(io::Error::other("x"))), Path::new("sluiced"));
    }
}
