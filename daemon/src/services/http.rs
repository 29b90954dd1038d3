//! The port that serves HTTP: connections of peers, and the daemon's services behind them.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::StreamExt;
use http_body::{Body as HttpBody, Frame};
use sluice_http::{
    Admission as BodyAdmission, Door, Health, HttpFront, HttpOptions, limits::LABELLED_MODELS_MAX,
};
use sluice_proto::v1::DaemonState;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::{
    Status,
    body::Body,
    codegen::{
        Bytes,
        http::{Extensions, Request, Response},
    },
};
use tower::Service;

use super::{
    Daemon, HttpPort,
    calls::{Admitted, Calls},
    incoming::{Admission, CallPlace, Peer, http_connections},
    messages::Share,
};
use crate::limits::LOADED_MODELS_MAX;

// Metrics tell of each model that may be in memory.
const _: () = assert!(LABELLED_MODELS_MAX == LOADED_MODELS_MAX);

/// Serves until `closing` is cancelled and the last connection has ended. `services` are those that gRPC has.
pub(super) async fn serve<S>(
    port: Option<HttpPort>,
    admission: Admission,
    services: S,
    door: DaemonDoor,
    closing: CancellationToken,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    let Some(HttpPort {
        port,
        origins,
        has_tokens,
    }) = port
    else {
        return;
    };
    let options = HttpOptions {
        origins,
        has_tokens,
    };
    let front = HttpFront::new(Taking(services), Arc::new(door), options);
    let mut connections = std::pin::pin!(http_connections(port, admission));
    let mut served = JoinSet::new();
    loop {
        tokio::select! {
            () = closing.cancelled() => break,
            // Without this, what each leaves behind would be kept until the end.
            Some(_) = served.join_next(), if !served.is_empty() => {}
            Some(connection) = connections.next() => {
                let mut extensions = Extensions::new();
                extensions.insert(connection.peer().clone());
                let closing = closing.clone().cancelled_owned();
                served.spawn(front.clone().serve(connection, extensions, closing));
            }
        }
    }
    while served.join_next().await.is_some() {}
}

/// What HTTP asks of the daemon outside of calls.
pub(super) struct DaemonDoor {
    pub(super) daemon: Arc<Daemon>,
    pub(super) calls: Calls,
}

impl fmt::Debug for DaemonDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DaemonDoor")
    }
}

impl Door for DaemonDoor {
    fn admit(&self, call: &Request<()>) -> Result<Box<dyn BodyAdmission>, Status> {
        let Admitted { caller, place, .. } = self.calls.admit(call)?;
        let share = self.calls.share(caller);
        Ok(Box::new(ComingBody {
            share,
            _place: place,
        }))
    }

    fn health(&self) -> Health {
        match self.daemon.state() {
            DaemonState::Draining => Health::Draining,
            _ if self.daemon.stall.get().is_some() => Health::Stuck,
            DaemonState::Ready => Health::Ready,
            // A request wakes a model, or has one loaded.
            _ if self.daemon.models.serves() => Health::Ready,
            DaemonState::Loading => Health::Loading,
            DaemonState::NoModel | DaemonState::Unspecified => Health::NoModel,
        }
    }
}

/// A body on its way in or being read: it has the place of a call, and counts as its message.
struct ComingBody {
    share: Share,
    _place: CallPlace,
}

impl BodyAdmission for ComingBody {
    fn hold(&self, bytes: usize) -> Result<(), Status> {
        Ok(self.share.came(bytes)?)
    }
}

/// Services whose answers are taken as soon as they are there: what is written for a client is the front's, which bounds it.
#[derive(Debug, Clone)]
struct Taking<S>(S);

impl<S> Service<Request<Body>> for Taking<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, call: Request<Body>) -> Self::Future {
        let peer = call.extensions().get().cloned();
        let answer = self.0.call(call);
        Box::pin(async move {
            let answer = answer.await?;
            Ok(match peer {
                Some(peer) => answer.map(|body| Body::new(Taken { body, peer })),
                None => answer,
            })
        })
    }
}

/// The body of an answer that counts as read when it is handed on.
struct Taken {
    body: Body,
    peer: Arc<Peer>,
}

impl HttpBody for Taken {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            self.peer.sent(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
