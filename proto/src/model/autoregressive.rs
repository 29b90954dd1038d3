//! What only autoregressive models take.

use sluice_shared::sampling::{GRAMMAR_BYTES_MAX, STOP_BYTES_MAX, STOPS_MAX, logprobs_problem};

use super::{InvalidField, invalid};
use crate::v1;

/// Checked [`v1::AutoregressiveOptions`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AutoregressiveChoice {
    /// Strings that end the text, none of them empty; few and short.
    pub stops: Vec<String>,
    /// The most probable tokens whose log-probabilities are told beside each token's, few; `None`: none are told.
    pub top_logprobs: Option<usize>,
    /// What the answer has to match.
    pub grammar: Option<Grammar>,
}

/// Checked [`v1::Grammar`]: text that is neither empty nor long, of a kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// A JSON schema.
    JsonSchema(String),
    /// A regular expression.
    Regex(String),
    /// A grammar in llguidance's variant of Lark.
    Lark(String),
}

impl TryFrom<v1::AutoregressiveOptions> for AutoregressiveChoice {
    type Error = InvalidField;

    fn try_from(wire: v1::AutoregressiveOptions) -> Result<Self, InvalidField> {
        let top_logprobs = wire.top_logprobs.map(|count| count as usize);
        // What length and blocks allow is checked where they are known.
        match top_logprobs.and_then(|count| logprobs_problem(count, 0, 0)) {
            Some(problem) => Err(invalid("autoregressive.top_logprobs", problem)),
            None => Ok(Self {
                stops: stops(wire.stop)?,
                top_logprobs,
                grammar: wire.grammar.map(grammar).transpose()?,
            }),
        }
    }
}

fn grammar(wire: v1::Grammar) -> Result<Grammar, InvalidField> {
    use v1::grammar::Kind;

    let (make, text): (fn(String) -> Grammar, _) = match wire.kind {
        Some(Kind::JsonSchema(text)) => (Grammar::JsonSchema, text),
        Some(Kind::Regex(text)) => (Grammar::Regex, text),
        Some(Kind::Lark(text)) => (Grammar::Lark, text),
        None => return Err(invalid("autoregressive.grammar", "has no kind")),
    };
    if text.is_empty() {
        return Err(invalid("autoregressive.grammar", "is empty"));
    }
    if text.len() > GRAMMAR_BYTES_MAX {
        let problem = format!("has {} bytes, more than {GRAMMAR_BYTES_MAX}", text.len());
        return Err(invalid("autoregressive.grammar", problem));
    }
    Ok(make(text))
}

fn stops(stops: Vec<String>) -> Result<Vec<String>, InvalidField> {
    if stops.len() > STOPS_MAX {
        let problem = format!("has {} strings, more than {STOPS_MAX}", stops.len());
        return Err(invalid("autoregressive.stop", problem));
    }
    for stop in &stops {
        if stop.is_empty() {
            let problem = "is empty and would end every text immediately";
            return Err(invalid("autoregressive.stop", problem));
        }
        if stop.len() > STOP_BYTES_MAX {
            let problem = format!("has {} bytes, more than {STOP_BYTES_MAX}", stop.len());
            return Err(invalid("autoregressive.stop", problem));
        }
    }
    Ok(stops)
}
