//! From requests to the daemon to answers in OpenAI's shape, whole or as events.

use std::{
    collections::VecDeque,
    pin::Pin,
    time::{SystemTime, UNIX_EPOCH},
};

use futures_util::{
    Stream, StreamExt,
    future::try_join_all,
    stream::{self, SelectAll},
};
use hyper::{StatusCode, header::HeaderValue};
use sluice_proto::v1;

use super::{
    answer::{Choice, Content, Delta, Head, Logprobs, Message, ToolCall, Usage, finish_reason},
    delivery::Delivery,
    error::ErrorBody,
};
use crate::{
    calls::{Call, CallReader},
    extension::{AnswerFacts, CanvasEvent},
    failure::Failure,
    generation::{Ended, Generation, Infill, Piece, Progress},
    logprobs::{TextLogprobs, TokenLogprob},
    services::Services,
    streaming::{self, Answer, LAST_EVENT},
    terms::CallTerms,
};

/// What is asked of the daemon, and how it is answered.
pub(super) struct Job {
    /// One for each answer, those to the same prompt beside each other.
    pub(super) requests: Vec<v1::GenerateRequest>,
    /// Where all of them put text in between others.
    pub(super) infill: Option<Infill>,
    /// Answers to each prompt.
    pub(super) choices_of_prompt: u32,
    pub(super) terms: CallTerms,
    pub(super) shape: Shape,
    /// How calls of functions are told from text, where there are functions.
    pub(super) calls: Option<Calls>,
    pub(super) delivery: Delivery,
    pub(super) has_logprobs: bool,
}

/// How calls of functions are told from text.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    pub(super) reader: CallReader,
    /// Whether an answer has its first call alone.
    pub(super) first_alone: bool,
}

impl Calls {
    fn add(&mut self, text: &str) -> String {
        self.reader.add(text)
    }

    fn end(&mut self) -> (String, Vec<Call>) {
        let (rest, mut calls) = self.reader.end();
        if self.first_alone {
            calls.truncate(1);
        }
        (rest, calls)
    }
}

/// Which API answers.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    Chat,
    /// `/v1/completions`, with what goes before each answer.
    Text {
        before: Vec<String>,
    },
}

/// Runs the requests of a job, and answers with what they come to.
///
/// # Errors
/// When one of them is refused, or fails before the answer has begun.
pub(super) async fn run(services: &Services, mut job: Job) -> Result<Answer, Failure> {
    let mut generations = Vec::with_capacity(job.requests.len());
    // One after another: a message is given back before the next is made, and the first refusal counts for all.
    for request in std::mem::take(&mut job.requests) {
        generations
            .push(Generation::begin(services, request, job.terms, job.infill.clone()).await?);
    }
    let first = generations.first().map_or(0, |generation| generation.id);
    let mut answer = match job.delivery.is_streamed {
        true => streaming::events(EventStream::begin(job, first, generations)),
        false => whole(&job, first, generations).await?,
    };
    answer
        .headers_mut()
        .insert("x-request-id", HeaderValue::from(first));
    Ok(answer)
}

impl Job {
    /// The log-probabilities of these tokens, where they were asked for, after so many characters of the text.
    fn logprobs(&self, tokens: &[v1::CanvasToken], offset: &mut usize) -> Option<Logprobs> {
        self.has_logprobs.then(|| match &self.shape {
            Shape::Chat => Logprobs::Chat {
                content: TokenLogprob::of(tokens),
                refusal: None,
            },
            Shape::Text { .. } => Logprobs::Text(TextLogprobs::of(tokens, offset)),
        })
    }
}

impl Shape {
    fn whole_object(&self) -> &'static str {
        match self {
            Self::Chat => "chat.completion",
            Self::Text { .. } => "text_completion",
        }
    }

    fn piece_object(&self) -> &'static str {
        match self {
            Self::Chat => "chat.completion.chunk",
            Self::Text { .. } => "text_completion",
        }
    }

    /// What goes before the text of an answer.
    fn before(&self, index: u32) -> &str {
        match self {
            Self::Chat => "",
            Self::Text { before } => before.get(index as usize).map_or("", String::as_str),
        }
    }

    fn id(&self, operation: u64) -> String {
        match self {
            Self::Chat => format!("chatcmpl-{operation}"),
            Self::Text { .. } => format!("cmpl-{operation}"),
        }
    }
}

/// What all pieces begin with, as one of the generations that begin tells.
fn head(shape: &Shape, operation: u64, started: &v1::GenerationStarted) -> Head {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Head {
        id: shape.id(operation),
        created: now.map_or(0, |now| now.as_secs()),
        model: started.model.clone(),
        // What a text with a seed depends on: the program, and the weights.
        fingerprint: format!("sluice-{}-{}", env!("CARGO_PKG_VERSION"), started.level()),
    }
}

/// A generation that came to its end.
struct Finished {
    started: Box<v1::GenerationStarted>,
    level: v1::Level,
    ended: Box<Ended>,
    answer: Piece,
}

