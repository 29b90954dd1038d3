//! Measurements of fidelity that came to their end: kept for every client, whoever asked for them.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use sluice_engine::{MeasureFidelity, Outcome};
use sluice_proto::v1::{self, ProgressUnit, operation};
use twox_hash::XxHash3_64;

use crate::{events::figures::Figures, models::ServingModel, operations::ChangeNotifier};

/// Measurements that are kept; beyond that the earliest goes.
pub const MEASUREMENTS_MAX: usize = 64;

/// All that are kept; clones share them.
#[derive(Debug, Clone)]
pub struct Measurements {
    all: Arc<Mutex<Vec<v1::FidelityMeasurement>>>,
    changes: ChangeNotifier,
}

impl Measurements {
    /// Without any result.
    #[must_use]
    pub fn new(changes: ChangeNotifier) -> Self {
        Self {
            all: Arc::default(),
            changes,
        }
    }

    /// All, the earliest first.
    #[must_use]
    pub fn all(&self) -> Vec<v1::FidelityMeasurement> {
        self.lock().clone()
    }

    /// Keeps one in the place of an earlier one of the same model, level and samples.
    pub fn insert(&self, measurement: v1::FidelityMeasurement) {
        let mut kept = self.lock();
        kept.retain(|known| key(known) != key(&measurement));
        kept.push(measurement);
        let excess = kept.len().saturating_sub(MEASUREMENTS_MAX);
        kept.drain(..excess);
        drop(kept);
        self.changes.tell();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<v1::FidelityMeasurement>> {
        // Nothing half done is ever seen under it.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What two measurements have in common of which the later one counts.
fn key(measurement: &v1::FidelityMeasurement) -> (&str, u64, u64, Option<v1::Level>) {
    let result = measurement.result.as_ref();
    (
        &measurement.model,
        measurement.parameters,
        measurement.samples_hash,
        result.map(|result| result.level()),
    )
}

/// A measurement that is about to run; its result is kept.
pub struct PendingMeasurement {
    result: v1::FidelityResult,
    /// Without the result.
    measurement: v1::FidelityMeasurement,
    measurements: Measurements,
}

impl PendingMeasurement {
    /// Of this work, with this model.
    #[must_use]
    pub fn new(kept: Measurements, serving: &ServingModel, work: &MeasureFidelity) -> Self {
        Self {
            result: v1::FidelityResult {
                seed: work.seed,
                ..Default::default()
            },
            measurement: v1::FidelityMeasurement {
                model: serving.name.name.clone(),
                parameters: serving.loaded.info.parameters,
                samples_hash: hash(&work.samples),
                ..Default::default()
            },
            measurements: kept,
        }
    }
}

impl Figures for PendingMeasurement {
    const UNIT: ProgressUnit = v1::FidelityResult::UNIT;

    fn result(&self, outcome: Outcome) -> Result<operation::Outcome, Outcome> {
        let elapsed = match &outcome {
            Outcome::Fidelity(result) => result.elapsed,
            _ => return Err(outcome),
        };
        let result = self.result.result(outcome)?;
        if let operation::Outcome::Fidelity(result) = result {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            self.measurements.insert(v1::FidelityMeasurement {
                measured_unix_ms: since.map_or(0, |since| since.as_millis() as u64),
                elapsed_ms: elapsed.as_secs_f64() * 1000.0,
                result: Some(result),
                ..self.measurement.clone()
            });
        }
        Ok(result)
    }
}

/// The same for the same samples, in every version.
pub(crate) fn hash(samples: &[Vec<u32>]) -> u64 {
    let mut bytes = Vec::new();
    for sample in samples {
        bytes.extend_from_slice(&(sample.len() as u64).to_le_bytes());
        bytes.extend(sample.iter().flat_map(|id| id.to_le_bytes()));
    }
    XxHash3_64::oneshot(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(model: &str, level: v1::Level, samples_hash: u64) -> v1::FidelityMeasurement {
        v1::FidelityMeasurement {
            model: model.into(),
            parameters: 1,
            samples_hash,
            measured_unix_ms: 0,
            elapsed_ms: 0.0,
            result: Some(v1::FidelityResult {
                level: level.into(),
                ..Default::default()
            }),
        }
    }

    #[test]
    fn the_last_of_a_model_level_and_text_is_kept_up_to_a_bound() {
        let kept = Measurements::new(ChangeNotifier::default());
        for (model, level, text) in [
            ("a", v1::Level::Moderate, 1),
            ("a", v1::Level::Aggressive, 1),
            ("b", v1::Level::Moderate, 1),
            ("a", v1::Level::Moderate, 2),
            ("a", v1::Level::Moderate, 1),
        ] {
            kept.insert(measurement(model, level, text));
        }
        let all = kept.all();
        assert_eq!(all.len(), 4);
        assert_eq!(
            all[3],
            measurement("a", v1::Level::Moderate, 1),
            "the latest last"
        );
        for text in 0..1_000 {
            kept.insert(measurement("c", v1::Level::Moderate, text));
        }
        let all = kept.all();
        assert_eq!(all.len(), MEASUREMENTS_MAX);
        assert_eq!(all[MEASUREMENTS_MAX - 1].samples_hash, 999);
    }

    #[test]
    fn samples_that_are_cut_otherwise_are_other_samples() {
        let hashes = [
            hash(&[vec![1, 2], vec![3]]),
            hash(&[vec![1], vec![2, 3]]),
            hash(&[vec![1, 2, 3]]),
        ];
        assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2] && hashes[0] != hashes[2]);
        assert_eq!(hash(&[vec![1, 2], vec![3]]), hashes[0]);
    }
}
