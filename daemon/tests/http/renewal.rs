//! Certificates and tokens that change while HTTP is used, and a clock that jumps.

use std::sync::Arc;

use serde_json::json;
use sluice_daemon::role::Role;
use testkit::{certificates::write, not_run};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use crate::{
    secure::{HTTP, SecureDaemon, read},
    support::{
        checkpoints,
        clock::{JUMPS, MISSING, SetClock},
        repeated::Repeated,
        tls::{token, token_lines},
        until, within,
    },
};

const MODELS: &str = "GET /v1/models";

/// Begins an answer of which there is more than anybody waits for.
async fn running(secure: &SecureDaemon, token: &str) -> TlsStream<TcpStream> {
    let body = json!({
        "prompt": [1, 2, 3], "max_tokens": 2048, "stream": true,
        "sluice": {"eos_policy": "suppress", "canvas": true},
    });
    let line = "POST /v1/completions";
    let mut stream = secure.ask(Some(token), line, &body.to_string()).await;
    goes_on(&mut stream).await;
    stream
}

/// Waits for another event of it.
async fn goes_on(stream: &mut TlsStream<TcpStream>) {
    let mut some = Vec::new();
    while !some.ends_with(b"\n\n\r\n") {
        let byte = within("an event", stream.read_u8()).await;
        some.push(byte.expect("it goes on"));
    }
}

/// Requests by callers who have this token, each over a connection of its own.
fn load(secure: &Arc<SecureDaemon>, token: &str) -> Repeated {
    let (secure, token) = (secure.clone(), token.to_owned());
    Repeated::begin(move || {
        let (secure, token) = (secure.clone(), token.clone());
        async move {
            let answer = secure.send(Some(&token), MODELS, "").await;
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
    })
}

#[tokio::test]
async fn certificates_are_renewed_under_load_and_no_request_is_lost() {
    let secure = Arc::new(SecureDaemon::with_model(checkpoints::slow(), &[]).await);
    let user = token(Role::Generate);
    let mut stream = running(&secure, &user).await;
    let load = load(&secure, &user);
    load.go_on(10).await;
    let reachable = &secure.reachable;
    for renewals in 1..=3 {
        reachable.renew().await;
        until("the new certificate", || async {
            let log = reachable.daemon.log();
            log.matches("read again, and in force").count() == renewals
        })
        .await;
        load.go_on(10).await;
    }
    load.end().await;
    // What began under the first certificate goes on.
    goes_on(&mut stream).await;
}

#[tokio::test]
async fn a_revoked_token_ends_its_answers_and_no_others() {
    let secure = SecureDaemon::with_model(checkpoints::slow(), &["--parallel", "2"]).await;
    let secure = Arc::new(secure);
    let (gone, stays) = (token(Role::Generate), token(Role::Operate));
    let mut revoked = running(&secure, &gone).await;
    let mut going_on = running(&secure, &stays).await;
    let load = load(&secure, &stays);
    load.go_on(10).await;

    let lines = token_lines().replace(&format!("{} {gone}\n", Role::Generate), "");
    write(&secure.reachable.file("tokens"), &lines);
    let mut rest = String::new();
    let end = revoked.read_to_string(&mut rest);
    within("the end", end).await.unwrap();
    let last = rest.rsplit("data: ").next().unwrap();
    assert!(last.contains("the token was revoked"), "{last}");
    let refused = secure.send(Some(&gone), MODELS, "").await;
    let (_, words) = refused.refused(401);
    assert!(words.starts_with("the token is unknown"), "{words}");

    load.go_on(10).await;
    load.end().await;
    goes_on(&mut going_on).await;
}

#[tokio::test]
async fn a_clock_that_jumps_ends_no_answer() {
    let model = ["--model", checkpoints::slow().to_str().unwrap()];
    let (reachable, clock) = SetClock::daemon(&[&model[..], &HTTP].concat()).await;
    let Some(clock) = clock else {
        return not_run(MISSING);
    };
    let secure = SecureDaemon::of(reachable);
    let user = token(Role::Generate);
    let mut stream = running(&secure, &user).await;
    for days in JUMPS {
        // In the middle of a request, whose time to come is by a clock that nobody sets.
        let mut half = secure.secured().await;
        let head = format!("{MODELS} HTTP/1.1\r\nHost: localhost\r\n");
        half.write_all(head.as_bytes()).await.unwrap();
        clock.jump(days);
        let rest = format!("Authorization: Bearer {user}\r\nConnection: close\r\n\r\n");
        half.write_all(rest.as_bytes()).await.unwrap();
        let answer = read(&mut half).await;
        assert_eq!(answer.status, 200, "{days} days: {}", answer.body);
        for _ in 0..3 {
            goes_on(&mut stream).await;
        }
        let answer = secure.send(Some(&user), MODELS, "").await;
        assert_eq!(answer.status, 200, "{days} days: {}", answer.body);
        assert_eq!(secure.send(None, "GET /health", "").await.status, 200);
    }
    let log = secure.reachable.daemon.log();
    assert!(!log.contains("panicked") && !log.contains("stuck"), "{log}");
}
