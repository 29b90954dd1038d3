//! Arguments of `sluice run`, `chat` and `stop`.

use std::path::PathBuf;

use clap::Args;
use sluice_proto::v1;

use super::{Sampling, Wish, help};

/// `sluice run`.
#[derive(Debug, Args)]
#[command(after_long_help = help::run())]
pub struct Run {
    /// A short name such as smollm2, a model as `sluice list` or the hub calls it, or a checkpoint's folder, .gguf or
    /// .sluice file; `demo` is the small demonstration model
    #[arg(value_name = "NAME|PATH")]
    pub model: PathBuf,
    /// What to answer; `-`, or nothing in a pipe, reads it from standard input, and words get what a pipe or a file brings there
    /// behind them. Left out on a terminal: a conversation
    #[arg(value_name = "PROMPT")]
    pub prompt: Vec<String>,
    /// Instructions that come before the prompt or the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Print each event of the answer as a JSON object on its own line; the last is "done"
    #[arg(long)]
    pub json: bool,
    /// Keep no history of what is typed
    #[arg(long)]
    pub private: bool,
    /// How faithful the weights are, and how much memory they may take.
    #[command(flatten)]
    pub wish: Wish,
    /// How to answer.
    #[command(flatten)]
    pub choices: Choices,
}

/// `sluice chat`.
#[derive(Debug, Args)]
#[command(after_long_help = help::chat())]
pub struct Chat {
    /// Instructions that come before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Keep no history of what is typed
    #[arg(long)]
    pub private: bool,
    /// How to answer.
    #[command(flatten)]
    pub choices: Choices,
}

/// What may be chosen for the answers of a conversation, and changed within it.
#[derive(Debug, Clone, Default, Args)]
pub struct Choices {
    /// Positions to fill in each answer [default: 128, or what the context leaves]
    #[arg(long, value_name = "N")]
    pub length: Option<u32>,
    /// How to decode.
    #[command(flatten)]
    pub sampling: Sampling,
}

impl Choices {
    /// Writes the choices into a request.
    pub fn apply(&self, request: &mut v1::GenerateRequest) {
        request.length = self.length;
        self.sampling.apply(request);
    }
}

/// `sluice stop`.
#[derive(Debug, Args)]
#[command(after_help = help::STOP)]
pub struct Stop {
    /// The model, where it has to be this one [default: whichever is loaded]
    #[arg(value_name = "NAME|PATH", conflicts_with = "daemon")]
    pub model: Option<PathBuf>,
    /// End the daemon itself, after the requests that run
    #[arg(long)]
    pub daemon: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
