//! A daemon's clock that a test sets, by libfaketime.

use std::{
    fs,
    path::{Path, PathBuf},
};

use sluice_proto::v1;
use tempfile::TempDir;
use testkit::certificates::{Validity, write};
use tokio::process::Command;

use super::{
    Daemon, command,
    tls::{NAMES, ReachableDaemon},
};

/// What says that it is not here.
pub(crate) const MISSING: &str = "libfaketime is not here; on Debian: apt-get install faketime";

/// Days to jump: as far as certificates of tests count, and further than anything waits.
pub(crate) const JUMPS: [i32; 4] = [400, -400, 3650, 0];

/// A clock in a file.
pub(crate) struct SetClock {
    library: PathBuf,
    file: PathBuf,
}

impl SetClock {
    /// A daemon that goes by one, ready to generate; by the system's where the library is not here.
    pub(crate) async fn daemon(arguments: &[&str]) -> (ReachableDaemon, Option<Self>) {
        let (files, authority, flags) = ReachableDaemon::files(&NAMES, Validity::Now);
        let clock = Self::new(files.path());
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("s");
        let mut command = command(folder.path());
        if let Some(clock) = &clock {
            clock.put_into(&mut command);
        }
        command
            .arg("--socket")
            .arg(&socket)
            .args(flags)
            .args(arguments);
        let daemon = Daemon::spawn(folder, socket, command).await;
        daemon.model_state(v1::ModelState::Ready).await;
        (ReachableDaemon::of(daemon, authority, files), clock)
    }

    /// A right one, in this folder; `None` without the library.
    fn new(folder: &Path) -> Option<Self> {
        Some(Self {
            library: library()?,
            file: write(&folder.join("clock"), "+0"),
        })
    }

    /// Has the command's program go by it.
    fn put_into(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_NO_CACHE", "1")
            // A clock that is set is one of two. The other name is that of older versions.
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1");
    }

    /// Sets it to the right time and so many days.
    pub(crate) fn jump(&self, days: i32) {
        write(&self.file, &format!("{days:+}d"));
    }
}

/// Where Debian and others have the library, in a folder named after the processor.
fn library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?;
    let mut folders = folders.filter_map(|entry| Some(entry.ok()?.path()));
    folders.find_map(|folder| {
        let library = folder.join("faketime/libfaketimeMT.so.1");
        library.exists().then_some(library)
    })
}
