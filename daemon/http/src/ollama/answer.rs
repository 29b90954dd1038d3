//! Answers in Ollama's shape, whole or as lines.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use futures_util::stream;
use hyper::{StatusCode, header::HeaderValue};
use serde::Serialize;
use serde_json::value::RawValue;
use sluice_proto::v1;

use super::{error::ErrorBody, time};
use crate::{
    calls::{Call, CallReader},
    extension::AnswerFacts,
    failure::Failure,
    field_names::TextApi,
    generation::{Ended, Generation, Infill, Piece, Progress},
    logprobs::TokenLogprob,
    services::Services,
    streaming::{self, Answer},
    terms::CallTerms,
};

/// What is asked of the daemon, and how it is answered.
pub(super) struct Job {
    pub(super) request: v1::GenerateRequest,
    pub(super) infill: Option<Infill>,
    pub(super) terms: CallTerms,
    pub(super) shape: Shape,
    /// How calls of functions are told from text, where there are functions.
    pub(super) calls: Option<CallReader>,
    pub(super) stream: bool,
}

/// Which API answers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    Chat,
    Generate,
}

/// A whole answer, or a piece of one.
#[derive(Debug, Serialize)]
struct Line<'a> {
    model: &'a str,
    created_at: String,
    #[serde(flatten)]
    content: Content,
    done: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<TokenLogprob>,
    #[serde(flatten)]
    end: Option<End>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Content {
    Message {
        role: &'static str,
        content: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
    },
    Response(String),
}

/// A call of a function.
#[derive(Debug, Serialize)]
pub(super) struct ToolCall {
    function: CalledFunction,
}

#[derive(Debug, Serialize)]
struct CalledFunction {
    name: String,
    arguments: Option<Box<RawValue>>,
}

impl From<Call> for ToolCall {
    fn from(call: Call) -> Self {
        Self {
            function: CalledFunction {
                name: call.name,
                // It was read as an object.
                arguments: RawValue::from_string(call.arguments).ok(),
            },
        }
    }
}

/// What the last piece has more than the others.
#[derive(Debug, Serialize)]
struct End {
    done_reason: &'static str,
    total_duration: u64,
    /// Until the model began with it: waiting for its turn, and for a model to load.
    load_duration: u64,
    prompt_eval_count: u32,
    /// Until the first pass was done.
    prompt_eval_duration: u64,
    eval_count: u32,
    eval_duration: u64,
    sluice: Box<AnswerFacts>,
}

impl Shape {
    pub(super) fn api(self) -> TextApi {
        match self {
            Self::Chat => TextApi::OllamaChat,
            Self::Generate => TextApi::OllamaGenerate,
        }
    }

    pub(super) fn content(self, text: String, calls: Vec<Call>) -> Content {
        match self {
            Self::Chat => Content::Message {
                role: "assistant",
                content: text,
                tool_calls: calls.into_iter().map(ToolCall::from).collect(),
            },
            Self::Generate => Content::Response(text),
        }
    }
}

/// Runs a job's request, and answers with what it comes to.
///
/// # Errors
/// When it is refused, or fails before the answer has begun.
pub(super) async fn run(services: &Services, job: Job) -> Result<Answer, Failure> {
    let arrived = Instant::now();
    let generation = Generation::begin(services, job.request, job.terms, job.infill).await?;
    let id = generation.id;
    let mut course = Course {
        shape: job.shape,
        generation,
        arrived,
        calls: job.calls,
        begun: None,
        ready: VecDeque::new(),
    };
    let mut answer = match job.stream {
        true => streaming::lines(lines(course)),
        false => {
            let (mut whole, mut calls) = (Piece::default(), Vec::new());
            let end = loop {
                match course.next().await? {
                    Step::Text(piece) => whole.join(piece),
                    Step::Calls(made) => calls = made,
                    Step::End(end) => break end,
                }
            };
            streaming::json(StatusCode::OK, &course.line(whole, calls, Some(end)))
        }
    };
    answer
        .headers_mut()
        .insert("x-request-id", HeaderValue::from(id));
    Ok(answer)
}

