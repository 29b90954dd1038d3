//! What happens beside those who ask: strangers, silent connections, watchers, and an administrator who changes things.

use std::{
    convert::Infallible,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use sluice_daemon::role::Role;
use sluice_proto::v1::{
    self, generation_event::Event, generation_service_client::GenerationServiceClient,
    plan_options::Budget, telemetry_service_client::TelemetryServiceClient,
};
use testkit::certificates::{Validity, write};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};
use tonic::Code;

use super::{Setting, clients::DEMO};
use crate::support::{
    apply, chat, level, next,
    tls::{by, call, token, token_lines},
    until, within,
};

const SNAPSHOT: &str = "TelemetryService/GetSnapshot";
const GENERATE: &str = "GenerationService/Generate";
const CHAT: &str = "POST /v1/chat/completions";
const STORY: &str =
    r#"{"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 4}"#;
/// The token that comes and goes.
const VISITOR: &str = "visitor-0123456789abcdef";
/// How long each rests before it goes on.
const PAUSE: Duration = Duration::from_secs(1);

/// How often what happened.
#[derive(Debug, Default)]
pub(super) struct Counts {
    changes: AtomicU64,
    renewals: AtomicU64,
    revocations: AtomicU64,
    ended_by_revocation: AtomicU64,
    jumps: AtomicU64,
    strangers: AtomicU64,
    silent: AtomicU64,
    looks: AtomicU64,
}

fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Counts {
    /// Everything happened, but for what this machine has not.
    pub(super) fn check(&self, has_clock: bool) {
        for counter in [
            &self.changes,
            &self.renewals,
            &self.revocations,
            &self.strangers,
            &self.silent,
            &self.looks,
        ] {
            assert!(counter.load(Ordering::Relaxed) > 0, "{self:?}");
        }
        assert_eq!(self.jumps.load(Ordering::Relaxed) > 0, has_clock);
    }
}

/// All of it at once, for ever.
pub(super) async fn all(setting: &Setting) -> Infallible {
    tokio::select! {
        end = changes(setting) => end,
        end = renewals(setting) => end,
        end = visitors(setting) => end,
        end = jumps(setting) => end,
        end = strangers(setting) => end,
        end = silent(setting) => end,
        end = watchers(setting) => end,
    }
}

/// Puts everything back that is changed.
pub(super) async fn undo(setting: &Setting) {
    if let Some(clock) = &setting.clock {
        clock.jump(0);
    }
    write(&setting.secure.reachable.file("tokens"), &token_lines());
    let request = v1::RestoreRequest {
        model: DEMO.to_owned(),
        ..Default::default()
    };
    let mut optimizer = setting.daemon().optimizer().await;
    let answer = optimizer.restore(request).await;
    crate::support::pictures(answer).await.unwrap();
}

/// Levels and budgets that change no answer.
async fn changes(setting: &Setting) -> Infallible {
    let snapshot = setting.daemon().snapshot().await;
    let mut loaded = snapshot.loaded_models.into_iter();
    let demo = loaded.find(|loaded| {
        loaded
            .model
            .as_ref()
            .is_some_and(|model| model.name == DEMO)
    });
    let peak_bytes = demo.unwrap().plan.unwrap().peak_bytes;
    let budget = |bytes| v1::ApplyRequest {
        options: Some(v1::PlanOptions {
            budget: Some(Budget::BudgetBytes(bytes)),
            ..Default::default()
        }),
        ..Default::default()
    };
    let requests = [
        level(v1::Level::Mild),
        budget(peak_bytes * 9 / 10),
        level(v1::Level::Standard),
        budget(peak_bytes * 2),
    ];
    for request in requests.iter().cycle() {
        let request = v1::ApplyRequest {
            model: DEMO.to_owned(),
            ..request.clone()
        };
        match apply(setting.daemon(), request).await {
            Ok(_) => count(&setting.counts.changes, 1),
            // It went for another model.
            Err(error) => assert_eq!(error.reason.as_deref(), Some("MODEL_NOT_LOADED"), "{error}"),
        }
        sleep(PAUSE / 2).await;
    }
    unreachable!("there is always a next one")
}

/// Certificates of the daemon.
async fn renewals(setting: &Setting) -> Infallible {
    let reachable = &setting.secure.reachable;
    loop {
        reachable.renew().await;
        count(&setting.counts.renewals, 1);
        sleep(3 * PAUSE).await;
    }
}

