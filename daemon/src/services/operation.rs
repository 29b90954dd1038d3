//! `OperationService`, and the streams of all RPCs that begin an operation. A reader gets the latest picture at its own pace.
//! When it goes away, an operation that belongs to the daemon goes on.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use sluice_proto::{
    model::{InvalidField, known},
    operations::OperationResponse,
    v1::{self, operation_service_server::OperationService},
};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{
    Daemon,
    requests::{OwnedRequest, ResponseStream},
};
use crate::{
    caller::Caller,
    failure::Failure,
    operations::{Operation, OperationStatus, PROGRESS_INTERVAL},
    role::Role,
};

/// The service; clones share the daemon.
pub(super) struct Service(pub(super) Arc<Daemon>);

#[tonic::async_trait]
impl OperationService for Service {
    type WatchOperationStream = ResponseStream<v1::WatchOperationResponse>;

    async fn list_operations(
        &self,
        request: Request<v1::ListOperationsRequest>,
    ) -> Result<Response<v1::ListOperationsResponse>, Status> {
        let v1::ListOperationsRequest { kinds, states } = request.into_inner();
        let kinds: Vec<v1::OperationKind> = each_known("kinds", &kinds)?;
        let states: Vec<v1::OperationState> = each_known("states", &states)?;
        let all = self.0.operations.all().into_iter();
        let operations = all
            .filter(|operation| kinds.is_empty() || kinds.contains(&operation.kind()))
            .map(|operation| operation.to_wire())
            .filter(|operation| states.is_empty() || states.contains(&operation.state()));
        Ok(Response::new(v1::ListOperationsResponse {
            operations: operations.collect(),
        }))
    }

    async fn watch_operation(
        &self,
        request: Request<v1::WatchOperationRequest>,
    ) -> Result<Response<Self::WatchOperationStream>, Status> {
        let asked = request.into_inner();
        let operation = self.0.operations.find(asked.operation_id)?;
        if asked.follow {
            return Ok(Response::new(follow(operation, &self.0.closing)));
        }
        let answer = v1::WatchOperationResponse::of(operation.to_wire());
        Ok(Response::new(stream::iter([Ok(answer)]).boxed()))
    }

    async fn cancel_operation(
        &self,
        request: Request<v1::CancelOperationRequest>,
    ) -> Result<Response<v1::CancelOperationResponse>, Status> {
        let caller = Caller::of(&request);
        let id = request.into_inner().operation_id;
        let operation = self.0.operations.find(id)?;
        check_owner(caller, &operation, Role::Operate)?;
        let was_active = operation.cancel()?;
        let kind = operation.kind();
        tracing::info!(operation = id, %kind, was_active, "cancelled by a client");
        Ok(Response::new(v1::CancelOperationResponse {
            was_active,
            operation: Some(operation.to_wire()),
        }))
    }
}

/// Whether the caller may do with an operation what otherwise takes the role `needed`: with its own requests everybody may.
///
/// # Errors
/// When it belongs to another.
pub(super) fn check_owner(
    caller: Caller,
    operation: &Operation,
    needed: Role,
) -> Result<(), Failure> {
    let is_request = operation.kind().is_request();
    let owner = operation.description().caller.filter(|_| is_request);
    let is_own = owner.is_some_and(|owner| owner.is_same_as(caller));
    match is_own || caller.may(needed) {
        true => Ok(()),
        false => Err(Failure::NotYours {
            id: operation.id(),
            needed,
        }),
    }
}

/// The values of a repeated enum field, of which each must be known.
fn each_known<E: TryFrom<i32>>(field: &'static str, values: &[i32]) -> Result<Vec<E>, Failure> {
    let each = values.iter().map(|value| known(field, *value));
    Ok(each.collect::<Result<_, InvalidField>>()?)
}

/// The present picture of an operation, then later ones, then the status that it ended with. The first picture waits until it is
/// on disk that the operation began, the last until what the operation leaves is: what a client hears of outlives a kill. A stream that outlives the daemon ends with
/// [`Failure::Draining`]: only a finished operation ends with OK.
pub(super) fn follow<R: OperationResponse>(
    operation: Arc<Operation>,
    closing: &CancellationToken,
) -> ResponseStream<R> {
    pictures(operation, closing, None)
}

