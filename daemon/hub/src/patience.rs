//! How long a hub is waited for, and how often it is asked again.

use std::time::Duration;

use tokio::time::sleep;

use crate::HubError;

/// Longest that a hub's word on when to come back is followed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);

/// How long a hub is waited for, and how often it is asked again.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For a connection.
    pub connect: Duration,
    /// For an answer, and for each next part of it.
    pub stall: Duration,
    /// Before the second attempt; doubled before each further one.
    pub pause: Duration,
    /// Attempts in a row that bring nothing.
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

/// Attempts that have brought nothing so far.
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

    /// The last one brought something.
    pub(crate) fn begin_anew(&mut self) {
        self.failed = 0;
    }

    /// Waits before the next one.
    ///
    /// # Errors
    /// The error, when it won't go away or there were enough attempts.
    pub(crate) async fn after(
        &mut self,
        error: HubError,
        tell: &mut (dyn FnMut(&HubError, Duration) + Send),
    ) -> Result<(), HubError> {
        self.failed += 1;
        if !error.is_transient() || self.failed >= self.patience.attempts {
            return Err(error);
        }
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
