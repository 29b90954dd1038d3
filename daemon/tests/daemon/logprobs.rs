//! Log-probabilities of written tokens over the wire.

use std::{collections::BTreeMap, fs};

use safetensors::SafeTensors;
use serde_json::Value;
use sluice_proto::v1::{self, generation_event::Event};

use crate::support::{Daemon, RequestOptions, checkpoints, done, generate, tokens, within};

fn with_logprobs(mut request: v1::GenerateRequest, top: u32) -> v1::GenerateRequest {
    request.autoregressive_mut().top_logprobs = Some(top);
    request
}

/// Tokens with log-probabilities by position, each of which must come in one block alone.
fn of_blocks(events: &[Event]) -> BTreeMap<u32, v1::CanvasToken> {
    let mut found = BTreeMap::new();
    for event in events {
        if let Event::BlockDone(block) = event {
            for token in &block.tokens {
                assert!(token.logprobs.is_some());
                let before = found.insert(token.position, token.clone());
                assert_eq!(before, None, "twice at {}", token.position);
            }
        }
    }
    found
}

#[tokio::test]
async fn they_are_the_soft_max_of_the_reference_logits() {
    let folder = checkpoints::fixture("llama-tiny");
    let daemon = Daemon::with_model(&folder, &["--kv-cache-format", "f32"]).await;
    let cases = fs::read(folder.join("expected.json")).unwrap();
    let cases: Value = serde_json::from_slice(&cases).unwrap();
    let tensors = fs::read(folder.join("expected.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&tensors).unwrap();
    for name in ["one_token", "short", "long"] {
        let mut inputs = cases["forward"].as_array().unwrap().iter();
        let case = inputs.find(|case| case["name"] == name).unwrap();
        let ids: Vec<u32> = serde_json::from_value(case["input_ids"][0].clone()).unwrap();
        let logits = tensors.tensor(&format!("forward.{name}.logits")).unwrap();
        let size = *logits.shape().last().unwrap();
        let bytes = logits.data().chunks_exact(4).rev().take(size).rev();
        let logits: Vec<f64> = bytes
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()).into())
            .collect();
        let log_sum = logits.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        // Whatever is done with the logits, what is told is what the model said.
        let drawn = tokens(&ids, 1).sampled(|sampling| {
            sampling.greedy = false;
            sampling.temperature = Some(1.5);
            sampling.repetition_penalty = Some(1.3);
            sampling.top_k = Some(40);
        });
        for request in [tokens(&ids, 1), drawn] {
            let events = generate(&daemon, with_logprobs(request, 20)).await.unwrap();
            let token = of_blocks(&events).remove(&0).unwrap();
            let told = token.logprobs.unwrap();
            let near = |logprob: f32, id: u32| {
                let expected = logits[id as usize] - log_sum;
                let error = (f64::from(logprob) - expected).abs();
                assert!(error < 1e-3, "{name} {id}: {logprob} for {expected}");
            };
            near(told.logprob, token.id.unwrap());
            assert_eq!(told.top.len(), 20);
            assert!(told.top.is_sorted_by(|a, b| a.logprob >= b.logprob));
            for top in &told.top {
                near(top.logprob, top.id);
            }
            let least = f64::from(told.top[19].logprob) + log_sum;
            let above = logits.iter().filter(|logit| **logit > least + 1e-3);
            assert!(above.count() < 20, "the most probable are there");
        }
    }
}

#[tokio::test]
async fn each_token_has_them_once_whoever_reads_when() {
    let daemon = Daemon::with_model(&checkpoints::fixture("llama-tiny"), &[]).await;
    let request = || v1::GenerateRequest {
        block_length: Some(5),
        ..tokens(&[1, 2, 3], 23)
            .sampled(|sampling| sampling.eos_policy = v1::EosPolicy::Keep.into())
    };
    let events = generate(&daemon, with_logprobs(request(), 2))
        .await
        .unwrap();
    let found = of_blocks(&events);
    let ids: Vec<u32> = found.values().map(|token| token.id.unwrap()).collect();
    assert_eq!(ids, done(&events).token_ids);
    assert_eq!(found.len(), 23);
    // Pictures tell the same of the tokens that they show.
    for event in &events {
        if let Event::PassDone(pass) = event {
            for token in &pass.tokens {
                assert_eq!(token.logprobs, found[&token.position].logprobs);
            }
        }
    }
    // Who comes when all is over has missed all pictures but the last.
    let Event::Queued(queued) = &events[0] else {
        panic!("the first event is {:?}", events[0]);
    };
    let watch = v1::WatchGenerationRequest {
        operation_id: queued.request_id,
    };
    let mut client = daemon.generation().await;
    let mut late = client.watch_generation(watch).await.unwrap().into_inner();
    let mut told = Vec::new();
    while let Some(response) = within("an event", late.message()).await.unwrap() {
        told.extend(response.event.and_then(|event| event.event));
    }
    assert_eq!(of_blocks(&told), found);
    // They change no token, and nobody gets them unasked.
    let plain = generate(&daemon, request()).await.unwrap();
    assert_eq!(done(&plain).token_ids, done(&events).token_ids);
    for event in &plain {
        if let Event::BlockDone(block) = event {
            assert!(block.tokens.iter().all(|token| token.logprobs.is_none()));
        }
    }
}

#[tokio::test]
async fn too_many_and_other_models_are_refused() {
    let daemon = Daemon::with_model(&checkpoints::fixture("llama-tiny"), &[]).await;
    let refused = async |request, words: &str| {
        let error = generate(&daemon, request).await.unwrap_err();
        assert!(error.message.contains(words), "{}", error.message);
    };
    let prompt = || tokens(&[1], 4);
    refused(
        with_logprobs(prompt(), 21),
        "autoregressive.top_logprobs: must be at most 20, not 21",
    )
    .await;
    let masked = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    let error = generate(&masked, with_logprobs(prompt(), 0))
        .await
        .unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("ONLY_AUTOREGRESSIVE"));
    assert!(error.message.starts_with("autoregressive.top_logprobs"));
}
