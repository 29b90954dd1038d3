//! Tokens and certificates that change while the daemon is used.

use std::{fs, os::unix::fs::symlink, path::Path, sync::Arc};

use sluice_daemon::role::Role;
use sluice_proto::v1::{
    self, generation_service_client::GenerationServiceClient,
    telemetry_service_client::TelemetryServiceClient,
};
use testkit::certificates::{Authority, SignedCertificate, Validity, write};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};
use tonic::{Code, Status, Streaming};

use crate::support::{
    checkpoints, long, pass,
    repeated::Repeated,
    rest,
    tls::{NAMES, ReachableDaemon, by, call, reason, secured, token, token_lines},
    until, within,
};

const SNAPSHOT: &str = "TelemetryService/GetSnapshot";

/// Calls by callers who have this token, each over a connection of its own.
fn load(reachable: &Arc<ReachableDaemon>, token: &str) -> Repeated {
    let (reachable, token) = (reachable.clone(), token.to_owned());
    Repeated::begin(move || {
        let (reachable, token) = (reachable.clone(), token.clone());
        async move {
            let channel = reachable.connect(None).await.unwrap();
            call(&channel, Some(&token), SNAPSHOT).await.unwrap();
        }
    })
}

/// A running generation, after its first pass, and its number.
async fn running(
    reachable: &ReachableDaemon,
    token: &str,
) -> (u64, Streaming<v1::GenerateResponse>) {
    let channel = reachable.connect(None).await.unwrap();
    let mut client = GenerationServiceClient::new(channel);
    let answer = client.generate(by(Some(token), long())).await.unwrap();
    let mut stream = answer.into_inner();
    (pass(&mut stream).await, stream)
}

