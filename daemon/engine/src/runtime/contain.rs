//! Panics of what belongs to one request, or to whoever is told of a command: they are bugs, and end that alone. A panic in
//! what requests share, weights above all, ends the thread, and with it the process: nobody knows what state it left.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{command::CommandEvent, error::EngineError};

/// Does what touches a single request's state. After a panic that state must only be dropped.
pub(super) fn contained<T>(work: impl FnOnce() -> T) -> Result<T, EngineError> {
    // The panic's own message is in the log already.
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| EngineError::Panicked)
}

/// A report that hears nothing more once it has panicked.
pub(super) fn contained_report<T: 'static>(
    report: Box<dyn FnMut(CommandEvent<T>) + Send>,
) -> Box<dyn FnMut(CommandEvent<T>) + Send> {
    let mut report = Some(report);
    Box::new(move |event| {
        let told = contained(|| {
            if let Some(report) = &mut report {
                report(event);
            }
        });
        if told.is_err() {
            // Its end may panic as well.
            drop(contained(|| drop(report.take())));
        }
    })
}
