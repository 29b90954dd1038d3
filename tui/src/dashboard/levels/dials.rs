//! What the positions of the dial came to, in requests that ended before our eyes.

use std::collections::BTreeMap;

use sluice_proto::v1::{FinishReason, generation_event::Kind};
use sluice_shared::dial::DIALS;

/// Requests whose end is awaited.
const PENDING_MAX: usize = 64;

/// What each position of the dial came to with the present model.
#[derive(Debug, Default)]
pub struct Dials {
    /// A row for each of [`DIALS`].
    sums: [Sums; DIALS.len()],
    model: String,
    /// Which position a request named that has not ended yet.
    pending: BTreeMap<u64, usize>,
}

/// Requests added up.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sums {
    /// How many.
    pub requests: u32,
    tokens: u64,
    passes: u64,
    elapsed_ms: f64,
}

impl Sums {
    /// Tokens that a pass brought; `None` before the first request.
    #[must_use]
    pub fn tokens_a_pass(&self) -> Option<f64> {
        (self.passes > 0).then(|| self.tokens as f64 / self.passes as f64)
    }

    /// Tokens that a second brought; `None` before the first request.
    #[must_use]
    pub fn tokens_a_second(&self) -> Option<f64> {
        (self.elapsed_ms > 0.0).then(|| self.tokens as f64 * 1000.0 / self.elapsed_ms)
    }
}

impl Dials {
    /// Takes in an event of a request.
    pub(in super::super) fn see(&mut self, kind: &Kind) {
        match kind {
            Kind::Started(started) => {
                if self.model != started.model {
                    *self = Self {
                        model: started.model.clone(),
                        ..Self::default()
                    };
                }
                let named = DIALS.iter().position(|row| row.name == started.dial);
                if let Some(at) = named {
                    self.pending.insert(started.request_id, at);
                }
                if self.pending.len() > PENDING_MAX {
                    self.pending.pop_first();
                }
            }
            Kind::Done(done) => {
                let Some(at) = self.pending.remove(&done.request_id) else {
                    return;
                };
                if done.finish_reason() == FinishReason::Cancelled {
                    return;
                }
                let sums = &mut self.sums[at];
                sums.requests = sums.requests.saturating_add(1);
                sums.tokens += u64::from(done.text_tokens);
                sums.passes += u64::from(done.passes);
                sums.elapsed_ms += done.elapsed_ms;
            }
            _ => {}
        }
    }

    /// What a position came to, by its place in [`DIALS`].
    #[must_use]
    pub fn of(&self, at: usize) -> Sums {
        self.sums.get(at).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::{Done, Started};

    use super::*;

    fn started(request_id: u64, dial: &str, model: &str) -> Kind {
        Kind::Started(Started {
            request_id,
            dial: dial.into(),
            model: model.into(),
            ..Default::default()
        })
    }

    fn done(request_id: u64, reason: FinishReason) -> Kind {
        Kind::Done(Done {
            request_id,
            finish_reason: reason.into(),
            passes: 10,
            text_tokens: 25,
            elapsed_ms: 500.0,
            ..Default::default()
        })
    }

    #[test]
    fn requests_count_for_the_position_that_they_named() {
        let mut dials = Dials::default();
        assert_eq!(dials.of(2).tokens_a_pass(), None);
        for id in [1, 2] {
            dials.see(&started(id, "balanced", "m"));
            dials.see(&done(id, FinishReason::Eos));
            // The end told once more is not another request's.
            dials.see(&done(id, FinishReason::Eos));
        }
        dials.see(&started(3, "balanced", "m"));
        dials.see(&done(3, FinishReason::Cancelled));
        let sums = dials.of(2);
        assert_eq!(sums.requests, 2);
        assert_eq!(sums.tokens_a_pass(), Some(2.5));
        assert_eq!(sums.tokens_a_second(), Some(50.0));
        assert_eq!(dials.of(0), Sums::default());
        dials.see(&started(4, "balanced", "another"));
        assert_eq!(dials.of(2), Sums::default());
    }

    #[test]
    fn only_so_many_ends_are_awaited() {
        let mut dials = Dials::default();
        for id in 0..1_000 {
            dials.see(&started(id, "fast", "m"));
        }
        assert_eq!(dials.pending.len(), PENDING_MAX);
    }
}
