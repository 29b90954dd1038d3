//! A temporary folder that lives as long as a command.

use std::{
    env, fs, io, mem,
    path::{Path, PathBuf},
    process,
    sync::{Mutex, MutexGuard, PoisonError},
};

use sluice_daemon::offline::SystemError;

/// How many names are tried.
const TRIES: usize = 100;

/// The folders that exist now.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn folders() -> MutexGuard<'static, Vec<PathBuf>> {
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all of them, where the program ends before they are dropped.
pub(super) fn remove_all() {
    for folder in mem::take(&mut *folders()) {
        drop(fs::remove_dir_all(folder));
    }
}

/// A folder of our own in the system's temporary one, removed when this is dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    pub(super) fn new() -> Result<Self, SystemError> {
        let parent = env::temp_dir();
        let names = (0..TRIES).map(|turn| format!("sluice-gpu-{}-{turn}", process::id()));
        for folder in names.map(|name| parent.join(name)) {
            match fs::create_dir(&folder) {
                Ok(()) => {
                    folders().push(folder.clone());
                    return Ok(Self { folder });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(cause) => return Err(failed(cause)),
            }
        }
        Err(failed(io::ErrorKind::AlreadyExists.into()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.folder
    }
}

fn failed(cause: io::Error) -> SystemError {
    SystemError {
        operation: "make a temporary folder",
        cause,
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed now, the system's own cleanup removes.
        drop(fs::remove_dir_all(&self.folder));
        folders().retain(|folder| *folder != self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_folder_is_its_own_and_goes_with_what_is_in_it() {
        let (one, other) = (Scratch::new().unwrap(), Scratch::new().unwrap());
        assert_ne!(one.path(), other.path());
        fs::write(one.path().join("file"), "text").unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && other.path().exists());
    }
}
