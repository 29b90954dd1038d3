//! File operations whose errors are those of a pull.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use crate::HubError;

/// The error of an operation, a verb, on a path.
pub(crate) fn failed(operation: &'static str, path: &Path, cause: io::Error) -> HubError {
    HubError::Disk {
        operation,
        path: path.to_owned(),
        cause,
    }
}

/// Removes a file if it exists.
pub(crate) fn remove(path: &Path) -> Result<(), HubError> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, cause)),
        _ => Ok(()),
    }
}

pub(crate) fn remove_folder(path: &Path) -> Result<(), HubError> {
    match fs::remove_dir_all(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, cause)),
        _ => Ok(()),
    }
}

pub(crate) fn make_folder(path: &Path) -> Result<(), HubError> {
    fs::create_dir_all(path).map_err(|cause| failed("create the folder", path, cause))
}

/// Makes a folder's entries durable.
pub(crate) fn sync(folder: &Path) -> Result<(), HubError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|cause| failed("write", folder, cause))
}
