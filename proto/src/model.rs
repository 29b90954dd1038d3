//! Checked counterparts of the wire's messages.
//!
//! Checking sits on the receiving side alone: `TryFrom` turns a message into a type whose
//! invariants hold, or names the field that breaks them. The daemon reads
//! [`Generation`], [`Scoring`], [`Planning`], [`PlanOptions`](sluice_shared::options::PlanOptions), [`Loading`] and [`CompressJob`] this way.

mod autoregressive;
mod decoding;
mod job;
mod memory;
mod optimizer;
mod reference;

use std::fmt::Display;

pub use sluice_shared::sampling::{EosPolicy, KvCacheMode, Remasking, Sampling, SamplingOptions};
use sluice_shared::{
    prior::{PriorSampling, PriorSolver},
    sampling::field_path,
};

pub use self::{
    autoregressive::{AutoregressiveChoice, Grammar},
    decoding::{CanvasGrowth, DecodingChoice, DiffusionChoice, KvCacheReuse, Preset, Speculation},
    job::{
        CalibrateJob, CalibrationChoice, CompressJob, CompressionMethod, DecompressJob,
        OptimizeJob, PruneJob, VerifyJob,
    },
    memory::{
        COLLECTION_DEFAULT, ImportStart, ImportedSource, MEMORY_TOKENS_DEFAULT, MemoryChoice,
        MemorySearch, PiecePage, Removal, SourcePage, optional_collection,
    },
    optimizer::{Loading, Measuring, Planning, RestoreTarget, Samples, Workload},
    reference::ModelRef,
};
use crate::v1;

/// A message that breaks the schema's rules.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidField {
    /// The field's path in the request, such as `sampling.temperature`.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

fn invalid(field: &'static str, problem: impl Into<String>) -> InvalidField {
    InvalidField {
        field,
        problem: problem.into(),
    }
}

/// Turns, and the functions that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// Never empty; the last is not blank.
    pub turns: Vec<Turn>,
    /// Functions that the model may call, as JSON, which nobody has read yet; `None`: none.
    pub tools: Option<String>,
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Role of the turn's speaker.
    pub role: Role,
    /// What is said.
    pub content: String,
    /// Calls that the model made; of [`Role::Assistant`] alone, and few.
    pub tool_calls: Vec<v1::ToolCall>,
    /// Which call this answers; of [`Role::Tool`] alone.
    pub tool_call_id: String,
    /// Who speaks, or which function; may be empty.
    pub name: String,
}

impl Turn {
    /// A turn that is nothing but text.
    #[must_use]
    pub fn new(role: Role, content: String) -> Self {
        Self {
            role,
            content,
            tool_calls: Vec::new(),
            tool_call_id: String::new(),
            name: String::new(),
        }
    }
}

/// Role of the turn's speaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions before the conversation.
    System,
    /// The person who talks to the model.
    User,
    /// The model, whose earlier answers are part of the prompt.
    Assistant,
    /// A function that the model called.
    Tool,
}

impl Role {
    /// The name that templates know.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// What comes before the part to fill.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// A conversation for the template.
    Chat(Conversation),
    /// Text as it stands; never empty.
    Raw(String),
    /// Token ids; empty only where nothing follows a state but its own last token.
    Tokens(Vec<u32>),
}

/// What a generation starts from.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A prompt, and `length` masks after it.
    Prompt {
        /// What comes first.
        prompt: Prompt,
        /// Masks after it, at least 1; `None`: the daemon's choice.
        length: Option<u32>,
    },
    /// A text with a span to write anew.
    Edit {
        /// What the text answers; may be empty.
        turns: Vec<Turn>,
        /// Text to edit.
        text: String,
        /// Bytes of `text` to mask, on character boundaries, not empty unless `span_length` is given.
        span: std::ops::Range<usize>,
        /// Masks in the span's place, at least 1; `None`: as many as it had tokens.
        span_length: Option<u32>,
    },
}

/// What stands at a pinned position.
#[derive(Debug, Clone, PartialEq)]
pub enum PinContent {
    /// Text, to be tokenized; never empty.
    Text(String),
    /// Token ids; never empty.
    Tokens(Vec<u32>),
}