/// Somebody whose token is revoked in the middle of an answer, and given back.
async fn visitors(setting: &Setting) -> Infallible {
    let secure = &setting.secure;
    let tokens = secure.reachable.file("tokens");
    let is_answered = async |status: u16| {
        let models = "GET /v1/models";
        secure.send(Some(VISITOR), models, "").await.status == status
    };
    loop {
        write(&tokens, &format!("{}generate {VISITOR}\n", token_lines()));
        until("a new token", || is_answered(200)).await;
        let channel = secure.reachable.connect(None).await.unwrap();
        let mut client = GenerationServiceClient::new(channel.clone());
        let request = v1::GenerateRequest {
            length: Some(256),
            model: DEMO.to_owned(),
            ..chat("Tell me a long story.")
        };
        let answer = client.generate(by(Some(VISITOR), request)).await;
        let mut stream = answer.unwrap().into_inner();
        within("an event", next(&mut stream)).await.unwrap();
        write(&tokens, &token_lines());
        until("a revocation", || is_answered(401)).await;
        let refused = call(&channel, Some(VISITOR), SNAPSHOT).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
        // It may have been at its end before.
        let ended = loop {
            match within("an event", next(&mut stream)).await {
                Ok(Some(Event::Done(_)) | None) => break false,
                Ok(Some(_)) => {}
                Err(status) => {
                    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
                    break true;
                }
            }
        };
        count(&setting.counts.revocations, 1);
        count(&setting.counts.ended_by_revocation, ended.into());
        sleep(PAUSE).await;
    }
}

/// The clock, and who comes with a certificate meanwhile.
async fn jumps(setting: &Setting) -> Infallible {
    let Some(clock) = &setting.clock else {
        return std::future::pending().await;
    };
    let reachable = &setting.secure.reachable;
    let client = reachable.authority.client(&["a.example"], Validity::Now);
    for days in [400, -400, 3650, 0].into_iter().cycle() {
        clock.jump(days);
        let comes = reachable.connect(Some(&client)).await;
        assert_eq!(comes.is_ok(), days == 0, "{days} days");
        count(&setting.counts.jumps, 1);
        sleep(2 * PAUSE).await;
    }
    unreachable!("there is always a next one")
}

/// Who may not, and who does not speak TLS.
async fn strangers(setting: &Setting) -> Infallible {
    let secure = &setting.secure;
    let reachable = &secure.reachable;
    let expired = reachable
        .authority
        .client(&["a.example"], Validity::Expired);
    let observer = token(Role::Observe);
    loop {
        let channel = reachable.connect(None).await.unwrap();
        for (token, code, status) in [
            (None, Code::Unauthenticated, 401),
            (Some("generate-guessed-0000"), Code::Unauthenticated, 401),
            (Some(&*observer), Code::PermissionDenied, 403),
        ] {
            let refused = call(&channel, token, GENERATE).await.unwrap_err();
            assert_eq!(refused.code(), code);
            assert_eq!(secure.send(token, CHAT, STORY).await.status, status);
            count(&setting.counts.strangers, 2);
        }
        assert!(reachable.connect(Some(&expired)).await.is_err());
        for port in [reachable.port, secure.http.port()] {
            let mut plain = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let request = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
            plain.write_all(request).await.unwrap();
            let mut answer = String::new();
            let end = plain.read_to_string(&mut answer);
            within("the end", end).await.unwrap();
            assert!(answer.contains("this port takes TLS alone"), "{answer}");
        }
        count(&setting.counts.strangers, 3);
        sleep(PAUSE).await;
    }
}

/// Connections that stop in the middle of a handshake, or after a piece of a request.
async fn silent(setting: &Setting) -> Infallible {
    const CONNECTIONS: usize = 20;
    let secure = &setting.secure;
    loop {
        let mut half = Vec::new();
        for number in 0..CONNECTIONS {
            let port = [secure.reachable.port, secure.http.port()][number % 2];
            let mut wire = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            wire.write_all(&[0x16, 0x03, 0x01, 0x02]).await.unwrap();
            half.push(wire);
        }
        let mut slow = secure.secured().await;
        slow.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: loc")
            .await
            .unwrap();
        let mut slower = secure.secured().await;
        let head = "POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{";
        slower.write_all(head.as_bytes()).await.unwrap();
        count(&setting.counts.silent, CONNECTIONS as u64 + 2);
        sleep(2 * PAUSE).await;
    }
}

/// Monitors, and somebody who watches and does not read.
async fn watchers(setting: &Setting) -> Infallible {
    let secure = &setting.secure;
    let observer = token(Role::Observe);
    let channel = secure.reachable.connect(None).await.unwrap();
    let mut telemetry = TelemetryServiceClient::new(channel);
    loop {
        let watch = v1::WatchSnapshotsRequest::default();
        let unread = telemetry.watch_snapshots(by(Some(&observer), watch)).await;
        let unread = unread.unwrap();
        for _ in 0..5 {
            let metrics = secure.send_as(Role::Observe, "GET /metrics", "").await;
            assert!(metrics.body.ends_with("# EOF\n"), "{}", metrics.body);
            let health = secure.send(None, "GET /health", "").await;
            assert!([200, 503].contains(&health.status), "{}", health.body);
            let models = secure.send_as(Role::Observe, "GET /api/ps", "").await;
            assert_eq!(models.status, 200, "{}", models.body);
            count(&setting.counts.looks, 3);
            sleep(PAUSE / 5).await;
        }
        drop(unread);
    }
}
