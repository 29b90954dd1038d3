//! Connections that say anything: what clients send, changed at random. Each is answered or refused within bounds, and what is asked
//! of the daemon is of the schema.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper::http::Extensions;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    time::timeout,
};
use tonic::{
    Status,
    body::Body,
    codegen::http::{Request, Response},
};
use tower::service_fn;

use crate::{HttpFront, HttpOptions, door::OpenDoor};

/// How many, unless the variable says otherwise.
const INPUTS_DEFAULT: u64 = 4000;
const INPUTS: &str = "SLUICE_MUTATIONS";
/// Longer than anybody is waited for.
const PATIENCE: Duration = Duration::from_secs(600);

/// What clients send, path and body.
const REQUESTS: [(&str, &str); 11] = [
    (
        "POST /v1/chat/completions",
        r#"{"model":"a","messages":[{"role":"system","content":"b"},{"role":"user","content":[{"type":"text","text":"c"}]}],"stream":true,"stream_options":{"include_usage":true},"n":2,"seed":-1,"stop":["x","y"],"temperature":0.5,"max_tokens":8,"logit_bias":{},"frequency_penalty":0}"#,
    ),
    (
        "POST /v1/chat/completions",
        r#"{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":[1,2]}"}}]},{"role":"tool","tool_call_id":"1","content":"d"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"auto","logprobs":true,"top_logprobs":3}"#,
    ),
    (
        "POST /v1/chat/completions",
        r#"{"messages":[{"role":"user","content":"a"}],"stream":true,"sluice":{"preset":"fast","policy":"threshold:t=0.9","pins":[{"position":1,"text":"b"}],"kv_cache":"dual:refresh=4","canvas":true,"timeout_ms":10,"when_full":"refuse","prior":"heun:20"}}"#,
    ),
    (
        "POST /v1/chat/completions",
        r#"{"messages":[{"role":"user","content":"a"}],"sluice":{"timeout_ms":18446744073709551615}}"#,
    ),
    (
        "POST /v1/completions",
        r#"{"prompt":["a","b"],"echo":true,"n":3,"logprobs":2,"min_p":0.1}"#,
    ),
    (
        "POST /v1/completions",
        r#"{"prompt":[[1,2],[3]],"suffix":"c"}"#,
    ),
    (
        "POST /v1/completions",
        r#"{"prompt":"a","suffix":"b","max_tokens":4}"#,
    ),
    (
        "POST /api/chat",
        r#"{"model":"a:latest","messages":[{"role":"user","content":"b","images":[]}],"options":{"num_predict":-1,"num_ctx":4096,"stop":"c"},"tools":[],"keep_alive":"5m","think":false}"#,
    ),
    (
        "POST /api/generate",
        r#"{"prompt":"a","system":"b","raw":false,"stream":false,"options":{"repeat_penalty":1.1}}"#,
    ),
    ("POST /api/show", r#"{"model":"a","verbose":true}"#),
    ("GET /v1/models/a%2Fb%00", ""),
];

/// A generator of xorshift: any spread of numbers will do.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// Changes a few bytes: others in their place, more, fewer, and pieces that were elsewhere.
fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    const SPECIAL: &[u8] = b"{}[]\",:\\0-e\r\n \x00\xff";
    for _ in 0..random.below(4) {
        let at = random.below(bytes.len().max(1)).min(bytes.len());
        match random.below(5) {
            0 if at < bytes.len() => bytes[at] = SPECIAL[random.below(SPECIAL.len())],
            1 if at < bytes.len() => bytes[at] = random.below(256) as u8,
            2 => bytes.truncate(at),
            3 => {
                let end = (at + random.below(40)).min(bytes.len());
                let piece = bytes[at..end].repeat(random.below(20));
                bytes.splice(at..at, piece);
            }
            _ => {
                let end = (at + random.below(40)).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
}

/// What a client sends, by the number of the attempt.
fn input(number: u64) -> Vec<u8> {
    let mut random = Random(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let (line, body) = REQUESTS[random.below(REQUESTS.len())];
    let mut body = body.as_bytes().to_vec();
    change(&mut body, &mut random);
    let length = match random.below(16) {
        0 => "Transfer-Encoding: chunked".to_owned(),
        _ => format!("Content-Length: {}", body.len()),
    };
    let mut head =
        format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{length}\r\n\r\n")
            .into_bytes();
    if random.below(4) == 0 {
        change(&mut head, &mut random);
    }
    [head, body].concat()
}

/// `SLUICE_MUTATIONS` says how many.
#[tokio::test(start_paused = true)]
async fn mutated_requests_are_answered_or_refused() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let services = service_fn(move |_: Request<Body>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let refused: Response<Body> = Status::unimplemented("nobody is here").into_http();
        std::future::ready(Ok::<_, Infallible>(refused))
    });
    let front = HttpFront::new(services, Arc::new(OpenDoor), HttpOptions::default());
    let count = std::env::var(INPUTS).map_or(INPUTS_DEFAULT, |count| count.parse().unwrap());
    let mut statuses = [0_u64; 6];
    for number in 0..count {
        let input = input(number);
        let (mut client, server) = duplex(1 << 20);
        let serving = front
            .clone()
            .serve(server, Extensions::new(), std::future::pending());
        let asking = async {
            // It may be refused in the middle of it.
            let _ = client.write_all(&input).await;
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer).await;
            answer
        };
        let both = async { tokio::join!(asking, serving) };
        let (answer, ()) = timeout(PATIENCE, both)
            .await
            .unwrap_or_else(|_| panic!("attempt {number} has no end"));
        let status = answer.get(9).copied().unwrap_or(b'0');
        let class = statuses.get_mut(usize::from(status.wrapping_sub(b'0')));
        *class.unwrap_or_else(|| panic!("attempt {number}: {answer:?}")) += 1;
    }
    let calls = calls.load(Ordering::Relaxed);
    println!("{count} requests: {calls} calls, by class of status {statuses:?}");
    assert!(calls > 0 && statuses[4] > 0, "{statuses:?}");
    assert_eq!(statuses[1] + statuses[2] + statuses[3], 0, "{statuses:?}");
}
