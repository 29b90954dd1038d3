//! Corrections of predicted times by measured passes. Rates are measured once, in a third of a second; a machine that
//! was busy then, or has become so, is slower or faster than they say. So predictions are corrected by what passes of
//! the same kind have taken: of a model of the same shape, as many rows, at the same level, on the same devices.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sluice_codec::container::Hash;
use sluice_shared::level::Level;
use sluice_weights::{ExpertShape, Shape};

use super::{
    experts::{ExpertProfile, LearnedExperts},
    pass_time::PassTime,
};

/// Upper bounds of the row buckets that share a correction; the sixth bucket has no bound. Rates are measured at the
/// first three.
const ROWS: [usize; 5] = [1, 8, 64, 256, 1024];
/// Least weight of a pass: after some twenty of them little is left of the value before.
const WEIGHT_MIN: f64 = 1.0 / 8.0;
/// Bound on the ratio of measured to predicted time: beyond it, the pass met something else.
const RATIO_MAX: f64 = 8.0;
/// Most kinds of passes that are remembered: those of some models.
const KINDS_MAX: usize = 128;

/// Corrections of predicted times; clones share them.
#[derive(Debug, Clone, Default)]
pub struct TimeCorrections(Arc<Mutex<LearnedFactors>>);

#[derive(Debug, Clone, Default, PartialEq)]
struct LearnedFactors {
    /// Factors of computing, by kind of pass; the oldest kind is dropped first.
    compute: VecDeque<(PassKey, Factor)>,
    /// The factor of reading streamed weights.
    reading: Factor,
    /// What passes touch of the experts of models, by the hash of their shape; the oldest is dropped first.
    experts: VecDeque<(u64, ExpertProfile)>,
}

/// How many times as long as predicted something takes: smoothed as a logarithm, so that twice and half are equally far
/// off.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Factor {
    log: f64,
    passes: u32,
}

impl Factor {
    fn see(&mut self, measured_s: f64, predicted_s: f64) {
        let log = (measured_s / predicted_s).ln();
        // Times of 0 or NaN teach nothing, and a NaN would stay in the average for good.
        if !log.is_finite() {
            return;
        }
        // A plain average of the first eight passes, then exponential smoothing: early predictions are neither stuck at
        // 1 nor left to the first pass alone.
        self.passes = self.passes.saturating_add(1);
        let weight = f64::from(self.passes).recip().max(WEIGHT_MIN);
        let log = log.clamp(-RATIO_MAX.ln(), RATIO_MAX.ln());
        self.log += weight * (log - self.log);
    }

    fn times(self) -> f64 {
        self.log.exp()
    }
}

/// What passes must have in common to be compared: the model's shape, the level, the rows that the layers compute, and
/// what computes them. Passes of a small model say little of a large one's, and a GPU's little of the CPU's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassKind<'a> {
    /// The shape of the model that the pass is of.
    pub shape: &'a Shape,
    /// The level of the plan in force.
    pub level: Level,
    /// Rows that go through the layers.
    pub rows: usize,
    /// Whether the CPU computes experts beside a GPU.
    pub has_cpu_experts: bool,
}

#[derive(Debug, Clone, PartialEq)]
struct PassKey {
    shape: Shape,
    level: Level,
    bucket: usize,
    has_cpu_experts: bool,
}

impl PassKind<'_> {
    fn key(self) -> PassKey {
        let bucket = ROWS.iter().position(|&most| self.rows <= most);
        PassKey {
            shape: self.shape.clone(),
            level: self.level,
            bucket: bucket.unwrap_or(ROWS.len()),
            has_cpu_experts: self.has_cpu_experts,
        }
    }
}

impl TimeCorrections {
    /// Takes in a pass that computed for `measured_s` seconds, where the rates alone predict `predicted_s`.
    pub fn see_compute(&self, kind: PassKind<'_>, measured_s: f64, predicted_s: f64) {
        let mut known = self.lock();
        let key = kind.key();
        let index = known.compute.iter().position(|(its, _)| *its == key);
        let index = index.unwrap_or_else(|| {
            if known.compute.len() >= KINDS_MAX {
                known.compute.pop_front();
            }
            known.compute.push_back((key, Factor::default()));
            known.compute.len() - 1
        });
        known.compute[index].1.see(measured_s, predicted_s);
    }

    /// Takes in the reading of a pass's streamed weights, as [`TimeCorrections::see_compute`] does computing.
    pub fn see_reading(&self, measured_s: f64, predicted_s: f64) {
        self.lock().reading.see(measured_s, predicted_s);
    }

    /// Takes in a pass over so many rows which touched `touched` of each layer's experts on average; of these the pass before had
    /// not touched a share of `turnover`.
    pub fn see_experts(
        &self,
        shape: &Shape,
        experts: &ExpertShape,
        rows: usize,
        touched: f64,
        turnover: f64,
    ) {
        let mut known = self.lock();
        let profile = known.experts_mut(hash(shape));
        profile.see(experts, rows, touched, turnover);
    }

