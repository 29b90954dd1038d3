//! Calls about what the daemon remembers.

use futures_util::stream;
use sluice_proto::model::COLLECTION_DEFAULT;
use sluice_proto::v1::{
    ImportBegin, ImportSourcesRequest, MemorySourceKind, SearchMemoryRequest, SourceHeader,
    import_sources_request::Part,
};
use tokio::sync::mpsc::Sender;

use super::{super::event::Event, jobs};
use crate::{connection::DaemonConnection, dates, memory::title, output::Failure};

/// Finds pieces.
pub(super) async fn search(
    daemon: DaemonConnection,
    query: String,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let call = SearchMemoryRequest {
        query: query.clone(),
        ..Default::default()
    };
    let answer = daemon.memory().search_memory(call).await;
    let answer = answer.map_err(|status| daemon.failure(status))?;
    let answer = Box::new(answer.into_inner());
    let _ = events.send(Event::Recalled { query, answer }).await;
    Ok(())
}

/// Remembers a note.
pub(super) async fn remember(
    daemon: DaemonConnection,
    collection: String,
    text: String,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let now = dates::now();
    let begin = ImportBegin {
        collection: collection.clone(),
        total_bytes: text.len() as u64,
        ..Default::default()
    };
    let header = SourceHeader {
        kind: MemorySourceKind::Note.into(),
        name: title(now, &text),
        modified_unix_s: i64::try_from(now).ok(),
    };
    let parts = [
        Part::Begin(begin),
        Part::Source(header),
        // A line that was typed fits one message.
        Part::Chunk(text.into_bytes()),
    ];
    let messages = parts.map(|part| ImportSourcesRequest { part: Some(part) });
    let answer = daemon.memory().import_sources(stream::iter(messages)).await;
    let named = match collection.is_empty() {
        true => COLLECTION_DEFAULT.to_owned(),
        false => collection,
    };
    jobs::follow(daemon, answer, named, events).await
}
