//! Sources on their way into memory: received, cut into pieces, encoded and written, one after another.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use sluice_proto::{
    model::{ImportStart, ImportedSource, InvalidField},
    v1::{
        self, OperationKind, OperationStage, ProgressUnit, import_sources_request::Part,
        operation::Outcome,
    },
};
use sluice_retrieval::{
    EncoderId, Import, NewPiece, NewSource, Piece, Store, check_collection_name,
};
use tokio::{sync::mpsc, task::spawn_blocking, time};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::super::{Daemon, call_terms::CallTerms};
use crate::{
    failure::Failure,
    limits::IMPORT_TIMEOUT,
    memory::{self, Content, ContentWriter, Memory, MemoryError, Unreadable},
    operations::{Operation, OperationDescription, RunningOperation, progress},
    translate::memory as wire,
};

/// Pieces that are encoded together: an encoder's passes are full, and progress is told soon.
const BATCH_PIECES: usize = 128;
/// Pieces that are written together, at least: each time the log is synced, and the index of words grows by a segment.
const WRITTEN_PIECES: usize = 1024;
/// Bytes of a chunk.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Cancels an operation when its caller goes away.
pub(super) struct CancelOnDrop(pub(super) Arc<Operation>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        // One that has ended stays as it is.
        let _ = self.0.cancel();
    }
}

/// The next part of an import; `None` at its end.
pub(super) async fn next_part(
    messages: &mut Streaming<v1::ImportSourcesRequest>,
) -> Result<Option<Part>, Failure> {
    let next = time::timeout(IMPORT_TIMEOUT, messages.message()).await;
    let stalled = |_| MemoryError::Stalled {
        waited: IMPORT_TIMEOUT,
    };
    let message = next.map_err(stalled)?.map_err(|status: Status| {
        tracing::debug!(reason = status.message(), "an import's stream broke");
        cancelled()
    })?;
    match message {
        None => Ok(None),
        Some(message) => match message.part {
            Some(part) => Ok(Some(part)),
            None => Err(invalid("part", "is missing")),
        },
    }
}

fn invalid(field: &'static str, problem: &str) -> Failure {
    InvalidField {
        field,
        problem: problem.to_owned(),
    }
    .into()
}

fn cancelled() -> Failure {
    // How many there are is known where the import ends.
    Failure::ImportCancelled { sources: 0 }
}

impl Daemon {
    /// Begins to take sources in.
    pub(super) async fn begin_import(
        self: &Arc<Self>,
        terms: CallTerms,
        begin: v1::ImportBegin,
        messages: Streaming<v1::ImportSourcesRequest>,
    ) -> Result<Arc<Operation>, Failure> {
        let mut start = ImportStart::try_from(begin)?;
        check_collection_name(&start.collection).map_err(MemoryError::from)?;
        let (asked, caller) = (start.clone(), terms.caller);
        let check = move |store: &mut Store| {
            memory::check_addable(store, caller, &asked.collection, asked.reader)
        };
        if let Some(reader) = self.remembered(&terms, check).await? {
            start.reader = reader;
        }
        let encoder = self.memory_encoder();
        let description = OperationDescription {
            kind: OperationKind::Remember,
            model: encoder.clone().unwrap_or_default(),
            // Whoever may see operations sees no name of what is remembered.
            input_path: "memory".to_owned(),
            caller: Some(terms.caller),
            ..OperationDescription::default()
        };
        let stop = CancellationToken::new();
        let stops = stop.clone();
        let running =
            (self.operations).begin(description, Some(Box::new(move || stops.cancel())))?;
        let operation = running.operation();
        let mut importer = Importer {
            daemon: self.clone(),
            terms,
            start,
            encoder,
            encoder_id: None,
            stop,
            done: v1::ImportResult::default(),
            number: 0,
            read: Arc::default(),
            running,
        };
        tokio::spawn(async move {
            let result = importer.run(messages).await;
            let done = std::mem::take(&mut importer.done);
            let result = result.map_err(|failure| match failure {
                Failure::ImportCancelled { .. } => Failure::ImportCancelled {
                    sources: done.sources + done.unchanged,
                },
                other => other,
            });
            (importer.running).finish(result.map(|()| Outcome::Imported(done)));
        });
        Ok(operation)
    }
}

