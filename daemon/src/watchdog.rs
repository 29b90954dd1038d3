//! Watches whether the engine's thread gets on. One that is stuck, in a driver or on a disk that doesn't answer, would keep
//! all callers waiting while the daemon looks well: so health, log and `systemctl status` say it, and systemd's watchdog isn't
//! patted any more, which restarts the daemon.
//!
//! Slow is not stuck: each layer of a pass counts, and so does each step of a change. What bounds the time between two of
//! them follows from how long a whole pass is predicted to take, or last took.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use sluice_engine::{
    Engine,
    heartbeat::{Activity, EnginePulse},
};
use tokio::time::sleep;

use crate::{services::Daemon, stall::Stall, systemd};

/// How often the engine is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long the engine may take between two beats: beyond it, it is stuck.
#[derive(Debug, Clone, Copy)]
pub struct StallLimits {
    /// Least limit for a layer of a pass.
    pub layer_min: Duration,
    /// Limit for a layer of a pass, in whole passes: as predicted for the plan in force, or as the last one took, whichever is longer.
    pub layer_passes: u32,
    /// Limit for a layer of a pass of which nothing is predicted.
    pub layer_unknown: Duration,
    /// Limit for a step of a load or a change. One weight group may be read from a slow disk and converted.
    pub step: Duration,
    /// Limit for the beginning of something that waits while the engine does nothing.
    pub idle: Duration,
}

impl Default for StallLimits {
    fn default() -> Self {
        Self {
            layer_min: Duration::from_secs(10),
            layer_passes: 10,
            layer_unknown: Duration::from_secs(600),
            step: Duration::from_secs(600),
            idle: Duration::from_secs(10),
        }
    }
}

impl StallLimits {
    /// How long the next beat may take. `pass` is the time of a whole pass. For who waits for the turn: how long nobody may have it.
    fn with(&self, pulse: &EnginePulse, pass: Option<Duration>) -> Option<Duration> {
        match (pulse.activity, pass) {
            (Activity::Passes, Some(pass)) => {
                Some(self.layer_min.max(pass.saturating_mul(self.layer_passes)))
            }
            (Activity::Passes, None) => Some(self.layer_unknown),
            (Activity::Change, _) => Some(self.step),
            // Another engine computes meanwhile, and is judged by its own beats. Where none does, the turn is lost.
            (Activity::Turn, _) => Some(self.step),
            (Activity::Idle, _) => pulse.has_work.then_some(self.idle),
        }
    }
}

/// Judges by what it sees at each look.
#[derive(Debug, Default)]
struct Judge {
    seen: EnginePulse,
    /// How long it has looked at the same beat.
    quiet: Duration,
}

impl Judge {
    /// The judgement on what is seen now, `since` after the last look.
    fn look(
        &mut self,
        pulse: EnginePulse,
        limit: Option<Duration>,
        since: Duration,
    ) -> Option<Stall> {
        let gets_on = (pulse.activity, pulse.beats) != (self.seen.activity, self.seen.beats);
        // Time in which nobody looked, as while the process was stopped, says nothing about the engine.
        let seen = since.min(2 * LOOK_INTERVAL);
        self.quiet = match (gets_on, limit) {
            (false, Some(_)) => self.quiet + seen,
            _ => Duration::ZERO,
        };
        self.seen = pulse;
        limit.filter(|limit| self.quiet > *limit).map(|_| Stall {
            activity: pulse.activity,
            quiet: self.quiet,
        })
    }
}

/// Watches the engines, and pats systemd's watchdog as long as all of them get on; until the daemon closes. On the runtime that answers
/// calls: where that is stuck, nobody pats.
pub async fn watch(daemon: Arc<Daemon>, limits: StallLimits) {
    let interval = systemd::watchdog_interval();
    let pause = interval.map_or(LOOK_INTERVAL, |interval| interval.min(LOOK_INTERVAL));
    // By the engine's address, which is nobody else's while it is watched.
    let mut judges: HashMap<usize, (Weak<Engine>, Judge)> = HashMap::new();
    let mut looked = tokio::time::Instant::now();
    loop {
        let since = looked.elapsed();
        looked = tokio::time::Instant::now();
        judges.retain(|_, (engine, _)| engine.strong_count() > 0);
        let mut stall = None;
        daemon.models.forget_gone();
        let engines = daemon.engines.all();
        let computes = |engine: &Arc<Engine>| {
            let activity = engine.pulse().activity;
            matches!(activity, Activity::Passes | Activity::Change)
        };
        let is_turn_taken = engines.iter().any(computes);
        for engine in engines {
            let address = Arc::as_ptr(&engine).addr();
            let new = || (Arc::downgrade(&engine), Judge::default());
            let (_, judge) = judges.entry(address).or_insert_with(new);
            let pulse = engine.pulse();
            let limit = match pulse.activity {
                Activity::Turn if is_turn_taken => None,
                _ => limits.with(&pulse, pass_time(&engine)),
            };
            stall = stall.or(judge.look(pulse, limit, since));
        }
        if daemon.stall.set(stall) {
            match stall {
                Some(stall) => tracing::error!(reason = %stall, "the engine is stuck"),
                None => tracing::warn!("the engine gets on again"),
            }
            daemon.changes.tell();
        }
        if interval.is_some() && stall.is_none() && daemon.engines.are_alive() {
            systemd::pat();
        }
        tokio::select! {
            () = daemon.closing.cancelled() => return,
            () = sleep(pause) => {}
        }
    }
}

