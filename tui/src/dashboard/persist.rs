//! State that survives the dashboard: conversations, prompts, commands, options and looks, in one file that only its owner
//! can read.

mod schedule;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, File},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use serde::{Deserialize, Serialize};

pub use schedule::PersistSchedule;
pub(super) use schedule::{PersistFile, WriteState, locked};

use super::{chat::Turn, levels::LevelFidelity};
use crate::{
    paint::{Glyphs, Theme},
    user_folders,
};

/// Version of the file's format; files of other versions are moved aside.
pub(super) const VERSION: u32 = 1;
/// Bytes of the file; beyond that the earliest conversations are left out.
pub const FILE_BYTES_MAX: usize = 2 << 20;
/// Longest prompt that is kept.
pub(super) const PROMPT_BYTES_MAX: usize = 4 << 10;
/// Bytes of prompts that stay when the file would be too large: conversations are worth more.
pub(super) const PROMPTS_BYTES_MAX: usize = 64 << 10;
/// Least time between two writes.
pub const PERSIST_INTERVAL_MS: u64 = 10_000;

/// What survives between runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PersistedState {
    pub(super) version: u32,
    /// The turns of each conversation, the earliest first.
    #[serde(default)]
    pub conversations: Vec<Vec<Turn>>,
    /// Prompts that were sent.
    #[serde(default)]
    pub prompts: Vec<String>,
    /// Commands that were given.
    #[serde(default)]
    pub commands: Vec<String>,
    /// Options of requests, by the flags' names.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// The theme, where one was chosen.
    #[serde(default)]
    pub theme: Option<String>,
    /// The shapes, where they were chosen.
    #[serde(default)]
    pub glyphs: Option<String>,
    /// Whether the dashboard takes mouse events, where that was chosen.
    #[serde(default)]
    pub mouse: Option<bool>,
    /// Measured fidelity of levels.
    #[serde(default)]
    pub fidelity: Vec<PersistedFidelity>,
}

/// The measured fidelity of a level of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PersistedFidelity {
    /// The model's name.
    pub model: String,
    /// Number of the model's parameters, which tells models of one name apart.
    pub parameters: u64,
    /// Name of the level.
    pub level: String,
    /// Mean KL divergence from the outputs of the checkpoint's own weights, in nats.
    pub mean_kl_nats: f64,
    /// Share of positions with the same most probable token, from 0 to 1.
    pub top_agreement: f64,
    /// Number of positions compared.
    pub rows: u32,
}

impl From<&LevelFidelity> for PersistedFidelity {
    fn from(figures: &LevelFidelity) -> Self {
        Self {
            model: figures.model.clone(),
            parameters: figures.parameters,
            level: figures.level.name().to_owned(),
            mean_kl_nats: figures.mean_kl_nats,
            top_agreement: figures.top_agreement,
            rows: figures.rows,
        }
    }
}

impl PersistedFidelity {
    /// The same as it is in the state; `None` if this version has no level of that name.
    pub(super) fn known(self) -> Option<LevelFidelity> {
        Some(LevelFidelity {
            level: self.level.parse().ok()?,
            model: self.model,
            parameters: self.parameters,
            mean_kl_nats: self.mean_kl_nats,
            top_agreement: self.top_agreement,
            rows: self.rows,
        })
    }
}

/// Looks that were chosen while the dashboard ran, now or earlier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChosenLooks {
    /// The chosen theme; `None` leaves it to flags, settings and the terminal.
    pub theme: Option<Theme>,
    /// The chosen glyphs of graphs; `None` leaves them to flags, settings and the terminal.
    pub glyphs: Option<Glyphs>,
    /// Whether mouse events are taken; `None` leaves that to flags and settings.
    pub mouse: Option<bool>,
}

/// Which looks flags or settings decide. The saved state does not change those.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FixedLooks {
    /// Whether the theme is fixed.
    pub theme: bool,
    /// Whether the glyphs are fixed.
    pub glyphs: bool,
    /// Whether the mouse mode is fixed.
    pub mouse: bool,
}

impl PersistedState {
    /// The file's text, of at most [`FILE_BYTES_MAX`].
    fn text(&self) -> io::Result<String> {
        let mut kept = self.clone();
        // Each round drops something, until the text fits: prompts beyond their share, then conversations one by one.
        loop {
            let text = serde_json::to_string(&kept)?;
            if text.len() <= FILE_BYTES_MAX {
                return Ok(text);
            }
            if drop_earliest(&mut kept.prompts, PROMPTS_BYTES_MAX) {
                continue;
            }
            // The earliest conversation goes first. Without any, a pasted command may still be too long: then all the rest goes.
            match kept.conversations.is_empty() {
                false => {
                    kept.conversations.remove(0);
                }
                true => {
                    kept.prompts.clear();
                    kept.commands.clear();
                    kept.options.clear();
                    kept.fidelity.clear();
                }
            }
        }
    }
}

/// Drops the earliest lines beyond `bytes_max`. Returns whether any were dropped.
fn drop_earliest(lines: &mut Vec<String>, bytes_max: usize) -> bool {
    let mut bytes = 0;
    let fitting = lines.iter().rev().take_while(|line| {
        bytes += line.len();
        bytes <= bytes_max
    });
    let excess = lines.len() - fitting.count();
    lines.drain(..excess);
    excess > 0
}

/// Path of the state file, by `$XDG_STATE_HOME` and `$HOME`; `None` where neither is set.
#[must_use]
pub fn path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    user_folders::state(variable).map(|folder| folder.join("dashboard.json"))
}

/// Reads the state file; `None` where there is none.
///
/// # Errors
/// What is wrong with the file, in words.
pub fn load(path: &Path) -> Result<Option<PersistedState>, String> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // Opening a pipe would block until somebody writes to it.
        Ok(metadata) if !metadata.is_file() => return Err("it is no file".into()),
        Ok(_) | Err(_) => {}
    }
    let mut bytes = Vec::new();
    // One byte beyond the bound is read, to tell a file that is too large from one that just fits.
    let most = FILE_BYTES_MAX as u64 + 1;
    let read = File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    read.map_err(|error| error.to_string())?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
    }
    #[derive(Deserialize)]
    struct Head {
        // Read first, by itself: a file of a later version may have fields of other types.
        version: u32,
    }
    let head: Result<Head, _> = serde_json::from_slice(&bytes);
    let head = head.map_err(|error| error.to_string())?;
    if head.version != VERSION {
        return Err(format!("it has version {}, not {VERSION}", head.version));
    }
    let kept = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    Ok(Some(kept))
}

/// Writes the state file, whole or not at all.
///
/// # Errors
/// When the folder or the file cannot be written, in words.
pub fn save(path: &Path, kept: &PersistedState) -> Result<(), String> {
    let written = write(path, kept);
    written.map_err(|error| {
        format!(
            "cannot save the dashboard's state in {}: {error}",
            path.display()
        )
    })
}

/// Makes the folder that a file is in, readable by its owner alone.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    user_folders::make_private(path.parent().unwrap_or(path))
}

fn write(path: &Path, kept: &PersistedState) -> io::Result<()> {
    static WRITES: AtomicU64 = AtomicU64::new(0);

    let text = kept.text()?;
    make_folder(path)?;
    // A name of its own for each write, so that two writers never share a temporary file, also where locks are unknown.
    let number = WRITES.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("{}-{number}.new", std::process::id()));
    let _ = fs::remove_file(&temporary);
    let file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary);
    let result = file.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        // Without it, a power failure after the rename may leave an empty file in the place of the old one.
        file.sync_data()?;
        fs::rename(&temporary, path)
    });
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result
}