/// Tokens fixed from the start.
#[derive(Debug, Clone, PartialEq)]
pub struct Pin {
    /// First position, counted from the first to fill; `None`: where the model finds them likeliest.
    pub position: Option<u32>,
    /// What stands there.
    pub content: PinContent,
}

/// A checked [`v1::GenerateRequest`].
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// The model that is to write: the present one, or one by its name.
    pub model: ModelRef,
    /// What to start from.
    pub input: Input,
    /// Positions decoded together, at least 1.
    pub block_length: Option<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingChoice,
    /// What only one kind of model takes.
    pub kind_options: KindOptions,
    /// How a latent thought model comes to its latents; `None`: nothing is said.
    pub thinking: Option<ThinkingChoice>,
    /// What of memory goes into the prompt, which is a conversation then; `None`: nothing.
    pub memory: Option<MemoryChoice>,
}

/// Checked [`v1::ThinkingOptions`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ThinkingChoice {
    /// Most steps; the engine knows the limit.
    pub steps: Option<u32>,
    /// Where inference begins: means and log variances, as many as each other.
    pub thoughts: Option<(Vec<f32>, Vec<f32>)>,
    /// How a sample of the learned prior is drawn; with steps that a sampler takes.
    pub prior: Option<PriorSampling>,
    /// Whether the posterior is given back.
    pub returns_thoughts: bool,
}

/// Checked [`v1::SamplingOptions`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SamplingChoice {
    /// Every setting makes sense, and all is said where the reference's way was asked for.
    pub options: SamplingOptions,
    /// What EOS does; `None`: ends the text, but in an edit it is never chosen, since the words
    /// after the span would go with it.
    pub eos: Option<EosPolicy>,
    /// Seed of all randomness.
    pub seed: Option<u64>,
    /// A temperature changes nothing, rather than being refused, where the policy draws at temperatures of its own.
    pub skips_unused_temperature: bool,
}

/// What only one kind of model takes.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum KindOptions {
    /// Nothing of it is said.
    #[default]
    Unsaid,
    /// Of masked diffusion models.
    Diffusion(DiffusionChoice),
    /// Of autoregressive models.
    Autoregressive(AutoregressiveChoice),
}

impl KindOptions {
    /// What is said for each kind; of one at least, nothing.
    #[must_use]
    pub fn into_parts(self) -> (DiffusionChoice, AutoregressiveChoice) {
        match self {
            Self::Unsaid => Default::default(),
            Self::Diffusion(choice) => (choice, AutoregressiveChoice::default()),
            Self::Autoregressive(choice) => (DiffusionChoice::default(), choice),
        }
    }
}

/// A checked [`v1::ScoreRequest`].
#[derive(Debug, Clone, PartialEq)]
pub struct Scoring {
    /// The model that is asked: the present one, or one by its name.
    pub model: ModelRef,
    /// What the answer follows.
    pub prompt: Prompt,
    /// The answer whose likelihood is asked for.
    pub answer: PinContent,
    /// Monte Carlo draws, at least 1.
    pub draws: Option<u32>,
    /// Finite, at least 0.
    pub guidance: f64,
    /// Seed of the draws.
    pub seed: Option<u64>,
    /// Whether to compare with greedy decoding.
    pub check_greedy: bool,
    /// Steps of inference before the draws, for a model with latents.
    pub think_steps: Option<u32>,
}

/// A checked [`v1::EmbedRequest`].
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    /// The model that is asked: the present one, or one by its name.
    pub model: ModelRef,
    /// The texts, at least one.
    pub texts: EmbeddedTexts,
    /// Whether a text that is too long is cut; it is refused otherwise.
    pub truncates: bool,
}

/// Texts to make vectors of.
#[derive(Debug, Clone, PartialEq)]
pub enum EmbeddedTexts {
    /// As text.
    Texts(Vec<String>),
    /// As ids, with those that a tokenizer puts around each.
    Tokens(Vec<Vec<u32>>),
}

impl TryFrom<v1::EmbedRequest> for Embedding {
    type Error = InvalidField;

