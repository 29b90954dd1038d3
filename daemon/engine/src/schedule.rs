//! What the engine's thread does next: loads first, one at a time, then unloading and changes of the settings, which
//! wait for a load, then requests by fair shares (`fair`), which may join those that run. All of it is bounded and refuses
//! at once. While requests wait or run, what changes the model begins at most every [`CHANGE_INTERVAL`], so that no number
//! of changes keeps requests from their turns.

mod commands;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

pub(crate) use self::commands::{
    ApplyCommand, Command, Job, LoadCommand, LoadStep, MeasureReply, MemoryCommand, UnloadCommand,
    WaitingRequest,
};
use crate::{
    command::{ApplyEvent, LoadEvent, PlanOptions},
    error::EngineError,
    event::{EventSink, Outcome, RequestListener},
    fair::{FairQueue, Room, ShareKey},
    request::Work,
};

/// Least time between the beginnings of two loads, unloads or changes of the settings while requests wait or run.
pub const CHANGE_INTERVAL: Duration = Duration::from_millis(100);
/// Loads, unloads and measurements of the device that may wait, each. Changes of the settings wait as one.
pub const COMMANDS_MAX: usize = 16;

/// An admitted request's id, and its place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestTicket {
    /// Unique for the engine's life.
    pub id: u64,
    /// Requests ahead of it when it was admitted, the running one included.
    pub ahead: usize,
}

/// The state of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueState {
    /// Requests that may wait.
    pub capacity: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that run.
    pub running: usize,
}

/// The queue between the rest of the program and the engine's thread.
pub(crate) struct Queue<S> {
    capacity: usize,
    state: Mutex<QueueInner<S>>,
    changed: Condvar,
}

struct QueueInner<S> {
    measures: VecDeque<MeasureReply>,
    memory: VecDeque<MemoryCommand>,
    loads: VecDeque<LoadCommand>,
    /// The flag that stops the load under way.
    loading: Option<Arc<AtomicBool>>,
    /// What that load needs.
    step: Option<S>,
    unloads: VecDeque<UnloadCommand>,
    /// One: a later change takes over from one that has not begun.
    apply: Option<ApplyCommand>,
    /// When the last load, unload or change began.
    last_change: Option<Instant>,
    waiting: FairQueue<Job>,
    /// Running requests, and the flag of each that it is no longer wanted.
    running: Vec<(u64, Arc<AtomicBool>)>,
    /// Set when none of them is wanted, to stop them within a pass.
    stop: Arc<AtomicBool>,
    last_id: u64,
    stopped: bool,
}

impl<S> Default for QueueInner<S> {
    fn default() -> Self {
        Self {
            measures: VecDeque::new(),
            memory: VecDeque::new(),
            loads: VecDeque::new(),
            loading: None,
            step: None,
            unloads: VecDeque::new(),
            apply: None,
            last_change: None,
            waiting: FairQueue::default(),
            running: Vec::new(),
            stop: Arc::default(),
            last_id: 0,
            stopped: false,
        }
    }
}

impl<S> QueueInner<S> {
    /// Whether what changes the model may begin: not in the middle of a load, which comes to its end first, and not so
    /// soon after another that requests had no turn.
    fn may_change(&self) -> bool {
        let is_wanted = !self.waiting.is_empty() || !self.running.is_empty();
        let is_early = |last: Instant| is_wanted && last.elapsed() < CHANGE_INTERVAL;
        self.loading.is_none() && !self.last_change.is_some_and(is_early)
    }

    /// Counts a change that begins.
    fn begin_change<T>(&mut self, change: Option<T>) -> Option<T> {
        if change.is_some() {
            self.last_change = Some(Instant::now());
        }
        change
    }

    /// The next load, if none is in progress.
    fn next_load(&mut self) -> Option<LoadCommand> {
        let load = self.loads.pop_front()?;
        self.loading = Some(Arc::clone(&load.cancel));
        Some(load)
    }

