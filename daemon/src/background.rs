//! The daemon as `sluice run` starts it: in the background, outliving the terminal, with a bounded log file.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Most bytes of the log. A full log replaces the one kept from before, so both take at most twice this.
const LOG_BYTES_MAX: u64 = 4 << 20;

/// Leaves the session of whoever started this process, and sends standard output and standard error to the log.
///
/// # Errors
/// When the log cannot be opened.
pub fn begin(log: &Path) -> io::Result<()> {
    // Fails for the leader of a process group, whose own group already keeps it apart from the terminal's.
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

/// A writer to standard error that bounds the log file behind it.
#[derive(Debug)]
pub struct BoundedLog {
    path: PathBuf,
    bytes: u64,
    bytes_max: u64,
}

impl BoundedLog {
    /// The log at this path, to which standard error was redirected before.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            bytes: fs::metadata(path).map_or(0, |facts| facts.len()),
            bytes_max: LOG_BYTES_MAX,
        }
    }

    /// Renames the log to the old one and begins another.
    fn rotate(&mut self) -> io::Result<()> {
        fs::rename(&self.path, old_log(&self.path))?;
        let file = open(&self.path)?;
        rustix::stdio::dup2_stdout(&file)?;
        Ok(rustix::stdio::dup2_stderr(&file)?)
    }

    /// Rotates the log if `bytes` more would exceed its bound.
    fn make_room(&mut self, bytes: usize) {
        if self.bytes > 0 && self.bytes + bytes as u64 > self.bytes_max {
            self.bytes = 0;
            // A failed rotation is tried again after as many bytes: losing log lines would be worse than a long file.
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

/// Path of the previous log.
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