/// As [`follow`], for a request that belongs to the call.
pub(super) fn follow_owned<R: OperationResponse>(
    owner: OwnedRequest,
    closing: &CancellationToken,
) -> ResponseStream<R> {
    let operation = owner.record().operation().clone();
    pictures(operation, closing, Some(owner))
}

fn pictures<R: OperationResponse>(
    operation: Arc<Operation>,
    closing: &CancellationToken,
    owner: Option<OwnedRequest>,
) -> ResponseStream<R> {
    let mut statuses = operation.subscribe();
    // The first picture is sent at once, not at the next change.
    statuses.mark_changed();
    let follower = Follower {
        operation,
        statuses,
        is_first: true,
        looks_again: false,
        closing: closing.clone(),
        owner,
        end: None,
    };
    let pictures = stream::unfold(follower, |mut follower| async {
        let item = follower.next().await?;
        Some((item.map(R::of), follower))
    });
    pictures.boxed()
}

/// One reader of an operation.
struct Follower {
    operation: Arc<Operation>,
    statuses: watch::Receiver<OperationStatus>,
    /// Whether the first picture is still to be sent.
    is_first: bool,
    /// Whether to look once more after [`PROGRESS_INTERVAL`], since progress so soon after a wake wakes nobody. What comes
    /// later does.
    looks_again: bool,
    closing: CancellationToken,
    /// Whose call it belongs to.
    owner: Option<OwnedRequest>,
    /// After the last picture: the status that is still to be sent.
    end: Option<Option<Status>>,
}