    fn try_from(wire: v1::EmbedRequest) -> Result<Self, InvalidField> {
        let texts = match (wire.texts, wire.tokens) {
            (texts, tokens) if texts.is_empty() && tokens.is_empty() => {
                return Err(invalid("texts", "is empty"));
            }
            (texts, tokens) if tokens.is_empty() => EmbeddedTexts::Texts(texts),
            (texts, tokens) if texts.is_empty() => {
                EmbeddedTexts::Tokens(tokens.into_iter().map(|tokens| tokens.ids).collect())
            }
            _ => return Err(invalid("tokens", "texts are given, too; give one of both")),
        };
        Ok(Self {
            model: ModelRef::of_request(wire.model)?,
            texts,
            truncates: wire.truncate.unwrap_or(true),
        })
    }
}

impl TryFrom<v1::GenerateRequest> for Generation {
    type Error = InvalidField;

    fn try_from(wire: v1::GenerateRequest) -> Result<Self, InvalidField> {
        Self::checked(wire, false)
    }
}

impl Generation {
    /// Checks a request that goes on from a state, which may bring the token that a prompt has to have.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn after_state(wire: v1::GenerateRequest) -> Result<Self, InvalidField> {
        Self::checked(wire, true)
    }

    fn checked(wire: v1::GenerateRequest, follows_state: bool) -> Result<Self, InvalidField> {
        use v1::generate_request::{Decoding, Input as WireInput};

        let sampling = wire.sampling.unwrap_or_default().try_into()?;
        let kind_options = match wire.decoding {
            None => KindOptions::Unsaid,
            Some(Decoding::Diffusion(options)) => KindOptions::Diffusion(options.try_into()?),
            Some(Decoding::Autoregressive(options)) => {
                KindOptions::Autoregressive(options.try_into()?)
            }
        };
        let length = at_least_one("length", wire.length)?;
        let prompt = |prompt| Input::Prompt { prompt, length };
        let input = match wire.input {
            None if follows_state => prompt(Prompt::Tokens(Vec::new())),
            None => return Err(invalid("input", "is missing")),
            Some(input) => match input {
                WireInput::Chat(chat) => prompt(Prompt::Chat(conversation(chat)?)),
                WireInput::RawText(text) => prompt(Prompt::Raw(text)),
                WireInput::Tokens(tokens) => prompt(Prompt::Tokens(ids("tokens", tokens)?)),
                // The text is the canvas of an edit, which leaves no place for a length and for pins.
                WireInput::Edit(_) if follows_state => {
                    return Err(invalid("edit", "a text to edit cannot follow a state"));
                }
                WireInput::Edit(edit) => {
                    if length.is_some() {
                        return Err(invalid("length", "an edit takes its length from its text"));
                    }
                    if let KindOptions::Diffusion(choice) = &kind_options
                        && !choice.pins.is_empty()
                    {
                        let problem = "an edit pins all but its span by itself";
                        return Err(invalid("diffusion.pins", problem));
                    }
                    edit_input(edit)?
                }
            },
        };
        let memory = MemoryChoice::checked(wire.memory)?;
        let is_chat = matches!(
            input,
            Input::Prompt {
                prompt: Prompt::Chat(_),
                ..
            }
        );
        if memory.is_some() && !is_chat {
            return Err(invalid(
                "memory",
                "goes into conversations alone: use `chat`",
            ));
        }
        Ok(Self {
            model: ModelRef::of_request(wire.model)?,
            input,
            block_length: at_least_one("block_length", wire.block_length)?,
            sampling,
            kind_options,
            thinking: wire.thinking.map(thinking).transpose()?,
            memory,
        })
    }
}

impl TryFrom<v1::ScoreRequest> for Scoring {
    type Error = InvalidField;

