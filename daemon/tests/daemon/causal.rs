//! Causal models over the wire: tokens and text come as they are written, and what is for other models is refused.

use std::fs;

use serde_json::Value;
use sluice_proto::v1::{self, generate_request::Decoding, generation_event::Event, model_ref::By};
use sluice_shared::exit;
use tempfile::TempDir;

use crate::support::{
    Daemon, RequestOptions, chat, checkpoints, done, generate, run, tokens, within,
};

#[tokio::test]
async fn the_reference_tokens_come_out_one_by_one() {
    let folder = checkpoints::fixture("llama-tiny");
    let daemon = Daemon::with_model(&folder, &["--kv-cache-format", "f32"]).await;
    let snapshot = daemon.snapshot().await;
    let options = snapshot.settings.unwrap().options.unwrap();
    assert_eq!(options.kv_cache_format(), v1::KvCacheFormat::F32);
    let shape = snapshot.model.unwrap().shape.unwrap();
    assert_eq!(
        (shape.family.as_str(), shape.kind(), shape.mask_token_id),
        ("llama", v1::ModelKind::Autoregressive, None)
    );
    let expected = fs::read(folder.join("expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    for case in expected["generate"].as_array().unwrap() {
        let ids = |key: &str| -> Vec<u32> { serde_json::from_value(case[key][0].clone()).unwrap() };
        let answer = ids("generated");
        let request = tokens(&ids("prompt_ids"), answer.len() as u32)
            .sampled(|sampling| sampling.eos_policy = v1::EosPolicy::Keep.into());
        let events = generate(&daemon, request).await.unwrap();
        let done = done(&events);
        assert_eq!(done.token_ids, answer, "{}", case["name"]);
        assert!(done.is_exact);
        assert_eq!(done.finish_reason(), v1::FinishReason::Length);
        let blocks = events
            .iter()
            .filter(|event| matches!(event, Event::BlockDone(_)));
        assert_eq!(blocks.count(), answer.len().div_ceil(32));
    }
}

#[tokio::test]
async fn text_grows_in_whole_characters_and_ends_before_a_stop() {
    let folder = checkpoints::writer();
    let daemon = Daemon::with_model(&folder.path().join("writer"), &[]).await;
    let ask = || {
        v1::GenerateRequest {
            length: Some(60),
            ..chat("Tell me a story.")
        }
        .sampled(|sampling| {
            sampling.seed = Some(4);
            sampling.temperature = Some(0.8);
            sampling.top_k = Some(400);
            sampling.eos_policy = v1::EosPolicy::Suppress.into();
        })
    };
    let events = generate(&daemon, ask()).await.unwrap();
    let Event::Started(started) = &events[1] else {
        panic!("the second event is {:?}", events[1]);
    };
    assert_eq!(started.prompt_text, b"user: Tell me a story.\nassistant:");
    let mut stable: &[u8] = b"";
    for event in &events {
        let Event::PassDone(pass) = event else {
            continue;
        };
        let next = &pass.stable_text;
        assert!(next.starts_with(stable) && !is_cut(next));
        stable = next;
    }
    let whole = done(&events).text.clone().unwrap();
    assert!(whole.starts_with(&*String::from_utf8_lossy(stable)));

    // The same again ends where a few of its characters begin.
    let ascii = |at: usize| whole.get(at..at + 4).filter(|stop| stop.is_ascii());
    let stop = (whole.len() / 2..whole.len()).find_map(ascii);
    let stop = stop.unwrap().to_owned();
    let request = v1::GenerateRequest {
        decoding: Some(Decoding::Autoregressive(v1::AutoregressiveOptions {
            stop: vec!["nowhere to be found".to_owned(), stop.clone()],
            ..Default::default()
        })),
        ..ask()
    };
    let events = generate(&daemon, request).await.unwrap();
    let stopped = done(&events);
    assert_eq!(stopped.finish_reason(), v1::FinishReason::Stop);
    assert_eq!(stopped.text.as_deref(), whole.split(&stop).next());
    for event in &events {
        let Event::PassDone(pass) = event else {
            continue;
        };
        let shown = String::from_utf8_lossy(&pass.stable_text);
        assert!(stopped.text.as_ref().unwrap().starts_with(&*shown));
    }
}

#[tokio::test]
async fn keys_and_values_that_are_rounded_make_no_exact_answer() {
    for (kv, is_exact) in [
        ("auto", false),
        ("q8_0", false),
        ("q4_0", false),
        ("f32", true),
    ] {
        let folder = checkpoints::fixture("llama-tiny");
        let daemon = Daemon::with_model(&folder, &["--kv-cache-format", kv]).await;
        let events = generate(&daemon, tokens(&[1, 2, 3], 4)).await.unwrap();
        let told: Vec<_> = (events.iter())
            .filter_map(|event| match event {
                Event::Started(started) => Some(started.is_exact),
                Event::PassDone(pass) => Some(pass.is_exact),
                Event::Done(done) => Some(done.is_exact),
                _ => None,
            })
            .collect();
        assert!(told.len() > 2);
        assert!(
            told.iter().all(|&exact| exact == is_exact),
            "{kv}: {told:?}"
        );
    }
}

/// Whether the text ends within a character. What is no character at all, as a random model writes it, ends nothing.
fn is_cut(text: &[u8]) -> bool {
    let last = text.utf8_chunks().last();
    let rest = last.map_or(&[][..], |last| last.invalid());
    std::str::from_utf8(rest).is_err_and(|error| error.error_len().is_none())
}

#[tokio::test]
async fn what_other_models_have_is_refused() {
    let daemon = Daemon::with_model(&checkpoints::fixture("llama-tiny"), &[]).await;
    let base = || tokens(&[1, 2, 3], 8);
    for (request, field) in [
        (
            base().diffused(|diffusion| diffusion.guidance = Some(1.0)),
            "diffusion.guidance",
        ),
        (
            base().diffused(|diffusion| diffusion.steps = Some(4)),
            "diffusion.steps",
        ),
        (
            base().diffused(|diffusion| {
                diffusion.kv_cache = Some(v1::KvCacheReuse {
                    mode: v1::KvCacheMode::Prefix.into(),
                    ..Default::default()
                });
            }),
            "diffusion.kv_cache",
        ),
        (
            base().diffused(|diffusion| diffusion.remasking = v1::Remasking::Entropy.into()),
            "diffusion.remasking",
        ),
    ] {
        let error = generate(&daemon, request).await.unwrap_err();
        assert_eq!(
            error.reason.as_deref(),
            Some("ONLY_MASKED_DIFFUSION"),
            "{field}"
        );
        assert!(error.message.starts_with(field), "{}", error.message);
    }
    let score = v1::ScoreRequest {
        prompt: Some(v1::score_request::Prompt::Tokens(v1::TokenIds {
            ids: vec![1],
        })),
        answer: Some(v1::score_request::Answer::AnswerTokens(v1::TokenIds {
            ids: vec![2],
        })),
        ..Default::default()
    };
    let mut client = daemon.generation().await;
    let refused = within("a refusal", client.score(score)).await.unwrap_err();
    assert!(refused.message().contains(
        ": only masked diffusion models support this; the loaded model is autoregressive"
    ));

    let masked = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let request = base().sampled(|sampling| sampling.top_k = Some(4));
    let error = generate(&masked, request).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("ONLY_AUTOREGRESSIVE"));
}

