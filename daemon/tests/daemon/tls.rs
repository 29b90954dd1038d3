//! A port that other machines reach: who is let in, and what is told to those who are not.

use std::{path::Path, time::Instant};

use hyper_util::rt::TokioIo;
use sluice_daemon::{
    limits::{FRAME_TIMEOUT, HANDSHAKE_TIMEOUT, HANDSHAKES_MAX},
    role::Role,
};
use sluice_proto::{
    client::{self, ConnectError, TlsFiles},
    v1::{
        self, generation_event::Event, generation_service_client::GenerationServiceClient,
        telemetry_service_client::TelemetryServiceClient,
    },
};
use tempfile::TempDir;
use testkit::certificates::{Authority, Validity, write};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::{Code, transport::Endpoint};

use crate::support::{
    Daemon, checkpoints,
    http2::PREFACE,
    long, next, run,
    tls::{NAMES, ReachableDaemon, call, call_path, reason, token},
    within,
};

const SNAPSHOT: &str = "TelemetryService/GetSnapshot";
const GENERATE: &str = "GenerationService/Generate";

/// What a connection failed by.
fn told<T>(connected: Result<T, ConnectError>) -> String {
    let error = connected.err().expect("it is refused");
    format!("{error}; {}", error.hint.as_deref().unwrap_or_default())
}

#[tokio::test]
async fn from_elsewhere_nobody_is_everybody() {
    let reachable = ReachableDaemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let channel = reachable.connect(None).await.unwrap();
    // Not even what everybody may do on this machine.
    for name in [SNAPSHOT, GENERATE] {
        let refused = call(&channel, None, name).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
        let words = "callers from other machines need a token or a client certificate";
        assert_eq!(refused.message(), words);
        assert_eq!(reason(refused).as_deref(), Some("NOBODY_KNOWN"));
    }
    call_path(&channel, None, "/grpc.health.v1.Health/Check")
        .await
        .unwrap();

    let wrong = call(&channel, Some("generate-guessed-0000"), SNAPSHOT).await;
    let wrong = wrong.unwrap_err();
    assert_eq!(wrong.code(), Code::Unauthenticated);
    assert_eq!(wrong.message(), "the token is unknown");

    let observer = token(Role::Observe);
    call(&channel, Some(&observer), SNAPSHOT).await.unwrap();
    // Its own role, and not that of everybody besides.
    let refused = call(&channel, Some(&observer), GENERATE).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(
        refused.message(),
        "Generate needs the role generate; you have observe"
    );
}

#[tokio::test]
async fn a_certificate_has_the_role_that_rules_give_to_its_names() {
    let rules = "generate=*,cert:bob.example; operate=cert:alice.example";
    let reachable = ReachableDaemon::with_model(checkpoints::slow(), &["--roles", rules]).await;
    let signed = |name: &str| reachable.authority.client(&[name], Validity::Now);
    let (alice, bob) = (signed("alice.example"), signed("bob.example"));
    let of_alice = reachable.connect(Some(&alice)).await.unwrap();
    let of_bob = reachable.connect(Some(&bob)).await.unwrap();
    let restore = "OptimizerService/Restore";
    let needed = |status| reason(status).as_deref() == Some("ROLE_NEEDED");
    assert!(!call(&of_alice, None, restore).await.is_err_and(needed));
    assert!(call(&of_bob, None, restore).await.is_err_and(needed));
    // A token adds to what a certificate gives.
    let admin = token(Role::Admin);
    assert!(
        !call(&of_bob, Some(&admin), restore)
            .await
            .is_err_and(needed)
    );

    // A request is its user's, also with a certificate that was renewed.
    let mut generation = GenerationServiceClient::new(of_bob.clone());
    let mut stream = generation.generate(long()).await.unwrap().into_inner();
    let Some(Event::Queued(queued)) = next(&mut stream).await.unwrap() else {
        panic!("it has a number first")
    };
    let watch = v1::WatchGenerationRequest {
        operation_id: queued.request_id,
    };
    let renewed = reachable
        .connect(Some(&signed("bob.example")))
        .await
        .unwrap();
    let mut of_renewed = GenerationServiceClient::new(renewed);
    of_renewed.watch_generation(watch).await.unwrap();
    let mut other = GenerationServiceClient::new(of_alice);
    let refused = other.watch_generation(watch).await.unwrap_err();
    assert_eq!(reason(refused).as_deref(), Some("NOT_YOURS"));

    // One that no rule is about is known, and may do nothing.
    let carol = reachable
        .connect(Some(&signed("carol.example")))
        .await
        .unwrap();
    let refused = call(&carol, None, SNAPSHOT).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().ends_with("you have none"), "{refused}");
}

