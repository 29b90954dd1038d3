//! The steps from one plan to another, taken between passes so that running requests go on: a pure function. After
//! every step the model is whole and the memory within what either plan may take.

use sluice_weights::WeightGroupPlan;

use super::{Plan, StagingBuffers};

/// A change that is made between two passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransitionStep {
    /// A group comes to the device, or changes its form there.
    Bring {
        /// Its index among the plan's groups.
        group: usize,
        /// Whether the new form fits beside the old one, so that it can be prepared while passes run. Otherwise the old
        /// one goes first.
        beside: bool,
    },
    /// Some groups leave the device and are streamed from now on, through these staging buffers.
    Stream {
        /// Indices of the groups that leave.
        evicted: Vec<usize>,
        /// The staging buffers from now on.
        staging: StagingBuffers,
    },
    /// The rest, all at once: the present staging buffers go, groups leave or come, the new plan's buffers come.
    Settle {
        /// Indices of groups that leave the device.
        evicted: Vec<usize>,
        /// Indices of groups that come to it.
        brought: Vec<usize>,
    },
}

/// The steps from `from` to `to`, two plans for the same model, and no step that would exceed the bytes of either.
#[must_use]
pub fn transition(from: &Plan, to: &Plan) -> Vec<TransitionStep> {
    let mut state = TransitionState::new(from, to);
    let mut steps = Vec::new();
    let changed: Vec<usize> = (0..to.groups.len())
        .filter(|&group| state.groups[group] != to.groups[group])
        .collect();
    let stays = |group: &usize| to.groups[*group].resident_bytes() > 0;

    // Decompression memory has to exist before the first group that needs it.
    if state.staging.decompress_bytes < to.staging.decompress_bytes {
        // Nothing fits beside what is held: all changes are made in one step, with the staging buffers gone.
        match state.stream(&[]) {
            Some(step) => steps.push(step),
            None => {
                let (brought, evicted) = changed.into_iter().partition(stays);
                return vec![TransitionStep::Settle { evicted, brought }];
            }
        }
    }

    // What shrinks comes first: each makes room for the next.
    let shrinks = |state: &TransitionState<'_>, group: usize| {
        let now = state.groups[group].resident_bytes();
        now > 0 && to.groups[group].resident_bytes() <= now
    };
    for &group in changed.iter().filter(|group| stays(group)) {
        if shrinks(&state, group) {
            steps.push(state.bring(group));
        }
    }
    // Evictions come before what grows, since they free memory; they need staging buffers for what they evict.
    let evicted: Vec<usize> = changed
        .iter()
        .copied()
        .filter(|group| !stays(group))
        .collect();
    let mut is_streaming_settled = evicted.is_empty();
    if !is_streaming_settled && let Some(step) = state.stream(&evicted) {
        steps.push(step);
        is_streaming_settled = true;
    }
    let mut left = Vec::new();
    for &group in changed.iter().filter(|group| stays(group)) {
        if state.groups[group] == to.groups[group] {
            continue;
        }
        // A group that grows into memory that is still held by the old staging buffers has to wait for the settling
        // step.
        match is_streaming_settled && state.fits(group) {
            true => steps.push(state.bring(group)),
            false => left.push(group),
        }
    }
    if !is_streaming_settled || !left.is_empty() || state.staging != to.staging {
        steps.push(TransitionStep::Settle {
            evicted: if is_streaming_settled {
                Vec::new()
            } else {
                evicted
            },
            brought: left,
        });
    }
    steps
}

/// What is held between two steps.
struct TransitionState<'a> {
    to: &'a Plan,
    groups: Vec<WeightGroupPlan>,
    /// Bytes of those on the device.
    resident_bytes: u64,
    staging: StagingBuffers,
    /// Memory besides weights and staging buffers.
    working_bytes: u64,
    /// Most bytes that may be held: what either plan may take.
    ceiling_bytes: u64,
}

impl<'a> TransitionState<'a> {
    fn new(from: &Plan, to: &'a Plan) -> Self {
        Self {
            to,
            // Requests of either plan may run during the switch.
            groups: from.groups.clone(),
            resident_bytes: from.resident_bytes(),
            staging: from.staging,
            working_bytes: from.working.total_bytes().max(to.working.total_bytes()),
            // The old plan's memory is held already, even where the new budget is below it.
            ceiling_bytes: from.peak_bytes().max(to.budget_bytes),
        }
    }

    fn device_bytes(&self) -> u64 {
        self.resident_bytes + self.staging.total_bytes() + self.working_bytes
    }

    /// Whether the group's new form fits in the place of its present one.
    fn fits(&self, group: usize) -> bool {
        let now = self.groups[group].resident_bytes();
        self.device_bytes() - now + self.to.groups[group].resident_bytes() <= self.ceiling_bytes
    }

    fn bring(&mut self, group: usize) -> TransitionStep {
        let new = &self.to.groups[group];
        // Both forms at once: only then can the new one be prepared while passes use the old one.
        let beside = self.device_bytes() + new.resident_bytes() <= self.ceiling_bytes;
        self.resident_bytes -= self.groups[group].resident_bytes();
        self.resident_bytes += new.resident_bytes();
        self.groups[group] = new.clone();
        TransitionStep::Bring { group, beside }
    }

    /// Streams the evicted groups and those streamed already, if staging buffers for both fit; else changes nothing.
    fn stream(&mut self, evicted: &[usize]) -> Option<TransitionStep> {
        let mut groups = self.groups.clone();
        for &group in evicted {
            groups[group] = self.to.groups[group].clone();
        }
        let slots = self.staging.of_both(&self.to.staging, &groups);
        let resident_bytes = groups.iter().map(WeightGroupPlan::resident_bytes).sum();
        let before = std::mem::replace(&mut self.groups, groups);
        let resident_before = std::mem::replace(&mut self.resident_bytes, resident_bytes);
        let slots_before = std::mem::replace(&mut self.staging, slots);
        let is_streamable = |group: &WeightGroupPlan| match group.group.is_expert() {
            true => slots.expert_buffers > 0,
            false => slots.count > 0,
        };
        // Where neither plan has staging buffers, nothing can be streamed on the way.
        let mut streamed = self.groups.iter().filter(|group| group.is_streamed());
        if self.device_bytes() > self.ceiling_bytes || !streamed.all(is_streamable) {
            self.groups = before;
            self.resident_bytes = resident_before;
            self.staging = slots_before;
            return None;
        }
        Some(TransitionStep::Stream {
            evicted: evicted.to_vec(),
            staging: slots,
        })
    }
}
