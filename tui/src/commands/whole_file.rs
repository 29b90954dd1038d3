//! Files that are written whole or not at all.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Writes a file beside its place first: what was there is replaced by a whole file or not at all.
///
/// # Errors
/// When the folder can't be written to, or the disk is full; what was there is as it was.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = WholeFile::create(path)?;
    file.write_all(bytes)?;
    file.finish()
}

/// A file that is written bit by bit and takes its place when it is finished; else nothing is left of it.
pub(super) struct WholeFile {
    file: BufWriter<File>,
    partial: PathBuf,
    path: PathBuf,
}

impl WholeFile {
    /// Begins a file beside its place.
    ///
    /// # Errors
    /// When the folder can't be written to.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Self::with_mode(path, 0o666)
    }

    /// The same for the user's eyes alone.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub(super) fn create_private(path: &Path) -> io::Result<Self> {
        Self::with_mode(path, 0o600)
    }

    fn with_mode(path: &Path, mode: u32) -> io::Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let partial = path.with_file_name(format!(".{name}.{}.part", std::process::id()));
        let file = (OpenOptions::new().write(true).create(true).truncate(true))
            .mode(mode)
            .open(&partial)?;
        Ok(Self {
            file: BufWriter::new(file),
            partial,
            path: path.to_owned(),
        })
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// When the disk is full; what was there is as it was.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        fs::rename(&self.partial, &self.path)
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        // Not there where it was finished; and the error that led here otherwise matters more.
        drop(fs::remove_file(&self.partial));
    }
}
