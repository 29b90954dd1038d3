//! Writes the state file beside the screen. A lock lets one dashboard at a time do so.

use std::{
    fs::{self, File, TryLockError},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use tokio::{
    sync::mpsc::Sender,
    task::{JoinHandle, spawn_blocking},
};

use super::{
    event::Event,
    persist::{
        FixedLooks, PERSIST_INTERVAL_MS, PersistFile, PersistSchedule, PersistedState, WriteState,
        load, locked, make_folder,
    },
    state::DashboardState,
};

/// Shown where another dashboard writes the file.
const NOT_OURS: &str = "another dashboard saves its conversations; this one's are not saved";

/// What is to be written now, if anything is. Writes begin at most every [`PERSIST_INTERVAL_MS`].
pub(super) fn due(state: &mut DashboardState) -> Option<Box<PersistedState>> {
    let now_ms = state.now_ms;
    let keeping = state.persist_schedule.as_mut()?;
    if now_ms.saturating_sub(keeping.compared_at_ms) < PERSIST_INTERVAL_MS {
        return None;
    }
    keeping.compared_at_ms = now_ms;
    let last_write = *locked(&keeping.file.last_write);
    // A disk slower than the interval must not collect a queue of writes.
    if last_write == WriteState::Begun {
        return None;
    }
    let kept = PersistedState::of(state);
    let keeping = state.persist_schedule.as_mut()?;
    // A failed write is tried again, whether or not anything changed since.
    (last_write == WriteState::Failed || kept != keeping.last).then(|| {
        keeping.last = kept.clone();
        Box::new(kept)
    })
}

/// Writes beside the screen, one after another.
#[derive(Debug)]
pub(super) struct Persister {
    file: Arc<PersistFile>,
    events: Sender<Event>,
    writing: Option<JoinHandle<()>>,
    /// The last error shown; the same error is not shown again with each retry.
    last_message: Arc<Mutex<String>>,
}

impl Persister {
    /// Restores a state from the file, or shows what is wrong with the file. Returns the writer, unless another dashboard writes
    /// the file or it cannot be written.
    pub(super) fn begin(
        path: PathBuf,
        fixed: FixedLooks,
        state: &mut DashboardState,
        events: Sender<Event>,
    ) -> Option<Self> {
        // The lock comes first: whoever held it has written for the last time before the file is read here.
        let lock = lock(&path);
        let mut aside = None;
        let mut told = Vec::new();
        match (load(&path), &lock) {
            (Ok(kept), _) => {
                if let Some(kept) = kept {
                    kept.restore(state, fixed);
                }
            }
            (Err(problem), Ok(_)) => {
                let to = unread(&path);
                told.push(format!(
                    "the saved state is not used and moves to {}: {problem}",
                    to.display()
                ));
                aside = Some(to);
            }
            (Err(problem), Err(_)) => {
                let path = path.display();
                told.push(format!("the saved state in {path} is not used: {problem}"));
            }
        }
        let keeper = match lock {
            Ok(lock) => Some(Self {
                file: Arc::new(PersistFile::new(path, aside, lock)),
                events,
                writing: None,
                last_message: Arc::default(),
            }),
            Err(problem) => {
                told.insert(0, problem);
                None
            }
        };
        if !told.is_empty() {
            state.warn(told.join("; "));
        }
        state.persist_schedule = keeper.as_ref().map(|keeper| PersistSchedule {
            last: PersistedState::of(state),
            compared_at_ms: state.now_ms,
            file: keeper.file.clone(),
        });
        keeper
    }

    /// Begins a write, which waits for the one before.
    pub(super) fn persist(&mut self, kept: PersistedState) {
        let before = self.writing.take();
        let (place, events, told) = (
            self.file.clone(),
            self.events.clone(),
            self.last_message.clone(),
        );
        *locked(&place.last_write) = WriteState::Begun;
        self.writing = Some(tokio::spawn(async move {
            // In order, so that an older state never replaces a newer one.
            if let Some(before) = before {
                let _ = before.await;
            }
            let writer = place.clone();
            let written = spawn_blocking(move || writer.write(&kept)).await;
            *locked(&place.last_write) = match written {
                Ok(Ok(())) => WriteState::Done,
                Ok(Err(_)) | Err(_) => WriteState::Failed,
            };
            let problem = match written {
                Ok(Err(problem)) => problem,
                Ok(Ok(())) | Err(_) => String::new(),
            };
            let before = std::mem::replace(&mut *locked(&told), problem.clone());
            if !problem.is_empty() && problem != before {
                // Not `send`: a full queue would keep this task, and so the end, waiting. The last write reports the error then.
                let _ = events.try_send(Event::Failed(problem));
            }
        }));
    }

    /// Waits for the write that is in progress.
    async fn rest(&mut self) {
        if let Some(writing) = self.writing.take() {
            let _ = writing.await;
        }
    }

    /// Writes a last time, unless the file is known to be up to date.
    pub(super) async fn end(mut self, state: &DashboardState) -> Result<(), String> {
        // An earlier write that ended later would replace the last state.
        self.rest().await;
        let kept = PersistedState::of(state);
        let is_done = *locked(&self.file.last_write) == WriteState::Done;
        match &state.persist_schedule {
            Some(keeping) if is_done && keeping.last == kept => Ok(()),
            _ => self.file.write(&kept),
        }
    }
}

/// Locks the state file until the returned file is dropped.
fn lock(path: &Path) -> Result<File, String> {
    let opened = make_folder(path).and_then(|()| {
        File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            // A file of its own: the state file is replaced by each write, and a lock stays with the file that it was taken on.
            .open(path.with_extension("lock"))
    });
    let file = opened.map_err(|error| {
        format!(
            "cannot save the dashboard's state in {}: {error}",
            path.display()
        )
    })?;
    match file.try_lock() {
        // Some network file systems have no locks; there the last writer wins, but no write is torn.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(NOT_OURS.to_owned()),
    }
}

/// A free name beside the file, for one that could not be read.
fn unread(path: &Path) -> PathBuf {
    let names = (1_u64..).map(|number| match number {
        1 => path.with_extension("json.unread"),
        _ => path.with_extension(format!("json.unread{number}")),
    });
    let mut free = names.filter(|name| fs::symlink_metadata(name).is_err());
    free.next().unwrap_or_else(|| path.with_extension("unread"))
}

#[cfg(test)]
mod tests;
