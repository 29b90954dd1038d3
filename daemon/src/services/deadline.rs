//! The caller's deadline: `grpc-timeout` holds for the whole call, its stream included.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, timeout_at};
use tonic::metadata::MetadataMap;

use crate::failure::Failure;

/// tonic races the head of an answer against the same header and would say CANCELLED; being
/// this much earlier lets ours say DEADLINE_EXCEEDED.
const HEAD_START: Duration = Duration::from_millis(3);

/// When a call must be over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    at: Instant,
    allowed: Duration,
}

impl Deadline {
    /// The one that the caller gave, if any. One that cannot be read is as good as none.
    pub(super) fn of(metadata: &MetadataMap) -> Option<Self> {
        let allowed = parse(metadata.get("grpc-timeout")?.to_str().ok()?)?;
        let at = Instant::now().checked_add(allowed)?;
        Some(Self { at, allowed })
    }

    /// Waits until it has passed; for ever without one.
    pub(super) async fn passed(deadline: Option<Self>) -> Failure {
        match deadline {
            Some(deadline) => {
                tokio::time::sleep_until(deadline.at).await;
                deadline.failure()
            }
            None => std::future::pending().await,
        }
    }

    /// Lets `work` go on until the deadline.
    pub(super) async fn limit<T, E: From<Failure>>(
        deadline: Option<Self>,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let Some(deadline) = deadline else {
            return work.await;
        };
        let at = deadline.at.checked_sub(HEAD_START).unwrap_or(deadline.at);
        timeout_at(at, work)
            .await
            .unwrap_or_else(|_| Err(deadline.failure().into()))
    }

    fn failure(self) -> Failure {
        Failure::DeadlineExceeded {
            deadline: self.allowed,
        }
    }
}

/// Up to eight digits and a unit, as gRPC writes it.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    if digits.len() > 8 || !all_digits {
        return None;
    }
    let count = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        assert_eq!(parse("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(parse("250m"), Some(Duration::from_millis(250)));
        assert_eq!(parse("99999999n"), Some(Duration::from_nanos(99_999_999)));
        for wrong in ["", "S", "1", "123456789S", "-1S", "1s", "1\u{e9}"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
