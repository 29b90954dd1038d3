//! What the engine's thread is doing, and a count that grows as it gets on: whoever looks from outside can tell slow work
//! from a thread that is stuck.

use std::sync::{
    Arc,
    atomic::{AtomicU8, AtomicU64, Ordering},
};

/// What the engine's thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Activity {
    /// It waits for something to do.
    #[default]
    Idle,
    /// It runs passes: each layer is a beat.
    Passes,
    /// It loads, unloads, or changes weights: each step is a beat.
    Change,
    /// Another engine computes on the device, and it waits for its turn.
    Turn,
}

/// The state of the engine's thread, as seen from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EnginePulse {
    /// What it is doing.
    pub activity: Activity,
    /// Grows whenever it gets on.
    pub beats: u64,
    /// Whether something waits for it that could begin.
    pub has_work: bool,
}

/// Written by the engine's thread, read by everybody. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heartbeat(Arc<Beats>);

#[derive(Debug, Default)]
struct Beats {
    activity: AtomicU8,
    beats: AtomicU64,
}

impl Heartbeat {
    /// The thread begins with something.
    pub(crate) fn begin(&self, activity: Activity) {
        // Relaxed: the two order no other memory, and who reads them looks again soon.
        self.0.activity.store(activity as u8, Ordering::Relaxed);
        self.beat();
    }

    /// The thread has got on.
    pub(crate) fn beat(&self) {
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// What the thread is doing, and how often it got on.
    pub(crate) fn now(&self) -> (Activity, u64) {
        let activity = match self.0.activity.load(Ordering::Relaxed) {
            activity if activity == Activity::Passes as u8 => Activity::Passes,
            activity if activity == Activity::Change as u8 => Activity::Change,
            activity if activity == Activity::Turn as u8 => Activity::Turn,
            _ => Activity::Idle,
        };
        (activity, self.0.beats.load(Ordering::Relaxed))
    }
}
