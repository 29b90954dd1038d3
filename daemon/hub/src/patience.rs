//! Timeouts and retries.

use std::time::Duration;

use tokio::time::sleep;

use crate::HubError;

/// Longest wait that a hub's `Retry-After` is followed for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);

/// Timeouts and the number of attempts.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Timeout for a connection.
    pub connect: Duration,
    /// Timeout for an answer, and for each further piece of it.
    pub stall: Duration,
    /// Pause before the second attempt; it doubles with each further one.
    pub pause: Duration,
    /// Attempts in a row that may fail without progress.
    pub attempts: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(15),
            stall: Duration::from_secs(30),
            pause: Duration::from_secs(1),
            attempts: 6,
        }
    }
}

/// Counts attempts that failed without progress.
pub(crate) struct Attempts {
    patience: Patience,
    failed: u32,
}

impl Attempts {
    pub(crate) fn new(patience: Patience) -> Self {
        Self {
            patience,
            failed: 0,
        }
    }

    /// Starts counting anew: the last attempt made progress.
    pub(crate) fn begin_anew(&mut self) {
        self.failed = 0;
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// The error itself, if it is permanent or there were enough attempts.
    pub(crate) async fn after(
        &mut self,
        error: HubError,
        tell: &mut (dyn FnMut(&HubError, Duration) + Send),
    ) -> Result<(), HubError> {
        self.failed += 1;
        if !error.is_transient() || self.failed >= self.patience.attempts {
            return Err(error);
        }
        // Exponential backoff, bounded by the number of attempts.
        let mut pause = self.patience.pause * 2_u32.saturating_pow(self.failed - 1);
        if let HubError::TooMany {
            seconds: Some(seconds),
            ..
        } = error
        {
            pause = pause.max(Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
        }
        tell(&error, pause);
        sleep(pause).await;
        Ok(())
    }
}
