//! The file that holds the state: read at the start, set aside where it can't be, locked by the daemon that writes it.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{PATHS_MAX, SaveError, SavedModel, State};
use crate::atomic_file;

/// Name of the file, in the folder of models.
const FILE_NAME: &str = ".state.json";
/// Name of the file whose lock says which daemon writes. It is never removed: another process might hold the lock of a file that
/// a third one no longer finds.
const LOCK_NAME: &str = ".state.lock";
/// The layout below. It grows when a reader of the one before would lose or misread something.
const VERSION: u64 = 1;
/// Largest file that is read: more than all bounds of the state together allow.
const FILE_BYTES_MAX: u64 = 32 << 20;
/// Unreadable files that are kept; another takes the place of the last.
const ASIDE_MAX: u32 = 4;

/// Files of versions before the state was one file: a name or path, a list of models, a list of paths.
const DEFAULT_NAME: &str = ".default";
const SETTINGS_NAME: &str = ".settings.json";
const PATHS_NAME: &str = ".paths";
const FORMER_NAMES: [&str; 3] = [DEFAULT_NAME, SETTINGS_NAME, PATHS_NAME];
const FORMER_BYTES_MAX: u64 = 2 << 20;

#[derive(Serialize)]
struct Layout<'a> {
    version: u64,
    #[serde(flatten)]
    state: &'a State,
}

#[derive(Deserialize)]
struct LayoutVersion {
    version: u64,
}

/// The file, for the one thread that writes it.
pub(super) struct StateFile {
    folder: PathBuf,
    lock: Option<File>,
    /// What was read at the start, while another daemon may write the file.
    read: State,
    /// What the file holds; `None` before the first write.
    written: Option<State>,
}

impl StateFile {
    pub(super) fn open(folder: &Path) -> (Self, State) {
        let mut file = Self {
            folder: folder.to_owned(),
            lock: None,
            read: State::default(),
            written: None,
        };
        match file.lock() {
            Ok(()) => {}
            Err(error @ SaveError::Locked { .. }) => {
                tracing::warn!(%error, "what is set here holds until this daemon ends, unless the other one ends before");
            }
            Err(error) => {
                tracing::warn!(%error, "what is set while this daemon runs is lost when it ends");
            }
        }
        let state = file.read();
        file.read = state.clone();
        (file, state)
    }

    fn path(&self) -> PathBuf {
        self.folder.join(FILE_NAME)
    }

