//! What is made of files, and made again when they change: tokens and certificates, which others renew while the daemon runs.

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{credential_file::CredentialError, file_stamp::FileStamp};

/// Makes the value of the files, by the one that was in force before.
type Read<T> = dyn Fn(Option<&T>) -> Result<T, CredentialError> + Send + Sync;

/// A value that follows its files. What can't be read leaves the former value in force.
pub(crate) struct Reread<T> {
    paths: Vec<PathBuf>,
    read: Box<Read<T>>,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Arc<T>,
    /// The files that `value` or `problem` came from.
    read_from: Vec<Option<FileStamp>>,
    /// The files at the last look.
    seen: Vec<Option<FileStamp>>,
    problem: Option<String>,
}

impl<T> Reread<T> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// When they can't be used.
    pub(crate) fn new(
        paths: Vec<PathBuf>,
        read: impl Fn(Option<&T>) -> Result<T, CredentialError> + Send + Sync + 'static,
    ) -> Result<Self, CredentialError> {
        // Before they are read: a change meanwhile is seen at the first look.
        let stamps = stamps(&paths);
        let value = Arc::new(read(None)?);
        Ok(Self {
            paths,
            read: Box::new(read),
            state: Mutex::new(State {
                value,
                seen: stamps.clone(),
                read_from: stamps,
                problem: None,
            }),
        })
    }

    /// The value in force.
    pub(crate) fn current(&self) -> Arc<T> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.value.clone()
    }

    /// Why the files that are there now are not in force, if they are not.
    pub(crate) fn problem(&self) -> Option<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.problem.clone()
    }

    /// Looks at the files, and reads them if they changed and have been the same since the last look: who changes several, or
    /// writes one in pieces, is given that time. Whether it read them.
    pub(crate) fn look(&self) -> bool {
        let stamps = stamps(&self.paths);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_settled = state.seen == stamps;
        state.seen.clone_from(&stamps);
        if !is_settled || state.read_from == stamps {
            return false;
        }
        let former = state.value.clone();
        drop(state);
        // Without the lock, which callers wait for.
        let read = (self.read)(Some(&former));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.read_from = stamps;
        match read {
            Ok(value) => {
                state.value = Arc::new(value);
                state.problem = None;
                let files = Names(&self.paths);
                tracing::info!(%files, "read again, and in force");
            }
            Err(error) => {
                let told = error.to_string();
                // Without the hint, which starts a line.
                let problem = told.lines().next().unwrap_or_default();
                let problem = format!("{problem}; what it said before stays in force");
                tracing::warn!(problem, "a file that changed cannot be used");
                state.problem = Some(problem);
            }
        }
        true
    }
}

impl<T> fmt::Debug for Reread<T> {
    /// Never the value, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reread")
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

struct Names<'a>(&'a [PathBuf]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|path| path.to_string_lossy()).collect();
        f.write_str(&names.join(", "))
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<FileStamp>> {
    paths.iter().map(|path| FileStamp::of(path)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::credential_file::CredentialKind;

    const KIND: CredentialKind = CredentialKind {
        name: "number",
        bytes_max: 8,
        is_secret: false,
    };

    #[test]
    fn a_changed_file_is_read_once_it_is_still_and_a_broken_one_leaves_the_former() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("number");
        let number = || {
            let path = path.clone();
            Reread::new(vec![path.clone()], move |former: Option<&u32>| {
                let text = String::from_utf8(KIND.read(&path)?).unwrap();
                let number: u32 = text.parse().map_err(|error| KIND.wrong(&path, error))?;
                Ok(number + former.copied().unwrap_or_default())
            })
        };
        assert!(number().is_err(), "there is none");
        fs::write(&path, "1").unwrap();
        let number = number().unwrap();
        assert!(!number.look() && *number.current() == 1);

        fs::write(&path, "20").unwrap();
        assert!(!number.look(), "somebody may be writing");
        assert!(number.look() && *number.current() == 21);
        assert!(!number.look());

        for broken in ["none", "123456789"] {
            fs::write(&path, broken).unwrap();
            number.look();
            assert!(number.look() && *number.current() == 21);
            let problem = number.problem().unwrap();
            assert!(problem.contains("stays in force"), "{problem}");
            assert!(!number.look(), "it is told once");
        }
        fs::remove_file(&path).unwrap();
        number.look();
        assert!(number.look() && *number.current() == 21);

        fs::write(&path, "300").unwrap();
        number.look();
        assert!(number.look() && *number.current() == 321);
        assert_eq!(number.problem(), None);
    }
}
