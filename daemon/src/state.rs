//! What outlives the daemon: one file beside the models with the default model, level and budget by model, what passes have told of
//! its experts, the paths that models were loaded by, and the operations that began or ended last.
//!
//! The state is changed in memory, and one thread writes it, so that changes that come while the disk is busy are written as one,
//! and neither the engine's thread nor those that answer calls wait for a disk. Whoever acknowledges a change waits for its write.

mod experts;
mod file;

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
};

use serde::{Deserialize, Serialize};
use sluice_proto::v1;

pub use self::experts::SavedExperts;
use self::file::StateFile;

/// Models of which something is kept. Of more, one of which nothing was asked for is forgotten first, then the one that nobody
/// has changed for longest.
pub const MODELS_MAX: usize = 256;
/// Paths that are kept; one more makes the first be forgotten.
pub const PATHS_MAX: usize = 64;
/// Operations that are kept after their end.
pub const ENDED_MAX: usize = 64;
/// Operations that are kept while they run: more than there may be at once.
const RUNNING_MAX: usize = 64;

/// What outlives the daemon. Keys of the file that are not known here are passed over.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// The model that is loaded at every start, by name or path.
    pub default_model: Option<String>,
    /// What was asked for of each model, or learned. The one of which something was asked for last comes last.
    pub models: VecDeque<SavedModel>,
    /// Models that were loaded by their path, in the order of their first use.
    pub paths: Vec<String>,
    /// No operation of an earlier daemon has a greater id.
    pub last_operation_id: u64,
    /// Operations that began or ended last, but for requests, in the order of their ids.
    pub operations: VecDeque<v1::Operation>,
}

/// What was asked for of a model, or learned. Words that are not known here are a later version's, and count as unset.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedModel {
    /// Where it lies, or the name of the one inside the program.
    pub model: String,
    /// The level's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// The budget as people write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// What passes have told of its experts.
    #[serde(
        default,
        deserialize_with = "SavedExperts::read",
        skip_serializing_if = "Option::is_none"
    )]
    pub experts: Option<SavedExperts>,
}

impl SavedModel {
    /// The level and the budget that were asked for.
    fn asked(&self) -> [Option<&str>; 2] {
        [self.level.as_deref(), self.budget.as_deref()]
    }

    fn is_asked_for(&self) -> bool {
        self.asked() != [None; 2]
    }
}

impl State {
    /// What a daemon has left in this folder, for who only looks. `None` where nothing there can be read.
    #[must_use]
    pub fn saved_in(folder: &Path) -> Option<Self> {
        file::look(folder)
    }

    /// What was asked for of a model, or learned.
    #[must_use]
    pub fn model(&self, model: &str) -> Option<&SavedModel> {
        self.models.iter().find(|saved| saved.model == model)
    }

    /// Takes out what was asked for of a model, or learned.
    pub fn take_model(&mut self, model: &str) -> Option<SavedModel> {
        let place = self.models.iter().position(|saved| saved.model == model)?;
        self.models.remove(place)
    }

    /// Sets what was asked for of a model, or learned, as the last change.
    pub fn put_model(&mut self, saved: SavedModel) {
        self.take_model(&saved.model);
        self.models.push_back(saved);
        self.forget_models();
    }

    /// Sets what was learned of a model's experts. What was asked for of it is as old as before.
    pub fn put_experts(&mut self, model: &str, experts: SavedExperts) {
        let mut models = self.models.iter_mut();
        match models.find(|saved| saved.model == model && saved.is_asked_for()) {
            Some(saved) => saved.experts = Some(experts),
            None => self.put_model(SavedModel {
                model: model.to_owned(),
                experts: Some(experts),
                ..SavedModel::default()
            }),
        }
    }

    /// Forgets models beyond the bound. Passes tell again what was learned; what was asked for, nobody says twice.
    fn forget_models(&mut self) {
        while self.models.len() > MODELS_MAX {
            let learned = self.models.iter().position(|saved| !saved.is_asked_for());
            self.models.remove(learned.unwrap_or(0));
        }
    }

    /// Adds a path, unless it is there.
    pub fn put_path(&mut self, path: &str) {
        if !self.paths.iter().any(|known| known == path) {
            self.paths.push(path.to_owned());
        }
        let excess = self.paths.len().saturating_sub(PATHS_MAX);
        self.paths.drain(..excess);
    }

    /// Adds an operation, or its latest picture.
    pub fn put_operation(&mut self, operation: v1::Operation) {
        let id = operation.operation_id;
        self.last_operation_id = self.last_operation_id.max(id);
        match self
            .operations
            .binary_search_by_key(&id, |known| known.operation_id)
        {
            Ok(place) => self.operations[place] = operation,
            Err(place) => self.operations.insert(place, operation),
        }
        self.forget_operations(true, RUNNING_MAX);
        self.forget_operations(false, ENDED_MAX);
    }

