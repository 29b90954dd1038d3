//! What the fake remembers: the same few notes, whatever it was sent or asked to forget.

use sluice_proto::v1::{memory_service_server::MemoryService, *};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{load::Answers, pictures::operation, service::Service};

/// Sources of a page, so that there are several.
const PAGE: usize = 2;

/// What the fake remembers, each with the texts of its pieces.
fn sources() -> Vec<(MemorySource, Vec<MemoryPiece>)> {
    let source = |source_id, name: &str, kind: MemorySourceKind, texts: &[(&str, &str)]| {
        let pieces = texts
            .iter()
            .enumerate()
            .map(|(number, (heading, text))| MemoryPiece {
                piece_id: source_id * 10 + number as i64,
                number: number as u64,
                heading: (*heading).into(),
                text: (*text).into(),
            });
        let pieces: Vec<_> = pieces.collect();
        let source = MemorySource {
            source_id,
            collection: "default".into(),
            kind: kind.into(),
            name: name.into(),
            bytes: texts.iter().map(|(_, text)| text.len() as u64).sum(),
            modified_unix_s: Some(1_767_323_045),
            added_unix_s: 1_767_400_000,
            pieces: pieces.len() as u64,
        };
        (source, pieces)
    };
    vec![
        source(
            3,
            "/home/ada/notes/pool.md",
            MemorySourceKind::File,
            &[
                ("Pool", "The pool is in Green Street."),
                (
                    "Pool > Opening hours",
                    "It opens at eight on weekdays\nand at ten on Sundays.\x1b[2J\n",
                ),
            ],
        ),
        source(
            2,
            "Bicycle",
            MemorySourceKind::Note,
            &[("", "The bicycle's lock opens with 4711.")],
        ),
        source(
            1,
            "2026-01-02 03:04:05 Why is the sky blue?",
            MemorySourceKind::Conversation,
            &[("", "Why is the sky blue?\n\nBlue light is scattered most.")],
        ),
    ]
}

/// What a search finds, the best first; also what a prompt gets.
pub fn hits() -> Vec<MemoryHit> {
    let all = sources();
    let hit = |(source, pieces): &(MemorySource, Vec<MemoryPiece>), rank: usize| MemoryHit {
        source: Some(source.clone()),
        piece: pieces.last().cloned(),
        score: 1.0 / (60 + rank) as f64 * 2.0,
        bm25: (rank < 2).then_some(4.5),
        cosine: Some(0.75 / rank as f64),
    };
    let ranked = all.iter().take(2).zip(1..);
    ranked.map(|(found, rank)| hit(found, rank)).collect()
}

fn find(source_id: i64) -> Result<(MemorySource, Vec<MemoryPiece>), Status> {
    let found = sources()
        .into_iter()
        .find(|(one, _)| one.source_id == source_id);
    found.ok_or_else(|| Status::not_found(format!("there is no source {source_id}")))
}

/// A stream of these answers, however many.
fn all<T: Send + 'static>(answers: Vec<T>) -> Answers<T> {
    let (sender, receiver) = tokio::sync::mpsc::channel(answers.len().max(1));
    for answer in answers {
        let _ = sender.try_send(Ok(answer));
    }
    Ok(Response::new(ReceiverStream::new(receiver)))
}

#[tonic::async_trait]
impl MemoryService for Service {
    type ImportSourcesStream = ReceiverStream<Result<ImportSourcesResponse, Status>>;
    type ExportMemoryStream = ReceiverStream<Result<ExportMemoryResponse, Status>>;