async fn finish(mut generation: Generation) -> Result<Finished, Failure> {
    let mut begun = None;
    let mut level = v1::Level::Unspecified;
    let mut answer = Piece::default();
    loop {
        match generation.next().await? {
            Progress::Started(started) => {
                level = started.level();
                begun = Some(started);
            }
            Progress::Picture(pass, more) => {
                level = pass.level();
                answer.join(more);
            }
            Progress::Done(ended, more) => {
                let started =
                    begun.ok_or_else(|| Failure::unexpected("a request ended before it began"))?;
                answer.join(more);
                return Ok(Finished {
                    started,
                    level,
                    ended,
                    answer,
                });
            }
        }
    }
}

async fn whole(job: &Job, first: u64, generations: Vec<Generation>) -> Result<Answer, Failure> {
    let finished = try_join_all(generations.into_iter().map(finish)).await?;
    let mut usage = Usage::default();
    let mut beginning = None;
    let mut choices = Vec::with_capacity(finished.len());
    for (index, finished) in (0..).zip(finished) {
        let Finished {
            started,
            level,
            ended,
            answer,
        } = finished;
        let done = &ended.done;
        usage = usage.plus(prompt_tokens(job, index, &started), done);
        beginning.get_or_insert_with(|| head(&job.shape, first, &started));
        let before = job.shape.before(index);
        let logprobs = job.logprobs(&answer.tokens, &mut before.chars().count());
        let (text, calls) = match job.calls.clone() {
            Some(mut calls) => {
                let shown = calls.add(&answer.text);
                let (rest, calls) = calls.end();
                (shown + &rest, calls)
            }
            None => (answer.text, Vec::new()),
        };
        let finish_reason = finish_reason(done, !calls.is_empty());
        let content = match &job.shape {
            Shape::Chat => Content::Message(Message {
                role: "assistant",
                content: Some(text).filter(|text| calls.is_empty() || !text.is_empty()),
                refusal: None,
                tool_calls: ToolCall::of(calls, done.request_id, false),
            }),
            Shape::Text { .. } => Content::Text(before.to_owned() + &text),
        };
        choices.push(Choice {
            index,
            content,
            logprobs,
            finish_reason: Some(finish_reason),
            sluice: Some(Box::new(AnswerFacts::new(
                &started,
                level,
                done,
                ended.placed.as_ref(),
            ))),
        });
    }
    let beginning = beginning.ok_or_else(|| Failure::unexpected("a request had no answer"))?;
    let mut envelope = beginning.envelope(job.shape.whole_object(), &choices);
    envelope.usage = Some(Some(usage));
    Ok(streaming::json(StatusCode::OK, &envelope))
}

/// Tokens of the prompt that an answer adds to the usage: those to one prompt count it once.
fn prompt_tokens(job: &Job, index: u32, started: &v1::GenerationStarted) -> u32 {
    match index.is_multiple_of(job.choices_of_prompt) {
        // What is fixed in the canvas was given, too.
        true => started.prompt_tokens + started.pinned.len() as u32,
        false => 0,
    }
}

/// What generations do, by the index of their answer.
type Steps = SelectAll<Pin<Box<dyn Stream<Item = (u32, Result<Progress, Failure>)> + Send>>>;

/// An answer that has begun.
struct BegunChoice {
    started: Box<v1::GenerationStarted>,
    /// Of the last pass.
    level: v1::Level,
    /// Characters of the text whose tokens were handed on.
    offset: usize,
    calls: Option<Calls>,
}

/// The events of an answer.
struct EventStream {
    job: Job,
    /// The operation that the answer is named by.
    first: u64,
    steps: Steps,
    head: Option<Head>,
    /// What is known of each answer.
    begun: Vec<Option<BegunChoice>>,
    usage: Usage,
    /// Answers that have not ended.
    left: usize,
    /// Events that are ready.
    ready: VecDeque<String>,
}

