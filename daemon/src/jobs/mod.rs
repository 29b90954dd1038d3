//! Jobs: long work on files that belongs to the daemon. They are listed while they run and for a while after, followed and
//! cancelled by id. What they do, the registry doesn't know; [`files`] has those that code and decode.

pub mod files;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use sluice_proto::v1;
use tokio::{sync::watch, task::spawn_blocking};
use tonic::Status;

use crate::{allocator, failure::Failure, requests::ChangeNotifier};

/// Jobs that are remembered after their end.
pub const ENDED_MAX: usize = 32;

/// All jobs that are known.
#[derive(Debug)]
pub struct Jobs {
    known: Mutex<Known>,
    changes: ChangeNotifier,
}

#[derive(Debug, Default)]
struct Known {
    last_id: u64,
    jobs: BTreeMap<u64, Arc<Job>>,
    /// Nothing begins any more.
    is_closed: bool,
}

/// What is known of a job before it begins.
#[derive(Debug, Clone)]
pub struct JobDescription {
    /// What it does.
    pub kind: v1::JobKind,
    /// What is read.
    pub source: String,
    /// What is written; may be empty.
    pub output: String,
    /// Threads that work for it.
    pub threads: usize,
}

/// A job.
#[derive(Debug)]
pub struct Job {
    id: u64,
    description: JobDescription,
    begun: Instant,
    cancel: AtomicBool,
    state: watch::Sender<JobStatus>,
}

/// How far a job is: a full picture, so that the latest is enough.
#[derive(Debug, Clone, Default)]
pub struct JobStatus {
    /// Bytes so far.
    pub progress: v1::JobProgress,
    /// Once it ended.
    pub end: Option<JobEnd>,
}

/// How a job ended.
#[derive(Debug, Clone)]
pub struct JobEnd {
    /// Done, cancelled or failed.
    pub state: v1::JobState,
    /// How long it took.
    pub elapsed: Duration,
    /// What came of it, or why nothing did.
    pub result: Result<v1::JobResult, Status>,
}

impl Jobs {
    /// None yet.
    #[must_use]
    pub fn new(changes: ChangeNotifier) -> Self {
        Self {
            known: Mutex::default(),
            changes,
        }
    }

    /// Begins a job on a thread of its own; it goes on when nobody listens any more. One runs at a time: each takes all of
    /// the cores that jobs should have.
    ///
    /// # Errors
    /// When another runs, or the daemon is about to end.
    pub fn begin(
        self: &Arc<Self>,
        facts: JobDescription,
        work: impl FnOnce(&Job) -> Result<v1::job_result::Kind, Failure> + Send + 'static,
    ) -> Result<Arc<Job>, Failure> {
        let job = self.lock().admit(facts)?;
        self.changes.tell();
        let JobDescription { source, output, .. } = &job.description;
        tracing::info!(
            job = job.id,
            kind = job.kind(),
            source,
            output,
            "a job begins for a client"
        );
        let (jobs, begun) = (self.clone(), job.clone());
        tokio::spawn(async move {
            let worker = begun.clone();
            let work = move || {
                let result = work(&worker);
                allocator::give_back();
                result
            };
            let result = spawn_blocking(work).await;
            jobs.end(&begun, result.unwrap_or_else(|error| Err(error.into())));
        });
        Ok(job)
    }

    fn end(&self, job: &Job, result: Result<v1::job_result::Kind, Failure>) {
        let elapsed = job.begun.elapsed();
        let result = result.map_err(|failure| match failure {
            Failure::JobCancelled {
                partial_path: kept, ..
            } => Failure::JobCancelled {
                partial_path: kept,
                by_shutdown: self.lock().is_closed,
            },
            other => other,
        });
        let state = match &result {
            Ok(_) => v1::JobState::Done,
            Err(Failure::JobCancelled { .. }) => v1::JobState::Cancelled,
            Err(_) => v1::JobState::Failed,
        };
        match &result {
            Ok(_) => tracing::info!(job = job.id, "a job is done"),
            Err(failure) => tracing::info!(job = job.id, reason = %failure, "a job ends"),
        }
        let end = JobEnd {
            state,
            elapsed,
            result: result.map_err(Status::from).map(|kind| v1::JobResult {
                kind: Some(kind),
                elapsed_ms: elapsed.as_secs_f64() * 1000.0,
            }),
        };
        job.state.send_modify(|state| {
            if end.state == v1::JobState::Done {
                // Work tells of its progress now and then; its last word may not have been told.
                state.progress.done_bytes = state.progress.total_bytes;
            }
            state.end = Some(end);
        });
        self.changes.tell();
    }

