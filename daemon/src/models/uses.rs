//! Which models are in use: how many requests each has, let in or in line, how many jobs, and when it was used last.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{model_name::ModelName, operations::ChangeNotifier};

/// What tells models apart: where they lie; `None`: inside the program.
type Key = Option<PathBuf>;

/// The uses of all models.
#[derive(Debug)]
pub struct ModelUses {
    state: Mutex<UsesState>,
    changes: ChangeNotifier,
}

#[derive(Debug, Default)]
struct UsesState {
    models: HashMap<Key, Uses>,
    last_use: u64,
}

#[derive(Debug)]
struct Uses {
    /// Requests that run, wait with the engine or are being made; changes.
    admitted: usize,
    /// Requests that stand in the daemon's line.
    in_line: usize,
    /// Jobs, which may take hours.
    jobs: usize,
    /// How often it was unloaded because somebody asked for that.
    unloads: u64,
    /// Another model waits for this one's place: of those in line so many are let in, and nobody else. Never more than there are.
    let_in: Option<usize>,
    /// Grows with each use of any model.
    last_use: u64,
    used_at: Instant,
    is_loaded: bool,
}

impl Default for Uses {
    fn default() -> Self {
        Self {
            admitted: 0,
            in_line: 0,
            jobs: 0,
            unloads: 0,
            let_in: None,
            last_use: 0,
            used_at: Instant::now(),
            is_loaded: false,
        }
    }
}

impl UsesState {
    fn touch(&mut self, key: &Key) -> &mut Uses {
        self.last_use += 1;
        let uses = self.models.entry(key.clone()).or_default();
        uses.last_use = self.last_use;
        uses.used_at = Instant::now();
        uses
    }

    fn forget_unused(&mut self, key: &Key) {
        let is_unused = |uses: &Uses| {
            let users = uses.admitted + uses.in_line + uses.jobs;
            users == 0 && uses.let_in.is_none() && !uses.is_loaded
        };
        if self.models.get(key).is_some_and(is_unused) {
            self.models.remove(key);
        }
    }
}

/// What is told of a model's uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UseFigures {
    /// Requests that run, wait with the engine or are being made; changes.
    pub admitted: usize,
    /// Requests that stand in the daemon's line for it.
    pub in_line: usize,
    /// Jobs that work with it.
    pub jobs: usize,
    /// Grows with each use of any model: the model with the least was used least recently.
    pub last_use: u64,
    /// Time since then.
    pub unused_for: Duration,
}

/// As long as one exists, a request or a job uses a model.
#[derive(Debug)]
pub struct ModelInUse {
    uses: Arc<ModelUses>,
    key: Key,
    kind: UseKind,
    /// How often the model had been unloaded on demand when this began.
    unloads: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UseKind {
    Admitted,
    InLine,
    Job,
}

impl Uses {
    fn counter(&mut self, kind: UseKind) -> &mut usize {
        match kind {
            UseKind::Admitted => &mut self.admitted,
            UseKind::InLine => &mut self.in_line,
            UseKind::Job => &mut self.jobs,
        }
    }
}

impl ModelUses {
    pub(super) fn new(changes: ChangeNotifier) -> Self {
        Self {
            state: Mutex::default(),
            changes,
        }
    }

    /// A request is made for this model, or a change of it begins.
    #[must_use]
    pub fn begin(self: &Arc<Self>, model: &ModelName) -> ModelInUse {
        self.begin_as(model, UseKind::Admitted)
    }

    /// A request stands in line for this model.
    #[must_use]
    pub fn stand_in_line(self: &Arc<Self>, model: &ModelName) -> ModelInUse {
        self.begin_as(model, UseKind::InLine)
    }

    /// A job works with this model, which is not evicted as long as that takes.
    #[must_use]
    pub fn begin_job(self: &Arc<Self>, model: &ModelName) -> ModelInUse {
        self.begin_as(model, UseKind::Job)
    }

