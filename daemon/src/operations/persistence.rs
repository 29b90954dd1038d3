//! Writes what loads and changes leave on disk once they have ended, in the order in which they began, so that the last
//! request wins.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::{Operation, OperationStatus, Unsaved};
use crate::failure::Failure;

/// The chain of pending writes: one task for each load or change that is not on disk yet. Holds the signal that the last one
/// is done.
#[derive(Debug, Default)]
pub struct WriteQueue(Mutex<Option<CancellationToken>>);

impl WriteQueue {
    /// Begins an operation and queues its write. `after_end` gets the status that the operation ended with, and returns the
    /// write, or `None` if there is nothing to write. The write runs on a blocking thread after all those queued before it,
    /// and returns what could not be saved. Followers get the last picture after it.
    ///
    /// # Errors
    /// Those of `begin`.
    pub fn begin<W>(
        &self,
        begin: impl FnOnce() -> Result<Arc<Operation>, Failure>,
        after_end: impl FnOnce(&OperationStatus) -> Option<W> + Send + 'static,
    ) -> Result<Arc<Operation>, Failure>
    where
        W: FnOnce() -> Option<Unsaved> + Send + 'static,
    {
        // Held while the operation begins: the order on disk must be the order in which the engine was asked.
        let mut last = self.lock();
        let operation = begin()?;
        // Guards signal when they are dropped, so that a panic in a write does not block those behind it.
        let (done, saved) = (CancellationToken::new(), CancellationToken::new());
        let (done_guard, saved_guard) = (done.clone().drop_guard(), saved.clone().drop_guard());
        operation.is_saved_at(saved);
        let before = last.replace(done);
        let ended = operation.clone();
        tokio::spawn(async move {
            let _done = done_guard;
            let write = after_end(&ended.ended().await);
            // A follower does not wait for the writes of others.
            let saved = write.is_some().then_some(saved_guard);
            if let Some(before) = before {
                before.cancelled().await;
            }
            let Some(write) = write else { return };
            // A panic is in the log already.
            if let Some(unsaved) = spawn_blocking(write).await.unwrap_or_default() {
                ended.not_saved(unsaved);
            }
            drop(saved);
        });
        Ok(operation)
    }

    /// Returns once all that was begun so far has ended and is on disk.
    pub async fn finished(&self) {
        let last = self.lock().clone();
        if let Some(last) = last {
            last.cancelled().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<CancellationToken>> {
        // A panic cannot leave a single assignment half-done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::operations::{
        ChangeNotifier, OperationDescription, Operations, Outcome, RunningOperation,
    };

    fn begun() -> RunningOperation {
        let operations = Arc::new(Operations::new(ChangeNotifier::default()));
        let description = OperationDescription::default();
        operations.begin(description, None).unwrap()
    }

    fn succeed(running: &RunningOperation) {
        running.finish(Ok(Outcome::Load(Default::default())));
    }

    #[tokio::test]
    async fn writes_are_made_in_the_order_in_which_operations_began() {
        let queue = WriteQueue::default();
        let written = Arc::new(Mutex::new(Vec::new()));
        let write = |word| {
            let written = written.clone();
            move |_: &OperationStatus| {
                Some(move || {
                    written.lock().unwrap().push(word);
                    None
                })
            }
        };
        let (first, second) = (begun(), begun());
        let begin = || {
            let is_locked = queue.0.try_lock().is_err();
            assert!(is_locked, "another could begin between this and its write");
            Ok(first.operation())
        };
        queue.begin(begin, write("first")).unwrap();
        let later = || Ok(second.operation());
        let second_operation = queue.begin(later, write("second")).unwrap();
        succeed(&second);
        tokio::task::yield_now().await;
        assert!(second_operation.saved().now_or_never().is_none());
        succeed(&first);
        second_operation.saved().await;
        queue.finished().await;
        assert_eq!(*written.lock().unwrap(), ["first", "second"]);
    }

    #[tokio::test]
    async fn an_operation_with_nothing_to_write_does_not_wait_for_others() {
        let queue = WriteQueue::default();
        let (first, second) = (begun(), begun());
        let nothing = |_: &OperationStatus| None::<fn() -> Option<Unsaved>>;
        queue.begin(|| Ok(first.operation()), nothing).unwrap();
        let second_operation = queue.begin(|| Ok(second.operation()), nothing).unwrap();
        succeed(&second);
        second_operation.saved().await;
        assert!(queue.finished().now_or_never().is_none());
        succeed(&first);
        queue.finished().await;
    }

    #[tokio::test]
    async fn a_write_that_panics_blocks_nobody() {
        let queue = WriteQueue::default();
        let running = begun();
        let panics = |_: &OperationStatus| Some(|| panic!("as a disk might"));
        let operation = queue.begin(|| Ok(running.operation()), panics).unwrap();
        succeed(&running);
        operation.saved().await;
        queue.finished().await;
    }
}
