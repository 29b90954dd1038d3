//! Files beside a container that is being written: ours alone, or refused.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use rustix::{
    fs::{CWD, OFlags, RenameFlags, renameat_with},
    io::Errno,
};

/// Opens a file, but nothing that a link leads to or that has another name as well, whose owner may be somebody else, and no
/// pipe, for which one would wait.
pub(super) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    let facts = file.metadata()?;
    match facts.is_file() && facts.nlink() <= 1 {
        true => Ok(file),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is a link, not a regular file",
        )),
    }
}

/// Gives a file another name, which nothing has yet. Where a file system can't promise that, it is looked before.
pub(super) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => match to.symlink_metadata() {
            Ok(_) => Err(Errno::EXIST.into()),
            Err(_) => std::fs::rename(from, to),
        },
        done => Ok(done?),
    }
}
