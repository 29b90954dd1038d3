//! Creates a folder for a checkpoint under a temporary name until it is complete.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process,
};

/// Why the folder could not be created.
#[derive(Debug)]
pub(super) enum FolderError {
    /// The target exists and isn't an empty folder.
    Exists { path: PathBuf },
    /// The target is a mount point, which no folder can be renamed to.
    MountPoint { path: PathBuf },
    /// A file operation failed.
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

/// The absolute path of a target that is free to be written.
pub(super) fn free_target(target: &Path) -> Result<PathBuf, FolderError> {
    let refused = |cause| FolderError::io("look at", target, cause);
    let metadata = match fs::metadata(target) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return std::path::absolute(target).map_err(refused);
        }
        Err(error) => return Err(refused(error)),
    };
    // A link to an empty folder is followed: the rename must replace the folder, not the link.
    let path = fs::canonicalize(target).map_err(refused)?;
    if !metadata.is_dir() || fs::read_dir(&path).map_err(refused)?.next().is_some() {
        return Err(FolderError::Exists { path });
    }
    // Found out before hours of writing: a folder cannot be renamed across file systems.
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

/// A folder that is deleted when dropped, unless it was kept. It is locked while it is open, so that clean-ups leave it
/// alone.
#[derive(Debug)]
pub(super) struct PartialFolder {
    folder: PathBuf,
    file: File,
    kept: bool,
}

impl PartialFolder {
    /// Creates a hidden folder, named after the work, next to the target, since a rename works only within a file
    /// system. Removes what killed runs of the same work left there: it may take the space that this one needs.
    pub(super) fn create(target: &Path, work: &str) -> Result<Self, FolderError> {
        let prefix = partial_prefix(work);
        clear_up(target, &prefix);
        let mut attempt = 0;
        loop {
            let folder = target.with_file_name(format!("{prefix}{}-{attempt}", process::id()));
            attempt += 1;
            let refused = |cause| FolderError::io("create", &folder, cause);
            match fs::create_dir(&folder) {
                // In containers, different processes may have the same id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created.map_err(refused)?,
            }
            let file = match File::open(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file.map_err(refused)?,
            };
            // A clean-up may have removed it before it was locked. Not every file system has locks.
            let is_held = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
            if !is_held && is_at(&file, &folder) {
                return Ok(Self {
                    folder,
                    file,
                    kept: false,
                });
            }
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(super) fn keep_as(mut self, target: &Path) -> Result<(), FolderError> {
        let refused = |cause| FolderError::io("move the checkpoint to", target, cause);
        // The rename must not last longer than the names inside: sync the folder first, then the one around it.
        self.file.sync_all().map_err(refused)?;
        fs::rename(&self.folder, target).map_err(refused)?;
        self.kept = true;
        match target.parent() {
            Some(around) => File::open(around)
                .and_then(|around| around.sync_all())
                .map_err(refused),
            None => Ok(()),
        }
    }
}

impl Drop for PartialFolder {
    fn drop(&mut self) {
        if !self.kept {
            // The error that led here matters more.
            drop(fs::remove_dir_all(&self.folder));
        }
    }
}

/// What the names of folders of this work begin with; then comes the process, and the attempt.
pub(super) fn partial_prefix(work: &str) -> String {
    format!(".sluice-{work}-")
}

/// Removes folders beside `target` that no process works in any more. Folders that cannot be examined or removed stay.
pub(super) fn clear_up(target: &Path, prefix: &str) {
    let around = target.parent().and_then(|around| fs::read_dir(around).ok());
    for entry in around.into_iter().flatten().flatten() {
        let name = entry.file_name();
        let ours = name.to_str().and_then(|name| name.strip_prefix(prefix));
        let parts = ours.and_then(|rest| rest.split_once('-'));
        let is_number = |part: &str| part.parse::<u32>().is_ok();
        // Doesn't follow links: none are made here.
        let is_partial = parts
            .is_some_and(|(process, attempt)| is_number(process) && is_number(attempt))
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        let path = entry.path();
        let Some(file) = is_partial.then(|| File::open(&path).ok()).flatten() else {
            continue;
        };
        // Both: a lock alone might be on a folder that has been renamed to its target meanwhile.
        if file.try_lock().is_ok() && is_at(&file, &path) {
            drop(fs::remove_dir_all(&path));
        }
    }
}

/// Whether this open file is what the path leads to.
fn is_at(file: &File, path: &Path) -> bool {
    let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let found = fs::symlink_metadata(path).map(place);
    found.is_ok_and(|found| file.metadata().map(place).is_ok_and(|place| place == found))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_killed_run_left_goes_away_and_what_is_at_work_stays() {
        let around = TempDir::new().unwrap();
        let target = around.path().join("target");
        let left = format!(".sluice-test-{}-0", process::id());
        let others = [".sluice-other-1-0", ".sluice-test-mine", "sluice-test-1-0"];
        for name in others
            .iter()
            .copied()
            .chain([&left[..], ".sluice-test-1-7"])
        {
            fs::create_dir(around.path().join(name)).unwrap();
            fs::write(around.path().join(name).join("large"), "weights").unwrap();
        }
        let first = PartialFolder::create(&target, "test").unwrap();
        let second = PartialFolder::create(&target, "test").unwrap();
        assert_eq!(first.path(""), around.path().join(&left).join(""));
        fs::write(first.path("new"), "weights").unwrap();
        first.keep_as(&target).unwrap();
        assert!(second.path("").exists());
        drop(second);

        let mut expected = others.to_vec();
        expected.push("target");
        assert_eq!(names(around.path()), expected);
        assert_eq!(names(&target), ["new"]);
    }

    #[test]
    fn a_name_that_is_taken_is_no_obstacle() {
        let around = TempDir::new().unwrap();
        let taken = format!(".sluice-test-{}-0", process::id());
        fs::write(around.path().join(&taken), "a file").unwrap();
        let target = around.path().join("target");
        let made = PartialFolder::create(&target, "test").unwrap();
        made.keep_as(&target).unwrap();
        assert_eq!(names(around.path()), [&taken, "target"]);
    }
}
