//! What the engine's thread does next: loads first, one at a time, then unloading and changes of the settings, which
//! wait for a load, then requests in the order of their admission, which may join those that run. The queue is bounded
//! and refuses at once.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use sluice_checkpoint::Source;
use sluice_machine::Rates;
use sluice_plan::Workload;

use crate::{
    command::{
        ApplyEvent, ApplyReport, LoadEvent, LoadReport, PlanOptions, PlanSettings, UnloadReport,
    },
    error::EngineError,
    event::{EventSink, Outcome, RequestListener},
    request::{ModelId, Work},
};

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

/// An admitted request.
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) work: Work,
    pub(crate) listener: RequestListener,
    /// Set when the request is no longer wanted.
    pub(crate) cancel: Arc<AtomicBool>,
}

/// The request at the front of the queue.
pub(crate) struct WaitingRequest {
    pub(crate) id: u64,
    pub(crate) workload: Workload,
}

/// A model to load, and whom to report to.
pub(crate) struct LoadCommand {
    pub(crate) source: Source,
    pub(crate) settings: PlanSettings,
    pub(crate) report: LoadReport,
    /// Set to cancel the load.
    pub(crate) cancel: Arc<AtomicBool>,
}

/// A change of the settings, and whom to report to.
pub(crate) struct ApplyCommand {
    pub(crate) change: PlanOptions,
    pub(crate) report: ApplyReport,
}

/// A request to unload a model.
pub(crate) struct UnloadCommand {
    /// The model to unload; another that came in its place stays.
    pub(crate) model: ModelId,
    /// Only if no request waits for it, and no change of it is in progress.
    pub(crate) only_idle: bool,
    /// Called with whether it was unloaded.
    pub(crate) report: UnloadReport,
}

/// Receives the device's rates; once dropped, nobody waits for them.
pub(crate) type MeasureReply = mpsc::Sender<Result<Option<Rates>, EngineError>>;

/// What the load in progress needs from the engine's thread.
pub(crate) trait LoadStep: Send {
    /// Called when the engine stops, so that nobody will take the step.
    fn refuse(self);
}

/// The next thing for the engine's thread to do.
pub(crate) enum Command<S> {
    Measure(MeasureReply),
    Load(LoadCommand),
    Unload(UnloadCommand),
    LoadStep(S),
    Apply(ApplyCommand),
    /// A request, and the flag that stops its passes and those of all that join it.
    Run(Box<Job>, Arc<AtomicBool>),
    Stop,
}

/// The queue between the rest of the program and the engine's thread.
pub(crate) struct Queue<S> {
    capacity: usize,
    state: Mutex<QueueInner<S>>,
    changed: Condvar,
}

struct QueueInner<S> {
    measures: VecDeque<MeasureReply>,
    loads: VecDeque<LoadCommand>,
    /// The flag that stops the load under way.
    loading: Option<Arc<AtomicBool>>,
    /// What that load needs.
    step: Option<S>,
    unloads: VecDeque<UnloadCommand>,
    applies: VecDeque<ApplyCommand>,
    waiting: VecDeque<Job>,
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
            loads: VecDeque::new(),
            loading: None,
            step: None,
            unloads: VecDeque::new(),
            applies: VecDeque::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            stop: Arc::default(),
            last_id: 0,
            stopped: false,
        }
    }
}

impl<S> QueueInner<S> {
    /// The next load, if none is in progress.
    fn next_load(&mut self) -> Option<LoadCommand> {
        let load = match self.loading {
            Some(_) => None,
            None => self.loads.pop_front(),
        }?;
        self.loading = Some(Arc::clone(&load.cancel));
        Some(load)
    }

    /// The next change; it waits for a load, whose model it is for.
    fn next_apply(&mut self) -> Option<ApplyCommand> {
        match self.loading {
            Some(_) => None,
            None => self.applies.pop_front(),
        }
    }

    /// The next unload; it waits for a load, whose model must first be whole.
    fn next_unload(&mut self) -> Option<UnloadCommand> {
        match self.loading {
            Some(_) => None,
            None => self.unloads.pop_front(),
        }
    }

    fn has_work(&self) -> bool {
        self.has_commands() || !self.waiting.is_empty()
    }

