//! A change of level or budget: figures before it, predicted figures, and measured ones.

use sluice_proto::v1::{ApplyResult, Level, Plan, Snapshot};
use sluice_shared::units;

/// The latest change that was asked for here.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanChange {
    /// Tells it from earlier changes.
    serial: u64,
    /// Figures of what was in force.
    before: Figures,
    /// Figures of what is to be in force.
    after: Figures,
    /// How far the change is.
    stage: Stage,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct Figures {
    level: Level,
    budget_bytes: u64,
    /// Device memory: held before the change, predicted peak after it.
    bytes: Option<u64>,
    pass_ms: Option<f64>,
    /// Measured time of a pass, where passes were run.
    measured_ms: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
enum Stage {
    UnderWay,
    Failed(String),
    Applied {
        elapsed_ms: f64,
        held_bytes: u64,
        /// Mean time of the passes since then; `None` before the first.
        pass_ms: Option<f64>,
        /// Whether a snapshot has shown the change. A snapshot taken before it may arrive after its result.
        was_seen: bool,
    },
}

/// State of a change, for the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeStanding {
    /// It was asked for and has not ended.
    UnderWay,
    /// It is in force.
    Applied,
    /// It was refused, or failed.
    Failed,
}

impl PlanChange {
    /// A change that was asked for and is not planned yet.
    #[must_use]
    pub(in super::super) fn asked(serial: u64) -> Self {
        Self {
            serial,
            before: Figures::default(),
            after: Figures::default(),
            stage: Stage::UnderWay,
        }
    }