    /// The next change, if it may begin.
    fn next_apply(&mut self) -> Option<ApplyCommand> {
        let apply = match self.may_change() {
            true => self.apply.take(),
            false => None,
        };
        self.begin_change(apply)
    }

    fn has_work(&self) -> bool {
        self.has_commands() || !self.memory.is_empty() || !self.waiting.is_empty()
    }

    /// Whether there is something that waits for the running requests to end. What other engines ask for is done between passes.
    fn has_commands(&self) -> bool {
        let has_changes =
            !self.loads.is_empty() || !self.unloads.is_empty() || self.apply.is_some();
        self.stopped
            || self.step.is_some()
            || !self.measures.is_empty()
            || (has_changes && self.may_change())
    }

    /// Refuses a command when the engine is stopping, or as many of its kind wait as may.
    fn check_commands(&self, waiting: usize) -> Result<(), EngineError> {
        match (self.stopped, waiting) {
            (true, _) => Err(EngineError::Stopped),
            (false, COMMANDS_MAX..) => Err(EngineError::TooManyCommands { max: COMMANDS_MAX }),
            (false, _) => Ok(()),
        }
    }

    fn end(&mut self, id: u64) {
        self.running.retain(|(running, _)| *running != id);
        self.update_stop();
    }

    fn start(&mut self) -> Option<Job> {
        let job = self.waiting.pop()?;
        self.running.push((job.id, Arc::clone(&job.cancel)));
        // The flag may still be set from requests that were cancelled before; the new one is wanted.
        self.stop.store(false, Ordering::Relaxed);
        Some(job)
    }

    /// A pass is stopped only when none of the requests that share it is wanted any more.
    fn update_stop(&self) {
        let is_unwanted = |(_, cancel): &(u64, Arc<AtomicBool>)| cancel.load(Ordering::Relaxed);
        let stops = !self.running.is_empty() && self.running.iter().all(is_unwanted);
        self.stop.store(stops, Ordering::Relaxed);
    }
}

