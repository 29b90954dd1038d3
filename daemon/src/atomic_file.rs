//! Small files that are kept from one start to the next: whoever reads one finds all of it, or all of what was there before,
//! and what was written once is still there when the power has failed.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

/// Writes a file in the place of the one that may be there, and makes its folder where there is none.
///
/// # Errors
/// The system's; what was there before is then still there.
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
    new.sync_all()?;
    fs::rename(&temporary, file)?;
    sync(folder)
}

/// Deletes a file, if it is there.
///
/// # Errors
/// The system's.
pub(crate) fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| file.parent().map_or(Ok(()), sync)),
    }
}

/// Names are to last as bytes do.
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
