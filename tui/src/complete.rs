//! Completion in shells: the script of a shell calls this program, which asks the daemon for models and operations.
//!
//! It is silent where no daemon answers in time: a shell shows what a program says while somebody types.

use std::{
    env,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Arg, Command, CommandFactory};
use clap_complete::{
    ArgValueCompleter, CompleteEnv, CompletionCandidate, PathCompleter, Shell,
    engine::ValueCompleter, env::Shells,
};
use sluice_proto::v1::{
    ListCollectionsRequest, ListModelsRequest, ListOperationsRequest, Operation, OperationKind,
};
use sluice_shared::{level::Level, names::SHORT_NAMES, policy::POLICIES, preset::PRESETS};

use crate::{
    cli::Cli, connection, connection::DaemonConnection, output::Failure, text::sanitise_line,
};

/// Set by the scripts, to the shell's name.
const VARIABLE: &str = "SLUICE_COMPLETE";

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_millis(300);

/// What the value of an argument is one of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Models of the daemon, short names, and paths.
    Model,
    /// Models that are there.
    PresentModel,
    /// Models that can be downloaded by a short name.
    ShortName,
    /// Requests.
    Request,
    /// Work on files.
    Job,
    /// Operations that wait or run.
    Active,
    Preset,
    Policy,
    Level,
    Path,
    Folder,
    /// Collections that the daemon remembers sources in.
    Collection,
}

/// Arguments with values to complete: the command, or `*` for all, the argument's name there, and what it is.
const COMPLETED: [(&str, &str, Kind); 27] = [
    ("pull", "name", Kind::ShortName),
    ("rm", "name", Kind::PresentModel),
    ("jobs watch", "id", Kind::Job),
    ("jobs cancel", "id", Kind::Job),
    ("watch", "id", Kind::Request),
    ("cancel", "id", Kind::Active),
    ("*", "model", Kind::Model),
    ("*", "model_flag", Kind::Model),
    ("*", "preset", Kind::Preset),
    ("*", "presets", Kind::Preset),
    ("*", "policy", Kind::Policy),
    ("*", "level", Kind::Level),
    ("*", "levels", Kind::Level),
    ("*", "text", Kind::Path),
    ("replay", "file", Kind::Path),
    ("verify", "file", Kind::Path),
    ("decompress", "file", Kind::Path),
    ("fidelity", "file", Kind::Path),
    ("*", "texts", Kind::Path),
    ("decompress", "output", Kind::Folder),
    ("*", "output", Kind::Path),
    ("man", "folder", Kind::Folder),
    ("*", "socket", Kind::Path),
    ("*", "collection", Kind::Collection),
    ("*", "collections", Kind::Collection),
    ("*", "memory_collection", Kind::Collection),
    ("memory add", "paths", Kind::Path),
];

/// Completes a command line if a shell's script asks for that. Returns whether it did.
///
/// # Errors
/// With words for the user where the shell is unknown.
pub fn complete(arguments: &[OsString]) -> clap::error::Result<bool> {
    let socket = socket_of(arguments);
    let here = env::current_dir().ok();
    CompleteEnv::with_factory(move || with_values(Cli::command(), "", &socket))
        .var(VARIABLE)
        .try_complete(arguments.iter().cloned(), here.as_deref())
}

/// The script that makes a shell complete command lines of `sluice`.
pub fn script(shell: Shell) -> Result<Vec<u8>, Failure> {
    let (shells, name) = (Shells::builtins(), shell.to_string());
    let completer = shells
        .completer(&name)
        .ok_or_else(|| Failure::new(format!("there is no completion for {name}")))?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "sluice", "sluice", "sluice", &mut script)?;
    Ok(script)
}

/// The socket that the command line names so far, else the usual one.
fn socket_of(arguments: &[OsString]) -> PathBuf {
    let named = arguments.iter().enumerate().find_map(|(place, argument)| {
        let argument = argument.to_str()?;
        match argument.strip_prefix("--socket=") {
            Some(path) => Some(PathBuf::from(path)),
            None if argument == "--socket" => arguments.get(place + 1).map(PathBuf::from),
            None => None,
        }
    });
    connection::socket(named.as_deref())
}

