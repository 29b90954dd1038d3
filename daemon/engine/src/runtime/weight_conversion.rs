//! A conversion of weights on a thread of its own, beside the passes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use sluice_checkpoint::{Checkpoint, CheckpointError};
use sluice_ops::OpsError;

use crate::error::EngineError;

/// A copy that is being written while passes run. Dropping it cancels that, and leaves no file.
pub(super) struct WeightConversion {
    /// Whether something will be streamed from it; otherwise it is only kept for the next time.
    is_needed: bool,
    result: mpsc::Receiver<Result<Option<Checkpoint>, CheckpointError>>,
    done_bytes: Arc<AtomicU64>,
    total_bytes: u64,
    cancel: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl WeightConversion {
    /// Starts a thread that writes a copy by `write`, which reports how many of the bytes are done.
    pub(super) fn start(
        total_bytes: u64,
        is_needed: bool,
        write: impl FnOnce(
            &AtomicBool,
            &mut dyn FnMut(u64),
        ) -> Result<Option<Checkpoint>, CheckpointError>
        + Send
        + 'static,
    ) -> Result<Self, EngineError> {
        let (sender, result) = mpsc::channel();
        let done_bytes = Arc::new(AtomicU64::new(0));
        let cancel = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new()
            .name("sluice-convert".to_owned())
            .spawn({
                let (done_bytes, cancel) = (Arc::clone(&done_bytes), Arc::clone(&cancel));
                move || {
                    // Relaxed is enough: the figure is only shown, and the result comes through the channel.
                    let progress = &mut |done| done_bytes.store(done, Ordering::Relaxed);
                    let written = write(&cancel, progress);
                    // If it was cancelled, nobody waits for the result.
                    let _ = sender.send(written);
                }
            })
            .map_err(|error| EngineError::Ops(OpsError::Threads(error.to_string())))?;
        Ok(Self {
            is_needed,
            result,
            done_bytes,
            total_bytes,
            cancel,
            thread: Some(thread),
        })
    }

    /// Whether something will be streamed from it.
    pub(super) fn is_needed(&self) -> bool {
        self.is_needed
    }

    /// Bytes done, and in all.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.done_bytes.load(Ordering::Relaxed), self.total_bytes)
    }

    /// The result, if it is there within this time.
    pub(super) fn poll(&self, patience: Duration) -> Option<Result<Checkpoint, EngineError>> {
        match self.result.recv_timeout(patience) {
            Ok(Ok(Some(copy))) => Some(Ok(copy)),
            Ok(Ok(None)) => unreachable!("whoever cancels doesn't ask"),
            Ok(Err(error)) => Some(Err(error.into())),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            // The thread has ended without a result, which only a panic explains.
            Err(mpsc::RecvTimeoutError::Disconnected) => Some(Err(EngineError::Panicked)),
        }
    }
}

impl Drop for WeightConversion {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Joined, so that the unfinished file is gone before the program may end. A panic has shown itself as a
            // missing result.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, hint};

    use super::*;

    #[test]
    fn nothing_is_left_of_a_conversion_that_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy.partial");
        let (begun, has_begun) = mpsc::channel();
        let written = path.clone();
        let conversion = WeightConversion::start(100, true, move |cancel, progress| {
            fs::write(&written, "half").unwrap();
            progress(50);
            begun.send(()).unwrap();
            while !cancel.load(Ordering::Relaxed) {
                hint::spin_loop();
            }
            fs::remove_file(&written).unwrap();
            Ok(None)
        });
        let conversion = conversion.unwrap();
        has_begun.recv().unwrap();
        assert_eq!(conversion.progress(), (50, 100));
        assert!(conversion.poll(Duration::ZERO).is_none() && path.exists());
        drop(conversion);
        assert!(!path.exists());
    }
}
