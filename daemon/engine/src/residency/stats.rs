//! What streaming has cost so far, and what passes have touched of a mixture's experts.

use std::{ops::AddAssign, time::Duration};

/// Time and bytes of streaming so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamStats {
    /// Time that passes waited for weight groups.
    pub waited: Duration,
    /// Bytes that were brought for them.
    pub bytes: u64,
    /// Time in which those were brought, before or during the passes.
    pub copied: Duration,
    /// Bytes of weight groups that are kept in pinned memory.
    pub pinned_bytes: u64,
    /// What passes have touched of a mixture's experts, wherever these are.
    pub touches: ExpertTouches,
    /// What the expert cache had of these; nothing where all are on the device.
    pub experts: ExpertStats,
}

impl StreamStats {
    /// The difference to an earlier count. Counts restart when another plan is put in force.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            waited: self.waited.saturating_sub(before.waited),
            bytes: self.bytes.saturating_sub(before.bytes),
            copied: self.copied.saturating_sub(before.copied),
            pinned_bytes: self.pinned_bytes,
            touches: self.touches.since(&before.touches),
            experts: self.experts.since(&before.experts),
        }
    }
}

impl AddAssign for StreamStats {
    fn add_assign(&mut self, more: Self) {
        self.waited += more.waited;
        self.bytes += more.bytes;
        self.copied += more.copied;
        self.pinned_bytes += more.pinned_bytes;
        self.touches += more.touches;
        self.experts += more.experts;
    }
}

/// What passes have touched of a mixture's experts: sums over layers and passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpertTouches {
    /// Layers that passes have gone through.
    pub visits: u64,
    /// Experts that a layer's rows went through.
    pub touched: u64,
    /// Of those, the ones that the pass before had touched, too.
    pub touched_again: u64,
}

impl ExpertTouches {
    /// The difference to an earlier count.
    fn since(&self, before: &Self) -> Self {
        Self {
            visits: self.visits.saturating_sub(before.visits),
            touched: self.touched.saturating_sub(before.touched),
            touched_again: self.touched_again.saturating_sub(before.touched_again),
        }
    }
}

impl AddAssign for ExpertTouches {
    fn add_assign(&mut self, more: Self) {
        self.visits += more.visits;
        self.touched += more.touched;
        self.touched_again += more.touched_again;
    }
}

/// Where the experts that passes have touched were, where not all are on the device: sums over layers and passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpertStats {
    /// Experts that a layer's rows went through.
    pub touched: u64,
    /// Of those, the ones that were in the cache from earlier passes.
    pub hits: u64,
    /// Those that had been read ahead when the router chose them.
    pub fetched_ahead: u64,
    /// Those that had to be read when the router chose them.
    pub missed: u64,
    /// Those that the CPU computed beside a GPU.
    pub computed_by_cpu: u64,
    /// Bytes of these.
    pub cpu_bytes: u64,
    /// Experts that were read, those that no pass has touched since included.
    pub read: u64,
}

impl ExpertStats {
    /// The difference to an earlier count.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let less = |now: u64, before: u64| now.saturating_sub(before);
        Self {
            touched: less(self.touched, before.touched),
            hits: less(self.hits, before.hits),
            fetched_ahead: less(self.fetched_ahead, before.fetched_ahead),
            missed: less(self.missed, before.missed),
            computed_by_cpu: less(self.computed_by_cpu, before.computed_by_cpu),
            cpu_bytes: less(self.cpu_bytes, before.cpu_bytes),
            read: less(self.read, before.read),
        }
    }
}

impl AddAssign for ExpertStats {
    fn add_assign(&mut self, more: Self) {
        self.touched += more.touched;
        self.hits += more.hits;
        self.fetched_ahead += more.fetched_ahead;
        self.missed += more.missed;
        self.computed_by_cpu += more.computed_by_cpu;
        self.cpu_bytes += more.cpu_bytes;
        self.read += more.read;
    }
}