impl Follower {
    async fn next(&mut self) -> Option<Result<v1::Operation, Status>> {
        if let Some(status) = &mut self.end {
            return status.take().map(Err);
        }
        if self.owner.as_ref().is_some_and(OwnedRequest::has_expired) {
            return None;
        }
        if std::mem::take(&mut self.is_first) {
            tokio::select! {
                () = self.operation.begin_saved() => {}
                () = self.closing.cancelled() => {}
            }
        }
        loop {
            let expired = async {
                match &mut self.owner {
                    Some(owner) => owner.expire().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                // The deadline first: afterwards the caller gets nothing more.
                status = expired => return Some(Err(status)),
                // Before the shutdown, so that an end is sent that came just before it.
                // The sender lives in the operation that this follower holds.
                changed = self.statuses.changed() => {
                    changed.ok()?;
                    self.looks_again = true;
                    break;
                }
                () = self.closing.cancelled() => {
                    self.end = Some(None);
                    return Some(Err(Failure::Draining.into()));
                }
                () = sleep(PROGRESS_INTERVAL), if self.looks_again => {
                    self.looks_again = false;
                    if self.statuses.borrow().is_untold() {
                        break;
                    }
                }
            }
        }
        // End and picture from one status, since another may be set between two looks.
        let mut status = self.statuses.borrow_and_update().clone();
        if status.has_ended() {
            // Not beyond the daemon's end, which closes all streams.
            tokio::select! {
                () = self.operation.saved() => {}
                () = self.closing.cancelled() => {}
            }
            // With what could not be saved.
            status = self.statuses.borrow_and_update().clone();
            self.end = Some(status.last_status().cloned());
        }
        Some(Ok(self.operation.picture(&status)))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use futures_util::FutureExt;
    use tonic::Code;

    use super::*;
    use crate::{
        operations::{
            ChangeNotifier, OperationDescription, Operations, Outcome, RunningOperation, Unsaved,
            WriteQueue, progress,
        },
        state::SaveError,
    };

    type Pictures = ResponseStream<v1::WatchOperationResponse>;

    fn running() -> RunningOperation {
        let operations = Arc::new(Operations::new(ChangeNotifier::default()));
        let description = OperationDescription {
            kind: v1::OperationKind::Load,
            ..Default::default()
        };
        operations.begin(description, None).unwrap()
    }

    fn reading(running: &RunningOperation, done: u64) {
        let (loading, bytes) = (v1::OperationStage::Loading, v1::ProgressUnit::Bytes);
        running.progress(progress(loading, bytes, done, 9));
    }

    async fn next(pictures: &mut Pictures) -> v1::Operation {
        pictures.next().await.unwrap().unwrap().operation.unwrap()
    }

    #[tokio::test]
    async fn a_slow_follower_skips_pictures_and_gets_the_last() {
        let running = running();
        let closing = CancellationToken::new();
        let mut pictures: Pictures = follow(running.operation(), &closing);
        assert_eq!(next(&mut pictures).await.progress, None);
        for done in 0..5 {
            reading(&running, done);
        }
        assert_eq!(next(&mut pictures).await.progress.unwrap().done, 4);
        reading(&running, 6);
        running.finish(Ok(Outcome::Load(v1::LoadResult::default())));
        let last = next(&mut pictures).await;
        assert_eq!(last.state(), v1::OperationState::Done);
        assert_eq!(last.progress.unwrap().done, 9);
        assert!(pictures.next().await.is_none());
    }

    #[tokio::test]
    async fn progress_before_a_stall_reaches_a_follower_that_sleeps() {
        let running = running();
        let closing = CancellationToken::new();
        let mut pictures: Pictures = follow(running.operation(), &closing);
        reading(&running, 1);
        assert_eq!(next(&mut pictures).await.progress.unwrap().done, 1);
        let mut following = Box::pin(next(&mut pictures));
        assert!(following.as_mut().now_or_never().is_none());
        // So soon after the first that it wakes nobody.
        reading(&running, 2);
        let later = tokio::time::timeout(Duration::from_secs(60), following).await;
        assert_eq!(later.unwrap().progress.unwrap().done, 2);
        // The same is not told again.
        let more = tokio::time::timeout(4 * PROGRESS_INTERVAL, next(&mut pictures)).await;
        assert!(more.is_err());
    }

    #[tokio::test]
    async fn who_comes_after_the_end_gets_one_picture_and_the_status() {
        let running = running();
        running.finish(Err(Failure::Cancelled));
        let closing = CancellationToken::new();
        let mut pictures: Pictures = follow(running.operation(), &closing);
        let last = next(&mut pictures).await;
        assert_eq!(last.state(), v1::OperationState::Cancelled);
        assert_eq!(last.error.unwrap().reason, "CANCELLED");
        let status = pictures.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Cancelled);
        assert!(pictures.next().await.is_none());
    }

    #[tokio::test]
    async fn every_follower_gets_the_last_picture_once_it_is_saved_and_hears_what_was_not() {
        let running = running();
        let (written, is_written) = mpsc::channel::<()>();
        let write = move || {
            let _ = is_written.recv();
            let text = || "text".to_owned();
            let folder = "/m".into();
            Some(Unsaved::Failure(Failure::NotSaved {
                kept: text(),
                error: SaveError::Locked { folder },
            }))
        };
        let begin = || Ok(running.operation());
        let load = WriteQueue::default().begin(begin, |_| Some(write));
        let load = load.unwrap();
        running.finish(Ok(Outcome::Load(v1::LoadResult::default())));
        let closing = CancellationToken::new();
        let mut followers: [Pictures; 2] = [follow(load.clone(), &closing), follow(load, &closing)];
        for pictures in &mut followers {
            assert!(pictures.next().now_or_never().is_none());
        }
        written.send(()).unwrap();
        for pictures in &mut followers {
            let last = next(pictures).await;
            assert_eq!(last.state(), v1::OperationState::Done);
            assert_eq!(last.error.unwrap().reason, "STATE_LOCKED");
            // It is done, and the call fails all the same.
            let status = pictures.next().await.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition);
        }
    }

    #[tokio::test]
    async fn followers_are_let_go_when_the_daemon_closes() {
        let running = running();
        let closing = CancellationToken::new();
        let mut pictures: Pictures = follow(running.operation(), &closing);
        assert!(next(&mut pictures).await.is_active());
        closing.cancel();
        // Not OK, which would mean that the load is done.
        let status = pictures.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(pictures.next().await.is_none());
    }
}