/// The command with completers for its arguments, and the same of its subcommands. `name` is its own, with those above it.
fn with_values(command: Command, name: &str, socket: &Path) -> Command {
    let below: Vec<_> = command
        .get_subcommands()
        .map(|below| below.get_name().to_owned())
        .collect();
    let mut command = command.mut_args(|arg| match kind(name, &arg) {
        Some(kind) => arg.add(ArgValueCompleter::new(Values {
            kind,
            socket: socket.to_owned(),
        })),
        None => arg,
    });
    for subcommand in below {
        let full = format!("{name} {subcommand}");
        command =
            command.mut_subcommand(subcommand, |below| with_values(below, full.trim(), socket));
    }
    command
}

fn kind(command: &str, arg: &Arg) -> Option<Kind> {
    let mut rows = COMPLETED.iter();
    let row = rows.find(|(of, name, _)| (*of == command || *of == "*") && arg.get_id() == *name);
    row.map(|(.., kind)| *kind)
}

/// Finds the values of one argument.
#[derive(Debug)]
struct Values {
    kind: Kind,
    socket: PathBuf,
}

impl ValueCompleter for Values {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let paths = || PathCompleter::any().complete(current);
        let (mut found, mut paths) = match self.kind {
            Kind::Path => (Vec::new(), paths()),
            Kind::Folder => (Vec::new(), PathCompleter::dir().complete(current)),
            Kind::Preset => (
                named(PRESETS.iter().map(|row| (row.name, row.summary))),
                Vec::new(),
            ),
            Kind::Policy => (
                named(POLICIES.iter().map(|row| (row.name, row.summary))),
                Vec::new(),
            ),
            Kind::Level => (
                named(Level::ALL.iter().map(|level| (level.name(), ""))),
                Vec::new(),
            ),
            Kind::ShortName => (short_names(), Vec::new()),
            Kind::PresentModel => (self.ask(models), Vec::new()),
            Kind::Model => {
                let mut models = self.ask(models);
                models.extend(short_names());
                (models, paths())
            }
            Kind::Request => (
                self.ask(|daemon| operations(daemon, OperationKind::is_request, false)),
                Vec::new(),
            ),
            Kind::Job => (
                self.ask(|daemon| operations(daemon, OperationKind::is_on_files, false)),
                Vec::new(),
            ),
            Kind::Collection => (self.ask(collections), Vec::new()),
            Kind::Active => (
                self.ask(|daemon| operations(daemon, |_| true, true)),
                Vec::new(),
            ),
        };
        let typed = current.to_string_lossy();
        found.retain(|value| value.get_value().to_string_lossy().starts_with(&*typed));
        found.append(&mut paths);
        found
    }
}

impl Values {
    /// What the daemon answers within the time that it has; nothing without an answer.
    fn ask<F>(&self, call: impl FnOnce(DaemonConnection) -> F) -> Vec<CompletionCandidate>
    where
        F: Future<Output = Option<Vec<CompletionCandidate>>>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let Ok(runtime) = runtime else {
            return Vec::new();
        };
        let answer = async {
            let daemon = DaemonConnection::connect_at_rest(self.socket.clone(), Duration::ZERO);
            call(daemon.await.ok()?).await
        };
        let answer = runtime.block_on(async { tokio::time::timeout(PATIENCE, answer).await });
        answer.ok().flatten().unwrap_or_default()
    }
}

fn named<'a>(values: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<CompletionCandidate> {
    values.map(|(name, help)| candidate(name, help)).collect()
}

/// What a daemon says is text of others, and shells show it.
fn candidate(name: &str, help: &str) -> CompletionCandidate {
    let help = sanitise_line(help);
    CompletionCandidate::new(sanitise_line(name)).help((!help.is_empty()).then(|| help.into()))
}

fn short_names() -> Vec<CompletionCandidate> {
    named(SHORT_NAMES.iter().map(|row| (row.short, row.full)))
}

async fn models(daemon: DaemonConnection) -> Option<Vec<CompletionCandidate>> {
    let answer = daemon
        .models()
        .list_models(ListModelsRequest::default())
        .await;
    let models = answer.ok()?.into_inner().models;
    let found = models
        .iter()
        .map(|model| candidate(&model.name, &model.state().to_string()));
    Some(found.collect())
}

