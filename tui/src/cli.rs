//! The command line: names, defaults and the help that teaches them.

mod bench;
mod calibrate;
mod help;
mod jobs;
mod library;
mod memory;
mod optimize;
mod plans;
mod report;
mod run;
mod screen;

use std::{path::PathBuf, str::FromStr};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use sluice_proto::{
    model::DecodingChoice,
    v1::{self, generate_request::Decoding},
};
use sluice_shared::{
    decoding::{CanvasGrowth, KvCacheReuse, Speculation},
    options::PlanOptions,
    policy::PolicyChoice,
    preset::Preset,
    prior::PriorSampling,
};

pub use bench::Bench;
pub use calibrate::Calibrate;
pub use jobs::{Compress, Decompress, FollowArgs, Jobs, JobsCommand, Prune, Verify};
pub use library::{Inspect, Pull, Remove};
pub use memory::{
    Memory, MemoryAdd, MemoryArgs, MemoryCommand, MemoryExport, MemoryRemove, MemorySearch,
    MemoryShow, Ranking, Reader, SourceKind,
};
pub use optimize::{MixArgs, Optimize, Quantize};
pub use plans::{Fidelity, LevelChoice, Plan, Restore, RestoreTo, SetBudget, SetLevel};
pub use report::Report;
pub use run::{AnswerArgs, Chat, Run, Stop};
pub use screen::{Colour, Screen};

/// Client of sluiced, which runs language models that are larger than the GPU's memory.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, after_help = help::PROGRAM, max_term_width = 100)]
pub struct Cli {
    /// The daemon's socket, or http://127.0.0.1:PORT or https://HOST:PORT for one that was started with --listen.
    ///
    /// Else $SLUICE_SOCKET, else /run/sluice/sluice.sock if it exists, else
    /// $XDG_RUNTIME_DIR/sluice/sluice.sock, else a private folder under the temporary directory.
    #[arg(long, global = true, value_name = "PATH|URL")]
    pub socket: Option<PathBuf>,

    /// When to use colour [default: auto]
    #[arg(long, global = true, value_name = "WHEN")]
    pub color: Option<Colour>,

    /// How the dashboard looks, and whether it remembers anything.
    #[command(flatten)]
    pub screen: Screen,

    /// What to do; the dashboard when left out.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What `sluice` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answers a prompt or holds a conversation; starts the daemon, downloads and loads the model as needed
    Run(Run),
    /// Answers a prompt, or continues raw text or tokens
    Generate(Generate),
    /// Holds a conversation, turn by turn
    Chat(Chat),
    /// Rewrites a span of a text (infill)
    Edit(Edit),
    /// Makes vectors of texts with a sentence encoder, or tells how similar they are
    Embed(Embed),
    /// Remembers files and notes, finds them again, and forgets them
    Memory(Memory),
    /// Estimates the log-likelihood of an answer
    Score(Score),
    /// Benchmarks the loaded model with one or more presets
    Bench(Bench),
    /// Shows the daemon, its memory, model and queue
    Status(Plain),
    /// Examines programs, daemon and machine, and says what to do about what does not work
    #[command(after_help = help::DOCTOR)]
    Doctor(Plain),
    /// Shows the loaded models and their requests in short
    Ps(Plain),
    /// Lists models: loaded, on disk and being downloaded
    #[command(visible_aliases = ["ls", "models"])]
    List(Plain),
    /// Downloads a model from the hub
    Pull(Pull),
    /// Deletes a downloaded model, or removes a model given by its path from the list
    Rm(Remove),
    /// Shows a checkpoint's contents and the memory it would need, without loading it
    #[command(visible_alias = "show")]
    Inspect(Inspect),
    /// Compresses a checkpoint into one .sluice file, losslessly by default
    Compress(Compress),
    /// Writes a smaller model, without some attention heads and feed-forward channels, into one .sluice file
    Prune(Prune),
    /// Decompresses a .sluice file into the checkpoint's folder
    Decompress(Decompress),
    /// Verifies the checksums of a .sluice file, tile by tile
    Verify(Verify),
    /// Lists running and recently finished jobs; watches or cancels one
    Jobs(Jobs),
    /// Loads a model, which is the present one from then on
    Load(Load),
    /// Unloads a model and frees its memory
    Unload(Unload),
    /// Unloads the model as unload does, or stops the daemon with --daemon
    Stop(Stop),
    /// Shows the plan for a level and a budget without loading anything
    Plan(Plan),
    /// Changes the level while requests run
    Level(SetLevel),
    /// Measures the fidelity of levels to the checkpoint's weights
    Fidelity(Fidelity),
    /// Measures memory, time and fidelity of a model at each level, as a table
    Report(Report),
    /// Measures the inputs of the model's matrices, for quantizing and pruning
    Calibrate(Calibrate),
    /// Finds and applies the most faithful weights that fit a budget
    Optimize(Optimize),
    /// Quantizes the model's matrices to a rate by its calibration, and applies that
    Quantize(Quantize),
    /// Changes the memory budget while requests run
    Budget(SetBudget),
    /// Restores the level and budget that the daemon was started or the model loaded with
    Restore(Restore),
    /// Lists waiting, running and recently finished requests
    Requests(Plain),
    /// Follows a request from its first event
    Watch(Watch),
    /// Replays a saved run without a daemon
    Replay(Replay),
    /// Cancels a request within one pass, or another operation, and waits for its end
    Cancel(Cancel),
    /// Prints a completion script for a shell
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Prints the manual page of sluice, or of one command
    Man {
        /// The command.
        command: Option<String>,
        /// Write the pages of all commands into this folder instead, for packages
        #[arg(long, value_name = "DIR", conflicts_with = "command")]
        folder: Option<PathBuf>,
    },
}

