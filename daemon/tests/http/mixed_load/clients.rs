//! Who asks, over gRPC and over HTTP: to the end, slowly, or not to the end.

use std::time::Duration;

use serde_json::{Value, json};
use sluice_daemon::role::Role;
use sluice_proto::{
    client::CallError,
    v1::{
        self, generation_event::Event, generation_service_client::GenerationServiceClient,
        grammar::Kind, operation::Outcome, operation_service_client::OperationServiceClient,
    },
};
use tokio::io::AsyncReadExt;
use tonic::{Streaming, transport::Channel};

use crate::{
    client::Answer,
    secure::SecureDaemon,
    support::{
        RequestOptions, chat, done, next, rest, rest_of,
        tls::{by, token},
        within,
    },
};

/// The model that is there most of the time.
pub(super) const DEMO: &str = "sluice-demo";
/// Models that come and go.
pub(super) const WRITERS: [&str; 3] = ["one", "two", "three"];
/// Requests of all clients after which they turn to another of those.
const TURN: usize = 4 * MIX.len();
const STORY: &str = "Tell me a story.";
const CHAT: &str = "POST /v1/chat/completions";
const COMPLETION: &str = "POST /v1/completions";

/// One kind of client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Client {
    ChatsByGrpc,
    ChatsByHttp,
    ChatsByHttpInPieces,
    ChatsByOllama,
    ReadsSlowlyByGrpc,
    ReadsSlowlyByHttp,
    WritesByGrpc,
    WritesByHttp,
    Scores,
    WantsASchemaByGrpc,
    WantsAnExpressionByHttp,
    FillsIn,
    AsksNobody,
    LeavesByGrpc,
    LeavesByHttp,
    Cancels,
}

use Client::{
    AsksNobody, Cancels, ChatsByGrpc, ChatsByHttp, ChatsByHttpInPieces, ChatsByOllama, FillsIn,
    LeavesByGrpc, LeavesByHttp, ReadsSlowlyByGrpc, ReadsSlowlyByHttp, Scores, WantsASchemaByGrpc,
    WantsAnExpressionByHttp, WritesByGrpc, WritesByHttp,
};

/// In turns.
pub(super) const MIX: [Client; 16] = [
    ChatsByGrpc,
    WritesByHttp,
    LeavesByGrpc,
    ChatsByHttpInPieces,
    Scores,
    ReadsSlowlyByHttp,
    WantsASchemaByGrpc,
    LeavesByHttp,
    ChatsByHttp,
    WritesByGrpc,
    Cancels,
    ChatsByOllama,
    WantsAnExpressionByHttp,
    ReadsSlowlyByGrpc,
    AsksNobody,
    FillsIn,
];

/// The one of those who tell the same story.
pub(super) const STORIES: [Client; 6] = [
    ChatsByGrpc,
    ChatsByHttp,
    ChatsByHttpInPieces,
    ChatsByOllama,
    ReadsSlowlyByGrpc,
    ReadsSlowlyByHttp,
];

/// A request of each client to each of the models.
pub(super) fn each() -> impl Iterator<Item = usize> {
    let turns = (0..WRITERS.len()).map(|turn| turn * TURN);
    turns.flat_map(|first| first..first + MIX.len())
}

/// The model that comes and goes whose turn it is.
pub(super) fn writer(number: usize) -> &'static str {
    WRITERS[number / TURN % WRITERS.len()]
}

/// A caller with a connection of gRPC, who makes one of HTTP for each request.
pub(super) struct Caller<'a> {
    secure: &'a SecureDaemon,
    channel: Channel,
    token: String,
}

impl<'a> Caller<'a> {
    pub(super) async fn new(secure: &'a SecureDaemon) -> Self {
        Self {
            secure,
            channel: secure.reachable.connect(None).await.unwrap(),
            token: token(Role::Generate),
        }
    }

    async fn stream(
        &self,
        request: v1::GenerateRequest,
    ) -> Result<Streaming<v1::GenerateResponse>, CallError> {
        let mut client = GenerationServiceClient::new(self.channel.clone());
        let answer = client.generate(by(Some(&self.token), request)).await?;
        Ok(answer.into_inner())
    }

