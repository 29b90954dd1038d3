//! What the daemon remembers, in prompts of both APIs.

use serde_json::{Value, json};
use sluice_proto::v1::{
    self, generation_event::Event, import_sources_request::Part,
    memory_service_client::MemoryServiceClient,
};

use crate::{
    client::HttpDaemon,
    support::{chat, generate, pictures},
};

const QUESTION: &str = "When does the pool of Lindenau open?";

/// A daemon that remembers a file.
async fn remembering() -> HttpDaemon {
    let http = HttpDaemon::embedded().await;
    let parts = [
        Part::Begin(v1::ImportBegin {
            collection: "notes".to_owned(),
            ..Default::default()
        }),
        Part::Source(v1::SourceHeader {
            kind: v1::MemorySourceKind::File.into(),
            name: "/home/me/pool.md".to_owned(),
            modified_unix_s: None,
        }),
        Part::Chunk(b"# Pool\n\n## Hours\n\nThe pool of Lindenau opens at eight.\n".to_vec()),
    ];
    let messages = parts.map(|part| v1::ImportSourcesRequest { part: Some(part) });
    let mut client = MemoryServiceClient::new(http.daemon.channel().await);
    let answer = client.import_sources(tokio_stream::iter(messages)).await;
    pictures(answer).await.unwrap();
    http
}

/// The question to a path that takes messages.
fn ask(more: Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": QUESTION}], "stream": false});
    let more = more.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(more);
    request
}

/// What an answer tells of memory, without the time of the search.
fn told(facts: &Value) -> Value {
    let mut memory = facts["memory"].clone();
    let elapsed = memory.as_object_mut().unwrap().remove("elapsed_ms");
    assert!(elapsed.unwrap().as_f64().unwrap() >= 0.0);
    memory
}

