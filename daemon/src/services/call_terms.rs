//! What a call says beside its message: who makes it, how long it may take, and whether it waits.

use tonic::Request;

use super::{deadline::Deadline, messages::HeldMessage};
use crate::caller::Caller;

/// Metadata by which a call says what becomes of it where the engine's queue is full: it waits in the daemon's line, unless
/// this says `refuse`.
const WHEN_FULL: &str = "sluice-when-full";

/// What a call says beside its message.
#[derive(Debug, Clone)]
pub(super) struct CallTerms {
    /// Who makes it, and whose turn it takes.
    pub(super) caller: Caller,
    /// When it must be over.
    pub(super) deadline: Option<Deadline>,
    /// Whether it waits where the engine's queue is full.
    pub(super) waits: bool,
    /// Whether it is a step of something else, and of no interest when it has ended.
    pub(super) is_step: bool,
    /// Counts its message as long as it is there; `None` for a call that came over no connection.
    pub(super) message: Option<HeldMessage>,
}

impl CallTerms {
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        let when_full = request.metadata().get(WHEN_FULL);
        Self {
            caller: Caller::of(request),
            deadline: Deadline::of(request.metadata()),
            waits: when_full.is_none_or(|value| value != "refuse"),
            is_step: false,
            message: request.extensions().get().cloned(),
        }
    }
}