/// The model that a command asks.
#[derive(Debug, Clone, Default, Args)]
pub struct AskedModel {
    /// Model to ask, as `sluice list` names it; it is loaded if it is not [default: the present one]
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
}

impl AskedModel {
    /// The name as requests have it; empty for the present model.
    pub fn name(&self) -> String {
        self.model.clone().unwrap_or_default()
    }
}

/// `sluice generate`.
#[derive(Debug, Args)]
#[command(after_long_help = help::generate())]
pub struct Generate {
    /// The prompt; `-` reads it from standard input, less one newline at its end. An autoregressive model writes without one if it
    /// is empty (""), from its begin token on
    #[arg(required_unless_present_any = ["tokens", "state"], conflicts_with = "tokens")]
    pub prompt: Option<String>,
    /// Token ids in the prompt's place, for models without a tokenizer
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub tokens: Option<Vec<u32>>,
    /// Use the prompt as raw text, without the chat template
    #[arg(long, conflicts_with = "tokens")]
    pub raw: bool,
    /// Instructions that come before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["raw", "tokens"])]
    pub system: Option<String>,
    /// Positions to fill [default: 128, or the rest of the context]
    #[arg(long, value_name = "N")]
    pub length: Option<u32>,
    /// Pin TEXT at position POS of the canvas, counted from 0 after the prompt, or with `any` in its place where the model finds TEXT
    /// likeliest; may be repeated
    #[arg(long = "pin", value_name = "POS:TEXT", value_parser = parse_pin, conflicts_with = "stop")]
    pub pins: Vec<(Option<u32>, String)>,
    /// Latent thought models: go on from the thoughts in FILE, which --save-thoughts wrote; without --think they are taken as
    /// they are
    #[arg(long, value_name = "FILE")]
    pub thoughts: Option<PathBuf>,
    /// Latent thought models: write what was thought of the prompt to FILE (safetensors: mu and log_var)
    #[arg(long, value_name = "FILE")]
    pub save_thoughts: Option<PathBuf>,
    /// Recurrent models (RWKV-7): go on from the state in FILE, which --save-state wrote, and read only the prompt, if there is one
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Recurrent models (RWKV-7): write the state after prompt and answer to FILE (safetensors)
    #[arg(long, value_name = "FILE")]
    pub save_state: Option<PathBuf>,
    /// Autoregressive models: show each token's log-probability and those of the N most probable tokens, at most 20
    #[arg(long, value_name = "N", conflicts_with_all = DIFFUSION_FLAGS)]
    pub logprobs: Option<u32>,
    /// Autoregressive models: write JSON that the schema in FILE describes; `{}` describes any JSON
    #[arg(long, value_name = "FILE", group = "constraint", conflicts_with_all = DIFFUSION_FLAGS)]
    pub json_schema: Option<PathBuf>,
    /// Autoregressive models: write text that the regular expression R matches as a whole
    #[arg(long, value_name = "R", group = "constraint", conflicts_with_all = DIFFUSION_FLAGS)]
    pub regex: Option<String>,
    /// Autoregressive models: write text by the rules in FILE, in llguidance's variant of Lark
    #[arg(long, value_name = "FILE", group = "constraint", conflicts_with_all = DIFFUSION_FLAGS)]
    pub grammar: Option<PathBuf>,
    /// What of the daemon's memory goes into the prompt.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// The model that answers.
    #[command(flatten)]
    pub asked: AskedModel,
    /// Print each event as a JSON object on its own line; the last is "done"
    #[arg(long)]
    pub json: bool,
    /// How to decode.
    #[command(flatten)]
    pub decoding: DecodingArgs,
}

