//! Who may call: roles and tokens as with gRPC, web pages, names.

use serde_json::json;
use tempfile::TempDir;

use crate::{
    client::{HttpDaemon, token_file},
    support::run,
};

const CHAT: &str = r#"{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}"#;

#[tokio::test]
async fn tokens_and_roles_are_those_of_grpc() {
    let folder = TempDir::new().unwrap();
    let tokens = token_file(
        &folder,
        "generate aaaaaaaaaaaaaaaaaaaa\nobserve bbbbbbbbbbbbbbbbbbbb\n",
    );
    let http = HttpDaemon::start(&["--roles", "observe=@nobody", "--token-file", &tokens]).await;
    http.daemon
        .model_state(sluice_proto::v1::ModelState::Ready)
        .await;
    let ask = |token: Option<&'static str>, line: &'static str| {
        let http = &http;
        async move {
            let header = token.map(|token| format!("Authorization: Bearer {token}"));
            let headers: Vec<&str> = header.as_deref().into_iter().collect();
            http.send(line, &headers, CHAT).await
        }
    };
    let chat = "POST /v1/chat/completions";
    assert_eq!(ask(Some("aaaaaaaaaaaaaaaaaaaa"), chat).await.status, 200);
    for (token, status) in [
        (None, 403),
        (Some("bbbbbbbbbbbbbbbbbbbb"), 403),
        (Some("cccccccccccccccccccc"), 401),
        (Some(""), 401),
    ] {
        let answer = ask(token, chat).await;
        answer.refused(status);
        assert_eq!(answer.header("www-authenticate").is_some(), status == 401);
    }
    let unknown = ask(Some("cccccccccccccccccccc"), chat).await.json();
    assert_eq!(unknown["error"]["code"], "invalid_api_key");
    assert_eq!(
        ask(Some("bbbbbbbbbbbbbbbbbbbb"), "GET /v1/models")
            .await
            .status,
        200
    );
    assert_eq!(ask(None, "GET /v1/models").await.status, 403);
    assert_eq!(ask(None, "GET /health").await.status, 200);
}

#[tokio::test]
async fn without_tokens_a_key_means_nothing() {
    let http = HttpDaemon::embedded().await;
    let key = "Authorization: Bearer sk-whatever";
    let answer = http.send("POST /v1/chat/completions", &[key], CHAT).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[tokio::test]
async fn web_pages_are_refused_unless_they_are_named() {
    let http = HttpDaemon::start(&["--http-origins", "https://chat.example"]).await;
    http.daemon
        .model_state(sluice_proto::v1::ModelState::Ready)
        .await;
    let chat = "POST /v1/chat/completions";
    for origin in [
        "Origin: https://evil.example",
        "Origin: null",
        "Origin: http://chat.example",
    ] {
        let refused = http.send(chat, &[origin], CHAT).await;
        refused.refused(403);
        assert_eq!(refused.header("access-control-allow-origin"), None);
        assert_eq!(
            http.send("OPTIONS /v1/models", &[origin], "").await.status,
            403
        );
    }
    let origin = "Origin: https://chat.example";
    let allowed = http.send(chat, &[origin], CHAT).await;
    assert_eq!(allowed.status, 200, "{}", allowed.body);
    let named = allowed.header("access-control-allow-origin");
    assert_eq!(named, Some("https://chat.example"));
    let before = http
        .send("OPTIONS /v1/chat/completions", &[origin], "")
        .await;
    assert_eq!(before.status, 204);
    for (name, value) in [
        ("access-control-allow-methods", "get, post"),
        // Such as `x-stainless-lang` of OpenAI's JavaScript client.
        ("access-control-allow-headers", "authorization, *"),
        ("access-control-max-age", "600"),
    ] {
        assert_eq!(before.header(name), Some(value));
    }
    // Nobody but a page has an origin, and nobody else is told of any.
    let without = http.send(chat, &[], CHAT).await;
    assert_eq!(without.header("access-control-allow-origin"), None);
    assert_eq!(http.send("OPTIONS /v1/models", &[], "").await.status, 405);
}

#[tokio::test]
async fn a_page_that_poses_as_this_machine_is_told_by_its_name() {
    let http = HttpDaemon::embedded().await;
    for host in [
        "Host: evil.example",
        "Host: 127.0.0.1.evil.example",
        "Host: 10.0.0.1",
    ] {
        http.send("POST /v1/chat/completions", &[host], CHAT)
            .await
            .refused(403);
        http.send("GET /v1/models", &[host], "").await.refused(403);
        assert_eq!(http.send("GET /api/version", &[host], "").await.status, 403);
    }
    for host in ["Host: localhost:1", "Host: [::1]", "Host: 127.0.0.1"] {
        assert_eq!(http.send("GET /v1/models", &[host], "").await.status, 200);
    }
    let nameless = http.raw(b"GET /v1/models HTTP/1.0\r\n\r\n").await;
    assert!(nameless.starts_with("HTTP/1.0 403 "), "{nameless}");
}

#[tokio::test]
async fn addresses_that_others_reach_and_origins_that_are_none_are_refused_at_the_start() {
    let folder = TempDir::new().unwrap();
    for (flag, value) in [("--http", "0.0.0.0:8080"), ("--http-origins", "*")] {
        let output = run(folder.path(), &[flag, value]).await;
        assert!(!output.status.success());
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(words.contains(value), "{words}");
    }
    // A path that isn't there, and a body that is no JSON.
    let http = HttpDaemon::embedded().await;
    http.get("/v2/models").await.refused(404);
    let broken = http.send("POST /v1/chat/completions", &[], "{").await;
    assert_eq!(broken.refused(400).0, None);
    let wrong = json!({"messages": "hello"});
    let (field, _) = http.post("/v1/chat/completions", &wrong).await.refused(400);
    assert_eq!(field.as_deref(), Some("messages"));
}
