//! Reading a request's body, within bounds of its own and of all together.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use http_body::Body;
use http_body_util::BodyExt;
use hyper::StatusCode;
use tokio::time::timeout;
use tonic::codegen::Bytes;

use crate::{
    failure::Failure,
    limits::{BODIES_BYTES_MAX, BODY_BYTES_MAX, BODY_TIMEOUT, SMALL_BODY_BYTES},
};

/// Bytes of all bodies that are held.
#[derive(Debug, Default)]
pub(crate) struct BodyAccount(AtomicUsize);

/// A whole body, which counts as long as it is there.
#[derive(Debug)]
pub(crate) struct HeldBody {
    bytes: Vec<u8>,
    counted: usize,
    account: Arc<BodyAccount>,
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
        if all > SMALL_BODY_BYTES {
            let more = all - self.counted;
            let count = |held: usize| Some(held + more).filter(|held| *held <= BODIES_BYTES_MAX);
            let held = &self.account.0;
            held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count)
                .map_err(|_| full())?;
            self.counted = all;
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}

impl Drop for HeldBody {
    fn drop(&mut self) {
        self.account.0.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

/// The whole body, in time.
///
/// # Errors
/// When it is too large, too slow, or ends early, or all bodies together are too large.
pub(crate) async fn read<B>(body: B, account: &Arc<BodyAccount>) -> Result<HeldBody, Failure>
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
    timeout(BODY_TIMEOUT, gather(body, account))
        .await
        .map_err(late)?
}

async fn gather<B>(mut body: B, account: &Arc<BodyAccount>) -> Result<HeldBody, Failure>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut held = HeldBody {
        bytes: Vec::new(),
        counted: 0,
        account: account.clone(),
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

fn full() -> Failure {
    let message = "other requests' bodies take all the memory that there is for them; try again";
    Failure {
        retry_after_s: Some(1),
        ..Failure::new(StatusCode::TOO_MANY_REQUESTS, "bodies_full", message)
    }
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

    use super::*;

    fn pieces(count: usize, bytes: usize) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        let piece = Bytes::from(vec![b' '; bytes]);
        let pieces = stream::iter(0..count).map(move |_| Ok(Frame::data(piece.clone())));
        StreamBody::new(pieces)
    }

    #[tokio::test]
    async fn a_body_is_bounded_however_its_length_is_told() {
        let account = Arc::default();
        let whole = read(pieces(4, 1 << 20), &account).await.unwrap();
        assert_eq!(whole.bytes().len(), BODY_BYTES_MAX);
        let told = Full::new(Bytes::from(vec![0; BODY_BYTES_MAX + 1]));
        for refused in [
            read(told, &account).await.unwrap_err(),
            read(pieces(usize::MAX, 1 << 20), &account)
                .await
                .unwrap_err(),
        ] {
            assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
        }
        assert_eq!(account.0.load(Ordering::Relaxed), BODY_BYTES_MAX);
        drop(whole);
        assert_eq!(account.0.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn all_bodies_together_are_bounded_and_small_ones_come_through() {
        let account = Arc::default();
        let mut held = Vec::new();
        let refused = loop {
            match read(pieces(4, 1 << 20), &account).await {
                Ok(body) => held.push(body),
                Err(refused) => break refused,
            }
        };
        assert_eq!(held.len(), BODIES_BYTES_MAX / BODY_BYTES_MAX);
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(refused.retry_after_s.is_some());
        assert!(read(pieces(1, SMALL_BODY_BYTES), &account).await.is_ok());
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
        let refused = read(Silent, &Arc::default()).await.unwrap_err();
        assert_eq!(refused.status, StatusCode::REQUEST_TIMEOUT);
    }
}
