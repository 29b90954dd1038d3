//! The locked state file, and what of it was written last.

use std::{
    fs::{self, File},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{PersistedState, save};

/// What was last written, and when the state was last compared with it.
#[derive(Debug)]
pub struct PersistSchedule {
    pub(in super::super) last: PersistedState,
    pub(in super::super) compared_at_ms: u64,
    pub(in super::super) file: Arc<PersistFile>,
}

/// The state file, locked for as long as this value lives.
#[derive(Debug)]
pub(in super::super) struct PersistFile {
    path: PathBuf,
    pub(in super::super) last_write: Mutex<WriteState>,
    /// Where a file that could not be read is moved before the first write replaces it.
    aside: Mutex<Option<PathBuf>>,
    _lock: File,
}

/// State of the latest write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum WriteState {
    Begun,
    Done,
    Failed,
}

impl PersistFile {
    /// A file that was locked; `aside` is where what is there now is moved, if it could not be read.
    pub(in super::super) fn new(path: PathBuf, aside: Option<PathBuf>, lock: File) -> Self {
        Self {
            path,
            last_write: Mutex::new(WriteState::Done),
            aside: Mutex::new(aside),
            _lock: lock,
        }
    }

    pub(in super::super) fn write(&self, kept: &PersistedState) -> Result<(), String> {
        let mut aside = locked(&self.aside);
        // Moved with the first write and not at the start: a dashboard that writes nothing leaves the file where it is.
        if let Some(to) = &*aside {
            match fs::rename(&self.path, to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    let path = self.path.display();
                    return Err(format!("cannot move {path} to {}: {error}", to.display()));
                }
                Ok(()) | Err(_) => *aside = None,
            }
        }
        save(&self.path, kept)
    }
}

/// Locks a value. Poison is ignored: no lock here is held while its value is half changed.
pub(in super::super) fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