#[tokio::test]
async fn certificates_of_clients_that_are_no_use_are_refused_in_words() {
    let reachable = ReachableDaemon::start(&NAMES, Validity::Now).await;
    let (authority, other) = (&reachable.authority, Authority::new());
    for (certificate, words) in [
        (
            authority.client(&["a.example"], Validity::Expired),
            "it refuses your certificate, which has expired",
        ),
        (
            other.client(&["a.example"], Validity::Now),
            "it refuses your certificate, which is signed by nobody whom it trusts",
        ),
        // One that was signed for a server.
        (
            authority.server(&["a.example"], Validity::Now),
            "it refuses your certificate",
        ),
    ] {
        let told = told(reachable.connect(Some(&certificate)).await);
        assert!(told.contains(words), "{told}");
        assert!(told.contains("$SLUICE_CLIENT_CERTIFICATE"), "{told}");
    }
    reachable
        .connect(Some(&authority.client(&["a.example"], Validity::Now)))
        .await
        .unwrap();
}

#[tokio::test]
async fn what_is_wrong_with_the_daemons_certificate_is_told() {
    let reachable = ReachableDaemon::start(&["a.example"], Validity::Now).await;
    let told_of = told(reachable.connect(None).await);
    assert!(
        told_of.contains("for other names: a.example; "),
        "{told_of}"
    );
    let told_of = told(reachable.connect_with(TlsFiles::default()).await);
    assert!(
        told_of.contains("nobody whom this machine trusts"),
        "{told_of}"
    );
    assert!(told_of.contains("$SLUICE_CA_FILE"), "{told_of}");

    let expired = ReachableDaemon::start(&NAMES, Validity::Expired).await;
    let told_of = told(expired.connect(None).await);
    assert!(told_of.contains("its certificate has expired"), "{told_of}");

    let missing = TlsFiles {
        ca: Some("/nowhere/ca.crt".into()),
        ..Default::default()
    };
    let told_of = told(reachable.connect_with(missing).await);
    assert!(
        told_of.contains("/nowhere/ca.crt: No such file"),
        "{told_of}"
    );
}

/// What the port answers to these bytes, until it closes the connection.
async fn answer(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut wire = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    wire.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // It may be cut instead of closed.
    let _ = within("the end", wire.read_to_end(&mut answer)).await;
    answer
}

