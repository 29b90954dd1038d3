//! Files of a checkpoint, on disk or embedded in the program, behind positioned reads: through the page cache or past
//! it.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Read},
    num::NonZeroU64,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::fs::{Advice, FlockOperation, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use sluice_machine::page::{PAGE_BYTES, Page, pages_of, start_in_page};

use super::{CheckpointError, Source};

/// Bytes after which a direct read looks at its cancel flag: a few milliseconds on a fast drive, a tenth of a second on
/// a slow one.
pub(super) const PIECE_BYTES: usize = 8 << 20;

/// An open file of a checkpoint.
#[derive(Debug)]
pub(super) struct CheckpointFile {
    /// Path for messages.
    pub(super) path: String,
    pub(super) len: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Disk {
        file: File,
        /// The same file opened for direct I/O; `None` where the file system has none.
        direct: Option<File>,
        identity: Identity,
    },
    Memory(&'static [u8]),
}

/// What tells whether a file is still the same.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    len: u64,
    /// Seconds and nanoseconds of the last modification.
    modified: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

impl CheckpointFile {
    pub(super) fn open(source: &Source, name: &str) -> Result<Self, CheckpointError> {
        let path = describe(source, name);
        let missing = || CheckpointError::MissingFile { path: path.clone() };
        match find(source, name)?.ok_or_else(missing)? {
            FileLocation::Disk(disk) => {
                let file = File::open(&disk).map_err(|e| CheckpointError::io(&disk, e))?;
                let metadata = file.metadata();
                let metadata = metadata.map_err(|e| CheckpointError::io(&disk, e))?;
                let identity = Identity::of(&metadata);
                Ok(Self {
                    path,
                    len: metadata.len(),
                    content: Content::Disk {
                        // `O_DIRECT` belongs to an open file: cached reads need a descriptor without it.
                        direct: open_direct(&disk, &identity),
                        file,
                        identity,
                    },
                })
            }
            FileLocation::Memory(bytes) => Ok(Self {
                path,
                len: bytes.len() as u64,
                content: Content::Memory(bytes),
            }),
        }
    }

    /// What the system says of the open file; `None` for files in the program.
    pub(super) fn metadata(&self) -> Option<io::Result<Metadata>> {
        match &self.content {
            Content::Disk { file, .. } => Some(file.metadata()),
            Content::Memory(_) => None,
        }
    }

    /// Fills `out` from `offset` on.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        let result = self.fill_at(offset, out);
        result.map_err(|error| self.failed(offset + out.len() as u64, error))
    }

    /// Fills `out` from `offset` on; returns the system's own error.
    pub(super) fn fill_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match &self.content {
            Content::Disk { file, .. } => file.read_exact_at(out, offset),
            Content::Memory(bytes) => usize::try_from(offset)
                .ok()
                .and_then(|start| bytes.get(start..start.checked_add(out.len())?))
                .map(|part| out.copy_from_slice(part))
                .ok_or_else(|| io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Reads the whole pages that hold bytes `offset..offset + len` into `target`, past the page cache where possible.
    /// Returns the offset of the bytes in `target`, or `None` if `cancel` was set before all was read. Other bytes of
    /// `target` are arbitrary afterwards.
    ///
    /// # Panics
    /// When `target` has fewer pages than [`pages_of`] says.
    pub(super) fn read_direct(
        &self,
        offset: u64,
        len: usize,
        target: &mut [Page],
        cancel: &AtomicBool,
    ) -> Result<Option<usize>, CheckpointError> {
        let start = start_in_page(offset);
        // Direct reads need offset, length and memory to be aligned, hence whole pages around the part.
        let target: &mut [u8] = bytemuck::cast_slice_mut(&mut target[..pages_of(offset, len)]);
        let (file, direct) = match &self.content {
            Content::Disk { file, direct, .. } => (file, direct.as_ref()),
            Content::Memory(_) => {
                if cancel.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                self.read_at(offset, &mut target[start..start + len])?;
                return Ok(Some(start));
            }
        };
        let first = offset - start as u64;
        let mut result = read_pages(direct.unwrap_or(file), first, start + len, target, cancel);
        // Some file systems and devices open for direct reads and then refuse them; some systems refuse direct reads
        // into memory that is pinned for a GPU.
        if direct.is_some() && matches!(&result, Err(error) if is_refused(error)) {
            result = read_pages(file, first, start + len, target, cancel);
        }
        match result {
            Ok(whole) => Ok(whole.then_some(start)),
            Err(error) => Err(self.failed(offset + len as u64, error)),
        }
    }

    /// The bytes of an embedded file; empty for one on disk.
    pub(super) fn embedded(&self) -> &'static [u8] {
        match self.content {
            Content::Disk { .. } => &[],
            Content::Memory(bytes) => bytes,
        }
    }

    /// The descriptor for direct I/O, if there is one.
    pub(super) fn direct(&self) -> Option<&File> {
        match &self.content {
            Content::Disk { direct, .. } => direct.as_ref(),
            Content::Memory(_) => None,
        }
    }

    /// Checks that the file is still what it was when it was opened. One that was deleted, or replaced by another of
    /// its name, still is: it lives on behind the descriptor.
    pub(super) fn check_unchanged(&self) -> Result<(), CheckpointError> {
        let Content::Disk { file, identity, .. } = &self.content else {
            return Ok(());
        };
        // By the open descriptor: another file under the same name doesn't matter.
        let now = file
            .metadata()
            .map_err(|error| CheckpointError::io(self.path.as_ref(), error))?;
        if Identity::of(&now) == *identity {
            Ok(())
        } else {
            Err(CheckpointError::Changed {
                path: self.path.clone(),
            })
        }
    }

    /// Tells the system that these bytes will be read soon, through the page cache.
    pub(super) fn will_need(&self, offset: u64, len: u64) {
        // A length of zero would mean "to the end".
        if let (Content::Disk { file, .. }, Some(len)) = (&self.content, NonZeroU64::new(len)) {
            // Only advice: where it is refused, reads are slower.
            let _ = rustix::fs::fadvise(file, offset, Some(len), Advice::WillNeed);
        }
    }

    /// Takes a shared lock and sets the access time, so that the file is neither removed nor considered unused.
    pub(super) fn hold(&self) {
        let Content::Disk { file, .. } = &self.content else {
            return;
        };
        // The modification time is left alone: fingerprints of checkpoints depend on it.
        let keep = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        };
        let now = Timespec {
            tv_nsec: UTIME_NOW,
            ..keep
        };
        let times = Timestamps {
            last_access: now,
            last_modification: keep,
        };
        // Without lock or time stamp, the file may be deleted while it is read from, which harms no reader. Others lock
        // it only while they look at it.
        let _ = rustix::fs::flock(file, FlockOperation::LockShared);
        let _ = rustix::fs::futimens(file, &times);
    }

    /// Releases the lock; the file stays open.
    pub(super) fn release(&self) {
        if let Content::Disk { file, .. } = &self.content {
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }

    /// Drops these bytes from the page cache, so that the next read measures the disk.
    pub(super) fn drop_cached(&self, offset: u64, len: u64) {
        if let (Content::Disk { file, .. }, Some(len)) = (&self.content, NonZeroU64::new(len)) {
            // Only advice, as above.
            let _ = rustix::fs::fadvise(file, offset, Some(len), Advice::DontNeed);
        }
    }

    /// The error for a failed read up to `end`.
    fn failed(&self, end: u64, error: io::Error) -> CheckpointError {
        match error.kind() {
            // The file was truncated after its header was checked.
            io::ErrorKind::UnexpectedEof => CheckpointError::WrongLength {
                path: self.path.clone(),
                expected: end,
                found: match &self.content {
                    Content::Disk { file, .. } => file.metadata().map_or(self.len, |now| now.len()),
                    Content::Memory(_) => self.len,
                },
            },
            _ => CheckpointError::io(self.path.as_ref(), error),
        }
    }
}

/// Opens the file at `path` for direct I/O. `None` if another file has taken its name meanwhile, or if the file system
/// has no direct I/O.
fn open_direct(path: &Path, identity: &Identity) -> Option<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(path)
        .ok()?;
    (Identity::of(&file.metadata().ok()?) == *identity).then_some(file)
}

/// Whether only the direct read was refused, and an ordinary one may succeed.
fn is_refused(error: &io::Error) -> bool {
    // EINVAL comes from file systems, EFAULT from memory that direct I/O cannot reach.
    let code = rustix::io::Errno::from_io_error(error);
    matches!(
        code,
        Some(rustix::io::Errno::INVAL | rustix::io::Errno::FAULT)
    )
}

/// Fills the first `needed` bytes of `target` from `first` on; both begin with a page. Returns false if `cancel` was
/// set.
fn read_pages(
    file: &File,
    first: u64,
    needed: usize,
    target: &mut [u8],
    cancel: &AtomicBool,
) -> io::Result<bool> {
    let mut filled = 0;
    while filled < needed {
        // Relaxed ordering suffices: no other data depends on the flag.
        if cancel.load(Ordering::Relaxed) {
            return Ok(false);
        }
        // Direct reads begin with a page: after a short read, the incomplete page is read again.
        let from = filled - filled % PAGE_BYTES;
        let to = target.len().min(from + PIECE_BYTES);
        let read = match file.read_at(&mut target[from..to], first + from as u64) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result?,
        };
        // The last page of a file is short. A read without progress means the end.
        if from + read <= filled {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        filled = from + read;
    }
    Ok(true)
}

/// The contents of a small file; `None` if it doesn't exist.
pub(super) fn read_small(
    source: &Source,
    name: &str,
    max: u64,
) -> Result<Option<Vec<u8>>, CheckpointError> {
    let Some(place) = find(source, name)? else {
        return Ok(None);
    };
    let disk = match place {
        FileLocation::Memory(bytes) => return Ok(Some(bytes.to_vec())),
        FileLocation::Disk(disk) => disk,
    };
    let io = |error| CheckpointError::io(&disk, error);
    let mut bytes = Vec::new();
    // Reads one byte more than allowed, which detects a file that is too large even if it grows meanwhile.
    let file = File::open(&disk).map_err(io)?;
    let read = file.take(max + 1).read_to_end(&mut bytes).map_err(io)?;
    if read as u64 > max {
        return Err(CheckpointError::TooLarge {
            path: describe(source, name),
            bytes: fs::metadata(&disk).map_err(io)?.len(),
            max,
        });
    }
    Ok(Some(bytes))
}

pub(super) fn exists(source: &Source, name: &str) -> bool {
    matches!(find(source, name), Ok(Some(_)))
}

/// A file's name for messages.
pub(super) fn describe(source: &Source, name: &str) -> String {
    match source {
        Source::Folder(folder) if name.is_empty() => folder.display().to_string(),
        Source::Folder(folder) => folder.join(name).display().to_string(),
        Source::Embedded(_) => format!("embedded {name}"),
    }
}

enum FileLocation {
    Disk(PathBuf),
    Memory(&'static [u8]),
}

fn find(source: &Source, name: &str) -> Result<Option<FileLocation>, CheckpointError> {
    match source {
        Source::Embedded(files) => Ok(files
            .iter()
            .find(|(file, _)| *file == name)
            .map(|(_, bytes)| FileLocation::Memory(bytes))),
        Source::Folder(folder) => {
            let path = folder.join(name);
            match fs::metadata(&path) {
                // Opening a pipe or a terminal would block.
                Ok(metadata) if metadata.is_file() => Ok(Some(FileLocation::Disk(path))),
                Ok(_) => Err(CheckpointError::NotACheckpoint { path }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(CheckpointError::io(&path, error)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
