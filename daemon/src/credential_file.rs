//! Reading the files by which the daemon and its callers are known: tokens, certificates, keys.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Bits of a file's mode by which others than its owner and group may read or write it.
const OTHERS: u32 = 0o007;

/// A kind of such files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CredentialKind {
    /// In messages.
    pub(crate) name: &'static str,
    /// Largest file.
    pub(crate) bytes_max: u64,
    /// Whether it must be closed to others than its owner and group.
    pub(crate) is_secret: bool,
}

/// Why such a file can't be used.
#[derive(Debug, thiserror::Error)]
#[error("the {kind} {path}: {problem}", path = .path.display())]
pub struct CredentialError {
    kind: &'static str,
    path: PathBuf,
    problem: String,
}

impl CredentialKind {
    /// The bytes of the file.
    ///
    /// # Errors
    /// When it can't be read, is too large, or is a secret that others may read.
    pub(crate) fn read(self, path: &Path) -> Result<Vec<u8>, CredentialError> {
        let read = || -> io::Result<(u32, Vec<u8>)> {
            let file = open(path)?;
            let mode = file.metadata()?.mode();
            let mut bytes = Vec::new();
            file.take(self.bytes_max + 1).read_to_end(&mut bytes)?;
            Ok((mode, bytes))
        };
        let (mode, bytes) = read().map_err(|error| self.wrong(path, error))?;
        if self.is_secret && mode & OTHERS != 0 {
            return Err(self.wrong(path, "every user can read or change it\nhint: chmod 600"));
        }
        if bytes.len() as u64 > self.bytes_max {
            let problem = format!("it has more than {} bytes", self.bytes_max);
            return Err(self.wrong(path, problem));
        }
        Ok(bytes)
    }

    /// What is wrong with the file.
    pub(crate) fn wrong(self, path: &Path, problem: impl ToString) -> CredentialError {
        CredentialError {
            kind: self.name,
            path: path.to_owned(),
            problem: problem.to_string(),
        }
    }
}

/// Opens a file and nothing else: a pipe would keep the daemon waiting for whoever writes to it.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a file")),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn what_others_may_read_is_no_secret_and_large_files_are_refused() {
        let secret = CredentialKind {
            name: "token file",
            bytes_max: 4,
            is_secret: true,
        };
        let open = CredentialKind {
            is_secret: false,
            ..secret
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let told = |kind: CredentialKind| kind.read(&path).unwrap_err().to_string();
        assert!(told(secret).starts_with(&format!("the token file {}: ", path.display())));
        fs::write(&path, "1234").unwrap();
        for (mode, is_taken) in [(0o644, false), (0o602, false), (0o640, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(secret.read(&path).is_ok(), is_taken, "{mode:o}");
            assert_eq!(open.read(&path).unwrap(), b"1234");
        }
        fs::write(&path, "12345").unwrap();
        assert!(told(open).contains("more than 4 bytes"), "{}", told(open));
        assert!(open.read(folder.path()).is_err());
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let kind = CredentialKind {
            name: "private key",
            bytes_max: 4,
            is_secret: true,
        };
        let error = kind.read(&path).unwrap_err().to_string();
        assert!(error.contains("it is not a file"), "{error}");
    }
}
