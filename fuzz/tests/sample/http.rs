//! Connections of HTTP, and bodies of requests: what clients send, changed at random.

use sluice_fuzz::{HttpOutcome, POSTS, http_body, http_connection};

use crate::{Random, inputs};

/// What clients send: the place in [`POSTS`], and the body.
const BODIES: [(usize, &str); 10] = [
    (
        0,
        r#"{"model":"a","messages":[{"role":"system","content":"b"},{"role":"user","content":[{"type":"text","text":"c"}]}],"stream":true,"stream_options":{"include_usage":true},"n":2,"seed":-1,"stop":["x","y"],"temperature":0.5,"max_tokens":8,"logit_bias":{},"frequency_penalty":0}"#,
    ),
    (
        0,
        r#"{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":[1,2]}"}}]},{"role":"tool","tool_call_id":"1","content":"d"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"auto","logprobs":true,"top_logprobs":3}"#,
    ),
    (
        0,
        r#"{"messages":[{"role":"user","content":"a"}],"stream":true,"sluice":{"preset":"fast","policy":"threshold:t=0.9","pins":[{"position":1,"text":"b"}],"kv_cache":"dual:refresh=4","canvas":true,"timeout_ms":10,"when_full":"refuse","prior":"heun:20"}}"#,
    ),
    (
        1,
        r#"{"prompt":["a","b"],"echo":true,"n":3,"logprobs":2,"min_p":0.1}"#,
    ),
    (1, r#"{"prompt":[[1,2],[3]],"suffix":"c"}"#),
    (1, r#"{"prompt":"a","suffix":"b","max_tokens":4}"#),
    (
        2,
        r#"{"model":"a:latest","messages":[{"role":"user","content":"b","images":[]}],"options":{"num_predict":-1,"num_ctx":4096,"stop":"c"},"tools":[],"keep_alive":"5m","think":false}"#,
    ),
    (
        3,
        r#"{"prompt":"a","system":"b","raw":false,"stream":false,"options":{"repeat_penalty":1.1}}"#,
    ),
    (4, r#"{"model":"a","verbose":true}"#),
    (
        0,
        r#"{"messages":[{"role":"user","content":"a"}],"sluice":{"timeout_ms":18446744073709551615}}"#,
    ),
];

/// Lines and headers of requests, of which some have a body.
const HEADS: [&str; 8] = [
    "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer 0123456789abcdef\r\n",
    "POST /v1/completions HTTP/1.1\r\nHost: [::1]:8080\r\nExpect: 100-continue\r\nAccept: */*\r\n",
    "POST /api/chat HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n",
    "GET /v1/models/a%2Fb%00 HTTP/1.1\r\nHost: 127.0.0.1\r\nauthorization: bearer a, Bearer b\r\n",
    "OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: https://chat.example\r\n",
    "HEAD /health HTTP/1.1\r\nHost: localhost\r\n",
    "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization:\r\n",
    "GET http://localhost/api/ps HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\n",
];

/// Changes a few bytes: others in their place, more, fewer, and pieces that were elsewhere.
fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    const SPECIAL: &[u8] = b"{}[]\",:\\0-e\r\n \x00\xff";
    for _ in 0..random.below(4) {
        let at = random.below(bytes.len().max(1)).min(bytes.len());
        match random.below(5) {
            0 if at < bytes.len() => bytes[at] = SPECIAL[random.below(SPECIAL.len())],
            1 if at < bytes.len() => bytes[at] = random.next() as u8,
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

/// A changed body, and which path it is for.
fn body(random: &mut Random) -> (usize, Vec<u8>) {
    let (which, body) = BODIES[random.below(BODIES.len())];
    let mut body = body.as_bytes().to_vec();
    change(&mut body, random);
    // Now and then that of another path.
    let which = match random.below(16) {
        0 => random.below(POSTS.len()),
        _ => which,
    };
    (which, body)
}

/// What a client sends, up to three requests one after another.
fn connection(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + random.below(3) {
        let (_, body) = body(random);
        let length = match random.below(8) {
            0 => "Transfer-Encoding: chunked\r\n".to_owned(),
            1 => format!(
                "Content-Length: {}\r\nTransfer-Encoding: chunked\r\n",
                body.len()
            ),
            2 => String::new(),
            3 => format!("Content-Length: {}\r\n", random.below(2 * body.len() + 2)),
            _ => format!("Content-Length: {}\r\n", body.len()),
        };
        let head = HEADS[random.below(HEADS.len())];
        let mut head = format!("{head}{length}\r\n").into_bytes();
        if random.below(4) == 0 {
            change(&mut head, random);
        }
        bytes.extend([head, body].concat());
    }
    bytes
}

/// How many came to what.
#[derive(Debug, Default)]
struct Counts {
    calls: usize,
    silent: usize,
    /// By class of the status.
    statuses: [usize; 6],
}

impl Counts {
    fn add(&mut self, outcome: HttpOutcome) {
        self.calls += outcome.calls;
        match outcome.status {
            Some(status) => self.statuses[usize::from(status / 100)] += 1,
            None => self.silent += 1,
        }
    }

    /// Some reached the daemon, and some were refused before.
    fn check(&self, what: &str) {
        println!("{what}: {self:?}");
        assert!(self.calls > 0 && self.statuses[4] > 0, "{self:?}");
    }
}

#[test]
fn http_bodies() {
    let (mut random, mut counts) = (Random(6), Counts::default());
    for _ in 0..inputs() {
        let (which, body) = body(&mut random);
        counts.add(http_body(&[&[which as u8], &body[..]].concat()));
    }
    counts.check("bodies");
}

#[test]
fn http_connections() {
    let (mut random, mut counts) = (Random(7), Counts::default());
    for _ in 0..inputs() {
        counts.add(http_connection(&connection(&mut random)));
    }
    counts.check("connections");
}
