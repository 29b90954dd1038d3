//! What can be wrong with a tokenizer's files, with the file's name and the cause.

use std::fmt::Display;

use sluice_apart::WaitEnded;

use super::limits::{
    GRAMMAR_CPU_SECONDS_MAX, GRAMMAR_MEMORY_BYTES_MAX, PARSE_CPU_SECONDS_MAX,
    PARSE_MEMORY_BYTES_MAX, SESSION_CPU_SECONDS_MAX, SESSION_MEMORY_BYTES_MAX,
};

/// Characters that an error quotes from a file at most.
const QUOTED_CHARS_MAX: usize = 300;

/// Why there is no tokenizer, or why it could not do its work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    /// `tokenizer.json` cannot be read.
    #[error("tokenizer.json: {cause}")]
    Tokenizer {
        /// What is wrong with it.
        cause: String,
    },
    /// RWKV's vocabulary cannot be read.
    #[error("rwkv_vocab_v20230424.txt: {cause}")]
    World {
        /// What is wrong with it.
        cause: String,
    },
    /// `tokenizer_config.json` cannot be read.
    #[error("tokenizer_config.json: {cause}")]
    Config {
        /// What is wrong with it.
        cause: String,
    },
    /// The chat template cannot be read, or failed on these messages.
    #[error("chat template in {file}: {cause}")]
    Template {
        /// The file or built-in template that it is from.
        file: &'static str,
        /// What the template engine said.
        cause: String,
    },
    /// Memory or time that files and texts may take.
    #[error(transparent)]
    Limit(#[from] LimitReached),
    /// The tokenizer's process cannot be started or reached.
    #[error("the tokenizer's process: {cause}")]
    Process {
        /// What happened to it.
        cause: String,
    },
    /// A grammar cannot be read, or its text cannot go on.
    #[error("the grammar: {cause}")]
    Grammar {
        /// What is wrong with it.
        cause: String,
    },
    /// A text cannot be tokenized.
    #[error("cannot tokenize the text: {cause}")]
    Encode {
        /// What the tokenizer said.
        cause: String,
    },
}

/// A limit that parsing, rendering or tokenizing reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitReached {
    /// Memory while the files were parsed.
    #[error(
        "parsing tokenizer.json and the chat template takes more than {} MiB of memory, or nests too deeply",
        PARSE_MEMORY_BYTES_MAX >> 20
    )]
    ParseMemory,
    /// CPU time while the files were parsed.
    #[error(
        "parsing tokenizer.json and the chat template takes more than {PARSE_CPU_SECONDS_MAX} s of CPU time"
    )]
    ParseCpu,
    /// Memory for the texts of one request.
    #[error(
        "the model's chat template or tokenizer takes more than {} MiB of memory for this request, or nests too deeply",
        SESSION_MEMORY_BYTES_MAX >> 20
    )]
    SessionMemory,
    /// CPU time for the texts of one request.
    #[error(
        "the model's chat template or tokenizer takes more than {SESSION_CPU_SECONDS_MAX} s of CPU time for this request"
    )]
    SessionCpu,
    /// Memory for the grammar of one request.
    #[error(
        "the grammar takes more than {} MiB of memory, or nests too deeply",
        GRAMMAR_MEMORY_BYTES_MAX >> 20
    )]
    GrammarMemory,
    /// CPU time for the grammar of one request.
    #[error(
        "the grammar takes more than {GRAMMAR_CPU_SECONDS_MAX} s of CPU time to be compiled or to find the next tokens, or too long for each"
    )]
    GrammarCpu,
    /// Time for a grammar.
    #[error("the grammar was not compiled, or the next tokens were not found, in time")]
    GrammarWait,
    /// Time.
    #[error("the tokenizer did not answer in time")]
    Wait,
    /// Nobody waits any more.
    #[error("the caller is gone")]
    Gone,
}

impl LimitReached {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::ParseMemory,
        Self::ParseCpu,
        Self::SessionMemory,
        Self::SessionCpu,
        Self::GrammarMemory,
        Self::GrammarCpu,
        Self::GrammarWait,
        Self::Wait,
        Self::Gone,
    ];
}

impl From<WaitEnded> for LimitReached {
    fn from(ended: WaitEnded) -> Self {
        match ended {
            WaitEnded::TimeUp => Self::Wait,
            WaitEnded::Gone => Self::Gone,
        }
    }
}

impl From<WaitEnded> for TokenizerError {
    fn from(ended: WaitEnded) -> Self {
        LimitReached::from(ended).into()
    }
}

impl TokenizerError {
    pub(super) fn process(cause: impl Display) -> Self {
        Self::Process {
            cause: bounded(cause),
        }
    }

    pub(super) fn grammar(cause: impl Display) -> Self {
        Self::Grammar {
            cause: bounded(cause),
        }
    }

    pub(super) fn tokenizer(cause: impl Display) -> Self {
        Self::Tokenizer {
            cause: bounded(cause),
        }
    }

    pub(super) fn world(cause: impl Display) -> Self {
        Self::World {
            cause: bounded(cause),
        }
    }

    pub(super) fn config(cause: impl Display) -> Self {
        Self::Config {
            cause: bounded(cause),
        }
    }

    pub(super) fn encode(cause: impl Display) -> Self {
        Self::Encode {
            cause: bounded(cause),
        }
    }
}

/// A cause fit for one line of a log: files are not trusted to be short or printable.
pub(super) fn bounded(cause: impl Display) -> String {
    let cause = cause.to_string();
    let mut line = String::new();
    for (count, character) in cause.trim().chars().enumerate() {
        if count == QUOTED_CHARS_MAX {
            line.push('…');
            break;
        }
        line.push(if character.is_control() {
            ' '
        } else {
            character
        });
    }
    line
}
