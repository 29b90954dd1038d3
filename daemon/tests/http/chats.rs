//! `/v1/chat/completions` and `/v1/models`.

use serde_json::{Value, json};
use sluice_proto::v1::{self, generation_event::Event};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    client::HttpDaemon,
    support::{chat, checkpoints, done, generate, within},
};

const STORY: &str = "Tell me a story.";

/// As [`chat`] asks.
fn story(more: Value) -> Value {
    let mut request = json!({
        "messages": [{"role": "user", "content": STORY}], "max_tokens": 32, "seed": 7,
    });
    let more = more.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(more);
    request
}

#[tokio::test]
async fn a_chat_gets_the_text_that_grpc_gives_whole_and_in_pieces() {
    let http = HttpDaemon::embedded().await;
    let events = generate(&http.daemon, chat(STORY)).await.unwrap();
    let expected = done(&events).clone();
    let text = expected.text.unwrap();

    let whole = http.post("/v1/chat/completions", &story(json!({}))).await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let id: u64 = whole.header("x-request-id").unwrap().parse().unwrap();
    let operation = http.daemon.request(id).await;
    assert_eq!(operation.state(), v1::OperationState::Done);
    let whole = whole.json();
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["id"], format!("chatcmpl-{id}"));
    assert_eq!(whole["model"], "sluice-demo");
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], text);
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["sluice"]["seed"], 7);
    assert_eq!(choice["sluice"]["operation_id"], id);
    assert_eq!(choice["sluice"]["passes"], expected.passes);
    assert_eq!(
        whole["usage"]["completion_tokens"],
        expected.generated_tokens
    );

    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let streamed = http.post("/v1/chat/completions", &story(options)).await;
    assert_eq!(streamed.header("content-type"), Some("text/event-stream"));
    let events = streamed.events();
    let deltas = events
        .iter()
        .flat_map(|event| event["choices"].as_array().unwrap());
    let pieces = deltas.filter_map(|choice| choice["delta"]["content"].as_str());
    assert_eq!(pieces.collect::<String>(), text);
    let (usage, events) = events.split_last().unwrap();
    assert_eq!(usage["usage"], whole["usage"]);
    assert!(events.iter().all(|event| event["usage"].is_null()));
    let last = events.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(last["choices"][0]["sluice"]["is_exact"], expected.is_exact);
}

#[tokio::test]
async fn several_answers_are_requests_with_seeds_of_their_own() {
    let http = HttpDaemon::embedded().await;
    let hot = |seed: u64, n: u32| {
        story(json!({"temperature": 0.8, "seed": seed, "n": n, "max_tokens": 12}))
    };
    let three = http.post("/v1/chat/completions", &hot(5, 3)).await.json();
    let choices = three["choices"].as_array().unwrap();
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        let alone = http
            .post("/v1/chat/completions", &hot(5 + index as u64, 1))
            .await;
        assert_eq!(alone.json()["choices"][0]["message"], choice["message"]);
    }
    let tokens: u64 = three["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(choices.len() == 3 && tokens > 12, "{three}");
    let (field, _) = http
        .post("/v1/chat/completions", &hot(5, 17))
        .await
        .refused(400);
    assert_eq!(field.as_deref(), Some("n"));
}

#[tokio::test]
async fn pictures_of_the_canvas_come_where_they_are_asked_for() {
    let http = HttpDaemon::embedded().await;
    let options = json!({"stream": true, "sluice": {"canvas": true, "preset": "balanced", "block_length": 8}});
    let answer = http.post("/v1/chat/completions", &story(options)).await;
    let events = answer.events();
    let pictures: Vec<_> = events
        .iter()
        .filter(|event| event["choices"].as_array().unwrap().is_empty())
        .collect();
    assert!(!pictures.is_empty());
    for picture in pictures {
        let tokens = picture["sluice"]["canvas"]["tokens"].as_array().unwrap();
        assert_eq!((tokens.len(), &picture["sluice"]["index"]), (8, &json!(0)));
    }
    let last = &events.last().unwrap()["choices"][0]["sluice"];
    assert_eq!(last["diffusion"]["preset"], "balanced");
    assert_eq!(last["settings"]["temperature"]["origin"], "built-in");
}

