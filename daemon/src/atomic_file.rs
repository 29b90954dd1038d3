//! Small files that outlive the daemon. A reader finds the new contents or the old ones, never a part, and what was written
//! survives a power failure: clients are told of a change only after it is on disk.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

/// Replaces a file, or creates it and its folder.
///
/// # Errors
/// When a system call fails; the old contents then stay.
pub(crate) fn replace(file: &Path, text: &str) -> io::Result<()> {
    let folder = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut name = file
        .file_name()
        .ok_or(io::ErrorKind::InvalidInput)?
        .to_owned();
    name.push(".new");
    let temporary = folder.join(name);
    fs::create_dir_all(folder)?;
    let mut new = File::create(&temporary)?;
    new.write_all(text.as_bytes())?;
    // Before the rename: otherwise the new name may reach the disk before the bytes, and a crash leaves an empty file.
    new.sync_all()?;
    fs::rename(&temporary, file)?;
    sync(folder)
}

/// Deletes a file, if it is there.
///
/// # Errors
/// When a system call fails.
pub(crate) fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| file.parent().map_or(Ok(()), sync)),
    }
}

/// Syncs a folder: a rename or removal is on disk only once the folder is.
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
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
        let beside = fs::read_dir(file.parent().unwrap()).unwrap();
        assert_eq!(beside.count(), 1);
        remove(&file).unwrap();
        remove(&file).unwrap();
        assert!(!file.exists());
    }
}
