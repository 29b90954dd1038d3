//! Writes a converted copy tensor by tensor, under a temporary name until it is complete.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::fs::FlockOperation;
use sluice_weights::TensorPlan;

use super::{Checkpoint, CheckpointError, ConvertedTensor, ConvertedWeights};

/// Elements that each thread converts between two writes: some milliseconds, which a pass that needs the threads
/// meanwhile has to wait.
const PIECE_ELEMENTS: usize = 1 << 17;
/// Bytes after which written data is synced, so that neither the end nor a cancel waits long for a backlog.
const SYNC_BYTES: u64 = 256 << 20;
/// Ending of unfinished files' names.
const PARTIAL: &str = ".partial";

/// Reads rows of the source and converts them; returns false if cancelled.
pub(crate) type Convert<'a> =
    &'a mut dyn FnMut(&TensorPlan, &mut [u8]) -> Result<bool, CheckpointError>;

impl ConvertedWeights {
    /// Writes the copy, `threads` pieces at a time, as `convert` makes them. `progress` is told the bytes of tensors
    /// that are done. Returns `None` if cancelled. Unless all goes well, nothing is left of it.
    ///
    /// # Errors
    /// When a file operation fails, free space is too little, or the source changed.
    pub fn write(
        &self,
        threads: usize,
        convert: Convert<'_>,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<Checkpoint>, CheckpointError> {
        let path = self.path();
        let refused = |cause| CheckpointError::WeightCache {
            path: path.clone(),
            cause,
        };
        fs::create_dir_all(&self.folder).map_err(refused)?;
        // Before free space is checked: leftovers may take what this copy needs.
        self.remove_leftovers().map_err(refused)?;
        let (header, starts, file_bytes) = self.layout();
        check_free_space(file_bytes, free_bytes(&self.folder).map_err(refused)?)
            .map_err(refused)?;
        let partial = PartialFile::create(&self.folder, &self.file_name()).map_err(refused)?;
        let mut writer = Writer {
            file: &partial.file,
            threads,
            convert,
            done_bytes: 0,
            unsynced_bytes: 0,
            progress,
        };
        partial.file.write_all_at(&header, 0).map_err(refused)?;
        for (tensor, &start) in self.tensors.iter().zip(&starts) {
            if !writer.write(tensor, start, &refused)? {
                return Ok(None);
            }
        }
        // A full disk may show only now.
        partial.file.sync_all().map_err(refused)?;
        // A copy of a source that changed meanwhile would be a mixture.
        self.source.check_all_unchanged()?;
        if cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
        partial.keep_as(&path).map_err(refused)?;
        match self.open()? {
            Some(checkpoint) => Ok(Some(checkpoint)),
            None => Err(refused(io::ErrorKind::NotFound.into())),
        }
    }

    /// Removes what killed writers left of copies of this model. Files that are being written are locked.
    fn remove_leftovers(&self) -> io::Result<()> {
        for file in fs::read_dir(&self.folder)? {
            let file = file?;
            if !self.is_partial(&file.file_name().to_string_lossy()) {
                continue;
            }
            // A file that cannot be opened or removed only takes disk space, which is checked next.
            if let Ok(opened) = File::open(file.path())
                && try_lock(&opened) == LockState::Taken
            {
                drop(fs::remove_file(file.path()));
            }
        }
        Ok(())
    }

    /// Whether this is the name of an unfinished copy of this model, for any level and fingerprint.
    fn is_partial(&self, file_name: &str) -> bool {
        let digits = self.fingerprint.len();
        let rest = file_name.strip_prefix(&self.name);
        let rest = rest.and_then(|rest| rest.strip_prefix('-')?.strip_suffix(PARTIAL));
        // Unfinished copies for level `mild` have the same ending, but are resumed rather than removed.
        let rest = rest.filter(|rest| rest.contains(".safetensors."));
        let fingerprint = rest
            .and_then(|rest| rest.split_once('-'))
            .map(|parts| parts.0);
        fingerprint.is_some_and(|found| {
            found.len() == digits && found.bytes().all(|digit| digit.is_ascii_hexdigit())
        })
    }
}

