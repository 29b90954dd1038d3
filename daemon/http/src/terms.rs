//! What a request says of its call, and not of its text.

use std::time::Duration;

/// What goes beside a request's message.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallTerms {
    /// Time for the whole request.
    pub(crate) timeout: Option<Duration>,
    /// Whether it is refused where the queue is full, rather than waiting.
    pub(crate) is_impatient: bool,
}
