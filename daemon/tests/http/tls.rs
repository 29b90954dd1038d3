//! HTTP over TLS: who is let in from other machines, and what is told to those who are not.

use std::time::Instant;

use sluice_daemon::{
    limits::{HANDSHAKE_TIMEOUT, HANDSHAKES_MAX},
    role::Role,
};
use tempfile::TempDir;
use testkit::certificates::{Authority, SignedCertificate, Validity};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    client::{HttpDaemon, token_file},
    secure::{SecureDaemon, read},
    support::{
        checkpoints,
        tls::{TlsClient, token},
        within,
    },
};

const MODELS: &str = "GET /v1/models";
const CHAT: &str = "POST /v1/chat/completions";
const QUESTION: &str = r#"{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}"#;

#[tokio::test]
async fn http_is_served_over_tls_to_who_may() {
    let authority = Authority::new();
    let server = authority.server(&["localhost"], Validity::Now);
    let folder = TempDir::new().unwrap();
    let (certificate, key) = server.write(folder.path(), "server");
    let ca = testkit::certificates::write(&folder.path().join("ca.crt"), &authority.certificate);
    let tokens = token_file(&folder, "observe aaaaaaaaaaaaaaaaaaaa\n");
    let http = HttpDaemon::start(&[
        "--tls-certificate",
        certificate.to_str().unwrap(),
        "--tls-key",
        key.to_str().unwrap(),
        "--token-file",
        &tokens,
        "--roles",
        "generate=@nobody",
    ])
    .await;
    let client = TlsClient {
        protocol: "http/1.1",
        name: "localhost",
        ca: &ca,
        own: None,
    };
    let ask = async |headers: &str| {
        let handshake = client.begin(http.connect().await);
        let mut stream = within("a handshake", handshake).await.unwrap();
        let request = format!("{MODELS} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        read(&mut stream).await
    };
    // A browser would have asked for a certificate of that name.
    let host = "Host: sluice.example\r\n";
    let token = "Authorization: Bearer aaaaaaaaaaaaaaaaaaaa\r\n";
    assert_eq!(ask(&format!("{host}{token}")).await.status, 200);
    ask(host).await.refused(403);
    ask(&format!(
        "{host}Authorization: Bearer bbbbbbbbbbbbbbbbbbbb\r\n"
    ))
    .await
    .refused(401);
}

#[tokio::test]
async fn from_elsewhere_nobody_is_everybody() {
    let model = checkpoints::fixture("llada-tiny");
    let secure = SecureDaemon::with_model(&model, &[]).await;
    // Not even what everybody may do on this machine.
    for line in [MODELS, CHAT, "GET /metrics"] {
        let (_, words) = secure.send(None, line, QUESTION).await.refused(401);
        let expected = "callers from other machines need a token or a client certificate";
        assert!(words.starts_with(expected), "{words}");
    }
    assert_eq!(secure.send(None, "GET /health", "").await.status, 200);

    let guessed = Some("generate-guessed-0000");
    let (_, words) = secure.send(guessed, CHAT, QUESTION).await.refused(401);
    assert!(words.starts_with("the token is unknown"), "{words}");

    let models = secure.send_as(Role::Observe, MODELS, "").await;
    assert_eq!(models.status, 200, "{}", models.body);
    // Its own role, and not that of everybody besides.
    let refused = secure.send_as(Role::Observe, CHAT, QUESTION).await;
    let (_, words) = refused.refused(403);
    let expected = "Generate needs the role generate; you have observe";
    assert!(words.starts_with(expected), "{words}");
}

/// A list of models as somebody with a certificate sees it, or what became of the connection.
async fn models(secure: &SecureDaemon, own: &SignedCertificate) -> Result<String, String> {
    let mut stream = secure.secured_as(Some(own)).await;
    let request = format!("{MODELS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    // It may have been refused by then.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = String::new();
    let read = within("the answer", stream.read_to_string(&mut answer)).await;
    read.map(|_| answer).map_err(|error| error.to_string())
}

#[tokio::test]
async fn certificates_of_clients_that_are_no_use_are_refused() {
    let model = checkpoints::fixture("llada-tiny");
    let roles = ["--roles", "observe=cert:a.example"];
    let secure = SecureDaemon::with_model(&model, &roles).await;
    let (authority, other) = (&secure.reachable.authority, Authority::new());
    let names = ["a.example"];
    for (certificate, alert) in [
        (
            authority.client(&names, Validity::Expired),
            "CertificateExpired",
        ),
        (other.client(&names, Validity::Now), "UnknownCA"),
        // One that was signed for a server.
        (authority.server(&names, Validity::Now), "alert"),
    ] {
        let told = models(&secure, &certificate).await.unwrap_err();
        assert!(told.contains(alert), "{told}");
    }
    for (name, status) in [("a.example", "200"), ("b.example", "403")] {
        let certificate = authority.client(&[name], Validity::Now);
        let answer = models(&secure, &certificate).await.unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn whoever_speaks_without_tls_is_told_so() {
    let secure = SecureDaemon::start().await;
    for (line, token) in [(MODELS, None), (CHAT, Some(token(Role::Admin)))] {
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let token = token.unwrap_or_default();
        let mut plain = secure.connect().await;
        let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\n{token}\r\n");
        plain.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let end = plain.read_to_string(&mut answer);
        within("the end", end).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(answer.contains("this port takes TLS alone"), "{answer}");
    }
}

#[tokio::test]
async fn slow_handshakes_keep_nobody_waiting_and_end() {
    crate::support::many_descriptors();
    let secure = SecureDaemon::start().await;
    let begun = Instant::now();
    let mut silent: Vec<TcpStream> = Vec::new();
    // More than there are places for; some begin to speak, and stop.
    for number in 0..HANDSHAKES_MAX + 50 {
        let mut wire = secure.connect().await;
        if number % 2 == 0 {
            wire.write_all(&[0x16, 0x03, 0x01, 0x02]).await.unwrap();
        }
        silent.push(wire);
    }
    let served = secure.send_as(Role::Observe, MODELS, "").await;
    assert_eq!(served.status, 200, "{}", served.body);
    assert!(begun.elapsed() < HANDSHAKE_TIMEOUT, "nobody was waited for");
    for mut wire in silent {
        let mut answer = Vec::new();
        let _ = within("the end", wire.read_to_end(&mut answer)).await;
    }
}

#[tokio::test]
async fn of_two_tokens_the_first_alone_counts() {
    let secure = SecureDaemon::start().await;
    let (admin, observer) = (token(Role::Admin), token(Role::Observe));
    for (first, status) in [("generate-guessed-0000", 401), ("", 401), (&*observer, 403)] {
        let both = format!("{first}\r\nAuthorization: Bearer {admin}");
        let answer = secure.send(Some(&both), CHAT, QUESTION).await;
        answer.refused(status);
    }
}
