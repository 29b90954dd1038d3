//! Experts that the CPU computes beside a GPU: the cache's thread, which has the link, brings them to host memory.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};

use super::{
    super::{
        link::{GpuLink, HostGroup},
        pace::ReadPace,
    },
    CacheShared, ExpertCache,
};
use crate::error::EngineError;

impl ExpertCache {
    /// An expert that the CPU computes, in host memory: read there if it is not.
    pub(in super::super) fn take_on_host(
        &self,
        place: usize,
    ) -> Result<Arc<HostGroup>, EngineError> {
        let mut state = self.shared.monitor.state();
        loop {
            if let Some(expert) = state.on_host.get(&place).map(Arc::clone) {
                if !expert.is_kept() {
                    state.on_host.remove(&place);
                }
                return Ok(expert);
            }
            if let Some((failed, error)) = state.failed.take()
                && failed == place
            {
                return Err(error);
            }
            // Asked for once: a second copy of one that isn't kept would stay.
            if state.bringing_on_host != Some(place) {
                state.wanted_on_host = Some(place);
            }
            self.shared.monitor.notify();
            state = self.shared.monitor.wait(state);
        }
    }
}

impl CacheShared {
    /// Brings an expert to host memory, and wakes who waits for it.
    pub(super) fn bring_on_host(
        &self,
        place: usize,
        link: &mut GpuLink,
        pace: Option<&mut ReadPace>,
    ) {
        let group = &self.experts[place];
        let (begun, pinned_bytes) = (Instant::now(), link.pinned_weight_bytes());
        let read = || link.on_host(&self.reader, group, &self.monitor.abandon);
        let result = catch_unwind(AssertUnwindSafe(read)).unwrap_or(Err(EngineError::Panicked));
        if let (Some(pace), Ok(Some(expert))) = (pace, &result)
            // With a read limit it is withheld until its bytes are due.
            && (!expert.is_kept() || link.pinned_weight_bytes() != pinned_bytes)
        {
            self.monitor.wait_until(pace.due(begun, group.file_bytes()));
        }
        let mut state = self.monitor.state();
        state.bringing_on_host = None;
        state.stats.pinned_bytes = link.pinned_weight_bytes();
        match result {
            Ok(Some(expert)) => drop(state.on_host.insert(place, expert)),
            // Cancelled: the cache ends.
            Ok(None) => {}
            Err(error) => state.failed = Some((place, error)),
        }
        drop(state);
        self.monitor.notify();
    }
}
