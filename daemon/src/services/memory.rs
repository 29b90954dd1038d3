//! `MemoryService`: remembering, finding and forgetting.

mod encode;
mod import;
mod search;
mod turns;

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use sluice_proto::{
    model::{InvalidField, MemorySearch, PiecePage, Removal, SourcePage, optional_collection},
    v1::{
        self, export_memory_response::Part, import_sources_request::Part as ImportPart,
        memory_service_server::MemoryService,
    },
};
use sluice_retrieval::{Store, StoreError};
use tonic::{Request, Response, Status, Streaming};

pub(super) use self::{search::Recalled, turns::MemoryTurns};
use super::{
    Daemon, call_terms::CallTerms, deadline::Deadline, operation, requests::ResponseStream,
};
use crate::{
    caller::Caller,
    failure::Failure,
    memory::{self, Memory, MemoryError},
    translate::memory as wire,
};

/// Pieces that an export reads at a time.
const EXPORT_PIECES: usize = 100;
/// Sources that an export looks at between two of which it reads pieces.
const EXPORT_SOURCES: usize = 100;

/// The service; clones share the daemon.
pub(super) struct Service(pub(super) Arc<Daemon>);

#[tonic::async_trait]
impl MemoryService for Service {
    type ImportSourcesStream = ResponseStream<v1::ImportSourcesResponse>;
    type ExportMemoryStream = ResponseStream<v1::ExportMemoryResponse>;

    async fn import_sources(
        &self,
        request: Request<Streaming<v1::ImportSourcesRequest>>,
    ) -> Result<Response<Self::ImportSourcesStream>, Status> {
        let terms = CallTerms::of(&request);
        self.0.check_open()?;
        let mut messages = request.into_inner();
        let first = import::next_part(&mut messages).await?;
        let Some(ImportPart::Begin(begin)) = first else {
            let problem = "is missing; it comes first".to_owned();
            return Err(Failure::from(InvalidField {
                field: "begin",
                problem,
            })
            .into());
        };
        let operation = self.0.begin_import(terms, begin, messages).await?;
        let pictures = operation::follow(operation.clone(), &self.0.closing);
        // The import belongs to the call.
        let owner = import::CancelOnDrop(operation);
        let owned = pictures.map(move |picture| {
            let _ = &owner;
            picture
        });
        Ok(Response::new(owned.boxed()))
    }

    async fn list_collections(
        &self,
        request: Request<v1::ListCollectionsRequest>,
    ) -> Result<Response<v1::ListCollectionsResponse>, Status> {
        let terms = CallTerms::of(&request);
        let caller = terms.caller;
        let encoder = self.0.memory_encoder();
        let list = move |store: &mut Store| {
            let theirs = memory::readable(store, caller, &[])?;
            let mut all = store.collections()?;
            all.retain(|collection| theirs.contains(&collection.name));
            Ok((all, store.totals()?))
        };
        let listed = self.0.remembered(&terms, list).await?;
        let answer = match listed {
            Some((collections, totals)) => v1::ListCollectionsResponse {
                collections: collections.iter().map(wire::collection).collect(),
                file_bytes: totals.file_bytes,
                index_bytes: totals.index_bytes,
                encoded_pieces: totals.vectors,
                encoder: encoder.unwrap_or_default(),
            },
            None => v1::ListCollectionsResponse {
                encoder: encoder.unwrap_or_default(),
                ..Default::default()
            },
        };
        Ok(Response::new(answer))
    }

    async fn list_sources(
        &self,
        request: Request<v1::ListSourcesRequest>,
    ) -> Result<Response<v1::ListSourcesResponse>, Status> {
        let terms = CallTerms::of(&request);
        let page = SourcePage::try_from(request.into_inner()).map_err(Failure::from)?;
        let caller = terms.caller;
        let asked = page.collection.clone();
        let list = move |store: &mut Store| sources(store, caller, &page);
        let listed = self.0.remembered(&terms, list).await?;
        let Some((sources, next)) = listed else {
            return Ok(Response::new(none_there(asked)?));
        };
        Ok(Response::new(v1::ListSourcesResponse {
            sources: sources.iter().map(wire::source).collect(),
            next_page_token: next.map(|id| id.to_string()).unwrap_or_default(),
        }))
    }

