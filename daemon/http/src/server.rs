//! Connections of HTTP/1.1.

use std::{convert::Infallible, future::poll_fn, pin::pin, sync::Arc, task::Poll};

use hyper::{
    Request,
    body::Incoming,
    header::{CONNECTION, HeaderValue, TRANSFER_ENCODING},
    http::Extensions,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::{
    body::Body,
    codegen::http::{Request as GrpcRequest, Response},
};
use tower::{Service, util::BoxCloneSyncService};

use crate::{
    door::Door,
    limits::{BUFFER_BYTES_MAX, HEADERS_MAX},
    patience::{PatientStream, Usage},
    presence::{self, RequestBody},
    routes::{HttpOptions, Routes},
    streaming::Counted,
};

/// Answers HTTP with the daemon's services. Clones share what they count.
#[derive(Debug, Clone)]
pub struct HttpFront(Routes);

impl HttpFront {
    /// A front of these services, which are behind what counts calls and checks who makes them, as `door` does.
    pub fn new<S>(services: S, door: Arc<dyn Door>, options: HttpOptions) -> Self
    where
        S: Service<GrpcRequest<Body>, Response = Response<Body>, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        let services = BoxCloneSyncService::new(services);
        Self(Routes::new(services, door, options))
    }

    /// Serves a connection to its end. `extensions` go with each call that is made for it. Once `closing` is done, the request
    /// under way is the last one.
    pub async fn serve<S>(
        self,
        stream: S,
        extensions: Extensions,
        closing: impl Future<Output = ()>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let usage = Usage::new();
        let (stream, client) = presence::watched(stream);
        let stream = TokioIo::new(PatientStream::new(stream, usage.clone()));
        let gone = poll_fn(|cx| match usage.is_answered() {
            true => client.poll_gone(cx),
            false => Poll::Pending,
        });
        let usage = usage.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (routes, extensions) = (self.0.clone(), extensions.clone());
            let (under_way, unread) = (usage.request(), usage.unread_body());
            let request = request.map(|body| RequestBody::new(body, unread));
            async move {
                let is_chunked = request.headers().contains_key(TRANSFER_ENCODING);
                let mut answer = routes.answer(&extensions, request).await;
                if is_chunked {
                    // A request that tells its length in two ways has lost one of them by now. A proxy before this may have
                    // believed the other, and take what follows for another request.
                    let close = HeaderValue::from_static("close");
                    answer.headers_mut().insert(CONNECTION, close);
                }
                Ok::<_, Infallible>(answer.map(|body| Counted::new(body, under_way)))
            }
        });
        let connection = http1::Builder::new()
            .max_headers(HEADERS_MAX)
            .max_buf_size(BUFFER_BYTES_MAX)
            .serve_connection(stream, service);
        let mut connection = pin!(connection);
        let (mut gone, mut closing) = (pin!(gone), pin!(closing));
        let mut is_closing = false;
        let ended = loop {
            tokio::select! {
                // What the connection does decides whether the client is looked for, so the connection goes first.
                biased;
                ended = &mut connection => break ended,
                // With the connection, its requests end.
                () = &mut gone => return,
                () = &mut closing, if !is_closing => {
                    connection.as_mut().graceful_shutdown();
                    is_closing = true;
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended badly");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        time::{sleep, timeout},
    };
    use tonic::Status;
    use tower::service_fn;

    use super::*;
    use crate::{door::OpenDoor, limits::KEEP_ALIVE_TIMEOUT};

    #[tokio::test(start_paused = true)]
    async fn a_request_that_comes_ahead_is_answered_in_its_turn() {
        let services = service_fn(|_: GrpcRequest<Body>| async {
            sleep(Duration::from_secs(5)).await;
            let refused: Response<Body> = Status::unimplemented("nobody is here").into_http();
            Ok::<_, Infallible>(refused)
        });
        let front = HttpFront::new(services, Arc::new(OpenDoor), HttpOptions::default());
        let (mut client, server) = duplex(1 << 20);
        let serving = front.serve(server, Extensions::new(), std::future::pending());
        let asking = async {
            let body = r#"{"messages":[{"role":"user","content":"a"}]}"#;
            let length = body.len();
            let first = format!(
                "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            let second = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            client.write_all(first.as_bytes()).await.unwrap();
            sleep(Duration::from_secs(1)).await;
            client.write_all(second.as_bytes()).await.unwrap();
            let mut answers = String::new();
            client.read_to_string(&mut answers).await.unwrap();
            answers
        };
        let (answers, ()) = tokio::join!(asking, serving);
        assert!(answers.starts_with("HTTP/1.1 501 "), "{answers}");
        assert!(
            answers.ends_with("\r\n\r\nsluiced is running\n"),
            "{answers}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_after_its_last_request_however_many_came_at_once() {
        let services = service_fn(|_: GrpcRequest<Body>| {
            let refused: Response<Body> = Status::unimplemented("nobody is here").into_http();
            std::future::ready(Ok::<_, Infallible>(refused))
        });
        let front = HttpFront::new(services, Arc::new(OpenDoor), HttpOptions::default());
        let request = |more: &str| {
            format!("POST /v1/none HTTP/1.1\r\nHost: a\r\n{more}Content-Length: 4\r\n\r\nbody")
        };
        for first in ["", "Expect: 100-continue\r\n"] {
            for count in 0..5 {
                let (mut client, server) = duplex(1 << 20);
                let closing = std::future::pending();
                let serving = front.clone().serve(server, Extensions::new(), closing);
                let asking = async {
                    let requests = request(first) + &request("").repeat(count);
                    client.write_all(requests.as_bytes()).await.unwrap();
                    let mut answers = String::new();
                    client.read_to_string(&mut answers).await.unwrap();
                    answers
                };
                let both = async { tokio::join!(asking, serving) };
                let (answers, ()) = timeout(2 * KEEP_ALIVE_TIMEOUT, both)
                    .await
                    .unwrap_or_else(|_| panic!("{first}{count}: it has no end"));
                assert_eq!(answers.matches("HTTP/1.1 404 ").count(), count + 1);
            }
        }
    }
}
