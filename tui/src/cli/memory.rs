//! Arguments of `sluice memory`, and of requests that take something of it along.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use sluice_proto::v1::{self, MemoryOptions, MemoryRanking, MemoryReader, MemorySourceKind};
use sluice_shared::units;

use super::{help, parse_id};
use crate::{dates, memory::DEFAULT_TOKENS};

/// `sluice memory`.
#[derive(Debug, Args)]
#[command(after_help = help::MEMORY)]
pub struct Memory {
    /// What to do.
    #[command(subcommand)]
    pub command: MemoryCommand,
}

/// What can be done with what the daemon remembers.
#[derive(Debug, Subcommand)]
pub enum MemoryCommand {
    /// Remembers files, the files of folders, or a note from standard input
    Add(MemoryAdd),
    /// Lists the collections, or the sources of one
    List {
        /// The collection whose sources to list, page by page
        #[arg(value_name = "COLLECTION")]
        collection: Option<String>,
        /// Print each page of the answer as a JSON object on its own line
        #[arg(long)]
        json: bool,
    },
    /// Shows the pieces of a source
    Show(MemoryShow),
    /// Finds pieces by their words and their meaning
    Search(MemorySearch),
    /// Forgets sources, or a collection with all of its sources
    Rm(MemoryRemove),
    /// Writes all sources with their pieces as lines of JSON
    Export(MemoryExport),
    /// Forgets everything: the daemon overwrites and removes its file
    Wipe {
        /// Don't ask first
        #[arg(long)]
        yes: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

/// `sluice memory add`.
#[derive(Debug, Args)]
#[command(after_help = help::MEMORY_ADD)]
pub struct MemoryAdd {
    /// Files and folders; `-` is standard input, as a note
    #[arg(value_name = "PATH", required_unless_present = "note")]
    pub paths: Vec<PathBuf>,
    /// Collection that takes them; it is made where it is missing [default: default]
    #[arg(long, value_name = "NAME")]
    pub collection: Option<String>,
    /// Least role that may read a collection that is made [default: generate]
    #[arg(long, value_name = "ROLE")]
    pub readers: Option<Reader>,
    /// Title of the note that standard input is; an earlier one of this title makes room [default: the time]
    #[arg(long, value_name = "TITLE")]
    pub note: Option<String>,
    /// Take what .gitignore, .ignore and Git's other exclusions leave out of folders, too
    #[arg(long)]
    pub no_ignore: bool,
    /// Print each picture of the operation as a JSON object on its own line; the last has the result
    #[arg(long)]
    pub json: bool,
}

/// `sluice memory show`.
#[derive(Debug, Args)]
pub struct MemoryShow {
    /// Number of the source, from `sluice memory list COLLECTION`
    #[arg(value_parser = parse_source_id)]
    pub source_id: i64,
    /// Only this piece, counted from 0
    #[arg(long, value_name = "N")]
    pub piece: Option<u64>,
    /// Print each page of the answer as a JSON object on its own line
    #[arg(long)]
    pub json: bool,
}

/// `sluice memory search`.
#[derive(Debug, Args)]
#[command(after_help = help::MEMORY_SEARCH)]
pub struct MemorySearch {
    /// What to look for, in words; `-` reads it from standard input
    pub query: String,
    /// Only in this collection; may be repeated [default: all that you may read]
    #[arg(long = "collection", value_name = "NAME")]
    pub collections: Vec<String>,
    /// Only in sources of this kind; may be repeated
    #[arg(long = "kind", value_name = "KIND")]
    pub kinds: Vec<SourceKind>,
    /// Only what was changed since then: a day such as 2026-11-27 (UTC), or so long ago, such as 7d
    #[arg(long, value_name = "DATE|DURATION", value_parser = parse_since)]
    pub since: Option<i64>,
    /// How pieces are ranked [default: hybrid where the daemon has a sentence encoder, else words]
    #[arg(long, value_name = "HOW")]
    pub ranking: Option<Ranking>,
    /// Most pieces to show, at most 100 [default: 10]
    #[arg(long = "max", short = 'n', value_name = "N")]
    pub hits_max: Option<u32>,
    /// Show the whole pieces, and what the words and the vectors say of each
    #[arg(long, short)]
    pub verbose: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `sluice memory rm`.
#[derive(Debug, Args)]
pub struct MemoryRemove {
    /// Numbers of the sources, from `sluice memory list COLLECTION`
    #[arg(value_name = "SOURCE_ID", value_parser = parse_source_id, required_unless_present = "collection")]
    pub sources: Vec<i64>,
    /// A whole collection instead
    #[arg(long, value_name = "NAME", conflicts_with = "sources")]
    pub collection: Option<String>,
    /// Don't ask before a collection is forgotten
    #[arg(long, requires = "collection")]
    pub yes: bool,
    /// Print each answer as a JSON object on its own line
    #[arg(long)]
    pub json: bool,
}

/// `sluice memory export`.
#[derive(Debug, Args)]
#[command(after_help = help::MEMORY_EXPORT)]
pub struct MemoryExport {
    /// Only this collection
    #[arg(value_name = "COLLECTION")]
    pub collection: Option<String>,
    /// File to write, in the place of one of that name [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// What of the daemon's memory goes into a prompt.
#[derive(Debug, Clone, Default, Args)]
pub struct MemoryArgs {
    /// Put what the daemon remembers about the prompt into it, in at most so many tokens, 512 without a number; 0 doesn't [default: 0]
    #[arg(
        long,
        value_name = "TOKENS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = DEFAULT_TOKENS,
        help_heading = "Memory"
    )]
    pub memory: Option<u32>,
    /// The same, only from this collection; may be repeated
    #[arg(long, value_name = "NAME", help_heading = "Memory")]
    pub memory_collection: Vec<String>,
    /// Masked diffusion models: pin so many names out of these texts in the answer, each where the model finds it likeliest; at most 4 [default: 0]
    #[arg(long, value_name = "N", help_heading = "Memory")]
    pub memory_names: Option<u32>,
}

impl MemoryArgs {
    /// Writes the choices into a request.
    pub fn apply(&self, request: &mut v1::GenerateRequest) {
        let is_asked = match self.memory {
            Some(tokens) => tokens > 0,
            None => {
                !self.memory_collection.is_empty()
                    || self.memory_names.is_some_and(|names| names > 0)
            }
        };
        request.memory = is_asked.then(|| MemoryOptions {
            max_tokens: self.memory,
            collections: self.memory_collection.clone(),
            pinned_names: self.memory_names.unwrap_or(0),
        });
    }

    /// The collection that takes what a conversation has remembered.
    pub fn remembers_in(&self) -> String {
        self.memory_collection.first().cloned().unwrap_or_default()
    }
}

/// Spelling of [`MemoryReader`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Reader {
    /// All who may have text generated
    Generate,
    /// Those who may change models and levels
    Operate,
    /// Administrators
    Admin,
}

impl From<Reader> for MemoryReader {
    fn from(reader: Reader) -> Self {
        match reader {
            Reader::Generate => Self::Generate,
            Reader::Operate => Self::Operate,
            Reader::Admin => Self::Admin,
        }
    }
}

/// Spelling of [`MemorySourceKind`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum SourceKind {
    /// A text with a title
    Note,
    /// A file
    File,
    /// A conversation with a model
    Conversation,
}

