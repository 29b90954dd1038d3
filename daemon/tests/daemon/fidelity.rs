//! Measuring how close levels are to the checkpoint's own weights.

use std::time::Duration;

use sluice_proto::{
    client::CallError,
    v1::{self, measure_fidelity_request::Samples, operation::Outcome},
};
use tonic::{Code, Request, Streaming};

use crate::support::{Daemon, checkpoints, generate, rest_of, tokens, until, within};

const STORIES: &str = include_str!("../../model/sample.txt");

fn texts(texts: &[&str]) -> v1::MeasureFidelityRequest {
    let texts = texts.iter().map(|text| (*text).to_owned()).collect();
    v1::MeasureFidelityRequest {
        samples: Some(Samples::Texts(v1::SampleTexts { texts })),
        seed: Some(3),
        ..Default::default()
    }
}

fn ids(samples: &[Vec<u32>]) -> v1::MeasureFidelityRequest {
    let sample = |ids: &Vec<u32>| v1::TokenSample { ids: ids.clone() };
    let samples = samples.iter().map(sample).collect();
    v1::MeasureFidelityRequest {
        samples: Some(Samples::Tokens(v1::SampleTokens { samples })),
        ..texts(&[])
    }
}

fn at(level: v1::Level, request: v1::MeasureFidelityRequest) -> v1::MeasureFidelityRequest {
    v1::MeasureFidelityRequest {
        level: level.into(),
        ..request
    }
}

/// A measurement that takes seconds on [`checkpoints::slow`].
fn long() -> v1::MeasureFidelityRequest {
    let samples = vec![(1..400).collect(); 200];
    v1::MeasureFidelityRequest {
        max_samples: Some(200),
        ..at(v1::Level::Moderate, ids(&samples))
    }
}

async fn start(
    daemon: &Daemon,
    request: impl tonic::IntoRequest<v1::MeasureFidelityRequest>,
) -> Result<Streaming<v1::MeasureFidelityResponse>, CallError> {
    let answer = daemon.optimizer().await.measure_fidelity(request).await?;
    Ok(answer.into_inner())
}

/// Reads until the first sign of progress.
async fn id_of(stream: &mut Streaming<v1::MeasureFidelityResponse>) -> u64 {
    loop {
        let answer = within("progress", stream.message()).await.unwrap();
        let operation = answer.unwrap().operation.unwrap();
        assert!(operation.is_active(), "it ended too soon: {operation:?}");
        if operation.progress.is_some_and(|step| step.done > 0) {
            return operation.operation_id;
        }
    }
}

/// The last picture of a measurement, and its result.
async fn measured(
    daemon: &Daemon,
    request: impl tonic::IntoRequest<v1::MeasureFidelityRequest>,
) -> Result<(v1::Operation, v1::FidelityResult), CallError> {
    let mut pictures = rest_of(start(daemon, request).await?).await?;
    let steps = pictures.iter().filter_map(|one| one.progress.as_ref());
    let steps: Vec<u64> = steps.map(|step| step.done).collect();
    assert!(steps.is_sorted(), "{steps:?}");
    let last = pictures.pop().expect("there is one at once");
    let step = last.progress.as_ref().expect("progress was told");
    assert!(step.done > 0 && Some(step.done) == step.total);
    match last.outcome {
        Some(Outcome::Fidelity(result)) => Ok((last, result)),
        other => panic!("{other:?}"),
    }
}

async fn measure(
    daemon: &Daemon,
    request: impl tonic::IntoRequest<v1::MeasureFidelityRequest>,
) -> Result<v1::FidelityResult, CallError> {
    Ok(measured(daemon, request).await?.1)
}