/// Options that only masked diffusion models take.
const DIFFUSION_FLAGS: [&str; 10] = [
    "pins",
    "preset",
    "steps",
    "guidance",
    "remasking",
    "policy",
    "kv_cache",
    "suffix_window",
    "canvas_growth",
    "speculate",
];

/// How to decode; the daemon knows the defaults and the limits.
#[derive(Debug, Clone, Default, Args)]
pub struct DecodingArgs {
    /// Quality preset: exact, quality, balanced, fast or auto
    /// [default: the daemon's, which is exact unless configured otherwise]
    #[arg(
        long,
        value_name = "PRESET",
        help_heading = "Decoding",
        conflicts_with = "stop"
    )]
    pub preset: Option<Preset>,
    /// All else.
    #[command(flatten)]
    pub details: DecodingDetails,
}

/// How to decode, in detail. What is given takes the place of what the preset says.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Decoding")]
pub struct DecodingDetails {
    /// Block length: positions decoded together; blocks go left to right [default: the model's own, else 32]
    #[arg(long, value_name = "N")]
    pub block: Option<u32>,
    /// Denoising steps for the whole canvas, split over the blocks [default: one per position]
    #[arg(long, value_name = "N")]
    pub steps: Option<u32>,
    /// Greedy decoding without any penalty, as in the reference
    #[arg(long, conflicts_with = "temperature")]
    pub greedy: bool,
    /// Scale of the Gumbel noise; 0 takes the most probable token [default: the model's, see `sluice inspect`]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f64>,
    /// Weight of classifier-free guidance; 0 disables it [default: 0]
    #[arg(long, value_name = "W", allow_negative_numbers = true)]
    pub guidance: Option<f64>,
    /// How the masked positions of a pass are ranked [default: the model's, mostly low_confidence]
    #[arg(long, value_name = "HOW")]
    pub remasking: Option<Remasking>,
    /// Effect of an end-of-sequence token [default: stop; in an edit, suppress]
    #[arg(long, value_name = "WHAT")]
    pub eos: Option<Eos>,
    /// Commit policy: which positions a pass commits [default: the preset's]
    #[arg(long, value_name = "NAME[:k=v,…]")]
    pub policy: Option<PolicyChoice>,
    /// KV cache reuse between passes [default: the preset's]
    #[arg(long, value_name = "MODE[:k=v,…]")]
    pub kv_cache: Option<KvCacheReuse>,
    /// Masked positions after the current block that a pass computes, besides the last position [default: the preset's]
    #[arg(long, value_name = "N")]
    pub suffix_window: Option<u32>,
    /// Canvas growth: fixed, append or insert [default: the preset's]
    #[arg(long, value_name = "HOW")]
    pub canvas_growth: Option<CanvasGrowth>,
    /// Speculative canvases that a pass tries in parallel [default: the preset's]
    #[arg(long, value_name = "HOW[:k=v]")]
    pub speculate: Option<Speculation>,
    /// Same seed, same text [default: drawn by the daemon, and reported]
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Autoregressive models: sample from the N most probable tokens; 0 for all [default: the model's]
    #[arg(long, value_name = "N")]
    pub top_k: Option<u32>,
    /// Autoregressive models: sample from the most probable tokens with this cumulative probability [default: the model's]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f64>,
    /// Autoregressive models: sample from tokens with at least this share of the top token's probability [default: the model's]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f64>,
    /// Autoregressive models: divide the logits of earlier tokens by this [default: the model's]
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub repetition_penalty: Option<f64>,
    /// Latent thought models: most steps in which the prompt's latents are inferred before the first token; 0 draws them from the
    /// prior [default: the model's, mostly 16]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub think: Option<u32>,
    /// Latent thought models: begin at a sample of the learned prior, drawn by dpm-solver-pp-2m, heun or adaptive-heun in so many
    /// steps, mostly 20 to 50; none: at N(0, I) [default: dpm-solver-pp-2m:25 where nothing is inferred]
    #[arg(long, value_name = "SOLVER[:STEPS]")]
    pub prior: Option<PriorSampling>,
    /// Autoregressive models: stop before this text, or at the special token of this name; may be repeated
    #[arg(
        long,
        value_name = "TEXT",
        conflicts_with_all = [
            "steps", "guidance", "remasking", "policy", "kv_cache", "suffix_window", "canvas_growth", "speculate",
        ]
    )]
    pub stop: Vec<String>,
}