    /// Takes over what passes have told to an earlier process; nothing of figures that none can have told.
    pub fn restore_experts(&self, learned: &LearnedExperts) {
        if let Some(profile) = learned.profile() {
            *self.lock().experts_mut(learned.shape) = profile;
        }
    }

    /// What passes have told of the experts of models of this shape, for a later process; `None` where none have.
    #[must_use]
    pub fn learned_experts(&self, shape: &Shape) -> Option<LearnedExperts> {
        let profile = self.experts(shape);
        (profile.is_measured).then(|| LearnedExperts {
            shape: hash(shape),
            spread: profile.spread,
            turnover: profile.turnover,
        })
    }

    /// What passes touch of the experts of a model of this shape: as passes have told, or as another model's did.
    #[must_use]
    pub fn experts(&self, shape: &Shape) -> ExpertProfile {
        let shape = hash(shape);
        let known = self.lock();
        let measured = known.experts.iter().find(|(its, _)| *its == shape);
        measured.map_or(ExpertProfile::PUBLISHED, |(_, profile)| *profile)
    }

    /// Corrects a time that was predicted by the rates alone.
    pub fn correct(&self, time: PassTime, kind: PassKind<'_>) -> PassTime {
        let known = self.lock();
        let compute = known.compute(kind).unwrap_or(1.0);
        let reading = known.reading.times();
        drop(known);
        let corrected = PassTime {
            compute_s: time.compute_s * compute,
            // A GPU's copies do not share its cores.
            copy_s: match time.copies_overlap {
                true => time.copy_s,
                false => time.copy_s * compute,
            },
            disk_s: time.disk_s * reading,
            reader_s: time.reader_s * reading,
            ..time
        };
        let correction = corrected.total_s() / time.total_s();
        PassTime {
            // A pass of nothing at all has no ratio: 0 / 0.
            correction: if correction.is_finite() {
                correction
            } else {
                1.0
            },
            ..corrected
        }
    }
}

impl LearnedFactors {
    /// The factor of passes of the same level, else the mean of those of other levels with as many rows: on a busy
    /// machine all are slower. `None` where no such pass was seen.
    fn compute(&self, kind: PassKind<'_>) -> Option<f64> {
        let key = kind.key();
        let is_alike = |its: &PassKey| {
            PassKey {
                level: key.level,
                ..its.clone()
            } == key
        };
        let alike = self.compute.iter().filter(|(its, _)| is_alike(its));
        let exact = (alike.clone()).find(|(its, _)| its.level == key.level);
        if let Some((_, factor)) = exact {
            return Some(factor.times());
        }
        // The geometric mean, as factors are kept in logarithms.
        let count = alike.clone().count();
        let logs: f64 = alike.map(|(_, factor)| factor.log).sum();
        (count > 0).then(|| (logs / count as f64).exp())
    }

    /// What is known of the experts of models of this shape, to begin with what another model's passes have told.
    fn experts_mut(&mut self, shape: u64) -> &mut ExpertProfile {
        let index = self.experts.iter().position(|(its, _)| *its == shape);
        let index = index.unwrap_or_else(|| {
            if self.experts.len() >= KINDS_MAX {
                self.experts.pop_front();
            }
            (self.experts).push_back((shape, ExpertProfile::PUBLISHED));
            self.experts.len() - 1
        });
        &mut self.experts[index].1
    }
}

/// The same for the same sizes, also in later processes.
fn hash(shape: &Shape) -> u64 {
    // A version that knows of more sizes writes another text, and learns again.
    Hash::of(format!("{shape:?}").as_bytes()).0
}

impl TimeCorrections {
    fn lock(&self) -> MutexGuard<'_, LearnedFactors> {
        // The lock guards figures alone: whatever a panicking holder left can be used.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialEq for TimeCorrections {
    fn eq(&self, other: &Self) -> bool {
        // One lock at a time: both sides may be clones, with the same lock.
        let one = self.lock().clone();
        one == *other.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_checkpoint::family::PublishedShape;

    fn kind(level: Level, rows: usize) -> PassKind<'static> {
        PassKind {
            shape: PublishedShape::find("tinyllama-1.1b").unwrap().shape(),
            level,
            rows,
            has_cpu_experts: false,
        }
    }

    fn time() -> PassTime {
        PassTime {
            compute_s: 2.0,
            copy_s: 1.0,
            copies_overlap: false,
            disk_s: 0.5,
            reader_s: 1.5,
            cold_s: Some(4.0),
            correction: 1.0,
            others_share: 0.0,
        }
    }

