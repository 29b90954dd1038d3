//! Latent thought models over the wire: samples of the learned prior, texts without a prompt, and what is refused.

use std::{fs, path::Path};

use serde_json::Value;
use sluice_proto::v1::{self, generate_request::Input, generation_event::Event};
use tempfile::TempDir;
use tonic::{Code, Status};

use crate::support::{Daemon, RequestOptions, checkpoints, done, generate, pictures, tokens};

/// The tiny model with a begin token, and with its prior where it is to have one.
fn model(has_prior: bool) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let copy = |from: &Path, name: &str| {
        fs::copy(from.join(name), folder.path().join(name)).unwrap();
    };
    let fixture = checkpoints::fixture("ltm-tiny");
    copy(&fixture, "model.safetensors");
    let config = fs::read(fixture.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["bos_token_id"] = 7.into();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    if has_prior {
        let prior = checkpoints::fixture("prior-tiny");
        copy(&prior, "prior.json");
        copy(&prior, "prior.safetensors");
    }
    folder
}

fn thinking(steps: Option<u32>, prior: Option<v1::PriorSampling>) -> Option<v1::ThinkingOptions> {
    Some(v1::ThinkingOptions {
        steps,
        prior,
        ..Default::default()
    })
}

fn sampling(solver: v1::PriorSolver, steps: u32) -> Option<v1::PriorSampling> {
    Some(v1::PriorSampling {
        solver: solver.into(),
        steps: Some(steps),
    })
}

/// A request without a prompt.
fn unprompted() -> v1::GenerateRequest {
    v1::GenerateRequest {
        input: Some(Input::RawText(String::new())),
        ..tokens(&[], 12)
    }
    .sampled(|sampling| sampling.seed = Some(3))
}

fn thoughts(events: &[Event]) -> Vec<v1::GenerationThought> {
    let thoughts = events.iter().filter_map(|event| match event {
        Event::Thought(thought) => Some(thought.clone()),
        _ => None,
    });
    thoughts.collect()
}

fn setting(events: &[Event], name: &str) -> Option<String> {
    let Event::Started(started) = &events[1] else {
        panic!("the second event is {:?}", events[1]);
    };
    let mut settings = started.settings.iter();
    let found = settings.find(|setting| setting.name == name)?;
    Some(found.value.clone())
}

#[tokio::test]
async fn a_text_without_a_prompt_begins_with_a_sample() {
    let folder = model(true);
    let daemon = Daemon::with_model(folder.path(), &[]).await;
    let shape = daemon.snapshot().await.model.unwrap().shape.unwrap();
    assert!(shape.has_prior && shape.bos_token_id == Some(7));
    let events = generate(&daemon, unprompted()).await.unwrap();
    assert_eq!(
        setting(&events, "prior").as_deref(),
        Some("dpm-solver-pp-2m:25")
    );
    assert_eq!(setting(&events, "think").as_deref(), Some("0"));
    let steps = thoughts(&events);
    assert_eq!(steps.len(), 25);
    for (at, step) in steps.iter().enumerate() {
        assert_eq!((step.step, step.steps_max), (at as u32 + 1, 25));
        assert_eq!(step.is_last, at == 24);
    }
    assert_eq!(steps[24].noise_level, Some(0.0));
    let answer = done(&events).token_ids.clone();
    assert_eq!(answer.len(), 12);

    // The begin token as a prompt is the same request, and so is another solver's none without its sampler.
    let begin = v1::GenerateRequest {
        input: tokens(&[7], 12).input,
        ..unprompted()
    };
    let again = generate(&daemon, begin).await.unwrap();
    assert_eq!(done(&again).token_ids, answer);
    let heun = v1::GenerateRequest {
        thinking: thinking(None, sampling(v1::PriorSolver::Heun, 6)),
        ..unprompted()
    };
    let events = generate(&daemon, heun).await.unwrap();
    assert_eq!(
        (thoughts(&events).len(), setting(&events, "prior")),
        (6, None)
    );
    let none = v1::GenerateRequest {
        thinking: thinking(
            None,
            Some(v1::PriorSampling {
                solver: v1::PriorSolver::None.into(),
                steps: None,
            }),
        ),
        ..unprompted()
    };
    let events = generate(&daemon, none).await.unwrap();
    assert!(thoughts(&events).is_empty());
}

#[tokio::test]
async fn a_prompt_is_thought_about_from_the_sample_on() {
    let folder = model(true);
    let daemon = Daemon::with_model(folder.path(), &[]).await;
    let ask = |prior| v1::GenerateRequest {
        thinking: thinking(Some(2), prior),
        ..tokens(&[7, 9, 30, 4, 60, 2], 6)
    };
    let events = generate(&daemon, ask(sampling(v1::PriorSolver::AdaptiveHeun, 5))).await;
    let steps = thoughts(&events.unwrap());
    let first = steps.iter().position(|step| step.noise_level.is_none());
    let (sampled, inferred) = steps.split_at(first.unwrap());
    assert!(sampled.last().unwrap().is_last && sampled.iter().all(|step| step.tokens == 0));
    let taken: Vec<_> = inferred
        .iter()
        .map(|step| (step.step, step.tokens))
        .collect();
    assert_eq!(taken, [(0, 5), (1, 5), (2, 5)]);
    // Nobody asked for the prior, so inference begins as the model was trained.
    let events = generate(&daemon, ask(None)).await.unwrap();
    let inferred = thoughts(&events);
    assert!(inferred.len() == 3 && inferred.iter().all(|step| step.noise_level.is_none()));
    assert_eq!(setting(&events, "prior"), None);
}

