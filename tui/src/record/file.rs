//! Saving recordings to files and loading them.

use std::{
    env,
    fs::{self, DirBuilder, OpenOptions},
    io::{self, BufRead, BufWriter, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use super::Recording;
use crate::{
    dates,
    json::read::{Events, ReadError},
    user_folders,
};

/// Reads a run that `sluice generate --json` printed or [`Recording::write`] wrote. Its end may be missing.
///
/// # Errors
/// When a line is no event, too much is in it, or there is no event at all.
pub fn load(reader: impl BufRead) -> Result<Recording, ReadError> {
    let mut recording = Recording::default();
    let mut events = Events::new(reader);
    for kind in &mut events {
        recording.take(kind?);
    }
    let canvas = recording.canvas();
    if canvas.queued.is_none() && canvas.started.is_none() && canvas.pass.is_none() {
        return Err(ReadError {
            line: events.line(),
            message: "it ends without an event of a generation".into(),
        });
    }
    let mut pairs = recording.passes.windows(2);
    recording.has_gaps =
        pairs.any(|pair| pair[1].pass_number > pair[0].pass_number.saturating_add(1));
    Ok(recording)
}

/// Writes a run to a new file that its owner alone can read, and makes the folders that lead there.
///
/// # Errors
/// When the file exists already or cannot be written; then nothing is left but the folders.
pub fn save(path: &Path, recording: &Recording) -> io::Result<()> {
    if let Some(folder) = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
    }
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let mut writer = BufWriter::new(file);
    let written = recording.write(&mut writer).and_then(|()| writer.flush());
    if written.is_err() {
        // Half a run would block this name for the next try. The first error is the one to report.
        let _ = fs::remove_file(path);
    }
    written
}

/// The default folder of saved runs, and the time for their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs {
    /// The folder; empty where the environment names none.
    pub folder: PathBuf,
    /// Seconds since 1970 when the dashboard's clock began.
    pub began_s: u64,
}

impl Runs {
    /// By the environment: `sluice/runs` below `$XDG_STATE_HOME`, else below `~/.local/state`.
    #[must_use]
    pub fn here() -> Self {
        let state = user_folders::state(|name| env::var_os(name));
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            folder: state.map_or_else(PathBuf::new, |state| state.join("runs")),
            began_s: since_1970.map_or(0, |time| time.as_secs()),
        }
    }

    /// The path for a request that is saved at a time of the dashboard's clock.
    #[must_use]
    pub fn file(&self, request_id: u64, now_ms: u64) -> PathBuf {
        let date = dates::stamp(self.began_s.saturating_add(now_ms / 1000));
        self.folder.join(format!("{request_id}-{date}.jsonl"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use sluice_proto::v1::{GenerationQueued, generation_event::Event};

    use super::*;

    #[test]
    fn passes_that_are_missing_from_a_file_are_noticed() {
        let load = |numbers: &[u32]| {
            let lines = numbers.iter().map(|number| {
                let pass = r#"{"event":"pass","pass":N}"#;
                pass.replace('N', &number.to_string()) + "\n"
            });
            load(lines.collect::<String>().as_bytes()).unwrap()
        };
        assert!(!load(&[1, 2, 3]).is_thinned() && !load(&[4]).is_thinned());
        assert!(load(&[1, 3, 5]).is_thinned());
    }

    #[test]
    fn a_saved_run_is_its_owners_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let runs = Runs {
            folder: folder.path().join("sluice/runs"),
            began_s: 1_767_323_040,
        };
        let path = runs.file(7, 5_999);
        assert!(path.ends_with("sluice/runs/7-20260102-030405.jsonl"));
        let mut recording = Recording::default();
        recording.take(Event::Queued(GenerationQueued::default()));
        save(&path, &recording).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&runs.folder)), (0o600, 0o700));
        let again = save(&path, &Recording::default()).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        let read = load(&*fs::read(&path).unwrap()).unwrap();
        assert_eq!(read, recording);
    }
}