/// An import that is under way.
struct Importer {
    daemon: Arc<Daemon>,
    terms: CallTerms,
    start: ImportStart,
    /// The model that makes vectors, if one does.
    encoder: Option<String>,
    /// What the store knows the encoder by, once that was asked.
    encoder_id: Option<EncoderId>,
    stop: CancellationToken,
    done: v1::ImportResult,
    /// The present source's place in the import, from 1.
    number: u64,
    /// Bytes that were read of sources.
    read: Arc<AtomicU64>,
    running: RunningOperation,
}

impl Importer {
    async fn run(
        &mut self,
        mut messages: Streaming<v1::ImportSourcesRequest>,
    ) -> Result<(), Failure> {
        if let Some(encoder) = &self.encoder {
            self.done.encoder.clone_from(encoder);
        } else {
            self.running.notice(
                "no sentence encoder is loaded: what is remembered is found by its words alone"
                    .to_owned(),
            );
        }
        let mut part = self.next(&mut messages).await?;
        while let Some(this) = part {
            let Part::Source(header) = this else {
                return Err(invalid("source", "is missing; it comes before its content"));
            };
            let source = ImportedSource::try_from(header)?;
            self.number += 1;
            let (content, next) = self.receive(&mut messages).await?;
            self.take(source, content).await?;
            part = next;
        }
        let share = self.terms.caller.share();
        let deleting = self.daemon.clone().delete_removed(share);
        match self.unless_stopped(deleting).await {
            // Somebody deletes it in the background.
            Err(failure @ Failure::ImportCancelled { .. }) => return Err(failure),
            Err(failure) => self.running.notice(format!(
                "the text of replaced sources is still in the file: {failure}"
            )),
            Ok(()) => {}
        }
        match self.encode_others().await {
            // What was added is there.
            Err(failure) if !matches!(failure, Failure::ImportCancelled { .. }) => {
                let notice = format!("vectors are still missing: {failure}");
                self.running.notice(notice);
                Ok(())
            }
            done => done,
        }
    }

    async fn next(
        &self,
        messages: &mut Streaming<v1::ImportSourcesRequest>,
    ) -> Result<Option<Part>, Failure> {
        self.unless_stopped(next_part(messages)).await
    }