#[tokio::test]
async fn fewer_bits_are_further_from_the_checkpoints_own_weights() {
    let daemon = Daemon::embedded().await;
    let before = daemon.snapshot().await;
    let request = v1::MeasureFidelityRequest {
        max_samples: Some(12),
        ..texts(&[STORIES])
    };
    let own = measure(&daemon, request.clone()).await.unwrap();
    assert_eq!(
        (own.level(), own.samples, own.seed),
        (v1::Level::Standard, 12, 3)
    );
    assert!(own.mean_kl_nats.abs() < 1e-9 && own.top_agreement == 1.0);
    assert_eq!(own.source_bound_nats, own.level_bound_nats);
    // The model knows its language: of 1,024 tokens, a blind guess costs 6.9 nats.
    assert!(own.source_bound_nats > 0.0 && own.source_bound_nats < 4.0);

    let moderate = measure(&daemon, at(v1::Level::Moderate, request.clone()))
        .await
        .unwrap();
    let (operation, aggressive) = measured(&daemon, at(v1::Level::Aggressive, request))
        .await
        .unwrap();
    assert_eq!(aggressive.level(), v1::Level::Aggressive);
    assert_eq!(aggressive.rows, own.rows, "the same masks");
    assert_eq!(aggressive.source_bound_nats, own.source_bound_nats);
    assert!(moderate.mean_kl_nats > 0.0);
    assert!(aggressive.mean_kl_nats > 2.0 * moderate.mean_kl_nats);
    assert!(aggressive.top_agreement > 0.5 && aggressive.top_agreement < 1.0);
    assert!(operation.elapsed_ms > 0.0);

    let line = daemon.request(operation.operation_id).await;
    assert_eq!(line.kind(), v1::OperationKind::MeasureFidelity);
    assert_eq!(line.request_detail().level(), v1::Level::Aggressive);
    assert_eq!(line.state(), v1::OperationState::Done);
    let watch = v1::WatchGenerationRequest {
        operation_id: operation.operation_id,
    };
    let refused = daemon.generation().await.watch_generation(watch).await;
    let refused = CallError::from(refused.unwrap_err());
    assert_eq!(refused.reason.as_deref(), Some("NOT_A_GENERATION"));
    let after = daemon.snapshot().await;
    assert_eq!((after.plan, after.settings), (before.plan, before.settings));
}

#[tokio::test]
async fn what_was_measured_is_listed_for_every_client() {
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let listed = async || {
        let mut client = daemon.optimizer().await;
        let answer = client.list_fidelity(v1::ListFidelityRequest {}).await;
        answer.unwrap().into_inner().measurements
    };
    assert_eq!(listed().await, []);
    let request = || at(v1::Level::Moderate, ids(&[vec![1, 2, 3, 4], vec![5, 6, 7]]));
    let first = measure(&daemon, request()).await.unwrap();
    let all = listed().await;
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].result.as_ref(), Some(&first));
    assert_eq!(all[0].model, "llada-tiny");
    assert!(all[0].parameters > 0 && all[0].measured_unix_ms > 0);
    // The same again takes its place; other samples, or another level, stand beside it.
    let again = measure(&daemon, request()).await.unwrap();
    assert_eq!(listed().await[0].result.as_ref(), Some(&again));
    let other = at(v1::Level::Moderate, ids(&[vec![1, 2, 3, 4]]));
    measure(&daemon, other).await.unwrap();
    let all = listed().await;
    assert_eq!(all.len(), 2);
    assert_ne!(all[0].samples_hash, all[1].samples_hash);
}

