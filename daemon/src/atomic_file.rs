//! Small files that outlive the daemon. A reader finds the new contents or the old ones, never a part, and what was written
//! survives a power failure: clients are told of a change only after it is on disk.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Replaces a file, or creates it and its folder. One process at a time may do so.
///
/// # Errors
/// When a system call fails; the old contents then stay.
pub(crate) fn replace(file: &Path, text: &str) -> io::Result<()> {
    let folder = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    create_folder(folder)?;
    let temporary = temporary(file);
    let written = File::create(&temporary).and_then(|mut new| {
        new.write_all(text.as_bytes())?;
        // Before the rename: otherwise the new name may reach the disk before the bytes, and a crash leaves an empty file.
        new.sync_all()
    });
    if let Err(error) = written.and_then(|()| fs::rename(&temporary, file)) {
        // On a full disk even the part that was written is in the way.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_folder(folder)
}

/// Deletes a file, if it is there.
///
/// # Errors
/// When a system call fails.
pub(crate) fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| file.parent().map_or(Ok(()), sync_folder)),
    }
}

/// Deletes what a process that was killed left of a [`replace`]. For the one process that may replace the file.
pub(crate) fn remove_leftover(file: &Path) {
    // It costs a few bytes, and the next `replace` writes over it.
    let _ = fs::remove_file(temporary(file));
}

/// Creates a folder and those around it. Each that is new is on disk with its name.
///
/// # Errors
/// When a system call fails.
pub(crate) fn create_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let around = folder.parent().filter(|around| *around != Path::new(""));
    if let Some(around) = around {
        create_folder(around)?;
    }
    match fs::create_dir(folder) {
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        created => created.and_then(|()| sync_folder(around.unwrap_or(Path::new(".")))),
    }
}

/// Syncs a folder: a rename or removal is on disk only once the folder is.
///
/// # Errors
/// When a system call fails.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Where new contents are written before they take the file's name.
fn temporary(file: &Path) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(".new");
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("made/.on/.default");
        for text in ["first, and longer\n", "second\n"] {
            replace(&file, text).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        let beside = || fs::read_dir(file.parent().unwrap()).unwrap().count();
        assert_eq!(beside(), 1);
        fs::write(temporary(&file), "half").unwrap();
        remove_leftover(&file);
        assert_eq!(beside(), 1);
        remove(&file).unwrap();
        remove(&file).unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn a_failure_leaves_the_old_contents_and_no_part_of_the_new() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        fs::create_dir_all(file.join("in the way")).unwrap();
        replace(&file, "text").unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        // A file where a folder should be made.
        fs::write(folder.path().join("file"), "").unwrap();
        replace(&folder.path().join("file/b"), "text").unwrap_err();
    }
}