/// `sluice edit`.
#[derive(Debug, Args)]
#[command(after_long_help = help::edit())]
#[group(id = "span_choice", required = true, multiple = false, args = ["replace", "span"])]
pub struct Edit {
    /// The text; `-` reads it from standard input, less one newline at its end
    pub text: String,
    /// The words to rewrite; they must occur exactly once
    #[arg(long, value_name = "SUBSTRING")]
    pub replace: Option<String>,
    /// The byte range of the text to rewrite; the end is exclusive
    #[arg(long, value_name = "START..END", value_parser = parse_span)]
    pub span: Option<(u32, u32)>,
    /// Tokens to fill the span with [default: as many as it had]
    #[arg(long = "tokens", value_name = "N")]
    pub span_length: Option<u32>,
    /// What the text answers
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// The model that answers.
    #[command(flatten)]
    pub asked: AskedModel,
    /// Print each event as a JSON object on its own line; the last is "done"
    #[arg(long)]
    pub json: bool,
    /// How to decode.
    #[command(flatten)]
    pub decoding: DecodingArgs,
}

/// `sluice embed`.
#[derive(Debug, Args)]
#[command(after_help = help::EMBED)]
pub struct Embed {
    /// The texts; `-` reads one from each line of standard input
    #[arg(value_name = "TEXT", required = true)]
    pub texts: Vec<String>,
    /// Print how similar the texts are, as a table of cosines [default: on a terminal, for several texts]
    #[arg(long, conflicts_with = "json")]
    pub compare: bool,
    /// Refuse a text that is longer than the model reads, instead of reading its beginning
    #[arg(long)]
    pub no_truncate: bool,
    /// The model that embeds.
    #[command(flatten)]
    pub asked: AskedModel,
    /// Print the answer as a JSON object
    #[arg(long)]
    pub json: bool,
}

