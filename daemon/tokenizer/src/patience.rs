//! How long a caller waits for text.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{error::LimitReached, limits::SESSION_WAIT_MAX};

/// How long a caller waits: until a moment, or until it is gone.
#[derive(Debug, Clone)]
pub struct Patience {
    until: Instant,
    gone: Arc<AtomicBool>,
}

impl Default for Patience {
    /// [`SESSION_WAIT_MAX`] from now on.
    fn default() -> Self {
        Self::new(SESSION_WAIT_MAX, Arc::default())
    }
}

impl Patience {
    /// Waits so long, but not for a caller who is `gone`.
    #[must_use]
    pub fn new(wait: Duration, gone: Arc<AtomicBool>) -> Self {
        Self {
            until: Instant::now() + wait,
            gone,
        }
    }

    /// What is left of the time.
    ///
    /// # Errors
    /// When nothing is left, or nobody waits any more.
    pub(super) fn left(&self) -> Result<Duration, LimitReached> {
        if self.gone.load(Ordering::Relaxed) {
            return Err(LimitReached::Gone);
        }
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(LimitReached::Wait),
            left => Ok(left),
        }
    }
}
