//! Calls that the daemon refuses for want of room, and connections that the system refuses, are tried again within a bound.

use std::{io, time::Duration};

use tonic::{Code, Status};
use tonic_types::StatusExt;

/// How often a refused call is made again: with delays that double from half a second up to [`DELAY_MAX`], for about a minute.
const RETRIES_MAX: u32 = 8;
/// Longest pause between two attempts.
const DELAY_MAX: Duration = Duration::from_secs(16);

/// Makes a call, again after a pause where the daemon has no room for it (`RESOURCE_EXHAUSTED`) and says when to retry.
///
/// # Errors
/// Those of the last attempt.
pub async fn when_there_is_room<T, F>(mut call: impl FnMut() -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let mut retries = 0;
    loop {
        let status = match call().await {
            Err(status) if retries < RETRIES_MAX => status,
            answer => return answer,
        };
        let Some(delay) = delay(&status, retries) else {
            return Err(status);
        };
        tokio::time::sleep(delay).await;
        retries += 1;
    }
}

/// How long a connection is tried for while the daemon has no place for it.
pub(super) const CONNECT_WAIT: Duration = Duration::from_secs(60);
/// Pause between two such attempts.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// Opens a connection, again while the daemon has no place for it (`WouldBlock`). Nobody is told when there is one.
pub(super) async fn while_busy<T, F>(open: impl Fn() -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let mut waited = Duration::ZERO;
    loop {
        match open().await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && waited < CONNECT_WAIT => {
                tokio::time::sleep(CONNECT_PAUSE).await;
                waited += CONNECT_PAUSE;
            }
            opened => return opened,
        }
    }
}

/// The pause before another attempt; `None` where it would be refused again.
fn delay(status: &Status, retries: u32) -> Option<Duration> {
    if status.code() != Code::ResourceExhausted {
        return None;
    }
    let first = status.get_details_retry_info()?.retry_delay?;
    Some(first.saturating_mul(1 << retries).min(DELAY_MAX))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tonic_types::ErrorDetails;

    use super::*;

    fn refusal(code: Code, delay: Option<Duration>) -> Status {
        let mut details = ErrorDetails::new();
        if delay.is_some() {
            details.set_retry_info(delay);
        }
        Status::with_error_details(code, "full", details)
    }

    /// The answer to a call that is refused so often, and how often it was made.
    async fn called(refusals: u32, refusal: Status) -> (Result<(), Status>, u32) {
        let calls = Cell::new(0);
        let answer = when_there_is_room(|| {
            calls.set(calls.get() + 1);
            std::future::ready(match calls.get() > refusals {
                true => Ok(()),
                false => Err(refusal.clone()),
            })
        });
        let answer = answer.await;
        (answer, calls.get())
    }

    #[tokio::test]
    async fn what_is_refused_for_want_of_room_is_tried_again_within_a_bound() {
        let soon = Some(Duration::from_millis(1));
        let full = || refusal(Code::ResourceExhausted, soon);
        let (answer, calls) = called(3, full()).await;
        assert!(answer.is_ok() && calls == 4);
        let (answer, calls) = called(u32::MAX, full()).await;
        assert!(answer.is_err() && calls == RETRIES_MAX + 1);
        // Of others the daemon does not say that they pass, or they pass in their own time.
        for other in [
            refusal(Code::ResourceExhausted, None),
            refusal(Code::Unavailable, soon),
        ] {
            let (answer, calls) = called(1, other).await;
            assert!(answer.is_err() && calls == 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_backlog_is_waited_for_within_a_bound() {
        let tries = Cell::new(0);
        let open = |busy: u32, kind: io::ErrorKind| {
            tries.set(0);
            let tries = &tries;
            while_busy(move || {
                tries.set(tries.get() + 1);
                std::future::ready(match tries.get() > busy {
                    true => Ok(()),
                    false => Err(io::Error::from(kind)),
                })
            })
        };
        open(9, io::ErrorKind::WouldBlock).await.unwrap();
        assert_eq!(tries.get(), 10);
        assert!(open(u32::MAX, io::ErrorKind::WouldBlock).await.is_err());
        assert_eq!(tries.get(), 1201);
        assert!(open(1, io::ErrorKind::NotFound).await.is_err());
    }

    #[test]
    fn pauses_double_up_to_a_bound() {
        let full = refusal(Code::ResourceExhausted, Some(Duration::from_millis(500)));
        let all = (0..RETRIES_MAX).map(|retries| delay(&full, retries).unwrap().as_millis());
        let all: Vec<_> = all.collect();
        assert_eq!(all, [500, 1000, 2000, 4000, 8000, 16000, 16000, 16000]);
    }
}