/// `sluice score`.
#[derive(Debug, Args)]
#[command(after_help = help::SCORE)]
pub struct Score {
    /// The prompt and the answer, less those given as tokens; `-` reads one from standard input
    #[arg(value_names = ["PROMPT", "ANSWER"], num_args = 0..=2)]
    pub texts: Vec<String>,
    /// Token ids in the prompt's place
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub tokens: Option<Vec<u32>>,
    /// Token ids in the answer's place
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub answer_tokens: Option<Vec<u32>>,
    /// Take the prompt as it stands, without the chat template
    #[arg(long, conflicts_with = "tokens")]
    pub raw: bool,
    /// Monte Carlo draws [default: 128, or one for a one-token answer; 16 of a latent thought model]
    #[arg(long, value_name = "N")]
    pub draws: Option<u32>,
    /// Latent thought models: steps in which a posterior is fitted to the answer before the draws
    /// [default: as the model was trained]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub think: Option<u32>,
    /// Weight of classifier-free guidance [default: 0]
    #[arg(long, value_name = "W", allow_negative_numbers = true)]
    pub guidance: Option<f64>,
    /// Seed of the draws [default: drawn by the daemon, and reported]
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Also check whether greedy decoding gives exactly this answer
    #[arg(long)]
    pub greedy: bool,
    /// The model that answers.
    #[command(flatten)]
    pub asked: AskedModel,
    /// Print the result as a JSON object
    #[arg(long)]
    pub json: bool,
}

/// A command that only asks.
#[derive(Debug, Args)]
pub struct Plain {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `sluice load`.
#[derive(Debug, Args)]
#[command(after_help = help::LOAD, mut_args(plans::daemon_default))]
pub struct Load {
    /// A name from `sluice list`, or a checkpoint's folder, .gguf or .sluice file, which the
    /// daemon's user must be able to read. Models that were used least recently are evicted for it where the budget has no
    /// room for all, or no more may be loaded. Without an argument: the model built into the daemon
    pub model: Option<PathBuf>,
    /// Also load it at every start of the daemon, unless started with --model or by `sluice run`
    #[arg(long)]
    pub default: bool,
    /// Keep it loaded until it is unloaded by name; a loaded model is pinned as it is, if no settings are given
    #[arg(long)]
    pub pin: bool,
    /// What it is loaded with.
    #[command(flatten)]
    pub options: PlanOptions,
    /// Print each picture of the operation as a JSON object on its own line; the last has the result
    #[arg(long)]
    pub json: bool,
}

/// `sluice unload`.
#[derive(Debug, Args)]
pub struct Unload {
    /// The model, as `sluice ps` names it [default: the present one]
    #[arg(value_name = "NAME")]
    pub model: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `sluice watch`.
#[derive(Debug, Args)]
pub struct Watch {
    /// The request, as `sluice requests` numbers it
    #[arg(value_parser = parse_request_id)]
    pub id: u64,
    /// Print each event as a JSON object on its own line
    #[arg(long)]
    pub json: bool,
}

/// `sluice replay`.
#[derive(Debug, Args)]
#[command(after_help = help::REPLAY)]
pub struct Replay {
    /// What `sluice generate --json` printed; `-` reads standard input
    pub file: PathBuf,
    /// Print each event as a JSON object on its own line
    #[arg(long)]
    pub json: bool,
    /// How it looks.
    #[command(flatten)]
    pub screen: Screen,
}

/// `sluice cancel`.
#[derive(Debug, Args)]
pub struct Cancel {
    /// The request, as `sluice requests` numbers it; or a load, a download or a job, as `sluice status --json` does
    #[arg(value_parser = parse_request_id)]
    pub id: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Spelling of [`v1::Remasking`].
#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Remasking {
    /// By the probability of their token
    LowConfidence,
    /// By a seeded random number
    Random,
    /// By how much the most probable token is more probable than the next one
    Margin,
    /// By the entropy of the position, the least first
    Entropy,
}

/// Spelling of [`v1::EosPolicy`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Eos {
    /// Ends the text
    Stop,
    /// Is never chosen
    Suppress,
    /// Is a token like any other
    Keep,
}

impl DecodingArgs {
    /// Writes the options into a request.
    pub fn apply(&self, request: &mut v1::GenerateRequest) {
        self.details.apply(self.preset, request);
    }

