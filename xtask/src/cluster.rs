//! Three daemons behind HAProxy, one of which is killed and one drained under load: `deploy/haproxy/cluster.py`.

use std::io;
use std::process::Command;

use crate::clients;
use crate::outcome::Outcome;
use crate::packages::{Trouble, finish, outcome, python_packages, told};
use crate::system::{built, has, root};

/// Where the program is.
const FOLDER: &str = "deploy/haproxy";
/// Where its packages go, below the repository.
const VENV: &str = "target/haproxy";
/// What else it runs, and how each is asked whether it is here.
const PROGRAMS: [(&str, &str); 3] = [("haproxy", "-v"), ("socat", "-V"), ("openssl", "version")];

/// So few that it takes seconds.
pub(crate) fn check() -> io::Result<Outcome> {
    run("60")
}

/// So many that most of them wait.
pub(crate) fn check_crowd() -> io::Result<Outcome> {
    run("500")
}

fn run(count: &str) -> io::Result<Outcome> {
    let missing = PROGRAMS.iter().find(|(name, ask)| !has(name, &[ask]));
    if let Some((name, _)) = missing {
        return Ok(Outcome::Skipped(format!(
            "{name} is not here; on Debian: apt-get install haproxy socat openssl"
        )));
    }
    match clients::build()? {
        Outcome::Passed => {}
        other => return Ok(other),
    }
    Ok(outcome([called_by(count)].into_iter()))
}

fn called_by(count: &str) -> Result<(), Trouble> {
    let interpreter = python_packages(&root().join(VENV), FOLDER, "grpcio")?;
    let mut command = Command::new(interpreter);
    command
        .args(["cluster.py", "check", "--clients", count, "--sluiced"])
        .arg(built("sluiced")?)
        .current_dir(root().join(FOLDER))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let output = finish(&mut command)?;
    match output.status.success() {
        true => {
            print!("{}", String::from_utf8_lossy(&output.stdout));
            Ok(())
        }
        false => Err(Trouble::Failed(told("cluster.py", &output))),
    }
}