    async fn read_source(
        &self,
        request: Request<v1::ReadSourceRequest>,
    ) -> Result<Response<v1::ReadSourceResponse>, Status> {
        let terms = CallTerms::of(&request);
        let page = PiecePage::try_from(request.into_inner()).map_err(Failure::from)?;
        let caller = terms.caller;
        let read = move |store: &mut Store| {
            let source = memory::readable_source(store, caller, page.source)?;
            let pieces = store.pieces(page.source, page.first, page.most)?;
            Ok((source, pieces))
        };
        let read = self.0.remembered(&terms, read).await?;
        let no_source = || Failure::from(MemoryError::from(StoreError::NoSource(page.source)));
        let (source, pieces) = read.ok_or_else(no_source)?;
        Ok(Response::new(v1::ReadSourceResponse {
            source: Some(wire::source(&source)),
            pieces: pieces.iter().map(wire::piece).collect(),
        }))
    }

    async fn search_memory(
        &self,
        request: Request<v1::SearchMemoryRequest>,
    ) -> Result<Response<v1::SearchMemoryResponse>, Status> {
        let terms = CallTerms::of(&request);
        self.0.check_open()?;
        let search = MemorySearch::try_from(request.into_inner()).map_err(Failure::from)?;
        let deadline = terms.deadline;
        let found = Deadline::limit(deadline, self.0.search_memory(terms, search)).await?;
        Ok(Response::new(v1::SearchMemoryResponse {
            hits: found.hits,
            ranking: found.ranking.into(),
            elapsed_ms: found.elapsed.as_secs_f64() * 1e3,
            notices: found.notices,
        }))
    }

    async fn remove_sources(
        &self,
        request: Request<v1::RemoveSourcesRequest>,
    ) -> Result<Response<v1::RemoveSourcesResponse>, Status> {
        let terms = CallTerms::of(&request);
        let what = Removal::try_from(request.into_inner()).map_err(Failure::from)?;
        let caller = terms.caller;
        let missing = match &what {
            Removal::Source(id) => StoreError::NoSource(*id),
            Removal::Collection(name) => StoreError::NoCollection(name.clone()),
        };
        let remove = move |store: &mut Store| match what {
            Removal::Source(id) => {
                let source = memory::readable_source(store, caller, id)?;
                store.remove_source(id)?;
                Ok((1, source.pieces))
            }
            Removal::Collection(name) => {
                memory::readable(store, caller, std::slice::from_ref(&name))?;
                let all = store.collections()?;
                let removed = all.iter().find(|collection| collection.name == name);
                let removed = removed.map_or((0, 0), |found| (found.sources, found.pieces));
                store.remove_collection(&name)?;
                Ok(removed)
            }
        };
        let removed = self.0.remembered(&terms, remove).await?;
        let missing = || Failure::from(MemoryError::from(missing));
        let (sources, pieces) = removed.ok_or_else(missing)?;
        // It is removed, whatever becomes of its text.
        let deleted = self.0.clone().delete_removed(caller.share()).await;
        let notice = |failure| format!("its text is still in the file: {failure}");
        let notices = deleted.err().map(notice).into_iter().collect();
        tracing::info!(sources, pieces, "removed from memory");
        Ok(Response::new(v1::RemoveSourcesResponse {
            sources,
            pieces,
            notices,
        }))
    }

