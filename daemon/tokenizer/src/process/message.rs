//! What the two processes say to each other, as frames.

use std::{
    collections::HashMap,
    io::{self, Read, Write},
};

use sluice_apart::frame::{Frame, Reading, receive};

use crate::{
    TokenizerFiles,
    chat::{SOURCES, TemplateUses},
    coder::IdWithOffsets,
    conversation::{Conversation, ConversationMessage},
    error::{LimitReached, TokenizerError},
    grammar::{AllowedTokens, Grammar, GrammarKind},
    pieces::TokenPieces,
    vocabulary::{TextFrame, Vocabulary},
};

/// Bytes of a frame at most. Files, vocabularies, texts and their ids have narrower bounds of their own.
const FRAME_BYTES_MAX: usize = 1 << 30;

/// What a session is for, as the byte that it is asked for with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SessionKind {
    /// The texts of a request.
    Text = 0,
    /// A grammar, as long as a text is written by it.
    Grammar = 1,
}

/// What a session is asked for.
pub(super) enum Question {
    Encode(String),
    EncodeWithOffsets(String),
    EncodeChat(Conversation),
    /// Compiles a grammar.
    Compile(Grammar),
    /// Which tokens come after this one.
    Accept(u32),
}

/// The answer to a question.
pub(super) enum Answer {
    Ids(Vec<u32>),
    Tokens(Vec<IdWithOffsets>),
    Allowed(AllowedTokens),
}

// Bytes that no length or small number contains.
const ANSWER: u8 = 0xA5;
const ERROR: u8 = 0xE1;

pub(super) fn send_files(files: &TokenizerFiles<'_>, to: impl Write) -> io::Result<()> {
    let mut frame = Frame::new(ANSWER);
    frame.bytes(files.tokenizer);
    for file in [files.config, files.template] {
        frame.number(usize::from(file.is_some()));
        frame.bytes(file.unwrap_or_default());
    }
    frame.send(to)
}

