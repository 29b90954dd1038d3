//! A new folder for a checkpoint, under another name until it is whole.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Why there is no such folder.
#[derive(Debug)]
pub(super) enum FolderError {
    /// Something lies there already.
    Exists { path: PathBuf },
    /// Nothing can be moved there.
    MountPoint { path: PathBuf },
    /// The system refused.
    Io {
        operation: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
}

impl FolderError {
    fn io(operation: &'static str, path: &Path, cause: io::Error) -> Self {
        Self::Io {
            operation,
            path: path.to_owned(),
            cause,
        }
    }
}

/// The absolute path to write to.
pub(super) fn free_target(target: &Path) -> Result<PathBuf, FolderError> {
    let refused = |cause| FolderError::io("look at", target, cause);
    let metadata = match fs::metadata(target) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return std::path::absolute(target).map_err(refused);
        }
        Err(error) => return Err(refused(error)),
    };
    let path = fs::canonicalize(target).map_err(refused)?;
    if !metadata.is_dir() || fs::read_dir(&path).map_err(refused)?.next().is_some() {
        return Err(FolderError::Exists { path });
    }
    // Found out before hours of writing: a folder can't be renamed across file systems.
    let around = path
        .parent()
        .map(fs::metadata)
        .transpose()
        .map_err(refused)?;
    if around.is_none_or(|around| around.dev() != metadata.dev()) {
        return Err(FolderError::MountPoint { path });
    }
    Ok(path)
}

/// A folder that goes away unless it was kept.
pub(super) struct PartialFolder {
    folder: PathBuf,
    kept: bool,
}

impl PartialFolder {
    /// In the target's folder, since only there a rename is no copy; hidden, and named after the work.
    pub(super) fn create(target: &Path, work: &str) -> Result<Self, FolderError> {
        let name = format!(".sluice-{work}-{}", std::process::id());
        let folder = target.with_file_name(name);
        fs::create_dir(&folder).map_err(|cause| FolderError::io("create", &folder, cause))?;
        Ok(Self {
            folder,
            kept: false,
        })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(super) fn keep_as(mut self, target: &Path) -> Result<(), FolderError> {
        fs::rename(&self.folder, target)
            .map_err(|cause| FolderError::io("move the checkpoint to", target, cause))?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for PartialFolder {
    fn drop(&mut self) {
        if !self.kept {
            // The failure that led here is what matters.
            drop(fs::remove_dir_all(&self.folder));
        }
    }
}