    /// Whether there is something that comes before requests.
    fn has_commands(&self) -> bool {
        let has_settings =
            !self.loads.is_empty() || !self.unloads.is_empty() || !self.applies.is_empty();
        self.stopped
            || self.step.is_some()
            || !self.measures.is_empty()
            || (self.loading.is_none() && has_settings)
    }

    fn end(&mut self, id: u64) {
        self.running.retain(|(running, _)| *running != id);
        self.update_stop();
    }

    fn start(&mut self) -> Option<Job> {
        let job = self.waiting.pop_front()?;
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

    pub(crate) fn submit(&self, work: Work, sink: EventSink) -> Result<RequestTicket, EngineError> {
        let mut state = self.state();
        if state.stopped {
            return Err(EngineError::Stopped);
        }
        // An idle engine takes a request at once, so it does not count as waiting.
        let starts_at_once = state.running.is_empty() && state.waiting.is_empty();
        if state.waiting.len() >= self.capacity && !starts_at_once {
            return Err(EngineError::QueueFull {
                capacity: self.capacity,
            });
        }
        let ahead = state.waiting.len() + state.running.len();
        state.last_id += 1;
        let id = state.last_id;
        state.waiting.push_back(Job {
            id,
            work,
            listener: RequestListener::new(sink),
            cancel: Arc::default(),
        });
        self.changed.notify_all();
        Ok(RequestTicket { id, ahead })
    }

    /// Queues a load; returns it when the engine is stopping.
    pub(crate) fn load(&self, load: LoadCommand) -> Result<(), LoadCommand> {
        let mut state = self.state();
        if state.stopped {
            return Err(load);
        }
        state.loads.push_back(load);
        self.changed.notify_all();
        Ok(())
    }

    /// Queues an unload; returns it when the engine is stopping.
    pub(crate) fn unload(&self, unload: UnloadCommand) -> Result<(), UnloadCommand> {
        let mut state = self.state();
        if state.stopped {
            return Err(unload);
        }
        state.unloads.push_back(unload);
        self.changed.notify_all();
        Ok(())
    }

    /// Whether no request waits or runs, and no change waits.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state();
        state.running.is_empty() && state.waiting.is_empty() && state.applies.is_empty()
    }

