//! What passes compute, over the wire: the dial and each of its parts, what goes with what, and a daemon that lives on.

use std::fs;

use serde_json::Value;
use sluice_proto::{
    model::{CanvasGrowth, DecodingChoice},
    v1::{self, generation_event::Event},
};
use tonic::Code;

use crate::support::{Daemon, RequestOptions, checkpoints, done, generate, tokens};

/// A request of a few blocks with these words on its decoding, each as people write it.
fn asked(words: &[(&str, &str)]) -> v1::GenerateRequest {
    let mut choice = DecodingChoice::default();
    for (key, word) in words {
        match *key {
            "dial" => choice.preset = Some(word.parse().unwrap()),
            "policy" => choice.policy = Some(word.parse().unwrap()),
            "cache" => choice.kv_cache = Some(word.parse().unwrap()),
            "window" => choice.suffix_window = Some(word.parse().unwrap()),
            "growth" => choice.canvas_growth = Some(word.parse().unwrap()),
            "speculation" => choice.speculation = Some(word.parse().unwrap()),
            other => panic!("'{other}' is no key"),
        }
    }
    let mut request = v1::GenerateRequest {
        block_length: Some(8),
        ..tokens(&[1, 2, 3], 32)
    }
    .sampled(|sampling| sampling.eos_policy = v1::EosPolicy::Keep.into());
    choice.write(request.diffusion_mut());
    request
}

fn started(events: &[Event]) -> &v1::GenerationStarted {
    let started = events.iter().find_map(|event| match event {
        Event::Started(started) => Some(started),
        _ => None,
    });
    started.expect("every request starts")
}

/// Dial, cache, window, growth and speculation as they were resolved.
fn resolved(started: &v1::GenerationStarted) -> [String; 5] {
    let decoding = started.decoding();
    let words = [
        decoding.preset.map(|preset| preset.to_string()),
        decoding.kv_cache.map(|reuse| reuse.to_string()),
        decoding.suffix_window.map(|masks| masks.to_string()),
        decoding.canvas_growth.map(|growth| growth.to_string()),
        decoding
            .speculation
            .map(|speculation| speculation.to_string()),
    ];
    words.map(Option::unwrap_or_default)
}

async fn tiny(arguments: &[&str]) -> Daemon {
    Daemon::with_model(&checkpoints::fixture("llada-tiny"), arguments).await
}

