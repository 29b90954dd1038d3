//! A daemon that nobody watches: `sluice run` started it, and it outlives the terminal. Its log is a file with a bound.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Bytes of the log; then it becomes the old one, and the one before is gone.
const LOG_BYTES_MAX: u64 = 4 << 20;

/// Leaves the session of whoever started this process, and sends standard output and standard error to the log.
///
/// # Errors
/// When the log cannot be opened.
pub fn begin(log: &Path) -> io::Result<()> {
    // A process that leads a group cannot begin a session, but nobody can end it with the terminal either.
    let _ = rustix::process::setsid();
    let file = open(log)?;
    rustix::stdio::dup2_stdout(&file)?;
    rustix::stdio::dup2_stderr(&file)?;
    Ok(())
}

fn open(log: &Path) -> io::Result<File> {
    File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(log)
}

/// Standard error as a log with a bound.
#[derive(Debug)]
pub struct BoundedLog {
    path: PathBuf,
    bytes: u64,
    bytes_max: u64,
}

impl BoundedLog {
    /// The log at a path, where standard error leads already.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            bytes: fs::metadata(path).map_or(0, |facts| facts.len()),
            bytes_max: LOG_BYTES_MAX,
        }
    }

    /// Makes this log the old one, and begins another.
    fn rotate(&mut self) -> io::Result<()> {
        fs::rename(&self.path, old_log(&self.path))?;
        let file = open(&self.path)?;
        rustix::stdio::dup2_stdout(&file)?;
        Ok(rustix::stdio::dup2_stderr(&file)?)
    }

    /// Makes room for so many bytes.
    fn make_room(&mut self, bytes: usize) {
        if self.bytes > 0 && self.bytes + bytes as u64 > self.bytes_max {
            self.bytes = 0;
            // Where that fails, it is tried again as many bytes later; what is logged matters more.
            let _ = self.rotate();
        }
    }
}

impl Write for BoundedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.make_room(bytes.len());
        let written = io::stderr().write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Where the log before is.
fn old_log(log: &Path) -> PathBuf {
    let mut name = OsString::from(log);
    name.push(".old");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_before_is_named_after_the_log() {
        assert_eq!(
            old_log(Path::new("/s/sluiced.log")),
            Path::new("/s/sluiced.log.old")
        );
    }
}
