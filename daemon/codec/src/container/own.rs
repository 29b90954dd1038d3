//! Opens files beside a container that is being written, and refuses files that may belong to somebody else.

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

/// Opens a regular file. Symbolic and hard links are refused, because another user may have placed them to have their
/// target overwritten; pipes are refused, because opening one would block.
pub(super) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    // Checked on the open file, not on the path, which could change in between.
    let facts = file.metadata()?;
    match facts.is_file() && facts.nlink() <= 1 {
        true => Ok(file),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is a link, not a regular file",
        )),
    }
}

/// Renames a file without replacing another one. File systems that cannot do that atomically get a check before the
/// rename.
pub(super) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not atomic: a file that appears right after the check is replaced. Such file systems leave no better way.
        Err(Errno::INVAL | Errno::NOSYS) => match to.symlink_metadata() {
            Ok(_) => Err(Errno::EXIST.into()),
            Err(_) => std::fs::rename(from, to),
        },
        done => Ok(done?),
    }
}