#[tokio::test]
async fn the_caches_of_the_reference_give_its_tokens() {
    let daemon = tiny(&[]).await;
    let folder = checkpoints::fixture("llada-tiny");
    let expected = fs::read(folder.join("expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let mut compared = 0;
    for case in expected["generate"].as_array().unwrap() {
        let cache = match case["algorithm"].as_str().unwrap() {
            "Fast-dLLM prefix cache" => "prefix",
            "Fast-dLLM dual cache" => "dual",
            _ => continue,
        };
        let ids = |key: &str| -> Vec<u32> { serde_json::from_value(case[key][0].clone()).unwrap() };
        let parameters = &case["params"];
        let number = |key: &str| parameters[key].as_u64().unwrap() as u32;
        let policy = match (&parameters["threshold"], &parameters["factor"]) {
            (Value::Number(threshold), _) => format!("threshold:t={threshold}"),
            (_, Value::Number(factor)) => format!("factor:f={factor}"),
            _ => "reference".to_owned(),
        };
        let request = v1::GenerateRequest {
            block_length: Some(number("block_length")),
            ..asked(&[("cache", cache), ("policy", &policy)])
        }
        .diffused(|diffusion| diffusion.steps = Some(number("steps")));
        let request = v1::GenerateRequest {
            input: tokens(&ids("prompt_ids"), 1).input,
            length: Some(number("gen_length")),
            ..request
        };
        let events = generate(&daemon, request).await.unwrap();
        assert_eq!(
            done(&events).token_ids,
            ids("generated"),
            "{}",
            case["name"]
        );
        assert!(!done(&events).is_exact && !started(&events).is_exact);
        compared += 1;
    }
    assert_eq!(compared, 14);
}

#[tokio::test]
async fn each_way_of_decoding_fills_the_canvas_and_is_told() {
    let daemon = tiny(&[]).await;
    for words in [
        [("cache", "prefix:recompute-before=4"), ("window", "8")],
        [("cache", "dual:refresh=2,keep=0.5"), ("window", "0")],
        [
            ("cache", "vicinity:recompute-around=4"),
            ("growth", "append"),
        ],
        [("speculation", "explore:branches=2"), ("window", "16")],
        [("speculation", "draft:branches=3"), ("growth", "append")],
        [("policy", "threshold:t=0.5"), ("growth", "append")],
    ] {
        let events = generate(&daemon, asked(&words)).await.unwrap();
        let started = started(&events);
        let told = resolved(started);
        for (key, word) in words {
            let place = ["dial", "cache", "window", "growth", "speculation"];
            if let Some(place) = place.iter().position(|place| *place == key) {
                assert_eq!(told[place], word, "{words:?}");
            }
        }
        assert_eq!(told[0], "exact", "what nobody said");
        let done = done(&events);
        assert_eq!(done.token_ids.len(), 32, "{words:?}");
        assert!(done.passes > 0 && !done.is_exact, "{words:?}");
    }
}

#[tokio::test]
async fn a_canvas_that_is_lengthened_ends_within_its_length() {
    let daemon = tiny(&[]).await;
    let request = v1::GenerateRequest {
        length: Some(96),
        ..asked(&[("growth", "insert"), ("policy", "threshold:t=0.5")])
    }
    .sampled(|sampling| sampling.eos_policy = v1::EosPolicy::Stop.into());
    let events = generate(&daemon, request).await.unwrap();
    assert!(done(&events).token_ids.len() <= 96);
    let growth = started(&events).decoding().canvas_growth;
    assert_eq!(growth, Some(CanvasGrowth::Insert));
}

#[tokio::test]
async fn drafts_give_the_same_tokens_in_no_more_passes() {
    let daemon = tiny(&[]).await;
    for policy in ["reference", "threshold:t=0.3"] {
        let plain = asked(&[("policy", policy)]);
        let plain = generate(&daemon, plain).await.unwrap();
        let drafted = asked(&[("policy", policy), ("speculation", "draft:branches=4")]);
        let drafted = generate(&daemon, drafted).await.unwrap();
        assert_eq!(done(&drafted).token_ids, done(&plain).token_ids);
        assert!(done(&drafted).passes <= done(&plain).passes);
        assert_eq!(done(&drafted).is_exact, done(&plain).is_exact);
    }
}

#[tokio::test]
async fn what_does_not_go_together_is_refused_and_the_daemon_lives_on() {
    let daemon = tiny(&[]).await;
    let with = |change: fn(&mut v1::GenerateRequest)| {
        let mut request = asked(&[]);
        change(&mut request);
        request
    };
    let pinned = v1::CanvasPin {
        position: 2,
        content: Some(v1::canvas_pin::Content::Tokens(v1::TokenIds {
            ids: vec![9],
        })),
        anywhere: false,
    };
    for (request, reason, message) in [
        (
            with(|request| request.diffusion_mut().preset = 9),
            "INVALID_FIELD",
            "diffusion.preset: has no value 9",
        ),
        (
            with(|request| request.diffusion_mut().canvas_growth = 9),
            "INVALID_FIELD",
            "diffusion.canvas_growth: has no value 9",
        ),
        (
            with(|request| {
                request.diffusion_mut().kv_cache = Some(v1::KvCacheReuse::default());
            }),
            "INVALID_FIELD",
            "diffusion.kv_cache: has no mode",
        ),
        (
            asked(&[("cache", "dual"), ("speculation", "draft")]),
            "SAMPLING",
            "speculation cannot be combined with a KV cache or with inserted masks",
        ),
        (
            asked(&[("growth", "append"), ("window", "8")]),
            "SAMPLING",
            "diffusion.suffix_window: a suffix window has no effect on a canvas that grows by appending; leave it out",
        ),
        (
            asked(&[("growth", "insert"), ("speculation", "explore")]),
            "SAMPLING",
            "speculation cannot be combined with a KV cache or with inserted masks",
        ),
        (
            asked(&[("growth", "insert")]).diffused(|diffusion| diffusion.pins = vec![pinned]),
            "SAMPLING",
            "canvas growth requires a model with an end token and no pinned positions",
        ),
    ] {
        let error = generate(&daemon, request).await.unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        assert_eq!(error.reason.as_deref(), Some(reason));
        assert!(error.message.contains(message), "{}", error.message);
    }
    let events = generate(&daemon, asked(&[])).await.unwrap();
    assert!(done(&events).is_exact);
}

#[tokio::test]
async fn the_daemons_preset_is_for_requests_that_say_nothing() {
    let daemon = tiny(&["--preset", "balanced"]).await;
    let told = async |request| {
        let events = generate(&daemon, request).await.unwrap();
        let started = started(&events).clone();
        let policy = started.diffusion.clone().unwrap().policy.unwrap().name;
        (resolved(&started), policy)
    };
    // A window as long as what is left leaves nothing out.
    let balanced = ["balanced", "dual:recompute-before=32", "", "fixed", "none"].map(str::to_owned);
    let exact = ["exact", "none", "", "fixed", "none"].map(str::to_owned);
    assert_eq!(
        told(asked(&[])).await,
        (balanced.clone(), "threshold".to_owned())
    );
    let reference = "reference".to_owned();
    assert_eq!(
        told(asked(&[("dial", "exact")])).await,
        (exact.clone(), reference.clone())
    );
    let steps = asked(&[]).diffused(|diffusion| diffusion.steps = Some(16));
    assert_eq!(told(steps).await, (exact, reference.clone()));
    let policy = asked(&[("policy", "reference")]);
    assert_eq!(told(policy).await, (balanced, reference));
}

#[tokio::test]
async fn a_causal_model_has_no_preset() {
    let folder = checkpoints::fixture("llama-tiny");
    let daemon = Daemon::with_model(&folder, &["--preset", "fast"]).await;
    let with = |preset: v1::DecodingPreset| {
        tokens(&[1, 2, 3], 4).diffused(|diffusion| diffusion.preset = preset.into())
    };
    let events = generate(&daemon, with(v1::DecodingPreset::Unspecified))
        .await
        .unwrap();
    assert_eq!(resolved(started(&events)), [""; 5].map(str::to_owned));
    let error = generate(&daemon, with(v1::DecodingPreset::Fast))
        .await
        .unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
    assert_eq!(error.reason.as_deref(), Some("ONLY_MASKED_DIFFUSION"));
    assert!(
        error.message.contains("diffusion.preset"),
        "{}",
        error.message
    );
}