    /// Asks for the device's rates; false when the engine is stopping.
    pub(crate) fn measure(&self, measured: MeasureReply) -> bool {
        let mut state = self.state();
        if !state.stopped {
            state.measures.push_back(measured);
            self.changed.notify_all();
        }
        !state.stopped
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

    /// Queues a change of the settings; returns it when the engine is stopping.
    pub(crate) fn apply(&self, apply: ApplyCommand) -> Result<(), ApplyCommand> {
        let mut state = self.state();
        if state.stopped {
            return Err(apply);
        }
        state.applies.push_back(apply);
        self.changed.notify_all();
        Ok(())
    }

    /// A change of the settings that came while requests run.
    pub(crate) fn take_apply(&self) -> Option<ApplyCommand> {
        self.state().next_apply()
    }

    pub(crate) fn cancel(&self, id: u64) {
        let mut state = self.state();
        if let Some((_, cancel)) = state.running.iter().find(|(running, _)| *running == id) {
            cancel.store(true, Ordering::Relaxed);
            state.update_stop();
            return;
        }
        if let Some(index) = state.waiting.iter().position(|job| job.id == id) {
            let job = state.waiting.remove(index);
            // The sink must not run under the lock: it may call the engine.
            drop(state);
            if let Some(job) = job {
                job.listener.finish(Ok(Outcome::Cancelled));
            }
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
            return state.waiting.push_front(job);
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
        // The order is the queue's promise: steps of a load unblock it, then rates, loads, unloads and changes, then
        // requests.
        if let Some(step) = state.step.take() {
            return Some(Command::LoadStep(step));
        }
        if let Some(measured) = state.measures.pop_front() {
            return Some(Command::Measure(measured));
        }
        if let Some(load) = state.next_load() {
            return Some(Command::Load(load));
        }
        if let Some(unload) = state.next_unload() {
            return Some(Command::Unload(unload));
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
        let waiting = std::mem::take(&mut state.waiting);
        let loads = std::mem::take(&mut state.loads);
        let unloads = std::mem::take(&mut state.unloads);
        let applies = std::mem::take(&mut state.applies);
        // Dropping the senders tells those who wait for rates.
        state.measures.clear();
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
        for mut apply in applies {
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
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{event::Event, request::Score};

    fn work() -> Work {
        Work::Score(Score {
            model: ModelId(1),
            prompt: vec![1],
            answer: vec![2],
            draws: 1,
            guidance: 0.0,
            seed: 0,
            check_greedy: false,
        })
    }

    /// No load wants anything in these tests.
    enum NoStep {}

    impl LoadStep for NoStep {
        fn refuse(self) {
            match self {}
        }
    }

    type Queue = super::Queue<NoStep>;

    fn submit(queue: &Queue) -> (Result<RequestTicket, EngineError>, mpsc::Receiver<Event>) {
        let (send, receive) = mpsc::channel();
        let sink = Box::new(move |event| drop(send.send(event)));
        (queue.submit(work(), sink), receive)
    }

    #[test]
    fn a_full_queue_refuses_and_a_cancelled_place_is_free_again() {
        let queue = Queue::new(1);
        let (first, _events) = submit(&queue);
        assert_eq!(first.unwrap().ahead, 0);
        let Command::Run(running, _) = queue.next() else {
            panic!("a request waits")
        };
        let (second, second_events) = submit(&queue);
        assert_eq!(second.as_ref().unwrap().ahead, 1);
        let (third, _events) = submit(&queue);
        assert!(matches!(third, Err(EngineError::QueueFull { capacity: 1 })));

        queue.cancel(second.unwrap().id);
        assert!(matches!(
            second_events.recv().unwrap(),
            Event::Finished(Ok(Outcome::Cancelled))
        ));
        assert!(submit(&queue).0.is_ok());

        queue.cancel(running.id);
        assert!(running.cancel.load(Ordering::Relaxed));
    }

    #[test]
    fn those_who_run_are_stopped_when_nobody_wants_any_of_them() {
        let queue = Queue::new(4);
        let (first, _events) = submit(&queue);
        let (second, _events) = submit(&queue);
        let (_third, _events) = submit(&queue);
        let Command::Run(_, stop) = queue.next() else {
            panic!("a request waits")
        };
        let stops = || stop.load(Ordering::Relaxed);
        let joined = queue.join(&queue.front().unwrap()).unwrap();
        assert_eq!((queue.snapshot().running, queue.snapshot().waiting), (2, 1));
        queue.cancel(first.unwrap().id);
        assert!(!stops());
        queue.cancel(second.unwrap().id);
        assert!(stops());
        queue.join(&queue.front().unwrap()).unwrap();
        assert!(!stops(), "somebody wants the one that joined");
        queue.end(joined.id);
        assert!(!stops() && queue.front().is_none());
        queue.stop();
        assert!(stops());
    }

    #[test]
    fn one_that_was_put_back_is_the_next_again() {
        let queue = Queue::new(4);
        let (_, _events) = submit(&queue);
        let (second, events) = submit(&queue);
        drop(queue.next());
        let joined = queue.join(&queue.front().unwrap()).unwrap();
        queue.put_back(joined);
        assert_eq!(queue.snapshot().running, 1);
        let front = queue.front().unwrap();
        assert_eq!(front.id, second.as_ref().unwrap().id);
        let joined = queue.join(&front).unwrap();
        queue.cancel(second.unwrap().id);
        queue.put_back(joined);
        assert!(matches!(
            events.recv().unwrap(),
            Event::Finished(Ok(Outcome::Cancelled))
        ));
        assert!(queue.front().is_none());
    }

    #[test]
    fn stopping_tells_those_who_wait() {
        let queue = Queue::new(4);
        let (_, events) = submit(&queue);
        queue.stop();
        assert!(matches!(
            events.recv().unwrap(),
            Event::Finished(Err(EngineError::Stopped))
        ));
        assert!(matches!(submit(&queue).0, Err(EngineError::Stopped)));
        assert!(matches!(queue.next(), Command::Stop));
    }
}