impl<S: LoadStep> Queue<S> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn submit(
        &self,
        share: ShareKey,
        work: Work,
        sink: EventSink,
    ) -> Result<RequestTicket, EngineError> {
        let mut state = self.state();
        if state.stopped {
            return Err(EngineError::Stopped);
        }
        if self.room_in(&state, share) != Room::Free {
            return Err(EngineError::QueueFull {
                capacity: self.capacity,
            });
        }
        state.last_id += 1;
        let id = state.last_id;
        let cost = work.row_passes();
        let job = Job {
            id,
            work,
            listener: RequestListener::new(sink),
            cancel: Arc::default(),
            share,
            cost,
        };
        state.waiting.insert(share, id, cost, job);
        let ahead = state.waiting.ahead(id).unwrap_or(0) + state.running.len();
        self.changed.notify_all();
        Ok(RequestTicket { id, ahead })
    }

    /// Whether a request of this share would be taken now, and if not, whose would.
    pub(crate) fn room(&self, share: ShareKey) -> Room {
        self.room_in(&self.state(), share)
    }

    fn room_in(&self, state: &QueueInner<S>, share: ShareKey) -> Room {
        // An idle engine takes a request at once, so it does not count as waiting.
        match state.running.is_empty() && state.waiting.is_empty() {
            true => Room::Free,
            false => state.waiting.room(share, self.capacity),
        }
    }

    /// Queues a load, or tells whoever wants it why not.
    pub(crate) fn load(&self, mut load: LoadCommand) {
        let mut state = self.state();
        if let Err(error) = state.check_commands(state.loads.len()) {
            // Outside the lock: reports may call the engine.
            drop(state);
            return (load.report)(LoadEvent::Finished(Err(error)));
        }
        state.loads.push_back(load);
        self.changed.notify_all();
    }

    /// Queues an unload; returns it when the engine is stopping, or as many wait as may.
    pub(crate) fn unload(&self, unload: UnloadCommand) -> Result<(), UnloadCommand> {
        let mut state = self.state();
        if state.check_commands(state.unloads.len()).is_err() {
            return Err(unload);
        }
        state.unloads.push_back(unload);
        self.changed.notify_all();
        Ok(())
    }

    /// Whether no request waits or runs, and no change waits.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state();
        state.running.is_empty() && state.waiting.is_empty() && state.apply.is_none()
    }

    /// Asks for the device's rates.
    pub(crate) fn measure(&self, measured: MeasureReply) -> Result<(), EngineError> {
        let mut state = self.state();
        state.check_commands(state.measures.len())?;
        state.measures.push_back(measured);
        self.changed.notify_all();
        Ok(())
    }

    /// Queues something about memory; returns it when the engine is stopping, or as many wait as may.
    pub(crate) fn memory_command(&self, command: MemoryCommand) -> Result<(), MemoryCommand> {
        let mut state = self.state();
        if state.check_commands(state.memory.len()).is_err() {
            return Err(command);
        }
        state.memory.push_back(command);
        self.changed.notify_all();
        Ok(())
    }

    /// Posts a step of the load in progress; returns it when the engine is stopping.
    pub(crate) fn post(&self, step: S) -> Result<(), S> {
        let mut state = self.state();
        if state.stopped {
            return Err(step);
        }
        // One slot: the end of a cancelled load replaces its request for memory, which nobody waits for any more.
        state.step = Some(step);
        self.changed.notify_all();
        Ok(())
    }

    /// Ends the load in progress.
    pub(crate) fn end_load(&self) {
        self.state().loading = None;
    }

    /// Queues a change of the settings, which takes over from one that has not begun: that one is told so. Returns what
    /// the change stands for with what it took over, or the change when the engine is stopping.
    pub(crate) fn apply(&self, mut apply: ApplyCommand) -> Result<PlanOptions, ApplyCommand> {
        let mut state = self.state();
        if state.stopped {
            return Err(apply);
        }
        let superseded = state.apply.take();
        if let Some(superseded) = &superseded {
            apply.merged = apply.change.over(superseded.merged);
        }
        let merged = apply.merged;
        state.apply = Some(apply);
        self.changed.notify_all();
        drop(state);
        // Outside the lock: reports may call the engine.
        if let Some(mut superseded) = superseded {
            (superseded.report)(ApplyEvent::Finished(Err(EngineError::Superseded)));
        }
        Ok(merged)
    }

    /// A change of the settings that came while requests run.
    pub(crate) fn take_apply(&self) -> Option<ApplyCommand> {
        self.state().next_apply()
    }

    /// What other engines asked for while requests run.
    pub(crate) fn take_memory_command(&self) -> Option<MemoryCommand> {
        self.state().memory.pop_front()
    }

    pub(crate) fn cancel(&self, id: u64) {
        let mut state = self.state();
        if let Some((_, cancel)) = state.running.iter().find(|(running, _)| *running == id) {
            cancel.store(true, Ordering::Relaxed);
            state.update_stop();
            return;
        }
        let job = state.waiting.remove(id);
        // The sink must not run under the lock: it may call the engine.
        drop(state);
        if let Some(job) = job {
            job.listener.finish(Ok(Outcome::Cancelled));
        }
    }

    /// The request that may join those that run, unless a command comes before it.
    pub(crate) fn front(&self) -> Option<WaitingRequest> {
        let state = self.state();
        let job = state.waiting.front().filter(|_| !state.has_commands())?;
        job.work.is_batchable().then(|| WaitingRequest {
            id: job.id,
            workload: job.work.workload(),
        })
    }

    /// Starts that request, if it is still at the front.
    pub(crate) fn join(&self, waiting: &WaitingRequest) -> Option<Job> {
        let mut state = self.state();
        let is_there = state.waiting.front().map(|job| job.id) == Some(waiting.id);
        is_there.then(|| state.start()).flatten()
    }

    /// Puts a started request back to the front of the queue.
    pub(crate) fn put_back(&self, job: Job) {
        let mut state = self.state();
        state.end(job.id);
        // A cancel or stop that came while it was starting found it among the running ones, and is honoured here.
        if !state.stopped && !job.cancel.load(Ordering::Relaxed) {
            return state.waiting.put_back(job.share, job.id, job.cost, job);
        }
        let end = match state.stopped {
            true => Err(EngineError::Stopped),
            false => Ok(Outcome::Cancelled),
        };
        drop(state);
        job.listener.finish(end);
    }

    /// Ends a running request.
    pub(crate) fn end(&self, id: u64) {
        self.state().end(id);
    }

    /// Whether something waits that could begin.
    pub(crate) fn has_work(&self) -> bool {
        self.state().has_work()
    }

    /// Waits for the next command. No request runs by then.
    pub(crate) fn next(&self) -> Command<S> {
        loop {
            if let Some(command) = self.try_next() {
                return command;
            }
            let state = self.state();
            drop(
                self.changed
                    .wait_while(state, |state| !state.has_work())
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
    }

    /// Waits at most so long for the next command.
    pub(crate) fn next_within(&self, patience: Duration) -> Option<Command<S>> {
        if let Some(command) = self.try_next() {
            return Some(command);
        }
        let state = self.state();
        let waited = self
            .changed
            .wait_timeout_while(state, patience, |state| !state.has_work());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.try_next()
    }

    /// The next command, if there is one. No request runs by then.
    pub(crate) fn try_next(&self) -> Option<Command<S>> {
        let mut state = self.state();
        if state.stopped {
            return Some(Command::Stop);
        }
        // The order is the queue's promise: steps of a load unblock it, then rates and what other engines wait for, loads,
        // unloads and changes, then requests.
        if let Some(step) = state.step.take() {
            return Some(Command::LoadStep(step));
        }
        if let Some(measured) = state.measures.pop_front() {
            return Some(Command::Measure(measured));
        }
        if let Some(command) = state.memory.pop_front() {
            return Some(Command::Memory(command));
        }
        if state.may_change() {
            if let Some(load) = state.next_load() {
                return state.begin_change(Some(Command::Load(load)));
            }
            if let Some(unload) = state.unloads.pop_front() {
                return state.begin_change(Some(Command::Unload(unload)));
            }
        }
        if let Some(apply) = state.next_apply() {
            return Some(Command::Apply(apply));
        }
        let job = state.start()?;
        Some(Command::Run(Box::new(job), Arc::clone(&state.stop)))
    }

    /// Stops everything: running requests are cancelled, waiting ones are told, nothing more is accepted.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        for (_, cancel) in &state.running {
            cancel.store(true, Ordering::Relaxed);
        }
        state.update_stop();
        let waiting = state.waiting.drain();
        let loads = std::mem::take(&mut state.loads);
        let unloads = std::mem::take(&mut state.unloads);
        let apply = state.apply.take();
        // Dropping the senders tells those who wait for rates.
        state.measures.clear();
        let memory = std::mem::take(&mut state.memory);
        let step = state.step.take();
        if let Some(cancel) = &state.loading {
            cancel.store(true, Ordering::Relaxed);
        }
        self.changed.notify_all();
        drop(state);
        // Outside the lock: sinks and reports may call the engine.
        for job in waiting {
            job.listener.finish(Err(EngineError::Stopped));
        }
        if let Some(step) = step {
            step.refuse();
        }
        for mut load in loads {
            (load.report)(LoadEvent::Finished(Err(EngineError::Stopped)));
        }
        for unload in unloads {
            (unload.report)(false);
        }
        for command in memory {
            if let MemoryCommand::DropCaches(report) = command {
                report();
            }
        }
        if let Some(mut apply) = apply {
            (apply.report)(ApplyEvent::Finished(Err(EngineError::Stopped)));
        }
    }

    pub(crate) fn snapshot(&self) -> QueueState {
        let state = self.state();
        QueueState {
            capacity: self.capacity,
            waiting: state.waiting.len(),
            running: state.running.len(),
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueInner<S>> {
        // No code panics while holding the lock half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
