//! Clients of OpenAI's and Ollama's APIs that people have, against a real daemon over HTTP: the Python packages `openai`, `ollama` and
//! `litellm`, the proxy of the last, and curl. Each runs with a masked diffusion model and with an autoregressive one.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use crate::demo::Programs;
use crate::outcome::Outcome;
use crate::packages::{Trouble, finish, outcome, outcome_with_log, python_packages, told};
use crate::steps::command;
use crate::system::{TemporaryFolder, cargo, has, root};

/// Where the programs are.
const FOLDER: &str = "tools/http-clients";
/// Where packages go, below the repository.
const VENV: &str = "target/http-clients";
/// The autoregressive model that gets a tokenizer.
const FIXTURE: &str = "daemon/engine/tests/fixtures/llama-tiny";

/// Builds a daemon with HTTP, and runs all clients. What cannot run is skipped with its reason.
pub(crate) fn check() -> io::Result<Outcome> {
    match build()? {
        Outcome::Passed => {}
        other => return Ok(other),
    }
    let folder = TemporaryFolder::new("clients")?;
    let programs = Programs::in_folder(folder.path())?;
    let packages = python_packages(&root().join(VENV), FOLDER, "openai");
    let interpreter = match packages {
        Ok(interpreter) => interpreter,
        Err(trouble) => return Ok(outcome([Err(trouble)].into_iter())),
    };
    let python = |program: &str| {
        let mut command = Command::new(&interpreter);
        command
            .arg(program)
            .current_dir(root().join(FOLDER))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    let model = folder.path().join("autoregressive-tiny");
    let mut make = python("fixture.py");
    let made = finish(make.arg(root().join(FIXTURE)).arg(&model))?;
    if !made.status.success() {
        return Ok(Outcome::Failed(told("fixture.py", &made)));
    }
    let model = model.to_string_lossy();
    for (name, kind, options) in [
        ("sluice-demo", "masked_diffusion", &[][..]),
        (
            "autoregressive-tiny",
            "autoregressive",
            &["--model", &*model],
        ),
    ] {
        let options = [&["--http", "127.0.0.1:0"], options].concat();
        let daemon = HttpDaemon::start(&programs, folder.path(), &options)?;
        let scripts = ["openai_check.py", "ollama_check.py", "litellm_check.py"];
        let scripts = scripts.into_iter().map(|script| {
            let mut command = python(script);
            command.env("MODEL", name).env("KIND", kind);
            daemon.is_called_by(script, &mut command)
        });
        match outcome_with_log(scripts.chain([daemon.is_called_by_curl()]), &programs) {
            Outcome::Passed => {}
            other => return Ok(other),
        }
    }
    Ok(Outcome::Passed)
}

/// Builds the programs, the daemon with HTTP.
pub(crate) fn build() -> io::Result<Outcome> {
    // Features as for all other checks, so that nothing but the daemon is compiled again.
    command(cargo().args(["build", "--bins", "--features", "sluice-daemon/installed"]))
}

/// A daemon with a model, and the address of its HTTP port.
struct HttpDaemon {
    address: String,
    _process: crate::system::Stopping,
}

impl HttpDaemon {
    fn start(programs: &Programs, folder: &Path, options: &[&str]) -> io::Result<Self> {
        let mut process = programs.start_daemon(folder, options)?;
        programs.wait_until_ready(&mut process, &AtomicBool::new(false))?;
        let log = programs.log();
        let address = log
            .lines()
            .find_map(|line| line.strip_prefix("serving HTTP on "));
        Ok(Self {
            address: address
                .ok_or_else(|| io::Error::other(format!("the daemon told no port:\n{log}")))?
                .to_owned(),
            _process: process,
        })
    }

    fn is_called_by(&self, name: &str, command: &mut Command) -> Result<(), Trouble> {
        println!("--- {name}");
        let output = finish(command.env("SLUICE_HTTP", &self.address))?;
        print!("{}", String::from_utf8_lossy(&output.stdout));
        match output.status.success() {
            true => Ok(()),
            false => Err(Trouble::Failed(told(name, &output))),
        }
    }

    fn is_called_by_curl(&self) -> Result<(), Trouble> {
        if !has("curl", &["--version"]) {
            return Err(Trouble::Missing("curl is not here".to_owned()));
        }
        println!("--- curl");
        let body = r#"{"stream": true, "max_tokens": 8, "messages": [{"role": "user", "content": "Tell me a story."}]}"#;
        let url = format!("{}/v1/chat/completions", self.address);
        let mut curl = Command::new("curl");
        let output = finish(curl.args(["-sS", "--fail", "-N", &url, "-d", body]))?;
        let events = String::from_utf8_lossy(&output.stdout);
        match output.status.success() && events.ends_with("data: [DONE]\n\n") {
            true => Ok(()),
            false => Err(Trouble::Failed(told("curl", &output))),
        }
    }
}
