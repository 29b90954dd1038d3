//! Files that are written whole or not at all.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

/// Writes a file beside its place first: what was there is replaced by a whole file or not at all.
///
/// # Errors
/// When the folder can't be written to, or the disk is full; what was there is as it was.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = path.with_file_name(format!(".{name}.{}.part", std::process::id()));
    let written = (|| {
        let mut file = fs::File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    })();
    written.inspect_err(|_| {
        // The error that led here matters more.
        drop(fs::remove_file(&partial));
    })
}