    #[test]
    fn a_machine_that_is_twice_as_slow_is_known_as_such_after_some_passes() {
        let learned = TimeCorrections::default();
        let here = kind(Level::Standard, 256);
        assert_eq!(learned.correct(time(), here), time());
        for _ in 0..10 {
            learned.see_compute(here, 2.0, 1.0);
        }
        let corrected = learned.correct(time(), here);
        assert!((corrected.compute_s - 4.0).abs() < 1e-9);
        assert!((corrected.total_s() - 6.0).abs() < 1e-9);
        assert!((corrected.correction - 2.0).abs() < 1e-9);
        assert_eq!((corrected.reader_s, corrected.cold_s), (1.5, Some(4.0)));
    }

    #[test]
    fn like_is_compared_with_like() {
        let learned = TimeCorrections::default();
        for _ in 0..10 {
            learned.see_compute(kind(Level::Standard, 256), 3.0, 1.0);
            learned.see_compute(kind(Level::Moderate, 256), 1.0, 1.0);
        }
        let at = |level, rows| learned.correct(time(), kind(level, rows)).correction;
        assert!((at(Level::Standard, 100) - 3.0).abs() < 1e-9);
        assert!((at(Level::Moderate, 65) - 1.0).abs() < 1e-9);
        // A level that no pass was run at yet is as the others are, on the mean.
        assert!((at(Level::Aggressive, 256) - 3f64.sqrt()).abs() < 1e-9);
        // Nothing is known of single rows, and nothing of another model.
        assert_eq!(at(Level::Standard, 1), 1.0);
        let other = PublishedShape::find("llada-8b").unwrap().shape();
        let there = PassKind {
            shape: other,
            ..kind(Level::Standard, 256)
        };
        assert_eq!(learned.correct(time(), there).correction, 1.0);
        // Nor of passes of which the CPU computes experts beside a GPU.
        let beside = PassKind {
            has_cpu_experts: true,
            ..kind(Level::Standard, 256)
        };
        assert_eq!(learned.correct(time(), beside).correction, 1.0);
        learned.see_compute(beside, 2.0, 1.0);
        assert!((learned.correct(time(), beside).correction - 2.0).abs() < 1e-9);
        assert!((at(Level::Standard, 256) - 3.0).abs() < 1e-9);
    }

    #[test]
    fn what_passes_told_of_experts_is_restored_for_the_same_shape_alone() {
        let shape = |name| PublishedShape::find(name).unwrap().shape();
        let (own, other) = (shape("llada2-mini"), shape("qwen3-30b-a3b"));
        let experts = *own.experts(own.layers - 1).unwrap();
        let before = TimeCorrections::default();
        assert_eq!(before.learned_experts(own), None);
        before.see_experts(own, &experts, 32, 40.0, 0.25);
        let learned = before.learned_experts(own).unwrap();

        let after = TimeCorrections::default();
        for broken in [f64::NAN, f64::INFINITY, -0.1, 1.1] {
            let (spread, turnover) = (broken, broken);
            after.restore_experts(&LearnedExperts { spread, ..learned });
            after.restore_experts(&LearnedExperts {
                turnover,
                ..learned
            });
        }
        assert_eq!(after.experts(own), ExpertProfile::PUBLISHED);
        after.restore_experts(&learned);
        assert_eq!(after.experts(own), before.experts(own));
        assert!(after.experts(own).is_measured);
        assert_eq!(after.experts(other), ExpertProfile::PUBLISHED);
        assert_eq!(after.learned_experts(own), Some(learned));
    }

    #[test]
    fn it_is_smoothed_bounded_and_forgets() {
        let learned = TimeCorrections::default();
        let here = kind(Level::Off, 1);
        let now = || learned.correct(time(), here).correction;
        for _ in 0..20 {
            learned.see_compute(here, 1.0, 1.0);
        }
        learned.see_compute(here, 1e9, 1.0);
        assert!(now() > 1.0 && now() < 1.4, "{}", now());
        for nonsense in [f64::NAN, 0.0, f64::INFINITY] {
            learned.see_compute(here, nonsense, 1.0);
            learned.see_compute(here, 1.0, nonsense);
        }
        for _ in 0..200 {
            learned.see_compute(here, 1e9, 1.0);
        }
        assert!((now() - RATIO_MAX).abs() < 1e-6);
        for _ in 0..40 {
            learned.see_compute(here, 1.0, 1.0);
        }
        assert!((now() - 1.0).abs() < 0.02, "{}", now());
    }

    #[test]
    fn reading_is_corrected_by_itself_and_can_become_what_passes_wait_for() {
        let learned = TimeCorrections::default();
        learned.see_reading(4.0, 1.0);
        let corrected = learned.correct(time(), kind(Level::Standard, 1));
        assert_eq!(corrected.compute_s, 2.0);
        assert!((corrected.reader_s - 6.0).abs() < 1e-9 && corrected.waits());
        assert!((corrected.correction - 2.0).abs() < 1e-9);
    }
}