    /// Forgets the first of the operations that run, or that ended, beyond a bound.
    fn forget_operations(&mut self, run: bool, max: usize) {
        let is_one = |operation: &&v1::Operation| operation.is_active() == run;
        let mut excess = (self.operations.iter().filter(is_one).count()).saturating_sub(max);
        self.operations.retain(|operation| {
            let is_forgotten = excess > 0 && operation.is_active() == run;
            excess -= usize::from(is_forgotten);
            !is_forgotten
        });
    }
}

/// Why a change is not on disk.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SaveError {
    /// A system call failed.
    #[error("cannot write {}: {cause}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        cause: Arc<io::Error>,
    },
    /// Another daemon keeps its state in the same folder.
    #[error("another sluiced keeps its state in {}", .folder.display())]
    Locked {
        /// The folder.
        folder: PathBuf,
    },
}

type Written = Box<dyn FnOnce(Result<(), SaveError>) + Send>;

/// The state, and the thread that writes it. Without a folder it lasts as long as the daemon.
#[derive(Debug, Default)]
pub struct StateStore {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    known: Mutex<Known>,
    wake: Condvar,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Known {
    state: State,
    /// Who waits for the next write.
    waiting: Vec<Written>,
    /// Set at the end: the thread writes what waits, and ends.
    is_closed: bool,
}

impl StateStore {
    /// Reads the state that lies in this folder, the one for models. What cannot be read is set aside, which is said in the
    /// log. Reads and writes files: not for async code.
    ///
    /// # Errors
    /// When the system has no thread for it.
    pub fn open(folder: Option<&Path>) -> io::Result<Self> {
        let Some(folder) = folder else {
            return Ok(Self::default());
        };
        let (file, state) = StateFile::open(folder);
        let shared = Arc::new(Shared {
            known: Mutex::new(Known {
                state,
                ..Known::default()
            }),
            wake: Condvar::new(),
        });
        let writes = shared.clone();
        let writer = thread::Builder::new()
            .name("sluice-state".to_owned())
            .spawn(move || writes.write_to(file))?;
        Ok(Self {
            shared,
            writer: Some(writer),
        })
    }

    /// Looks at the state as it is now, which may not be on disk yet.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.shared.lock().state)
    }

    /// Changes the state, and calls `written` once it is on disk, or cannot be written: then it holds until the daemon ends,
    /// unless a later write succeeds. Returns at once; `written` may be called by the thread that writes, and must be quick.
    pub fn change(
        &self,
        change: impl FnOnce(&mut State),
        written: impl FnOnce(Result<(), SaveError>) + Send + 'static,
    ) {
        let mut known = self.shared.lock();
        change(&mut known.state);
        if self.writer.is_some() {
            known.waiting.push(Box::new(written));
            self.shared.wake.notify_one();
        } else {
            drop(known);
            written(Ok(()));
        }
    }

    /// Changes the state, and waits until it is on disk: not for async code.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, change: impl FnOnce(&mut State)) -> Result<(), SaveError> {
        let (send, written) = mpsc::sync_channel(1);
        self.change(change, move |result| {
            // The receiver waits below.
            let _ = send.send(result);
        });
        written.recv().expect("the thread answers all that wait")
    }
}

impl Drop for StateStore {
    /// Waits for the last write, so that another daemon finds the file unlocked.
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.wake.notify_one();
        if let Some(writer) = self.writer.take() {
            // A panic was told when it happened.
            let _ = writer.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Known> {
        // What is changed under the lock is whole after each step.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_to(&self, mut file: StateFile) {
        let mut has_failed = false;
        loop {
            let mut known = self.lock();
            while known.waiting.is_empty() && !known.is_closed {
                let woken = self.wake.wait(known);
                known = woken.unwrap_or_else(PoisonError::into_inner);
            }
            if known.waiting.is_empty() {
                return;
            }
            let waiting = std::mem::take(&mut known.waiting);
            let mut state = known.state.clone();
            drop(known);
            let result = file.write(&mut state, |taken_over| {
                // Another daemon ended, whose state goes before what this one read of it at its start.
                let mut known = self.lock();
                taken_over(&mut known.state);
                known.state.clone()
            });
            match &result {
                // Once, until it can be written again: many may follow.
                Err(error) if !has_failed => {
                    tracing::warn!(%error, "cannot save the daemon's state");
                }
                Ok(()) if has_failed => tracing::info!("the daemon's state is saved again"),
                _ => {}
            }
            has_failed = result.is_err();
            for written in waiting {
                written(result.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