    fn try_from(wire: v1::ScoreRequest) -> Result<Self, InvalidField> {
        use v1::score_request::{Answer, Prompt as WirePrompt};

        let prompt = match wire.prompt.ok_or_else(|| invalid("prompt", "is missing"))? {
            WirePrompt::Chat(chat) => Prompt::Chat(conversation(chat)?),
            WirePrompt::RawText(text) => Prompt::Raw(text),
            WirePrompt::Tokens(tokens) => Prompt::Tokens(ids("tokens", tokens)?),
        };
        let answer = match wire.answer.ok_or_else(|| invalid("answer", "is missing"))? {
            Answer::AnswerText(text) if text.is_empty() => {
                return Err(invalid("answer_text", "is empty"));
            }
            Answer::AnswerText(text) => PinContent::Text(text),
            Answer::AnswerTokens(tokens) => PinContent::Tokens(ids("answer_tokens", tokens)?),
        };
        Ok(Self {
            model: ModelRef::of_request(wire.model)?,
            prompt,
            answer,
            draws: at_least_one("draws", wire.draws)?,
            guidance: not_negative("guidance", wire.guidance)?,
            seed: wire.seed,
            check_greedy: wire.check_greedy,
            think_steps: wire.think_steps,
        })
    }
}

impl TryFrom<v1::SamplingOptions> for SamplingChoice {
    type Error = InvalidField;

    fn try_from(wire: v1::SamplingOptions) -> Result<Self, InvalidField> {
        // Checked here, as guidance is, in words that fit both.
        let temperature = wire.temperature;
        not_negative("sampling.temperature", temperature)?;
        let options = SamplingOptions {
            temperature,
            sampling: Sampling {
                top_k: wire.top_k,
                top_p: wire.top_p,
                min_p: wire.min_p,
                repetition_penalty: wire.repetition_penalty,
            },
        };
        if let Some((name, problem)) = options.sampling.problem() {
            return Err(invalid(field_path(name), problem));
        }
        let options = match (wire.greedy, temperature.filter(|hot| *hot > 0.0)) {
            (true, Some(hot)) => {
                let problem = format!("is {hot}, but greedy draws nothing");
                return Err(invalid("sampling.temperature", problem));
            }
            // This sets every option, so that no default of the model or of the daemon comes back in.
            (true, None) => options.or(SamplingOptions::greedy()),
            (false, _) => options,
        };
        Ok(Self {
            options,
            eos: checked(
                "sampling.eos_policy",
                wire.eos_policy,
                v1::EosPolicy::checked,
            )?,
            seed: wire.seed,
            skips_unused_temperature: wire.skip_unused_temperature,
        })
    }
}

fn thinking(wire: v1::ThinkingOptions) -> Result<ThinkingChoice, InvalidField> {
    let thoughts = |thoughts: v1::Thoughts| {
        let sizes = [thoughts.layers, thoughts.latents, thoughts.hidden_size];
        let elements = sizes.into_iter().try_fold(1, u32::checked_mul);
        let (means, log_variances) = (thoughts.means, thoughts.log_variances);
        let found = [means.len(), log_variances.len()];
        if elements.is_none_or(|elements| found != [elements as usize; 2]) {
            let problem = format!(
                "has {} means and {} log variances, and sizes for {} layers of {} latents of {} elements",
                found[0], found[1], sizes[0], sizes[1], sizes[2]
            );
            return Err(invalid("thinking.thoughts", problem));
        }
        Ok((means, log_variances))
    };
    Ok(ThinkingChoice {
        steps: wire.steps,
        thoughts: wire.thoughts.map(thoughts).transpose()?,
        prior: wire.prior.map(prior_sampling).transpose()?,
        returns_thoughts: wire.return_thoughts,
    })
}

fn prior_sampling(wire: v1::PriorSampling) -> Result<PriorSampling, InvalidField> {
    let field = "thinking.prior";
    let solver = checked(field, wire.solver, v1::PriorSolver::checked)?;
    let usual = solver.map_or_else(PriorSampling::default, PriorSampling::of);
    let sampling = match (usual.solver, wire.steps) {
        (PriorSolver::None, Some(_)) => return Err(invalid(field, "solver none has no steps")),
        (_, None) => usual,
        (_, Some(steps)) => PriorSampling { steps, ..usual },
    };
    match sampling.problem() {
        Some(problem) => Err(invalid(field, problem)),
        None => Ok(sampling),
    }
}

impl From<PriorSampling> for v1::PriorSampling {
    fn from(sampling: PriorSampling) -> Self {
        Self {
            solver: v1::PriorSolver::from(sampling.solver).into(),
            steps: (sampling.solver != PriorSolver::None).then_some(sampling.steps),
        }
    }
}

