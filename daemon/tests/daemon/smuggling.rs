//! Headers by which a proxy and the daemon might take the same bytes for different calls. HTTP/1.1's are in `tests/http/rude.rs`.

use sluice_daemon::role::Role;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};
use tonic::Code;

use crate::support::{
    Daemon, checkpoints, done, generate,
    http2::{DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, RESET, SETTINGS, frame},
    tls::{ReachableDaemon, by, reason, token},
    tokens, within,
};

/// A frame by which a connection ends.
const GO_AWAY: u8 = 7;

/// Headers of a call that anybody may make, and more after them; without compression.
fn headers(more: &[(&str, &str)]) -> Vec<u8> {
    let call = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/sluice.v1.TelemetryService/GetSnapshot"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block = Vec::new();
    for (name, value) in call.iter().chain(more) {
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend(text.as_bytes());
        }
    }
    frame(HEADERS, END_HEADERS, 1, &block)
}

/// Kinds of the frames by which a call with these headers is answered, until it or its connection ends.
async fn answered(daemon: &Daemon, more: &[(&str, &str)]) -> Vec<u8> {
    let mut stream = UnixStream::connect(&daemon.socket).await.unwrap();
    let call = [
        PREFACE,
        &frame(SETTINGS, 0, 0, &[]),
        &headers(more),
        // An empty message.
        &frame(DATA, END_STREAM, 1, &[0; 5]),
    ]
    .concat();
    stream.write_all(&call).await.unwrap();
    let mut kinds = Vec::new();
    let reading = async {
        let mut head = [0; 9];
        while stream.read_exact(&mut head).await.is_ok() {
            let [_, _, _, kind, flags, _, _, _, id] = head;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            stream.read_exact(&mut payload).await.unwrap();
            if id == 1 || kind == GO_AWAY {
                kinds.push(kind);
            }
            let is_last = id == 1 && matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0;
            if is_last || matches!(kind, RESET | GO_AWAY) {
                break;
            }
        }
    };
    within("the end of a call", reading).await;
    kinds
}

#[tokio::test]
async fn headers_that_hide_a_call_or_its_length_are_refused() {
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let sound = answered(&daemon, &[("content-length", "5")]).await;
    assert_eq!(sound, [HEADERS, DATA, HEADERS], "answer, message, trailers");
    for wrong in [
        // What ends a body in HTTP/1.1, for a proxy that hands it on.
        ("transfer-encoding", "chunked"),
        ("connection", "transfer-encoding"),
        ("keep-alive", "timeout=5"),
        ("upgrade", "h2c"),
        ("te", "gzip"),
        // Another length than the body's.
        ("content-length", "4"),
        ("content-length", "6"),
        ("content-length", "-5"),
        ("content-length", "5, 6"),
        // A second path, and one after what isn't of the request.
        (":path", "/sluice.v1.ModelService/UnloadModel"),
        // A line within a value or a name.
        ("x-a", "b\r\nauthorization: Bearer c"),
        ("x-a\r\nauthorization", "Bearer c"),
        ("x-a", "b\0c"),
        ("X-Upper", "a"),
        ("", "a"),
    ] {
        let kinds = answered(&daemon, &[wrong]).await;
        let is_refused = kinds.is_empty() || kinds.contains(&RESET) || kinds.contains(&GO_AWAY);
        assert!(is_refused && !kinds.contains(&DATA), "{wrong:?}: {kinds:?}");
    }
    let served = generate(&daemon, tokens(&[1], 8)).await.unwrap();
    assert_eq!(done(&served).token_ids.len(), 8);
}

#[tokio::test]
async fn of_two_tokens_the_first_alone_counts() {
    let reachable = ReachableDaemon::with_model(checkpoints::slow(), &[]).await;
    let channel = reachable.connect(None).await.unwrap();
    let mut optimizer =
        sluice_proto::v1::optimizer_service_client::OptimizerServiceClient::new(channel);
    let (admin, observer) = (token(Role::Admin), token(Role::Observe));
    for (first, expected) in [
        ("generate-guessed-0000", "UNKNOWN_TOKEN"),
        ("", "UNKNOWN_TOKEN"),
        (&*observer, "ROLE_NEEDED"),
    ] {
        let mut request = by(Some(first), sluice_proto::v1::RestoreRequest::default());
        let second = format!("Bearer {admin}").parse().unwrap();
        request.metadata_mut().append("authorization", second);
        let refused = optimizer.restore(request).await.unwrap_err();
        assert_ne!(refused.code(), Code::Ok);
        assert_eq!(reason(refused).as_deref(), Some(expected), "{first}");
    }
}