#[tokio::test]
async fn what_cannot_be_sampled_is_refused_by_name() {
    let refused = async |daemon: &Daemon, request: v1::GenerateRequest, words: &str| {
        let status = generate(daemon, request).await.unwrap_err();
        assert_eq!(status.code, Code::InvalidArgument, "{status}");
        assert!(status.message.contains(words), "{}", status.message);
    };
    let ask = |prior| v1::GenerateRequest {
        thinking: thinking(Some(0), prior),
        ..tokens(&[7, 9], 4)
    };
    let folder = model(true);
    let daemon = Daemon::with_model(folder.path(), &[]).await;
    for steps in [0, 1_000_000] {
        let request = ask(sampling(v1::PriorSolver::Heun, steps));
        let words = format!("between 1 and 1000 steps, not {steps}");
        refused(&daemon, request, &words).await;
    }
    let request = ask(sampling(v1::PriorSolver::None, 3));
    refused(&daemon, request, "solver none has no steps").await;
    let unknown = v1::PriorSampling {
        solver: 77,
        steps: None,
    };
    refused(
        &daemon,
        ask(Some(unknown)),
        "thinking.prior: has no value 77",
    )
    .await;
    drop(daemon);

    let folder = model(false);
    let daemon = Daemon::with_model(folder.path(), &[]).await;
    assert!(
        !daemon
            .snapshot()
            .await
            .model
            .unwrap()
            .shape
            .unwrap()
            .has_prior
    );
    let request = ask(sampling(v1::PriorSolver::Heun, 20));
    refused(
        &daemon,
        request,
        "thinking.prior: the loaded model has no learned prior",
    )
    .await;
    generate(&daemon, unprompted()).await.unwrap();
    drop(daemon);

    // No latents, and in the first case no begin token either.
    let daemon = Daemon::with_model(&checkpoints::fixture("llada-tiny"), &[]).await;
    refused(&daemon, unprompted(), "only autoregressive models").await;
    drop(daemon);
    let daemon = Daemon::with_model(&checkpoints::fixture("llama-tiny"), &[]).await;
    let request = ask(sampling(v1::PriorSolver::Heun, 20));
    refused(&daemon, request, "only latent thought models").await;
    // Its begin token is 1.
    let events = generate(&daemon, unprompted()).await.unwrap();
    let begin = v1::GenerateRequest {
        input: tokens(&[1], 12).input,
        ..unprompted()
    };
    let again = generate(&daemon, begin).await.unwrap();
    assert_eq!(done(&events).token_ids, done(&again).token_ids);
    drop(daemon);
    let daemon = Daemon::with_model(&checkpoints::fixture("ltm-tiny"), &[]).await;
    refused(&daemon, unprompted(), "no begin token").await;
}

/// A score of an answer to the tokens 3, 1, 4.
fn scoring(change: impl FnOnce(&mut v1::ScoreRequest)) -> v1::ScoreRequest {
    let ids = |ids: &[u32]| v1::TokenIds { ids: ids.to_vec() };
    let mut request = v1::ScoreRequest {
        prompt: Some(v1::score_request::Prompt::Tokens(ids(&[3, 1, 4]))),
        answer: Some(v1::score_request::Answer::AnswerTokens(ids(&[1, 5, 9, 2]))),
        seed: Some(6),
        ..Default::default()
    };
    change(&mut request);
    request
}

async fn score(daemon: &Daemon, request: v1::ScoreRequest) -> Result<v1::ScoreResult, Status> {
    let answer = daemon.generation().await.score(request).await?;
    let last = pictures(Ok(answer)).await.unwrap().pop().unwrap();
    match last.outcome {
        Some(v1::operation::Outcome::Score(result)) => Ok(result),
        other => panic!("the last picture has {other:?}"),
    }
}

#[tokio::test]
async fn scores_are_bounds_of_an_answer() {
    let folder = model(false);
    let daemon = Daemon::with_model(folder.path(), &[]).await;
    let found = score(&daemon, scoring(|_| {})).await.unwrap();
    assert_eq!((found.answer_tokens, found.draws), (4, 16));
    let steps = found.think_steps.unwrap();
    assert!(steps > 0 && found.kl_nats.is_some_and(|kl| kl > 0.0));
    assert!(found.standard_error.is_some_and(|error| error > 0.0));
    assert!(found.multi_sample_bound.unwrap() >= found.log_likelihood);
    let again = scoring(|request| {
        request.draws = Some(16);
        request.think_steps = Some(steps);
    });
    assert_eq!(score(&daemon, again).await.unwrap(), found);
    let unfitted = scoring(|request| request.think_steps = Some(0));
    assert_eq!(score(&daemon, unfitted).await.unwrap().kl_nats, Some(0.0));
    let refused = [
        (
            "think_steps",
            scoring(|request| request.think_steps = Some(1_000_000)),
        ),
        ("guidance", scoring(|request| request.guidance = Some(1.0))),
        (
            "check_greedy",
            scoring(|request| request.check_greedy = true),
        ),
    ];
    for (field, request) in refused {
        let status = score(&daemon, request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{field}");
        assert!(status.message().contains(field), "{}", status.message());
    }
}