#[tokio::test]
async fn whoever_speaks_without_tls_is_told_so_and_the_log_rarely() {
    let reachable = ReachableDaemon::start(&NAMES, Validity::Now).await;
    let port = reachable.port;
    let words = "this port takes TLS alone";
    let get = answer(port, b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let get = String::from_utf8(get).unwrap();
    assert!(
        get.starts_with("HTTP/1.1 400 ") && get.contains(words),
        "{get}"
    );
    let http2 = answer(port, PREFACE).await;
    assert!(String::from_utf8_lossy(&http2).contains(words));
    for nothing in [&b"\0\0\0\0"[..], b"\x16\x03\x01\x00\x05hello"] {
        let answer = answer(port, nothing).await;
        assert!(answer.len() <= 7, "at most an alert: {answer:?}");
    }
    let address = format!("http://localhost:{port}");
    let told = told(client::connect(Path::new(&address)).await);
    assert!(
        told.contains("it takes TLS alone there; use https://"),
        "{told}"
    );

    reachable.daemon.snapshot().await;
    let log = reachable.daemon.log();
    assert_eq!(log.matches("a handshake of TLS failed").count(), 1, "{log}");
    assert!(log.contains("the client speaks without TLS"), "{log}");
}

#[tokio::test]
async fn a_client_of_tls_is_told_of_a_port_without_it() {
    let daemon = Daemon::start(&["--listen", "127.0.0.1:0"]).await;
    let log = daemon.log();
    let port = log.split("port=").nth(1).unwrap();
    let port = port.split_whitespace().next().unwrap();
    let told = told(client::connect(Path::new(&format!("https://{port}"))).await);
    assert!(told.contains("it does not speak TLS there"), "{told}");
    assert!(told.contains("http://"), "{told}");
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn slow_handshakes_keep_nobody_waiting_and_end() {
    let reachable = ReachableDaemon::start(&NAMES, Validity::Now).await;
    let begun = Instant::now();
    let mut silent = Vec::new();
    // More than there are places for; some begin to speak, and stop.
    for number in 0..HANDSHAKES_MAX + 50 {
        let mut wire = TcpStream::connect(("127.0.0.1", reachable.port))
            .await
            .unwrap();
        if number % 2 == 0 {
            wire.write_all(&[0x16, 0x03, 0x01, 0x02]).await.unwrap();
        }
        silent.push(wire);
    }
    let channel = reachable.connect(None).await.unwrap();
    call(&channel, Some(&token(Role::Observe)), SNAPSHOT)
        .await
        .unwrap();
    assert!(begun.elapsed() < HANDSHAKE_TIMEOUT, "nobody was waited for");
    for mut wire in silent {
        let mut answer = Vec::new();
        let _ = within("the end", wire.read_to_end(&mut answer)).await;
    }
    // The places are free again, and a connection that is served needs none.
    call(&channel, Some(&token(Role::Observe)), SNAPSHOT)
        .await
        .unwrap();
    let log = reachable.daemon.log();
    assert!(log.contains("a handshake of TLS is broken off"), "{log}");
}

#[tokio::test]
async fn over_tls_the_certificate_says_which_names_count() {
    let folder = TempDir::new().unwrap();
    let authority = Authority::new();
    let (certificate, key) = authority
        .server(&["sluice.example"], Validity::Now)
        .write(folder.path(), "tls");
    let ca = write(&folder.path().join("ca.crt"), &authority.certificate);
    let [certificate, key] = [&certificate, &key].map(|path| path.to_str().unwrap());
    let flags = [
        "--listen",
        "127.0.0.1:0",
        "--tls-certificate",
        certificate,
        "--tls-key",
        key,
    ];
    let daemon = Daemon::start(&flags).await;
    let log = daemon.log();
    let port = log.split("port=127.0.0.1:").nth(1).unwrap();
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    assert!(
        log.contains("every user of this machine can connect"),
        "{log}"
    );
    let connector = tower::service_fn(move |_| {
        let (port, ca) = (port.clone(), ca.clone());
        async move {
            let stream = TcpStream::connect(format!("127.0.0.1:{port}")).await?;
            let stream = crate::support::tls::secured(stream, "sluice.example", &ca).await?;
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    let endpoint = Endpoint::from_static("https://sluice.example:443");
    let channel = endpoint.connect_with_connector(connector).await.unwrap();
    // On a port of this machine alone, callers without a token are everybody, with TLS as without.
    let mut telemetry = TelemetryServiceClient::new(channel);
    telemetry
        .get_snapshot(v1::GetSnapshotRequest {})
        .await
        .unwrap();
}

#[tokio::test]
async fn files_of_tls_that_are_no_use_keep_the_daemon_from_starting() {
    use std::{fs, os::unix::fs::PermissionsExt};

    let (files, authority, flags) = ReachableDaemon::files(&NAMES, Validity::Now);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let flags = [&["--socket", "s"], &*flags].concat();
    let home = TempDir::new().unwrap();
    let refused = async |words: &str| {
        let output = run(home.path(), &flags).await;
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && told.contains(words), "{told}");
        assert!(!told.contains("PRIVATE KEY"), "{told}");
        // Whoever checks the configuration before hears of it, too.
        let checked = run(home.path(), &[&["--check-config"], &*flags].concat()).await;
        assert_eq!(checked.status.code(), Some(78));
        assert!(told.ends_with(str::from_utf8(&checked.stderr).unwrap()));
    };
    let key = files.path().join("tls.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    refused("tls.key: every user can read or change it").await;
    let other = authority.server(&NAMES, Validity::Now);
    write(&key, &other.key);
    refused("tls.crt: it is of another key than that in").await;
    write(&key, &other.certificate);
    refused("tls.key: it holds no private key as PEM").await;
    other.write(files.path(), "tls");
    write(&files.path().join("ca.crt"), "");
    refused("ca.crt: it holds no certificate as PEM").await;
    write(&files.path().join("ca.crt"), &authority.certificate);
    let checked = run(home.path(), &[&["--check-config"], &*flags].concat()).await;
    assert!(checked.status.success());
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn a_connection_that_says_nothing_after_its_handshake_is_closed() {
    let reachable = ReachableDaemon::start(&NAMES, Validity::Now).await;
    let stream = TcpStream::connect(("127.0.0.1", reachable.port))
        .await
        .unwrap();
    let ca = reachable.file("ca.crt");
    let mut stream = crate::support::tls::secured(stream, "localhost", &ca)
        .await
        .unwrap();
    stream.write_all(&PREFACE[..9]).await.unwrap();
    let begun = Instant::now();
    let mut answer = Vec::new();
    let _ = within("the end", stream.read_to_end(&mut answer)).await;
    assert!(begun.elapsed() >= FRAME_TIMEOUT, "it had its time");
}
