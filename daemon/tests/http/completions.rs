//! `/v1/completions`: raw text, token ids, several prompts, and text in between.

use serde_json::json;

use crate::{client::HttpDaemon, support::checkpoints};

#[tokio::test]
async fn prompts_are_texts_or_ids_one_or_several() {
    let http = HttpDaemon::embedded().await;
    let ask = |prompt: serde_json::Value| json!({"prompt": prompt, "max_tokens": 8, "seed": 1});
    let text = |answer: &serde_json::Value, index: usize| {
        answer["choices"][index]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let one = http
        .post("/v1/completions", &ask(json!("Once upon a")))
        .await
        .json();
    assert_eq!(one["object"], "text_completion");
    let two = ask(json!(["There was", "Once upon a"]));
    let two = http.post("/v1/completions", &two).await.json();
    assert_eq!(text(&two, 1), text(&one, 0));
    assert!(two["usage"]["prompt_tokens"].as_u64() > one["usage"]["prompt_tokens"].as_u64());
    let mut echo = ask(json!("Once upon a"));
    echo["echo"] = json!(true);
    let echoed = http.post("/v1/completions", &echo).await.json();
    assert_eq!(text(&echoed, 0), format!("Once upon a{}", text(&one, 0)));
    echo["prompt"] = json!([5, 6]);
    assert_eq!(
        http.post("/v1/completions", &echo)
            .await
            .refused(400)
            .0
            .as_deref(),
        Some("echo")
    );
    assert_eq!(
        http.post("/v1/completions", &ask(json!([5, 6])))
            .await
            .status,
        200
    );
    let (field, _) = http
        .post("/v1/completions", &ask(json!([])))
        .await
        .refused(400);
    assert_eq!(field.as_deref(), Some("prompt"));
}

#[tokio::test]
async fn text_is_put_in_between_by_models_that_can() {
    let (before, after) = ("Once upon a time there was a", " who had a red kite.");
    let ask = |stream: bool| json!({"prompt": before, "suffix": after, "max_tokens": 6, "seed": 3, "stream": stream});
    let http = HttpDaemon::embedded().await;
    let whole = http.post("/v1/completions", &ask(false)).await.json();
    let text = whole["choices"][0]["text"].as_str().unwrap();
    assert!(
        !text.is_empty() && !text.contains(before) && !text.contains(after),
        "{text}"
    );
    assert_eq!(whole["usage"]["completion_tokens"], 6);
    let events = http.post("/v1/completions", &ask(true)).await.events();
    let pieces = events
        .iter()
        .map(|event| event["choices"][0]["text"].as_str().unwrap());
    assert_eq!(pieces.collect::<String>(), text);
    // A word that goes on in the suffix.
    let cut = json!({"prompt": "Mia had a ki", "suffix": "te and ran.", "max_tokens": 4});
    let refused = http.post("/v1/completions", &cut).await;
    if refused.status != 200 {
        assert_eq!(refused.refused(400).0.as_deref(), Some("suffix"));
    }

    let folder = checkpoints::writer();
    let http = HttpDaemon::with_model(&folder.path().join("writer"), &[]).await;
    let (field, _) = http.post("/v1/completions", &ask(false)).await.refused(400);
    assert_eq!(field.as_deref(), Some("suffix"));
}

#[tokio::test]
async fn autoregressive_models_stop_and_tell_probabilities() {
    let folder = checkpoints::writer();
    let http = HttpDaemon::with_model(&folder.path().join("writer"), &[]).await;
    let ask = |more: serde_json::Value| {
        let mut request = json!({
            "prompt": "Once", "max_tokens": 16, "seed": 4, "temperature": 0,
            "sluice": {"eos_policy": "suppress"},
        });
        request
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        request
    };
    let whole = http
        .post("/v1/completions", &ask(json!({"logprobs": 2})))
        .await
        .json();
    let choice = &whole["choices"][0];
    let text = choice["text"].as_str().unwrap();
    let told = &choice["logprobs"];
    let tokens = told["tokens"].as_array().unwrap();
    assert_eq!(tokens.len(), 16);
    for at in 0..tokens.len() {
        let own = told["token_logprobs"][at].as_f64().unwrap();
        let top = told["top_logprobs"][at].as_object().unwrap();
        let most = top
            .values()
            .filter_map(serde_json::Value::as_f64)
            .fold(f64::MIN, f64::max);
        assert!(own <= most && most <= 0.0, "{own} {most}");
    }
    assert_eq!(told["text_offset"][0], 0);
    let many = ask(json!({"logprobs": 21}));
    let (field, _) = http.post("/v1/completions", &many).await.refused(400);
    assert_eq!(field.as_deref(), Some("logprobs"));
    let streamed = ask(json!({"logprobs": 0, "stream": true}));
    let events = http.post("/v1/completions", &streamed).await.events();
    let streamed = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["tokens"].as_array());
    assert_eq!(&streamed.flatten().cloned().collect::<Vec<_>>(), tokens);

    let middle = text.char_indices().nth(text.chars().count() / 2).unwrap().0;
    let stop: String = text[middle..].chars().take(2).collect();
    let stopped = http
        .post(
            "/v1/completions",
            &ask(json!({"stop": ["no such text", stop]})),
        )
        .await
        .json();
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert_eq!(
        stopped["choices"][0]["text"].as_str(),
        text.split(&stop).next()
    );
}

#[tokio::test]
async fn a_temperature_that_the_policy_has_no_use_for_changes_nothing() {
    let http = HttpDaemon::with_model(&checkpoints::fixture("diffusion-gemma-tiny"), &[]).await;
    let mut ask =
        json!({"prompt": [5, 90, 31, 7], "max_tokens": 8, "seed": 1, "sluice": {"steps": 4}});
    let plain = http.post("/v1/completions", &ask).await.json();
    assert!(plain["choices"][0]["sluice"]["warnings"].is_null());
    ask["temperature"] = json!(1);
    let warm = http.post("/v1/completions", &ask).await.json();
    assert_eq!(warm["choices"][0]["text"], plain["choices"][0]["text"]);
    let warnings = &warm["choices"][0]["sluice"]["warnings"];
    assert!(
        warnings[0]
            .as_str()
            .is_some_and(|text| text.contains("temperature 1")),
        "{warnings}"
    );
}