#[tokio::test]
async fn each_wrong_measurement_is_explained_and_the_daemon_lives_on() {
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let good = || ids(&[vec![1, 2, 3]]);
    let crowd = v1::MeasureFidelityRequest {
        max_samples: Some(257),
        ..ids(&vec![vec![1]; 300])
    };
    let invalid = Code::InvalidArgument;
    for (request, code, reason, message) in [
        (
            v1::MeasureFidelityRequest::default(),
            invalid,
            "INVALID_FIELD",
            "samples: are missing",
        ),
        (
            texts(&[" \n"]),
            invalid,
            "INVALID_FIELD",
            "texts: have no line that is not blank",
        ),
        (
            texts(&["a fox"]),
            Code::FailedPrecondition,
            "NO_TOKENIZER",
            "the model llada-tiny has no tokenizer and cannot read text",
        ),
        (
            texts(&["x".repeat(2 << 20).as_str()]),
            invalid,
            "TOO_LONG",
            "the request has 2097152 bytes of text; the limit is 1048576",
        ),
        (
            ids(&[vec![1], vec![1; 257]]),
            invalid,
            "INVALID_FIELD",
            "tokens: sample 1 of 257 tokens exceeds the model's context length of 256",
        ),
        (
            ids(&[vec![256]]),
            invalid,
            "UNKNOWN_TOKEN",
            "token id 256 is outside of the vocabulary of 256 tokens",
        ),
        (
            crowd,
            invalid,
            "TOO_MANY_SAMPLES",
            "257 texts exceed the limit of 256 for one fidelity measurement",
        ),
        (
            v1::MeasureFidelityRequest {
                max_samples: Some(0),
                ..good()
            },
            invalid,
            "INVALID_FIELD",
            "max_samples: must be at least 1, not 0",
        ),
    ] {
        let error = measure(&daemon, request).await.unwrap_err();
        assert_eq!(
            (error.code, error.reason.as_deref(), error.message.as_str()),
            (code, Some(reason), message)
        );
    }
    assert_eq!(daemon.snapshot().await.totals.unwrap().refused_requests, 8);
    let unknown = v1::MeasureFidelityRequest {
        level: 99,
        ..good()
    };
    let unknown = measure(&daemon, unknown).await.unwrap_err();
    assert_eq!(unknown.message, "level: has no value 99");
    // Ids need no tokenizer.
    let result = measure(&daemon, good()).await.unwrap();
    assert_eq!((result.samples, result.rows > 0), (1, true));
}

#[tokio::test]
async fn mild_of_a_plain_folder_loses_nothing() {
    let cache = tempfile::TempDir::new().unwrap();
    let cache = format!("--weight-cache={}", cache.path().display());
    let daemon = Daemon::with_model(checkpoints::slow(), &[&cache]).await;
    let result = measure(&daemon, at(v1::Level::Mild, ids(&[vec![1, 2, 3]])))
        .await
        .unwrap();
    assert_eq!(result.level(), v1::Level::Mild);
    assert!(result.mean_kl_nats.abs() < 1e-9, "{result:?}");
    assert_eq!(
        daemon.snapshot().await.plan.unwrap().level(),
        v1::Level::Standard
    );
    generate(&daemon, tokens(&[1, 2], 8)).await.unwrap();
}

#[tokio::test]
async fn a_lost_caller_stops_its_measurement_and_the_level_is_as_before() {
    let daemon = Daemon::with_model(checkpoints::slow(), &["--threads", "1"]).await;
    let before = daemon.snapshot().await;
    let mut stream = start(&daemon, long()).await.unwrap();
    let id = id_of(&mut stream).await;
    drop(stream);
    until("the cancel", || async {
        daemon.request(id).await.state() == v1::OperationState::Cancelled
    })
    .await;
    assert!(daemon.request(id).await.request_detail().passes < 400);
    generate(&daemon, tokens(&[1, 2], 8)).await.unwrap();
    let after = daemon.snapshot().await;
    assert_eq!((after.plan, after.settings), (before.plan, before.settings));

    // Cancelled by its id, and by its deadline.
    let mut stream = start(&daemon, long()).await.unwrap();
    let id = id_of(&mut stream).await;
    assert!(daemon.cancel(id).await.unwrap());
    let error = rest_of(stream).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("CANCELLED"));

    let mut hasty = Request::new(long());
    hasty.set_timeout(Duration::from_secs(3));
    let error = measure(&daemon, hasty).await.unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded);
}
