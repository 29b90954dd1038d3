//! The engine's thread: what it does between requests.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{current_model::CurrentModel, shared::Shared, worker::Worker};
use crate::{
    error::EngineError,
    heartbeat::Activity,
    schedule::{Command, MemoryCommand, UnloadCommand},
};

/// How long a plan for a long canvas stays after its request: the next request is often like it.
const NARROWING_PATIENCE: Duration = Duration::from_secs(2);

/// Reports the end of the thread, in whichever way it ends.
struct AliveGuard(Arc<Shared>);

impl Drop for AliveGuard {
    fn drop(&mut self) {
        self.0.alive.store(false, Ordering::Release);
        // Refuses what waits and comes: otherwise callers would wait for a thread that has panicked.
        self.0.queue.stop();
    }
}

impl Worker {
    /// Does what comes, until the engine stops.
    pub(super) fn run(mut self) {
        let _guard = AliveGuard(Arc::clone(&self.shared));
        loop {
            let is_switching = self
                .current
                .as_ref()
                .is_some_and(|current| current.switch.is_some());
            let queue = &self.shared.queue;
            if !is_switching {
                self.turn.release();
                self.shared.heartbeat.begin(Activity::Idle);
            }
            // A switch makes steps while the queue is empty; everything queued goes first.
            let command = match is_switching {
                true => queue.try_next(),
                false if self.may_narrow() => queue.next_within(NARROWING_PATIENCE),
                false => Some(queue.next()),
            };
            // Nothing is computed for these, and others may be about to load into the memory.
            let computes = !matches!(
                command,
                Some(Command::Stop | Command::Memory(MemoryCommand::DropCaches(_)))
            );
            if computes {
                self.turn.take();
            }
            self.shared.heartbeat.begin(match command {
                Some(Command::Run(..)) => Activity::Passes,
                _ => Activity::Change,
            });
            match command {
                Some(Command::Stop) => return,
                // If the caller is gone, nobody waits for the answer.
                Some(Command::Measure(measured)) => drop(measured.send(self.rates())),
                Some(Command::Memory(command)) => self.do_memory_command(command),
                Some(Command::Load(load)) => self.begin_load(load),
                Some(Command::LoadStep(step)) => self.step_load(step),
                Some(Command::Unload(unload)) => self.unload(unload),
                Some(Command::Apply(apply)) => self.begin_switch(apply),
                Some(Command::Run(job, stop)) => self.serve(*job, &stop),
                None if is_switching => self.advance_switch_idle(),
                None => self.narrow(),
            }
            self.reclaim_memory();
            // Whoever asked has been told. Nothing more can be done on a failed device: the thread ends, and the daemon
            // with it.
            if self.ops.device().has_failed() {
                return;
            }
        }
    }

    /// Gives memory up for other engines, or takes it back from them.
    pub(super) fn do_memory_command(&mut self, command: MemoryCommand) {
        match command {
            MemoryCommand::DropCaches(report) => {
                if let Some(current) = &mut self.current {
                    current.prefix_cache.clear();
                }
                report();
            }
            MemoryCommand::Reclaim => {
                self.may_reclaim = true;
                self.reclaim_memory();
            }
        }
    }

    /// Makes weights resident again that gave way to models which have gone; after a switch or load that is in progress.
    pub(super) fn reclaim_memory(&mut self) {
        let is_switching = |current: &CurrentModel| current.switch.is_some();
        let is_busy = self.current.as_ref().is_some_and(is_switching) || self.loading.is_some();
        if !is_busy && std::mem::take(&mut self.may_reclaim) {
            let (choices, budget) = self.aim();
            self.regain(choices, budget);
        }
    }

    /// Unloads a model if it is the present one, with its prefix cache.
    fn unload(&mut self, unload: UnloadCommand) {
        let present = self.current.as_ref();
        let goes = present.is_some_and(|current| {
            let is_idle = || current.switch.is_none() && self.shared.queue.is_idle();
            current.id == unload.model && (!unload.only_idle || is_idle())
        });
        if goes {
            // Whoever asked for the change is told before the model that it was for is gone.
            self.abandon_switch(EngineError::Superseded);
            self.current = None;
            self.ops.rest();
            self.update_limit();
            // Published last: whoever sees that there is no model sees its memory free, too.
            self.shared.state.clear();
        }
        (unload.report)(goes);
    }
}