impl EventStream {
    fn begin(job: Job, first: u64, generations: Vec<Generation>) -> impl Stream<Item = String> {
        let left = generations.len();
        let steps = (0..).zip(generations).map(|(index, generation)| {
            let steps = stream::unfold(Some(generation), move |generation| async move {
                let mut generation = generation?;
                let step = generation.next().await;
                let goes_on = matches!(step, Ok(Progress::Started(_) | Progress::Picture(..)));
                Some(((index, step), goes_on.then_some(generation)))
            });
            steps.boxed()
        });
        let events = Self {
            job,
            first,
            steps: stream::select_all(steps),
            head: None,
            begun: (0..left).map(|_| None).collect(),
            usage: Usage::default(),
            left,
            ready: VecDeque::new(),
        };
        stream::unfold(events, |mut events| async {
            let event = events.next().await?;
            Some((event, events))
        })
    }

    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            // None follows an error, since that lets go of the generations.
            let (index, step) = self.steps.next().await?;
            if let Err(failure) = step.and_then(|step| self.take(index, step)) {
                self.steps = SelectAll::new();
                self.ready
                    .push_back(streaming::event(&ErrorBody::from(failure)));
            }
        }
    }

    fn take(&mut self, index: u32, step: Progress) -> Result<(), Failure> {
        match step {
            Progress::Started(started) => {
                let (shape, first) = (&self.job.shape, self.first);
                self.head
                    .get_or_insert_with(|| head(shape, first, &started));
                self.begun[index as usize] = Some(BegunChoice {
                    level: started.level(),
                    started,
                    offset: self.job.shape.before(index).chars().count(),
                    calls: self.job.calls.clone(),
                });
                let content = match &self.job.shape {
                    Shape::Chat => Content::Delta(Delta {
                        role: Some("assistant"),
                        content: Some(String::new()),
                        ..Delta::default()
                    }),
                    shape @ Shape::Text { .. } => Content::Text(shape.before(index).to_owned()),
                };
                if !matches!(&content, Content::Text(text) if text.is_empty()) {
                    self.piece(choice(index, content));
                }
            }
            Progress::Picture(pass, more) => {
                if let Some(begun) = &mut self.begun[index as usize] {
                    begun.level = pass.level();
                }
                self.text(index, more);
                if self.job.delivery.shows_canvas {
                    self.picture(index, &pass);
                }
            }
            Progress::Done(ended, more) => {
                self.text(index, more);
                let done = &ended.done;
                let has_calls = self.calls(index, done.request_id);
                let begun = self.begun[index as usize].take();
                let begun =
                    begun.ok_or_else(|| Failure::unexpected("a request ended before it began"))?;
                let facts =
                    AnswerFacts::new(&begun.started, begun.level, done, ended.placed.as_ref());
                let prompt_tokens = prompt_tokens(&self.job, index, &begun.started);
                self.usage = self.usage.plus(prompt_tokens, done);
                let content = match &self.job.shape {
                    Shape::Chat => Content::Delta(Delta::default()),
                    Shape::Text { .. } => Content::Text(String::new()),
                };
                self.piece(Choice {
                    finish_reason: Some(finish_reason(done, has_calls)),
                    sluice: Some(Box::new(facts)),
                    ..choice(index, content)
                });
                self.left -= 1;
                if self.left == 0 {
                    self.end();
                }
            }
        }
        Ok(())
    }

    fn text(&mut self, index: u32, piece: Piece) {
        if piece.is_empty() {
            return;
        }
        let Piece { mut text, tokens } = piece;
        let mut logprobs = None;
        if let Some(begun) = &mut self.begun[index as usize] {
            logprobs = self.job.logprobs(&tokens, &mut begun.offset);
            if let Some(calls) = &mut begun.calls {
                text = calls.add(&text);
            }
        }
        if text.is_empty() && tokens.is_empty() {
            return;
        }
        let content = match &self.job.shape {
            Shape::Chat => Content::Delta(Delta {
                content: Some(text),
                ..Delta::default()
            }),
            Shape::Text { .. } => Content::Text(text),
        };
        self.piece(Choice {
            logprobs,
            ..choice(index, content)
        });
    }

    /// Hands on what is left of an answer with functions; whether it has calls.
    fn calls(&mut self, index: u32, operation: u64) -> bool {
        let begun = self.begun[index as usize].as_mut();
        let Some(calls) = begun.and_then(|begun| begun.calls.as_mut()) else {
            return false;
        };
        let (rest, calls) = calls.end();
        let has_calls = !calls.is_empty();
        let tool_calls = ToolCall::of(calls, operation, true);
        if has_calls || !rest.is_empty() {
            let content = Some(rest).filter(|rest| !rest.is_empty());
            let delta = Delta {
                content,
                tool_calls,
                ..Delta::default()
            };
            self.piece(choice(index, Content::Delta(delta)));
        }
        has_calls
    }

    fn piece(&mut self, choice: Choice) {
        if let Some(head) = &self.head {
            let choices = [choice];
            let mut envelope = head.envelope(self.job.shape.piece_object(), &choices);
            envelope.usage = self.job.delivery.includes_usage.then_some(None);
            self.ready.push_back(streaming::event(&envelope));
        }
    }

    fn picture(&mut self, index: u32, canvas: &v1::GenerationPass) {
        if let Some(head) = &self.head {
            let mut envelope = head.envelope(self.job.shape.piece_object(), &[]);
            envelope.usage = self.job.delivery.includes_usage.then_some(None);
            envelope.sluice = Some(CanvasEvent { index, canvas });
            self.ready.push_back(streaming::event(&envelope));
        }
    }

    fn end(&mut self) {
        if let (true, Some(head)) = (self.job.delivery.includes_usage, &self.head) {
            let mut envelope = head.envelope(self.job.shape.piece_object(), &[]);
            envelope.usage = Some(Some(self.usage));
            self.ready.push_back(streaming::event(&envelope));
        }
        self.ready.push_back(LAST_EVENT.to_owned());
    }
}

fn choice(index: u32, content: Content) -> Choice {
    Choice {
        index,
        content,
        logprobs: None,
        finish_reason: None,
        sluice: None,
    }
}
