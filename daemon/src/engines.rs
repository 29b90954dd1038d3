//! The daemon's engines: each has one model, and all share a device, a budget and the turn to compute. The first is there
//! always; another is started for a model beside those that are loaded, and ended with it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use sluice_engine::{Engine, EngineError};

/// The engines.
pub struct Engines {
    first: Arc<Engine>,
    others: Mutex<Vec<Arc<Engine>>>,
}

impl Engines {
    /// The first engine alone.
    #[must_use]
    pub fn new(first: Arc<Engine>) -> Self {
        Self {
            first,
            others: Mutex::default(),
        }
    }

    /// The first engine, which is asked what is so for all: the device, the folder of converted weights, the common budget.
    #[must_use]
    pub fn first(&self) -> &Arc<Engine> {
        &self.first
    }

    /// All of them, the first one first.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Engine>> {
        let others = self.lock();
        let first = std::iter::once(&self.first);
        first.chain(&*others).cloned().collect()
    }

    /// An engine without a model, which is started if none is there. Asked for while no load is under way.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn free(&self) -> Result<Arc<Engine>, EngineError> {
        let mut all = self.all().into_iter();
        if let Some(free) = all.find(|engine| engine.model().is_none()) {
            return Ok(free);
        }
        let engine = Arc::new(self.first.beside()?);
        self.lock().push(engine.clone());
        Ok(engine)
    }

    /// Takes out those beside the first that are not used.
    pub(crate) fn take_unused(&self, is_used: impl Fn(&Arc<Engine>) -> bool) -> Vec<Arc<Engine>> {
        let mut others = self.lock();
        others.extract_if(.., |engine| !is_used(engine)).collect()
    }

    /// Ends an engine that was taken out.
    pub(crate) fn end(engine: Arc<Engine>) {
        // It is waited for elsewhere: this may be its own thread. Whoever drops the last handle then waits no more.
        if let Err(error) = thread::Builder::new().spawn(move || engine.stop()) {
            tracing::debug!(%error, "an engine is not waited for");
        }
    }

    /// Stops all of them; waits for what each is doing.
    pub(crate) fn stop(&self) {
        let all = self.all();
        // All at once: those that go on would take turns from those that are waited for.
        for engine in &all {
            engine.begin_stop();
        }
        for engine in all {
            engine.stop();
        }
    }

    /// Whether all run, on a working device.
    pub(crate) fn are_alive(&self) -> bool {
        self.all().iter().all(|engine| engine.is_alive())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Engine>>> {
        // Each change is one step, so a panic leaves nothing half-done.
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use sluice_engine::EngineOptions;

    use super::*;

    #[test]
    fn engines_come_and_go_beside_the_first() {
        let first = Engine::start(EngineOptions {
            threads: 1,
            ..EngineOptions::default()
        });
        let engines = Engines::new(Arc::new(first.unwrap()));
        assert!(Arc::ptr_eq(&engines.free().unwrap(), engines.first()));
        let other = Arc::new(engines.first().beside().unwrap());
        engines.lock().push(other.clone());
        assert_eq!(engines.all().len(), 2);
        let is_other = |engine: &Arc<Engine>| Arc::ptr_eq(engine, &other);
        assert!(engines.take_unused(is_other).is_empty());
        // The first stays in any case.
        let unused = engines.take_unused(|_| false);
        assert!(matches!(&unused[..], [unused] if is_other(unused)));
        assert_eq!(engines.all().len(), 1);
        unused.into_iter().for_each(Engines::end);
        while other.is_alive() {
            thread::yield_now();
        }
        assert!(engines.are_alive());
        engines.stop();
        assert!(!engines.are_alive());
    }
}