#[tokio::test]
async fn without_a_template_there_is_no_conversation() {
    let folder = checkpoints::writer();
    let model = folder.path().join("writer");
    fs::remove_file(model.join("chat_template.jinja")).unwrap();
    let daemon = Daemon::with_model(&model, &[]).await;
    let error = generate(&daemon, chat("hello")).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("NO_CHAT_TEMPLATE"));
    let raw = v1::GenerateRequest {
        input: Some(v1::generate_request::Input::RawText("Once upon".to_owned())),
        length: Some(4),
        ..Default::default()
    };
    assert!(generate(&daemon, raw).await.is_ok());
}

#[tokio::test]
async fn keys_and_values_are_planned() {
    let cache = async |kv: &str| {
        let folder = TempDir::new().unwrap();
        let ask = [
            "plan",
            "--shape",
            "tinyllama-1.1b",
            "--canvas",
            "2048",
            "--budget",
            "8GiB",
        ];
        let output = run(
            folder.path(),
            &[&ask[..], &["--kv-cache-format", kv, "--json"]].concat(),
        )
        .await;
        assert_eq!(output.status.code(), Some(i32::from(exit::OK)));
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            json["kv_cache_format"],
            if kv == "auto" { "bf16" } else { kv }
        );
        let kinds = json["memory"].as_array().unwrap();
        let kind = kinds
            .iter()
            .find(|kind| kind["kind"] == "kv_cache")
            .unwrap();
        kind["bytes"].as_u64().unwrap()
    };
    // 22 layers of 4 heads of 64 for 2048 positions, keys and values.
    let numbers = 22 * 4 * 64 * 2048 * 2u64;
    assert_eq!(cache("f32").await, numbers * 4);
    assert_eq!(cache("auto").await, numbers * 2);
    assert_eq!(cache("q8_0").await, numbers / 32 * 34);
    // Three blocks of 32 positions are kept in 8 bits, too; all is in whole pages.
    let recent = numbers / 2048 * 96 / 32 * 34;
    let planned = |block_bytes: u64| (numbers / 32 * block_bytes + recent).next_multiple_of(4096);
    assert_eq!(cache("q5_0").await, planned(22));
    assert_eq!(cache("q4_0").await, planned(18));
}