fn conversation(chat: v1::Chat) -> Result<Conversation, InvalidField> {
    let turns = turns("chat", chat.messages)?;
    match turns.last() {
        None => return Err(invalid("chat", "has no messages")),
        // A function may answer nothing.
        Some(last) if last.content.trim().is_empty() && last.role != Role::Tool => {
            return Err(invalid("chat", "the prompt is empty"));
        }
        Some(_) => {}
    }
    Ok(Conversation {
        turns,
        tools: Some(chat.tools_json).filter(|tools| !tools.is_empty()),
    })
}

/// Messages of a conversation, at most: a template runs over each of them.
pub const MESSAGES_MAX: usize = 4096;
/// Functions that a model may call, and calls of a message, at most: a template runs over each of them.
pub const TOOLS_MAX: usize = 128;

fn turns(field: &'static str, messages: Vec<v1::ChatMessage>) -> Result<Vec<Turn>, InvalidField> {
    if messages.len() > MESSAGES_MAX {
        let problem = format!("has {} messages, more than {MESSAGES_MAX}", messages.len());
        return Err(invalid(field, problem));
    }
    let turn = |message: v1::ChatMessage| {
        let role = match known(field, message.role)? {
            v1::ChatRole::System => Role::System,
            v1::ChatRole::User => Role::User,
            v1::ChatRole::Assistant => Role::Assistant,
            v1::ChatRole::Tool => Role::Tool,
            v1::ChatRole::Unspecified => {
                let problem = "a message has no role: system, user, assistant or tool";
                return Err(invalid(field, problem));
            }
        };
        let calls = message.tool_calls.len();
        if calls > TOOLS_MAX {
            let problem = format!("a message has {calls} calls, more than {TOOLS_MAX}");
            return Err(invalid(field, problem));
        }
        if calls > 0 && role != Role::Assistant {
            return Err(invalid(field, "only the assistant calls functions"));
        }
        if !message.tool_call_id.is_empty() && role != Role::Tool {
            return Err(invalid(field, "only a message of a tool answers a call"));
        }
        Ok(Turn {
            role,
            content: message.content,
            tool_calls: message.tool_calls,
            tool_call_id: message.tool_call_id,
            name: message.name,
        })
    };
    messages.into_iter().map(turn).collect()
}

fn ids(field: &'static str, tokens: v1::TokenIds) -> Result<Vec<u32>, InvalidField> {
    if tokens.ids.is_empty() {
        return Err(invalid(field, "has no ids"));
    }
    Ok(tokens.ids)
}

fn edit_input(edit: v1::TextEdit) -> Result<Input, InvalidField> {
    let span = edit.span_start_bytes as usize..edit.span_end_bytes as usize;
    if span.start > span.end || span.end > edit.text.len() {
        let problem = format!(
            "the span {}..{} lies outside the text of {} bytes",
            span.start,
            span.end,
            edit.text.len()
        );
        return Err(invalid("edit.span_end_bytes", problem));
    }
    // Positions count bytes, and half a character cannot be tokenized.
    for (field, at) in [
        ("edit.span_start_bytes", span.start),
        ("edit.span_end_bytes", span.end),
    ] {
        if !edit.text.is_char_boundary(at) {
            return Err(invalid(field, "cuts a character in two"));
        }
    }
    let span_length = at_least_one("edit.span_tokens", edit.span_tokens)?;
    if span.is_empty() && span_length.is_none() {
        let problem = "is empty; give span_tokens to insert words";
        return Err(invalid("edit.span_end_bytes", problem));
    }
    Ok(Input::Edit {
        turns: turns("edit.messages", edit.messages)?,
        text: edit.text,
        span,
        span_length,
    })
}