    async fn export_memory(
        &self,
        request: Request<v1::ExportMemoryRequest>,
    ) -> Result<Response<Self::ExportMemoryStream>, Status> {
        let terms = CallTerms::of(&request);
        let collection = optional_collection(request.into_inner().collection);
        let collection = collection.map_err(Failure::from)?;
        if collection.is_some() {
            let page = SourcePage {
                collection: collection.clone(),
                before: None,
                most: 1,
            };
            let caller = terms.caller;
            let is_there = move |store: &mut Store| sources(store, caller, &page).map(drop);
            if self.0.remembered(&terms, is_there).await?.is_none() {
                none_there(collection.clone())?;
            }
        }
        let export = Export {
            daemon: self.0.clone(),
            terms,
            page: SourcePage {
                collection,
                before: None,
                most: EXPORT_SOURCES,
            },
            sources: Vec::new(),
            reading: None,
            has_ended: false,
        };
        let parts = stream::unfold(export, |mut export| async {
            let parts = export.next().await.transpose()?;
            let items = match parts {
                Ok(parts) => parts.into_iter().map(Ok).collect(),
                Err(failure) => {
                    export.has_ended = true;
                    vec![Err(Status::from(failure))]
                }
            };
            Some((stream::iter(items), export))
        });
        let closing = self.0.closing.clone();
        let answers = parts.flatten().take_until(closing.cancelled_owned());
        let answers = answers.map(|part: Result<Part, Status>| {
            part.map(|part| v1::ExportMemoryResponse { part: Some(part) })
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn wipe_memory(
        &self,
        request: Request<v1::WipeMemoryRequest>,
    ) -> Result<Response<v1::WipeMemoryResponse>, Status> {
        let terms = CallTerms::of(&request);
        let share = terms.caller.share();
        let turn = self.0.memory_turns.enter(share).await?;
        let (sources, pieces) = self.0.at_store((turn, share), Memory::wipe).await?;
        tracing::info!(sources, pieces, "memory was wiped");
        Ok(Response::new(v1::WipeMemoryResponse { sources, pieces }))
    }
}

/// What is listed of a memory without a file: nothing, unless a collection is named, which then isn't there.
fn none_there(asked: Option<String>) -> Result<v1::ListSourcesResponse, Failure> {
    match asked {
        Some(name) => Err(MemoryError::from(StoreError::NoCollection(name)).into()),
        None => Ok(v1::ListSourcesResponse::default()),
    }
}

/// A page of the sources that the caller may read, and where the next page begins, if there may be one.
fn sources(
    store: &mut Store,
    caller: Caller,
    page: &SourcePage,
) -> Result<(Vec<sluice_retrieval::Source>, Option<i64>), MemoryError> {
    let asked: Vec<String> = page.collection.iter().cloned().collect();
    let theirs = memory::readable(store, caller, &asked)?;
    let theirs: Vec<&str> = theirs.iter().map(String::as_str).collect();
    let found = store.sources(&theirs, page.before, page.most)?;
    let next = (found.last()).filter(|_| found.len() == page.most);
    let next = next.map(|source| source.id);
    Ok((found, next))
}

/// An export that is under way: it holds the pieces of a page at a time.
struct Export {
    daemon: Arc<Daemon>,
    terms: CallTerms,
    page: SourcePage,
    /// Sources whose pieces are still to be read, the next one last.
    sources: Vec<sluice_retrieval::Source>,
    /// The source whose pieces are being read, and the next of them.
    reading: Option<(i64, u64)>,
    has_ended: bool,
}

impl Export {
    /// The next parts; `None` at the end.
    async fn next(&mut self) -> Result<Option<Vec<Part>>, Failure> {
        loop {
            if self.has_ended {
                return Ok(None);
            }
            if let Some((source, first)) = self.reading {
                let read = move |store: &mut Store| match store.pieces(source, first, EXPORT_PIECES)
                {
                    // It was removed meanwhile.
                    Err(StoreError::NoSource(_)) => Ok(Vec::new()),
                    pieces => Ok(pieces?),
                };
                let pieces = self.daemon.remembered(&self.terms, read).await?;
                let pieces = pieces.unwrap_or_default();
                self.reading = (pieces.len() == EXPORT_PIECES)
                    .then_some((source, first + EXPORT_PIECES as u64));
                let parts = pieces.iter().map(wire::piece).map(Part::Piece);
                return Ok(Some(parts.collect()));
            }
            if let Some(source) = self.sources.pop() {
                self.reading = Some((source.id, 0));
                return Ok(Some(vec![Part::Source(wire::source(&source))]));
            }
            let (caller, page) = (self.terms.caller, self.page.clone());
            let list = move |store: &mut Store| sources(store, caller, &page);
            let listed = self.daemon.remembered(&self.terms, list).await?;
            let Some((mut sources, next)) = listed else {
                return Ok(None);
            };
            sources.reverse();
            self.sources = sources;
            self.page.before = next;
            if self.sources.is_empty() {
                return Ok(None);
            }
            // What was the last page has no page behind it.
            if next.is_none() {
                self.page.before = Some(i64::MIN);
            }
        }
    }
}
