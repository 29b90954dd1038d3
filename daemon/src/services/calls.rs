//! A tower layer that tells who calls and whether the caller may, counts calls, and bounds what each receives and leaves
//! unread.

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use http_body::{Body as HttpBody, Frame};
use tokio::time::{Sleep, sleep};
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
    permissions,
};
use crate::{
    access::AccessRules,
    caller::{Caller, User},
    failure::Failure,
    limits::{MESSAGE_TIMEOUT, MESSAGES_BYTES_MAX, SMALL_MESSAGE_BYTES, USER_MESSAGES_BYTES_MAX},
};

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
        let Some(peer) = request.extensions().get::<Arc<Peer>>().cloned() else {
            return Box::pin(self.inner.call(request));
        };
        let (caller, place) = match self.calls.admit(&peer, &request) {
            Ok(admitted) => admitted,
            Err(refused) => {
                let refused = Status::from(refused).into_http();
                return Box::pin(std::future::ready(Ok(refused)));
            }
        };
        let share = Arc::new(Share {
            account: self.calls.account.clone(),
            user: caller.user,
            bytes: Mutex::new(0),
        });
        let mut request = request.map(|body| {
            Body::new(Message {
                body,
                received: 0,
                share: share.clone(),
                timeout: None,
            })
        });
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(HeldMessage(share.clone()));
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            // The message has become an answer, or is held by the request that waits with it.
            drop(share);
            Ok(match unreadable(answer.headers()) {
                Some(failure) => Status::from(failure).into_http(),
                None => answer.map(|body| Body::new(Answer { body, place })),
            })
        })
    }
}

impl Calls {
    /// The caller, and a place for the call.
    fn admit(
        &self,
        peer: &Arc<Peer>,
        request: &Request<Body>,
    ) -> Result<(Caller, CallPlace), Failure> {
        let bearer = request.headers().get(AUTHORIZATION);
        let token = bearer.map(|value| {
            let text = value.to_str().unwrap_or_default();
            text.strip_prefix("Bearer ").unwrap_or_default().trim()
        });
        let caller = self.access.by_token(peer.caller, token)?;
        permissions::check(caller, request.uri().path())?;
        let place = peer.call(caller).ok_or(Failure::TooManyCalls)?;
        Ok((caller, place))
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

/// Keeps a call's message counted, for a request that waits with it after the call was answered.
#[derive(Debug, Clone)]
pub(super) struct HeldMessage(#[expect(dead_code, reason = "its end counts")] Arc<Share>);

/// Bytes of messages that are being received or prepared, by user.
#[derive(Debug, Default)]
struct MessageAccount {
    held: Mutex<HashMap<User, usize>>,
}

/// What one call holds of the account.
#[derive(Debug)]
struct Share {
    account: Arc<MessageAccount>,
    user: User,
    bytes: Mutex<usize>,
}

impl Share {
    /// Takes so many bytes more.
    fn take(&self, bytes: usize) -> Result<(), Failure> {
        let mut held = self.account.lock();
        let all: usize = held.values().sum();
        let of_user = held.entry(self.user).or_default();
        if all + bytes > MESSAGES_BYTES_MAX || *of_user + bytes > USER_MESSAGES_BYTES_MAX {
            return Err(Failure::MessagesFull);
        }
        *of_user += bytes;
        *self.bytes.lock().unwrap_or_else(PoisonError::into_inner) += bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.account.lock();
        let bytes = *self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_user) = held.get_mut(&self.user) {
            *of_user -= bytes;
            if *of_user == 0 {
                held.remove(&self.user);
            }
        }
    }
}

impl MessageAccount {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<User, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message on its way in.
struct Message {
    body: Body,
    received: usize,
    share: Arc<Share>,
    /// Begun when somebody waits for it.
    timeout: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for Message {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            let timeout = self
                .timeout
                .get_or_insert_with(|| Box::pin(sleep(MESSAGE_TIMEOUT)));
            ready!(timeout.as_mut().poll(cx));
            return Poll::Ready(Some(Err(Failure::MessageTimeout.into())));
        };
        let came = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        let before = self.received;
        self.received += came;
        if came > 0 && self.received > SMALL_MESSAGE_BYTES {
            // The first counted frame brings along what came before it.
            let counted = match before > SMALL_MESSAGE_BYTES {
                true => came,
                false => self.received,
            };
            if let Err(full) = self.share.take(counted) {
                return Poll::Ready(Some(Err(full.into())));
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// An answer on its way out; the call lasts as long as it does.
struct Answer {
    body: Body,
    place: CallPlace,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            self.place.queued(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
