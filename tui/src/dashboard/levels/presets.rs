//! Speed of requests by preset, from requests that ended while the dashboard ran.

use std::collections::{BTreeMap, BTreeSet};

use sluice_proto::v1::{FinishReason, GenerationStarted, Level, Snapshot, generation_event::Event};
use sluice_shared::preset::{PRESETS, Preset};

/// Most started requests whose end is awaited.
const PENDING_MAX: usize = 64;
/// Most requests that are remembered as not to be counted.
const TAKEN_MAX: usize = 1024;

/// Totals of each preset under the present conditions.
#[derive(Debug, Default)]
pub struct PresetStatistics {
    /// Totals of each row of [`PRESETS`].
    sums: [PresetTotals; PRESETS.len()],
    /// The conditions that they were counted under; `None` before the first snapshot with a plan.
    conditions: Option<Conditions>,
    /// Index of the preset of each request that has not ended yet, by the request's id.
    pending: BTreeMap<u64, usize>,
    /// Requests that were counted, and those that began under other conditions. Watching a request again repeats its events.
    taken: BTreeSet<u64>,
}

/// Conditions that determine the time of a pass; totals of different ones are not comparable.
#[derive(Debug, Clone, PartialEq)]
struct Conditions {
    pid: Option<u32>,
    model: String,
    level: Level,
    budget_bytes: u64,
}

/// Totals of a preset's requests.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PresetTotals {
    /// Number of requests.
    pub requests: u32,
    tokens: u64,
    passes: u64,
    elapsed_ms: f64,
}

impl PresetTotals {
    /// Mean tokens per pass; `None` before the first request.
    #[must_use]
    pub fn tokens_a_pass(&self) -> Option<f64> {
        (self.passes > 0).then(|| self.tokens as f64 / self.passes as f64)
    }

    /// Mean tokens per second; `None` before the first request.
    #[must_use]
    pub fn tokens_a_second(&self) -> Option<f64> {
        (self.elapsed_ms > 0.0).then(|| self.tokens as f64 * 1000.0 / self.elapsed_ms)
    }
}

impl PresetStatistics {
    /// Compares the conditions with those so far; if they differ, counting begins anew.
    pub(in super::super) fn note(&mut self, snapshot: &Snapshot) {
        // Without a plan no model is loaded. An idle model that was unloaded comes back under the same conditions.
        let Some(plan) = &snapshot.plan else { return };
        let with = Conditions {
            pid: snapshot.daemon.as_ref().map(|server| server.process_id),
            model: snapshot
                .model
                .as_ref()
                .map_or_else(String::new, |model| model.name.clone()),
            level: plan.level(),
            budget_bytes: plan.budget_bytes,
        };
        let Some(before) = self.conditions.replace(with.clone()) else {
            return;
        };
        if before == with {
            return;
        }
        self.sums = Default::default();
        // A restarted daemon gives the same ids to other requests, so none may be excluded by its id.
        if before.pid != with.pid {
            self.taken.clear();
        } else {
            self.taken.extend(self.pending.keys());
            let listed = snapshot.requests().map(|row| row.operation_id);
            self.taken.extend(listed);
            self.limit();
        }
        self.pending.clear();
    }

    /// Takes an event of a request of any client.
    pub(in super::super) fn see(&mut self, kind: &Event) {
        match kind {
            Event::Started(started) if !self.taken.contains(&started.request_id) => {
                if let Some(at) = named(started) {
                    self.pending.insert(started.request_id, at);
                }
                if self.pending.len() > PENDING_MAX {
                    self.pending.pop_first();
                }
            }
            Event::Done(done) => {
                let Some(at) = self.pending.remove(&done.request_id) else {
                    return;
                };
                self.taken.insert(done.request_id);
                self.limit();
                if done.finish_reason() == FinishReason::Cancelled {
                    return;
                }
                let sums = &mut self.sums[at];
                sums.requests = sums.requests.saturating_add(1);
                sums.tokens += u64::from(done.filled_positions);
                sums.passes += u64::from(done.passes);
                sums.elapsed_ms += done.elapsed_ms;
            }
            _ => {}
        }
    }

    fn limit(&mut self) {
        while self.taken.len() > TAKEN_MAX {
            self.taken.pop_first();
        }
    }

    /// Totals of a preset, by its index in [`PRESETS`].
    #[must_use]
    pub fn of(&self, at: usize) -> PresetTotals {
        self.sums.get(at).copied().unwrap_or_default()
    }
}

