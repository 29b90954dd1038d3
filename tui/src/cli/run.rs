//! Arguments of `sluice run`, `chat` and `stop`.

use std::path::PathBuf;

use clap::Args;
use sluice_proto::v1;
use sluice_shared::options::PlanOptions;

use super::{AskedModel, DecodingArgs, MemoryArgs, help, plans::daemon_default};

/// `sluice run`.
#[derive(Debug, Args)]
#[command(after_long_help = help::run(), mut_args(daemon_default))]
pub struct Run {
    /// A short name such as smollm2, a name from `sluice list` or the hub, or a checkpoint's folder, .gguf or
    /// .sluice file; `demo` is the small demonstration model
    #[arg(value_name = "NAME|PATH")]
    pub model: PathBuf,
    /// The prompt; `-`, or no prompt in a pipe, reads it from standard input; text from a pipe or a file is appended to the
    /// words. Without a prompt on a terminal: a conversation
    #[arg(value_name = "PROMPT")]
    pub prompt: Vec<String>,
    /// Instructions that come before the prompt or the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Print each event of the answer as a JSON object on its own line; the last is "done"
    #[arg(long)]
    pub json: bool,
    /// Don't save typed lines in the history
    #[arg(long)]
    pub private: bool,
    /// What the model is loaded with.
    #[command(flatten)]
    pub options: PlanOptions,
    /// How to answer.
    #[command(flatten)]
    pub choices: AnswerArgs,
}

/// `sluice chat`.
#[derive(Debug, Args)]
#[command(after_long_help = help::chat())]
pub struct Chat {
    /// Instructions that come before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// The model that answers.
    #[command(flatten)]
    pub asked: AskedModel,
    /// Don't save typed lines in the history
    #[arg(long)]
    pub private: bool,
    /// Remember the conversation when it ends, in the first --memory-collection, else in "default"
    #[arg(long)]
    pub remember: bool,
    /// How to answer.
    #[command(flatten)]
    pub choices: AnswerArgs,
}

/// What may be chosen for the answers of a conversation, and changed within it.
#[derive(Debug, Clone, Default, Args)]
pub struct AnswerArgs {
    /// Positions to fill in each answer [default: 128, or what the context leaves]
    #[arg(long, value_name = "N")]
    pub length: Option<u32>,
    /// What of the daemon's memory goes into the prompts.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// How to decode.
    #[command(flatten)]
    pub decoding: DecodingArgs,
}

impl AnswerArgs {
    /// Writes the choices into a request.
    pub fn apply(&self, request: &mut v1::GenerateRequest) {
        request.length = self.length;
        self.memory.apply(request);
        self.decoding.apply(request);
    }
}

/// `sluice stop`.
#[derive(Debug, Args)]
#[command(after_help = help::STOP)]
pub struct Stop {
    /// Unload this model [default: the present one]
    #[arg(value_name = "NAME|PATH", conflicts_with = "daemon")]
    pub model: Option<PathBuf>,
    /// Stop the daemon itself once running requests are finished
    #[arg(long)]
    pub daemon: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
