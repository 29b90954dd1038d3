//! A tower layer that tells who calls and whether the caller may, counts calls, and bounds what each receives and leaves
//! unread.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http_body::{Body as HttpBody, Frame};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{
    Code, Status,
    body::Body,
    codegen::{
        Bytes,
        http::{HeaderMap, Request, Response, header::AUTHORIZATION},
    },
};
use tower::{Layer, Service};

use super::{
    incoming::{CallPlace, Peer},
    messages::{HeldMessage, MessageAccount, Share},
    permissions, protocol,
};
use crate::{access::AccessRules, caller::Caller, failure::Failure, limits::MESSAGE_TIMEOUT};

/// Gives each call its [`crate::caller::Caller`], and bounds it.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    access: Arc<AccessRules>,
    account: Arc<MessageAccount>,
}

impl Calls {
    pub(super) fn new(access: Arc<AccessRules>) -> Self {
        Self {
            access,
            account: Arc::default(),
        }
    }
}

/// A service behind [`Calls`].
#[derive(Debug, Clone)]
pub(super) struct CountedCalls<S> {
    inner: S,
    calls: Calls,
}

impl<S> Layer<S> for Calls {
    type Service = CountedCalls<S>;

    fn layer(&self, inner: S) -> CountedCalls<S> {
        CountedCalls {
            inner,
            calls: self.clone(),
        }
    }
}

impl<S> Service<Request<Body>> for CountedCalls<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Admitted {
            caller,
            place,
            revoked,
        } = match self.calls.admit(&request) {
            Ok(admitted) => admitted,
            Err(refused) => {
                let refused = Status::from(refused).into_http();
                return Box::pin(std::future::ready(Ok(refused)));
            }
        };
        let share = Arc::new(self.calls.share(caller));
        let counting = Counting::of(request.uri().path());
        let mut request = request.map(|body| {
            Body::new(Messages {
                body,
                progress: MessageProgress::default(),
                counting,
                share: share.clone(),
                timeout: None,
            })
        });
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(HeldMessage(share.clone()));
        let answer = self.inner.call(request);
        Box::pin(async move {
            let is_revoked = async {
                match &revoked {
                    Some(revoked) => revoked.cancelled().await,
                    None => std::future::pending().await,
                }
            };
            let answer = tokio::select! {
                answer = answer => answer?,
                () = is_revoked => return Ok(Status::from(Failure::TokenRevoked).into_http()),
            };
            // The message has become an answer, or is held by the request that waits with it.
            drop(share);
            Ok(match unreadable(answer.headers()) {
                Some(failure) => Status::from(failure).into_http(),
                None => answer.map(|body| {
                    let revoked = revoked.map(|revoked| Box::pin(revoked.cancelled_owned()));
                    Body::new(Answer {
                        body: Some(body),
                        place,
                        revoked,
                    })
                }),
            })
        })
    }
}

/// A call that may be made.
pub(super) struct Admitted {
    pub(super) caller: Caller,
    pub(super) place: CallPlace,
    /// Cancelled when the token that it came with is revoked.
    revoked: Option<CancellationToken>,
}

impl Calls {
    /// What a message of this caller's will hold of the memory for messages.
    pub(super) fn share(&self, caller: Caller) -> Share {
        Share::new(self.account.clone(), caller)
    }

    /// Who makes the call, and a place for it.
    pub(super) fn admit<B>(&self, request: &Request<B>) -> Result<Admitted, Failure> {
        // Each connection of the daemon's has one.
        let peer: Option<&Arc<Peer>> = request.extensions().get();
        let peer = peer.ok_or(Failure::TooManyCalls)?;
        protocol::check(request.headers(), request.uri().path())?;
        let bearer = request.headers().get(AUTHORIZATION);
        let token = bearer.map(|value| {
            let text = value.to_str().unwrap_or_default();
            // Schemes have no case.
            let (scheme, token) = text.trim_start().split_once(' ').unwrap_or_default();
            match scheme.eq_ignore_ascii_case("Bearer") {
                true => token.trim(),
                false => "",
            }
        });
        let known = self.access.by_token(peer.caller, token);
        let (caller, revoked) = known.inspect_err(|_| peer.warn_of_token())?;
        permissions::check(caller, request.uri().path())?;
        let place = peer.call(caller).ok_or(Failure::TooManyCalls)?;
        Ok(Admitted {
            caller,
            place,
            revoked,
        })
    }
}

