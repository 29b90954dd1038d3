//! Downloads one file: resumes where it stopped, retries after interruptions, and never takes more than was promised.

use std::{
    fs::Metadata,
    ops::ControlFlow,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use http::{
    StatusCode,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE},
};
use tokio::{sync::watch, task::spawn_blocking};

use crate::{
    Client, HubError, HubName, PulledFile, RemoteFile,
    client::HubResponse,
    disk,
    folder::FolderLock,
    listing,
    part::{self, PartialFile},
};

/// Bytes that are gathered before they are written and hashed.
const PIECE_BYTES: usize = 4 << 20;

/// Progress of a download.
pub(crate) trait FetchProgress: Send {
    /// Bytes of the file that are on disk and hashed.
    fn bytes(&mut self, bytes: u64);
    /// Bytes of the file that are hashed, of those that were on disk before the attempt.
    fn hashed(&mut self, bytes: u64);
    /// An attempt failed; the next follows after a pause.
    fn retry(&mut self, reason: &HubError, pause: Duration);
}

/// A file to download, and where to put it.
pub(crate) struct Fetch<'a> {
    pub(crate) client: &'a Client,
    pub(crate) name: &'a HubName,
    pub(crate) commit: &'a str,
    pub(crate) file: &'a PulledFile,
    pub(crate) folder: &'a Path,
    pub(crate) lock: &'a Arc<FolderLock>,
}

impl Fetch<'_> {
    /// Downloads the missing bytes of the file, verifies it and renames it to its final name. Returns what the system says
    /// of it then.
    pub(crate) async fn run(&self, progress: &mut dyn FetchProgress) -> Result<Metadata, HubError> {
        let mut attempts = self.client.attempts();
        let mut before = None;
        loop {
            let mut had = 0;
            match self.attempt(&mut had, progress).await {
                Ok(metadata) => return Ok(metadata),
                Err(error) => {
                    // A connection that breaks often, but delivers something each time, is no reason to give up: only
                    // attempts without progress count.
                    if before.is_some_and(|before| had > before) {
                        attempts.begin_anew();
                    }
                    before = before.max(Some(had));
                    attempts
                        .after(error, &mut |error, pause| progress.retry(error, pause))
                        .await?;
                }
            }
        }
    }

    async fn attempt(
        &self,
        had: &mut u64,
        progress: &mut dyn FetchProgress,
    ) -> Result<Metadata, HubError> {
        let mut part = open_part(
            self.folder.join(self.file.part_name()),
            self.file.remote.clone(),
            Arc::clone(self.lock),
            progress,
        )
        .await?;
        // What is on disk before the attempt is the mark for its progress.
        *had = part.bytes();
        progress.bytes(*had);
        if part.bytes() < self.file.remote.bytes {
            part = self.receive(part, had, progress).await?;
        }
        let target = self.folder.join(&self.file.name);
        blocking(move || part.finish(&target)).await
    }

    async fn receive(
        &self,
        mut part: PartialFile,
        had: &mut u64,
        progress: &mut dyn FetchProgress,
    ) -> Result<PartialFile, HubError> {
        let path = listing::file_path(self.name, self.commit, &self.file.remote.path);
        let mut answer = self.client.get(&path, part.bytes()).await?;
        // The partial file is longer than the hub's: it cannot be a beginning of it.
        if answer.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            part.restart()?;
            answer = self.client.get(&path, 0).await?;
        }
        let begins_at = self.check(&answer, part.bytes())?;
        if begins_at < part.bytes() {
            // The server ignored the range and sends the file from its start.
            part.restart()?;
        }
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        loop {
            let next = answer.next().await;
            let is_over = !matches!(next, Ok(Some(_)));
            if let Ok(Some(bytes)) = &next {
                let received = part.bytes() + piece.len() as u64 + bytes.len() as u64;
                // Compared before writing: a hub cannot fill the disk beyond what it declared.
                if received > self.file.remote.bytes {
                    disk::remove(&self.folder.join(self.file.part_name()))?;
                    return Err(self.wrong(&answer, "has more bytes than declared"));
                }
                piece.extend_from_slice(bytes);
            }
            // Bytes that came before an interruption are kept.
            if piece.len() >= PIECE_BYTES || (is_over && !piece.is_empty()) {
                (part, piece) = blocking(move || {
                    part.write(&piece)?;
                    piece.clear();
                    Ok((part, piece))
                })
                .await?;
                *had = part.bytes();
                progress.bytes(*had);
            }
            if next?.is_none() {
                break;
            }
        }
        // A body without a length can end early without an error. The next attempt resumes.
        match part.bytes() == self.file.remote.bytes {
            true => Ok(part),
            false => Err(HubError::Unreachable {
                host: answer.host,
                cause: format!(
                    "it closed the connection {} bytes early",
                    self.file.remote.bytes - part.bytes()
                ),
            }),
        }
    }

    /// Checks that an answer is this file, and returns the offset that it begins at.
    fn check(&self, answer: &HubResponse, from: u64) -> Result<u64, HubError> {
        // Compressed bodies would make ranges and lengths mean something else.
        if answer
            .header(CONTENT_ENCODING)
            .is_some_and(|coding| coding != "identity")
        {
            return Err(self.wrong(answer, "has a content encoding that was not requested"));
        }
        let begins_at = match answer.status() {
            StatusCode::OK => 0,
            StatusCode::PARTIAL_CONTENT => {
                let range = answer.header(CONTENT_RANGE).and_then(content_range);
                match range {
                    Some((start, total))
                        if start == from
                            && total.is_none_or(|total| total == self.file.remote.bytes) =>
                    {
                        start
                    }
                    _ => {
                        return Err(self.wrong(answer, "has another byte range than requested"));
                    }
                }
            }
            StatusCode::NOT_FOUND
                if answer.is_hub && answer.header("x-error-code") == Some("EntryNotFound") =>
            {
                return Err(self.wrong(answer, "is listed but missing"));
            }
            _ => {
                return Err(listing::refusal(
                    self.client,
                    answer,
                    self.name,
                    self.commit,
                ));
            }
        };
        // Where the server tells a length, a mismatch is found before hours of download.
        let length = answer
            .header(CONTENT_LENGTH)
            .and_then(|text| text.parse::<u64>().ok());
        match length
            .is_none_or(|length| begins_at.checked_add(length) == Some(self.file.remote.bytes))
        {
            true => Ok(begins_at),
            false => Err(self.wrong(answer, "has another length than declared")),
        }
    }

    fn wrong(&self, answer: &HubResponse, problem: &str) -> HubError {
        HubError::WrongResponse {
            host: answer.host.clone(),
            problem: format!("{} {problem}", self.file.remote.path),
        }
    }
}

