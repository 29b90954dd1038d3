//! The front before a daemon that plays a script: what it asks for, and what becomes of events that no small model makes.

use std::{convert::Infallible, sync::Arc};

use fake_daemon::{FakeDaemon, ScriptStep};
use hyper::http::Extensions;
use serde_json::{Value, json};
use sluice_proto::{
    client,
    v1::{self, generate_request::Input, generation_event::Event},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tonic::{
    Code, Status,
    body::Body,
    codegen::http::{Request, Response},
};
use tower::{Service, service_fn};

use crate::{HttpFront, HttpOptions, door::OpenDoor};

/// A daemon, and HTTP in front of it.
struct Scripted {
    daemon: FakeDaemon,
    front: HttpFront,
}

impl Scripted {
    async fn new(script: Vec<ScriptStep>) -> Self {
        let daemon = FakeDaemon::start(script);
        let channel = client::connect(&daemon.socket).await.unwrap();
        let services = service_fn(move |call: Request<Body>| {
            let mut channel = channel.clone();
            async move {
                std::future::poll_fn(|cx| channel.poll_ready(cx))
                    .await
                    .unwrap();
                let answer: Response<Body> = channel.call(call).await.unwrap();
                Ok::<_, Infallible>(answer)
            }
        });
        Self {
            daemon,
            front: HttpFront::new(services, Arc::new(OpenDoor), HttpOptions::default()),
        }
    }

    /// Status, body and request id of the answer to a request.
    async fn post(&self, path: &str, body: &Value) -> (u16, String) {
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let (mut client, server) = duplex(1 << 20);
        let serving = (self.front.clone()).serve(server, Extensions::new(), std::future::pending());
        let asking = async {
            client.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let (answer, ()) = tokio::join!(asking, serving);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    /// What the daemon was asked for last.
    fn asked(&self) -> v1::GenerateRequest {
        let seen = self.daemon.seen.lock().unwrap();
        seen.generate.last().unwrap().clone()
    }
}

fn send(event: Event) -> ScriptStep {
    ScriptStep::Send(event)
}

fn queued() -> ScriptStep {
    send(Event::Queued(v1::GenerationQueued {
        request_id: 7,
        ahead: 0,
    }))
}

fn started() -> ScriptStep {
    send(Event::Started(v1::GenerationStarted {
        request_id: 7,
        model: "m".to_owned(),
        level: v1::Level::Moderate.into(),
        prompt_tokens: 3,
        length: 9,
        ..Default::default()
    }))
}

fn stable(text: &str) -> ScriptStep {
    send(Event::PassDone(v1::GenerationPass {
        request_id: 7,
        stable_text: text.as_bytes().to_vec(),
        level: v1::Level::Mild.into(),
        ..Default::default()
    }))
}

fn done(text: &str, reason: v1::FinishReason) -> ScriptStep {
    send(Event::Done(v1::GenerationDone {
        request_id: 7,
        text: Some(text.to_owned()),
        finish_reason: reason.into(),
        generated_tokens: 5,
        seed: 4,
        ..Default::default()
    }))
}

fn chat(more: Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": "Where?"}]});
    let more = more.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(more);
    request
}

fn events(body: &str) -> Vec<Value> {
    let events = body
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "));
    let events = events.filter(|event| *event != "[DONE]");
    events
        .map(|event| serde_json::from_str(event).unwrap())
        .collect()
}

const CALL: &str =
    "Let me see.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": 1}}\n</tool_call>";

fn calling() -> Vec<ScriptStep> {
    vec![
        queued(),
        started(),
        stable("Let me see.\n<tool"),
        stable("Let me see.\n<tool_call>\n{\"name\": \"look\""),
        done(CALL, v1::FinishReason::Eos),
    ]
}

fn with_tools(more: Value) -> Value {
    let mut request = chat(
        json!({"tools": [{"type": "function", "function": {"name": "look", "parameters": {"z": 1, "a": 2}}}]}),
    );
    let more = more.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(more);
    request
}

#[tokio::test]
async fn calls_of_functions_are_told_from_text() {
    let http = Scripted::new(calling()).await;
    let (status, body) = http
        .post("/v1/chat/completions", &with_tools(json!({})))
        .await;
    let whole: Value = serde_json::from_str(&body).unwrap();
    let choice = &whole["choices"][0];
    assert_eq!(
        (status, choice["finish_reason"].as_str()),
        (200, Some("tool_calls"))
    );
    assert_eq!(choice["message"]["content"], "Let me see.\n");
    let call = json!({
        "id": "call_7_0", "type": "function", "function": {"name": "look", "arguments": "{\"at\": 1}"},
    });
    assert_eq!(choice["message"]["tool_calls"], json!([call]));
    let Some(Input::Chat(asked)) = http.asked().input else {
        panic!("no chat");
    };
    assert_eq!(asked.tools_json, with_tools(json!({}))["tools"].to_string());

    let (_, body) = http
        .post("/v1/chat/completions", &with_tools(json!({"stream": true})))
        .await;
    let events = events(&body);
    let deltas: Vec<_> = events
        .iter()
        .map(|event| &event["choices"][0]["delta"])
        .collect();
    let text: String = deltas
        .iter()
        .filter_map(|delta| delta["content"].as_str())
        .collect();
    assert_eq!(text, "Let me see.\n");
    let calls = deltas
        .iter()
        .find_map(|delta| delta["tool_calls"].as_array())
        .unwrap();
    assert_eq!(
        (&calls[0]["index"], &calls[0]["id"]),
        (&json!(0), &json!("call_7_0"))
    );
    assert_eq!(
        events.last().unwrap()["choices"][0]["finish_reason"],
        "tool_calls"
    );

    let (_, body) = http
        .post("/api/chat", &with_tools(json!({"stream": false})))
        .await;
    let whole: Value = serde_json::from_str(&body).unwrap();
    let call = json!([{"function": {"name": "look", "arguments": {"at": 1}}}]);
    assert_eq!(whole["message"]["tool_calls"], call);
    let (_, body) = http.post("/api/chat", &with_tools(json!({}))).await;
    assert!(
        body.lines().any(|line| line.contains("tool_calls")),
        "{body}"
    );

    // Without functions, or where none may be called, it is text.
    for request in [chat(json!({})), with_tools(json!({"tool_choice": "none"}))] {
        let (_, body) = http.post("/v1/chat/completions", &request).await;
        let whole: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(whole["choices"][0]["message"]["content"], CALL);
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn a_failure_after_the_beginning_is_the_last_event() {
    let lost = Status::new(Code::Internal, "it broke");
    let script = vec![queued(), started(), stable("a"), ScriptStep::Fail(lost)];
    let http = Scripted::new(script).await;
    let (status, body) = http
        .post("/v1/chat/completions", &chat(json!({"stream": true})))
        .await;
    assert_eq!(status, 200);
    assert!(!body.contains("[DONE]"), "{body}");
    let last = &events(&body).pop().unwrap()["error"];
    assert_eq!(
        (&last["message"], &last["type"]),
        (&json!("it broke"), &json!("server_error"))
    );
    let (status, _) = http.post("/v1/chat/completions", &chat(json!({}))).await;
    assert_eq!(status, 500);
    let (_, body) = http.post("/api/chat", &chat(json!({}))).await;
    assert_eq!(body.lines().last(), Some("{\"error\":\"it broke\"}"));
}

#[tokio::test]
async fn what_somebody_else_cancels_is_no_answer() {
    let script = vec![queued(), started(), done("a", v1::FinishReason::Cancelled)];
    let http = Scripted::new(script).await;
    let (status, body) = http.post("/v1/chat/completions", &chat(json!({}))).await;
    assert!(
        status == 499 && body.contains("cancelled"),
        "{status} {body}"
    );
}

#[tokio::test]
async fn text_that_changes_after_it_was_to_stay_is_an_error() {
    let script = vec![
        queued(),
        started(),
        stable("ab"),
        done("ac", v1::FinishReason::Eos),
    ];
    let http = Scripted::new(script).await;
    let (status, body) = http.post("/v1/chat/completions", &chat(json!({}))).await;
    assert!(status == 500 && body.contains("bug"), "{status} {body}");
}

#[tokio::test]
async fn fields_become_those_of_the_schema() {
    let script = vec![queued(), started(), done("a", v1::FinishReason::Length)];
    let http = Scripted::new(script).await;
    let request = chat(json!({
        "model": "some/model:latest", "max_completion_tokens": 9, "seed": -1, "temperature": 0.5, "top_p": 0.9, "top_k": 5,
        "min_p": 0.1, "repetition_penalty": 1.1, "stop": "x", "logprobs": true,
        "sluice": {"block_length": 4, "eos_policy": "keep", "think_steps": 3, "prior": "heun:20"},
    }));
    let (status, body) = http.post("/v1/chat/completions", &request).await;
    assert_eq!(status, 200, "{body}");
    let asked = http.asked();
    let sampling = asked.sampling.unwrap();
    assert_eq!(
        (asked.model.as_str(), asked.length),
        ("some/model", Some(9))
    );
    assert_eq!((sampling.seed, sampling.top_k), (Some(u64::MAX), Some(5)));
    assert_eq!(
        (sampling.temperature, sampling.top_p),
        (Some(0.5), Some(0.9))
    );
    assert_eq!(
        (sampling.min_p, sampling.repetition_penalty),
        (Some(0.1), Some(1.1))
    );
    assert!(sampling.skip_unused_temperature);
    assert_eq!(sampling.eos_policy(), v1::EosPolicy::Keep);
    assert_eq!(asked.block_length, Some(4));
    let thinking = asked.thinking.unwrap();
    assert_eq!(
        (thinking.steps, thinking.prior.unwrap().steps),
        (Some(3), Some(20))
    );
    let mut expected = v1::GenerateRequest::default();
    let options = expected.autoregressive_mut();
    (options.stop, options.top_logprobs) = (vec!["x".to_owned()], Some(0));
    assert_eq!(asked.decoding, expected.decoding);

    let request = chat(json!({"sluice": {
        "preset": "fast", "policy": "threshold:t=0.8", "steps": 7, "guidance": 1.5, "remasking": "margin",
        "pins": [{"position": 2, "text": "b"}, {"anywhere": true, "text": "c"}], "kv_cache": "dual", "suffix_window": 8, "canvas_growth": "append",
        "speculation": "draft:branches=2", "greedy": true,
    }}));
    let (status, body) = http.post("/v1/chat/completions", &request).await;
    assert_eq!(status, 200, "{body}");
    let asked = http.asked();
    assert!(asked.sampling.unwrap().greedy);
    let diffusion = asked.diffusion().unwrap().clone();
    assert_eq!(diffusion.preset(), v1::DecodingPreset::Fast);
    assert_eq!(diffusion.remasking(), v1::Remasking::Margin);
    assert_eq!(diffusion.canvas_growth(), v1::CanvasGrowth::Append);
    assert_eq!((diffusion.steps, diffusion.guidance), (Some(7), Some(1.5)));
    assert_eq!(diffusion.suffix_window, Some(8));
    assert_eq!(diffusion.pins[0].position, 2);
    assert!(!diffusion.pins[0].anywhere && diffusion.pins[1].anywhere);
    assert_eq!(diffusion.policy.unwrap().parameters["t"], 0.8);
    assert_eq!(diffusion.kv_cache.unwrap().mode(), v1::KvCacheMode::Dual);
    assert_eq!(diffusion.speculation.unwrap().branches, Some(2));

    for (memory, expected) in [
        (json!(true), Some((None, vec![], 0))),
        (json!({}), Some((None, vec![], 0))),
        (
            json!({"max_tokens": 64, "collections": ["notes"], "pinned_names": 2}),
            Some((Some(64), vec!["notes".to_owned()], 2)),
        ),
        (json!(false), None),
        (json!(null), None),
    ] {
        let request = chat(json!({"sluice": {"memory": memory}}));
        let (status, body) = http.post("/v1/chat/completions", &request).await;
        assert_eq!(status, 200, "{body}");
        let asked = http.asked().memory;
        let asked = asked.map(|options| {
            (
                options.max_tokens,
                options.collections,
                options.pinned_names,
            )
        });
        assert_eq!(asked, expected, "{memory}");
    }

    let ollama = json!({"prompt": "b", "system": "c", "options": {"num_predict": 3, "repeat_penalty": 1.2}, "stream": false});
    let (status, body) = http.post("/api/generate", &ollama).await;
    assert_eq!(status, 200, "{body}");
    let asked = http.asked();
    assert_eq!(asked.length, Some(3));
    assert_eq!(asked.sampling.unwrap().repetition_penalty, Some(1.2));
    let Some(Input::Chat(conversation)) = asked.input else {
        panic!("no chat");
    };
    let texts: Vec<_> = (conversation.messages.iter())
        .map(|message| (message.role(), message.content.as_str()))
        .collect();
    assert_eq!(
        texts,
        [(v1::ChatRole::System, "c"), (v1::ChatRole::User, "b")]
    );
}

#[tokio::test]
async fn the_level_told_is_that_of_the_last_pass() {
    let script = vec![
        queued(),
        started(),
        stable("a"),
        done("a", v1::FinishReason::Eos),
    ];
    let http = Scripted::new(script).await;
    let (_, body) = http.post("/v1/chat/completions", &chat(json!({}))).await;
    let whole: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(whole["system_fingerprint"], "sluice-0.1.0-moderate");
    assert_eq!(whole["choices"][0]["sluice"]["level"], "mild");
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8});
    assert_eq!(whole["usage"], usage);
}

#[tokio::test]
async fn a_request_gives_itself_a_day_at_most() {
    let script = vec![queued(), started(), done("a", v1::FinishReason::Eos)];
    let http = Scripted::new(script).await;
    for (ms, expected) in [(86_400_000, 200), (86_400_001, 400), (u64::MAX, 400)] {
        for path in ["/v1/chat/completions", "/api/chat"] {
            let (status, body) = http
                .post(path, &chat(json!({"sluice": {"timeout_ms": ms}})))
                .await;
            assert_eq!(status, expected, "{body}");
            assert_eq!(body.contains("timeout_ms: "), expected == 400, "{body}");
        }
    }
}
