//! What `sluice-gpu bench` is asked for.

use std::{fmt, path::PathBuf, str::FromStr};

use clap::Args;
use sluice_daemon::config::{ComputeDtype, Device, PinnedMemoryLimit};
use sluice_shared::{decoding::KvCacheReuse, level::Level, options::Budget};

use super::Limit;

/// What is timed.
#[derive(Debug, Args)]
pub struct Timing {
    /// Device: cuda:N, or cpu to compare with
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Cuda(0))]
    pub(super) device: Device,

    /// Dtype to compute in: auto, f32, f16 or bf16
    #[arg(long, value_name = "DTYPE", default_value_t = ComputeDtype::Auto)]
    pub(super) compute_dtype: ComputeDtype,

    /// Checkpoint whose passes are timed; `sluiced synth --shape llada-8b DIR` makes one
    #[arg(long, value_name = "DIR|FILE")]
    pub(super) model: Option<PathBuf>,

    /// Levels to load it at, or all of those that it can be streamed at
    #[arg(long, value_name = "LEVEL,LEVEL", default_value_t = Levels(vec![Level::Standard]))]
    pub(super) levels: Levels,

    /// Budgets to load it under, such as 4GB,8GB, after it was loaded without any: what doesn't fit is streamed
    #[arg(long, value_name = "BYTES,BYTES", value_delimiter = ',')]
    pub(super) budgets: Vec<Budget>,

    /// Canvases to time
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [128, 512])]
    pub(super) canvas: Vec<usize>,

    /// Passes of each
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(super) passes: usize,

    /// KV cache reuse between passes: none, prefix, dual or vicinity
    #[arg(long, value_name = "MODE", default_value_t = KvCacheReuse::default())]
    pub(super) kv_cache: KvCacheReuse,

    /// Requests that share passes, such as 1,16, timed under the least budget at which a level is streamed
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub(super) requests: Vec<usize>,

    /// Limit for pinned (page-locked) host memory used to stream weights to the GPU [default: auto, half of the host's at most]
    #[arg(long, value_name = "BYTES|auto")]
    pub(super) pinned_memory_limit: Option<PinnedMemoryLimit>,

    /// Folder for converted weights of the checkpoint, which streaming at moderate and aggressive takes, and which stay
    /// there [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub(super) converted: Option<PathBuf>,

    /// Hidden size of the matrices that single operations are timed with, a multiple of 256
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = parse_width, conflicts_with = "only_passes")]
    pub(super) hidden_size: usize,

    /// Leave out single operations
    #[arg(long)]
    pub(super) only_passes: bool,

    #[command(flatten)]
    pub(super) limit: Limit,
}

/// Most elements in a row of the matrices that single operations are timed with.
const WIDTH_MAX: usize = 16384;
/// Rows of every format are whole blocks of so many.
const BLOCK: usize = 256;

fn parse_width(text: &str) -> Result<usize, String> {
    let width = text.parse().map_err(|_| "no number".to_owned())?;
    let is_whole = (BLOCK..=WIDTH_MAX).contains(&width) && width.is_multiple_of(BLOCK);
    is_whole
        .then_some(width)
        .ok_or_else(|| format!("not a multiple of {BLOCK} up to {WIDTH_MAX}"))
}

/// Levels to try, one after another.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Levels(Vec<Level>);

/// Those that leave a plan the choice of what it streams.
const STREAMED: [Level; 4] = [
    Level::Standard,
    Level::Mild,
    Level::Moderate,
    Level::Aggressive,
];

impl FromStr for Levels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self(STREAMED.to_vec())),
            names => names
                .split(',')
                .map(str::parse)
                .collect::<Result<_, _>>()
                .map(Self),
        }
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|level| level.name()).collect();
        f.write_str(&names.join(","))
    }
}

impl Levels {
    /// The levels that a checkpoint can be loaded at: only a compressed one can stay compressed.
    pub(super) fn of(&self, is_compressed: bool) -> impl Iterator<Item = Level> {
        let levels = self.0.iter().copied();
        levels.filter(move |level| is_compressed || *level != Level::Mild)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_levels_are_those_that_can_be_streamed() {
        let all: Levels = "all".parse().unwrap();
        let names = |is_compressed| all.of(is_compressed).map(Level::name).collect::<Vec<_>>();
        assert_eq!(names(true), ["standard", "mild", "moderate", "aggressive"]);
        assert_eq!(names(false), ["standard", "moderate", "aggressive"]);
        let two: Levels = "off,moderate".parse().unwrap();
        assert_eq!(two, Levels(vec![Level::Off, Level::Moderate]));
        assert_eq!(two.to_string(), "off,moderate");
        assert!("standard,fast".parse::<Levels>().is_err());
    }
}
