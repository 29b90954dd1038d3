//! A clock that jumps. Certificates alone depend on what time it is; whatever waits, waits by a clock that nobody sets.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use sluice_proto::v1::{
    self, generation_event::Event, telemetry_service_client::TelemetryServiceClient,
};
use tempfile::TempDir;
use testkit::{
    certificates::{Validity, write},
    not_run,
};

use crate::support::{
    Daemon, checkpoints, command, done, long, next,
    tls::{NAMES, ReachableDaemon},
    tokens, within,
};

/// Where Debian and others have the library, in a folder named after the processor.
fn library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?;
    let mut folders = folders.filter_map(|entry| Some(entry.ok()?.path()));
    folders.find_map(|folder| {
        let library = folder.join("faketime/libfaketimeMT.so.1");
        library.exists().then_some(library)
    })
}

/// A daemon whose clock is set by a file.
struct Jumping {
    reachable: ReachableDaemon,
    clock: PathBuf,
}

impl Jumping {
    async fn start(library: &Path) -> Self {
        let (files, authority, flags) = ReachableDaemon::files(&NAMES, Validity::Now);
        let clock = write(&files.path().join("clock"), "+0");
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("s");
        let mut command = command(folder.path());
        command
            .env("LD_PRELOAD", library)
            .env("FAKETIME_TIMESTAMP_FILE", &clock)
            .env("FAKETIME_NO_CACHE", "1")
            // A clock that is set is one of two. The other name is that of older versions.
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1")
            .arg("--socket")
            .arg(&socket)
            .arg("--model")
            .arg(checkpoints::slow())
            .args(["--idle-unload", "1h", "--roles", "generate=*,cert:*"])
            .args(flags);
        let daemon = Daemon::spawn(folder, socket, command).await;
        daemon.model_state(v1::ModelState::Ready).await;
        Self {
            reachable: ReachableDaemon::of(daemon, authority, files),
            clock,
        }
    }

    /// Sets the daemon's clock to the right one and so many days.
    fn jump(&self, days: i32) {
        write(&self.clock, &format!("{days:+}d"));
    }
}

/// As far as certificates of tests count, and further than anything waits.
const JUMPS: [i32; 4] = [400, -400, 3650, 0];

#[tokio::test]
async fn a_clock_that_jumps_ends_nothing() {
    let Some(library) = library() else {
        return not_run("libfaketime is not here; on Debian: apt-get install faketime");
    };
    let jumping = Jumping::start(&library).await;
    let daemon = &jumping.reachable.daemon;
    let client = jumping
        .reachable
        .authority
        .client(&["a.example"], Validity::Now);
    let kept = jumping.reachable.connect(Some(&client)).await.unwrap();
    let mut kept = TelemetryServiceClient::new(kept);

    // During a generation, and with one that has a deadline.
    let (_, mut stream) = daemon.running(long()).await;
    let mut limited = tonic::Request::new(tokens(&[1, 2, 3], 8));
    limited.set_timeout(Duration::from_secs(3600));
    let mut generation = daemon.generation().await;
    let limited = generation.generate(limited).await.unwrap();
    for days in JUMPS {
        jumping.jump(days);
        for _ in 0..3 {
            loop {
                let event = within("a pass", next(&mut stream)).await.unwrap();
                if matches!(event.expect("it goes on"), Event::PassDone(_)) {
                    break;
                }
            }
        }
        // What has been connected stays so, whatever its certificate's time.
        let snapshot = kept.get_snapshot(v1::GetSnapshotRequest {}).await.unwrap();
        let snapshot = snapshot.into_inner().snapshot.unwrap();
        let up_ms = snapshot.daemon.unwrap().uptime_ms;
        assert!(up_ms < 3_600_000, "{days} days: up {up_ms} ms");
        // Who comes now shows a certificate, which is of its time.
        let comes = jumping.reachable.connect(Some(&client)).await;
        assert_eq!(comes.is_ok(), days == 0, "{days} days");
    }
    let mut limited = limited.into_inner();
    let events = crate::support::rest(&mut limited).await.unwrap();
    done(&events);
    drop(stream);

    // While nothing runs: the model stays for an hour of the other clock.
    for days in JUMPS {
        jumping.jump(days);
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let model = daemon.snapshot().await.model.unwrap();
        assert_eq!(model.state(), v1::ModelState::Ready, "{days} days");
    }
    kept.get_snapshot(v1::GetSnapshotRequest {}).await.unwrap();
    let log = daemon.log();
    assert!(!log.contains("panicked") && !log.contains("stuck"), "{log}");
}