/// The time of a whole pass: as predicted for the plan in force, or as the last one took, whichever is longer.
fn pass_time(engine: &Engine) -> Option<Duration> {
    let in_force = engine.in_force()?;
    let predicted = in_force.plan.pass.map(|pass| pass.total_s());
    let predicted = predicted.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let last = Some(in_force.passes.last_pass_time).filter(|last| !last.is_zero());
    predicted.max(last)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use sluice_engine::{EngineOptions, ModelId};
    use sluice_hub::Access;
    use sluice_shared::preset::Preset;

    use super::*;
    use crate::{library::Library, services, settings::ModelSettings};

    /// What the health service says of the whole daemon.
    fn is_healthy(daemon: &Daemon) -> bool {
        let services = services::health(daemon);
        services.contains(&("", true))
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn passes(beats: u64) -> EnginePulse {
        EnginePulse {
            activity: Activity::Passes,
            beats,
            has_work: true,
        }
    }

    #[test]
    fn a_layer_may_take_as_long_as_several_passes() {
        let limits = StallLimits::default();
        let layer = |seconds| limits.with(&passes(1), Some(Duration::from_secs(seconds)));
        assert_eq!(layer(0), Some(Duration::from_secs(10)));
        assert_eq!(layer(60), Some(Duration::from_secs(600)));
        assert_eq!(limits.with(&passes(1), None), Some(limits.layer_unknown));
        // Who has nothing to do may do nothing.
        let idle = |has_work| EnginePulse {
            activity: Activity::Idle,
            beats: 1,
            has_work,
        };
        assert_eq!(limits.with(&idle(false), None), None);
        assert_eq!(limits.with(&idle(true), None), Some(limits.idle));
        let waits = EnginePulse {
            activity: Activity::Turn,
            ..passes(1)
        };
        assert_eq!(limits.with(&waits, None), Some(limits.step));
    }

    #[test]
    fn who_gets_on_however_slowly_is_not_stuck() {
        let mut judge = Judge::default();
        let limit = Some(Duration::from_secs(30));
        for second in 0..1000 {
            // A layer every twenty seconds.
            let stall = judge.look(passes(second / 20), limit, SECOND);
            assert_eq!(stall, None, "after {second} s");
        }
        let stuck = (0..100).find_map(|_| judge.look(passes(50), limit, SECOND));
        let quiet = stuck.unwrap().quiet;
        assert!(quiet > Duration::from_secs(30) && quiet < Duration::from_secs(33));
        assert_eq!(judge.look(passes(51), limit, SECOND), None);
        // Nobody looked for an hour, since the whole process was stopped.
        assert_eq!(judge.look(passes(51), limit, 3600 * SECOND), None);
    }

    #[tokio::test]
    async fn an_engine_that_is_stuck_is_told_of_until_it_gets_on() {
        let options = EngineOptions {
            threads: 1,
            ..EngineOptions::default()
        };
        let engine = Arc::new(Engine::start(options).unwrap());
        let access = Access::new("http://127.0.0.1:1", None, true).unwrap();
        let library = Library::new(None, None, access, Arc::default());
        let daemon = Daemon::new(
            engine.clone(),
            library,
            ModelSettings::default(),
            "s".into(),
            Preset::default(),
        );
        let daemon = Arc::new(daemon);
        let (thaw, frozen) = mpsc::channel::<()>();
        // Reports run on the engine's thread, which waits here for the test.
        let report = Box::new(move |_| {
            // An error means that the test has failed.
            let _ = frozen.recv();
        });
        engine.unload(ModelId(1), false, report);
        let limits = StallLimits {
            step: SECOND,
            ..StallLimits::default()
        };
        tokio::spawn(watch(daemon.clone(), limits));
        let mut changes = daemon.changes.subscribe();
        let stuck = async {
            while daemon.stall.get().is_none() {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(60 * SECOND, stuck).await.unwrap();
        let stall = daemon.stall.get().unwrap();
        assert_eq!(stall.activity, Activity::Change);
        assert!(!is_healthy(&daemon));
        assert!(
            stall.to_string().starts_with("stuck: a load or a change"),
            "{stall}"
        );
        thaw.send(()).unwrap();
        let loose = async {
            while daemon.stall.get().is_some() {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(60 * SECOND, loose).await.unwrap();
        assert!(is_healthy(&daemon));
        daemon.closing.cancel();
    }
}
