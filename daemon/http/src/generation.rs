//! Running a generation: events become text that can't change any more, and facts at the beginning and the end.

use sluice_proto::v1::{
    self,
    generate_request::{Decoding, Input},
    generation_event::Event,
};
use tonic::Streaming;

use crate::{
    failure::Failure, field_names::TextApi, format, logprobs::TokenQueue, services::Services,
    terms::CallTerms,
};

/// Metadata by which a call says what becomes of it where the queue is full (generation_service.proto).
const WHEN_FULL: &str = "sluice-when-full";

/// What is put in between two texts, where nobody says how much: OpenAI's own default of completions.
pub(crate) const INFILL_TOKENS_DEFAULT: u32 = 16;

/// A generation that was admitted. Dropping it cancels it.
#[derive(Debug)]
pub(crate) struct Generation {
    events: Streaming<v1::GenerateResponse>,
    origins: FieldOrigins,
    /// The operation's id.
    pub(crate) id: u64,
    /// Text that was handed on.
    text: String,
    tokens: TokenQueue,
    infill: Option<Infill>,
    /// Those of the canvas.
    positions: u32,
    /// Where texts without a position stand, once that is known.
    placed: Option<v1::GenerationPlaced>,
}

/// The texts on both sides of one that is put in between. The daemon's text has them, too.
#[derive(Debug, Clone)]
pub(crate) struct Infill {
    pub(crate) before: String,
    pub(crate) after: String,
}

impl Infill {
    /// What the daemon is asked for: masks between the two.
    pub(crate) fn edit(&self, masks: u32) -> v1::TextEdit {
        let at = self.before.len() as u32;
        v1::TextEdit {
            text: format!("{}{}", self.before, self.after),
            span_start_bytes: at,
            span_end_bytes: at,
            span_tokens: Some(masks),
            ..Default::default()
        }
    }

    /// Whether the masks are between the two: where a token reaches over the border, all of it is masked.
    fn is_kept(&self, started: &v1::GenerationStarted) -> bool {
        let fixed = (started.pinned.iter().enumerate())
            .take_while(|(at, token)| token.position as usize == *at)
            .flat_map(|(_, token)| &token.piece);
        fixed.eq(self.before.as_bytes())
    }
}

/// What happens in a generation, as far as an answer shows it.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The first pass is about to run.
    Started(Box<v1::GenerationStarted>),
    /// A picture of the open block, and what is new of the text that stays.
    Picture(Box<v1::GenerationPass>, Piece),
    /// Nothing follows. With the rest of the text.
    Done(Box<Ended>, Piece),
}

/// How a generation ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// What it came to.
    pub(crate) done: v1::GenerationDone,
    /// Where texts without a position came to stand, if there were any.
    pub(crate) placed: Option<v1::GenerationPlaced>,
}

/// More text, which stays as it is.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// Its tokens, where their log-probabilities were asked for. A token of which the text has only a part comes with the next piece.
    pub(crate) tokens: Vec<v1::CanvasToken>,
}

impl Piece {
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.tokens.is_empty()
    }

    /// With the piece that follows it.
    pub(crate) fn join(&mut self, next: Self) {
        self.text += &next.text;
        self.tokens.extend(next.tokens);
    }
}

impl Generation {
    /// Asks for it. Returns once it runs or waits in a queue.
    ///
    /// # Errors
    /// When it is refused.
    pub(crate) async fn begin(
        services: &Services,
        message: v1::GenerateRequest,
        terms: CallTerms,
        infill: Option<Infill>,
    ) -> Result<Self, Failure> {
        let mut call = tonic::Request::new(message);
        if let Some(timeout) = terms.timeout {
            call.set_timeout(timeout);
        }
        if terms.is_impatient {
            let refuse = tonic::metadata::MetadataValue::from_static("refuse");
            call.metadata_mut().insert(WHEN_FULL, refuse);
        }
        let origins = FieldOrigins::new(terms.api, call.get_ref());
        let answer = services.generation().generate(call).await;
        let mut events = answer
            .map_err(|refused| origins.told(refused.into()))?
            .into_inner();
        match event(&mut events, origins).await? {
            Event::Queued(queued) => Ok(Self {
                events,
                origins,
                id: queued.request_id,
                text: String::new(),
                tokens: TokenQueue::default(),
                infill,
                positions: 0,
                placed: None,
            }),
            _ => Err(Failure::unexpected("a request did not begin in the queue")),
        }
    }