    /// Counts the changes that were asked for.
    #[must_use]
    pub(in super::super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Takes the plan of the change, the plan before it, and the figures measured so far.
    pub(in super::super) fn planned(
        &mut self,
        plan: &Plan,
        before: &Plan,
        snapshot: Option<&Snapshot>,
    ) {
        let measured = snapshot.and_then(|snapshot| snapshot.passes);
        let device = snapshot.and_then(|snapshot| snapshot.device.as_ref());
        self.before = Figures {
            bytes: device.map(|device| device.used_bytes),
            measured_ms: measured.and_then(|m| m.mean_ms),
            ..Figures::of(before)
        };
        self.after = Figures::of(plan);
    }

    /// Takes the result.
    pub(in super::super) fn applied(&mut self, applied: &ApplyResult, elapsed_ms: f64) {
        if let Some(plan) = &applied.plan {
            self.after = Figures::of(plan);
        }
        self.stage = Stage::Applied {
            elapsed_ms,
            held_bytes: applied.device_bytes,
            pass_ms: None,
            was_seen: false,
        };
    }

    /// Takes the reason of a failure.
    pub(in super::super) fn failed(&mut self, message: String) {
        self.stage = Stage::Failed(message);
    }

    /// Takes the measured time of passes since the change. Returns `false` once something else is in force.
    pub(in super::super) fn note(&mut self, snapshot: &Snapshot) -> bool {
        let Stage::Applied {
            pass_ms, was_seen, ..
        } = &mut self.stage
        else {
            return true;
        };
        let Some(plan) = snapshot
            .plan
            .as_ref()
            .filter(|_| snapshot.weight_switch.is_none())
        else {
            return true;
        };
        let is_it =
            plan.level() == self.after.level && plan.budget_bytes == self.after.budget_bytes;
        if is_it {
            *was_seen = true;
            let measured = snapshot.passes.filter(|measured| measured.count > 0);
            *pass_ms = measured.and_then(|m| m.mean_ms).or(*pass_ms);
        }
        // Until a snapshot has shown the change, another plan is only a late snapshot from before it.
        is_it || !*was_seen
    }

    /// The state of the change.
    #[must_use]
    pub fn standing(&self) -> ChangeStanding {
        match self.stage {
            Stage::UnderWay => ChangeStanding::UnderWay,
            Stage::Failed(_) => ChangeStanding::Failed,
            Stage::Applied { .. } => ChangeStanding::Applied,
        }
    }

    /// The effect of the change, in a line.
    #[must_use]
    pub fn words(&self) -> String {
        let (before, after) = (&self.before, &self.after);
        let names = match before.level == after.level {
            _ if after.level == Level::Unspecified => "the change".to_owned(),
            true => format!(
                "{} within {} → {}",
                after.level,
                units::bytes(before.budget_bytes),
                units::bytes(after.budget_bytes)
            ),
            false => format!("{} → {}", before.level, after.level),
        };
        match &self.stage {
            Stage::UnderWay => format!("{names}: under way"),
            Stage::Failed(message) => format!("{names} failed: {message}"),
            Stage::Applied {
                elapsed_ms,
                held_bytes,
                pass_ms,
                ..
            } => format!(
                "{names} in {}: memory {} → {} held (at most {} predicted), pass {} → {} ({} predicted)",
                units::duration_ms(*elapsed_ms),
                before.bytes.map_or(UNKNOWN.into(), units::bytes),
                units::bytes(*held_bytes),
                after.bytes.map_or(UNKNOWN.into(), units::bytes),
                match (before.measured_ms, before.pass_ms) {
                    (None, Some(ms)) => format!("{} predicted", units::duration_ms(ms)),
                    (measured, _) => measured_words(measured, UNKNOWN),
                },
                measured_words(*pass_ms, "not measured yet"),
                after.pass_ms.map_or(UNKNOWN.into(), units::duration_ms),
            ),
        }
    }
}

const UNKNOWN: &str = "unknown";

fn measured_words(ms: Option<f64>, otherwise: &str) -> String {
    ms.map_or(otherwise.to_owned(), |ms| {
        format!("{} measured", units::duration_ms(ms))
    })
}

impl Figures {
    fn of(plan: &Plan) -> Self {
        Self {
            level: plan.level(),
            budget_bytes: plan.budget_bytes,
            bytes: Some(plan.peak_bytes),
            pass_ms: plan.pass_ms,
            measured_ms: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::{DeviceStatus, PassStatistics};

    use super::*;

    fn plan(level: Level) -> Plan {
        Plan {
            level: level.into(),
            budget_bytes: 4 << 30,
            peak_bytes: 3 << 29,
            pass_ms: Some(900.0),
            ..Default::default()
        }
    }

    fn snapshot(level: Level, passes: u64) -> Snapshot {
        Snapshot {
            plan: Some(plan(level)),
            device: Some(DeviceStatus {
                used_bytes: 2 << 30,
                ..Default::default()
            }),
            passes: Some(PassStatistics {
                count: passes,
                mean_ms: (passes > 0).then_some(1_800.0),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn applied() -> PlanChange {
        let mut change = PlanChange::asked(1);
        let (before, after) = (plan(Level::Standard), plan(Level::Moderate));
        change.planned(&after, &before, Some(&snapshot(Level::Standard, 3)));
        let applied = ApplyResult {
            plan: Some(after),
            device_bytes: 1 << 30,
        };
        change.applied(&applied, 2_300.0);
        change
    }

    #[test]
    fn the_passes_after_it_say_what_it_did() {
        let mut change = applied();
        let begun = "standard → moderate in 2.3 s: memory 2.00 GiB → 1.00 GiB held (at most 1.50 GiB predicted), ";
        let unmeasured =
            format!("{begun}pass 1.8 s measured → not measured yet (900 ms predicted)");
        assert_eq!(change.words(), unmeasured);
        // One from before the change comes late.
        assert!(change.note(&snapshot(Level::Standard, 9)));
        assert!(change.note(&snapshot(Level::Moderate, 0)));
        assert_eq!(change.words(), unmeasured);
        assert!(change.note(&snapshot(Level::Moderate, 2)));
        assert!(
            change
                .words()
                .contains("pass 1.8 s measured → 1.8 s measured (900 ms predicted)")
        );
        assert!(!change.note(&snapshot(Level::Aggressive, 1)));
    }

    #[test]
    fn a_pass_that_was_only_predicted_says_so() {
        let mut change = applied();
        change.planned(&plan(Level::Moderate), &plan(Level::Standard), None);
        let words = change.words();
        assert!(
            words.contains("pass 900 ms predicted → not measured yet"),
            "{words}"
        );
    }

    #[test]
    fn another_budget_alone_is_told_by_its_bytes() {
        let mut change = PlanChange::asked(1);
        assert_eq!(change.words(), "the change: under way");
        let mut after = plan(Level::Standard);
        after.budget_bytes = 2 << 30;
        change.planned(&after, &plan(Level::Standard), None);
        change.failed("memory ran short".into());
        assert_eq!(
            change.words(),
            "standard within 4.00 GiB → 2.00 GiB failed: memory ran short"
        );
    }
}
