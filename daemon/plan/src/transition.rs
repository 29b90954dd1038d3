//! From one plan to another, a step at a time between passes, so that what runs goes on: a pure function, and after
//! every step the model is whole and the memory within what either plan may take.

use sluice_weights::UnitPlan;

use super::{Plan, Slots};

/// A change that is made between two passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A unit comes to the device in its new form, or in its first.
    Bring {
        /// Its index among the plan's units.
        unit: usize,
        /// Whether there is room for the new form beside the old one, so that it can be made ready while passes run.
        /// Otherwise the old one goes first.
        beside: bool,
    },
    /// Some units leave the device and are streamed from now on, through these slots.
    Stream {
        /// Their indices.
        evicted: Vec<usize>,
        /// From now on.
        slots: Slots,
    },
    /// What is left, all at once: the present slots go, units leave or come, the new plan's slots come.
    Settle {
        /// Indices of units that leave the device.
        evicted: Vec<usize>,
        /// Indices of units that come to it.
        brought: Vec<usize>,
    },
}

/// The steps from `from` to `to`, two plans for the same model, with the most that may be held meanwhile.
#[must_use]
pub fn transition(from: &Plan, to: &Plan) -> Vec<Step> {
    let mut state = State::new(from, to);
    let mut steps = Vec::new();
    let changed: Vec<usize> = (0..to.units.len())
        .filter(|&unit| state.units[unit] != to.units[unit])
        .collect();
    let stays = |unit: &usize| to.units[*unit].resident_bytes() > 0;

    // What units are decoded into has to be there before the first of them is.
    if state.slots.decoded_bytes < to.slots.decoded_bytes {
        match state.stream(&[]) {
            Some(step) => steps.push(step),
            None => {
                let (brought, evicted) = changed.into_iter().partition(stays);
                return vec![Step::Settle { evicted, brought }];
            }
        }
    }

    // What shrinks comes first: each makes room for the next.
    let shrinks = |state: &State<'_>, unit: usize| {
        let now = state.units[unit].resident_bytes();
        now > 0 && to.units[unit].resident_bytes() <= now
    };
    for &unit in changed.iter().filter(|unit| stays(unit)) {
        if shrinks(&state, unit) {
            steps.push(state.bring(unit));
        }
    }
    let evicted: Vec<usize> = changed
        .iter()
        .copied()
        .filter(|unit| !stays(unit))
        .collect();
    let mut is_streaming_settled = evicted.is_empty();
    if !is_streaming_settled && let Some(step) = state.stream(&evicted) {
        steps.push(step);
        is_streaming_settled = true;
    }
    let mut left = Vec::new();
    for &unit in changed.iter().filter(|unit| stays(unit)) {
        if state.units[unit] == to.units[unit] {
            continue;
        }
        match is_streaming_settled && state.fits(unit) {
            true => steps.push(state.bring(unit)),
            false => left.push(unit),
        }
    }
    if !is_streaming_settled || !left.is_empty() || state.slots != to.slots {
        steps.push(Step::Settle {
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
struct State<'a> {
    to: &'a Plan,
    units: Vec<UnitPlan>,
    slots: Slots,
    /// Besides weights and slots.
    working_bytes: u64,
    /// What either plan may take.
    ceiling_bytes: u64,
}

impl<'a> State<'a> {
    fn new(from: &Plan, to: &'a Plan) -> Self {
        Self {
            to,
            units: from.units.clone(),
            slots: from.slots,
            working_bytes: from.working.total_bytes().max(to.working.total_bytes()),
            ceiling_bytes: from.peak_bytes().max(to.budget_bytes),
        }
    }

    fn held(&self) -> u64 {
        let resident: u64 = self.units.iter().map(UnitPlan::resident_bytes).sum();
        resident + self.slots.total_bytes() + self.working_bytes
    }

    /// Whether the unit's new form fits in the place of its present one.
    fn fits(&self, unit: usize) -> bool {
        let now = self.units[unit].resident_bytes();
        self.held() - now + self.to.units[unit].resident_bytes() <= self.ceiling_bytes
    }

    fn bring(&mut self, unit: usize) -> Step {
        let new = &self.to.units[unit];
        let beside = self.held() + new.resident_bytes() <= self.ceiling_bytes;
        self.units[unit] = new.clone();
        Step::Bring { unit, beside }
    }

    /// Streams what leaves and what is streamed already, if slots for both have room.
    fn stream(&mut self, evicted: &[usize]) -> Option<Step> {
        let mut units = self.units.clone();
        for &unit in evicted {
            units[unit] = self.to.units[unit].clone();
        }
        let streamed = || units.iter().filter(|unit| unit.is_streamed());
        let is_any = streamed().next().is_some();
        let slots = Slots {
            count: match is_any {
                true => self.slots.count.max(self.to.slots.count),
                false => 0,
            },
            bytes: streamed().map(UnitPlan::slot_bytes).max().unwrap_or(0),
            decoded_bytes: self.slots.decoded_bytes.max(self.to.slots.decoded_bytes),
        };
        let before = std::mem::replace(&mut self.units, units);
        let slots_before = std::mem::replace(&mut self.slots, slots);
        if self.held() > self.ceiling_bytes || (is_any && slots.count == 0) {
            self.units = before;
            self.slots = slots_before;
            return None;
        }
        Some(Step::Stream {
            evicted: evicted.to_vec(),
            slots,
        })
    }
}