    async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(cancelled()),
            done = work => done,
        }
    }

    /// Receives a source's content, and the part behind it.
    async fn receive(
        &self,
        messages: &mut Streaming<v1::ImportSourcesRequest>,
    ) -> Result<(Content, Option<Part>), Failure> {
        let (daemon, name) = (self.daemon.clone(), self.source());
        let made = spawn_blocking(move || ContentWriter::new(&name, daemon.memory.path()?));
        let mut writer = made.await??;
        loop {
            match self.next(messages).await? {
                Some(Part::Chunk(chunk)) if chunk.len() > CHUNK_BYTES_MAX => {
                    return Err(invalid("chunk", "has more than 1 MiB"));
                }
                Some(Part::Chunk(chunk)) => {
                    let pushed = spawn_blocking(move || writer.push(&chunk).map(|()| writer));
                    writer = pushed.await??;
                }
                Some(Part::Begin(_)) => return Err(invalid("begin", "comes once")),
                next => return Ok((spawn_blocking(move || writer.finish()).await??, next)),
            }
        }
    }

    /// Remembers a source.
    async fn take(&mut self, source: ImportedSource, content: Content) -> Result<(), Failure> {
        self.tell();
        let (bytes, digest) = (content.bytes, content.digest);
        self.done.bytes += bytes;
        let name = source.name.clone();
        let encoder = self.encoder_id().await?;
        let (start, now, caller) = (self.start.clone(), now_unix_s(), self.terms.caller);
        let kind = wire::kind(source.kind).ok_or_else(|| invalid("source.kind", "is missing"))?;
        let begun = self.write(move |store| {
            // Once more: somebody may have made or removed it since.
            let reader = memory::check_addable(store, caller, &start.collection, start.reader)?;
            let reader = reader.unwrap_or(v1::MemoryReader::Generate);
            let source = NewSource {
                collection: &start.collection,
                access: memory::access_of(reader),
                kind,
                name: &source.name,
                digest,
                bytes,
                modified: source.modified,
                now,
            };
            Ok(store.begin(&source, encoder.as_ref())?)
        });
        let Some(mut import) = begun.await? else {
            self.done.unchanged += 1;
            self.read.fetch_add(bytes, Ordering::Relaxed);
            return Ok(());
        };
        let mut added = self.add_pieces(&name, content, &mut import).await;
        if let Ok(Ok(())) = added {
            let whole = import.clone();
            match self.write(move |store| Ok(store.finish(whole)?)).await {
                Ok(_) => {
                    self.done.sources += 1;
                    self.done.pieces += import.pieces();
                    return Ok(());
                }
                Err(failure) => added = Err(failure),
            }
        }
        // What is left of it otherwise goes when the store is opened again.
        let abandoned = self.write(move |store| Ok(store.abandon(import)?)).await;
        if let Err(error) = abandoned {
            tracing::warn!(reason = %error, "an import could not be taken back");
        }
        let unreadable = added?.err();
        let reason = unreadable.map(|unreadable| unreadable.to_string());
        self.running.notice(format!(
            "{} was left out: {}",
            self.source(),
            reason.unwrap_or_default()
        ));
        self.done.skipped += 1;
        Ok(())
    }

    /// What the store knows the encoder by, if there is one. A vector tells.
    async fn encoder_id(&mut self) -> Result<Option<EncoderId>, Failure> {
        if let (None, Some(encoder)) = (&self.encoder_id, &self.encoder) {
            let asked = self
                .daemon
                .encode(&self.terms, encoder, vec![String::new()]);
            let (id, _) = self.unless_stopped(asked).await?;
            self.encoder_id = Some(id);
        }
        Ok(self.encoder_id.clone())
    }

    /// Adds a source's pieces, as far as it can be read.
    async fn add_pieces(
        &self,
        name: &str,
        content: Content,
        import: &mut Import,
    ) -> Result<Result<(), Unreadable>, Failure> {
        let (send, mut batches) = mpsc::channel(1);
        let (read, gone) = (self.read.clone(), Arc::new(AtomicBool::new(false)));
        let splitting = {
            let (name, gone) = (name.to_owned(), gone.clone());
            spawn_blocking(move || split(content, &name, &gone, &read, &send))
        };
        // However this ends, nobody waits for more pages.
        let _gone = RaiseOnDrop(gone);
        let mut encoded = Vec::new();
        while let Some(pieces) = (self.unless_stopped(async { Ok(batches.recv().await) })).await? {
            self.tell();
            encoded.extend(self.encoded(pieces).await?);
            if encoded.len() >= WRITTEN_PIECES {
                self.write_pieces(import, std::mem::take(&mut encoded))
                    .await?;
            }
        }
        self.write_pieces(import, encoded).await?;
        match splitting.await? {
            Err(Unreadable::File(error)) => {
                let memory = self.daemon.memory.path()?;
                Err(MemoryError::Spool {
                    name: self.source(),
                    folder: memory.parent().unwrap_or(memory).to_owned(),
                    error,
                }
                .into())
            }
            split => Ok(split),
        }
    }

    async fn write_pieces(
        &self,
        import: &mut Import,
        pieces: Vec<NewPiece>,
    ) -> Result<(), Failure> {
        let mut taken = import.clone();
        let written = self.write(move |store| {
            store.add_pieces(&mut taken, &pieces)?;
            Ok(taken)
        });
        *import = written.await?;
        Ok(())
    }

    async fn encoded(&self, pieces: Vec<Piece>) -> Result<Vec<NewPiece>, Failure> {
        let vectors = match &self.encoder {
            Some(encoder) => {
                let texts = pieces.iter().map(memory::encoded_text).collect();
                let asked = self.daemon.encode(&self.terms, encoder, texts);
                let (_, vectors) = self.unless_stopped(asked).await?;
                vectors.into_iter().map(Some).collect()
            }
            None => vec![None; pieces.len()],
        };
        let both = pieces.into_iter().zip(vectors);
        Ok(both
            .map(|(piece, vector)| NewPiece { piece, vector })
            .collect())
    }

    /// Makes vectors of what was remembered without, or with another encoder's.
    async fn encode_others(&mut self) -> Result<(), Failure> {
        let id = self.encoder_id().await?;
        let (Some(encoder), Some(id)) = (&self.encoder, id) else {
            return Ok(());
        };
        let mut after = 0;
        loop {
            let find = id.clone();
            let without = self
                .write(move |store| Ok(store.without_vectors(&find, after, BATCH_PIECES)?))
                .await?;
            let Some((last, _)) = without.last() else {
                return Ok(());
            };
            after = *last;
            self.tell();
            let texts = without.iter().map(|(_, piece)| memory::encoded_text(piece));
            let asked = self.daemon.encode(&self.terms, encoder, texts.collect());
            let (_, vectors) = self.unless_stopped(asked).await?;
            let pieces = without.iter().map(|(id, _)| *id);
            let both: Vec<(i64, Vec<f32>)> = pieces.zip(vectors).collect();
            let id = id.clone();
            self.write(move |store| Ok(store.set_vectors(&id, &both)?))
                .await?;
        }
    }

    /// Works with the store, which is made where it is missing. An import waits for its turn, however long the line is.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Store) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, Failure> {
        let share = self.terms.caller.share();
        let turn = self.daemon.memory_turns.enter_patiently(share).await?;
        let written = |memory: &Memory| memory.write(work);
        self.daemon.at_store((turn, share), written).await
    }

    /// What others hear of the present source: operations are for more eyes than what is remembered.
    fn source(&self) -> String {
        format!("source {}", self.number)
    }

    fn tell(&self) {
        let read = self.read.load(Ordering::Relaxed);
        let total = self.start.total_bytes.unwrap_or(0);
        self.running.progress(v1::OperationProgress {
            item: self.source(),
            ..progress(
                OperationStage::Importing,
                ProgressUnit::Bytes,
                read,
                total.max(read),
            )
        });
    }
}

/// Cuts a source's content and sends its pieces in batches, until nobody wants them any more.
fn split(
    content: Content,
    name: &str,
    gone: &Arc<AtomicBool>,
    read: &AtomicU64,
    send: &mpsc::Sender<Vec<Piece>>,
) -> Result<(), Unreadable> {
    let unwanted = |_| io::Error::from(io::ErrorKind::BrokenPipe);
    let mut batch = Vec::with_capacity(BATCH_PIECES);
    content.split(name, gone, read, |piece| {
        batch.push(piece);
        if batch.len() < BATCH_PIECES {
            return Ok(());
        }
        let full = std::mem::replace(&mut batch, Vec::with_capacity(BATCH_PIECES));
        send.blocking_send(full).map_err(unwanted)
    })?;
    match batch.is_empty() {
        true => Ok(()),
        false => Ok(send.blocking_send(batch).map_err(unwanted)?),
    }
}

/// Raises a flag when it is dropped.
struct RaiseOnDrop(Arc<AtomicBool>);

impl Drop for RaiseOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn now_unix_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}
