//! The socket's path: taken, stale, in the way, private.

use std::{
    fs,
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::Path,
};

use rustix::process::Signal;
use sluice_shared::{address::SYSTEM_SOCKET, exit};
use tempfile::TempDir;
use testkit::not_run;

use crate::support::{Daemon, command, run, until};

#[tokio::test]
async fn a_second_daemon_leaves_the_first_alone() {
    let first = Daemon::start(&[""; 0]).await;
    let folder = TempDir::new().unwrap();
    let socket = first.socket.to_str().unwrap();
    let second = run(folder.path(), &["--socket", socket]).await;
    assert_eq!(second.status.code(), Some(exit::FAILURE.into()));
    let message = String::from_utf8_lossy(&second.stderr);
    assert!(
        message.contains(&format!("another sluiced answers on {socket}")),
        "{message}"
    );
    assert!(message.contains("hint: "), "{message}");
    assert_eq!(first.snapshot().await.daemon.unwrap().socket_path, socket);
}

#[tokio::test]
async fn a_socket_whose_file_is_gone_comes_back_and_no_second_daemon_starts() {
    let first = Daemon::start(&[""; 0]).await;
    let (_channel, socket) = (first.channel().await, first.socket.to_str().unwrap());
    fs::remove_file(&first.socket).unwrap();
    let folder = TempDir::new().unwrap();
    let second = run(folder.path(), &["--socket", socket]).await;
    assert_eq!(second.status.code(), Some(exit::FAILURE.into()));
    let message = String::from_utf8_lossy(&second.stderr);
    assert!(message.contains("another sluiced answers"), "{message}");
    // The file is there before anybody listens.
    until("the socket", || async {
        UnixStream::connect(&first.socket).is_ok()
    })
    .await;
    assert_eq!(first.snapshot().await.daemon.unwrap().socket_path, socket);
    assert!(first.log().contains("the socket's file was gone"));
}

#[tokio::test]
async fn a_stale_socket_is_replaced() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("s");
    drop(UnixListener::bind(&socket).unwrap());
    let mut command = command(folder.path());
    command.arg("--socket").arg(&socket);
    let daemon = Daemon::spawn(folder, socket, command).await;
    let mode = fs::metadata(&daemon.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
}

#[tokio::test]
async fn a_plain_file_is_never_removed() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("precious");
    fs::write(&file, "work").unwrap();
    let output = run(folder.path(), &["--socket", "precious"]).await;
    assert_eq!(output.status.code(), Some(exit::FAILURE.into()));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        message.contains("is in the way and is not a socket"),
        "{message}"
    );
    assert_eq!(fs::read(&file).unwrap(), b"work");
}

#[tokio::test]
async fn without_a_word_the_socket_lies_in_the_users_private_folder() {
    if Path::new(SYSTEM_SOCKET).exists() {
        not_run(&format!("{SYSTEM_SOCKET}, which comes first, is here"));
        return;
    }
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("sluice/sluice.sock");
    let command = command(folder.path());
    let mut daemon = Daemon::spawn(folder, socket.clone(), command).await;
    let place = fs::metadata(socket.parent().unwrap()).unwrap();
    assert_eq!(place.permissions().mode() & 0o777, 0o700);
    daemon.signal(Signal::TERM);
    let (status, _, log) = daemon.ended().await;
    assert!(status.success(), "{log}");
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_killed_daemon_leaves_a_socket_that_the_next_takes_over() {
    let mut daemon = Daemon::start(&[""; 0]).await;
    let socket = daemon.socket.clone();
    daemon.signal(Signal::KILL);
    // Its lock goes with the process, after its socket.
    daemon.ended().await;
    assert!(socket.exists());
    let folder = TempDir::new().unwrap();
    let mut command = command(folder.path());
    command.arg("--socket").arg(&socket);
    let next = Daemon::spawn(folder, socket, command).await;
    assert!(next.snapshot().await.daemon.is_some());
}
