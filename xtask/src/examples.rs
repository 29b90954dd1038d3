//! The programs in `examples/`, run as their readers would run them: with gRPC from each language's package index, against a
//! real daemon, over its socket and its port. What is fetched and generated stays below `target`.

use std::fs;
use std::io;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use crate::demo::Programs;
use crate::outcome::Outcome;
use crate::packages::{Trouble, fetch, finish, outcome_with_log, python_packages, told};
use crate::system::{TemporaryFolder, has, root};

/// Where packages and generated modules go, below the repository.
const FOLDER: &str = "target/examples";
const STORY: &str = "Tell me a story about a kite.";

/// Runs all examples. What cannot run is skipped with its reason; on a CI machine that is a failure, but for want of a network.
pub(crate) fn check() -> io::Result<Outcome> {
    let folder = TemporaryFolder::new("examples")?;
    let programs = Programs::in_folder(folder.path())?;
    let mut process = programs.start_daemon(folder.path(), &["--listen", "127.0.0.1:0"])?;
    programs.wait_until_ready(&mut process, &AtomicBool::new(false))?;
    let log = programs.log();
    let port = log
        .lines()
        .find_map(|line| line.strip_prefix("listening on "));
    let daemon = Daemon {
        socket: programs.socket.to_string_lossy().into_owned(),
        port: port
            .ok_or_else(|| io::Error::other(format!("the daemon told no port:\n{log}")))?
            .to_owned(),
        nobody: folder
            .path()
            .join("nobody.sock")
            .to_string_lossy()
            .into_owned(),
        programs: &programs,
    };

    let run = [python, node].into_iter().map(|run| run(&daemon));
    Ok(outcome_with_log(run, &programs))
}

/// Where the daemon is, and what it knows of the requests that it had.
struct Daemon<'a> {
    socket: String,
    port: String,
    /// Where none is.
    nobody: String,
    programs: &'a Programs,
}

impl Daemon<'_> {
    /// The text of the latest request as our own client has it. The model may be any, so nothing else is known of it.
    fn latest_text(&self) -> Result<String, Trouble> {
        let listed = self.asked(&["requests"])?;
        // A line a request below the heading, its number first.
        let numbers = listed
            .lines()
            .filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let latest = numbers
            .max()
            .ok_or_else(|| Trouble::Failed("the daemon lists no request".to_owned()))?;
        let text = self.asked(&["watch", &latest.to_string()])?;
        match text.trim() {
            "" => Err(Trouble::Failed(format!(
                "the text of request {latest} is empty"
            ))),
            text => Ok(text.to_owned()),
        }
    }

    fn asked(&self, arguments: &[&str]) -> Result<String, Trouble> {
        let output = finish(self.programs.client().args(arguments))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(Trouble::Failed(told("sluice", &output))),
        }
    }
}

fn python(daemon: &Daemon<'_>) -> Result<(), Trouble> {
    let folder = root().join(FOLDER);
    let stubs = folder.join("stubs");
    let interpreter = python_packages(&folder.join("venv"), "examples/python", "grpcio")?;

    let protos = root().join("proto");
    fs::create_dir_all(&stubs)?;
    let mut generate = Command::new(&interpreter);
    generate
        .args(["-m", "grpc_tools.protoc"])
        .arg(format!("-I{}", protos.display()))
        .arg(format!("--python_out={}", stubs.display()))
        .arg(format!("--grpc_python_out={}", stubs.display()));
    for file in fs::read_dir(protos.join("sluice/v1"))? {
        generate.arg(file?.path());
    }
    let output = finish(&mut generate)?;
    if !output.status.success() {
        return Err(Trouble::Failed(told("grpc_tools.protoc", &output)));
    }

    let example = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(&interpreter);
        command
            .arg(program)
            .args(arguments)
            .current_dir(root().join("examples/python"))
            .env("SLUICE_STUBS", &stubs)
            .env("PYTHONDONTWRITEBYTECODE", "1");
        Example {
            name: format!("python {program}"),
            command,
        }
    };
    for place in [&daemon.socket, &daemon.port] {
        let ran = example("generate.py", &[STORY]).run(place)?;
        ran.wrote(&daemon.latest_text()?)?;
        ran.said(" tokens, ")?;
    }
    let ran = example("stream.py", &[STORY]).run(&daemon.socket)?;
    ran.wrote(&daemon.latest_text()?)?;
    ran.said("request ")?;
    let ran = example("watch.py", &[]).run(&daemon.socket)?;
    ran.said(" committed\n")?;
    ran.said(&daemon.latest_text()?)?;
    let ran = example("switch_level.py", &["moderate"]).run(&daemon.socket)?;
    ran.wrote(&daemon.latest_text()?)?;
    ran.said("in force")?;
    let ran = example("cancel.py", &[]).run(&daemon.socket)?;
    ran.said("FINISH_REASON_CANCELLED")?;
    let ran = example("describe.py", &[]).run(&daemon.socket)?;
    ran.said("Generate(GenerateRequest) returns (stream GenerateResponse)")?;
    example("generate.py", &[]).fails_in_words(&daemon.nobody)
}