/// The lines of an answer. The last one has no text.
fn lines(course: Course) -> impl stream::Stream<Item = String> + Send {
    stream::unfold(Some(course), |course| async {
        let mut course = course?;
        Some(match course.next().await {
            Ok(Step::Text(piece)) => {
                let line = streaming::line(&course.line(piece, Vec::new(), None));
                (line, Some(course))
            }
            Ok(Step::Calls(calls)) => {
                let line = streaming::line(&course.line(Piece::default(), calls, None));
                (line, Some(course))
            }
            Ok(Step::End(end)) => {
                let last = course.line(Piece::default(), Vec::new(), Some(end));
                (streaming::line(&last), None)
            }
            Err(failure) => (streaming::line(&ErrorBody::from(failure)), None),
        })
    })
}

/// A generation, with the times that an answer tells.
struct Course {
    shape: Shape,
    generation: Generation,
    calls: Option<CallReader>,
    arrived: Instant,
    begun: Option<Begun>,
    /// What is to be told next.
    ready: VecDeque<Step>,
}

struct Begun {
    started: Box<v1::GenerationStarted>,
    at: Instant,
    /// When the first pass was done.
    read: Option<Instant>,
    /// Of the last pass.
    level: v1::Level,
}

enum Step {
    /// More text; never empty.
    Text(Piece),
    /// The calls of functions that the text had; never empty.
    Calls(Vec<Call>),
    /// Nothing follows.
    End(End),
}

impl Course {
    async fn next(&mut self) -> Result<Step, Failure> {
        loop {
            if let Some(step) = self.ready.pop_front() {
                return Ok(step);
            }
            let early = || Failure::unexpected("a request ended before it began");
            match self.generation.next().await? {
                Progress::Started(started) => {
                    self.begun = Some(Begun {
                        at: Instant::now(),
                        read: None,
                        level: started.level(),
                        started,
                    });
                }
                Progress::Picture(pass, piece) => {
                    let begun = self.begun.as_mut().ok_or_else(early)?;
                    begun.level = pass.level();
                    begun.read.get_or_insert_with(Instant::now);
                    self.text(piece);
                }
                Progress::Done(ended, rest) => {
                    self.text(rest);
                    let (text, calls) = self.calls.as_mut().map(CallReader::end).unzip();
                    self.show(Piece {
                        text: text.unwrap_or_default(),
                        tokens: Vec::new(),
                    });
                    if let Some(calls) = calls.filter(|calls| !calls.is_empty()) {
                        self.ready.push_back(Step::Calls(calls));
                    }
                    let end = self.end(&ended).ok_or_else(early)?;
                    self.ready.push_back(Step::End(end));
                }
            }
        }
    }

    fn text(&mut self, mut piece: Piece) {
        if let Some(calls) = &mut self.calls {
            piece.text = calls.add(&piece.text);
        }
        self.show(piece);
    }

    fn show(&mut self, piece: Piece) {
        if !piece.is_empty() {
            self.ready.push_back(Step::Text(piece));
        }
    }

    fn end(&self, ended: &Ended) -> Option<End> {
        let done = &ended.done;
        let begun = self.begun.as_ref()?;
        let read = begun.read.unwrap_or(begun.at);
        Some(End {
            done_reason: match done.finish_reason() {
                v1::FinishReason::Length | v1::FinishReason::Context => "length",
                _ => "stop",
            },
            total_duration: nanos(self.arrived.elapsed()),
            load_duration: nanos(begun.at - self.arrived),
            prompt_eval_count: begun.started.prompt_tokens,
            prompt_eval_duration: nanos(read - begun.at),
            eval_count: done.generated_tokens,
            eval_duration: nanos(read.elapsed()),
            sluice: Box::new(AnswerFacts::new(
                &begun.started,
                begun.level,
                done,
                ended.placed.as_ref(),
            )),
        })
    }

    fn line(&self, piece: Piece, calls: Vec<Call>, end: Option<End>) -> Line<'_> {
        let begun = self.begun.as_ref();
        Line {
            model: begun.map_or("", |begun| &begun.started.model),
            created_at: time::now(),
            content: self.shape.content(piece.text, calls),
            done: end.is_some(),
            logprobs: TokenLogprob::of(&piece.tokens),
            end,
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
