//! A file on its way: written under a name of its own, hashed as it grows, renamed when it is whole and right.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use crate::HubError;

/// Read at once when what is there already is hashed.
const PIECE_BYTES: usize = 1 << 20;

/// A file that is not whole.
pub(crate) struct Part {
    path: PathBuf,
    file: File,
    hash: Sha256,
    bytes: u64,
}

impl Part {
    /// Opens what there is, and hashes it; of more than `bytes_max` nothing can be right, so it starts anew.
    pub(crate) fn open(
        path: &Path,
        bytes_max: u64,
        heard: &mut dyn FnMut(u64),
    ) -> Result<Self, HubError> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            // A link would lead out of the folder.
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)
            .map_err(|cause| failed("open", path, cause))?;
        let mut part = Self {
            path: path.to_owned(),
            file,
            hash: Sha256::new(),
            bytes: 0,
        };
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

    fn read_through(&mut self, heard: &mut dyn FnMut(u64)) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let count = match self.file.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.hash.update(&piece[..count]);
            self.bytes += count as u64;
            heard(self.bytes);
        }
    }

    /// Bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Forgets what there is.
    pub(crate) fn restart(&mut self) -> Result<(), HubError> {
        self.file
            .set_len(0)
            .map_err(|cause| failed("empty", &self.path, cause))?;
        self.hash = Sha256::new();
        self.bytes = 0;
        Ok(())
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        // What was written of a failed write is read again by the next attempt, so that hash and file agree.
        self.file
            .write_all(bytes)
            .map_err(|cause| failed("write", &self.path, cause))?;
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Checks the hash, if one was promised, and gives the file its name.
    pub(crate) fn finish(
        self,
        file: &str,
        sha256: Option<&str>,
        target: &Path,
    ) -> Result<(), HubError> {
        let found = hex(&self.hash.finalize());
        if let Some(expected) = sha256.filter(|expected| *expected != found) {
            remove(&self.path)?;
            return Err(HubError::WrongHash {
                file: file.to_owned(),
                found,
                expected: expected.to_owned(),
            });
        }
        self.file
            .sync_all()
            .map_err(|cause| failed("write", &self.path, cause))?;
        std::fs::rename(&self.path, target).map_err(|cause| failed("rename", &self.path, cause))
    }
}

/// Removes a file, if it is there.
pub(crate) fn remove(path: &Path) -> Result<(), HubError> {
    match std::fs::remove_file(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, cause)),
        _ => Ok(()),
    }
}

pub(crate) fn failed(operation: &'static str, path: &Path, cause: io::Error) -> HubError {
    HubError::Disk {
        operation,
        path: path.to_owned(),
        cause,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn what_was_written_before_counts() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("x.part"), folder.path().join("x"));
        Part::open(&path, 3, &mut |_| {})
            .unwrap()
            .write(b"ab")
            .unwrap();
        let mut again = Part::open(&path, 3, &mut |_| {}).unwrap();
        assert_eq!(again.bytes(), 2);
        again.write(b"c").unwrap();
        again.finish("x", Some(ABC), &target).unwrap();
        assert_eq!(std::fs::read(target).unwrap(), b"abc");
        assert!(!path.exists());
    }

    #[test]
    fn a_wrong_file_is_deleted_and_said_to_be() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("x.part"), folder.path().join("x"));
        let mut part = Part::open(&path, 3, &mut |_| {}).unwrap();
        part.write(b"abd").unwrap();
        let error = part.finish("x", Some(ABC), &target).unwrap_err();
        assert!(error.to_string().contains(ABC), "{error}");
        assert!(!path.exists() && !target.exists());
    }

    #[test]
    fn more_than_there_can_be_is_begun_anew_and_a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.part");
        std::fs::write(&path, b"abcdef").unwrap();
        assert_eq!(Part::open(&path, 3, &mut |_| {}).unwrap().bytes(), 0);
        let (link, elsewhere) = (folder.path().join("l.part"), folder.path().join("precious"));
        std::fs::write(&elsewhere, b"abcdef").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
        assert!(Part::open(&link, 3, &mut |_| {}).is_err());
        assert_eq!(std::fs::read(elsewhere).unwrap(), b"abcdef");
    }
}