    async fn import_sources(
        &self,
        request: Request<Streaming<ImportSourcesRequest>>,
    ) -> Answers<ImportSourcesResponse> {
        let mut parts = request.into_inner();
        let begun = operation(OperationKind::Remember);
        let (sender, receiver) = tokio::sync::mpsc::channel(8);
        let service = self.clone();
        tokio::spawn(async move {
            let running = ImportSourcesResponse {
                operation: Some(begun.clone()),
            };
            let _ = sender.send(Ok(running)).await;
            if service.hangs() {
                service.until_cancelled().await;
                let words = "the job was cancelled";
                let _ = sender.send(Err(Status::cancelled(words))).await;
                return;
            }
            let mut result = ImportResult::default();
            // A stream that breaks off is no end.
            loop {
                match parts.message().await {
                    Ok(Some(message)) => {
                        let chunk_bytes = service.note_import(message);
                        result.sources += u64::from(chunk_bytes.is_none());
                        result.bytes += chunk_bytes.unwrap_or(0);
                    }
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
            // The first message is no source.
            result.sources = result.sources.saturating_sub(1);
            result.pieces = 2 * result.sources;
            result.skipped = 1;
            let done = Operation {
                state: OperationState::Done.into(),
                elapsed_ms: 1_500.0,
                notices: vec!["skipped: /odd\x1b[2J.pdf has no text".into()],
                outcome: Some(operation::Outcome::Imported(result)),
                ..begun
            };
            let done = ImportSourcesResponse {
                operation: Some(done),
            };
            let _ = sender.send(Ok(done)).await;
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn list_collections(
        &self,
        _: Request<ListCollectionsRequest>,
    ) -> Result<Response<ListCollectionsResponse>, Status> {
        let pieces = sources().iter().map(|(source, _)| source.pieces).sum();
        let own = MemoryCollection {
            name: "default".into(),
            reader: MemoryReader::Generate.into(),
            sources: sources().len() as u64,
            pieces,
            bytes: 160,
        };
        let papers = MemoryCollection {
            name: "papers".into(),
            reader: MemoryReader::Admin.into(),
            ..Default::default()
        };
        Ok(Response::new(ListCollectionsResponse {
            collections: vec![own, papers],
            file_bytes: 1 << 20,
            index_bytes: 3 << 10,
            encoder: "all-MiniLM-L6-v2".into(),
            encoded_pieces: pieces,
        }))
    }

    async fn list_sources(
        &self,
        request: Request<ListSourcesRequest>,
    ) -> Result<Response<ListSourcesResponse>, Status> {
        let request = request.into_inner();
        let all = sources().into_iter().map(|(source, _)| source);
        let all = all.filter(|source| ["", &source.collection].contains(&&*request.collection));
        let begin: usize = request.page_token.parse().unwrap_or(0);
        let left: Vec<_> = all.skip(begin).collect();
        let has_more = left.len() > PAGE;
        Ok(Response::new(ListSourcesResponse {
            sources: left.into_iter().take(PAGE).collect(),
            next_page_token: match has_more {
                true => (begin + PAGE).to_string(),
                false => String::new(),
            },
        }))
    }

    async fn read_source(
        &self,
        request: Request<ReadSourceRequest>,
    ) -> Result<Response<ReadSourceResponse>, Status> {
        let request = request.into_inner();
        let (source, pieces) = find(request.source_id)?;
        // A page is one piece, so that there are several.
        let first = request.first_piece as usize;
        Ok(Response::new(ReadSourceResponse {
            source: Some(source),
            pieces: pieces.into_iter().skip(first).take(1).collect(),
        }))
    }

    async fn search_memory(
        &self,
        request: Request<SearchMemoryRequest>,
    ) -> Result<Response<SearchMemoryResponse>, Status> {
        let request = request.into_inner();
        let ranking = match request.ranking() {
            MemoryRanking::Unspecified => MemoryRanking::Hybrid,
            ranking => ranking,
        };
        self.seen().searched.push(request);
        Ok(Response::new(SearchMemoryResponse {
            hits: hits(),
            ranking: ranking.into(),
            elapsed_ms: 2.0,
            notices: vec!["2 pieces have no vectors yet".into()],
        }))
    }

    async fn remove_sources(
        &self,
        request: Request<RemoveSourcesRequest>,
    ) -> Result<Response<RemoveSourcesResponse>, Status> {
        let what = request.into_inner().what;
        let what = what.ok_or_else(|| Status::invalid_argument("what is not set"))?;
        let answer = match &what {
            remove_sources_request::What::SourceId(id) => RemoveSourcesResponse {
                sources: 1,
                pieces: find(*id)?.0.pieces,
                notices: Vec::new(),
            },
            remove_sources_request::What::Collection(_) => RemoveSourcesResponse {
                sources: 3,
                pieces: 4,
                notices: vec!["its text is still in the file: disk full".to_owned()],
            },
        };
        self.seen().forgotten.push(what);
        Ok(Response::new(answer))
    }

    async fn export_memory(
        &self,
        request: Request<ExportMemoryRequest>,
    ) -> Answers<ExportMemoryResponse> {
        let collection = request.into_inner().collection;
        if !["", "default"].contains(&&*collection) {
            return Err(Status::not_found(format!(
                "there is no collection {collection}"
            )));
        }
        let part = |part| ExportMemoryResponse { part: Some(part) };
        let mut parts = Vec::new();
        for (source, pieces) in sources() {
            parts.push(part(export_memory_response::Part::Source(source)));
            let pieces = pieces.into_iter();
            parts.extend(pieces.map(|piece| part(export_memory_response::Part::Piece(piece))));
        }
        all(parts)
    }

    async fn wipe_memory(
        &self,
        _: Request<WipeMemoryRequest>,
    ) -> Result<Response<WipeMemoryResponse>, Status> {
        self.seen().wipes += 1;
        Ok(Response::new(WipeMemoryResponse {
            sources: 3,
            pieces: 4,
        }))
    }
}

impl Service {
    /// Notes a part of an import. Returns the bytes of a chunk.
    fn note_import(&self, message: ImportSourcesRequest) -> Option<u64> {
        use import_sources_request::Part;
        let mut seen = self.seen();
        match message.part {
            Some(Part::Begin(begin)) => seen.imports.push(begin),
            Some(Part::Source(header)) => seen.imported.push((header, Vec::new())),
            Some(Part::Chunk(chunk)) => {
                if let Some((_, content)) = seen.imported.last_mut() {
                    content.extend_from_slice(&chunk);
                }
                return Some(chunk.len() as u64);
            }
            None => {}
        }
        None
    }
}