/// State of writing the tensors.
struct Writer<'a> {
    file: &'a File,
    threads: usize,
    convert: Convert<'a>,
    done_bytes: u64,
    unsynced_bytes: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Writer<'_> {
    /// Writes a tensor at offset `start`; returns false if cancelled.
    fn write(
        &mut self,
        tensor: &ConvertedTensor,
        start: u64,
        refused: &dyn Fn(io::Error) -> CheckpointError,
    ) -> Result<bool, CheckpointError> {
        // One piece for each thread; the buffer holds them all.
        let rows_max = (PIECE_ELEMENTS / tensor.plan.width).max(1) * self.threads;
        let mut buffer = vec![0; rows_max.min(tensor.plan.rows) * tensor.row_bytes()];
        let mut at = start;
        for first_row in (0..tensor.plan.rows).step_by(rows_max) {
            let rows = rows_max.min(tensor.plan.rows - first_row);
            let piece = TensorPlan {
                first_row,
                rows,
                ..tensor.plan
            };
            let out = &mut buffer[..rows * tensor.row_bytes()];
            if !(self.convert)(&piece, out)? {
                return Ok(false);
            }
            self.file.write_all_at(out, at).map_err(refused)?;
            at += out.len() as u64;
            self.done_bytes += out.len() as u64;
            self.unsynced_bytes += out.len() as u64;
            if self.unsynced_bytes >= SYNC_BYTES {
                self.file.sync_data().map_err(refused)?;
                self.unsynced_bytes = 0;
            }
            (self.progress)(self.done_bytes);
        }
        Ok(true)
    }
}

/// Bytes that the user may still write to this folder's file system.
pub(super) fn free_bytes(folder: &Path) -> io::Result<u64> {
    let facts = rustix::fs::statvfs(folder)?;
    Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
}

/// Checks free space before minutes of work.
pub(super) fn check_free_space(needed_bytes: u64, free_bytes: u64) -> io::Result<()> {
    if needed_bytes <= free_bytes {
        return Ok(());
    }
    let words = format!("{needed_bytes} bytes are needed, and the disk has {free_bytes} free");
    Err(io::Error::new(io::ErrorKind::StorageFull, words))
}

/// A file that is deleted when dropped, unless it was kept. It is locked while it is open, so that clean-ups leave it
/// alone.
pub(super) struct PartialFile {
    path: PathBuf,
    file: File,
    kept: bool,
}

impl PartialFile {
    /// Creates the file in the target's folder, since a rename works only within a file system.
    pub(super) fn create(folder: &Path, file_name: &str) -> io::Result<Self> {
        let mut attempt = 0;
        loop {
            // Two daemons may share the folder: each writes a file of its own, and the last rename wins with equal
            // contents.
            let name = format!("{file_name}.{}-{attempt}{PARTIAL}", std::process::id());
            attempt += 1;
            let path = folder.join(name);
            // Never an existing file: another writer may be at work on it.
            let file = match OpenOptions::new().write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file?,
            };
            let lock = try_lock(&file);
            let inode = file.metadata()?.ino();
            let partial = Self {
                path,
                file,
                kept: false,
            };
            // A clean-up may have removed it before it was locked.
            let is_there = fs::metadata(&partial.path).is_ok_and(|found| found.ino() == inode);
            if lock != LockState::Held && is_there {
                return Ok(partial);
            }
        }
    }

    fn keep_as(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.kept = true;
        // The rename lasts only after the folder is synced.
        match target.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.kept {
            // The error that led here matters more.
            drop(fs::remove_file(&self.path));
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum LockState {
    Taken,
    /// Another process or descriptor holds the lock.
    Held,
    /// The file system has no locks.
    Unknown,
}

pub(super) fn try_lock(file: &File) -> LockState {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => LockState::Taken,
        Err(rustix::io::Errno::WOULDBLOCK) => LockState::Held,
        Err(_) => LockState::Unknown,
    }
}
