//! A crowd of clients that never rests: for `cargo soak`.

use std::{
    env,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use sluice_proto::v1;
use tonic::Code;

use crate::support::{self, Daemon, RequestOptions, apply, chat, done, generate, next, until};

const MIB: u64 = 1 << 20;
/// What may be resident beyond what is held, as in `memory`, and what this many clients leave in buffers and lists.
const BEYOND_MAX: u64 = 64 * MIB;
const CLIENTS: u64 = 12;
const QUESTION: &str = "Tell me a story about a fox.";

/// What happened, for people to see that it did.
#[derive(Debug, Default)]
struct Counts {
    answered: AtomicU64,
    refused: AtomicU64,
    rude: AtomicU64,
    switched: AtomicU64,
}

/// One client's calls until the deadline. Odd ones are rude: they leave in the middle of an answer.
async fn client(
    daemon: &Daemon,
    number: u64,
    deadline: Instant,
    expected: &[u32],
    counts: &Counts,
) {
    while Instant::now() < deadline {
        if number == 0 {
            // Between levels that change no answer.
            let level = match counts.switched.fetch_add(1, Ordering::Relaxed) % 2 {
                0 => v1::Level::Mild,
                _ => v1::Level::Standard,
            };
            apply(daemon, support::level(level)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
            continue;
        }
        if number % 2 == 1 {
            let seed = counts.rude.fetch_add(1, Ordering::Relaxed);
            let request = chat(QUESTION).sampled(|sampling| sampling.seed = Some(seed));
            if let Ok(answer) = daemon.generation().await.generate(request).await {
                let mut stream = answer.into_inner();
                for _ in 0..seed % 5 {
                    // A refusal is an end as good as any.
                    if !matches!(next(&mut stream).await, Ok(Some(_))) {
                        break;
                    }
                }
            }
            continue;
        }
        match generate(daemon, chat(QUESTION)).await {
            Ok(events) => {
                assert_eq!(done(&events).token_ids, expected, "client {number}");
                counts.answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) if error.code == Code::ResourceExhausted => {
                counts.refused.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("client {number}: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "SLUICE_LOAD_MINUTES says how long: cargo soak"]
async fn a_crowd_of_clients_gets_the_same_answers_and_leaves_nothing_behind() {
    let minutes: f64 = env::var("SLUICE_LOAD_MINUTES").map_or(1.0, |text| text.parse().unwrap());
    let daemon = Daemon::embedded().await;
    let expected = generate(&daemon, chat(QUESTION)).await.unwrap();
    let expected = &done(&expected).token_ids;
    let held_before = daemon.snapshot().await.device.unwrap().used_bytes;
    let deadline = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    let counts = Counts::default();
    let clients = (0..CLIENTS).map(|number| client(&daemon, number, deadline, expected, &counts));
    futures_util::future::join_all(clients).await;
    until("an idle daemon", async || {
        let operations = daemon.snapshot().await.operations;
        operations
            .iter()
            .all(|operation| operation.ended_unix_ms.is_some())
    })
    .await;
    let snapshot = daemon.snapshot().await;
    let (held, resident) = (
        snapshot.device.unwrap().used_bytes,
        snapshot.host.unwrap().resident_bytes.unwrap(),
    );
    println!(
        "{counts:?}; {} MiB resident, {} held",
        resident / MIB,
        held / MIB
    );
    assert!(resident <= held + BEYOND_MAX);
    assert!(
        held <= held_before + BEYOND_MAX,
        "{held} bytes are held, {held_before} before"
    );
    assert!(counts.answered.into_inner() > 0);
}