    /// The text of an answer.
    async fn text(&self, request: v1::GenerateRequest) -> String {
        let events = rest(&mut self.stream(request).await.unwrap())
            .await
            .unwrap();
        done(&events).text.clone().unwrap()
    }

    async fn post(&self, line: &str, body: &Value) -> Answer {
        let body = body.to_string();
        let answer = self.secure.send(Some(&self.token), line, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer
    }
}

/// What all who want to hear the same story ask for.
fn telling() -> v1::GenerateRequest {
    v1::GenerateRequest {
        model: DEMO.to_owned(),
        ..chat(STORY)
    }
}

/// The same over HTTP.
fn story(more: Value) -> Value {
    with(
        json!({"model": DEMO, "messages": [{"role": "user", "content": STORY}], "max_tokens": 32, "seed": 7}),
        more,
    )
}

fn with(mut request: Value, more: Value) -> Value {
    let Value::Object(more) = more else {
        panic!("no fields: {more}")
    };
    request.as_object_mut().unwrap().extend(more);
    request
}

/// A text from one of the models that come and go.
fn writing(model: &str) -> v1::GenerateRequest {
    v1::GenerateRequest {
        model: model.to_owned(),
        length: Some(24),
        ..chat(STORY)
    }
    .sampled(|sampling| {
        sampling.temperature = Some(1.0);
        sampling.eos_policy = v1::EosPolicy::Suppress.into();
    })
}

fn schema() -> String {
    json!({
        "type": "object", "additionalProperties": false, "required": ["kind", "count"],
        "properties": {"kind": {"enum": ["kite", "fox"]}, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
        "x-guidance": {"whitespace_flexible": false},
    })
    .to_string()
}

fn content(answer: &Answer) -> String {
    let choice = &answer.json()["choices"][0];
    let text = choice["message"]["content"].as_str();
    text.or(choice["text"].as_str()).unwrap().to_owned()
}

/// The text that came in pieces.
fn pieces(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let events = answer.events();
    let pieces = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    pieces.collect()
}

impl Client {
    /// The client whose turn it is.
    pub(super) fn of(number: usize) -> Self {
        MIX[number % MIX.len()]
    }

    /// Asks once. The answer as a text; nothing where the client leaves before.
    pub(super) async fn ask(self, caller: &Caller<'_>, number: usize) -> Option<String> {
        let model = writer(number);
        let text = match self {
            ChatsByGrpc => caller.text(telling()).await,
            ChatsByHttp => content(&caller.post(CHAT, &story(json!({}))).await),
            ChatsByHttpInPieces => {
                pieces(&caller.post(CHAT, &story(json!({"stream": true}))).await)
            }
            ChatsByOllama => {
                let request = json!({
                    "model": DEMO, "messages": [{"role": "user", "content": STORY}],
                    "options": {"num_predict": 32, "seed": 7},
                });
                let lines = caller.post("POST /api/chat", &request).await.lines();
                let pieces = lines.iter().map(|line| line["message"]["content"].as_str());
                pieces.map(Option::unwrap).collect()
            }
            ReadsSlowlyByGrpc => {
                let mut stream = caller.stream(telling()).await.unwrap();
                let mut events = Vec::new();
                while let Some(event) = within("an event", next(&mut stream)).await.unwrap() {
                    events.push(event);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                done(&events).text.clone().unwrap()
            }
            ReadsSlowlyByHttp => {
                let request = story(json!({"stream": true, "sluice": {"canvas": true}}));
                pieces(&read_slowly(caller, &request).await)
            }
            WritesByGrpc => caller.text(writing(model)).await,
            WritesByHttp => {
                let request = json!({
                    "model": model, "prompt": "Once", "max_tokens": 24, "seed": 4, "temperature": 1,
                    "sluice": {"eos_policy": "suppress"},
                });
                content(&caller.post(COMPLETION, &request).await)
            }
            Scores => score(caller).await,
            WantsASchemaByGrpc => {
                let mut request = v1::GenerateRequest {
                    length: Some(60),
                    ..writing(model)
                };
                request.sampling_mut().eos_policy = v1::EosPolicy::Unspecified.into();
                let kind = Some(Kind::JsonSchema(schema()));
                request.autoregressive_mut().grammar = Some(v1::Grammar { kind });
                let text = caller.text(request).await;
                let read: Value = serde_json::from_str(&text).expect(&text);
                assert!((1..=9).contains(&read["count"].as_i64().unwrap()));
                text
            }
            WantsAnExpressionByHttp => {
                let request = json!({
                    "model": model, "sluice": {"regex": "(yes|no)"}, "temperature": 1,
                });
                let text = content(&caller.post(CHAT, &story(request)).await);
                assert!(["yes", "no"].contains(&&*text), "{text}");
                text
            }
            FillsIn => {
                let request = json!({
                    "model": DEMO, "prompt": "Once upon a time there was a",
                    "suffix": " who had a red kite.", "max_tokens": 6, "seed": 3,
                });
                content(&caller.post(COMPLETION, &request).await)
            }
            AsksNobody => {
                let body = story(json!({"model": "nobody/knows-it"})).to_string();
                let answer = caller.secure.send(Some(&caller.token), CHAT, &body).await;
                assert_eq!(answer.status, 404, "{}", answer.body);
                answer.json()["error"]["message"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            }
            LeavesByGrpc => {
                let request = telling().sampled(|sampling| sampling.seed = Some(number as u64));
                let mut stream = caller.stream(request).await.unwrap();
                for _ in 0..number % 5 {
                    within("an event", next(&mut stream)).await.unwrap();
                }
                return None;
            }
            LeavesByHttp => {
                let body = story(json!({"stream": true, "seed": number})).to_string();
                let mut stream = caller.secure.ask(Some(&caller.token), CHAT, &body).await;
                let mut some = [0; 100];
                for _ in 0..number % 3 {
                    within("some", stream.read_exact(&mut some)).await.unwrap();
                }
                return None;
            }
            Cancels => {
                cancel(caller, model).await;
                return None;
            }
        };
        Some(text)
    }
}

async fn read_slowly(caller: &Caller<'_>, request: &Value) -> Answer {
    let request = request.to_string();
    let mut stream = caller.secure.ask(Some(&caller.token), CHAT, &request).await;
    let mut bytes = Vec::new();
    let mut piece = [0; 1 << 10];
    for _ in 0..40 {
        let count = within("a piece", stream.read(&mut piece)).await.unwrap();
        bytes.extend_from_slice(&piece[..count]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    within("the rest", stream.read_to_end(&mut bytes))
        .await
        .unwrap();
    Answer::read(&String::from_utf8(bytes).unwrap())
}

async fn score(caller: &Caller<'_>) -> String {
    let request = v1::ScoreRequest {
        prompt: Some(v1::score_request::Prompt::RawText("Once upon".to_owned())),
        answer: Some(v1::score_request::Answer::AnswerText(
            " a time there was a fox.".to_owned(),
        )),
        draws: Some(8),
        seed: Some(6),
        model: DEMO.to_owned(),
        ..Default::default()
    };
    let mut client = GenerationServiceClient::new(caller.channel.clone());
    let answer = client.score(by(Some(&caller.token), request)).await;
    let last = rest_of(answer.unwrap().into_inner()).await.unwrap().pop();
    match last.and_then(|last| last.outcome) {
        Some(Outcome::Score(result)) => format!("{:.4}", result.log_likelihood),
        other => panic!("the last picture has {other:?}"),
    }
}

/// Begins a long answer, and cancels it.
async fn cancel(caller: &Caller<'_>, model: &str) {
    let request = v1::GenerateRequest {
        length: Some(256),
        ..writing(model)
    };
    let mut stream = caller.stream(request).await.unwrap();
    let id = loop {
        match within("an event", next(&mut stream)).await.unwrap() {
            Some(Event::Queued(queued)) => break queued.request_id,
            Some(_) => {}
            None => panic!("it ended without a number"),
        }
    };
    let request = v1::CancelOperationRequest { operation_id: id };
    let mut operations = OperationServiceClient::new(caller.channel.clone());
    let cancelled = operations.cancel_operation(by(Some(&caller.token), request));
    cancelled.await.unwrap();
    // What was written until then comes, or that there is nothing.
    let _ = rest(&mut stream).await;
}