async fn collections(daemon: DaemonConnection) -> Option<Vec<CompletionCandidate>> {
    let answer = daemon
        .memory()
        .list_collections(ListCollectionsRequest {})
        .await;
    let collections = answer.ok()?.into_inner().collections;
    let found = collections.iter().map(|one| {
        let sources = format!("{} sources", one.sources);
        candidate(&one.name, &sources)
    });
    Some(found.collect())
}

async fn operations(
    daemon: DaemonConnection,
    is_meant: impl Fn(OperationKind) -> bool,
    only_active: bool,
) -> Option<Vec<CompletionCandidate>> {
    let answer = daemon
        .operations()
        .list_operations(ListOperationsRequest::default())
        .await;
    let operations = answer.ok()?.into_inner().operations;
    let meant = |operation: &&Operation| {
        is_meant(operation.kind()) && (operation.is_active() || !only_active)
    };
    let found = operations.iter().filter(meant).map(|operation| {
        let help = format!(
            "{}, {}, {}",
            operation.kind(),
            operation.state(),
            operation.model
        );
        candidate(&operation.operation_id.to_string(), &help)
    });
    Some(found.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments<'a>(command: &'a Command, name: &str) -> Vec<(String, &'a Arg)> {
        let mut all: Vec<_> = command
            .get_arguments()
            .map(|arg| (name.to_owned(), arg))
            .collect();
        for below in command.get_subcommands() {
            let full = format!("{name} {}", below.get_name());
            all.extend(arguments(below, full.trim()));
        }
        all
    }

    #[test]
    fn every_row_is_of_an_argument_that_there_is() {
        let command = Cli::command();
        let all = arguments(&command, "");
        for (of, name, kind) in COMPLETED {
            let mut known = all
                .iter()
                .filter(|(command, arg)| arg.get_id() == name && (of == "*" || of == command));
            assert!(
                known.next().is_some(),
                "{of} has no argument {name} for {kind:?}"
            );
        }
    }

    #[test]
    fn each_command_knows_what_its_arguments_are() {
        let command = Cli::command();
        let of = |command_name: &str, name: &str| {
            let all = arguments(&command, "");
            let (_, arg) = all
                .iter()
                .find(|(of, arg)| of == command_name && arg.get_id() == name)
                .unwrap();
            kind(command_name, arg)
        };
        assert_eq!(of("run", "model"), Some(Kind::Model));
        assert_eq!(of("jobs watch", "id"), Some(Kind::Job));
        assert_eq!(of("watch", "id"), Some(Kind::Request));
        assert_eq!(of("decompress", "output"), Some(Kind::Folder));
        assert_eq!(of("level", "level"), Some(Kind::Level));
        assert_eq!(of("generate", "prompt"), None);
        assert_eq!(of("memory list", "collection"), Some(Kind::Collection));
        assert_eq!(of("chat", "memory_collection"), Some(Kind::Collection));
    }

    #[test]
    fn what_needs_no_daemon_is_completed_without_one() {
        let values = |kind, current: &str| {
            let socket = "/nowhere/at/all".into();
            let found = Values { kind, socket }.complete(current.as_ref());
            let names = found
                .iter()
                .map(|found| found.get_value().to_string_lossy().into_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(values(Kind::Preset, "ba"), ["balanced"]);
        assert_eq!(values(Kind::Level, "mo"), ["moderate"]);
        assert!(values(Kind::Model, "smollm2").contains(&"smollm2:135m".to_owned()));
        assert!(values(Kind::Request, "").is_empty());
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.gguf"), "").unwrap();
        let path = folder.path().join("mod");
        let found = values(Kind::Model, path.to_str().unwrap());
        assert_eq!(found, [folder.path().join("model.gguf").to_str().unwrap()]);
    }

    #[test]
    fn the_socket_is_that_of_the_command_line() {
        let of = |line: &[&str]| socket_of(&line.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of(&["sluice", "--socket", "/s", "watch"]), Path::new("/s"));
        assert_eq!(of(&["sluice", "watch", "--socket=/t"]), Path::new("/t"));
    }
}
