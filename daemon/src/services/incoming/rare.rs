//! Warnings about what peers may cause as often as they like.

use std::{
    fmt::Display,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How often it is told of.
const INTERVAL: Duration = Duration::from_secs(60);

/// Tells once in a while of what happens, however often.
#[derive(Debug, Default)]
pub(super) struct RareWarning(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    last: Option<Instant>,
    since: u64,
}

impl RareWarning {
    pub(super) fn tell(&self, what: &'static str, reason: &dyn Display) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.since += 1;
        if told.last.is_none_or(|last| last.elapsed() >= INTERVAL) {
            tracing::warn!(%reason, times = told.since, "{what}");
            *told = Told {
                last: Some(Instant::now()),
                since: 0,
            };
        }
    }
}
