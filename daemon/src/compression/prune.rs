//! `sluiced prune`: a smaller model in one file.

use std::path::PathBuf;

use clap::{
    Args,
    builder::{PathBufValueParser, TypedValueParser},
};
use sluice_checkpoint::{
    CheckpointError, Source,
    compression::{CompressError, SourceCheck},
    pruning::{self, PruneOptions, PruneShares},
};
use sluice_proto::v1::{OperationKind, operation::Outcome};
use sluice_report::container as report;
use sluice_shared::{
    compression::check_container_path,
    pruning::{PruneScore, parse_share},
};

use super::{Failure, exit_code, report_outcome};
use crate::{
    config::Threads,
    offline::{ProgressLine, until_signalled},
    operations::files::partial_path,
    translate::container as wire,
};

/// What `sluiced prune` was asked for.
#[derive(Debug, Args)]
pub struct Prune {
    /// Checkpoint: a Hugging Face folder, a .safetensors file in one, or a losslessly compressed .sluice file
    #[arg(value_name = "DIR|FILE")]
    source: PathBuf,

    /// File to write, such as llada-small.sluice
    #[arg(long, short, value_name = "FILE.sluice", value_parser = PathBufValueParser::new().try_map(check_container_path))]
    output: PathBuf,

    /// Share of the attention heads to remove, such as 0.2: KV heads of all layers, with their query heads
    #[arg(long, value_name = "SHARE", value_parser = parse_share, required_unless_present = "channels")]
    heads: Option<f64>,

    /// Share of the feed-forward channels to remove from each layer, such as 0.1
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    channels: Option<f64>,

    /// What they are chosen by: l2 (norm of their weights) or magnitude; with a calibration wanda, flap or obs
    #[arg(long, value_name = "NAME", default_value_t = PruneScore::default())]
    score: PruneScore,

    /// Calibration of this model, for scores by activations and for --compensate
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,

    /// Fit the weights that stay to make up for those that go
    #[arg(long, requires = "calibration")]
    compensate: bool,

    /// Replace the file if it exists
    #[arg(long)]
    force: bool,

    /// Threads [default: one per core]
    #[arg(long, value_name = "N")]
    threads: Option<Threads>,
}

/// Makes a pruned file, and returns the exit code.
#[must_use]
pub fn prune(options: &Prune) -> u8 {
    exit_code(options.run())
}

impl Prune {
    fn run(&self) -> Result<(), Failure> {
        let source = std::path::absolute(&self.source).map_err(|cause| {
            CompressError::from(CheckpointError::Io {
                path: self.source.clone(),
                cause,
            })
        })?;
        let options = PruneOptions {
            shares: PruneShares {
                heads: self.heads.unwrap_or(0.0),
                channels: self.channels.unwrap_or(0.0),
            },
            score: self.score,
            compensate: self.compensate,
            calibration: self.calibration.clone(),
            threads: self.threads.map_or(0, Threads::get),
            replace: self.force,
        };
        let mut line = ProgressLine::new(report::verb(OperationKind::Prune));
        let result = until_signalled(|cancel| {
            let check = SourceCheck {
                remembered: None,
                progress: &mut |_| {},
            };
            pruning::prune(
                &Source::Folder(source),
                &self.output,
                &options,
                check,
                cancel,
                &mut |_, amount| line.show(amount.done_bytes, amount.total_bytes),
            )
        });
        line.clear();
        let made = result?;
        if let Err(error) = &made
            && let Some(kept) = partial_path(error, &self.output)
        {
            let kept = kept.display();
            eprintln!("the finished part is kept in {kept}; run the same command again to resume");
        }
        let made = Outcome::Prune(wire::prune_result(&made?));
        report_outcome(&self.output.display().to_string(), &made, &line)
    }
}