fn node(daemon: &Daemon<'_>) -> Result<(), Trouble> {
    if !has("node", &["--version"]) || !has("npm", &["--version"]) {
        let words = "no Node with npm is here, so examples/node didn't run";
        return Err(Trouble::Missing(words.to_owned()));
    }
    let folder = root().join(FOLDER).join("node");
    fs::create_dir_all(&folder)?;
    for file in ["package.json", "stream.js"] {
        fs::copy(root().join("examples/node").join(file), folder.join(file))?;
    }
    let npm = |arguments: &[&str]| {
        let mut command = Command::new("npm");
        command
            .args(arguments)
            .args([
                "--loglevel=error",
                "--fetch-retries=1",
                "--fetch-retry-mintimeout=1000",
            ])
            .current_dir(&folder);
        command
    };
    fetch(
        "npm install",
        "examples/node",
        // No package's own scripts: none of these needs any.
        &mut npm(&["install", "--ignore-scripts", "--no-audit", "--no-fund"]),
        &mut npm(&["view", "@grpc/grpc-js", "version"]),
    )?;
    let example = || {
        let mut command = Command::new("node");
        command
            .args(["stream.js", STORY])
            .current_dir(&folder)
            .env("SLUICE_PROTOS", root().join("proto"));
        Example {
            name: "node stream.js".to_owned(),
            command,
        }
    };
    for place in [&daemon.socket, &daemon.port] {
        let ran = example().run(place)?;
        ran.wrote(&daemon.latest_text()?)?;
    }
    example().fails_in_words(&daemon.nobody)
}

/// One program, and what it is called here.
struct Example {
    name: String,
    command: Command,
}

impl Example {
    /// Runs it with the daemon at `place`, and shows what it printed.
    fn run(mut self, place: &str) -> Result<Ran, Trouble> {
        let shown = if place.starts_with("http") {
            "port"
        } else {
            "socket"
        };
        println!("--- {} ({shown})", self.name);
        let output = finish(self.command.env("SLUICE_SOCKET", place))?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        let words = told(&self.name, &output);
        match (text(&output.stdout), text(&output.stderr)) {
            (Some(printed), Some(warned)) if output.status.success() => {
                print!("{printed}{warned}");
                Ok(Ran {
                    printed,
                    warned,
                    words,
                })
            }
            _ => Err(Trouble::Failed(words)),
        }
    }

    /// Without a daemon, it ends with a line, not with a stack of calls.
    fn fails_in_words(mut self, place: &str) -> Result<(), Trouble> {
        println!("--- {} (no daemon)", self.name);
        let output = finish(self.command.env("SLUICE_SOCKET", place))?;
        let warned = String::from_utf8_lossy(&output.stderr);
        print!("{warned}");
        match output.status.code() == Some(1) && warned.trim_end().lines().count() == 1 {
            true => Ok(()),
            false => Err(Trouble::Failed(told(&self.name, &output))),
        }
    }
}

/// What a program that ended well printed and warned of.
struct Ran {
    printed: String,
    warned: String,
    /// All of it, for who reads a failure.
    words: String,
}

impl Ran {
    /// It printed this text and nothing else.
    fn wrote(&self, text: &str) -> Result<(), Trouble> {
        match self.printed.trim() == text {
            true => Ok(()),
            false => Err(Trouble::Failed(format!(
                "{}\nbut the daemon's text is:\n{text}",
                self.words
            ))),
        }
    }

    /// These words are somewhere in what it printed or warned of.
    fn said(&self, words: &str) -> Result<(), Trouble> {
        match self.printed.contains(words) || self.warned.contains(words) {
            true => Ok(()),
            false => Err(Trouble::Failed(format!(
                "{}\nand nowhere in it:\n{words}",
                self.words
            ))),
        }
    }
}
