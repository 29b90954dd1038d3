//! The log of a run: one JSON object a line, appended as training goes.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::{file, memory::Memory};

/// The name of the log in the output folder.
pub const FILE_NAME: &str = "log.jsonl";

/// The state of a run after a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Steps that were taken.
    pub step: u64,
    /// Tokens seen, prompts and padding included.
    pub tokens: u64,
    /// Mean loss of the steps since the last entry.
    pub loss: f64,
    /// Of that, the KL divergence of latents from their prior, in nats for each token; the rest is what tokens cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<f64>,
    /// Nats for each held-out answer token, by the averaged weights, where it was measured; of a latent thought model the
    /// evidence bound for each token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<f64>,
    /// The same once these weights are rounded, in a run that trains for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_rounded: Option<f64>,
    /// Of a latent thought model's bound, the KL divergence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_kl: Option<f64>,
    /// Norm of the gradients before clipping, mean since the last entry.
    pub gradient_norm: f64,
    /// Learning rate of the last step.
    pub learning_rate: f64,
    /// Speed since the last entry.
    pub tokens_per_second: f64,
    /// Share of the time spent waiting for data since the last entry.
    pub data_wait: f64,
    /// Time spent in steps, in seconds, over all runs.
    pub train_seconds: f64,
    /// Memory of the process, and the most that it had so far, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

/// An open log.
pub struct Log {
    path: PathBuf,
    file: File,
}

impl Log {
    /// Opens the log of a folder, without the entries after a step: a run that was killed goes on from its last
    /// checkpoint and writes those again.
    pub fn open(folder: &Path, step: u64) -> Result<Self> {
        let path = folder.join(FILE_NAME);
        let kept: String = read(folder)?
            .iter()
            .filter(|entry| entry.step <= step)
            .map(|entry| Ok(serde_json::to_string(entry)? + "\n"))
            .collect::<Result<_>>()?;
        // Rewritten before it is opened for appending: entries behind the checkpoint will be written again.
        file::replace(&path, kept)?;
        let file = OpenOptions::new()
            .append(true)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        Ok(Self { path, file })
    }

    /// Adds an entry.
    pub fn write(&mut self, entry: &Entry) -> Result<()> {
        let line = serde_json::to_string(entry)? + "\n";
        self.file
            .write_all(line.as_bytes())
            .with_context(|| format!("write {}", self.path.display()))
    }
}

/// The entries of the log in a folder; a last line cut short by a kill is left out.
pub fn read(folder: &Path) -> Result<Vec<Entry>> {
    let path = folder.join(FILE_NAME);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    };
    Ok(text
        .lines()
        .map_while(|line| serde_json::from_str(line).ok())
        .collect())
}