    /// Whether options of both kinds of models are set; a request may have those of one.
    pub fn has_both_kinds(&self) -> bool {
        let diffusion = self.details.diffusion(self.preset);
        !self.details.stop.is_empty() && diffusion != v1::DiffusionOptions::default()
    }
}

impl DecodingDetails {
    /// Writes the options and the preset into a request.
    pub fn apply(&self, preset: Option<Preset>, request: &mut v1::GenerateRequest) {
        request.block_length = self.block;
        let sampling = self.sampling();
        if sampling != v1::SamplingOptions::default() {
            request.sampling = Some(sampling);
        }
        if self.think.is_some() {
            let thinking = request.thinking.get_or_insert_default();
            thinking.steps = self.think;
        }
        if let Some(prior) = self.prior {
            let thinking = request.thinking.get_or_insert_default();
            thinking.prior = Some(prior.into());
        }
        let diffusion = self.diffusion(preset);
        if !self.stop.is_empty() {
            request.autoregressive_mut().stop = self.stop.clone();
        } else if diffusion != v1::DiffusionOptions::default() {
            request.decoding = Some(Decoding::Diffusion(diffusion));
        }
    }

    fn sampling(&self) -> v1::SamplingOptions {
        let eos = self.eos.map(|eos| match eos {
            Eos::Stop => v1::EosPolicy::Stop,
            Eos::Suppress => v1::EosPolicy::Suppress,
            Eos::Keep => v1::EosPolicy::Keep,
        });
        v1::SamplingOptions {
            temperature: self.temperature,
            greedy: self.greedy,
            seed: self.seed,
            eos_policy: eos.unwrap_or_default().into(),
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            // Who asks for one here means it.
            skip_unused_temperature: false,
        }
    }

