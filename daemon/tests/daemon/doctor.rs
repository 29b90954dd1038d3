//! What the daemon finds of itself, what `sluiced doctor` finds without one, and clients of other versions.

use std::fs;

use sluice_proto::{
    PROTOCOL, PROTOCOL_HEADER,
    client::{self, CallError},
    v1::{self, FindingState, telemetry_service_client::TelemetryServiceClient},
};
use sluice_report::findings;
use sluice_shared::exit;
use tempfile::TempDir;
use tonic::{Code, Request};

use crate::support::{Daemon, generate, run, tokens};

/// What is found in any case.
const SUBJECTS: [&str; 11] = [
    "sluiced",
    "configuration",
    "user",
    "processor",
    "memory",
    "swap",
    "pinned memory",
    "open files",
    "device",
    "models",
    "disk",
];

#[tokio::test]
async fn a_daemon_examines_itself_and_names_the_callers_role() {
    let daemon = Daemon::embedded().await;
    let mut telemetry = TelemetryServiceClient::new(daemon.channel().await);
    let answer = telemetry.examine(v1::ExamineRequest {}).await.unwrap();
    let found = answer.into_inner().findings;
    let of = |subject: &str| {
        let mut all = found.iter().filter(|finding| finding.subject == subject);
        let finding = all.next();
        finding.unwrap_or_else(|| panic!("nothing of {subject}: {found:?}"))
    };
    for subject in SUBJECTS {
        assert_ne!(of(subject).state(), FindingState::Unspecified);
    }
    assert_eq!(of("your role").found, "admin");
    let models = daemon.folder.path().join(".local/share/sluice/models");
    assert!(of("models").found.contains(models.to_str().unwrap()));
    assert!(of("sluiced").found.contains(env!("CARGO_BIN_EXE_sluiced")));
}

#[tokio::test]
async fn without_a_daemon_the_machine_is_examined_and_a_problem_has_its_exit_code() {
    let folder = TempDir::new().unwrap();
    let doctor = async |arguments: &[&str]| {
        let output = run(folder.path(), &[&["doctor"], arguments].concat()).await;
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code().map(|code| code as u8), text)
    };
    let (_, text) = doctor(&["--json"]).await;
    let found = findings::of_json(&text).unwrap();
    for subject in SUBJECTS {
        let mut named = found.iter().map(|finding| &finding.subject);
        assert!(named.any(|named| named == subject), "{subject}: {text}");
    }
    // A folder that can't be made, whoever runs the test.
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let config = folder.path().join("sluiced.toml");
    fs::write(&config, "models = \"file/models\"\n").unwrap();
    let (code, text) = doctor(&["--config", config.to_str().unwrap()]).await;
    assert_eq!(code, Some(exit::FAILURE));
    assert!(text.contains("problem  models"), "{text}");
    assert!(text.contains("hint: "), "{text}");
}

#[tokio::test]
async fn a_client_of_another_protocol_is_told_who_is_older_before_anything_is_done() {
    let daemon = Daemon::embedded().await;
    let of = |protocol: u32| {
        let mut request = Request::new(v1::LoadModelRequest::default());
        let metadata = request.metadata_mut();
        metadata.insert(PROTOCOL_HEADER, protocol.into());
        request
    };
    let mut models = daemon.models().await;
    for (protocol, older) in [
        (PROTOCOL + 1, "the daemon is older"),
        (1, "the daemon is newer"),
    ] {
        let refused = models.load_model(of(protocol)).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let failed = CallError::from(refused);
        assert_eq!(failed.reason.as_deref(), Some("OTHER_PROTOCOL"));
        assert!(failed.hint.unwrap().contains(older));
    }
    // The one that tells versions, and by whose answer a daemon is ended.
    let channel = client::connect(&daemon.socket).await.unwrap();
    let mut request = Request::new(v1::GetSnapshotRequest {});
    let metadata = request.metadata_mut();
    metadata.insert(PROTOCOL_HEADER, 99.into());
    let mut telemetry = TelemetryServiceClient::new(channel);
    let answer = telemetry.get_snapshot(request).await.unwrap();
    let snapshot = answer.into_inner().snapshot.unwrap();
    assert_eq!(snapshot.daemon.unwrap().protocol_version, PROTOCOL);
    // Clients that don't say which they speak are served.
    generate(&daemon, tokens(&[1], 4)).await.unwrap();
}
