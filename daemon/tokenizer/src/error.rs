//! What can be wrong with a tokenizer's files, with the file's name and the cause.

use std::fmt::Display;

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
    /// A text cannot be tokenized.
    #[error("cannot tokenize the text: {cause}")]
    Encode {
        /// What the tokenizer said.
        cause: String,
    },
}

impl TokenizerError {
    pub(super) fn tokenizer(cause: impl Display) -> Self {
        Self::Tokenizer {
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
