//! Following an operation to its end, and cancelling it: loads, downloads, changes of level, work on files, requests alike.

use std::{future::Future, time::Duration};

use serde_json::json;
use sluice_proto::{
    operations::OperationResponse,
    v1::{Operation, OperationProgress, WatchOperationRequest},
};
use tokio::signal::unix::Signal;
use tonic::{Code, Response, Status, Streaming};

use crate::{
    connection::DaemonConnection,
    operations,
    output::{Failure, ProgressLine, StandardOutput},
    text::sanitise_line,
};

/// How long an interrupted client waits for the daemon to take the cancellation.
const CANCEL_WAIT: Duration = Duration::from_secs(5);

/// How long an interrupted client waits for the first picture of an operation: only that tells the id that cancelling needs. A
/// daemon that answers at all sends it at once.
const FIRST_PICTURE_WAIT: Duration = Duration::from_secs(1);

/// How long a command that cancels waits for the operation's end: a job finishes the chunk in progress and writes it to disk first.
const END_WAIT: Duration = Duration::from_secs(60);

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
                answer = tokio::time::timeout(FIRST_PICTURE_WAIT, &mut call) => {
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
            () = tokio::time::sleep(FIRST_PICTURE_WAIT), if is_unknown => {
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
    done.ok_or_else(operations::no_result)
}

async fn cancel(
    daemon: &DaemonConnection,
    operation_id: u64,
    on_interrupt: OnInterrupt,
) -> Result<(), Failure> {
    let call = operations::cancel(daemon, operation_id);
    match tokio::time::timeout(CANCEL_WAIT, call).await {
        Ok(answer) => answer.map(drop),
        Err(_) => Err(on_interrupt.unconfirmed()),
    }
}

/// How an operation ended that a command cancelled.
pub(super) struct CancelledOperation {
    operation: Operation,
    /// Whether it waited or ran when it was cancelled.
    pub(super) was_active: bool,
    pub(super) end: CancelEnd,
    words: String,
}

/// The end of an operation that was cancelled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CancelEnd {
    /// It had ended before.
    Earlier,
    /// It was done before it could be stopped.
    Done,
    /// It was stopped.
    Cancelled,
}

/// Cancels an operation and waits for its end, so that another can begin.
///
/// # Errors
/// The daemon's refusal, the operation's own failure, or that it has not ended in time.
pub(super) async fn cancel_and_wait(
    daemon: &DaemonConnection,
    operation_id: u64,
) -> Result<CancelledOperation, Failure> {
    let (was_active, operation) = operations::cancel(daemon, operation_id).await?;
    let name = sanitise_line(&operations::name(&operation));
    let of = |end, words| CancelledOperation {
        operation: operation.clone(),
        was_active,
        end,
        words,
    };
    if !was_active {
        let words = format!("{name} has already finished");
        return Ok(of(CancelEnd::Earlier, words));
    }
    let end = tokio::time::timeout(END_WAIT, ended(daemon, operation_id)).await;
    let end = end.map_err(|_| {
        Failure::new(format!(
            "{name} is being cancelled but has not finished yet"
        ))
        .with_hint("`sluice status` shows whether it is still running")
    })?;
    match end {
        Ok(()) => {
            let words = format!("{name} was done before it could be stopped");
            Ok(of(CancelEnd::Done, words))
        }
        Err(status) if status.code() == Code::Cancelled => {
            let words = match operation.kind().is_on_files() {
                // The daemon says which part of the output remains.
                true => format!("{name}: {}", sanitise_line(status.message())),
                false => format!("cancelled {name}"),
            };
            Ok(of(CancelEnd::Cancelled, words))
        }
        Err(status) => Err(daemon.failure(status)),
    }
}

impl CancelledOperation {
    /// Says how it ended.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn tell(&self, json: bool, out: &mut StandardOutput) -> Result<(), Failure> {
        if !json {
            return out.line(&self.words);
        }
        let state = match self.end {
            CancelEnd::Earlier => "ended",
            CancelEnd::Done => "done",
            CancelEnd::Cancelled => "cancelled",
        };
        out.json(&json!({
            "operation_id": self.operation.operation_id,
            "kind": self.operation.kind().to_string(),
            "was_active": self.was_active,
            "state": state,
        }))
    }
}

/// Waits until an operation has ended; the status is its failure.
async fn ended(daemon: &DaemonConnection, operation_id: u64) -> Result<(), Status> {
    let mut client = daemon.operations();
    let request = WatchOperationRequest {
        operation_id,
        follow: true,
    };
    let mut stream = client.watch_operation(request).await?.into_inner();
    while stream.message().await?.is_some() {}
    Ok(())
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
    done.ok_or_else(operations::no_result)
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
