//! A partial file: written under a temporary name, hashed as it grows, and renamed when it is complete and verified.

use std::{
    fs::{File, Metadata, OpenOptions},
    io::{self, Read, Write},
    ops::ControlFlow,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::OFlags;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::{
    HubError, RemoteFile,
    disk::{failed, remove},
    folder::FolderLock,
};

/// Bytes that are read at a time when an existing partial file is hashed.
const PIECE_BYTES: usize = 1 << 20;

/// A file that isn't complete yet.
pub(crate) struct PartialFile {
    path: PathBuf,
    remote: RemoteFile,
    file: File,
    hash: Hash,
    bytes: u64,
    /// Held until the last write ends, even if the future that started it was dropped.
    _lock: Arc<FolderLock>,
}

/// The hash that the hub gives for a file.
enum Hash {
    /// For large files, and where the hub gives none.
    Sha256(Sha256),
    /// For files that lie in git itself: the name of the git object.
    Git(Sha1),
}

impl Hash {
    fn of(remote: &RemoteFile) -> Self {
        match remote.git_hash() {
            Some(_) => {
                // Git hashes a header with the length before the contents, so the size must be known first.
                let head = format!("blob {}\0", remote.bytes);
                Self::Git(Sha1::new_with_prefix(head))
            }
            None => Self::Sha256(Sha256::new()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Git(hash) => hash.update(bytes),
        }
    }

    /// Adds what the file has from its position on; returns how many bytes that was.
    fn read_through(
        &mut self,
        mut file: &File,
        heard: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> io::Result<u64> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut bytes = 0;
        loop {
            let count = match file.read(&mut piece) {
                Ok(0) => return Ok(bytes),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.update(&piece[..count]);
            bytes += count as u64;
            if heard(bytes).is_break() {
                return Err(io::Error::other("nobody waits for it any more"));
            }
        }
    }

    fn end(self) -> String {
        match self {
            Self::Sha256(hash) => hex(&hash.finalize()),
            Self::Git(hash) => hex(&hash.finalize()),
        }
    }
}

impl PartialFile {
    /// Opens and hashes what is on disk. A file longer than promised cannot be right, so it starts anew. `heard` gets the
    /// bytes that are hashed, and may stop that; the file is then of no use.
    pub(crate) fn open(
        path: &Path,
        remote: RemoteFile,
        lock: Arc<FolderLock>,
        heard: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Self, HubError> {
        let bytes_max = remote.bytes;
        let file = OpenOptions::new()
            .read(true)
            // After a failed write, the next one still goes to the end of what is there.
            .append(true)
            .create(true)
            // A symbolic link would lead out of the folder.
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)
            .map_err(|cause| failed("open", path, cause))?;
        let mut part = Self {
            path: path.to_owned(),
            file,
            hash: Hash::of(&remote),
            remote,
            bytes: 0,
            _lock: lock,
        };
        // A pipe or a device would hash for ever; a file that is too long cannot be right.
        let is_likely = part
            .file
            .metadata()
            .is_ok_and(|facts| facts.is_file() && facts.len() <= bytes_max);
        match is_likely {
            true => part
                .read_through(heard)
                .map_err(|cause| failed("read", path, cause))?,
            false => part.restart()?,
        }
        Ok(part)
    }

    fn read_through(&mut self, heard: &mut dyn FnMut(u64) -> ControlFlow<()>) -> io::Result<()> {
        self.bytes = self.hash.read_through(&self.file, heard)?;
        Ok(())
    }

    /// Bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Discards what is on disk.
    pub(crate) fn restart(&mut self) -> Result<(), HubError> {
        self.file
            .set_len(0)
            .map_err(|cause| failed("empty", &self.path, cause))?;
        self.hash = Hash::of(&self.remote);
        self.bytes = 0;
        Ok(())
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        // After a failed write, the next attempt reads the file again, so that hash and file agree.
        self.file
            .write_all(bytes)
            .map_err(|cause| failed("write", &self.path, cause))?;
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Verifies the hash, if one was promised, and renames the file to its final name. Returns what the system says of it
    /// then.
    pub(crate) fn finish(self, target: &Path) -> Result<Metadata, HubError> {
        let found = self.hash.end();
        if let Some(expected) =
            (self.remote.hash()).filter(|expected| !expected.eq_ignore_ascii_case(&found))
        {
            // Removed at once: resuming wrong bytes would fail again.
            remove(&self.path)?;
            return Err(HubError::WrongHash {
                file: self.remote.path.clone(),
                found,
                expected: expected.to_owned(),
            });
        }
        // Durable before it gets its final name.
        self.file
            .sync_all()
            .map_err(|cause| failed("write", &self.path, cause))?;
        std::fs::rename(&self.path, target).map_err(|cause| failed("rename", &self.path, cause))?;
        // After the rename, which is a change of the inode.
        let metadata = self.file.metadata();
        metadata.map_err(|cause| failed("read", target, cause))
    }
}

/// Hashes a complete file. Returns what the system says of it, or `None` if it has another hash than was promised.
pub(crate) fn compare(
    path: &Path,
    remote: &RemoteFile,
    heard: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Option<Metadata>, HubError> {
    let read = |cause| failed("read", path, cause);
    let file = File::open(path).map_err(read)?;
    let metadata = file.metadata().map_err(read)?;
    let mut hash = Hash::of(remote);
    hash.read_through(&file, heard).map_err(read)?;
    let found = hash.end();
    let is_promised = remote
        .hash()
        .is_some_and(|hash| hash.eq_ignore_ascii_case(&found));
    Ok(is_promised.then_some(metadata))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn remote(sha256: Option<&str>, blob: Option<&str>) -> RemoteFile {
        RemoteFile {
            path: "x".to_owned(),
            bytes: 3,
            sha256: sha256.map(str::to_owned),
            blob: blob.map(str::to_owned),
        }
    }

    fn open(path: &Path, remote: RemoteFile) -> Result<PartialFile, HubError> {
        let lock = FolderLock::of(&path.with_extension("lock"), "x")?;
        PartialFile::open(path, remote, Arc::new(lock), &mut |_| {
            ControlFlow::Continue(())
        })
    }

    #[test]
    fn what_was_written_before_counts() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("x.part"), folder.path().join("x"));
        open(&path, remote(Some(ABC), None))
            .unwrap()
            .write(b"ab")
            .unwrap();
        let mut again = open(&path, remote(Some(ABC), None)).unwrap();
        assert_eq!(again.bytes(), 2);
        again.write(b"c").unwrap();
        again.finish(&target).unwrap();
        assert_eq!(std::fs::read(target).unwrap(), b"abc");
        assert!(!path.exists());
    }

    #[test]
    fn a_wrong_file_is_deleted_and_said_to_be() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("x.part"), folder.path().join("x"));
        let mut part = open(&path, remote(Some(ABC), None)).unwrap();
        part.write(b"abd").unwrap();
        let error = part.finish(&target).unwrap_err();
        assert!(error.to_string().contains(ABC), "{error}");
        assert!(!path.exists() && !target.exists());
    }

    #[test]
    fn a_file_without_a_sha256_has_the_name_that_git_gave_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("x.part"), folder.path().join("x"));
        // `printf abc | git hash-object --stdin`
        const GIT: &str = "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f";
        for (blob, is_right) in [
            (GIT, true),
            (&GIT.replace('f', "e"), false),
            ("other", true),
        ] {
            for pieces in [&["abc"][..], &["a", "bc"]] {
                for piece in pieces {
                    let mut part = open(&path, remote(None, Some(blob))).unwrap();
                    part.write(piece.as_bytes()).unwrap();
                }
                let part = open(&path, remote(None, Some(blob))).unwrap();
                assert_eq!(part.finish(&target).is_ok(), is_right, "{blob}");
            }
        }
        // That of a large file is of its pointer.
        let mut part = open(&path, remote(Some(ABC), Some(&"0".repeat(40)))).unwrap();
        part.write(b"abc").unwrap();
        part.finish(&target).unwrap();
    }

    #[test]
    fn what_is_written_still_keeps_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let part = open(&folder.path().join("x.part"), remote(None, None)).unwrap();
        let lock = || FolderLock::of(&folder.path().join("x.lock"), "x");
        assert!(matches!(lock(), Err(HubError::Locked { .. })));
        drop(part);
        assert!(lock().is_ok());
    }

    #[test]
    fn more_than_there_can_be_is_begun_anew_and_a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.part");
        std::fs::write(&path, b"abcdef").unwrap();
        assert_eq!(open(&path, remote(Some(ABC), None)).unwrap().bytes(), 0);
        let (link, elsewhere) = (folder.path().join("l.part"), folder.path().join("precious"));
        std::fs::write(&elsewhere, b"abcdef").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
        assert!(open(&link, remote(None, None)).is_err());
        assert_eq!(std::fs::read(elsewhere).unwrap(), b"abcdef");
    }
}
