//! What was measured over the last minutes, for graphs.

use std::collections::VecDeque;

use sluice_proto::v1::Snapshot;

/// Least time between two samples.
pub const SAMPLE_MS: u64 = 500;
/// Samples kept: five minutes.
pub const SAMPLES_MAX: usize = 600;

/// What was so at one time. What was not known is unset.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sample {
    /// On the dashboard's clock.
    pub at_ms: u64,
    /// Bytes that Sluice held on the device.
    pub device_bytes: Option<u64>,
    /// Bytes of the host's memory in use, by whomever.
    pub host_bytes: Option<u64>,
    /// Tokens committed a second, for all requests together, since the sample before.
    pub tokens_a_second: Option<f64>,
    /// Bytes of weights streamed a second, since the sample before.
    pub streamed_a_second: Option<f64>,
    /// The last pass's time.
    pub pass_ms: Option<f64>,
}

/// The samples of the last minutes, the earliest first.
#[derive(Debug, Default)]
pub struct History {
    samples: VecDeque<Sample>,
    before: Option<Counts>,
}

/// Counts that only grow while the daemon, and its plan, stay the same.
#[derive(Debug, Clone, Copy)]
struct Counts {
    at_ms: u64,
    tokens: u64,
    streamed_bytes: Option<u64>,
}

impl History {
    /// Takes in a snapshot; one too soon after the last is passed over.
    pub fn take(&mut self, snapshot: &Snapshot, now_ms: u64) {
        let last = self.samples.back().map(|sample| sample.at_ms);
        if last.is_some_and(|at_ms| now_ms.saturating_sub(at_ms) < SAMPLE_MS) {
            return;
        }
        let counts = Counts {
            at_ms: now_ms,
            tokens: snapshot.totals.map_or(0, |totals| totals.tokens_committed),
            streamed_bytes: snapshot.measured.map(|measured| measured.streamed_bytes),
        };
        let before = self.before.replace(counts);
        let rate = |after: u64, count: fn(&Counts) -> Option<u64>| {
            let before = before.as_ref()?;
            let seconds = (now_ms - before.at_ms) as f64 / 1000.0;
            // Less than before: somebody began to count anew.
            let grown = after.checked_sub(count(before)?)?;
            Some(grown as f64 / seconds)
        };
        let host = snapshot.host.unwrap_or_default();
        let host = host.total_bytes.zip(host.available_bytes);
        self.samples.push_back(Sample {
            at_ms: now_ms,
            device_bytes: snapshot.device.as_ref().map(|device| device.used_bytes),
            host_bytes: host.map(|(total, available)| total.saturating_sub(available)),
            tokens_a_second: rate(counts.tokens, |counts| Some(counts.tokens)),
            streamed_a_second: counts
                .streamed_bytes
                .and_then(|bytes| rate(bytes, |counts| counts.streamed_bytes)),
            pass_ms: snapshot.measured.and_then(|measured| measured.last_pass_ms),
        });
        let excess = self.samples.len().saturating_sub(SAMPLES_MAX);
        self.samples.drain(..excess);
    }

    /// The samples up to a time, the earliest first.
    pub fn until(&self, at_ms: u64) -> impl DoubleEndedIterator<Item = &Sample> {
        self.samples
            .iter()
            .filter(move |sample| sample.at_ms <= at_ms)
    }

    /// The latest sample.
    #[must_use]
    pub fn latest(&self) -> Option<&Sample> {
        self.samples.back()
    }
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::{Measured, Totals};

    use super::*;

    fn snapshot(tokens: u64, streamed_bytes: u64) -> Snapshot {
        Snapshot {
            totals: Some(Totals {
                tokens_committed: tokens,
                ..Default::default()
            }),
            measured: Some(Measured {
                streamed_bytes,
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn rates_are_what_grew_between_samples() {
        let mut history = History::default();
        history.take(&snapshot(10, 1_000), 0);
        assert_eq!(history.latest().unwrap().tokens_a_second, None);
        // Too soon: not looked at.
        history.take(&snapshot(99, 9_000), 100);
        history.take(&snapshot(30, 3_000), 1_000);
        let sample = history.latest().unwrap();
        assert_eq!(sample.tokens_a_second, Some(20.0));
        assert_eq!(sample.streamed_a_second, Some(2_000.0));
        // A plan put in force begins its count anew.
        history.take(&snapshot(31, 0), 2_000);
        assert_eq!(history.latest().unwrap().streamed_a_second, None);
        assert_eq!(history.latest().unwrap().tokens_a_second, Some(1.0));
    }

    #[test]
    fn only_so_many_samples_are_kept() {
        let mut history = History::default();
        for at in 0..2_000 {
            history.take(&snapshot(at, at), at * 1_000);
        }
        assert_eq!(history.until(u64::MAX).count(), SAMPLES_MAX);
        assert_eq!(
            history.until(1_500_000).next_back().unwrap().at_ms,
            1_500_000
        );
    }
}
