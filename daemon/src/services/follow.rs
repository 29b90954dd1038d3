//! Streams about what goes on by itself: downloads, loads, jobs. Whoever listens gets the latest picture of it, at their own
//! pace; that they go away, it doesn't notice.

use futures_util::{StreamExt, stream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{persistence::PendingWrite, requests::ResponseStream};

/// What a listener has not heard yet.
pub(super) struct FollowUpdate<A> {
    pub(super) answers: Vec<Result<A, Status>>,
    /// Whether that is all there will be; and what is written down first, before it is told.
    pub(super) end: Option<PendingWrite>,
}

/// Tells what comes, each time that the state changes, until the last of it or the daemon's end.
pub(super) fn follow<S, A>(
    states: watch::Receiver<S>,
    closing: &CancellationToken,
    news: impl FnMut(S) -> FollowUpdate<A> + Send + 'static,
) -> ResponseStream<A>
where
    S: Clone + Send + Sync + 'static,
    A: Send + 'static,
{
    let begun = Some((states, news, closing.clone()));
    let answers = stream::unfold(begun, |told| async {
        let (mut states, mut news, closing) = told?;
        tokio::select! {
            // First, so that an end that was just told is heard.
            biased;
            changed = states.changed() => changed.ok()?,
            () = closing.cancelled() => return None,
        }
        let state = states.borrow_and_update().clone();
        let FollowUpdate { answers, end } = news(state);
        let Some(recorded) = end else {
            return Some((stream::iter(answers), Some((states, news, closing))));
        };
        tokio::select! {
            () = recorded.finished() => {}
            () = closing.cancelled() => {}
        }
        Some((stream::iter(answers), None))
    });
    answers.flatten().boxed()
}