/// Index of the preset that a request used; `None` if it replaced the preset's policy.
fn named(started: &GenerationStarted) -> Option<usize> {
    let options = started.diffusion.as_ref()?;
    let preset = started.decoding().preset?;
    let at = PRESETS.iter().position(|row| row.preset == preset)?;
    let (row, policy) = (&PRESETS[at], options.policy.as_ref());
    let is_own = policy.is_some_and(|policy| row.policy.split(':').next() != Some(&policy.name));
    // `auto` resolves to different policies, so its policy does not tell whether the request named one.
    (row.preset == Preset::Auto || !is_own).then_some(at)
}

#[cfg(test)]
mod tests {
    use sluice_proto::{
        model::DecodingChoice,
        v1::{DaemonStatus, DiffusionOptions, GenerationDone, Plan},
    };

    use super::*;

    fn started(request_id: u64, preset: &str) -> Event {
        with_policy(request_id, preset, None)
    }

    fn with_policy(request_id: u64, preset: &str, policy: Option<&str>) -> Event {
        let choice = DecodingChoice {
            preset: Some(preset.parse().expect("one of them")),
            policy: policy.map(|policy| policy.parse().expect("one of them")),
            ..DecodingChoice::default()
        };
        let mut diffusion = DiffusionOptions::default();
        choice.write(&mut diffusion);
        Event::Started(GenerationStarted {
            request_id,
            diffusion: Some(diffusion),
            ..Default::default()
        })
    }

    fn done(request_id: u64, reason: FinishReason) -> Event {
        Event::Done(GenerationDone {
            request_id,
            finish_reason: reason.into(),
            passes: 10,
            filled_positions: 25,
            elapsed_ms: 500.0,
            ..Default::default()
        })
    }

    fn snapshot(pid: u32, level: Level, budget_bytes: u64) -> Snapshot {
        Snapshot {
            daemon: Some(DaemonStatus {
                process_id: pid,
                ..Default::default()
            }),
            plan: Some(Plan {
                level: level.into(),
                budget_bytes,
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn requests_count_once_for_the_position_that_they_took() {
        let mut presets = PresetStatistics::default();
        assert_eq!(presets.of(2).tokens_a_pass(), None);
        for id in [1, 2, 1, 2] {
            // Watched once more, all of it is told once more.
            presets.see(&started(id, "balanced"));
            presets.see(&done(id, FinishReason::Eos));
            presets.see(&done(id, FinishReason::Eos));
        }
        presets.see(&started(3, "balanced"));
        presets.see(&done(3, FinishReason::Cancelled));
        let sums = presets.of(2);
        assert_eq!(sums.requests, 2);
        assert_eq!(sums.tokens_a_pass(), Some(2.5));
        assert_eq!(sums.tokens_a_second(), Some(50.0));
        assert_eq!(presets.of(0), PresetTotals::default());
    }

    #[test]
    fn a_policy_of_its_own_is_not_the_presets() {
        for (policy, requests) in [("threshold", 1), ("entropy", 0)] {
            let mut presets = PresetStatistics::default();
            presets.see(&with_policy(1, "balanced", Some(policy)));
            presets.see(&done(1, FinishReason::Eos));
            assert_eq!(presets.of(2).requests, requests, "{policy}");
        }
    }

    #[test]
    fn with_something_else_in_force_counting_begins_anew() {
        let mut presets = PresetStatistics::default();
        presets.note(&snapshot(1, Level::Standard, 4));
        for (id, (pid, level, budget_bytes)) in (1..).zip([
            (1, Level::Moderate, 4),
            (1, Level::Moderate, 2),
            (2, Level::Moderate, 2),
        ]) {
            presets.see(&started(2 * id, "fast"));
            presets.see(&done(2 * id, FinishReason::Eos));
            presets.see(&started(2 * id + 1, "fast"));
            assert_eq!(presets.of(3).requests, 1, "{id}");
            presets.note(&snapshot(pid, level, budget_bytes));
            presets.note(&snapshot(pid, level, budget_bytes));
            assert_eq!(presets.of(3), PresetTotals::default());
            // Begun before, it is not what this came to.
            presets.see(&done(2 * id + 1, FinishReason::Eos));
            assert_eq!(presets.of(3), PresetTotals::default());
        }
        presets.see(&started(2, "fast"));
        presets.see(&done(2, FinishReason::Eos));
        assert_eq!(presets.of(3).requests, 1, "another daemon's request 2");
    }

    #[test]
    fn only_so_many_ends_are_awaited() {
        let mut presets = PresetStatistics::default();
        for id in 0..1_000 {
            presets.see(&started(id, "fast"));
        }
        assert_eq!(presets.pending.len(), PENDING_MAX);
        for id in 0..10_000 {
            presets.see(&started(id, "fast"));
            presets.see(&done(id, FinishReason::Eos));
        }
        assert_eq!(presets.taken.len(), TAKEN_MAX);
    }
}
