//! Rude clients: bodies without end, two lengths, headers that never come, connections without end.

use std::time::{Duration, Instant};

use serde_json::json;
use sluice_daemon::limits::{CONNECTIONS_MAX, USER_MESSAGES_BYTES_MAX};
use sluice_http::limits::{BODY_BYTES_MAX, BODY_TIMEOUT, HEADER_TIMEOUT, HEADERS_MAX};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    client::{Answer, HttpDaemon},
    support::{many_descriptors, within},
};

const HOST: &str = "Host: localhost\r\n";

async fn is_served(http: &HttpDaemon) -> bool {
    let request = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
    http.post("/v1/chat/completions", &request).await.status == 200
}

#[tokio::test]
async fn bodies_that_are_too_large_are_refused_however_their_length_is_told() {
    let http = HttpDaemon::embedded().await;
    let told = format!(
        "POST /v1/completions HTTP/1.1\r\n{HOST}Content-Length: {}\r\n\r\n",
        BODY_BYTES_MAX + 1
    );
    assert_eq!(Answer::read(&http.raw(told.as_bytes()).await).status, 413);

    let mut endless = http.connect().await;
    let head = format!("POST /v1/completions HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n");
    endless.write_all(head.as_bytes()).await.unwrap();
    let (mut read, mut write) = endless.split();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(1 << 16));
    let mut answer = vec![0; 1000];
    let sending = async {
        while write.write_all(chunk.as_bytes()).await.is_ok() {}
        std::future::pending::<()>().await;
    };
    let count = within("the refusal", async {
        tokio::select! {
            count = read.read(&mut answer) => count.unwrap(),
            () = sending => unreachable!("it goes on"),
        }
    })
    .await;
    let answer = String::from_utf8_lossy(&answer[..count]);
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(is_served(&http).await);
}

#[tokio::test]
async fn a_second_request_behind_two_lengths_is_not_answered() {
    let http = HttpDaemon::embedded().await;
    let hidden = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for lengths in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
    ] {
        let request = format!("GET /health HTTP/1.1\r\n{HOST}{lengths}\r\n0\r\n\r\n{hidden}");
        let answers = http.raw(request.as_bytes()).await;
        assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{answers}");
    }
    for wrong in [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5, 6\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Host : localhost\r\n",
        " folded: yes\r\n",
    ] {
        let request = format!("GET /health HTTP/1.1\r\n{HOST}{wrong}\r\n0\r\n\r\n{hidden}");
        let answers = http.raw(request.as_bytes()).await;
        assert!(
            answers.is_empty() || answers.starts_with("HTTP/1.1 400 "),
            "{wrong}: {answers}"
        );
        assert!(
            answers.matches("HTTP/1.1 ").count() <= 1,
            "{wrong}: {answers}"
        );
    }
    // One length, and the next request is answered.
    let request = format!("GET /health HTTP/1.1\r\n{HOST}Content-Length: 0\r\n\r\n");
    let last = format!("GET /health HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n");
    let answers = http.raw((request + &last).as_bytes()).await;
    assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 2, "{answers}");
}

