//! Writes the settings of loads and changes to disk once they have ended, in the order in which they began, so that the last
//! request wins.

use std::{
    future::Future,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

/// The chain of pending writes: one task for each load or change that is not on disk yet. Holds the last one.
#[derive(Debug, Default)]
pub(super) struct WriteQueue(Mutex<PendingWrite>);

/// One link of the chain. A client hears of an end only after the write, so that its next call finds it on disk.
#[derive(Debug, Clone, Default)]
pub(super) struct PendingWrite(Option<watch::Receiver<()>>);

impl WriteQueue {
    /// Runs `work` after everything that was queued before.
    pub(super) fn then(&self, work: impl Future<Output = ()> + Send + 'static) -> PendingWrite {
        // The sender's drop is the signal, so that a panic in `work` does not block those behind it.
        let (done, recorded) = watch::channel(());
        let recorded = PendingWrite(Some(recorded));
        // Replaced before the task starts: the order is that of calls, whatever the runtime does.
        let before = std::mem::replace(&mut *self.lock(), recorded.clone());
        tokio::spawn(async move {
            let _done = done;
            before.finished().await;
            work.await;
        });
        recorded
    }

    /// Returns once all that was begun so far is done.
    pub(super) async fn finished(&self) {
        let last = self.lock().clone();
        last.finished().await;
    }

    fn lock(&self) -> MutexGuard<'_, PendingWrite> {
        // A panic cannot leave a single assignment half-done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingWrite {
    /// Returns once it is written down, or nothing will be.
    pub(super) async fn finished(self) {
        if let Some(mut done) = self.0 {
            // Nothing is ever sent: `changed` fails once the sender is dropped.
            while done.changed().await.is_ok() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_is_done_in_the_order_in_which_it_was_begun() {
        let recording = WriteQueue::default();
        let done = Arc::new(Mutex::new(Vec::new()));
        let (first_ends, first_ended) = oneshot::channel::<()>();
        let write = |word| {
            let done = done.clone();
            move || done.lock().unwrap().push(word)
        };
        let (first, second) = (write("first"), write("second"));
        let first = recording.then(async move {
            let _ = first_ended.await;
            first();
        });
        let second = recording.then(async move { second() });
        tokio::task::yield_now().await;
        assert!(done.lock().unwrap().is_empty());
        first_ends.send(()).unwrap();
        first.finished().await;
        assert_eq!(done.lock().unwrap()[0], "first");
        // Several may wait for the same.
        tokio::join!(second.clone().finished(), second.finished());
        recording.finished().await;
        assert_eq!(*done.lock().unwrap(), ["first", "second"]);

        let panics = recording.then(async { panic!("as a disk might") });
        panics.finished().await;
        PendingWrite::default().finished().await;
    }
}