/// Opens a partial file, which hashes what is on disk already, so that the final hash covers bytes of earlier runs as well.
/// Hashing stops soon after the future was dropped. The lock goes along, for the other thread that does it.
async fn open_part(
    path: PathBuf,
    remote: RemoteFile,
    lock: Arc<FolderLock>,
    progress: &mut dyn FetchProgress,
) -> Result<PartialFile, HubError> {
    hashing(progress, move |heard| {
        PartialFile::open(&path, remote, lock, heard)
    })
    .await
}

/// Whether a complete file has the promised hash: what the system says of it, or `None`. Hashing stops soon after the future
/// was dropped.
pub(crate) async fn compare(
    path: PathBuf,
    remote: RemoteFile,
    progress: &mut dyn FetchProgress,
) -> Result<Option<Metadata>, HubError> {
    hashing(progress, move |heard| part::compare(&path, &remote, heard)).await
}

/// Does work that hashes on a thread that may block, and tells how many bytes are hashed meanwhile.
async fn hashing<T: Send + 'static>(
    progress: &mut dyn FetchProgress,
    work: impl FnOnce(&mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<T, HubError> + Send + 'static,
) -> Result<T, HubError> {
    let (hashed, mut hashing) = watch::channel(0);
    let mut heard = move |bytes| match hashed.send(bytes) {
        Ok(()) => ControlFlow::Continue(()),
        // The receiver went with the future.
        Err(_) => ControlFlow::Break(()),
    };
    let mut done = pin!(blocking(move || work(&mut heard)));
    loop {
        tokio::select! {
            biased;
            result = &mut done => return result,
            Ok(()) = hashing.changed() => progress.hashed(*hashing.borrow_and_update()),
        }
    }
}

/// First byte and total length from a header like `bytes 5-9/10`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    let total = match total {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    Some((start.parse().ok()?, total))
}

/// Runs file operations on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, HubError> + Send + 'static,
) -> Result<T, HubError> {
    match spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, future::Future, task::Poll};

    use super::*;

    /// Progress that counts how often it is told of hashed bytes.
    struct CountedProgress(usize);

    impl FetchProgress for CountedProgress {
        fn bytes(&mut self, _: u64) {}

        fn hashed(&mut self, _: u64) {
            self.0 += 1;
        }

        fn retry(&mut self, _: &HubError, _: Duration) {}
    }

    /// A cancelled pull must not hold its folder until a large partial file is hashed to its end.
    #[tokio::test]
    async fn hashing_is_told_of_and_stops_with_the_fetch() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.part");
        // Without blocks on disk; a minute of hashing.
        let bytes = 1 << 35;
        File::create(&path).unwrap().set_len(bytes).unwrap();
        let remote = RemoteFile {
            path: "x".to_owned(),
            bytes,
            sha256: None,
            blob: None,
        };
        let name = "o/m".parse().unwrap();
        let lock = FolderLock::take(folder.path(), &name).unwrap();
        let mut progress = CountedProgress(0);
        {
            let mut open = pin!(open_part(path, remote, Arc::new(lock), &mut progress));
            let mut polls = 0;
            // The first wake after the first poll is a piece that was hashed.
            std::future::poll_fn(|context| {
                polls += 1;
                assert!(open.as_mut().poll(context).is_pending());
                match polls {
                    1 => Poll::Pending,
                    _ => Poll::Ready(()),
                }
            })
            .await;
        }
        assert!(progress.0 > 0);
        FolderLock::take(folder.path(), &name).unwrap();
    }

    #[test]
    fn ranges_are_read() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for wrong in ["", "bytes */10", "bytes -1-9/10", "5-9/10", "bytes 5-9/x"] {
            assert_eq!(content_range(wrong), None, "{wrong}");
        }
    }
}
