//! Turns at the store, which one at a time works with, and what goes on in the background: memory that no search needs is given back,
//! and what was removed is deleted.

use std::{
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use sluice_engine::ShareKey;
use sluice_retrieval::Store;
use tokio::{sync::Mutex, task::spawn_blocking, time};

use super::super::{
    Daemon,
    call_terms::CallTerms,
    deadline::Deadline,
    gate::{Gate, GatePlace},
};
use crate::{
    failure::Failure,
    limits::REMEMBERING_LINE_MAX,
    memory::{Memory, MemoryError},
    operations::ChangeNotifier,
};

/// How long work that belongs to no call that could be refused waits until it asks again for its turn, where the line is full.
const TURN_WAIT: Duration = Duration::from_millis(200);
/// Pieces that are deleted in one turn, or eight times as many where much was removed: a tenth of a second, mostly.
const DELETED_PIECES: usize = 64;
/// How long nobody tries again what failed, such as on a full disk.
const DELETION_PAUSE: Duration = Duration::from_secs(60);

/// Who works with the store, and what does so in the background.
pub(in super::super) struct MemoryTurns {
    gate: Arc<Gate>,
    /// Whether a task gives the memory's vectors back when they are idle.
    releasing_index: AtomicBool,
    /// Held by whoever deletes what was removed.
    deleting: Mutex<()>,
    /// Whether somebody waits to delete what was removed.
    is_deletion_queued: AtomicBool,
    /// When that failed last.
    deletion_failed: std::sync::Mutex<Option<Instant>>,
}

impl MemoryTurns {
    pub(in super::super) fn new(changes: ChangeNotifier) -> Self {
        Self {
            gate: Gate::new(1, REMEMBERING_LINE_MAX, changes),
            releasing_index: AtomicBool::new(false),
            deleting: Mutex::default(),
            is_deletion_queued: AtomicBool::new(false),
            deletion_failed: std::sync::Mutex::default(),
        }
    }

    /// Waits for this share's turn.
    ///
    /// # Errors
    /// When the line is full.
    pub(super) async fn enter(&self, share: ShareKey) -> Result<GatePlace, Failure> {
        self.gate.enter(share).await
    }

    /// Waits for this share's turn, however long the line is.
    pub(super) async fn enter_patiently(&self, share: ShareKey) -> Result<GatePlace, Failure> {
        loop {
            match self.enter(share).await {
                Err(Failure::PreparingFull { .. }) => time::sleep(TURN_WAIT).await,
                entered => return entered,
            }
        }
    }
}

impl Daemon {
    /// Works with the store if there is one, on a blocking thread, in the caller's turn.
    pub(in super::super) async fn remembered<T: Send + 'static>(
        self: &Arc<Self>,
        terms: &CallTerms,
        work: impl FnOnce(&mut Store) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<Option<T>, Failure> {
        let share = terms.caller.share();
        let entering = self.memory_turns.enter(share);
        let turn = Deadline::limit(terms.deadline, entering).await?;
        self.at_store((turn, share), |memory| memory.read(work))
            .await
    }

    /// Works with the memory on a blocking thread, in this turn of a share's. What the work has removed is deleted in the background,
    /// whether the caller still waits or not.
    pub(super) async fn at_store<T: Send + 'static>(
        self: &Arc<Self>,
        (turn, share): (GatePlace, ShareKey),
        work: impl FnOnce(&Memory) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, Failure> {
        let daemon = self.clone();
        self.in_turn(turn, move |memory| {
            let done = work(memory);
            if memory.has_removed() {
                daemon.delete_removed_later(share);
            }
            done
        })
        .await
    }

    async fn in_turn<T: Send + 'static>(
        self: &Arc<Self>,
        turn: GatePlace,
        work: impl FnOnce(&Memory) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, Failure> {
        let daemon = self.clone();
        let worked = spawn_blocking(move || {
            let _turn = turn;
            work(&daemon.memory)
        });
        Ok(worked.await??)
    }

    /// Deletes what was removed, in turns of this share's, and returns when none of its text is left in the file.
    pub(super) async fn delete_removed(self: Arc<Self>, share: ShareKey) -> Result<(), Failure> {
        let turns = &self.memory_turns;
        let _one_at_a_time = turns.deleting.lock().await;
        // What is removed from here on may need somebody else.
        turns.is_deletion_queued.store(false, Ordering::Relaxed);
        loop {
            self.check_open()?;
            let turn = turns.enter_patiently(share).await?;
            let delete = |memory: &Memory| {
                memory.read(|store| {
                    store.delete_removed(DELETED_PIECES)?;
                    Ok(store.has_removed())
                })
            };
            if self.in_turn(turn, delete).await? != Some(true) {
                return Ok(());
            }
        }
    }

    fn delete_removed_later(self: &Arc<Self>, share: ShareKey) {
        let turns = &self.memory_turns;
        let failed = turns.deletion_failed.lock();
        let failed = *failed.unwrap_or_else(PoisonError::into_inner);
        let is_too_soon = failed.is_some_and(|at| at.elapsed() < DELETION_PAUSE);
        if is_too_soon || turns.is_deletion_queued.swap(true, Ordering::Relaxed) {
            return;
        }
        let daemon = self.clone();
        tokio::spawn(async move {
            let deleted = daemon.clone().delete_removed(share).await;
            let failure = deleted.err().filter(|_| daemon.check_open().is_ok());
            if let Some(failure) = &failure {
                tracing::warn!(reason = %failure, "what was removed from memory could not be deleted");
            }
            let failed = daemon.memory_turns.deletion_failed.lock();
            *failed.unwrap_or_else(PoisonError::into_inner) = failure.map(|_| Instant::now());
        });
    }

    /// Gives the memory of vectors back when no search has needed them for a while.
    pub(super) fn release_index_later(self: &Arc<Self>) {
        // One task at a time looks; it ends with the last search's vectors.
        let flag = &self.memory_turns.releasing_index;
        if flag.swap(true, Ordering::Relaxed) {
            return;
        }
        let daemon = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(daemon) = daemon.upgrade() {
                let releasing = daemon.clone();
                let left = spawn_blocking(move || releasing.memory.release_idle()).await;
                let Ok(Some(left)) = left else {
                    let flag = &daemon.memory_turns.releasing_index;
                    flag.store(false, Ordering::Relaxed);
                    return;
                };
                let closing = daemon.closing.clone();
                drop(daemon);
                tokio::select! {
                    () = time::sleep(left) => {}
                    () = closing.cancelled() => return,
                }
            }
        });
    }
}