    fn begin_as(self: &Arc<Self>, model: &ModelName, kind: UseKind) -> ModelInUse {
        let mut state = self.lock();
        let uses = state.touch(&model.path);
        *uses.counter(kind) += 1;
        ModelInUse {
            uses: self.clone(),
            key: model.path.clone(),
            kind,
            unloads: uses.unloads,
        }
    }

    /// The figures of a model.
    #[must_use]
    pub fn of(&self, model: &ModelName) -> UseFigures {
        let state = self.lock();
        let Some(uses) = state.models.get(&model.path) else {
            return UseFigures::default();
        };
        UseFigures {
            admitted: uses.admitted,
            in_line: uses.in_line,
            jobs: uses.jobs,
            last_use: uses.last_use,
            unused_for: uses.used_at.elapsed(),
        }
    }

    /// The model was loaded, which counts as a use, or has gone.
    pub(super) fn set_loaded(&self, model: &ModelName, is_loaded: bool) {
        let mut state = self.lock();
        state.touch(&model.path).is_loaded = is_loaded;
        state.forget_unused(&model.path);
    }

    /// Somebody asked that the model be unloaded: those who wait for it by now do so in vain.
    pub(super) fn unload(&self, model: &ModelName) {
        if let Some(uses) = self.lock().models.get_mut(&model.path) {
            uses.unloads += 1;
        }
    }

    /// Another model waits for this one's place: from now on those are let in who stand in line for it already, and nobody else.
    pub(super) fn close(&self, model: &ModelName) {
        let mut state = self.lock();
        let uses = state.models.entry(model.path.clone()).or_default();
        uses.let_in.get_or_insert(uses.in_line);
    }

    /// Nobody waits for its place any more.
    pub(super) fn open(&self, model: &ModelName) {
        {
            let mut state = self.lock();
            if let Some(uses) = state.models.get_mut(&model.path) {
                uses.let_in = None;
            }
            state.forget_unused(&model.path);
        }
        self.changes.tell();
    }

    /// Whether another model waits for this one's place, so that whoever comes stands in line.
    #[must_use]
    pub fn is_closing(&self, model: &ModelName) -> bool {
        let state = self.lock();
        let uses = state.models.get(&model.path);
        uses.is_some_and(|uses| uses.let_in.is_some())
    }

    /// Whether nobody more is let in.
    #[must_use]
    pub fn is_closed(&self, model: &ModelName) -> bool {
        let state = self.lock();
        let uses = state.models.get(&model.path);
        uses.is_some_and(|uses| uses.let_in == Some(0))
    }

    /// Whether it could go: it has no requests, but for those in line that are not let in any more.
    #[must_use]
    pub fn is_idle(&self, model: &ModelName) -> bool {
        let state = self.lock();
        let uses = state.models.get(&model.path);
        uses.is_none_or(|uses| {
            let waits = uses.in_line > 0 && uses.let_in != Some(0);
            uses.admitted + uses.jobs == 0 && !waits
        })
    }

    fn lock(&self) -> MutexGuard<'_, UsesState> {
        // Counters that are changed one by one, so a panic leaves nothing half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ModelInUse {
    /// Whether somebody asked since its beginning that the model be unloaded.
    #[must_use]
    pub fn was_unloaded(&self) -> bool {
        let state = self.uses.lock();
        let uses = state.models.get(&self.key);
        uses.is_some_and(|uses| uses.unloads != self.unloads)
    }

