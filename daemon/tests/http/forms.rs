//! Answers that have a form: `response_format`, Ollama's `format`, and expressions.

use serde_json::{Value, json};

use crate::{client::HttpDaemon, support::checkpoints};

fn schema() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["kind", "count"],
        "properties": {"kind": {"enum": ["kite", "fox"]}, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
    })
}

fn asking(more: &Value) -> Value {
    let mut request = json!({
        "messages": [{"role": "user", "content": "Describe it."}], "max_tokens": 200, "temperature": 1, "seed": 3, "stream": false,
        "options": {"num_predict": 200, "temperature": 1, "seed": 3},
    });
    let request_fields = request.as_object_mut().unwrap();
    request_fields.extend(more.as_object().unwrap().clone());
    request
}

/// As OpenAI's API has it: without Ollama's options.
fn of_openai(more: &Value) -> Value {
    let mut request = asking(more);
    request.as_object_mut().unwrap().remove("options");
    request
}

/// As Ollama's API has it.
fn of_ollama(more: &Value) -> Value {
    let mut request = asking(more);
    let fields = request.as_object_mut().unwrap();
    for field in ["max_tokens", "temperature", "seed"] {
        fields.remove(field);
    }
    request
}

fn response_format() -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "it", "strict": true, "schema": schema()}}})
}

#[track_caller]
fn matches(text: &Value) {
    let read: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    assert!(
        ["kite", "fox"].contains(&read["kind"].as_str().unwrap()),
        "{read}"
    );
    assert!((1..=9).contains(&read["count"].as_i64().unwrap()), "{read}");
}

#[tokio::test]
async fn answers_match_what_was_asked_for() {
    let folder = checkpoints::writer();
    let http = HttpDaemon::with_model(&folder.path().join("writer"), &[]).await;
    if cfg!(not(feature = "grammar")) {
        let (field, words) = http
            .post("/v1/chat/completions", &of_openai(&response_format()))
            .await
            .refused(400);
        assert_eq!(field.as_deref(), Some("response_format"));
        assert!(words.contains("--features installed"), "{words}");
        return;
    }
    let answer = http
        .post("/v1/chat/completions", &of_openai(&response_format()))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    matches(&answer.json()["choices"][0]["message"]["content"]);
    let mut streamed = of_openai(&response_format());
    streamed["stream"] = json!(true);
    let events = http.post("/v1/chat/completions", &streamed).await.events();
    let pieces = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    matches(&Value::from(pieces.collect::<String>()));

    let whole = http
        .post("/api/chat", &of_ollama(&json!({"format": schema()})))
        .await
        .json();
    matches(&whole["message"]["content"]);

    let regex = of_openai(&json!({"sluice": {"regex": "(yes|no)"}}));
    let answer = http.post("/v1/chat/completions", &regex).await.json();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(["yes", "no"].contains(&text), "{text}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn forms_that_cannot_be_honoured_are_refused_by_name() {
    let http = HttpDaemon::embedded().await;
    let refused = async |path: &str, request: Value| http.post(path, &request).await.refused(400);
    let chat = "/v1/chat/completions";
    // The model is a masked diffusion model.
    for (more, field) in [
        (response_format(), "response_format"),
        (
            json!({"response_format": {"type": "json_object"}}),
            "response_format",
        ),
        (
            json!({"response_format": {"type": "yaml"}}),
            "response_format",
        ),
        (json!({"sluice": {"regex": "a"}}), "sluice.regex"),
        (json!({"sluice": {"lark": "start: \"a\""}}), "sluice.lark"),
        (
            json!({"sluice": {"lark": "a", "regex": "b"}}),
            "sluice.lark",
        ),
        (
            json!({"sluice": {"preset": "fast"}, "response_format": {"type": "json_object"}}),
            "response_format",
        ),
    ] {
        let (found, words) = refused(chat, of_openai(&more)).await;
        assert_eq!(found.as_deref(), Some(field), "{words}");
    }
    let ollama = http
        .post("/api/chat", &of_ollama(&json!({"format": "json"})))
        .await;
    assert_eq!(ollama.status, 400);
    assert!(ollama.body.contains("format"), "{}", ollama.body);
}
