//! What is written down of loads and changes, once they have come to an end: in the order in which they were begun, so that the
//! last word is the one that stays.

use std::{
    future::Future,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

/// The order. One task for each load or change that has not been written down.
#[derive(Debug, Default)]
pub(super) struct WriteQueue(Mutex<PendingWrite>);

/// One step of it. A client is told of an end once that is written down, so that what it asks for next finds it.
#[derive(Debug, Clone, Default)]
pub(super) struct PendingWrite(Option<watch::Receiver<()>>);

impl WriteQueue {
    /// Does it once all that was begun before is done.
    pub(super) fn then(&self, work: impl Future<Output = ()> + Send + 'static) -> PendingWrite {
        // Dropped when the work ends, and also where it panics: that wrote nothing, and is over, too.
        let (done, recorded) = watch::channel(());
        let recorded = PendingWrite(Some(recorded));
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
        // One step: nothing is left half-done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingWrite {
    /// Returns once it is written down, or nothing will be.
    pub(super) async fn finished(self) {
        if let Some(mut done) = self.0 {
            // Nothing is ever sent: this is the sender's end.
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
