//! Many who want something at once: each gets a turn.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sluice_proto::v1::{self, optimizer_service_client::OptimizerServiceClient};
use tonic::transport::Channel;

use crate::support::{Daemon, done, generate, level, tokens};

/// How many changes a flood has.
const CHANGES: usize = 17_000;
/// How long it lasts at most.
const FLOOD: Duration = Duration::from_secs(10);

/// Sends changes one after another, without reading what becomes of them.
async fn flood(mut client: OptimizerServiceClient<Channel>, count: usize) -> usize {
    let begun = Instant::now();
    let levels = [
        v1::Level::Moderate,
        v1::Level::Standard,
        v1::Level::Aggressive,
    ];
    let mut sent = 0;
    while sent < count && begun.elapsed() < FLOOD {
        // Most are refused; what becomes of them does not matter here.
        let _ = client.apply(level(levels[sent % levels.len()])).await;
        sent += 1;
    }
    sent
}

/// Floods the daemon over so many connections, and asks for answers meanwhile and afterwards.
async fn answers_beside_a_flood(connections: usize) {
    let daemon = Daemon::embedded().await;
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.push(daemon.optimizer().await);
    }
    let floods = clients.into_iter();
    let floods: Vec<_> = floods
        .map(|client| tokio::spawn(flood(client, CHANGES / connections)))
        .collect();
    let mut answers = 0;
    while !floods.iter().all(tokio::task::JoinHandle::is_finished) {
        let asked = Instant::now();
        let events = generate(&daemon, tokens(&[1, 2, 3], 4)).await.unwrap();
        assert_eq!(done(&events).token_ids.len(), 4);
        assert!(
            asked.elapsed() < Duration::from_secs(5),
            "{:?}",
            asked.elapsed()
        );
        answers += 1;
    }
    assert!(answers > 2, "{answers} answers during the flood");
    let sent: usize = (join_all(floods).await.into_iter())
        .map(Result::unwrap)
        .sum();
    let asked = Instant::now();
    generate(&daemon, tokens(&[1, 2, 3], 4)).await.unwrap();
    let took = asked.elapsed();
    println!(
        "{sent} changes over {connections} connections, {answers} answers meanwhile, then one in {took:?}"
    );
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_without_end_leave_turns_to_requests() {
    answers_beside_a_flood(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_without_end_from_many_leave_turns_to_requests() {
    answers_beside_a_flood(32).await;
}