#[tokio::test]
async fn headers_are_bounded_and_come_in_time() {
    let http = HttpDaemon::embedded().await;
    let many = "A: b\r\n".repeat(HEADERS_MAX + 1);
    let large = format!("A: {}\r\n", "b".repeat(1 << 20));
    for headers in [many, large] {
        let mut stream = http.connect().await;
        let request = format!("GET /health HTTP/1.1\r\n{HOST}{headers}\r\n");
        // It may be refused in the middle of it.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = within("the end", stream.read_to_end(&mut answer)).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431 "),
            "{answer}"
        );
    }
    // A header now and then, for ever.
    let mut slow = http.connect().await;
    let begun = Instant::now();
    slow.write_all(b"GET /health HTTP/1.1\r\n").await.unwrap();
    let dripping = async {
        while slow.write_all(b"A: b\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    within("a slow client to be closed", dripping).await;
    assert!(begun.elapsed() >= HEADER_TIMEOUT);
    assert!(is_served(&http).await);
}

#[tokio::test]
async fn who_may_not_ask_is_told_so_before_anything_is_read() {
    let http = HttpDaemon::start(&["--roles", ""]).await;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\n{HOST}Content-Length: {BODY_BYTES_MAX}\r\n\r\n"
    );
    let mut stream = http.connect().await;
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    within("an answer before the body", stream.read_exact(&mut answer))
        .await
        .unwrap();
    assert_eq!(&answer, b"HTTP/1.1 403");
    // What a page is asked with is nothing to wait for.
    let head =
        format!("GET /health/live HTTP/1.1\r\n{HOST}Content-Length: {BODY_BYTES_MAX}\r\n\r\n");
    let mut stream = http.connect().await;
    stream.write_all(head.as_bytes()).await.unwrap();
    within("health before the body", stream.read_exact(&mut answer))
        .await
        .unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
}

#[tokio::test]
async fn lists_without_end_are_refused() {
    let http = HttpDaemon::embedded().await;
    let body = format!("{{\"messages\":[{}{{}}]}}", "{},".repeat(1 << 20));
    let refused = http.send("POST /v1/chat/completions", &[], &body).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(refused.body.contains("more than 4096 elements"));
    assert!(is_served(&http).await);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let http = HttpDaemon::embedded().await;
    let mut slow = http.connect().await;
    let head = format!("POST /v1/completions HTTP/1.1\r\n{HOST}Content-Length: 1000\r\n\r\n");
    let begun = Instant::now();
    slow.write_all(head.as_bytes()).await.unwrap();
    let (mut read, mut write) = slow.split();
    let mut answer = vec![0; 1000];
    // A byte now and then, as long as it is taken.
    let dripping = async {
        while write.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        std::future::pending::<()>().await;
    };
    let count = within("the refusal", async {
        tokio::select! {
            count = read.read(&mut answer) => count.unwrap(),
            () = dripping => unreachable!("it goes on"),
        }
    })
    .await;
    let answer = String::from_utf8_lossy(&answer[..count]);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(begun.elapsed() >= BODY_TIMEOUT);
    assert!(is_served(&http).await);
}

#[tokio::test]
async fn bodies_on_their_way_are_bounded_together() {
    many_descriptors();
    let http = HttpDaemon::embedded().await;
    let most = USER_MESSAGES_BYTES_MAX / BODY_BYTES_MAX;
    let mut waiting = Vec::new();
    let head =
        format!("POST /v1/completions HTTP/1.1\r\n{HOST}Content-Length: {BODY_BYTES_MAX}\r\n\r\n");
    for _ in 0..2 * most {
        let mut stream = http.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        // It may be refused before all of this is there.
        let _ = stream.write_all(&vec![b' '; BODY_BYTES_MAX - 1]).await;
        waiting.push(stream);
    }
    let mut refused = 0;
    for stream in &mut waiting {
        let mut answer = [0; 12];
        let read = tokio::time::timeout(Duration::from_millis(100), stream.read_exact(&mut answer));
        refused += usize::from(matches!(read.await, Ok(Ok(_))) && &answer == b"HTTP/1.1 429");
    }
    assert!(refused > 0, "nobody was refused");
    // Small ones come through.
    assert!(is_served(&http).await);
}

#[tokio::test]
async fn silent_connections_leave_room_for_others() {
    many_descriptors();
    let http = HttpDaemon::embedded().await;
    let mut peers: Vec<TcpStream> = Vec::new();
    for beginning in [&b""[..], b"GET /health HT", b"\x16\x03\x01\x02"]
        .into_iter()
        .cycle()
    {
        let mut stream = http.connect().await;
        // It may have been closed already.
        let _ = stream.write_all(beginning).await;
        peers.push(stream);
        if peers.len() > CONNECTIONS_MAX {
            break;
        }
    }
    assert!(is_served(&http).await);
}