    fn diffusion(&self, preset: Option<Preset>) -> v1::DiffusionOptions {
        let remasking = self.remasking.map(|remasking| match remasking {
            Remasking::LowConfidence => v1::Remasking::LowConfidence,
            Remasking::Random => v1::Remasking::Random,
            Remasking::Margin => v1::Remasking::Margin,
            Remasking::Entropy => v1::Remasking::Entropy,
        });
        let mut options = v1::DiffusionOptions {
            steps: self.steps,
            guidance: self.guidance,
            remasking: remasking.unwrap_or_default().into(),
            ..Default::default()
        };
        let choice = DecodingChoice {
            preset,
            policy: self.policy,
            kv_cache: self.kv_cache,
            suffix_window: self.suffix_window,
            canvas_growth: self.canvas_growth,
            speculation: self.speculate,
        };
        choice.write(&mut options);
        options
    }
}

fn parse_request_id(text: &str) -> Result<u64, String> {
    parse_id(text, "request", "sluice requests")
}

/// Parses an id that a command lists.
fn parse_id<T: FromStr>(text: &str, what: &str, list: &str) -> Result<T, String> {
    text.parse().map_err(|_| {
        format!("expected the number of a {what}, such as 3; `{list}` lists the numbers")
    })
}

/// In a position's place: wherever the model finds the text likeliest.
const ANY_POSITION: &str = "any";

/// A text and its position; `None`: any.
fn parse_pin(text: &str) -> Result<(Option<u32>, String), String> {
    let (position, pinned) = text
        .split_once(':')
        .ok_or("does not have the form POS:TEXT, such as 4:hello")?;
    if pinned.is_empty() {
        return Err(format!("the text to pin at position {position} is empty"));
    }
    let position = match position {
        ANY_POSITION => None,
        position => Some(position.parse().map_err(|_| {
            format!("'{position}' is not a position (a number from 0, or {ANY_POSITION})")
        })?),
    };
    Ok((position, pinned.to_owned()))
}

fn parse_span(text: &str) -> Result<(u32, u32), String> {
    let number = |part: &str| {
        part.parse::<u32>()
            .map_err(|_| format!("'{part}' is not a number of bytes"))
    };
    let (start, end) = text
        .split_once("..")
        .ok_or("does not have the form START..END, such as 4..7")?;
    let span = (number(start)?, number(end)?);
    if span.0 > span.1 {
        return Err("ends before it starts".into());
    }
    Ok(span)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn usage_error(arguments: &[&str]) -> String {
        let all = ["sluice"].iter().chain(arguments);
        let error = Cli::try_parse_from(all).expect_err("wrong usage");
        assert!(error.use_stderr());
        error.to_string()
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn pins_are_a_position_and_a_text() {
        assert_eq!(parse_pin("3:a:b").unwrap(), (Some(3), "a:b".into()));
        assert_eq!(parse_pin("any:a:b").unwrap(), (None, "a:b".into()));
        assert!(parse_pin("any:").unwrap_err().contains("is empty"));
        assert!(parse_pin("abc").unwrap_err().contains("POS:TEXT"));
        assert!(parse_pin("x:abc").unwrap_err().contains("not a position"));
        assert!(parse_pin("-1:abc").unwrap_err().contains("not a position"));
        assert!(parse_pin("4:").unwrap_err().contains("is empty"));
    }

    #[test]
    fn spans_are_two_numbers_in_order() {
        assert_eq!(parse_span("4..7").unwrap(), (4, 7));
        assert_eq!(parse_span("4..4").unwrap(), (4, 4));
        assert!(parse_span("7..4").unwrap_err().contains("before"));
        assert!(parse_span("4-7").unwrap_err().contains("START..END"));
        assert!(parse_span("a..7").unwrap_err().contains("'a'"));
    }

    #[test]
    fn wrong_usage_is_explained() {
        assert!(usage_error(&["generate"]).contains("PROMPT"));
        assert!(usage_error(&["--theme", "pink"]).contains("known are terminal"));
        assert!(usage_error(&["--glyphs", "dots"]).contains("known are braille"));
        assert!(usage_error(&["status", "--color", "no"]).contains("never"));
        assert!(usage_error(&["generate", "x", "--tokens", "1"]).contains("cannot be used"));
        assert!(usage_error(&["generate", "x", "--length", "-3"]).contains("-3"));
        assert!(usage_error(&["generate", "x", "--policy", "fast"]).contains("known are"));
        assert!(usage_error(&["generate", "x", "--kv-cache", "both"]).contains("known are none"));
        assert!(usage_error(&["generate", "x", "--preset", "slow"]).contains("known are exact"));
        assert!(
            usage_error(&["generate", "x", "--canvas-growth", "up"]).contains("known are fixed")
        );
        assert!(usage_error(&["generate", "x", "--speculate", "draft:branches=0"]).contains("15"));
        assert!(usage_error(&["generate", "x", "--prior", "euler"]).contains("known are heun"));
        assert!(usage_error(&["generate", "x", "--prior", "heun:x"]).contains("heun:30"));
        assert!(usage_error(&["bench", "--concurrent", "0"]).contains("1..=64"));
        assert!(usage_error(&["generate", "x", "--pin", "0"]).contains("POS:TEXT"));
        assert!(usage_error(&["edit", "x"]).contains("--replace"));
        assert!(usage_error(&["level", "fast"]).contains("known are off, standard"));
        assert!(usage_error(&["plan", "--budget", "much"]).contains("4GiB"));
        assert!(usage_error(&["budget", "-1"]).contains("-1"));
        assert!(usage_error(&["plan", "--model", "x", "--shape", "y"]).contains("cannot"));
        assert!(usage_error(&["plan", "x", "--shape", "y"]).contains("cannot"));
        assert!(usage_error(&["plan", "x", "--model", "y"]).contains("cannot"));
        for id in ["abc", "-1", "1.5", "99999999999999999999"] {
            assert!(usage_error(&["cancel", "--", id]).contains("`sluice requests`"));
            assert!(usage_error(&["watch", "--", id]).contains("`sluice requests`"));
            assert!(usage_error(&["jobs", "watch", "--", id]).contains("`sluice jobs`"));
            assert!(usage_error(&["jobs", "cancel", "--", id]).contains("`sluice jobs`"));
        }
        assert!(usage_error(&["edit", "x", "--replace", "x", "--span", "0..1"]).contains("cannot"));
    }

    #[test]
    fn what_the_daemon_judges_passes_the_parser() {
        for arguments in [
            ["generate", "x", "--length", "0"],
            ["generate", "x", "--temperature", "NaN"],
            ["generate", "x", "--temperature", "-1"],
            ["generate", "", "--kv-cache", "prefix"],
        ] {
            let all = ["sluice"].iter().chain(&arguments);
            assert!(Cli::try_parse_from(all).is_ok(), "{arguments:?}");
        }
    }
}
