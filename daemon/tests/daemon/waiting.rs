//! Requests that come before their model, or whose model goes before their turn. That they wait as they should, unit tests tell
//! with loads that take as long as it takes; how long one takes here, nobody knows.

use std::{fs, path::Path};

use sluice_proto::v1::{self, generation_event::Event, model_ref::By};
use tempfile::TempDir;

use crate::support::{
    Daemon, RequestOptions, chat, checkpoints, done, generate, long, rest, run, tokens, until,
    within,
};

/// A model that understands text, and that takes a while to load.
const LATE: [&str; 8] = [
    "synth",
    "--layers=8",
    "--hidden-size=1024",
    "--attention-heads=16",
    "--intermediate-size=3072",
    "--vocab-size=2048",
    "--context-length=256",
    "late",
];

/// A daemon that has just begun to load it.
async fn loading() -> (Daemon, TempDir) {
    let folder = TempDir::new().unwrap();
    let output = run(folder.path(), &LATE).await;
    assert!(output.status.success());
    let model = folder.path().join("late");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(checkpoints::demo().join(file), model.join(file)).unwrap();
    }
    let arguments = ["--device", "cpu", "--threads", "1"];
    let model = ["--level", "aggressive", "--model", model.to_str().unwrap()];
    let daemon = Daemon::start(&[&arguments[..], &model].concat()).await;
    (daemon, folder)
}

/// A question as text, which takes one short pass.
fn question() -> v1::GenerateRequest {
    v1::GenerateRequest {
        length: Some(4),
        ..chat("Who is there?")
    }
    .diffused(|diffusion| diffusion.steps = Some(1))
}

#[tokio::test]
async fn requests_that_come_at_once_run_on_the_model_that_comes() {
    let (daemon, _folder) = loading().await;
    // What breaks a rule for every model doesn't wait to be told so.
    let wrong = v1::GenerateRequest {
        input: None,
        ..question()
    };
    let error = generate(&daemon, wrong).await.unwrap_err();
    assert_eq!(error.code, tonic::Code::InvalidArgument, "{error:?}");

    let score = v1::ScoreRequest {
        prompt: Some(v1::score_request::Prompt::Tokens(v1::TokenIds {
            ids: vec![1, 2],
        })),
        answer: Some(v1::score_request::Answer::AnswerTokens(v1::TokenIds {
            ids: vec![3],
        })),
        ..Default::default()
    };
    let mut client = daemon.generation().await;
    let (answered, scored) = tokio::join!(generate(&daemon, question()), client.score(score));
    let events = answered.unwrap();
    let done = done(&events);
    assert_eq!(done.token_ids.len(), 4);
    let scored = within("a score", scored.unwrap().get_mut().message()).await;
    assert!(scored.unwrap().is_some());

    // The text was made into tokens by the model that came.
    let listed = daemon.request(done.request_id).await;
    let detail = listed.request_detail();
    assert!(detail.prompt_tokens > 1 && detail.length == 4, "{listed:?}");
    until("that nobody waits", || async {
        daemon.snapshot().await.queue.unwrap().waiting == 0
    })
    .await;
    // A late joiner hears of its passes, no more of the load.
    let watch = v1::WatchGenerationRequest {
        operation_id: done.request_id,
    };
    let mut stream = client.watch_generation(watch).await.unwrap().into_inner();
    while let Some(event) = within("an event", stream.message()).await.unwrap() {
        let kind = event.event.unwrap().event.unwrap();
        assert!(!matches!(kind, Event::Loading(_)));
    }
}

#[tokio::test]
#[ignore = "seconds of both cores: cargo ci"]
async fn requests_whose_model_goes_before_their_turn_run_on_the_next() {
    let arguments = ["--device", "cpu", "--threads", "1", "--parallel", "1"];
    let daemon = Daemon::with_model(checkpoints::slow(), &arguments).await;
    let (_, mut running) = daemon.running(long()).await;
    let mut client = daemon.generation().await;
    let short = tokens(&[1, 2, 3], 4);
    let first = client.generate(short.clone()).await.unwrap();
    let second = client.generate(short).await.unwrap();

    let load = v1::LoadModelRequest {
        model: By::Name("sluice-demo".to_owned()).into(),
        ..Default::default()
    };
    let mut models = daemon.models().await;
    let mut loaded = models.load_model(load).await.unwrap().into_inner();
    while within("the load", loaded.message())
        .await
        .unwrap()
        .is_some()
    {}
    rest(&mut running).await.unwrap();
    for stream in [first, second] {
        let events = rest(&mut stream.into_inner()).await.unwrap();
        assert_eq!(done(&events).token_ids.len(), 4);
    }
}

#[tokio::test]
async fn a_load_that_fails_tells_those_who_wait() {
    let folder = checkpoints::copy();
    let arguments = ["--device", "cpu", "--idle-unload", "100ms", "--model"];
    let path = folder.path().to_str().unwrap();
    let daemon = Daemon::start(&[&arguments[..], &[path]].concat()).await;
    daemon.model_state(v1::ModelState::Asleep).await;
    spoil(folder.path());
    let error = generate(&daemon, tokens(&[1, 2, 3], 8)).await.unwrap_err();
    assert_eq!(error.reason.as_deref(), Some("MODEL_FAILED"), "{error:?}");
    assert!(error.message.contains("config.json"), "{}", error.message);
}

fn spoil(folder: &Path) {
    fs::write(folder.join("config.json"), "nonsense").unwrap();
}
