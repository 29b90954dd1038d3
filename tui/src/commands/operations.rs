//! Following an operation to its end: loads, downloads, changes of level, work on files and measurements alike.

use std::{future::Future, time::Duration};

use sluice_proto::{
    operations::OperationResponse,
    v1::{CancelOperationRequest, Operation, OperationProgress},
};
use tokio::signal::unix::Signal;
use tonic::{Code, Response, Status, Streaming};

use crate::{
    connection::DaemonConnection,
    output::{Failure, ProgressLine},
};

/// How long an interrupted client waits for the daemon to take the cancellation.
const CANCEL_WAIT: Duration = Duration::from_secs(5);

/// The effect of Ctrl-C on an operation that is followed.
#[derive(Clone, Copy)]
pub(super) enum OnInterrupt {
    /// The operation goes on; the failure to report.
    Leaves(fn() -> Failure),
    /// The operation is cancelled; its stream tells whether that succeeded.
    Cancels {
        /// Tells the user that it is being cancelled.
        announce: fn(),
        /// Makes the failure to report of the daemon's.
        cancelled: fn(Failure) -> Failure,
        /// The failure to report if the daemon did not confirm the end in time, or the user did not wait for it.
        unconfirmed: fn() -> Failure,
    },
}

impl OnInterrupt {
    /// Announces a cancellation.
    ///
    /// # Errors
    /// If the operation is not to be cancelled.
    fn announce(self) -> Result<(), Failure> {
        match self {
            Self::Leaves(failure) => Err(failure()),
            Self::Cancels { announce, .. } => {
                announce();
                Ok(())
            }
        }
    }

    fn unconfirmed(self) -> Failure {
        match self {
            Self::Leaves(failure) => failure(),
            Self::Cancels { unconfirmed, .. } => unconfirmed(),
        }
    }
}

/// Whether to go on following.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait for the next picture.
    Next,
    /// Stop with this picture; the operation goes on.
    Enough,
}

/// Shows each picture of an operation, and returns the last one of an operation that is done.
///
/// # Errors
/// The operation's failure, or the interruption.
pub(super) async fn follow<R: OperationResponse>(
    daemon: &DaemonConnection,
    call: impl Future<Output = Result<Response<Streaming<R>>, Status>>,
    interrupts: &mut Signal,
    on_interrupt: OnInterrupt,
    mut show: impl FnMut(&Operation, &mut ProgressLine) -> Result<Step, Failure>,
) -> Result<Operation, Failure> {
    let mut was_interrupted = false;
    tokio::pin!(call);
    let answer = tokio::select! {
        answer = &mut call => answer,
        _ = interrupts.recv() => {
            on_interrupt.announce()?;
            was_interrupted = true;
            // Only the first picture tells the id that cancelling needs, so the call is awaited for a while. The daemon may
            // have begun the operation already: dropping the call would leave it running.
            tokio::select! {
                answer = tokio::time::timeout(CANCEL_WAIT, &mut call) => {
                    answer.map_err(|_| on_interrupt.unconfirmed())?
                }
                _ = interrupts.recv() => return Err(on_interrupt.unconfirmed()),
            }
        }
    };
    let mut stream = answer
        .map_err(|status| daemon.failure(status))?
        .into_inner();
    let mut progress = ProgressLine::new();
    let mut last: Option<Operation> = None;
    loop {
        let is_unknown = was_interrupted && last.is_none();
        let next = tokio::select! {
            next = stream.message() => next,
            _ = interrupts.recv() => {
                // A second Ctrl-C ends the waiting for the daemon's confirmation.
                progress.clear();
                if was_interrupted {
                    return Err(on_interrupt.unconfirmed());
                }
                on_interrupt.announce()?;
                was_interrupted = true;
                if let Some(operation) = &last {
                    cancel(daemon, operation.operation_id, on_interrupt).await?;
                }
                continue;
            }
            () = tokio::time::sleep(CANCEL_WAIT), if is_unknown => {
                return Err(on_interrupt.unconfirmed());
            }
        };
        match next {
            Ok(Some(answer)) => {
                let Some(operation) = answer.into_operation() else {
                    continue;
                };
                if !operation.is_active() {
                    progress.clear();
                } else if is_unknown {
                    cancel(daemon, operation.operation_id, on_interrupt).await?;
                }
                let step = show(&operation, &mut progress)?;
                if step == Step::Enough {
                    return Ok(operation);
                }
                last = Some(operation);
            }
            Ok(None) => break,
            Err(status) => {
                progress.clear();
                let was_cancelled = status.code() == Code::Cancelled;
                let failure = daemon.failure(status);
                return Err(match on_interrupt {
                    OnInterrupt::Cancels { cancelled, .. } if was_interrupted && was_cancelled => {
                        cancelled(failure)
                    }
                    _ => failure,
                });
            }
        }
    }
    let done = last.filter(|operation| operation.outcome.is_some());
    done.ok_or_else(no_result)
}

async fn cancel(
    daemon: &DaemonConnection,
    operation_id: u64,
    on_interrupt: OnInterrupt,
) -> Result<(), Failure> {
    let mut client = daemon.operations();
    let call = client.cancel_operation(CancelOperationRequest { operation_id });
    match tokio::time::timeout(CANCEL_WAIT, call).await {
        Ok(answer) => answer.map(|_| ()).map_err(|status| daemon.failure(status)),
        Err(_) => Err(on_interrupt.unconfirmed()),
    }
}

/// Follows a request that belongs to its call. An interrupt drops the stream, which cancels the request.
///
/// # Errors
/// The request's failure.
pub(super) async fn owned<R: OperationResponse>(
    daemon: &DaemonConnection,
    call: impl Future<Output = Result<Response<Streaming<R>>, Status>>,
    line: impl Fn(&OperationProgress) -> String,
) -> Result<Operation, Failure> {
    let failed = |status| daemon.failure(status);
    let mut stream = call.await.map_err(failed)?.into_inner();
    let mut progress = ProgressLine::new();
    let mut last = None;
    while let Some(answer) = stream.message().await.map_err(failed)? {
        last = answer.into_operation();
        let step = last.as_ref().and_then(|last| last.progress.as_ref());
        if let Some(step) = step {
            progress.show(&line(step));
        }
    }
    progress.clear();
    let done = last.filter(|operation| operation.outcome.is_some());
    done.ok_or_else(no_result)
}

/// Tells which notices are new in a picture: each picture has all notices so far.
#[derive(Default)]
pub(super) struct NewNotices(usize);

impl NewNotices {
    /// The notices of this picture that earlier ones did not have.
    pub(super) fn of<'a>(&mut self, operation: &'a Operation) -> &'a [String] {
        let shown = std::mem::replace(&mut self.0, operation.notices.len());
        operation.notices.get(shown..).unwrap_or_default()
    }
}

/// The failure of a stream that ended without a result that this version knows.
pub(super) fn no_result() -> Failure {
    Failure::new("the daemon ended the stream without a result")
}
