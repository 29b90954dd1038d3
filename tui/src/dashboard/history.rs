//! Samples of the last minutes, for graphs.

use std::collections::VecDeque;

use sluice_proto::v1::Snapshot;

/// Least time between two samples.
pub const SAMPLE_MS: u64 = 500;
/// Samples kept: five minutes.
pub const SAMPLES_MAX: usize = 600;

/// Samples further apart than this have a gap between them.
const GAP_MS: u64 = 3 * SAMPLE_MS;

/// Figures at one time. Figures that were not known are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sample {
    /// Milliseconds on the dashboard's clock.
    pub at_ms: u64,
    /// Bytes that Sluice held on the device.
    pub device_bytes: Option<u64>,
    /// Bytes of the host's memory in use by all processes.
    pub host_bytes: Option<u64>,
    /// Tokens committed a second, for all requests together, since the sample before.
    pub tokens_a_second: Option<f64>,
    /// Bytes of weights streamed a second, since the sample before.
    pub streamed_a_second: Option<f64>,
    /// Time of the last pass.
    pub pass_ms: Option<f64>,
}

/// The samples of the last minutes, the earliest first.
#[derive(Debug, Default)]
pub struct History {
    samples: VecDeque<Sample>,
    before: Option<CounterSample>,
}

/// Counters of the daemon, which grow until it restarts or its plan changes.
#[derive(Debug, Clone, Copy)]
struct CounterSample {
    at_ms: u64,
    tokens: Option<u64>,
    streamed_bytes: Option<u64>,
}

impl History {
    /// Samples a snapshot, unless it comes sooner than [`SAMPLE_MS`] after the last sample.
    pub fn take(&mut self, snapshot: &Snapshot, now_ms: u64) {
        let last = self.samples.back().map(|sample| sample.at_ms);
        if last.is_some_and(|at_ms| now_ms.saturating_sub(at_ms) < SAMPLE_MS) {
            return;
        }
        let counts = CounterSample {
            at_ms: now_ms,
            tokens: snapshot
                .totals
                .as_ref()
                .map(|totals| totals.committed_tokens),
            streamed_bytes: snapshot.passes.map(|measured| measured.streamed_bytes),
        };
        let before = self.before.replace(counts);
        // Across a gap, growth would be averaged over time in which nothing was seen.
        let before = before.filter(|before| now_ms - before.at_ms <= GAP_MS);
        let rate = |count: fn(&CounterSample) -> Option<u64>| {
            let before = before.as_ref()?;
            let seconds = (now_ms - before.at_ms) as f64 / 1000.0;
            // A counter that fell was reset, by a restart or a new plan.
            let grown = count(&counts)?.checked_sub(count(before)?)?;
            Some(grown as f64 / seconds)
        };
        let host = snapshot.host.unwrap_or_default();
        let host = host.total_bytes.zip(host.available_bytes);
        self.samples.push_back(Sample {
            at_ms: now_ms,
            device_bytes: snapshot.device.as_ref().map(|device| device.used_bytes),
            host_bytes: host.map(|(total, available)| total.saturating_sub(available)),
            tokens_a_second: rate(|counts| counts.tokens),
            streamed_a_second: rate(|counts| counts.streamed_bytes),
            pass_ms: snapshot.passes.and_then(|measured| measured.last_ms),
        });
        let excess = self.samples.len().saturating_sub(SAMPLES_MAX);
        self.samples.drain(..excess);
    }

    /// Time from the first sample to `at_ms`; 0 without samples.
    #[must_use]
    pub fn age_ms(&self, at_ms: u64) -> u64 {
        let first = self.samples.front();
        first.map_or(0, |first| at_ms.saturating_sub(first.at_ms))
    }

    /// The maximum of a figure in each of `count` equal parts of the `span_ms` before `until_ms`, the earliest first; `None` for
    /// parts without a measurement.
    #[must_use]
    pub fn parts(
        &self,
        until_ms: u64,
        span_ms: u64,
        count: usize,
        figure: impl Fn(&Sample) -> Option<f64>,
    ) -> Vec<Option<f64>> {
        let count = count.max(1);
        let part_ms = (span_ms / count as u64).max(1);
        // Parts end at multiples of their length. Ends that moved with the clock would regroup the samples, and peaks would
        // flicker.
        let end_ms = until_ms.div_ceil(part_ms) * part_ms;
        let mut parts = vec![None; count];
        let mut later = self
            .samples
            .iter()
            .filter(|s| s.at_ms <= until_ms)
            .peekable();
        let mut known: Option<&Sample> = None;
        for (index, part) in parts.iter_mut().enumerate() {
            let back = (count - 1 - index) as u64 * part_ms;
            let Some(to_ms) = end_ms.checked_sub(back) else {
                continue;
            };
            let mut most: Option<f64> = None;
            while let Some(sample) = later.next_if(|sample| sample.at_ms <= to_ms) {
                known = Some(sample);
                if sample.at_ms + part_ms > to_ms {
                    most = most.into_iter().chain(figure(sample)).reduce(f64::max);
                }
            }
            // Parts shorter than the sampling interval repeat the last sample, so that the graph has no holes.
            let last = known.filter(|sample| to_ms.saturating_sub(sample.at_ms) <= GAP_MS);
            *part = most.or_else(|| last.and_then(&figure));
        }
        parts
    }

    /// The latest sample.
    #[must_use]
    pub fn latest(&self) -> Option<&Sample> {
        self.samples.back()
    }
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::{PassStatistics, RequestTotals};

    use super::*;

    fn snapshot(tokens: u64, streamed_bytes: u64) -> Snapshot {
        Snapshot {
            totals: Some(RequestTotals {
                committed_tokens: tokens,
                ..Default::default()
            }),
            passes: Some(PassStatistics {
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
    fn time_that_nobody_saw_leaves_a_gap() {
        let mut history = History::default();
        for at in [0, 500, 1_000, 9_000, 9_500] {
            history.take(&snapshot(at, at), at);
        }
        let tokens = history.parts(10_000, 10_000, 10, |sample| sample.tokens_a_second);
        let known: Vec<bool> = tokens.iter().map(Option::is_some).collect();
        // The first sample of each stretch has nothing to be compared with.
        assert_eq!(known[..2], [true, true]);
        assert_eq!(known[3..8], [false; 5]);
        assert!(known[9]);
        assert_eq!(tokens[0], Some(1_000.0));
    }

    #[test]
    fn only_so_many_samples_are_kept() {
        let mut history = History::default();
        for at in 0..2_000 {
            history.take(&snapshot(at, at), at * 1_000);
        }
        assert_eq!(history.samples.len(), SAMPLES_MAX);
        assert_eq!(history.age_ms(1_999_000), 599_000);
    }
}
