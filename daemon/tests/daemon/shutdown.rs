//! Ending: what runs is drained within a bound, and the bound is kept.

use std::time::Duration;

use rustix::process::Signal;
use sluice_proto::{
    client::CallError,
    v1::{self, generation_event::Event},
};
use tokio::process::Command;
use tonic::Code;

use crate::support::{self, Daemon, RequestOptions, checkpoints, done, long, rest, tokens, until};

fn short(length: u32) -> v1::GenerateRequest {
    tokens(&[1, 2, 3], length)
        .sampled(|sampling| sampling.eos_policy = v1::EosPolicy::Suppress.into())
}

async fn slow(drain_seconds: &str) -> Daemon {
    let arguments = ["--threads", "1", "--drain-seconds", drain_seconds];
    Daemon::with_model(checkpoints::slow(), &arguments).await
}

#[tokio::test]
async fn what_runs_is_finished_and_nothing_new_is_taken() {
    let mut daemon = slow("55").await;
    let (_, mut stream) = daemon.running(short(64)).await;
    let mut late = daemon.generation().await;
    daemon.signal(Signal::TERM);
    until("the drain", || async {
        daemon.snapshot().await.daemon.unwrap().state() == v1::DaemonState::Draining
    })
    .await;
    let refused = CallError::from(late.generate(short(8)).await.unwrap_err());
    assert_eq!(refused.code, Code::Unavailable);
    assert_eq!(refused.reason.as_deref(), Some("DRAINING"));

    let events = rest(&mut stream).await.unwrap();
    assert_eq!(done(&events).finish_reason(), v1::FinishReason::Length);
    let notices = events
        .iter()
        .filter(|event| matches!(event, Event::Notice(_)));
    assert_eq!(notices.count(), 1, "the request is told");
    let socket = daemon.socket.clone();
    let (status, _, log) = daemon.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_terminal_that_closes_ends_the_daemon_as_gently() {
    let mut daemon = slow("55").await;
    let (_, mut stream) = daemon.running(short(32)).await;
    // A shell and the kernel may both send it.
    daemon.signal(Signal::HUP);
    daemon.signal(Signal::HUP);
    let events = rest(&mut stream).await.unwrap();
    assert_eq!(done(&events).finish_reason(), v1::FinishReason::Length);
    let (status, _, log) = daemon.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

#[tokio::test]
async fn a_daemon_that_was_told_to_ignore_a_closed_terminal_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let mut shell = support::isolate(Command::new("sh"), folder.path());
    let script = "trap '' HUP; exec \"$0\" --socket s";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_sluiced")]);
    let daemon = Daemon::spawn(folder, socket, shell).await;
    daemon.signal(Signal::HUP);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let state = daemon.snapshot().await.daemon.unwrap().state();
    assert_ne!(state, v1::DaemonState::Draining);
}

#[tokio::test]
async fn what_takes_too_long_is_cancelled_in_the_end() {
    let mut daemon = slow("1").await;
    let (_, mut stream) = daemon.running(long()).await;
    daemon.signal(Signal::INT);
    let events = rest(&mut stream).await.unwrap();
    assert_eq!(done(&events).finish_reason(), v1::FinishReason::Cancelled);
    let (status, took, log) = daemon.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(log.contains("time ran out, cancelling"), "{log}");
}

#[tokio::test]
async fn a_reader_that_does_not_read_does_not_hold_the_end_up() {
    let mut daemon = slow("0").await;
    let (_, _unread) = daemon.running(long()).await;
    daemon.signal(Signal::TERM);
    let (status, took, log) = daemon.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let mut daemon = slow("3000").await;
    let (_, _stream) = daemon.running(long()).await;
    daemon.signal(Signal::TERM);
    until("the drain", || async {
        daemon.log().contains("waiting for requests")
    })
    .await;
    let socket = daemon.socket.clone();
    daemon.signal(Signal::TERM);
    let (status, took, log) = daemon.ended().await;
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert!(!socket.exists());
}
