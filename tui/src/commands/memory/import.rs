//! Sending sources to the daemon, chunk by chunk: no file is held in memory as a whole.

use std::{
    fs::File,
    future::pending,
    io::{self, Read},
    path::PathBuf,
    time::Instant,
};

use futures_util::{Stream, stream};
use sluice_proto::model::COLLECTION_DEFAULT;
use sluice_proto::v1::{
    ImportBegin, ImportSourcesRequest, MemorySourceKind, Operation, OperationProgress,
    SourceHeader, import_sources_request::Part, operation::Outcome,
};
use sluice_report::{container, progress::advance};
use sluice_shared::{bandwidth::Bandwidth, units};
use tokio::{
    signal::unix::Signal,
    sync::{mpsc, oneshot},
};

use super::super::operations::{NewNotices, OnInterrupt, Step, follow};
use crate::{
    connection::DaemonConnection,
    operations::no_result,
    output::{Failure, StandardOutput, dim, say},
    text::sanitise_line,
};

/// Bytes of a source that are sent at once.
const CHUNK_BYTES: usize = 256 << 10;
/// Messages that are read ahead of the daemon.
const MESSAGES_MAX: usize = 4;

/// What is remembered under one name.
#[derive(Debug)]
pub(in super::super) struct Source {
    pub(super) header: SourceHeader,
    /// 0: not known.
    pub(super) bytes: u64,
    pub(super) content: Content,
}

/// Where the content of a source comes from.
#[derive(Debug)]
pub(super) enum Content {
    File(PathBuf),
    StandardInput,
    Text(String),
}

impl Source {
    /// A text with a title of its own.
    pub(in super::super) fn text(
        kind: MemorySourceKind,
        seconds: u64,
        title: String,
        text: String,
    ) -> Self {
        Self {
            header: SourceHeader {
                kind: kind.into(),
                name: title,
                modified_unix_s: i64::try_from(seconds).ok(),
            },
            bytes: text.len() as u64,
            content: Content::Text(text),
        }
    }
}

/// Has the daemon remember sources and shows the progress. An interrupt cancels it.
pub(in super::super) async fn run(
    daemon: &DaemonConnection,
    begin: ImportBegin,
    sources: Vec<Source>,
    json: bool,
    interrupts: &mut Signal,
    out: &mut StandardOutput,
) -> Result<Operation, Failure> {
    let names: Vec<String> = sources.iter().map(|one| one.header.name.clone()).collect();
    let (messages, failed) = messages(begin, sources)?;
    let cancels = OnInterrupt::Cancels {
        announce: || say("cancelling"),
        cancelled: |_| {
            Failure::interrupted("the sources that were done are kept")
                .with_hint("run the same command again to go on with the rest")
        },
        unconfirmed: || {
            Failure::interrupted("the daemon has not confirmed the end of the import")
                .with_hint("`sluice jobs` shows whether it is still running")
        },
    };
    let (mut rate, mut notices) = (Bandwidth::default(), NewNotices::default());
    let mut client = daemon.memory();
    let call = client.import_sources(messages);
    let followed = follow(daemon, call, interrupts, cancels, |operation, progress| {
        if json {
            out.json(operation)?;
            return Ok(Step::Next);
        }
        for notice in notices.of(operation) {
            progress.clear();
            dim(&format!("note: {}", sanitise_line(&named(notice, &names))));
        }
        if let Some(step) = operation
            .progress
            .as_ref()
            .filter(|_| operation.is_active())
        {
            rate.record(Instant::now(), step.done);
            let verb = container::verb(operation.kind());
            let line = line(verb, step, rate.bytes_per_second(), &names);
            progress.show(&sanitise_line(&line));
        }
        Ok(Step::Next)
    });
    tokio::select! {
        followed = followed => followed,
        // The call is dropped, which cancels it.
        failure = failed => Err(failure),
    }
}

/// A text of the daemon with the source's name, which it tells by its number, since others may read it.
fn named(text: &str, names: &[String]) -> String {
    let name = || {
        let rest = text.strip_prefix("source ")?;
        let (number, rest) = rest.split_at(
            rest.find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len()),
        );
        let place = number.parse::<usize>().ok()?.checked_sub(1)?;
        Some(format!("{}{rest}", names.get(place)?))
    };
    name().unwrap_or_else(|| text.to_owned())
}

fn line(verb: &str, step: &OperationProgress, rate: Option<f64>, names: &[String]) -> String {
    let line = match step.total.filter(|total| *total > 0) {
        Some(total) => advance(verb, step.done, total, rate),
        None => format!("{verb} {}", units::bytes(step.done)),
    };
    match step.item.is_empty() {
        true => line,
        false => format!("{line} · {}", named(&step.item, names)),
    }
}

/// What came of an import, in a line.
pub(in super::super) fn outcome(
    collection: &str,
    operation: &Operation,
) -> Result<String, Failure> {
    let result = (operation.outcome.as_ref())
        .filter(|outcome| matches!(outcome, Outcome::Imported(_)))
        .ok_or_else(no_result)?;
    let collection = match collection {
        "" => COLLECTION_DEFAULT,
        name => name,
    };
    let line = container::outcome(collection, result, operation.elapsed_ms);
    line.map(|line| sanitise_line(&line)).map_err(Failure::new)
}

/// The messages of a call, and the failure to read a source, if there is one.
fn messages(
    begin: ImportBegin,
    sources: Vec<Source>,
) -> Result<
    (
        impl Stream<Item = ImportSourcesRequest> + Send + 'static,
        impl Future<Output = Failure>,
    ),
    Failure,
