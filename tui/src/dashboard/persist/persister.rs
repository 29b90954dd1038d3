//! Writes what is to be kept, beside the screen; one dashboard at a time does.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::mpsc::Sender,
    task::{JoinHandle, spawn_blocking},
};

use super::{
    super::{event::Event, state::DashboardState},
    FixedLooks, PERSIST_INTERVAL_MS, PersistedState, load, make_folder, save,
};

/// Told where another dashboard writes the file.
pub(super) const NOT_OURS: &str =
    "another dashboard saves its conversations; this one's are not saved";

/// What was last written, and when that was last compared.
#[derive(Debug)]
pub struct PersistSchedule {
    last: PersistedState,
    compared_at_ms: u64,
    file: Arc<PersistFile>,
}

/// What is to be written now, if anything is.
pub(in super::super) fn due(state: &mut DashboardState) -> Option<Box<PersistedState>> {
    let now_ms = state.now_ms;
    let keeping = state.persist_schedule.as_mut()?;
    if now_ms.saturating_sub(keeping.compared_at_ms) < PERSIST_INTERVAL_MS {
        return None;
    }
    keeping.compared_at_ms = now_ms;
    let last_write = *locked(&keeping.file.last_write);
    if last_write == WriteState::Begun {
        return None;
    }
    let kept = PersistedState::of(state);
    let keeping = state.persist_schedule.as_mut()?;
    (last_write == WriteState::Failed || kept != keeping.last).then(|| {
        keeping.last = kept.clone();
        Box::new(kept)
    })
}

/// The file, which is ours for as long as this lives.
#[derive(Debug)]
struct PersistFile {
    path: PathBuf,
    last_write: Mutex<WriteState>,
    /// Where what could not be read goes, before anything takes its place.
    aside: Mutex<Option<PathBuf>>,
    _lock: File,
}

/// How a write stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteState {
    Begun,
    Done,
    Failed,
}

impl PersistFile {
    fn write(&self, kept: &PersistedState) -> Result<(), String> {
        let mut aside = locked(&self.aside);
        if let Some(to) = &*aside {
            match fs::rename(&self.path, to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    let path = self.path.display();
                    return Err(format!("cannot move {path} to {}: {error}", to.display()));
                }
                Ok(()) | Err(_) => *aside = None,
            }
        }
        save(&self.path, kept)
    }
}

/// None of the locks here is held while something half done could be seen.
fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes beside the screen, one after another.
#[derive(Debug)]
pub(in super::super) struct Persister {
    file: Arc<PersistFile>,
    events: Sender<Event>,
    writing: Option<JoinHandle<()>>,
    /// What was told last, which is not told again every few seconds.
    last_message: Arc<Mutex<String>>,
}

impl Persister {
    /// Gives a state what was kept in a file, or tells what is wrong with it; from here on that file is written, unless another
    /// dashboard does that or it can't be.
    pub(in super::super) fn begin(
        path: PathBuf,
        fixed: FixedLooks,
        state: &mut DashboardState,
        events: Sender<Event>,
    ) -> Option<Self> {
        // First the lock: what is read after that is the last that anybody writes.
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
                file: Arc::new(PersistFile {
                    path,
                    last_write: Mutex::new(WriteState::Done),
                    aside: Mutex::new(aside),
                    _lock: lock,
                }),
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

    /// Writes soon.
    pub(in super::super) fn persist(&mut self, kept: PersistedState) {
        let before = self.writing.take();
        let (place, events, told) = (
            self.file.clone(),
            self.events.clone(),
            self.last_message.clone(),
        );
        *locked(&place.last_write) = WriteState::Begun;
        self.writing = Some(tokio::spawn(async move {
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
                // Where so many events wait that there is no room, the end tells the same.
                let _ = events.try_send(Event::Failed(problem));
            }
        }));
    }

    /// Waits for the write that is under way.
    pub(super) async fn rest(&mut self) {
        if let Some(writing) = self.writing.take() {
            let _ = writing.await;
        }
    }

    /// Writes a last time, unless all of it is known to be written.
    pub(in super::super) async fn end(mut self, state: &DashboardState) -> Result<(), String> {
        // An earlier picture must not come after the last one.
        self.rest().await;
        let kept = PersistedState::of(state);
        let is_done = *locked(&self.file.last_write) == WriteState::Done;
        match &state.persist_schedule {
            Some(keeping) if is_done && keeping.last == kept => Ok(()),
            _ => self.file.write(&kept),
        }
    }
}

/// Makes the file ours until what this returns is dropped.
fn lock(path: &Path) -> Result<File, String> {
    let opened = make_folder(path).and_then(|()| {
        File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path.with_extension("lock"))
    });
    let file = opened.map_err(|error| {
        format!(
            "cannot save the dashboard's state in {}: {error}",
            path.display()
        )
    })?;
    match file.try_lock() {
        // Where a file system knows no locks, dashboards do without.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(NOT_OURS.to_owned()),
    }
}

/// A name beside the file that is still free.
fn unread(path: &Path) -> PathBuf {
    let names = (1_u64..).map(|number| match number {
        1 => path.with_extension("json.unread"),
        _ => path.with_extension(format!("json.unread{number}")),
    });
    let mut free = names.filter(|name| fs::symlink_metadata(name).is_err());
    free.next().unwrap_or_else(|| path.with_extension("unread"))
}
