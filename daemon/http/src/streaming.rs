//! Answers that come in pieces: server-sent events, and lines of JSON.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{Stream, StreamExt, stream};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{Full, StreamBody};
use hyper::{
    Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue},
};
use serde::Serialize;
use tokio::time::timeout;
use tonic::{Status, body::Body, codegen::Bytes};

use crate::{limits::HEARTBEAT_INTERVAL, patience::RequestUnderWay};

/// An answer to a request.
pub(crate) type Answer = Response<Body>;

/// A whole answer of JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    of_type(
        "application/json",
        status,
        Full::new(Bytes::from(written(value))),
    )
}

/// A whole answer of text.
pub(crate) fn text(kind: &'static str, text: impl Into<Bytes>) -> Answer {
    of_type(kind, StatusCode::OK, Full::new(text.into()))
}

/// JSON, which cannot fail: keys are strings, and nothing is done while it is written.
fn written(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("these types are JSON")
}

/// A server-sent event.
pub(crate) fn event(value: &impl Serialize) -> String {
    format!("data: {}\n\n", written(value))
}

/// The event that ends a stream of OpenAI's API.
pub(crate) const LAST_EVENT: &str = "data: [DONE]\n\n";

/// A line of JSON.
pub(crate) fn line(value: &impl Serialize) -> String {
    written(value) + "\n"
}

/// An answer of server-sent events.
pub(crate) fn events(events: impl Stream<Item = String> + Send + 'static) -> Answer {
    pieces("text/event-stream", ": waiting\n\n", events)
}

/// An answer of lines of JSON.
pub(crate) fn lines(lines: impl Stream<Item = String> + Send + 'static) -> Answer {
    // Clients read each line as JSON, even an empty one, and JSON may have spaces before it.
    pieces("application/x-ndjson", " ", lines)
}

/// An answer in pieces, with a sign of life whenever there is none for a while.
fn pieces(
    kind: &'static str,
    sign_of_life: &'static str,
    pieces: impl Stream<Item = String> + Send + 'static,
) -> Answer {
    let pieces = stream::unfold(Box::pin(pieces), move |mut pieces| async move {
        let piece = match timeout(HEARTBEAT_INTERVAL, pieces.next()).await {
            Ok(piece) => piece?,
            Err(_) => sign_of_life.to_owned(),
        };
        Some((piece, pieces))
    });
    let frames = pieces.map(|piece| Ok::<_, Status>(Frame::data(Bytes::from(piece))));
    let mut answer = of_type(kind, StatusCode::OK, StreamBody::new(frames));
    let no_cache = HeaderValue::from_static("no-cache");
    answer.headers_mut().insert(CACHE_CONTROL, no_cache);
    // nginx would gather the events of an answer otherwise.
    let unbuffered = HeaderValue::from_static("no");
    answer.headers_mut().insert("x-accel-buffering", unbuffered);
    answer
}

fn of_type<B>(kind: &'static str, status: StatusCode, body: B) -> Answer
where
    B: HttpBody<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static,
{
    let mut answer = Response::new(Body::new(body));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

/// The body of an answer, whose request is under way until it is written or nobody wants it.
pub(crate) struct Counted {
    body: Body,
    _under_way: RequestUnderWay,
}

impl Counted {
    pub(crate) fn new(body: Body, under_way: RequestUnderWay) -> Self {
        Self {
            body,
            _under_way: under_way,
        }
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use serde_json::{Value, json};
    use tokio::time::sleep;

    use super::*;

    /// What comes of an answer whose one piece takes this long.
    async fn body(answer: fn(SlowPiece) -> Answer, piece: String) -> String {
        let wait = HEARTBEAT_INTERVAL * 5 / 2;
        let pieces = stream::once(async move {
            sleep(wait).await;
            piece
        });
        let body = answer(pieces.boxed()).into_body().collect().await.unwrap();
        String::from_utf8(body.to_bytes().to_vec()).unwrap()
    }

    type SlowPiece = Pin<Box<dyn Stream<Item = String> + Send>>;

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_told_so_in_a_way_that_clients_pass_over() {
        let value = json!({"done": true});
        let told = body(events, event(&value)).await;
        assert_eq!(told, ": waiting\n\n: waiting\n\ndata: {\"done\":true}\n\n");
        let told = body(lines, line(&value)).await;
        assert_eq!(told, "  {\"done\":true}\n");
        let read: Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
        assert_eq!(read, value);
    }
}
