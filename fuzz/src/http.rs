//! Any bytes as a connection of HTTP, or as the body of a request. Each is answered or refused, and what the daemon is asked
//! for is of the schema and under a token that the request has.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use http_body_util::BodyExt;
use prost::Message;
use sluice_http::{Admission, Door, Health, HttpFront, HttpOptions};
use sluice_proto::v1;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    runtime::{Builder, Runtime},
    time::timeout,
};
use tonic::{
    Status,
    body::Body,
    codegen::http::{Extensions, HeaderMap, Request, Response, header::AUTHORIZATION},
};
use tower::service_fn;

/// Longer than anybody is waited for, by a clock that runs ahead while nothing happens.
const PATIENCE: Duration = Duration::from_secs(600);
/// Bytes of a message of gRPC before its content.
const PREFIX_BYTES: usize = 5;

/// Requests that take a body.
pub const POSTS: [&str; 5] = [
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /api/chat",
    "POST /api/generate",
    "POST /api/show",
];

/// What a connection came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpOutcome {
    /// The status of the first answer, if there was one.
    pub status: Option<u16>,
    /// What the daemon was asked for.
    pub calls: usize,
}

struct Front {
    runtime: Runtime,
    front: HttpFront,
}

/// Lets everybody in, who has a token as calls have.
#[derive(Debug)]
struct OpenDoor;

impl Door for OpenDoor {
    fn admit(&self, call: &Request<()>) -> Result<Box<dyn Admission>, Status> {
        note_token(call.headers());
        Ok(Box::new(OpenDoor))
    }

    fn health(&self) -> Health {
        Health::Ready
    }
}

impl Admission for OpenDoor {
    fn hold(&self, _: usize) -> Result<(), Status> {
        Ok(())
    }
}

/// Tokens of the calls that were made or asked for by the present connection.
type Tokens = Vec<Vec<u8>>;

thread_local! {
    static FRONT: Front = Front::new();
    static TOKENS: RefCell<Tokens> = const { RefCell::new(Vec::new()) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

impl Front {
    fn new() -> Self {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        let options = HttpOptions {
            has_tokens: true,
            ..Default::default()
        };
        Self {
            runtime: runtime.expect("a runtime without threads"),
            front: HttpFront::new(service_fn(call), Arc::new(OpenDoor), options),
        }
    }
}

fn note_token(headers: &HeaderMap) {
    if let Some(token) = headers.get(AUTHORIZATION) {
        let token = token.as_bytes().to_vec();
        TOKENS.with_borrow_mut(|tokens| tokens.push(token));
    }
}

/// Reads what is asked for, as the daemon does, and refuses it.
async fn call(call: Request<Body>) -> Result<Response<Body>, Infallible> {
    let (head, body) = call.into_parts();
    note_token(&head.headers);
    CALLS.set(CALLS.get() + 1);
    let message = body.collect().await.expect("a whole message").to_bytes();
    let content = &message[PREFIX_BYTES..];
    let path = head.uri.path();
    let read = match path.strip_prefix("/sluice.v1.").unwrap_or(path) {
        "GenerationService/Generate" => v1::GenerateRequest::decode(content).map(drop),
        "ModelService/ListModels" => v1::ListModelsRequest::decode(content).map(drop),
        "TelemetryService/GetSnapshot" => v1::GetSnapshotRequest::decode(content).map(drop),
        other => panic!("nobody calls {other}"),
    };
    read.unwrap_or_else(|error| panic!("{path}: {error}"));
    Ok(Status::unimplemented("nobody is here").into_http())
}

/// Everything that is done with a connection that says these bytes.
pub fn http_connection(bytes: &[u8]) -> HttpOutcome {
    let answer = FRONT.with(|front| {
        let (mut client, server) = duplex(1 << 20);
        let serving =
            (front.front.clone()).serve(server, Extensions::new(), std::future::pending());
        let asking = async {
            // It may be refused in the middle of it.
            let _ = client.write_all(bytes).await;
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer).await;
            answer
        };
        let both = async { tokio::join!(asking, serving) };
        let both = async { timeout(PATIENCE, both).await };
        let ended = front.runtime.block_on(both);
        let ended = ended.unwrap_or_else(|_| panic!("{} has no end", bytes.escape_ascii()));
        ended.0
    });
    for token in TOKENS.take() {
        // As it was written: nobody puts a token together.
        let mut places = bytes.windows(token.len().max(1));
        let is_there = token.is_empty() || places.any(|window| *window == token[..]);
        assert!(is_there, "{}", token.escape_ascii());
    }
    HttpOutcome {
        status: status(&answer),
        calls: CALLS.take(),
    }
}

/// The status of the first answer, whose form is checked.
fn status(answer: &[u8]) -> Option<u16> {
    if answer.is_empty() {
        return None;
    }
    let answer = String::from_utf8_lossy(answer);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a whole head");
    if head == "HTTP/1.1 100 Continue" {
        return status(body.as_bytes());
    }
    let line = head.strip_prefix("HTTP/1.").expect("a line of HTTP");
    let status: u16 = line[2..5].parse().expect("a status");
    assert!((200..600).contains(&status), "{head}");
    // What the HTTP library refuses has no words.
    if status >= 400 && body.starts_with('{') {
        let mut values = serde_json::Deserializer::from_str(body).into_iter();
        let error: serde_json::Value = values.next().expect("words").expect("JSON");
        let is_health = error.get("status").is_some();
        assert!(is_health || error.get("error").is_some(), "{error}");
    }
    Some(status)
}

/// Everything that is done with a request with such a body; the first byte says which.
pub fn http_body(bytes: &[u8]) -> HttpOutcome {
    let (which, body) = bytes.split_first().unwrap_or((&0, &[]));
    let line = POSTS[usize::from(*which) % POSTS.len()];
    let length = body.len();
    let head = format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer abc\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    let outcome = http_connection(&[head.as_bytes(), body].concat());
    assert!(outcome.status.is_some(), "a sound head is answered");
    outcome
}