    /// The job of an id.
    ///
    /// # Errors
    /// When there is none, or no longer.
    pub fn find(&self, id: u64) -> Result<Arc<Job>, Failure> {
        let found = self.lock().jobs.get(&id).cloned();
        found.ok_or(Failure::UnknownJob { id })
    }

    /// Stops a job; whether it ran.
    ///
    /// # Errors
    /// When there is none, or no longer.
    pub fn cancel(&self, id: u64) -> Result<bool, Failure> {
        let job = self.find(id)?;
        job.cancel();
        Ok(job.is_running())
    }

    /// All, in the order of their ids.
    #[must_use]
    pub fn list(&self) -> Vec<v1::Job> {
        self.lock().jobs.values().map(|job| job.to_wire()).collect()
    }

    /// Those that run.
    #[must_use]
    pub fn running(&self) -> Vec<v1::Job> {
        let known = self.lock();
        let running = known.jobs.values().filter(|job| job.is_running());
        running.map(|job| job.to_wire()).collect()
    }

    /// Stops all jobs; none begins any more.
    pub fn close(&self) {
        let mut known = self.lock();
        known.is_closed = true;
        known.jobs.values().for_each(|job| job.cancel());
    }

    /// Returns once no job runs.
    pub async fn idle(&self) {
        let mut changes = self.changes.subscribe();
        // The sender lives in `self`, so `changed` can't fail.
        while !self.running().is_empty() && changes.changed().await.is_ok() {}
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nothing panics under this lock")
    }
}

impl Known {
    fn admit(&mut self, facts: JobDescription) -> Result<Arc<Job>, Failure> {
        if self.is_closed {
            return Err(Failure::Draining);
        }
        if let Some(other) = self.jobs.values().find(|job| job.is_running()) {
            return Err(Failure::JobInProgress {
                id: other.id,
                kind: other.kind(),
                path: other.description.source.clone(),
            });
        }
        // All have ended.
        while self.jobs.len() >= ENDED_MAX {
            self.jobs.pop_first();
        }
        self.last_id += 1;
        let job = Arc::new(Job {
            id: self.last_id,
            description: facts,
            begun: Instant::now(),
            cancel: AtomicBool::new(false),
            state: watch::Sender::new(JobStatus::default()),
        });
        self.jobs.insert(job.id, job.clone());
        Ok(job)
    }
}

impl Job {
    /// How far it is, now and later.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<JobStatus> {
        self.state.subscribe()
    }

    /// As the wire has it now.
    #[must_use]
    pub fn to_wire(&self) -> v1::Job {
        let JobStatus { progress, end } = self.state.borrow().clone();
        let (state, elapsed) = match &end {
            Some(end) => (end.state, end.elapsed),
            None => (v1::JobState::Running, self.begun.elapsed()),
        };
        let error = end.and_then(|end| end.result.err());
        v1::Job {
            job_id: self.id,
            kind: self.description.kind.into(),
            state: state.into(),
            source: self.description.source.clone(),
            output: self.description.output.clone(),
            progress: Some(progress),
            error: error.map_or_else(String::new, |status| status.message().to_owned()),
            elapsed_ms: elapsed.as_secs_f64() * 1000.0,
            threads: self.description.threads as u32,
        }
    }

    fn kind(&self) -> &'static str {
        match self.description.kind {
            v1::JobKind::Unspecified => "job",
            v1::JobKind::Compress => "compress",
            v1::JobKind::Decompress => "decompress",
            v1::JobKind::Verify => "verify",
        }
    }

    fn is_running(&self) -> bool {
        self.state.borrow().end.is_none()
    }

    fn cancel(&self) {
        // Relaxed: nothing is read on its account.
        self.cancel.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