    /// The next thing that an answer shows.
    ///
    /// # Errors
    /// When the generation fails, or is cancelled by somebody else.
    pub(crate) async fn next(&mut self) -> Result<Progress, Failure> {
        loop {
            match event(&mut self.events, self.origins).await? {
                Event::Started(started) => {
                    if self
                        .infill
                        .as_ref()
                        .is_some_and(|infill| !infill.is_kept(&started))
                    {
                        let problem = "a token reaches from the prompt's end into the suffix; cut the text elsewhere, such as before a space";
                        return Err(Failure::field("suffix", problem));
                    }
                    self.positions = started.length;
                    return Ok(Progress::Started(Box::new(started)));
                }
                Event::PassDone(pass) => {
                    // Up to the first mask, so it ends between the two texts as long as there is one.
                    let is_between = pass.committed_positions < self.positions;
                    self.tokens.add(&pass.tokens);
                    let text = match (&self.infill, is_between) {
                        (Some(_), false) => String::new(),
                        (None, _) | (Some(_), true) => {
                            self.more(&String::from_utf8_lossy(&pass.stable_text))?
                        }
                    };
                    let tokens = self.tokens.take(self.text.len());
                    return Ok(Progress::Picture(Box::new(pass), Piece { text, tokens }));
                }
                Event::Done(done) => {
                    if done.finish_reason() == v1::FinishReason::Cancelled {
                        return Err(Failure::cancelled());
                    }
                    let mut text = done.text.as_deref().unwrap_or_default();
                    if let Some(infill) = &self.infill {
                        text = text.strip_suffix(&infill.after).ok_or_else(changed)?;
                    }
                    let text = self.more(text)?;
                    let tokens = self.tokens.rest(done.text_tokens);
                    let placed = self.placed.take();
                    let ended = Box::new(Ended { done, placed });
                    return Ok(Progress::Done(ended, Piece { text, tokens }));
                }
                Event::BlockDone(block) => self.tokens.add(&block.tokens),
                Event::Placed(placed) => self.placed = Some(placed),
                Event::Queued(_) | Event::Loading(_) | Event::Notice(_) | Event::Thought(_) => {}
            }
        }
    }

    /// What this text has more than the one that was handed on.
    fn more(&mut self, text: &str) -> Result<String, Failure> {
        let before = self.infill.as_ref().map_or("", |infill| &infill.before);
        // While the first pictures come, not even all that is fixed may be shown.
        if before.starts_with(text) {
            return Ok(String::new());
        }
        let more = text
            .strip_prefix(before)
            .and_then(|text| text.strip_prefix(self.text.as_str()))
            .ok_or_else(changed)?
            .to_owned();
        self.text.push_str(&more);
        Ok(more)
    }
}

fn changed() -> Failure {
    Failure::unexpected("text changed that was to stay")
}

async fn event(
    events: &mut Streaming<v1::GenerateResponse>,
    origins: FieldOrigins,
) -> Result<Event, Failure> {
    let message = events.message().await;
    let message = message.map_err(|status| origins.told(status.into()))?;
    let event = message.and_then(|message| message.event?.event);
    event.ok_or_else(|| Failure::unexpected("a request ended without its last event"))
}

/// Where the fields of a request to the daemon came from: a refusal tells a field by the name that its caller knows.
#[derive(Debug, Clone, Copy)]
struct FieldOrigins {
    api: TextApi,
    /// What the answer's form is called.
    grammar: Option<&'static str>,
    is_edit: bool,
}

impl FieldOrigins {
    fn new(api: TextApi, request: &v1::GenerateRequest) -> Self {
        let grammar = match &request.decoding {
            Some(Decoding::Autoregressive(options)) => options.grammar.as_ref(),
            Some(Decoding::Diffusion(_)) | None => None,
        };
        Self {
            api,
            grammar: grammar.map(format::name),
            is_edit: matches!(request.input, Some(Input::Edit(_))),
        }
    }

    fn told(self, failure: Failure) -> Failure {
        failure.renamed(|field| match (field, self.grammar) {
            // To the engine, the texts on both sides of what is put in are pins.
            ("diffusion.pins", _) if self.is_edit => self.api.name("edit"),
            // A schema's name is the API's own.
            ("autoregressive.grammar", Some(name)) if name != field => Some(name.to_owned()),
            (field, _) => self.api.name(field),
        })
    }
}
