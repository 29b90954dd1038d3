//! Ollama's API.

use serde_json::{Value, json};
use sluice_proto::v1;
use tempfile::TempDir;

use crate::{
    client::{HttpDaemon, token_file},
    support::checkpoints,
};

#[tokio::test]
async fn chats_and_prompts_come_as_lines_and_whole() {
    let http = HttpDaemon::embedded().await;
    let options = json!({"num_predict": 8, "seed": 7, "num_ctx": 4096});
    let messages = json!([{"role": "user", "content": "Tell me a story."}]);
    let ask = |stream: bool| json!({"model": "sluice-demo:latest", "messages": messages, "options": options, "stream": stream});
    let whole = http.post("/api/chat", &ask(false)).await.json();
    assert!(
        whole["done"] == true && whole["done_reason"] == "length",
        "{whole}"
    );
    assert_eq!(whole["model"], "sluice-demo");
    for figure in ["total_duration", "eval_duration", "prompt_eval_count"] {
        assert!(whole[figure].as_u64().unwrap() > 0, "{figure}");
    }
    assert_eq!(whole["eval_count"], 8);
    let text = whole["message"]["content"].as_str().unwrap();
    assert!(!text.is_empty());

    let lines = http.post("/api/chat", &ask(true)).await;
    assert_eq!(lines.header("content-type"), Some("application/x-ndjson"));
    let lines = lines.lines();
    let pieces = lines
        .iter()
        .map(|line| line["message"]["content"].as_str().unwrap());
    assert_eq!(pieces.collect::<String>(), text);
    let (last, others) = lines.split_last().unwrap();
    assert!(last["done"] == true && others.iter().all(|line| line["done"] == false));

    // Without `raw` a prompt is what the user says, and lines are what comes where nobody says.
    let prompt = json!({"prompt": "Tell me a story.", "options": options});
    let lines = http.post("/api/generate", &prompt).await.lines();
    let pieces = lines.iter().map(|line| line["response"].as_str().unwrap());
    assert_eq!(pieces.collect::<String>(), text);
    let raw = json!({"prompt": "Once", "raw": true, "stream": false, "options": options});
    let raw = http.post("/api/generate", &raw).await.json();
    assert!(raw["prompt_eval_count"].as_u64() < whole["prompt_eval_count"].as_u64());
}

#[tokio::test]
async fn errors_are_words_and_what_cannot_be_honoured_is_named() {
    let http = HttpDaemon::embedded().await;
    let messages = json!([{"role": "user", "content": "a"}]);
    for (options, name) in [
        (json!({"mirostat": 2}), "mirostat"),
        (json!({"stop": ["x"]}), "options.stop"),
        (json!({"top_k": 5}), "options.top_k"),
        (json!({"unheard_of": 5}), "unheard_of"),
        (json!({"num_predict": 100_000}), "context length"),
    ] {
        let request = json!({"messages": messages, "options": options});
        let answer = http.post("/api/chat", &request).await;
        assert_eq!(answer.status, 400, "{}", answer.body);
        let words = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(words.contains(name), "{words}");
    }
    let canvas = json!({"messages": messages, "sluice": {"canvas": true}});
    let words = http.post("/api/chat", &canvas).await.json()["error"].to_string();
    assert!(words.contains("sluice.canvas: "), "{words}");
    // What both kinds of models have, under the key that it came by.
    let both =
        json!({"messages": messages, "options": {"stop": "x"}, "sluice": {"preset": "fast"}});
    let words = http.post("/api/chat", &both).await.json()["error"].to_string();
    assert!(words.contains("options.stop: "), "{words}");
    let other = json!({"model": "nobody/knows-it", "messages": messages});
    assert_eq!(http.post("/api/chat", &other).await.status, 404);
}

#[tokio::test]
async fn what_there_is_to_call_is_told() {
    let http = HttpDaemon::embedded().await;
    let tags = http.get("/api/tags").await.json();
    assert_eq!(tags["models"][0]["name"], "sluice-demo");
    assert_eq!(tags["models"][0]["details"]["parameter_size"], "3.93M");
    let ps = http.get("/api/ps").await.json();
    assert!(ps["models"][0]["size_vram"].as_u64().unwrap() > 0, "{ps}");
    assert_eq!(
        http.get("/api/version").await.json()["version"],
        env!("CARGO_PKG_VERSION")
    );
    let shown = http
        .post("/api/show", &json!({"model": "sluice-demo"}))
        .await
        .json();
    assert_eq!(shown["capabilities"], json!(["completion", "insert"]));
    assert_eq!(shown["model_info"]["llada.context_length"], 512);
    assert_eq!(http.get("/api/chat").await.status, 405);
    assert_eq!(http.get("/api/chat").await.header("allow"), Some("post"));
}

#[tokio::test]
async fn requests_without_a_prompt_load_and_unload() {
    let (folder, secrets) = (checkpoints::writer(), TempDir::new().unwrap());
    let tokens = token_file(&secrets, "operate aaaaaaaaaaaaaaaaaaaa\n");
    let model = folder.path().join("writer");
    let http = HttpDaemon::with_model(&model, &["--token-file", &tokens]).await;
    let ask = |path: &'static str, request: Value| {
        let http = &http;
        async move {
            let token = "Authorization: Bearer aaaaaaaaaaaaaaaaaaaa";
            let line = format!("POST {path}");
            let answer = http.send(&line, &[token], &request.to_string()).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            answer.json()
        }
    };
    let loaded = || async {
        let models = http.get("/api/ps").await.json()["models"].take();
        let names = models.as_array().unwrap().iter();
        let names = names.map(|model| model["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    let name = loaded().await.remove(0);
    let present = ask("/api/generate", json!({"model": name, "prompt": ""})).await;
    assert_eq!(present["done_reason"], "load");
    assert!(
        present["done"] == true && present["response"] == "",
        "{present}"
    );
    let mut operations = http.daemon.operations().await;
    let request = v1::ListOperationsRequest {
        kinds: vec![v1::OperationKind::Generate.into()],
        ..Default::default()
    };
    let list = operations.list_operations(request).await.unwrap();
    assert!(list.into_inner().operations.is_empty());

    let mut other = json!({"model": "sluice-demo", "messages": []});
    let answer = ask("/api/chat", other.clone()).await;
    assert_eq!(answer["done_reason"], "load");
    let nothing = json!({"role": "assistant", "content": ""});
    assert_eq!(answer["message"], nothing);
    assert_eq!(loaded().await, [name.as_str(), "sluice-demo"]);
    other["keep_alive"] = json!(0);
    // Who may have text generated may not unload.
    let refused = http.post("/api/chat", &other).await;
    assert_eq!(refused.status, 403, "{}", refused.body);
    assert!(refused.body.contains("operate"), "{}", refused.body);
    assert_eq!(ask("/api/chat", other).await["done_reason"], "unload");
    assert_eq!(loaded().await, [name]);

    let unknown = json!({"model": "nobody/knows-it"});
    assert_eq!(http.post("/api/generate", &unknown).await.status, 404);
}
