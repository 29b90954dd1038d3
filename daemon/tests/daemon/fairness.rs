//! Many who want something at once: each gets a turn.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sluice_proto::{
    client::CallError,
    v1::{
        self, generation_service_client::GenerationServiceClient,
        optimizer_service_client::OptimizerServiceClient,
    },
};
use tonic::transport::Channel;

use crate::support::{
    Daemon, checkpoints, done, generate, level, long, many_descriptors, rest, tokens,
};

/// How many changes a flood has.
const CHANGES: usize = 17_000;
/// How long it lasts at most.
const FLOOD: Duration = Duration::from_secs(10);
/// So many changes are a flood, on the slowest machine.
const CHANGES_MIN: usize = 200;
/// An answer takes less during the flood, and after it; much less on a machine that does nothing else.
const ANSWER_DURING: Duration = Duration::from_secs(10);
const ANSWER_AFTER: Duration = Duration::from_secs(3);

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
    let mut client = daemon.generation().await;
    let (mut answers, mut longest) = (0, Duration::ZERO);
    while !floods.iter().all(tokio::task::JoinHandle::is_finished) {
        longest = longest.max(answer(&mut client).await);
        answers += 1;
    }
    let sent: usize = (join_all(floods).await.into_iter())
        .map(Result::unwrap)
        .sum();
    let after = answer(&mut client).await;
    println!(
        "{sent} changes over {connections} connections, {answers} answers meanwhile, each in {longest:?} at most, then one in \
         {after:?}"
    );
    assert!(sent >= CHANGES_MIN, "{sent} changes");
    assert!(answers > 2, "{answers} answers during the flood");
    assert!(longest < ANSWER_DURING, "{longest:?}");
    assert!(after < ANSWER_AFTER, "{after:?}");
}

/// How long an answer takes, over a connection that is there already.
async fn answer(client: &mut GenerationServiceClient<Channel>) -> Duration {
    let asked = Instant::now();
    let mut events = client
        .generate(tokens(&[1, 2, 3], 4))
        .await
        .unwrap()
        .into_inner();
    let events: Result<Vec<_>, CallError> = rest(&mut events).await;
    assert_eq!(done(&events.unwrap()).token_ids.len(), 4);
    asked.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "seconds of both cores: cargo ci"]
async fn changes_without_end_leave_turns_to_requests() {
    answers_beside_a_flood(1).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "seconds of both cores: cargo ci"]
async fn changes_without_end_from_many_leave_turns_to_requests() {
    answers_beside_a_flood(32).await;
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn more_than_the_queue_holds_wait_for_room_and_are_served() {
    many_descriptors();
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &["--queue", "4"]).await;
    // Over a connection each: more than the daemon takes at once, so that some wait in the system's backlog.
    let answers = (0..300).map(|_| generate(&daemon, tokens(&[1, 2, 3], 32)));
    for answer in join_all(answers).await {
        assert_eq!(done(&answer.unwrap()).token_ids.len(), 32);
    }
    assert_eq!(daemon.snapshot().await.totals.unwrap().refused_requests, 0);
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn a_connection_with_many_long_requests_leaves_turns_to_another() {
    let arguments = ["--threads", "1", "--parallel", "1"];
    let daemon = Daemon::with_model(checkpoints::slow(), &arguments).await;
    let mut client = daemon.generation().await;
    let mut greedy = Vec::new();
    for _ in 0..40 {
        greedy.push(client.generate(long()).await.unwrap().into_inner());
    }
    let mut other = daemon.generation().await;
    let before = daemon.snapshot().await.totals.unwrap().done_requests;
    answer(&mut other).await;
    // Beside it the one that ran is done, and perhaps the next, if that began before this one came.
    let totals = daemon.snapshot().await.totals.unwrap();
    assert!(totals.done_requests <= before + 3, "{before}, {totals:?}");
    // Some were still there to go before.
    assert!(totals.done_requests < 40, "{totals:?}");
    // The rest of the first is still there to read.
    let first: Result<_, CallError> = rest(&mut greedy[0]).await;
    assert_eq!(done(&first.unwrap()).token_ids.len(), 256);
}
