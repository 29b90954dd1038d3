//! What a request says of its call, and not of its text.

use std::time::Duration;

use crate::field_names::TextApi;

/// What goes beside a request's message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallTerms {
    /// Where it came, whose names the daemon's refusals get.
    pub(crate) api: TextApi,
    /// Time for the whole request.
    pub(crate) timeout: Option<Duration>,
    /// Whether it is refused where the queue is full, rather than waiting.
    pub(crate) is_impatient: bool,
}
