//! What is written down of loads and changes, once they have come to an end: in the order in which they were begun, so that the
//! last word is the one that stays.

use std::{
    future::Future,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::task::JoinHandle;

/// The order. One task for each load or change that has not been written down.
#[derive(Debug, Default)]
pub(super) struct Recording(Mutex<Option<JoinHandle<()>>>);

impl Recording {
    /// Does it once all that was begun before is done.
    pub(super) fn then(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut last = self.lock();
        let before = last.take();
        *last = Some(tokio::spawn(async move {
            if let Some(before) = before {
                // One that panicked wrote nothing, and is over, too.
                drop(before.await);
            }
            work.await;
        }));
    }

    /// Returns once all that was begun so far is done.
    pub(super) async fn is_done(&self) {
        let last = self.lock().take();
        if let Some(last) = last {
            drop(last.await);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        // One step: nothing is left half-done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_is_done_in_the_order_in_which_it_was_begun() {
        let recording = Recording::default();
        let done = Arc::new(Mutex::new(Vec::new()));
        let (first_ends, first_ended) = oneshot::channel::<()>();
        let write = |word| {
            let done = done.clone();
            move || done.lock().unwrap().push(word)
        };
        let (first, second) = (write("first"), write("second"));
        recording.then(async move {
            let _ = first_ended.await;
            first();
        });
        recording.then(async move { second() });
        tokio::task::yield_now().await;
        assert!(done.lock().unwrap().is_empty());
        first_ends.send(()).unwrap();
        recording.is_done().await;
        assert_eq!(*done.lock().unwrap(), ["first", "second"]);
    }
}
