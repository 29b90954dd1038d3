//! Programs, folders and signals.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The Cargo that runs this program.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Cargo says in the environment which package it runs. Build scripts that look there, such as ring's, would run again when
    // Cargo is called by hand, and what they build would be built again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the repository")
}

/// A program of this workspace, beside this one.
pub(crate) fn built(program: &str) -> io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name(program))
}

/// Whether a program can be started at all.
pub(crate) fn has(program: &str, question: &[&str]) -> bool {
    let output = Command::new(program).args(question).output();
    output.is_ok_and(|output| output.status.success())
}

/// A private folder that goes when this value does.
pub(crate) struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    pub(crate) fn new(purpose: &str) -> io::Result<Self> {
        // A killed run may have left a folder under the same number.
        let id = std::process::id();
        for attempt in 0..100 {
            let path = std::env::temp_dir().join(format!("sluice-{purpose}-{id}-{attempt}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // Nothing can be done about what stays behind.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Ctrl-C and its like set a flag instead of ending this program, so that it can clean up.
pub(crate) fn interruption() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(flag)
}

pub(crate) fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::SeqCst)
}

/// A process that is stopped when this value goes.
pub(crate) struct Stopping(pub(crate) Child);

impl Stopping {
    /// Asks the process to end, and insists after `patience`.
    pub(crate) fn stop(&mut self, patience: Duration) -> io::Result<ExitStatus> {
        if let Some(status) = self.0.try_wait()? {
            return Ok(status);
        }
        if let Some(pid) = Pid::from_raw(self.0.id().cast_signed()) {
            // It may have ended just now; wait() below tells.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.0.kill()?;
        self.0.wait()
    }
}

impl Drop for Stopping {
    fn drop(&mut self) {
        let _ = self.stop(Duration::from_secs(3));
    }
}