#[tokio::test]
async fn what_cannot_be_honoured_is_refused_by_name() {
    let http = HttpDaemon::embedded().await;
    let refused = |options: Value| {
        let http = &http;
        async move {
            let answer = http.post("/v1/chat/completions", &story(options)).await;
            answer.refused(400).0
        }
    };
    for (options, field) in [
        (json!({"frequency_penalty": 0.5}), "frequency_penalty"),
        (json!({"logit_bias": {"1": 1}}), "logit_bias"),
        (json!({"nobody_knows": 1}), "nobody_knows"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 100_000}), "max_tokens"),
        (
            json!({"max_tokens": 1, "max_completion_tokens": 2}),
            "max_tokens",
        ),
        (json!({"messages": []}), "messages"),
        (
            json!({"messages": [{"role": "oracle", "content": "a"}]}),
            "messages",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
            "messages",
        ),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "f"}}}),
            "tool_choice",
        ),
        (
            json!({"stream_options": {"include_usage": true}}),
            "stream_options",
        ),
        (json!({"sluice": {"canvas": true}}), "sluice.canvas"),
        // Of the daemon, which knows the model.
        (json!({"stop": "x"}), "stop"),
        (json!({"top_p": 0.5}), "top_p"),
        (json!({"logprobs": true}), "top_logprobs"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f"}}]}),
            "tools",
        ),
        (
            json!({"sluice": {"kv_cache": "dual", "speculation": "explore"}}),
            "sluice.speculation",
        ),
        (json!({"stop": "x", "sluice": {"preset": "fast"}}), "stop"),
    ] {
        let told = format!("{options}");
        assert_eq!(refused(options).await.as_deref(), Some(field), "{told}");
    }
    // What means nothing is taken.
    let nothing = json!({
        "frequency_penalty": 0, "logit_bias": {}, "logprobs": false, "store": false, "top_p": 1, "tools": [], "tool_choice": "none",
        "stream_options": {"include_usage": false}, "user": "somebody", "metadata": {"a": "b"}, "response_format": {"type": "text"}, "stop": null,
    });
    let answer = http.post("/v1/chat/completions", &story(nothing)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[tokio::test]
async fn a_model_is_known_by_its_name() {
    let http = HttpDaemon::embedded().await;
    let list = http.get("/v1/models").await.json();
    assert_eq!(list["data"][0]["id"], "sluice-demo");
    assert_eq!(list["data"][0]["sluice"]["kind"], "masked_diffusion");
    assert_eq!(http.get("/v1/models/sluice-demo").await.status, 200);
    for name in ["nobody/knows-it", "nobody%2Fknows-it"] {
        let path = format!("/v1/models/{name}");
        let (field, words) = http.get(&path).await.refused(404);
        assert_eq!(field.as_deref(), Some("model"));
        assert!(words.contains("nobody/knows-it"), "{words}");
    }
    let named = http
        .post(
            "/v1/chat/completions",
            &story(json!({"model": "sluice-demo"})),
        )
        .await;
    assert_eq!(named.status, 200, "{}", named.body);
    let other = http
        .post(
            "/v1/chat/completions",
            &story(json!({"model": "nobody/knows-it"})),
        )
        .await;
    assert_eq!(other.json()["error"]["code"], "model_not_found");
    assert_eq!(other.status, 404);
}

/// Functions in the model's template, by gRPC, which tells the prompt.
#[tokio::test]
async fn functions_reach_a_template_that_has_a_place_for_them() {
    let folder = checkpoints::writer();
    let model = folder.path().join("writer");
    let template = "{% for tool in tools %}{{ tool.function.name }} {% endfor %}{{ messages[-1].role }}: {{ messages[-1].content }}";
    std::fs::write(model.join("chat_template.jinja"), template).unwrap();
    let http = HttpDaemon::with_model(&model, &[]).await;
    let shape = http.daemon.snapshot().await.model.unwrap().shape.unwrap();
    assert!(shape.takes_tools);
    let request = json!({
        "messages": [
            {"role": "user", "content": "Where?"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": 1}"}}
            ]},
            {"role": "tool", "tool_call_id": "1", "content": "there"},
        ],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        "max_tokens": 4,
    });
    let answer = http.post("/v1/chat/completions", &request).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let id: u64 = answer.header("x-request-id").unwrap().parse().unwrap();
    let mut generation = http.daemon.generation().await;
    let watch = v1::WatchGenerationRequest { operation_id: id };
    let mut events = generation
        .watch_generation(watch)
        .await
        .unwrap()
        .into_inner();
    let prompt = loop {
        let event = within("an event", events.message()).await.unwrap().unwrap();
        if let Some(Event::Started(started)) = event.event.unwrap().event {
            break String::from_utf8(started.prompt_text).unwrap();
        }
    };
    assert_eq!(prompt, "look tool: there");
}

#[tokio::test]
async fn who_goes_away_is_not_answered_to_the_end() {
    let http = HttpDaemon::with_model(checkpoints::slow(), &[]).await;
    // The model has no tokenizer, so the prompt is ids, and the text stays empty.
    let cases = [(true, ""), (false, ""), (true, "\r\n"), (false, "\r\n")];
    for (stream, more) in cases {
        let body = json!({
            "prompt": [1, 2, 3], "max_tokens": 2048, "stream": stream,
            "sluice": {"eos_policy": "suppress", "canvas": stream},
        })
        .to_string();
        let request = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}{more}",
            body.len()
        );
        let mut connection = http.connect().await;
        connection.write_all(request.as_bytes()).await.unwrap();
        http.latest_is(v1::OperationState::Running).await;
        if stream {
            let mut some = [0; 100];
            within("the beginning", connection.read_exact(&mut some))
                .await
                .unwrap();
        }
        drop(connection);
        http.latest_is(v1::OperationState::Cancelled).await;
    }
}

#[tokio::test]
async fn a_full_queue_refuses_who_does_not_wait() {
    let http =
        HttpDaemon::with_model(checkpoints::slow(), &["--queue", "1", "--parallel", "1"]).await;
    let long = |when_full: &str| {
        json!({
            "prompt": [1, 2, 3], "max_tokens": 1024,
            "sluice": {"eos_policy": "suppress", "when_full": when_full, "timeout_ms": 60_000},
        })
    };
    let (_, running) = http.daemon.running(crate::support::long()).await;
    let waiting = http
        .daemon
        .generation()
        .await
        .generate(crate::support::long())
        .await;
    let refused = http.post("/v1/completions", &long("refuse")).await;
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("retry-after"), Some("1"));
    let late = json!({"prompt": [1], "sluice": {"timeout_ms": 300}});
    let (_, words) = http.post("/v1/completions", &late).await.refused(504);
    assert!(words.contains("deadline"), "{words}");
    drop((running, waiting));
}
