//! Writing a copy: tensor by tensor in pieces, under another name until it is whole.

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

/// Numbers that each thread converts between two writes: some milliseconds, which a pass that wants the threads at the
/// same time waits.
const PIECE_ELEMENTS: usize = 1 << 17;
/// What is written goes to the disk this often, so that neither the end nor a cancel waits long for the rest.
const SYNC_BYTES: u64 = 256 << 20;
/// Ends the names of files that aren't whole.
const PARTIAL: &str = ".partial";

/// Reads rows of the source and stores them in the format that they are converted to; false when cancelled.
pub(crate) type Convert<'a> =
    &'a mut dyn FnMut(&TensorPlan, &mut [u8]) -> Result<bool, CheckpointError>;

impl ConvertedWeights {
    /// Writes it, `threads` pieces at a time, each as `convert` makes it; `progress` is told the bytes of tensors that are
    /// done. `None` when cancelled. Unless all went well, nothing is left of it.
    ///
    /// # Errors
    /// What the system refused, too little room among it, or a source that changed.
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
        // A disk may turn out to be full only now.
        partial.file.sync_all().map_err(refused)?;
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

    /// Removes what killed writers left of copies of this model. Files that somebody writes are locked.
    fn remove_leftovers(&self) -> io::Result<()> {
        for file in fs::read_dir(&self.folder)? {
            let file = file?;
            if !self.is_partial(&file.file_name().to_string_lossy()) {
                continue;
            }
            // One that can't be opened or removed is in nobody's way but the disk's, which is looked at next.
            if let Ok(opened) = File::open(file.path())
                && try_lock(&opened) == LockState::Taken
            {
                drop(fs::remove_file(file.path()));
            }
        }
        Ok(())
    }

    /// Whether this is the name of an unfinished copy of this model, at any level and of any state of it.
    fn is_partial(&self, file_name: &str) -> bool {
        let digits = self.fingerprint.len();
        let rest = file_name.strip_prefix(&self.name);
        let rest = rest.and_then(|rest| rest.strip_prefix('-')?.strip_suffix(PARTIAL));
        // Those of level `mild` end alike, and are taken up where they end.
        let rest = rest.filter(|rest| rest.contains(".safetensors."));
        let fingerprint = rest
            .and_then(|rest| rest.split_once('-'))
            .map(|parts| parts.0);
        fingerprint.is_some_and(|found| {
            found.len() == digits && found.bytes().all(|digit| digit.is_ascii_hexdigit())
        })
    }
}

/// What writing the tensors goes through.
struct Writer<'a> {
    file: &'a File,
    threads: usize,
    convert: Convert<'a>,
    done_bytes: u64,
    unsynced_bytes: u64,
    progress: &'a mut dyn FnMut(u64),
}

impl Writer<'_> {
    /// Writes a tensor from `start` on; false when cancelled.
    fn write(
        &mut self,
        tensor: &ConvertedTensor,
        start: u64,
        refused: &dyn Fn(io::Error) -> CheckpointError,
    ) -> Result<bool, CheckpointError> {
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

/// Bytes that a user's files may still take where this folder is.
pub(super) fn free_bytes(folder: &Path) -> io::Result<u64> {
    let facts = rustix::fs::statvfs(folder)?;
    Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
}

/// Found out before minutes of work.
pub(super) fn check_free_space(needed_bytes: u64, free_bytes: u64) -> io::Result<()> {
    if needed_bytes <= free_bytes {
        return Ok(());
    }
    let words = format!("{needed_bytes} bytes are needed, and the disk has {free_bytes} free");
    Err(io::Error::new(io::ErrorKind::StorageFull, words))
}

/// A file that goes away unless it was kept. It is locked as long as it is open, so that whoever clears up leaves it.
pub(super) struct PartialFile {
    path: PathBuf,
    file: File,
    kept: bool,
}

impl PartialFile {
    /// In the target's folder, since only there a rename is no copy.
    pub(super) fn create(folder: &Path, file_name: &str) -> io::Result<Self> {
        let mut attempt = 0;
        loop {
            let name = format!("{file_name}.{}-{attempt}{PARTIAL}", std::process::id());
            attempt += 1;
            let path = folder.join(name);
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
            // Somebody who clears up may have met it before it was locked.
            let is_there = fs::metadata(&partial.path).is_ok_and(|found| found.ino() == inode);
            if lock != LockState::Held && is_there {
                return Ok(partial);
            }
        }
    }

    fn keep_as(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.kept = true;
        // The name is to last as the bytes do.
        match target.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.kept {
            // The failure that led here is what matters.
            drop(fs::remove_file(&self.path));
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum LockState {
    Taken,
    /// By somebody else.
    Held,
    /// The file system has none.
    Unknown,
}

pub(super) fn try_lock(file: &File) -> LockState {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => LockState::Taken,
        Err(rustix::io::Errno::WOULDBLOCK) => LockState::Held,
        Err(_) => LockState::Unknown,
    }
}