impl From<SourceKind> for MemorySourceKind {
    fn from(kind: SourceKind) -> Self {
        match kind {
            SourceKind::Note => Self::Note,
            SourceKind::File => Self::File,
            SourceKind::Conversation => Self::Conversation,
        }
    }
}

/// Spelling of [`MemoryRanking`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Ranking {
    /// By their words (BM25)
    Words,
    /// By their meaning (the cosine of vectors)
    Vectors,
    /// By both
    Hybrid,
}

impl From<Ranking> for MemoryRanking {
    fn from(ranking: Ranking) -> Self {
        match ranking {
            Ranking::Words => Self::Words,
            Ranking::Vectors => Self::Vectors,
            Ranking::Hybrid => Self::Hybrid,
        }
    }
}

fn parse_source_id(text: &str) -> Result<i64, String> {
    parse_id(text, "source", "sluice memory list COLLECTION")
}

/// Parses a day, or how long ago something was, to seconds since 1970.
fn parse_since(text: &str) -> Result<i64, String> {
    let seconds = match dates::parse_date(text) {
        Some(day) => day,
        None => {
            let ago = units::parse_duration(text).map_err(|_| {
                format!("'{text}' is neither a day such as 2026-11-27 nor a duration such as 7d, of a year at most")
            })?;
            dates::now().saturating_sub(ago.as_secs())
        }
    };
    i64::try_from(seconds).map_err(|_| format!("'{text}' is too far away"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn asked(arguments: &[&str]) -> Option<MemoryOptions> {
        let all = ["sluice", "generate"].iter().chain(arguments);
        let cli = Cli::try_parse_from(all).expect("right usage");
        let Some(Command::Generate(arguments)) = cli.command else {
            panic!("generate");
        };
        let mut request = v1::GenerateRequest::default();
        arguments.memory.apply(&mut request);
        request.memory
    }

    #[test]
    fn memory_is_asked_for_by_either_flag_and_never_otherwise() {
        let options = |max_tokens, collections: &[&str]| {
            let collections = collections.iter().map(|name| (*name).to_owned()).collect();
            Some(MemoryOptions {
                max_tokens,
                collections,
                pinned_names: 0,
            })
        };
        assert_eq!(asked(&["hi"]), None);
        let names = asked(&["--memory-names", "2", "hi"]).unwrap();
        assert_eq!((names.pinned_names, names.max_tokens), (2, None));
        assert_eq!(asked(&["--memory-names=0", "hi"]), None);
        assert_eq!(asked(&["--memory", "hi"]), options(Some(512), &[]));
        assert_eq!(asked(&["--memory=64", "hi"]), options(Some(64), &[]));
        assert_eq!(asked(&["--memory=0", "hi", "--memory-collection=a"]), None);
        assert_eq!(
            asked(&["hi", "--memory-collection", "a", "--memory-collection=b"]),
            options(None, &["a", "b"])
        );
    }

    #[test]
    fn a_time_is_a_day_or_a_duration() {
        assert_eq!(parse_since("1970-01-02"), Ok(86_400));
        let week = parse_since("7d").unwrap();
        let ago = i64::try_from(dates::now()).unwrap() - week;
        assert!((7 * 86_400..7 * 86_400 + 60).contains(&ago));
        assert!(parse_since("yesterday").unwrap_err().contains("7d"));
        assert!(parse_since("2026-02-30").is_err());
    }

    #[test]
    fn what_goes_together_is_told_before_a_daemon_is_asked() {
        let parse = |line: &[&str]| Cli::try_parse_from(["sluice", "memory"].iter().chain(line));
        assert!(parse(&["add"]).is_err());
        assert!(parse(&["add", "--note", "Pool"]).is_ok());
        assert!(parse(&["add", "notes", "--readers", "observe"]).is_err());
        assert!(parse(&["rm"]).is_err());
        assert!(parse(&["rm", "1", "2"]).is_ok());
        assert!(parse(&["rm", "1", "--collection", "a"]).is_err());
        assert!(parse(&["rm", "x"]).is_err());
        assert!(
            parse(&[
                "search", "pool", "-n", "3", "--kind", "note", "--since", "2d"
            ])
            .is_ok()
        );
    }
}