fn started(events: &[Event]) -> &v1::GenerationStarted {
    let found = events.iter().find_map(|event| match event {
        Event::Started(started) => Some(started),
        _ => None,
    });
    found.expect("a request that runs starts")
}

/// How tokens are chosen, as people read it.
fn told(started: &v1::GenerationStarted) -> Vec<String> {
    let line = |setting: &v1::ResolvedSetting| {
        format!("{} {} ({})", setting.name, setting.value, setting.origin)
    };
    started.settings.iter().map(line).collect()
}

#[tokio::test]
async fn a_chat_model_is_drawn_from_and_its_seed_gives_the_answer_again() {
    let folder = checkpoints::writer();
    let daemon = Daemon::with_model(&folder.path().join("writer"), &[]).await;
    let ask = |seed: Option<u64>, greedy: bool| {
        v1::GenerateRequest {
            length: Some(40),
            ..chat("Tell me a story.")
        }
        .sampled(|sampling| {
            sampling.seed = seed;
            sampling.greedy = greedy;
        })
    };
    let first = generate(&daemon, ask(None, false)).await.unwrap();
    let start = started(&first);
    assert_eq!(
        told(start),
        [
            "temperature 0.7 (built-in)",
            "top_p 0.9 (built-in)",
            "repetition_penalty 1.1 (built-in)"
        ]
    );
    assert!(start.is_seed_drawn);
    let again = generate(&daemon, ask(Some(start.seed), false))
        .await
        .unwrap();
    assert!(!started(&again).is_seed_drawn);
    assert_eq!(done(&again).token_ids, done(&first).token_ids);
    let other = generate(&daemon, ask(None, false)).await.unwrap();
    assert_ne!(done(&other).token_ids, done(&first).token_ids);

    let greedy = generate(&daemon, ask(None, true)).await.unwrap();
    assert_eq!(told(started(&greedy)), ["temperature 0 (request)"]);
    assert!(!started(&greedy).is_seed_drawn);
    let again = generate(&daemon, ask(None, true)).await.unwrap();
    assert_eq!(done(&again).token_ids, done(&greedy).token_ids);
}

#[tokio::test]
async fn a_checkpoints_own_advice_is_taken_as_far_as_it_makes_sense() {
    let folder = checkpoints::writer();
    let model = folder.path().join("writer");
    let advice = r#"{"temperature": 0.4, "top_k": 30, "top_p": 7, "min_p": "some"}"#;
    fs::write(model.join("generation_config.json"), advice).unwrap();
    let daemon = Daemon::with_model(&model, &[]).await;
    let request = v1::GenerateRequest {
        length: Some(4),
        ..chat("Tell me a story.")
    };
    let events = generate(&daemon, request).await.unwrap();
    let place = "(generation_config.json)";
    assert_eq!(
        told(started(&events)),
        [
            format!("temperature 0.4 {place}"),
            format!("top_k 30 {place}")
        ]
    );
    let log = daemon.log();
    assert!(
        log.contains("top_p must be above 0 and at most 1, not 7; ignored"),
        "{log}"
    );
    let request = v1::InspectModelRequest {
        model: By::Path(model.to_str().unwrap().to_owned()).into(),
    };
    let answer = daemon.models().await.inspect_model(request).await;
    let answer = answer.unwrap().into_inner();
    let warnings = answer.facts.iter().filter(|fact| fact.name == "warning");
    let warnings: Vec<_> = warnings.map(|fact| fact.value.as_str()).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let found = |name: &str| answer.settings.iter().find(|setting| setting.name == name);
    assert_eq!(found("top_k").unwrap().origin, "generation_config.json");
}

#[tokio::test]
async fn an_answer_that_was_cut_says_so_and_why() {
    let folder = checkpoints::writer();
    let daemon = Daemon::with_model(&folder.path().join("writer"), &[]).await;
    let ended = async |request: v1::GenerateRequest| {
        let events = generate(&daemon, request).await.unwrap();
        let done = done(&events);
        (done.finish_reason(), done.is_truncated)
    };
    let short = tokens(&[5, 6, 7], 4);
    assert_eq!(ended(short.clone()).await, (v1::FinishReason::Length, true));
    // A context of 512.
    let long = v1::GenerateRequest {
        length: None,
        ..tokens(&[5; 500], 0)
    };
    assert_eq!(ended(long).await, (v1::FinishReason::Context, true));
    // Who wants no end has what was asked for.
    let endless = short.sampled(|sampling| sampling.eos_policy = v1::EosPolicy::Suppress.into());
    assert_eq!(ended(endless).await, (v1::FinishReason::Length, false));
}
