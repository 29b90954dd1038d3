//! `/health`, as balancers ask for it.

use rustix::process::Signal;
use sluice_proto::v1;

use crate::{
    client::{Answer, HttpDaemon},
    support::{checkpoints, long, until},
};

#[tokio::test]
async fn health_is_told_by_the_status_to_whoever_asks() {
    let http = HttpDaemon::embedded().await;
    let ready = http.get("/health").await;
    assert_eq!(
        (ready.status, ready.body.as_str()),
        (200, "{\"status\":\"ready\"}")
    );
    // As HAProxy asks: without a name, or by an address.
    let nameless = http.raw(b"GET /health HTTP/1.0\r\n\r\n").await;
    assert_eq!(Answer::read(&nameless).status, 200);
    let elsewhere = http.send("GET /health", &["Host: 10.1.2.3"], "").await;
    assert_eq!(elsewhere.status, 200);
}

#[tokio::test]
async fn metrics_are_for_whoever_may_look() {
    let http = HttpDaemon::embedded().await;
    let metrics = http.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    assert!(
        metrics
            .body
            .contains("\nsluice_state{state=\"ready\"} 1.0\n")
    );
    assert!(metrics.body.ends_with("# EOF\n"));

    let http = HttpDaemon::start(&["--roles", ""]).await;
    assert_eq!(http.get("/metrics").await.status, 403);
    assert_eq!(http.get("/health/live").await.status, 200);
}

#[tokio::test]
async fn a_daemon_without_a_model_or_on_its_way_out_is_not_ready() {
    let broken = checkpoints::copy();
    std::fs::write(broken.path().join("config.json"), "{").unwrap();
    let model = broken.path().to_str().unwrap();
    let http = HttpDaemon::start(&["--model", model]).await;
    http.daemon.model_state(v1::ModelState::Failed).await;
    let none = http.get("/health").await;
    assert_eq!(
        (none.status, none.body.as_str()),
        (503, "{\"status\":\"no_model\"}")
    );
    // A restart would not help.
    assert_eq!(http.get("/health/live").await.status, 200);

    let http = HttpDaemon::with_model(checkpoints::slow(), &["--drain-seconds", "30"]).await;
    let (_, running) = http.daemon.running(long()).await;
    http.daemon.signal(Signal::TERM);
    until("the end to be told", || async {
        http.get("/health").await.body.contains("draining")
    })
    .await;
    let body = serde_json::json!({"prompt": [1]});
    assert_eq!(http.post("/v1/completions", &body).await.status, 503);
    drop(running);
}