/// Calls `parse` with the files.
pub(super) fn receive_files<T>(
    from: impl Read,
    parse: impl FnOnce(&TokenizerFiles<'_>) -> T,
) -> io::Result<T> {
    let frame = receive(from, FRAME_BYTES_MAX)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut reading = Reading(&frame);
    reading.tag()?;
    let tokenizer = reading.bytes()?;
    let mut optional = || -> io::Result<Option<&[u8]>> {
        let is_there = reading.number()? == 1;
        let bytes = reading.bytes()?;
        Ok(is_there.then_some(bytes))
    };
    let (config, template) = (optional()?, optional()?);
    Ok(parse(&TokenizerFiles {
        tokenizer,
        config,
        template,
    }))
}

pub(super) fn send_vocabulary(vocabulary: &Vocabulary, to: impl Write) -> io::Result<()> {
    let mut frame = Frame::new(ANSWER);
    let (bytes, ends) = vocabulary.pieces.parts();
    frame.bytes(bytes).ids(ends);
    frame.number(vocabulary.control.len());
    for (&id, string) in &vocabulary.control {
        frame.number(id as usize).bytes(string.as_bytes());
    }
    let TextFrame {
        before,
        behind,
        unknown,
    } = &vocabulary.frame;
    let unknown: Vec<u32> = unknown.iter().copied().collect();
    frame.ids(before).ids(behind).ids(&unknown);
    let TemplateUses {
        is_own,
        takes_tools,
    } = vocabulary.template;
    frame.number(is_own.into()).number(takes_tools.into());
    frame.send(to)
}

pub(super) fn receive_vocabulary(
    from: impl Read,
) -> io::Result<Result<Vocabulary, TokenizerError>> {
    let frame = receive(from, FRAME_BYTES_MAX)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut reading = Reading(&frame);
    if reading.tag()? == ERROR {
        return Ok(Err(read_error(&mut reading)?));
    }
    let bytes = reading.bytes()?.to_vec();
    let pieces = TokenPieces::from_parts(bytes, reading.ids()?);
    let pieces = pieces.ok_or(io::ErrorKind::InvalidData)?;
    let mut control = HashMap::new();
    for _ in 0..reading.number()? {
        control.insert(reading.number()? as u32, reading.text()?.to_owned());
    }
    let around = TextFrame {
        before: reading.ids()?,
        behind: reading.ids()?,
        unknown: reading.ids()?.first().copied(),
    };
    let template = TemplateUses {
        is_own: reading.number()? == 1,
        takes_tools: reading.number()? == 1,
    };
    Ok(Ok(Vocabulary::new(pieces, &control, around, template)))
}

pub(super) fn send_question(question: &Question, to: impl Write) -> io::Result<()> {
    let mut frame = Frame::new(match question {
        Question::Encode(_) => 0,
        Question::EncodeWithOffsets(_) => 1,
        Question::EncodeChat(_) => 2,
        Question::Compile(_) => 3,
        Question::Accept(_) => 4,
    });
    match question {
        Question::Encode(text) | Question::EncodeWithOffsets(text) => {
            frame.bytes(text.as_bytes());
        }
        Question::EncodeChat(chat) => {
            // No JSON is empty, so that stands for none.
            let optional = |json: &Option<String>| json.clone().unwrap_or_default();
            frame.bytes(optional(&chat.tools).as_bytes());
            frame.number(chat.messages.len());
            for message in &chat.messages {
                frame.bytes(message.role.as_bytes());
                frame.bytes(message.content.as_bytes());
                frame.bytes(optional(&message.more).as_bytes());
            }
        }
        Question::Compile(grammar) => {
            let kind = GrammarKind::ALL
                .iter()
                .position(|kind| *kind == grammar.kind);
            (frame.number(kind.unwrap_or_default())).bytes(grammar.text.as_bytes());
        }
        Question::Accept(token) => {
            frame.number(*token as usize);
        }
    }
    frame.send(to)
}

/// The next question; `None` at the session's end.
pub(super) fn receive_question(from: impl Read) -> io::Result<Option<Question>> {
    let Some(frame) = receive(from, FRAME_BYTES_MAX)? else {
        return Ok(None);
    };
    let mut reading = Reading(&frame);
    let question = match reading.tag()? {
        0 => Question::Encode(reading.text()?.to_owned()),
        1 => Question::EncodeWithOffsets(reading.text()?.to_owned()),
        2 => {
            let optional = |json: &str| (!json.is_empty()).then(|| json.to_owned());
            let tools = optional(reading.text()?);
            let messages = (0..reading.number()?).map(|_| {
                Ok(ConversationMessage {
                    role: reading.text()?.to_owned(),
                    content: reading.text()?.to_owned(),
                    more: optional(reading.text()?),
                })
            });
            let messages = messages.collect::<io::Result<_>>()?;
            Question::EncodeChat(Conversation { messages, tools })
        }
        3 => {
            let kind = GrammarKind::ALL.get(reading.number()?);
            Question::Compile(Grammar {
                kind: *kind.ok_or(io::ErrorKind::InvalidData)?,
                text: reading.text()?.to_owned(),
            })
        }
        4 => Question::Accept(reading.number()? as u32),
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    Ok(Some(question))
}

pub(super) fn send_answer(answer: &Answer, to: impl Write) -> io::Result<()> {
    let mut frame = Frame::new(ANSWER);
    match answer {
        Answer::Ids(ids) => {
            frame.ids(ids);
        }
        Answer::Tokens(tokens) => {
            frame.number(tokens.len());
            for &(id, (start, end)) in tokens {
                frame.number(id as usize).number(start).number(end);
            }
        }
        Answer::Allowed(allowed) => {
            (frame.number(usize::from(allowed.may_end))).ids(&allowed.mask);
        }
    }
    frame.send(to)
}

/// The answer's frame, or the error that was sent in its place.
pub(super) fn receive_answer(from: impl Read) -> io::Result<Result<Vec<u8>, TokenizerError>> {
    let mut frame = receive(from, FRAME_BYTES_MAX)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut reading = Reading(&frame);
    if reading.tag()? == ERROR {
        return Ok(Err(read_error(&mut reading)?));
    }
    frame.remove(0);
    Ok(Ok(frame))
}

pub(super) fn read_ids(frame: &[u8]) -> io::Result<Vec<u32>> {
    Reading(frame).ids()
}

pub(super) fn read_tokens(frame: &[u8]) -> io::Result<Vec<IdWithOffsets>> {
    let mut reading = Reading(frame);
    (0..reading.number()?)
        .map(|_| {
            let id = reading.number()? as u32;
            Ok((id, (reading.number()?, reading.number()?)))
        })
        .collect()
}

pub(super) fn read_allowed(frame: &[u8]) -> io::Result<AllowedTokens> {
    let mut reading = Reading(frame);
    Ok(AllowedTokens {
        may_end: reading.number()? == 1,
        mask: reading.ids()?,
    })
}

pub(super) fn send_error(error: &TokenizerError, to: impl Write) -> io::Result<()> {
    let mut frame = Frame::new(ERROR);
    match error {
        TokenizerError::Tokenizer { cause } => frame.number(0).bytes(cause.as_bytes()),
        TokenizerError::Config { cause } => frame.number(1).bytes(cause.as_bytes()),
        TokenizerError::Encode { cause } => frame.number(2).bytes(cause.as_bytes()),
        TokenizerError::Process { cause } => frame.number(3).bytes(cause.as_bytes()),
        TokenizerError::Limit(limit) => {
            let index = LimitReached::ALL.iter().position(|known| known == limit);
            frame.number(4).number(index.unwrap_or_default())
        }
        TokenizerError::World { cause } => frame.number(6).bytes(cause.as_bytes()),
        TokenizerError::Grammar { cause } => frame.number(7).bytes(cause.as_bytes()),
        TokenizerError::Template { file, cause } => {
            let source = SOURCES.iter().position(|known| known == file);
            (frame.number(5).bytes(cause.as_bytes())).number(source.unwrap_or_default())
        }
    };
    frame.send(to)
}

fn read_error(reading: &mut Reading<'_>) -> io::Result<TokenizerError> {
    let kind = reading.number()?;
    if kind == 4 {
        let limit = LimitReached::ALL.get(reading.number()?);
        return Ok(TokenizerError::Limit(
            *limit.ok_or(io::ErrorKind::InvalidData)?,
        ));
    }
    let cause = reading.text()?.to_owned();
    Ok(match kind {
        0 => TokenizerError::Tokenizer { cause },
        1 => TokenizerError::Config { cause },
        2 => TokenizerError::Encode { cause },
        3 => TokenizerError::Process { cause },
        6 => TokenizerError::World { cause },
        7 => TokenizerError::Grammar { cause },
        _ => {
            let file = SOURCES.get(reading.number()?);
            let file = file.ok_or(io::ErrorKind::InvalidData)?;
            TokenizerError::Template { file, cause }
        }
    })
}
