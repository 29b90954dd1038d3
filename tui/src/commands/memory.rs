//! `sluice memory`: what the daemon remembers.

mod export;
mod files;
mod import;
mod show;

use std::{
    io::{self, BufRead, IsTerminal, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;
use sluice_proto::v1::{
    ImportBegin, ListCollectionsRequest, ListCollectionsResponse, MemorySourceKind, Operation,
    RemoveSourcesRequest, RemoveSourcesResponse, SourceHeader, WipeMemoryRequest,
    remove_sources_request::What,
};
use sluice_shared::units;
use tokio::signal::unix::Signal;

use self::{
    files::FoundFiles,
    import::{Content, Source},
};
use super::{follow::interrupts, input::STDIN, until_interrupted, usage};
use crate::{
    cli::{MemoryAdd, MemoryCommand, MemoryRemove},
    connection::DaemonConnection,
    dates, memory,
    output::{Failure, StandardOutput, dim},
    text::sanitise_line,
};

/// Carries out one of the commands.
pub(super) async fn run(
    socket: PathBuf,
    command: MemoryCommand,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    match command {
        MemoryCommand::Add(arguments) => add(socket, &arguments, out).await,
        MemoryCommand::List { collection, json } => {
            until_interrupted(async {
                let daemon = DaemonConnection::connect(socket).await?;
                match collection {
                    None => show::collections(&daemon, json, out).await,
                    Some(name) => show::sources(&daemon, &name, json, out).await,
                }
            })
            .await
        }
        MemoryCommand::Show(arguments) => {
            until_interrupted(async {
                let daemon = DaemonConnection::connect(socket).await?;
                show::pieces(&daemon, &arguments, out).await
            })
            .await
        }
        MemoryCommand::Search(arguments) => {
            let query = super::input::text(&arguments.query)?;
            until_interrupted(async {
                let daemon = DaemonConnection::connect(socket).await?;
                show::search(&daemon, query, &arguments, out).await
            })
            .await
        }
        MemoryCommand::Rm(arguments) => remove(socket, &arguments, out).await,
        MemoryCommand::Export(arguments) => {
            until_interrupted(async {
                let daemon = DaemonConnection::connect(socket).await?;
                export::run(&daemon, &arguments, out).await
            })
            .await
        }
        MemoryCommand::Wipe { yes, json } => wipe(socket, yes, json, out).await,
    }
}

/// Remembers files and a note.
async fn add(
    socket: PathBuf,
    arguments: &MemoryAdd,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let is_note = |path: &&PathBuf| path.as_path() == Path::new(STDIN);
    // A title alone means a note.
    let has_note = arguments.paths.iter().any(|path| is_note(&path)) || arguments.paths.is_empty();
    if arguments.note.is_some() && !has_note {
        return Err(usage(
            "--note is the title of a note from standard input; add `-` for that",
        ));
    }
    let mut found = FoundFiles::new(arguments.no_ignore);
    for path in arguments.paths.iter().filter(|path| !is_note(path)) {
        found.add(path)?;
    }
    for note in found.notes() {
        dim(&sanitise_line(&note));
    }
    let mut sources = found.sources;
    let mut total_bytes = sources.iter().map(|source| source.bytes).sum();
    if has_note {
        let now = dates::now();
        let title = arguments.note.clone();
        sources.push(Source {
            header: SourceHeader {
                kind: MemorySourceKind::Note.into(),
                name: title.unwrap_or_else(|| memory::title(now, "note")),
                modified_unix_s: i64::try_from(now).ok(),
            },
            bytes: 0,
            content: Content::StandardInput,
        });
        total_bytes = 0;
    }
    if sources.is_empty() {
        return Err(Failure::new("there is no text to remember"));
    }
    let collection = arguments.collection.clone().unwrap_or_default();
    let begin = ImportBegin {
        collection: collection.clone(),
        total_bytes,
        reader: arguments.readers.map_or(0, |reader| {
            sluice_proto::v1::MemoryReader::from(reader).into()
        }),
    };
    let daemon = DaemonConnection::connect(socket).await?;
    let mut interrupts = interrupts()?;
    let imported = import::run(
        &daemon,
        begin,
        sources,
        arguments.json,
        &mut interrupts,
        out,
    );
    let imported = imported.await?;
    match arguments.json {
        true => Ok(()),
        false => out.line(&import::outcome(&collection, &imported)?),
    }
}

/// Remembers a text whose title has some words of it. Returns what came of it, in a line.
pub(super) async fn remember(
    daemon: &DaemonConnection,
    collection: &str,
    kind: MemorySourceKind,
    (words, text): (&str, String),
    interrupts: &mut Signal,
    out: &mut StandardOutput,
) -> Result<String, Failure> {
    let now = dates::now();
    let source = Source::text(kind, now, memory::title(now, words), text);
    let begin = ImportBegin {
        collection: collection.to_owned(),
        total_bytes: source.bytes,
        ..Default::default()
    };
    let done: Operation = import::run(daemon, begin, vec![source], false, interrupts, out).await?;
    import::outcome(collection, &done)
}

/// Forgets sources, or a collection.
async fn remove(
    socket: PathBuf,
    arguments: &MemoryRemove,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let daemon = DaemonConnection::connect(socket).await?;
    if let (Some(name), false) = (&arguments.collection, arguments.yes) {
        let all = collections(&daemon).await?.collections;
        let sources = all.iter().find(|one| one.name == *name);
        let sources = sources.map_or(0, |one| one.sources);
        let sources = units::several(sources, "source");
        let question = format!("forget collection {name} with {sources}");
        confirm(&question)?;
    }
    let sources = arguments.sources.iter().copied().map(What::SourceId);
    let collection = arguments.collection.clone().map(What::Collection);
    until_interrupted(async {
        for what in sources.chain(collection) {
            let request = RemoveSourcesRequest {
                what: Some(what.clone()),
            };
            let answer = daemon.memory().remove_sources(request).await;
            let removed = answer
                .map_err(|status| daemon.failure(status))?
                .into_inner();
            match arguments.json {
                true => out.json(&Removal::of(&what, &removed))?,
                false => out.line(&removal(&what, &removed))?,
            }
            if !arguments.json {
                for notice in &removed.notices {
                    dim(&format!("note: {}", sanitise_line(notice)));
                }
            }
        }
        Ok(())
    })
    .await
}

/// The answer for scripts: what was to be removed, and the result.
#[derive(Serialize)]
struct Removal<'a> {
    source_id: Option<i64>,
    collection: Option<&'a str>,
    #[serde(flatten)]
    answer: &'a RemoveSourcesResponse,
}

impl<'a> Removal<'a> {
    fn of(what: &'a What, answer: &'a RemoveSourcesResponse) -> Self {
        let (source_id, collection) = match what {
            What::SourceId(id) => (Some(*id), None),
            What::Collection(name) => (None, Some(name.as_str())),
        };
        Self {
            source_id,
            collection,
            answer,
        }
    }
}

fn removal(what: &What, removed: &RemoveSourcesResponse) -> String {
    let pieces = units::several(removed.pieces, "piece");
    match what {
        What::SourceId(id) => format!("forgot source {id}, {pieces}"),
        What::Collection(name) => sanitise_line(&format!(
            "forgot collection {name}, {} in {pieces}",
            units::several(removed.sources, "source")
        )),
    }
}

/// Forgets everything.
async fn wipe(
    socket: PathBuf,
    yes: bool,
    json: bool,
    out: &mut StandardOutput,
) -> Result<(), Failure> {
    let daemon = DaemonConnection::connect(socket).await?;
    if !yes {
        let all = collections(&daemon).await?.collections;
        let sources: u64 = all.iter().map(|one| one.sources).sum();
        let count = all.len();
        confirm(&format!(
            "forget all {count} collections with {}",
            units::several(sources, "source")
        ))?;
    }
    until_interrupted(async {
        let answer = daemon.memory().wipe_memory(WipeMemoryRequest {}).await;
        let wiped = answer
            .map_err(|status| daemon.failure(status))?
            .into_inner();
        match json {
            true => out.json(&wiped),
            false => out.line(&format!(
                "forgot everything, {} in {}",
                units::several(wiped.sources, "source"),
                units::several(wiped.pieces, "piece")
            )),
        }
    })
    .await
}

async fn collections(daemon: &DaemonConnection) -> Result<ListCollectionsResponse, Failure> {
    let request = ListCollectionsRequest {};
    let answer = daemon.memory().list_collections(request).await;
    answer
        .map(tonic::Response::into_inner)
        .map_err(|status| daemon.failure(status))
}

/// Asks whether to do what cannot be undone.
///
/// # Errors
/// Without a yes, and without a terminal to ask on.
fn confirm(question: &str) -> Result<(), Failure> {
    if !io::stdin().is_terminal() {
        return Err(usage(
            "this cannot be undone, and there is nobody to ask; --yes does it",
        ));
    }
    let mut answer = String::new();
    let mut err = io::stderr();
    let asked = write!(err, "{}? [y/N] ", sanitise_line(question)).and_then(|()| err.flush());
    asked
        .and_then(|()| io::stdin().lock().read_line(&mut answer))
        .map_err(|error| Failure::new(format!("ask: {error}")))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new("nothing was forgotten")),
    }
}
