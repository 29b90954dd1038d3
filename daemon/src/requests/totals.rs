//! What all requests together did since the daemon started: counters and distributions of times.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use sluice_engine::event::PassCost;
use sluice_proto::v1;

use super::RequestEnd;

/// Upper bounds of the classes of times, in seconds: a token of a small model takes milliseconds, an answer of a large one
/// on a CPU takes an hour.
const BOUNDS_S: [f64; 17] = [
    0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
    7200.0,
];

/// How many times fell into each class, and their sum.
#[derive(Debug, Default)]
struct TimeDistribution {
    /// The last class has no upper bound.
    counts: [AtomicU64; BOUNDS_S.len() + 1],
    sum_us: AtomicU64,
}

impl TimeDistribution {
    fn add(&self, time: Duration) {
        let class = BOUNDS_S.partition_point(|bound| *bound < time.as_secs_f64());
        add(&self.counts[class], 1);
        add(&self.sum_us, time.as_micros() as u64);
    }

    fn to_wire(&self) -> v1::TimeDistribution {
        v1::TimeDistribution {
            upper_bounds_s: BOUNDS_S.to_vec(),
            counts: self.counts.iter().map(read).collect(),
            sum_s: read(&self.sum_us) as f64 / 1e6,
        }
    }
}

/// Counters since the daemon started.
#[derive(Debug, Default)]
pub struct RequestTotals {
    done: AtomicU64,
    cancelled: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    passes: AtomicU64,
    tokens_committed: AtomicU64,
    prompt_tokens: AtomicU64,
    streamed_bytes: AtomicU64,
    queue_time: TimeDistribution,
    first_token_time: TimeDistribution,
    request_time: TimeDistribution,
    pass_time: TimeDistribution,
    pass_waited: TimeDistribution,
}

impl RequestTotals {
    /// Counts a request that was not admitted.
    pub fn refused(&self) {
        add(&self.refused, 1);
    }

    /// Counts a request that the engine began with after it had waited for `queued`, and its prompt.
    pub fn started(&self, queued: Duration, prompt_tokens: usize) {
        self.queue_time.add(queued);
        add(&self.prompt_tokens, prompt_tokens as u64);
    }

    /// Counts the time from a request to its first token.
    pub fn first_token(&self, after: Duration) {
        self.first_token_time.add(after);
    }

    /// Counts a request's part in a pass, and the tokens that the pass committed for it.
    pub fn pass(&self, cost: &PassCost, committed: u64) {
        add(&self.passes, 1);
        add(&self.tokens_committed, committed);
        // The others that shared the pass count the rest.
        let share = cost.streamed_bytes / cost.batch_requests.max(1) as u64;
        add(&self.streamed_bytes, share);
        self.pass_time.add(cost.time);
        self.pass_waited.add(cost.waited);
    }

    pub(super) fn ended(&self, ending: &RequestEnd, age: Duration) {
        match ending {
            RequestEnd::Done(_) => {
                add(&self.done, 1);
                self.request_time.add(age);
            }
            RequestEnd::Cancelled => add(&self.cancelled, 1),
            RequestEnd::Failed(_) => add(&self.failed, 1),
        }
    }

    /// The counters as a wire message.
    #[must_use]
    pub fn to_wire(&self) -> v1::RequestTotals {
        v1::RequestTotals {
            done_requests: read(&self.done),
            cancelled_requests: read(&self.cancelled),
            failed_requests: read(&self.failed),
            refused_requests: read(&self.refused),
            passes: read(&self.passes),
            committed_tokens: read(&self.tokens_committed),
            prompt_tokens: read(&self.prompt_tokens),
            streamed_bytes: read(&self.streamed_bytes),
            queue_time: Some(self.queue_time.to_wire()),
            first_token_time: Some(self.first_token_time.to_wire()),
            request_time: Some(self.request_time.to_wire()),
            pass_time: Some(self.pass_time.to_wire()),
            pass_waited: Some(self.pass_waited.to_wire()),
        }
    }
}

/// Relaxed: counters for people, which order no other memory.
fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_counted_in_the_class_that_it_does_not_exceed() {
        let times = TimeDistribution::default();
        for ms in [0, 2, 3, 10_000_000] {
            times.add(Duration::from_millis(ms));
        }
        let wire = times.to_wire();
        assert_eq!(wire.counts.len(), wire.upper_bounds_s.len() + 1);
        assert_eq!(wire.counts[..3], [2, 1, 0]);
        assert_eq!(wire.counts.last(), Some(&1));
        assert_eq!(wire.counts.iter().sum::<u64>(), 4);
        assert_eq!(wire.sum_s, 10_000.005);
    }

    #[test]
    fn a_shared_pass_counts_its_streamed_bytes_once() {
        let totals = RequestTotals::default();
        let cost = PassCost {
            batch_requests: 4,
            streamed_bytes: 400,
            ..PassCost::default()
        };
        for _ in 0..4 {
            totals.pass(&cost, 2);
        }
        let wire = totals.to_wire();
        assert_eq!(wire.streamed_bytes, 400);
        assert_eq!((wire.passes, wire.committed_tokens), (4, 8));
    }
}