fn pin(wire: v1::CanvasPin) -> Result<Pin, InvalidField> {
    use v1::canvas_pin::Content;

    let content = match wire.content {
        Some(Content::Text(text)) if !text.is_empty() => PinContent::Text(text),
        Some(Content::Tokens(tokens)) => PinContent::Tokens(ids("diffusion.pins", tokens)?),
        Some(Content::Text(_)) | None => {
            let problem = match wire.anywhere {
                true => "a text that may stand anywhere is empty".to_owned(),
                false => format!("nothing is pinned at position {}", wire.position),
            };
            return Err(invalid("diffusion.pins", problem));
        }
    };
    let position = match (wire.anywhere, wire.position) {
        (true, 0) => None,
        (true, position) => {
            let problem = format!("position {position} of a text that may stand anywhere");
            return Err(invalid("diffusion.pins", problem));
        }
        (false, position) => Some(position),
    };
    Ok(Pin { position, content })
}

/// The value of an enum's field. One of a newer client's must not be taken for the default.
///
/// # Errors
/// When the schema of this program has no such value.
pub fn known<T: TryFrom<i32>>(field: &'static str, value: i32) -> Result<T, InvalidField> {
    T::try_from(value).map_err(|_| invalid(field, format!("has no value {value}")))
}

/// A value of an enum, as the wire has it: 0 where nothing is said.
fn wire_value<W: From<T> + Into<i32>, T>(value: Option<T>) -> i32 {
    value.map_or(0, |value| W::from(value).into())
}

/// What an enum's field asks for. A value that is only reported cannot be asked for.
fn checked<W: TryFrom<i32> + Default + PartialEq + Display, T>(
    field: &'static str,
    number: i32,
    checked: impl Fn(W) -> Option<T>,
) -> Result<Option<T>, InvalidField> {
    let value: W = known(field, number)?;
    // 0 is the unspecified value of each enum: nothing is said.
    if value == W::default() {
        return Ok(None);
    }
    let problem = format!("{value} is reported, and cannot be asked for");
    checked(value)
        .map(Some)
        .ok_or_else(|| invalid(field, problem))
}

fn at_least_one(field: &'static str, value: Option<u32>) -> Result<Option<u32>, InvalidField> {
    // 0 does not mean unset: these fields are optional in the schema.
    if value == Some(0) {
        return Err(invalid(field, "must be at least 1, not 0"));
    }
    Ok(value)
}

