//! Health, reflection, telemetry; and callers that are not well-behaved.

use std::time::Duration;

use rustix::process::Signal;
use sluice_proto::v1::{self, telemetry_service_client::TelemetryServiceClient};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::Instant,
};
use tokio_stream::StreamExt;
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use crate::support::{Daemon, checkpoints, generate, long, tokens, until, within};

async fn health(daemon: &Daemon, service: &str) -> ServingStatus {
    let mut client = HealthClient::new(daemon.channel().await);
    let service = service.to_owned();
    let answer = client.check(HealthCheckRequest { service }).await;
    answer.unwrap().into_inner().status()
}

#[tokio::test]
async fn health_follows_the_model() {
    let empty = tempfile::TempDir::new().unwrap();
    let daemon = Daemon::start(&["--model", empty.path().to_str().unwrap()]).await;
    daemon.model_state(v1::ModelState::Failed).await;
    assert_eq!(health(&daemon, "").await, ServingStatus::Serving);
    let generation = "sluice.v1.GenerationService";
    assert_eq!(health(&daemon, generation).await, ServingStatus::NotServing);
    assert_eq!(
        health(&daemon, "sluice.v1.ModelService").await,
        ServingStatus::Serving
    );

    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    until("generation to serve", || async {
        health(&daemon, generation).await == ServingStatus::Serving
    })
    .await;
}

#[tokio::test]
async fn reflection_lists_the_services() {
    let daemon = Daemon::start(&[""; 0]).await;
    let mut client = ServerReflectionClient::new(daemon.channel().await);
    let question = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answers = client
        .server_reflection_info(tokio_stream::once(question))
        .await;
    let answer = answers.unwrap().into_inner().next().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("no list");
    };
    let names: Vec<_> = list
        .service
        .iter()
        .map(|service| service.name.as_str())
        .collect();
    for name in ["Generation", "Model", "Operation", "Optimizer", "Telemetry"] {
        let name = format!("sluice.v1.{name}Service");
        assert!(names.contains(&name.as_str()), "{names:?}");
    }
    assert!(names.contains(&"grpc.health.v1.Health"), "{names:?}");
}

#[tokio::test]
async fn reflection_answers_tools_that_ask_in_its_older_version() {
    use tonic_reflection::pb::v1alpha;

    let daemon = Daemon::start(&[""; 0]).await;
    let mut client =
        v1alpha::server_reflection_client::ServerReflectionClient::new(daemon.channel().await);
    let question = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(
            v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(
                "sluice.v1.GenerationService".to_owned(),
            ),
        ),
    };
    let answers = client
        .server_reflection_info(tokio_stream::once(question))
        .await;
    let answer = answers.unwrap().into_inner().next().await.unwrap().unwrap();
    let answer = answer.message_response.unwrap();
    assert!(
        matches!(
            answer,
            v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(_)
        ),
        "{answer:?}"
    );
}

#[tokio::test]
async fn snapshots_tell_what_is_held_and_done() {
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &["--threads", "1"]).await;
    generate(&daemon, tokens(&[1, 2], 32)).await.unwrap();
    let snapshot = daemon.snapshot().await;
    let server = snapshot.daemon.unwrap();
    assert_eq!(server.state(), v1::DaemonState::Ready);
    assert_eq!(server.protocol_version, sluice_proto::PROTOCOL);
    assert_eq!(server.socket_path, daemon.socket.to_str().unwrap());
    let device = snapshot.device.unwrap();
    assert_eq!((device.kind(), device.threads), (v1::DeviceKind::Cpu, 1));
    assert!(!device.name.is_empty());
    let weights = device
        .memory
        .iter()
        .find(|memory| memory.kind() == v1::MemoryKind::Weights)
        .unwrap();
    let shape = snapshot.model.unwrap().shape.unwrap();
    assert_eq!(shape.parameters, 221_760);
    let plan = snapshot.plan.unwrap();
    let planned = plan
        .memory
        .iter()
        .find(|memory| memory.kind() == v1::MemoryKind::Weights);
    assert_eq!(weights.bytes, planned.unwrap().bytes);
    assert!(device.used_bytes >= weights.bytes);
    assert!(shape.weight_bytes >= plan.resident_bytes);
    let host = snapshot.host.unwrap();
    assert!(host.total_bytes > host.available_bytes);
    assert!(host.resident_peak_bytes >= host.resident_bytes);
    let totals = snapshot.totals.unwrap();
    assert_eq!(
        (totals.done_requests, totals.passes, totals.committed_tokens),
        (1, 32, 32)
    );
}

#[tokio::test]
async fn a_watcher_is_told_of_changes_and_ends_itself_on_shutdown() {
    let mut daemon = Daemon::with_model(checkpoints::slow(), &["--threads", "1"]).await;
    let mut client = TelemetryServiceClient::new(daemon.channel().await);
    let watch = |interval_ms| v1::WatchSnapshotsRequest { interval_ms };
    let hasty = client.watch_snapshots(watch(Some(10))).await.unwrap_err();
    assert_eq!(hasty.code(), Code::InvalidArgument);

    let mut stream = client
        .watch_snapshots(watch(Some(60_000)))
        .await
        .unwrap()
        .into_inner();
    let mut next = async || {
        let message = within("a snapshot", stream.message()).await;
        message.map(|message| message.and_then(|message| message.snapshot))
    };
    assert!(next().await.unwrap().is_some(), "one comes at once");
    let (id, _running) = daemon.running(long()).await;
    let begun = Instant::now();
    while !next()
        .await
        .unwrap()
        .unwrap()
        .requests()
        .any(|request| request.operation_id == id)
    {}
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "sooner than the interval"
    );
    drop(_running);

    daemon.signal(Signal::TERM);
    while let Ok(Some(_)) = next().await {}
    assert!(daemon.ended().await.0.success());
}

#[tokio::test]
async fn a_caller_that_talks_nonsense_harms_nobody() {
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let huge_frame = [&preface[..], &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat();
    let headers_of_zero = [&preface[..], &[0, 0, 4, 1, 4, 0, 0, 0, 1, 0, 0, 0, 0]].concat();
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &[0; 4096],
        &[0xff; 1 << 20],
        preface,
        &huge_frame,
        &headers_of_zero,
    ] {
        let mut stream = UnixStream::connect(&daemon.socket).await.unwrap();
        // The daemon may hang up while it is still being talked to.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = within("the end", stream.read_to_end(&mut answer)).await;
    }
    assert!(generate(&daemon, tokens(&[1], 8)).await.is_ok());
    let log = daemon.log();
    assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
}
