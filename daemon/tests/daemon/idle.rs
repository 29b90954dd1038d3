//! Models that are unloaded, by a call or since nobody asks for them, and come back.

use std::{path::Path, time::Duration};

use sluice_proto::v1;

use crate::support::{Daemon, checkpoints, done, generate, tokens, until, within};

#[tokio::test]
async fn an_unloaded_model_gives_its_memory_back_to_the_system() {
    let slow = checkpoints::slow().to_str().unwrap();
    let daemon = Daemon::with_model(Path::new(slow), &["--device", "cpu"]).await;
    generate(&daemon, tokens(&[1, 2, 3], 8)).await.unwrap();
    let before = daemon.snapshot().await;
    let unload = async || {
        let answer = daemon
            .models()
            .await
            .unload_model(v1::UnloadModelRequest::default())
            .await;
        answer.unwrap().into_inner()
    };
    let went = unload().await;
    assert_eq!(went.model, "slow-checkpoint");
    let weights = before.plan.unwrap().resident_bytes;
    assert!(weights > 20 << 20, "{weights}");
    assert!(went.device_bytes_before - went.device_bytes_after >= weights);
    let resident = (
        went.resident_bytes_before.unwrap(),
        went.resident_bytes_after.unwrap(),
    );
    assert!(
        resident.0 > resident.1 + weights * 9 / 10,
        "{resident:?} for {weights}"
    );
    let after = daemon.snapshot().await;
    assert!(after.model.is_none() && after.plan.is_none());
    let kinds = after.device.unwrap().memory;
    assert!(
        kinds
            .iter()
            .all(|kind| kind.kind() == v1::MemoryKind::Scratch || kind.bytes == 0),
        "{kinds:?}"
    );
    // It was asked for, so it stays away.
    let error = generate(&daemon, tokens(&[1, 2, 3], 8)).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("NO_MODEL"));
    assert_eq!(unload().await.model, "");
}

#[tokio::test]
async fn an_idle_model_goes_and_the_next_request_has_it_back() {
    let slow = checkpoints::slow().to_str().unwrap();
    let arguments = ["--device", "cpu", "--model", slow, "--idle-unload", "300ms"];
    let daemon = Daemon::start(&arguments).await;
    daemon.model_state(v1::ModelState::Asleep).await;
    until("a line in the log", || async {
        daemon.log().contains("unloaded the idle model")
    })
    .await;
    let kinds = daemon.snapshot().await.device.unwrap().memory;
    assert!(
        kinds
            .iter()
            .all(|kind| kind.kind() == v1::MemoryKind::Scratch || kind.bytes == 0),
        "{kinds:?}"
    );

    // Two at once wake it once, and are told how far it is.
    let (first, second) = tokio::join!(
        generate(&daemon, tokens(&[1, 2, 3], 8)),
        generate(&daemon, tokens(&[1, 2, 3], 8))
    );
    let (first, second) = (first.unwrap(), second.unwrap());
    let is_loading = |kind: &v1::generation_event::Event| matches!(kind, v1::generation_event::Event::Loading(loading) if loading.model == "slow-checkpoint");
    // The second may have come when it was awake again.
    assert!(first.iter().any(is_loading) || second.iter().any(is_loading));
    assert_eq!(daemon.log().matches("a request wakes the model").count(), 1);
    assert_eq!(done(&first).token_ids, done(&second).token_ids);

    daemon.model_state(v1::ModelState::Asleep).await;
    let score = v1::ScoreRequest {
        prompt: Some(v1::score_request::Prompt::Tokens(v1::TokenIds {
            ids: vec![1, 2],
        })),
        answer: Some(v1::score_request::Answer::AnswerTokens(v1::TokenIds {
            ids: vec![3],
        })),
        ..Default::default()
    };
    let mut stream = daemon
        .generation()
        .await
        .score(score)
        .await
        .unwrap()
        .into_inner();
    assert!(within("a score", stream.message()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_running_request_keeps_its_model() {
    let slow = checkpoints::slow().to_str().unwrap();
    let arguments = ["--device", "cpu", "--model", slow, "--idle-unload", "1ms"];
    let daemon = Daemon::start(&arguments).await;
    daemon.model_state(v1::ModelState::Asleep).await;
    // Far longer than the time without requests.
    let events = generate(&daemon, tokens(&[1, 2, 3], 96)).await.unwrap();
    assert_eq!(done(&events).token_ids.len(), 96);
    tokio::time::timeout(
        Duration::from_secs(60),
        daemon.model_state(v1::ModelState::Asleep),
    )
    .await
    .unwrap();
}
