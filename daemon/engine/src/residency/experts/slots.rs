//! Which experts are in the cache's slots, which of them goes for another, and which is brought next.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use sluice_cuda::{Gpu, StreamMark};

use super::{
    super::{
        link::{CopyMarks, HostGroup, LinkShare},
        reader::LoadedGroup,
        stats::{ExpertStats, StreamStats},
        transfer::{FreeBuffer, Transfers, mark_after_use},
    },
    usage::ExpertUsage,
};
use crate::error::EngineError;

/// Layers ahead of the present one whose experts are read before their router has spoken.
const LAYERS_AHEAD: usize = 2;
/// Of all slots, one in so many holds at most what was read and not used yet. What is kept counts more.
pub(super) const AHEAD_SHARE: usize = 4;

/// What is where, and what is wanted.
#[derive(Debug)]
pub(super) struct CacheState {
    pub(super) free: Vec<FreeBuffer>,
    /// In slots; on a GPU, with their copy sent.
    pub(super) ready: BTreeMap<usize, CachedExpert>,
    pub(super) in_use: BTreeSet<usize>,
    /// Experts of the present layer that are yet to be used.
    pub(super) wanted: BTreeSet<usize>,
    pub(super) filling: Option<usize>,
    pub(super) usage: ExpertUsage,
    pub(super) slots: usize,
    /// A read that failed. The thread pauses until somebody asks for an expert.
    pub(super) failed: Option<(usize, EngineError)>,
    /// What the GPU link is to be fitted to: the link is the thread's.
    pub(super) share: Option<LinkShare>,
    pub(super) stats: StreamStats,
    pub(super) transfers: Transfers,
    /// Visits of layers so far, and where their work on a GPU has ended.
    pub(super) visits: usize,
    pub(super) marks: Option<VisitMarks>,
    /// When a pass asked for experts last.
    pub(super) last_visit: Option<Instant>,
    /// The place of the next expert to read into pinned memory while nothing else is to be done.
    pub(super) next_to_pin: usize,
    /// Experts in host memory that the CPU computes, as far as it has asked for them.
    pub(super) on_host: BTreeMap<usize, Arc<HostGroup>>,
    /// One that it waits for, until it is being brought.
    pub(super) wanted_on_host: Option<usize>,
    /// One that is being brought.
    pub(super) bringing_on_host: Option<usize>,
    /// What the last visit of each layer came to.
    pub(super) last_visits: Vec<ExpertStats>,
}

/// An expert in a slot.
#[derive(Debug)]
pub(super) struct CachedExpert {
    pub(super) loaded: LoadedGroup,
    /// How long it took to read; counted when it is used first.
    pub(super) time: Duration,
    /// Whether it was read and not used yet.
    pub(super) is_new: bool,
    /// On a GPU: the marks of its copy, until work was made to wait for it.
    pub(super) arrival: Option<CopyMarks>,
    /// The visit of a layer that used it last.
    pub(super) used: Option<usize>,
}

/// A GPU's marks behind the work of visits. One stands behind all visits that have ended, so that none is made for each
/// expert.
#[derive(Debug)]
pub(super) struct VisitMarks {
    pub(super) gpu: Gpu,
    pub(super) ended: Option<Arc<StreamMark>>,
}

impl CacheState {
    /// The next expert to read, and the slot to read it into, if there are both.
    pub(super) fn start_next(&mut self) -> Option<(usize, FreeBuffer)> {
        if self.failed.is_some() {
            return None;
        }
        let is_there =
            |place: &usize| self.ready.contains_key(place) || self.in_use.contains(place);
        let ahead_max = (self.slots / AHEAD_SHARE).max(1);
        if let Some(&place) = self.wanted.iter().find(|place| !is_there(place)) {
            // None is ahead of what the pass waits for.
            let before = self.wanted.range(..place);
            let ahead = before.filter(|before| self.ready.get(before).is_some_and(|at| at.is_new));
            let may_read = ahead.count() < ahead_max;
            return may_read.then(|| Some((place, self.slot_for_wanted(place)?)))?;
        }
        let new = self.ready.values().filter(|expert| expert.is_new).count();
        if new >= ahead_max {
            return None;
        }
        let place = (self.usage.expected(LAYERS_AHEAD)).find(|place| !is_there(place))?;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let others = self.ready.keys().filter(|at| !self.wanted.contains(at));
                let victim = self.usage.victim(others.copied())?;
                // Only for what is needed later than this.
                let gives = self.usage.worthless(victim) > self.usage.worthless(place);
                gives.then(|| self.take_slot(victim))?
            }
        };
        Some((place, slot))
    }

    /// A slot for an expert that the present layer wants: a free one, or that of the expert which is worth least, or else that of one
    /// which the layer wants later.
    fn slot_for_wanted(&mut self, place: usize) -> Option<FreeBuffer> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let others = self.ready.keys().filter(|at| !self.wanted.contains(at));
        let victim = self.usage.victim(others.copied()).or_else(|| {
            let last = *self.ready.keys().rfind(|at| self.wanted.contains(at))?;
            (last > place).then_some(last)
        })?;
        Some(self.take_slot(victim))
    }

    fn take_slot(&mut self, place: usize) -> FreeBuffer {
        let expert = self.ready.remove(&place).expect("it is ready");
        // If nobody has used it its copy may be in flight: the next one is sent behind it.
        let used = expert.used.zip(self.marks.as_ref());
        let used = used.and_then(|(visit, marks)| match visit < self.visits {
            true => marks.ended.clone(),
            // By the visit that is going on: behind what it has sent so far.
            false => mark_after_use(&marks.gpu),
        });
        FreeBuffer {
            memory: expert.loaded.memory,
            used,
        }
    }
}
