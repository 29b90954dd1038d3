//! What an administrator sees of the daemon from outside: its log and its totals. Neither has prompts or answers.

use serde_json::Value;
use sluice_proto::v1::{self, generation_event};

use crate::support::{Daemon, chat, done, generate};

#[tokio::test]
async fn a_log_of_objects_has_the_requests_ids_and_never_their_texts() {
    // At this level the libraries beneath tell what they do, too.
    let daemon = Daemon::start(&["--log-format", "json", "--log", "trace"]).await;
    daemon.model_state(v1::ModelState::Ready).await;
    let events = generate(&daemon, chat("Quentin buys a xylophone.")).await;
    let events = events.unwrap();
    let (id, text) = (done(&events).request_id, done(&events).text.clone());
    let log = daemon.log();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no object: {line}")))
        .collect();
    let about = lines.iter().filter(|line| line["request"] == id);
    let ended = about.filter(|line| line["message"] == "request ended");
    let ended: Vec<_> = ended.collect();
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0]["level"], "INFO");
    assert!(ended[0]["timestamp"].is_string());
    for secret in ["Quentin", "xylophone", text.unwrap().trim()] {
        assert!(!log.contains(secret), "{secret}");
    }
}

#[tokio::test]
async fn the_instructions_that_compute_are_told() {
    let daemon = Daemon::start(&["--device", "cpu", "--instructions", "portable"]).await;
    daemon.model_state(v1::ModelState::Ready).await;
    let told = daemon.snapshot().await.device.unwrap().instructions;
    assert_eq!(told.as_deref(), Some("portable"));
    let events = generate(&daemon, chat("Tell me a story.")).await.unwrap();
    assert!(done(&events).text.is_some());
}

#[tokio::test]
async fn a_cpu_that_computes_in_bf16_says_so_and_answers_are_not_exact() {
    let daemon = Daemon::start(&["--device", "cpu", "--compute-dtype", "bf16"]).await;
    daemon.model_state(v1::ModelState::Ready).await;
    let device = daemon.snapshot().await.device.unwrap();
    assert_eq!(device.compute_dtype(), v1::Dtype::Bf16);
    let events = generate(&daemon, chat("Tell me a story.")).await.unwrap();
    let started = events.iter().find_map(|event| match event {
        generation_event::Event::Started(started) => Some(started),
        _ => None,
    });
    assert!(!started.unwrap().is_exact && !done(&events).is_exact);
}

#[tokio::test]
async fn totals_count_requests_tokens_and_times() {
    let daemon = Daemon::embedded().await;
    for _ in 0..3 {
        generate(&daemon, chat("Tell me a story.")).await.unwrap();
    }
    let totals = daemon.snapshot().await.totals.unwrap();
    assert_eq!(totals.done_requests, 3);
    assert!(totals.prompt_tokens >= 3 * 5);
    for (name, times, expected) in [
        ("queue", totals.queue_time, 3),
        ("first token", totals.first_token_time, 3),
        ("request", totals.request_time, 3),
        ("pass", totals.pass_time, totals.passes),
        ("waited", totals.pass_waited, totals.passes),
    ] {
        let times = times.unwrap();
        assert_eq!(times.counts.iter().sum::<u64>(), expected, "{name}");
        assert!(times.sum_s >= 0.0, "{name}");
    }
}
