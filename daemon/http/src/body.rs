//! Reading a request's body, within its bound, and as far as the daemon has memory for its sender.

use http_body::Body;
use http_body_util::BodyExt;
use hyper::StatusCode;
use tokio::time::timeout;
use tonic::codegen::Bytes;

use crate::{
    door::Admission,
    failure::Failure,
    limits::{BODY_BYTES_MAX, BODY_TIMEOUT},
};

/// A whole body, which counts as a message as long as it is there.
pub(crate) struct HeldBody {
    bytes: Vec<u8>,
    admission: Box<dyn Admission>,
}

impl HeldBody {
    /// What came.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn add(&mut self, piece: &[u8]) -> Result<(), Failure> {
        let all = self.bytes.len() + piece.len();
        if all > BODY_BYTES_MAX {
            return Err(too_large());
        }
        self.admission.hold(all)?;
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}

/// The whole body, in time.
///
/// # Errors
/// When it is too large, too slow, or ends early, or there is no memory for it.
pub(crate) async fn read<B>(body: B, admission: Box<dyn Admission>) -> Result<HeldBody, Failure>
where
    B: Body<Data = Bytes> + Unpin,
{
    // Before any of it is read.
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let late = |_| {
        let seconds = BODY_TIMEOUT.as_secs();
        let message = format!("the request's body did not come within {seconds} s");
        Failure::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
    };
    timeout(BODY_TIMEOUT, gather(body, admission))
        .await
        .map_err(late)?
}

async fn gather<B>(mut body: B, admission: Box<dyn Admission>) -> Result<HeldBody, Failure>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut held = HeldBody {
        bytes: Vec::new(),
        admission,
    };
    while let Some(frame) = body.frame().await {
        let cut = |_| {
            let message = "the request's body ended early, or is not of HTTP/1.1's form";
            Failure::new(StatusCode::BAD_REQUEST, "broken_body", message)
        };
        // Trailers say nothing here.
        if let Some(piece) = frame.map_err(cut)?.data_ref() {
            held.add(piece)?;
        }
    }
    Ok(held)
}

fn too_large() -> Failure {
    let most = BODY_BYTES_MAX >> 20;
    let message = format!("the request's body has more than {most} MiB");
    Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        pin::Pin,
        task::{Context, Poll},
    };

    use futures_util::{StreamExt, stream};
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};
    use tonic::Status;

    use super::*;

    fn pieces(count: usize, bytes: usize) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        let piece = Bytes::from(vec![b' '; bytes]);
        let pieces = stream::iter(0..count).map(move |_| Ok(Frame::data(piece.clone())));
        StreamBody::new(pieces)
    }

    /// Memory for so many bytes.
    struct Room(usize);

    impl Admission for Room {
        fn hold(&self, bytes: usize) -> Result<(), Status> {
            match bytes > self.0 {
                true => Err(Status::resource_exhausted("full")),
                false => Ok(()),
            }
        }
    }

    fn room(bytes: usize) -> Box<dyn Admission> {
        Box::new(Room(bytes))
    }

    #[tokio::test]
    async fn a_body_is_bounded_however_its_length_is_told() {
        let whole = read(pieces(4, 1 << 20), room(usize::MAX)).await.unwrap();
        assert_eq!(whole.bytes().len(), BODY_BYTES_MAX);
        let told = Full::new(Bytes::from(vec![0; BODY_BYTES_MAX + 1]));
        for refused in [
            read(told, room(usize::MAX)).await,
            read(pieces(usize::MAX, 1 << 20), room(usize::MAX)).await,
        ] {
            let status = refused.err().map(|refused| refused.status);
            assert_eq!(status, Some(StatusCode::PAYLOAD_TOO_LARGE));
        }
    }

    #[tokio::test]
    async fn a_body_takes_no_memory_that_is_not_there() {
        let refused = read(pieces(4, 1 << 20), room(3 << 20)).await.err().unwrap();
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(read(pieces(3, 1 << 20), room(3 << 20)).await.is_ok());
    }

    /// A body that never comes.
    struct Silent;

    impl Body for Silent {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_not_waited_for() {
        let refused = read(Silent, room(0)).await.err().unwrap();
        assert_eq!(refused.status, StatusCode::REQUEST_TIMEOUT);
    }
}