#[tokio::test]
async fn answers_tell_what_stands_in_their_prompts_as_grpc_does() {
    let http = remembering().await;
    let request = v1::GenerateRequest {
        memory: Some(v1::MemoryOptions::default()),
        ..chat(QUESTION)
    };
    let events = generate(&http.daemon, request).await.unwrap();
    let started = events.into_iter().find_map(|event| match event {
        Event::Started(started) => Some(started),
        _ => None,
    });
    let started = started.unwrap();
    // As text, since floats of answers were text as well.
    let facts = json!({"memory": started.memory}).to_string();
    let expected = told(&serde_json::from_str(&facts).unwrap());
    let piece = &expected["pieces"][0];
    assert_eq!(
        (
            &piece["label"],
            expected["pieces"].as_array().unwrap().len()
        ),
        (&json!(1), 1)
    );
    assert_eq!(piece["hit"]["source"]["name"], "/home/me/pool.md");
    assert_eq!(piece["hit"]["piece"]["heading"], "Pool › Hours");
    assert!(piece["hit"]["score"].is_f64() && piece["hit"]["piece"]["piece_id"].is_i64());
    assert!(piece["tokens"].as_u64() > Some(0));

    let with = json!({"memory": {"max_tokens": 512, "collections": ["notes"]}});
    let path = "/v1/chat/completions";
    let whole = http
        .post(path, &ask(json!({"n": 2, "max_tokens": 4, "sluice": with})))
        .await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    for index in 0..2 {
        assert_eq!(told(&whole["choices"][index]["sluice"]), expected);
    }
    assert_eq!(whole["usage"]["prompt_tokens"], started.prompt_tokens);
    let streamed = ask(json!({"stream": true, "max_tokens": 4, "sluice": {"memory": true}}));
    let events = http.post(path, &streamed).await.events();
    assert_eq!(
        told(&events.last().unwrap()["choices"][0]["sluice"]),
        expected
    );

    let options = json!({"num_predict": 4});
    for stream in [false, true] {
        let more = json!({"stream": stream, "options": options, "sluice": {"memory": true}});
        let lines = http.post("/api/chat", &ask(more)).await.lines();
        assert_eq!(told(&lines.last().unwrap()["sluice"]), expected);
    }
    let prompt = json!({"prompt": QUESTION, "options": options, "sluice": {"memory": true}});
    let lines = http.post("/api/generate", &prompt).await.lines();
    assert_eq!(told(&lines.last().unwrap()["sluice"]), expected);

    // Nothing is put into a prompt that nobody asked for.
    for sluice in [
        json!({}),
        json!({"memory": false}),
        json!({"memory": {"max_tokens": 0}}),
    ] {
        let without = http
            .post(path, &ask(json!({"max_tokens": 4, "sluice": sluice})))
            .await;
        let without = without.json();
        let facts = without["choices"][0]["sluice"].as_object().unwrap();
        assert!(!facts.contains_key("memory"), "{sluice}");
        let tokens = without["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(tokens < started.prompt_tokens.into(), "{sluice}");
    }
}

#[tokio::test]
async fn answers_tell_where_texts_without_a_position_stand() {
    let http = remembering().await;
    for sluice in [
        json!({"pins": [{"text": "Lindenau", "anywhere": true}]}),
        json!({"memory": {"pinned_names": 1}}),
    ] {
        let question = json!([{"role": "user", "content": "When does the pool open?"}]);
        let more = json!({"messages": question, "sluice": sluice});
        for (path, stream) in [
            ("/v1/chat/completions", false),
            ("/v1/chat/completions", true),
            ("/api/chat", false),
        ] {
            let mut request = ask(more.clone());
            request["stream"] = stream.into();
            let answer = http.post(path, &request).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            let facts = match (path, stream) {
                ("/api/chat", _) => answer.lines().last().unwrap()["sluice"].clone(),
                (_, true) => answer.events().last().unwrap()["choices"][0]["sluice"].clone(),
                (_, false) => answer.json()["choices"][0]["sluice"].clone(),
            };
            let texts = facts["placed"]["texts"].as_array().unwrap();
            assert_eq!(texts.len(), 1, "{sluice}: {facts}");
            let tokens = texts[0]["tokens"].as_array().unwrap();
            let positions: Vec<_> = tokens.iter().map(|token| &token["position"]).collect();
            assert!(!positions.is_empty() && positions.iter().all(|place| place.is_u64()));
        }
    }
}

#[tokio::test]
async fn what_memory_cannot_do_is_refused_by_name() {
    let http = remembering().await;
    let raw = json!({"prompt": "a", "sluice": {"memory": true}});
    let (field, words) = http.post("/v1/completions", &raw).await.refused(400);
    assert_eq!(field.as_deref(), Some("sluice.memory"));
    assert!(words.contains("conversations"), "{words}");
    let raw = json!({"prompt": "a", "raw": true, "sluice": {"memory": true}});
    let answer = http.post("/api/generate", &raw).await;
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("sluice.memory: "), "{}", answer.body);

    let many = vec!["notes"; 65];
    for (memory, status, field, words) in [
        (
            json!({"collections": many}),
            400,
            Some("sluice.memory.collections"),
            "",
        ),
        (json!({"collections": ["other"]}), 404, None, "other"),
        (json!(512), 400, Some("sluice"), "sluice: memory: "),
        (json!("notes"), 400, Some("sluice"), "sluice: memory: "),
        (
            json!({"max_tokens": -1}),
            400,
            Some("sluice"),
            "sluice: memory: max_tokens: ",
        ),
        (
            json!({"collections": "notes"}),
            400,
            Some("sluice"),
            "sluice: memory: collections: ",
        ),
        (
            json!({"pinned_names": 5}),
            400,
            Some("sluice.memory.pinned_names"),
            "5 is more than 4",
        ),
        (
            json!({"ranking": "words"}),
            400,
            Some("sluice"),
            "sluice: memory: ranking: there is no such field",
        ),
    ] {
        let request = ask(json!({"sluice": {"memory": memory}}));
        let answer = http.post("/v1/chat/completions", &request).await;
        let (named, told) = answer.refused(status);
        assert_eq!(named.as_deref(), field, "{told}");
        assert!(told.contains(words), "{told}");
    }
}