/// What was wrong with the message of a call, where the library could not read it. It says INTERNAL of bytes that are not
/// of the schema, such as text that isn't UTF-8, and OUT_OF_RANGE of too many.
fn unreadable(answer: &HeaderMap) -> Option<Failure> {
    let status = Status::from_header_map(answer)?;
    let said = status.message();
    match status.code() {
        Code::Internal => {
            let cause = said.strip_prefix("failed to decode Protobuf message: ")?;
            Some(Failure::MalformedMessage {
                cause: cause.to_owned(),
            })
        }
        Code::OutOfRange if said.contains("message length too large") => {
            Some(Failure::MessageTooLarge)
        }
        _ => None,
    }
}

/// The messages of a call on their way in.
struct Messages {
    body: Body,
    progress: MessageProgress,
    counting: Counting,
    share: Arc<Share>,
    /// Begun when somebody waits for a message or the rest of one.
    timeout: Option<Pin<Box<Sleep>>>,
}

/// Which messages of a call are counted until it is answered. Others are counted until they have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counting {
    /// The one that there is.
    One,
    /// The first. Chunks follow, which the call counts itself or writes to disk, and waits for.
    First,
    /// None: others may come at any time.
    None,
}

impl Counting {
    /// That of calls by their path.
    fn of(path: &str) -> Self {
        match path {
            "/sluice.v1.GenerationService/GenerateWithState"
            | "/sluice.v1.MemoryService/ImportSources" => Self::First,
            path if path.starts_with("/grpc.reflection.") => Self::None,
            _ => Self::One,
        }
    }
}

/// How far the present message is, in gRPC's framing.
#[derive(Debug, Default)]
struct MessageProgress {
    /// Flag and length.
    head: [u8; 5],
    head_bytes: usize,
    /// Bytes of the message still to come.
    left: usize,
    /// Bytes of it that came, its head included; 0 between messages.
    came: usize,
    /// Messages that are whole.
    whole: usize,
    /// Bytes of the first.
    first: usize,
    /// Bytes of all messages.
    all: usize,
}

impl MessageProgress {
    /// Looks at bytes that came.
    fn see(&mut self, mut bytes: &[u8]) {
        self.all += bytes.len();
        while !bytes.is_empty() {
            let now = match self.left {
                0 => {
                    let now = (self.head.len() - self.head_bytes).min(bytes.len());
                    self.head[self.head_bytes..][..now].copy_from_slice(&bytes[..now]);
                    self.head_bytes += now;
                    if self.head_bytes == self.head.len() {
                        self.head_bytes = 0;
                        let [_, length @ ..] = self.head;
                        self.left = u32::from_be_bytes(length) as usize;
                    }
                    now
                }
                left => {
                    let now = left.min(bytes.len());
                    self.left -= now;
                    now
                }
            };
            self.came += now;
            bytes = &bytes[now..];
            if self.left == 0 && self.head_bytes == 0 {
                let came = std::mem::take(&mut self.came);
                if self.whole == 0 {
                    self.first = came;
                }
                self.whole += 1;
            }
        }
    }

    /// Bytes that count by this rule.
    fn counted(&self, counting: Counting) -> usize {
        match counting {
            Counting::One => self.all,
            Counting::First => self.first + self.came,
            Counting::None => self.came,
        }
    }
}