fn not_negative(field: &'static str, value: Option<f64>) -> Result<f64, InvalidField> {
    let value = value.unwrap_or(0.0);
    if !value.is_finite() || value < 0.0 {
        let problem = format!("must be a finite number of at least 0, not {value}");
        return Err(invalid(field, problem));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(content: &str) -> v1::GenerateRequest {
        let message = v1::ChatMessage {
            role: v1::ChatRole::User.into(),
            content: content.into(),
            ..Default::default()
        };
        v1::GenerateRequest {
            input: Some(v1::generate_request::Input::Chat(v1::Chat {
                messages: vec![message],
                ..Default::default()
            })),
            ..Default::default()
        }
    }

    fn problem(request: v1::GenerateRequest) -> String {
        Generation::try_from(request).unwrap_err().to_string()
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let checked = Generation::try_from(chat("hello")).unwrap();
        assert_eq!(checked.sampling, SamplingChoice::default());
        assert_eq!(checked.kind_options, KindOptions::Unsaid);
    }

    #[test]
    fn greedy_says_all_that_is_not_said_beside_it() {
        let wire = v1::SamplingOptions {
            greedy: true,
            repetition_penalty: Some(1.2),
            ..Default::default()
        };
        let drawing = SamplingChoice::try_from(wire).unwrap().options;
        assert_eq!(drawing.sampling.repetition_penalty, Some(1.2));
        let rest = Sampling {
            repetition_penalty: Some(1.0),
            ..drawing.sampling
        };
        assert_eq!(
            SamplingOptions {
                sampling: rest,
                ..drawing
            },
            SamplingOptions::greedy()
        );
    }

    #[test]
    fn each_broken_field_is_named() {
        let with = |change: &dyn Fn(&mut v1::GenerateRequest)| {
            let mut request = chat("hello");
            change(&mut request);
            problem(request)
        };
        assert_eq!(problem(v1::GenerateRequest::default()), "input: is missing");
        assert_eq!(problem(chat(" \n")), "chat: the prompt is empty");
        assert_eq!(
            with(&|r| r.sampling_mut().eos_policy = 9),
            "sampling.eos_policy: has no value 9"
        );
        let role = |role| {
            let mut request = chat("hello");
            if let Some(v1::generate_request::Input::Chat(chat)) = &mut request.input {
                chat.messages[0].role = role;
            }
            problem(request)
        };
        assert_eq!(
            role(0),
            "chat: a message has no role: system, user, assistant or tool"
        );
        assert_eq!(role(9), "chat: has no value 9");
        let mut crowd = chat("hello");
        if let Some(v1::generate_request::Input::Chat(chat)) = &mut crowd.input {
            chat.messages = vec![chat.messages[0].clone(); MESSAGES_MAX + 1];
        }
        assert_eq!(problem(crowd), "chat: has 4097 messages, more than 4096");
        assert_eq!(
            with(&|r| r.length = Some(0)),
            "length: must be at least 1, not 0"
        );
        assert_eq!(
            with(&|r| r.sampling_mut().temperature = Some(f64::NAN)),
            "sampling.temperature: must be a finite number of at least 0, not NaN"
        );
        assert_eq!(
            with(&|r| r.diffusion_mut().guidance = Some(-1.0)),
            "diffusion.guidance: must be a finite number of at least 0, not -1"
        );
        assert_eq!(
            with(&|r| r.sampling_mut().top_p = Some(0.0)),
            "sampling.top_p: must be above 0 and at most 1, not 0"
        );
        assert_eq!(
            with(&|r| {
                let sampling = r.sampling_mut();
                (sampling.greedy, sampling.temperature) = (true, Some(0.5));
            }),
            "sampling.temperature: is 0.5, but greedy draws nothing"
        );
        let stop = |stop: Vec<String>| with(&|r| r.autoregressive_mut().stop = stop.clone());
        assert_eq!(
            with(&|r| r.autoregressive_mut().top_logprobs = Some(21)),
            "autoregressive.top_logprobs: must be at most 20, not 21"
        );
        let grammar = |kind| {
            let grammar = v1::Grammar { kind };
            with(&|r| r.autoregressive_mut().grammar = Some(grammar.clone()))
        };
        assert_eq!(grammar(None), "autoregressive.grammar: has no kind");
        let regex = |text: String| grammar(Some(v1::grammar::Kind::Regex(text)));
        assert_eq!(regex(String::new()), "autoregressive.grammar: is empty");
        assert_eq!(
            regex("x".repeat(524_289)),
            "autoregressive.grammar: has 524289 bytes, more than 524288"
        );
        assert_eq!(
            stop(vec!["END".into(), String::new()]),
            "autoregressive.stop: is empty and would end every text immediately"
        );
        assert_eq!(
            stop(vec!["x".repeat(257)]),
            "autoregressive.stop: has 257 bytes, more than 256"
        );
        assert_eq!(
            stop(vec!["x".into(); 17]),
            "autoregressive.stop: has 17 strings, more than 16"
        );
        assert_eq!(
            with(&|r| {
                r.diffusion_mut().policy = Some(v1::CommitPolicy {
                    name: "hasty".into(),
                    ..Default::default()
                });
            }),
            "diffusion.policy: unknown policy 'hasty'; known are reference, dynamic, sequential, edit, deadline, autoregressive, verify, renoise, threshold, factor, dream, rnd1, margin, \
             decay, hierarchical, local, entropy, klass, credit, revoke"
        );
    }

    #[test]
    fn an_edit_needs_a_span_inside_its_text() {
        let edit = |start, end, span_length| {
            let mut request = chat("");
            request.input = Some(v1::generate_request::Input::Edit(v1::TextEdit {
                text: "a \u{e9} b".into(),
                span_start_bytes: start,
                span_end_bytes: end,
                span_tokens: span_length,
                ..Default::default()
            }));
            Generation::try_from(request).map_err(|error| error.to_string())
        };
        assert!(edit(2, 4, None).is_ok());
        assert!(edit(2, 2, Some(3)).is_ok());
        assert!(edit(2, 2, None).unwrap_err().contains("is empty"));
        assert!(edit(2, 9, None).unwrap_err().contains("outside the text"));
        assert!(edit(3, 4, None).unwrap_err().contains("cuts a character"));
    }
}
