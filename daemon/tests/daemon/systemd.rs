//! The two sides of systemd that need no systemd: a socket handed over, and notifications.

use std::path::Path;

use rustix::process::Signal;
use sluice_proto::v1;
use tempfile::TempDir;
use testkit::not_run;
use tokio::{net::UnixDatagram, process::Command};

use crate::support::{Daemon, command, isolate, within};

const ACTIVATE: &str = "/usr/bin/systemd-socket-activate";

#[tokio::test]
async fn a_socket_is_taken_over_and_left_in_place() {
    if !Path::new(ACTIVATE).exists() {
        not_run(&format!("{ACTIVATE} is not here"));
        return;
    }
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("activated");
    let mut command = isolate(Command::new(ACTIVATE), folder.path());
    command
        .arg("--listen")
        .arg(&socket)
        .arg(env!("CARGO_BIN_EXE_sluiced"));
    let mut daemon = Daemon::spawn(folder, socket.clone(), command).await;
    // Says the socket that was handed over, not the one that it would have opened.
    let server = daemon.snapshot().await.daemon.unwrap();
    assert_eq!(server.socket_path, socket.to_str().unwrap());
    daemon.signal(Signal::TERM);
    let (status, _, log) = daemon.ended().await;
    assert!(status.success(), "{log}");
    assert!(socket.exists(), "it is systemd's");
}

#[tokio::test]
async fn systemd_is_told_of_each_turn() {
    let folder = TempDir::new().unwrap();
    let notify = folder.path().join("notify");
    let receiver = UnixDatagram::bind(&notify).unwrap();
    let socket = folder.path().join("s");
    let mut command = command(folder.path());
    command
        .env("NOTIFY_SOCKET", &notify)
        .env("WATCHDOG_USEC", "200000")
        .arg("--socket")
        .arg(&socket);
    let mut daemon = Daemon::spawn(folder, socket, command).await;
    let mut heard = String::new();
    let mut hear = async |words: &str| {
        within(words, async {
            while !heard.contains(words) {
                let mut buffer = [0; 1024];
                let length = receiver.recv(&mut buffer).await.unwrap();
                heard.push_str(str::from_utf8(&buffer[..length]).unwrap());
                heard.push('\n');
            }
        })
        .await;
    };
    hear("READY=1").await;
    hear("STATUS=serving sluice-demo").await;
    hear("WATCHDOG=1").await;
    assert_eq!(
        daemon.model_state(v1::ModelState::Ready).await.name,
        "sluice-demo"
    );
    daemon.signal(Signal::TERM);
    hear("STOPPING=1").await;
    let (status, _, log) = daemon.ended().await;
    assert!(status.success(), "{log}");
}