/// Whether a connection that begins now meets this certificate.
async fn shows(reachable: &ReachableDaemon, expected: &SignedCertificate) -> bool {
    let stream = TcpStream::connect(("127.0.0.1", reachable.port))
        .await
        .unwrap();
    let stream = secured(stream, "localhost", &reachable.file("ca.crt"))
        .await
        .unwrap();
    let (_, session) = stream.get_ref();
    let expected = CertificateDer::from_pem_slice(expected.certificate.as_bytes()).unwrap();
    session.peer_certificates().unwrap().first() == Some(&expected)
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn certificates_are_renewed_under_load_and_no_call_is_lost() {
    let reachable = Arc::new(ReachableDaemon::with_model(checkpoints::slow(), &[]).await);
    let user = token(Role::Generate);
    let (_, mut stream) = running(&reachable, &user).await;
    let load = load(&reachable, &user);
    load.go_on(10).await;
    for _ in 0..3 {
        let renewed = reachable.renew().await;
        until("the new certificate", || shows(&reachable, &renewed)).await;
        load.go_on(10).await;
    }
    load.end().await;
    // What began under the first certificate goes on.
    pass(&mut stream).await;
    let log = reachable.daemon.log();
    assert_eq!(log.matches("read again, and in force").count(), 3, "{log}");
    assert!(!log.contains("cannot be used"), "{log}");
}

#[tokio::test]
async fn a_revoked_token_ends_its_calls_and_no_others() {
    let reachable = ReachableDaemon::with_model(checkpoints::slow(), &["--parallel", "2"]).await;
    let reachable = Arc::new(reachable);
    let (gone, stays) = (token(Role::Generate), token(Role::Operate));
    let (id, mut revoked) = running(&reachable, &gone).await;
    let (_, mut going_on) = running(&reachable, &stays).await;
    let channel = reachable.connect(None).await.unwrap();
    let mut telemetry = TelemetryServiceClient::new(channel.clone());
    let mut watch = async |token: &str| {
        let request = by(Some(token), v1::WatchSnapshotsRequest::default());
        telemetry
            .watch_snapshots(request)
            .await
            .unwrap()
            .into_inner()
    };
    let (mut watch_revoked, mut watch_going_on) = (watch(&gone).await, watch(&stays).await);
    let load = load(&reachable, &stays);
    load.go_on(10).await;

    // Another line comes before those that are left: which line a token stands in says nothing.
    let lines = token_lines().replace(&format!("{} {gone}\n", Role::Generate), "");
    let lines = format!("admin a-new-token-0123456789\n{lines}");
    write(&reachable.file("tokens"), &lines);
    let ended = rest(&mut revoked).await.unwrap_err();
    assert_eq!(ended.code, Code::Unauthenticated);
    assert_eq!(ended.message, "the token was revoked");
    assert_eq!(ended.reason.as_deref(), Some("TOKEN_REVOKED"));
    let watched: Result<(), Status> = async {
        while within("a snapshot", watch_revoked.message())
            .await?
            .is_some()
        {}
        Ok(())
    }
    .await;
    assert_eq!(watched.unwrap_err().code(), Code::Unauthenticated);
    let refused = call(&channel, Some(&gone), SNAPSHOT).await.unwrap_err();
    assert_eq!(reason(refused).as_deref(), Some("UNKNOWN_TOKEN"));
    until("its request to be cancelled", || async {
        reachable.daemon.request(id).await.state() == v1::OperationState::Cancelled
    })
    .await;

    load.go_on(10).await;
    load.end().await;
    pass(&mut going_on).await;
    within("a snapshot", watch_going_on.message())
        .await
        .unwrap();
    call(&channel, Some("a-new-token-0123456789"), SNAPSHOT)
        .await
        .unwrap();
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn a_broken_file_leaves_the_former_in_force_and_is_told() {
    let reachable = ReachableDaemon::start(&NAMES, Validity::Now).await;
    let observer = token(Role::Observe);
    let problems = async || {
        let daemon = reachable.daemon.snapshot().await.daemon;
        daemon.unwrap().file_problems
    };
    let told = |words: &'static str| {
        let problems = &problems;
        move || async move {
            problems()
                .await
                .iter()
                .any(|problem| problem.contains(words))
        }
    };
    let works = async || {
        let channel = reachable.connect(None).await.unwrap();
        call(&channel, Some(&observer), SNAPSHOT).await.unwrap();
    };
    for (file, text, words) in [
        ("tokens", "admin", "tokens: line 1 is not of the form"),
        ("tls.crt", "half of a", "tls.crt: it holds no certificate"),
        ("tls.key", "", "tls.key: it holds no private key"),
    ] {
        let path = reachable.file(file);
        let before = fs::read_to_string(&path).unwrap();
        write(&path, text);
        until(words, told(words)).await;
        works().await;
        write(&path, &before);
        until("it is whole again", || async {
            problems().await.is_empty()
        })
        .await;
    }
    fs::remove_file(reachable.file("tokens")).unwrap();
    until("it is missed", told("No such file")).await;
    works().await;
    let log = reachable.daemon.log();
    assert_eq!(
        log.matches("a file that changed cannot be used").count(),
        4,
        "{log}"
    );
}

#[tokio::test]
async fn folders_that_links_lead_to_are_changed_as_a_whole() {
    let reachable = ReachableDaemon::start(&NAMES, Validity::Now).await;
    // As Kubernetes does: each file is a link into `..data`, which is a link to a folder, and changes.
    let put = |folder: &str, signed: &SignedCertificate, tokens: &str| {
        let place = reachable.file(folder);
        fs::create_dir(&place).unwrap();
        signed.write(&place, "tls");
        write(&place.join("tokens"), tokens);
        let link = |from: &Path, to: &Path| {
            let new = reachable.file("new-link");
            symlink(from, &new).unwrap();
            fs::rename(&new, to).unwrap();
        };
        link(Path::new(folder), &reachable.file("..data"));
        for name in ["tls.crt", "tls.key", "tokens"] {
            link(&Path::new("..data").join(name), &reachable.file(name));
        }
    };
    let sign = || reachable.authority.server(&NAMES, Validity::Now);
    let (first, second) = (sign(), sign());
    put("first", &first, &token_lines());
    until("the first", || shows(&reachable, &first)).await;
    put("second", &second, "observe another-token-0123456789\n");
    until("the second", || shows(&reachable, &second)).await;
    let channel = reachable.connect(None).await.unwrap();
    until("the second's tokens", || async {
        call(&channel, Some("another-token-0123456789"), SNAPSHOT)
            .await
            .is_ok()
    })
    .await;
    let refused = call(&channel, Some(&token(Role::Admin)), SNAPSHOT).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn clients_of_an_authority_that_is_exchanged_are_no_longer_let_in() {
    let reachable = ReachableDaemon::start(&NAMES, Validity::Now).await;
    let client = reachable.authority.client(&["a.example"], Validity::Now);
    reachable.connect(Some(&client)).await.unwrap();
    // The daemon's own certificate is still by the first, which its clients trust.
    let ours = fs::read_to_string(reachable.file("ca.crt")).unwrap();
    let other = Authority::new();
    write(&reachable.file("ca.crt"), &other.certificate);
    let trust = write(&reachable.file("trust.crt"), &ours);
    let folder = tempfile::tempdir().unwrap();
    let as_client = async |signed: &SignedCertificate| {
        let (certificate, key) = signed.write(folder.path(), "own");
        let tls = sluice_proto::client::TlsFiles {
            ca: Some(trust.clone()),
            certificate: Some(certificate),
            key: Some(key),
        };
        reachable.connect_with(tls).await
    };
    until("the first to be refused", || async {
        as_client(&client).await.is_err()
    })
    .await;
    as_client(&other.client(&["a.example"], Validity::Now))
        .await
        .unwrap();
}