    fn lock(&mut self) -> Result<(), SaveError> {
        if self.lock.is_some() {
            return Ok(());
        }
        let path = self.folder.join(LOCK_NAME);
        let failed = |cause| SaveError::Io {
            path: path.clone(),
            cause: Arc::new(cause),
        };
        atomic_file::create_folder(&self.folder).map_err(failed)?;
        let lock = File::options().create(true).append(true).open(&path);
        let lock = lock.map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(SaveError::Locked {
                    folder: self.folder.clone(),
                });
            }
            // Not every file system has locks.
            Err(TryLockError::Error(error)) => {
                tracing::debug!(%error, "cannot lock the daemon's state");
            }
        }
        self.lock = Some(lock);
        for name in [FILE_NAME].iter().chain(&FORMER_NAMES) {
            atomic_file::remove_leftover(&self.folder.join(name));
        }
        Ok(())
    }

    /// Writes the state. Where the lock comes only now, since another daemon has ended, `adopt` lets the caller change its own
    /// state by what that left.
    pub(super) fn write(
        &mut self,
        state: &mut State,
        adopt: impl FnOnce(&dyn Fn(&mut State)) -> State,
    ) -> Result<(), SaveError> {
        let had_lock = self.lock.is_some();
        self.lock()?;
        if !had_lock {
            let (before, now) = (std::mem::take(&mut self.read), self.read());
            *state = adopt(&|state| take_over(state, &before, &now));
        }
        if self.written.as_ref() == Some(state) {
            return Ok(());
        }
        let layout = Layout {
            version: VERSION,
            state,
        };
        let text = serde_json::to_string_pretty(&layout).expect("texts and numbers alone");
        let path = self.path();
        atomic_file::replace(&path, &(text + "\n")).map_err(|cause| SaveError::Io {
            path,
            cause: Arc::new(cause),
        })?;
        if self.written.is_none() {
            for name in FORMER_NAMES {
                // It is in the new file; if this one stays, it is not read again.
                let _ = atomic_file::remove(&self.folder.join(name));
            }
        }
        self.written = Some(state.clone());
        Ok(())
    }

    /// The state as it lies there: by this version's file, else by those of versions before.
    fn read(&self) -> State {
        let path = self.path();
        let state = match read_bounded(&path, FILE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.read_former(),
            bytes => bytes.and_then(|bytes| parse(&bytes)),
        };
        let mut state = state.unwrap_or_else(|error| {
            match self.lock {
                Some(_) => self.set_aside(&error),
                // The other daemon's file is its own to judge.
                None => {
                    tracing::warn!(%error, path = %path.display(), "cannot read the daemon's state");
                }
            }
            State::default()
        });
        state.forget_models();
        let excess = state.paths.len().saturating_sub(PATHS_MAX);
        state.paths.drain(..excess);
        let operations = std::mem::take(&mut state.operations);
        // Those of a daemon that lives are not ours to list.
        for operation in operations.into_iter().filter(|_| self.lock.is_some()) {
            state.put_operation(operation);
        }
        state
    }

    fn set_aside(&self, error: &io::Error) {
        let path = self.path();
        let aside = |number| self.folder.join(format!("{FILE_NAME}.unreadable-{number}"));
        let free = (1..ASIDE_MAX).find(|number| fs::symlink_metadata(aside(*number)).is_err());
        let aside = aside(free.unwrap_or(ASIDE_MAX));
        match fs::rename(&path, &aside).and_then(|()| atomic_file::sync_folder(&self.folder)) {
            Ok(()) => tracing::warn!(
                %error,
                kept = %aside.display(),
                "cannot read the daemon's state; it is set aside, and a new one begins"
            ),
            Err(cause) => tracing::warn!(
                %error,
                %cause,
                path = %path.display(),
                "cannot read the daemon's state, nor set it aside"
            ),
        }
    }

    fn read_former(&self) -> State {
        let text = |name: &str| {
            let bytes = read_bounded(&self.folder.join(name), FORMER_BYTES_MAX).ok()?;
            String::from_utf8(bytes).ok()
        };
        let default = text(DEFAULT_NAME).map(|text| text.trim().to_owned());
        let settings = text(SETTINGS_NAME).and_then(|text| serde_json::from_str(&text).ok());
        let settings: FormerSettings = settings.unwrap_or_default();
        let mut state = State {
            default_model: default.filter(|name| !name.is_empty()),
            ..State::default()
        };
        for model in settings.models {
            state.put_model(model);
        }
        for path in text(PATHS_NAME).unwrap_or_default().lines() {
            state.put_path(path);
        }
        state
    }
}

#[derive(Default, Deserialize)]
struct FormerSettings {
    #[serde(default)]
    models: Vec<SavedModel>,
}

/// Adds to `state` what another daemon changed from `before` to `now`, where `state` itself still is as before.
fn take_over(state: &mut State, before: &State, now: &State) {
    if state.default_model == before.default_model {
        state.default_model.clone_from(&now.default_model);
    }
    let own = std::mem::replace(&mut state.models, now.models.clone());
    for model in own {
        let was = before.model(&model.model);
        if was == Some(&model) {
            continue;
        }
        match model.experts {
            // What was only learned here leaves what was asked for there.
            Some(experts) if was.map_or([None; 2], SavedModel::asked) == model.asked() => {
                state.put_experts(&model.model, experts);
            }
            _ => state.put_model(model),
        }
    }
    for path in &now.paths {
        state.put_path(path);
    }
    state.last_operation_id = state.last_operation_id.max(now.last_operation_id);
    for operation in &now.operations {
        let id = operation.operation_id;
        if !state.operations.iter().any(|own| own.operation_id == id) {
            state.put_operation(operation.clone());
        }
    }
}

/// What lies in the folder, without a lock or a change.
pub(super) fn look(folder: &Path) -> Option<State> {
    let bytes = read_bounded(&folder.join(FILE_NAME), FILE_BYTES_MAX).ok()?;
    parse(&bytes).ok()
}

fn parse(bytes: &[u8]) -> io::Result<State> {
    let LayoutVersion { version } = serde_json::from_slice(bytes)?;
    match version {
        VERSION => Ok(serde_json::from_slice(bytes)?),
        later => Err(io::Error::other(format!(
            "its version is {later}, and this sluiced reads {VERSION}"
        ))),
    }
}

fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let facts = fs::metadata(path)?;
    // A pipe would wait for a writer.
    if !facts.is_file() || facts.len() > bytes_max {
        return Err(io::Error::other("it is no file of sluiced's"));
    }
    fs::read(path)
}