> {
    let (sender, receiver) = mpsc::channel(MESSAGES_MAX);
    let (fail, failed) = oneshot::channel();
    // A thread that is never joined: a blocking read of standard input cannot be cancelled.
    let reader = std::thread::Builder::new().name("sources".into());
    let started = reader.spawn(move || {
        if let Err(failure) = send(begin, sources, &sender) {
            drop(sender.blocking_send(Err(failure)));
        }
    });
    started.map_err(|error| Failure::new(format!("start reading the sources: {error}")))?;
    let messages = stream::unfold((receiver, fail), |(mut receiver, fail)| async move {
        match receiver.recv().await? {
            Ok(message) => Some((message, (receiver, fail))),
            Err(failure) => {
                drop(fail.send(failure));
                // The end of the stream would say that the last source is whole.
                pending().await
            }
        }
    });
    let failed = async {
        match failed.await {
            Ok(failure) => failure,
            Err(_) => pending().await,
        }
    };
    Ok((messages, failed))
}

type Sender = mpsc::Sender<Result<ImportSourcesRequest, Failure>>;

/// Sends all sources, as far as somebody takes them.
fn send(begin: ImportBegin, sources: Vec<Source>, sender: &Sender) -> Result<(), Failure> {
    let give = |part| {
        let message = ImportSourcesRequest { part: Some(part) };
        sender.blocking_send(Ok(message)).is_ok()
    };
    if !give(Part::Begin(begin)) {
        return Ok(());
    }
    for source in sources {
        let name = source.header.name.clone();
        let failed = |error: io::Error| Failure::new(format!("cannot read {name}: {error}"));
        let mut reader: Box<dyn Read> = match &source.content {
            // No more than it had: one that grows would have no end.
            Content::File(path) => Box::new(File::open(path).map_err(failed)?.take(source.bytes)),
            Content::StandardInput => Box::new(io::stdin().lock()),
            Content::Text(text) => Box::new(text.as_bytes()),
        };
        if !give(Part::Source(source.header.clone())) {
            return Ok(());
        }
        loop {
            let mut chunk = Vec::new();
            let mut limited = (&mut reader).take(CHUNK_BYTES as u64);
            limited.read_to_end(&mut chunk).map_err(failed)?;
            if chunk.is_empty() {
                break;
            }
            if !give(Part::Chunk(chunk)) {
                return Ok(());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    fn file(path: PathBuf, bytes: u64) -> Source {
        Source {
            header: SourceHeader {
                kind: MemorySourceKind::File.into(),
                name: path.display().to_string(),
                modified_unix_s: None,
            },
            bytes,
            content: Content::File(path),
        }
    }

    #[tokio::test]
    async fn sources_travel_in_chunks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long");
        let bytes = vec![b'x'; CHUNK_BYTES * 2 + 7];
        std::fs::write(&path, &bytes).unwrap();
        let note = Source::text(MemorySourceKind::Note, 5, "n".into(), "note".into());
        let empty = Source::text(MemorySourceKind::Note, 5, "e".into(), String::new());
        // What is written to the file meanwhile is left for another time.
        let sources = vec![file(path, bytes.len() as u64 - 1), empty, note];
        let (messages, _) = messages(ImportBegin::default(), sources).unwrap();
        let parts: Vec<_> = messages
            .map(|message| message.part.unwrap())
            .collect()
            .await;
        let lengths = parts.iter().map(|part| match part {
            Part::Begin(_) => "begin".to_owned(),
            Part::Source(header) => format!("source {}", header.kind().as_str_name().len()),
            Part::Chunk(chunk) => chunk.len().to_string(),
        });
        let lengths: Vec<_> = lengths.collect();
        assert_eq!(
            lengths,
            [
                "begin",
                "source 23",
                "262144",
                "262144",
                "6",
                "source 23",
                "source 23",
                "4"
            ]
        );
    }

    #[tokio::test]
    async fn a_source_that_cannot_be_read_leaves_the_stream_open() {
        let sources = vec![file("/nowhere/at/all".into(), 1)];
        let (messages, failed) = messages(ImportBegin::default(), sources).unwrap();
        tokio::pin!(messages);
        assert!(messages.next().await.is_some());
        tokio::select! {
            next = messages.next() => panic!("it went on with {next:?}"),
            failure = failed => assert!(format!("{failure:?}").contains("/nowhere")),
        }
    }

    #[test]
    fn sources_are_told_by_their_names() {
        let names = ["/a.md".to_owned(), "/b c".to_owned()];
        assert_eq!(named("source 2", &names), "/b c");
        assert_eq!(
            named("source 1 was left out: x", &names),
            "/a.md was left out: x"
        );
        for other in ["source 3", "source 0", "source x", "sources", ""] {
            assert_eq!(named(other, &names), other);
        }
    }

    #[test]
    fn progress_without_a_total_counts_bytes() {
        let step = OperationProgress {
            item: "pool.md".into(),
            done: 2048,
            ..Default::default()
        };
        assert_eq!(
            line("remembering", &step, None, &[]),
            "remembering 2.00 KiB · pool.md"
        );
        let total = Some(4096);
        let line = line(
            "remembering",
            &OperationProgress { total, ..step },
            None,
            &[],
        );
        assert!(line.ends_with("2.00 KiB of 4.00 KiB · pool.md"), "{line}");
    }
}