impl HttpBody for Messages {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            // Where the first is counted for as long as the others come, they may not keep it waiting either.
            if self.counting == Counting::None && self.progress.came == 0 {
                return Poll::Pending;
            }
            let timeout = self
                .timeout
                .get_or_insert_with(|| Box::pin(sleep(MESSAGE_TIMEOUT)));
            ready!(timeout.as_mut().poll(cx));
            return Poll::Ready(Some(Err(Failure::MessageTimeout.into())));
        };
        let Some(came) = frame
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref())
        else {
            return Poll::Ready(frame);
        };
        let whole = self.progress.whole;
        self.progress.see(came);
        if self.progress.whole > whole {
            self.timeout = None;
        }
        let counted = self.progress.counted(self.counting);
        if let Err(full) = self.share.came(counted) {
            return Poll::Ready(Some(Err(full.into())));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// An answer on its way out; the call lasts as long as it does.
struct Answer {
    /// `None` once it was cut off, which ends what it is about.
    body: Option<Body>,
    place: CallPlace,
    /// Ready when the token that the call came with is revoked.
    revoked: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let own = &mut *self;
        let Some(body) = &mut own.body else {
            return Poll::Ready(None);
        };
        if let Some(revoked) = &mut own.revoked
            && revoked.as_mut().poll(cx).is_ready()
        {
            own.body = None;
            let mut trailers = HeaderMap::new();
            let refused = Status::from(Failure::TokenRevoked);
            let written = refused.add_header(&mut trailers);
            return Poll::Ready(Some(written.map(|()| Frame::trailers(trailers))));
        }
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            own.place.queued(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::{Instant, timeout};

    use super::*;

    /// Bytes, and then nothing for ever.
    struct Halting(Option<Bytes>);

    impl HttpBody for Halting {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            match self.0.take() {
                Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                None => Poll::Pending,
            }
        }
    }

    async fn frame(call: &mut Messages) -> Result<Frame<Bytes>, Status> {
        let frame = poll_fn(|cx| Pin::new(&mut *call).poll_frame(cx)).await;
        frame.expect("it has no end")
    }

    /// A call of which this has come.
    fn halting(bytes: &[u8], counting: Counting) -> Messages {
        Messages {
            body: Body::new(Halting(Some(Bytes::copy_from_slice(bytes)))),
            progress: MessageProgress::default(),
            counting,
            share: Arc::new(Share::new(Arc::default(), Caller::DAEMON)),
            timeout: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_counted_does_not_wait_long_for_the_next_message() {
        let whole = [0, 0, 0, 0, 3, 7, 7, 7];
        for counting in [Counting::One, Counting::First] {
            for bytes in [&whole[..], &whole[..6]] {
                let mut call = halting(bytes, counting);
                assert!(frame(&mut call).await.is_ok());
                let begun = Instant::now();
                let refused = frame(&mut call).await.unwrap_err();
                assert!(refused.message().contains("did not come within 20 s"));
                assert!(begun.elapsed() <= MESSAGE_TIMEOUT * 2, "{counting:?}");
            }
        }
        // Others are waited for, and hold nothing.
        let mut call = halting(&whole, Counting::None);
        assert!(frame(&mut call).await.is_ok());
        let more = timeout(MESSAGE_TIMEOUT * 9, frame(&mut call)).await;
        assert!(more.is_err());
    }

    #[test]
    fn messages_are_told_apart_wherever_they_are_cut() {
        let two = [
            &[0, 0, 0, 0, 3, 7, 7, 7][..],
            &[0, 0, 0, 0, 0],
            &[1, 0, 0, 1, 4],
        ]
        .concat();
        let all = [&two[..], &[9; 260]].concat();
        for piece in [1, 2, 5, 7, all.len()] {
            let mut progress = MessageProgress::default();
            let mut seen = 0;
            for bytes in all.chunks(piece) {
                seen += bytes.len();
                progress.see(bytes);
                let begun = [0, 8, 13].into_iter().rfind(|begun| *begun <= seen);
                let came = match seen == all.len() {
                    true => 0,
                    false => seen - begun.unwrap(),
                };
                let first = if seen < 8 { 0 } else { 8 };
                let counted =
                    [Counting::One, Counting::First, Counting::None].map(|by| progress.counted(by));
                assert_eq!(
                    counted,
                    [seen, first + came, came],
                    "{seen} bytes, by {piece}"
                );
            }
        }
    }
}