    /// Leaves the line, having been let in.
    pub fn let_in(self) {
        // The lock is free again when this is dropped.
        let models = &mut self.uses.lock().models;
        if let Some(uses) = models.get_mut(&self.key)
            && let (UseKind::InLine, Some(left)) = (self.kind, uses.let_in)
        {
            uses.let_in = Some(left.saturating_sub(1));
        }
    }
}

impl Drop for ModelInUse {
    fn drop(&mut self) {
        {
            let mut state = self.uses.lock();
            let uses = state.touch(&self.key);
            *uses.counter(self.kind) -= 1;
            // Nobody is waited for who has left the line.
            uses.let_in = uses.let_in.map(|left| left.min(uses.in_line));
            state.forget_unused(&self.key);
        }
        self.uses.changes.tell();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn model(name: &str) -> ModelName {
        ModelName::at(&Path::new("/m").join(name))
    }

    fn uses() -> Arc<ModelUses> {
        Arc::new(ModelUses::new(ChangeNotifier::default()))
    }

    #[test]
    fn a_model_is_idle_once_the_last_of_its_requests_has_ended() {
        let (uses, one, two) = (uses(), model("one"), model("two"));
        uses.set_loaded(&one, true);
        uses.set_loaded(&two, true);
        let requests = [uses.begin(&one), uses.begin(&one)];
        let line = uses.stand_in_line(&one);
        assert!(!uses.is_idle(&one) && uses.is_idle(&two));
        assert_eq!((uses.of(&one).admitted, uses.of(&one).in_line), (2, 1));
        drop(requests);
        assert!(!uses.is_idle(&one), "one stands in line");
        drop(line);
        assert!(uses.is_idle(&one));
        // An end is a use.
        assert!(uses.of(&one).last_use > uses.of(&two).last_use);
    }

    #[test]
    fn those_who_wait_know_that_the_model_was_unloaded() {
        let (uses, one, two) = (uses(), model("one"), model("two"));
        let waiting = [uses.begin(&one), uses.stand_in_line(&one)];
        let other = uses.begin(&two);
        uses.unload(&one);
        assert!(waiting.iter().all(ModelInUse::was_unloaded));
        assert!(!other.was_unloaded() && !uses.begin(&one).was_unloaded());
    }

    #[test]
    fn a_job_is_no_request_and_keeps_its_model() {
        let (uses, one) = (uses(), model("one"));
        uses.set_loaded(&one, true);
        let job = uses.begin_job(&one);
        let figures = uses.of(&one);
        assert_eq!((figures.admitted, figures.in_line, figures.jobs), (0, 0, 1));
        assert!(!uses.is_idle(&one));
        drop(job);
        assert!(uses.is_idle(&one));
    }

    #[test]
    fn who_waited_before_another_asked_for_the_place_is_let_in() {
        let (uses, one) = (uses(), model("one"));
        uses.set_loaded(&one, true);
        let waiting = [uses.stand_in_line(&one), uses.stand_in_line(&one)];
        uses.close(&one);
        let late = uses.stand_in_line(&one);
        for request in waiting {
            assert!(!uses.is_closed(&one) && !uses.is_idle(&one));
            request.let_in();
        }
        assert!(uses.is_closed(&one) && uses.is_idle(&one));
        uses.open(&one);
        assert!(!uses.is_closed(&one) && !uses.is_idle(&one));
        drop(late);
    }

    #[test]
    fn nobody_waits_for_those_who_left_the_line() {
        let (uses, one) = (uses(), model("one"));
        uses.set_loaded(&one, true);
        let [stays, leaves] = [uses.stand_in_line(&one), uses.stand_in_line(&one)];
        uses.close(&one);
        assert!(uses.is_closing(&one));
        drop(leaves);
        assert!(!uses.is_closed(&one));
        stays.let_in();
        assert!(uses.is_closed(&one) && uses.is_idle(&one));
        // Who comes later is not let in for those who left.
        let _late = uses.stand_in_line(&one);
        assert!(uses.is_closed(&one) && uses.is_idle(&one));
        uses.open(&one);
        assert!(!uses.is_closing(&one));
    }

    #[test]
    fn nothing_is_kept_of_models_that_are_neither_loaded_nor_used() {
        let (uses, one) = (uses(), model("one"));
        let request = uses.begin(&one);
        uses.close(&one);
        drop(request);
        uses.open(&one);
        assert!(uses.lock().models.is_empty());
        uses.set_loaded(&one, true);
        uses.set_loaded(&one, false);
        assert!(uses.lock().models.is_empty());
    }
}
