//! What a request says of its call, and not of its text.

use std::time::Duration;

use crate::{extension::Extension, field_names::TextApi};

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

impl CallTerms {
    /// Those of a request with this under the key `sluice`.
    pub(crate) fn new(api: TextApi, sluice: Option<&Extension>) -> Self {
        Self {
            api,
            timeout: sluice.and_then(Extension::timeout),
            is_impatient: sluice.is_some_and(Extension::is_impatient),
        }
    }
}
