//! What each group loses: measured alone, a few groups to a turn, and kept beside the mix that was measured.

use std::{fs, io::Write, path::PathBuf};

use serde::{Deserialize, Serialize};
use sluice_checkpoint::weight_cache::{Mixes, OpenMix, losses_of};
use sluice_optimize::allocate::{Sensitivity, shrink};
use sluice_weights::SourceTensor;

use super::{BITS_MEASURED, MatrixGroup, Measure, OptimizeError, OptimizeProgress};

/// Groups of one turn: other requests wait for no more. The checkpoint's own rows are computed once a turn.
const TURN_GROUPS: usize = 4;
/// Longest file of measurements.
const BYTES_MAX: u64 = 4 << 20;

/// What a group loses at the rate that all are measured at.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct GroupLoss {
    /// Mean KL divergence, in nats.
    pub(super) kl: f64,
    /// Its standard error.
    pub(super) standard_error: f64,
}

/// Measurements of a mix's groups, the first ones first.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Measured {
    /// What they were measured on, and how.
    text_hash: u64,
    seed: u64,
    losses: Vec<GroupLoss>,
}

/// Measures every group, but for those that an earlier run has measured on the same texts.
pub(super) fn measure_losses(
    measure: &Measure<'_>,
    (candidate, mixes, groups, sources): (&OpenMix, &Mixes, &[MatrixGroup], &[SourceTensor]),
    (samples, text_hash): (&[Vec<u32>], u64),
    report: &mut dyn FnMut(OptimizeProgress),
) -> Result<Vec<GroupLoss>, OptimizeError> {
    let path = losses_of(&mixes.path(candidate.id));
    let mut measured = Measured::read(&path, text_hash, measure.seed);
    measured.losses.truncate(groups.len());
    while measured.losses.len() < groups.len() {
        let done = measured.losses.len();
        report(OptimizeProgress::Measuring {
            done,
            total: groups.len(),
        });
        let turn = &groups[done..groups.len().min(done + TURN_GROUPS)];
        let parts = turn.iter().map(|group| group.keys(sources)).collect();
        let losses = measure.parts(candidate.id, parts, samples)?;
        measured.losses.extend(losses.iter().map(|loss| GroupLoss {
            kl: loss.mean_kl,
            standard_error: loss.standard_error,
        }));
        // Where it cannot be written, only time is lost.
        drop(measured.write(&path));
    }
    Ok(measured.losses)
}

impl Measured {
    fn read(path: &PathBuf, text_hash: u64, seed: u64) -> Self {
        let is_short = fs::metadata(path).is_ok_and(|file| file.len() <= BYTES_MAX);
        let text = is_short.then(|| fs::read(path).ok()).flatten();
        let known = text.and_then(|text| serde_json::from_slice::<Self>(&text).ok());
        let is_same = |known: &Self| (known.text_hash, known.seed) == (text_hash, seed);
        // Anybody may have written there: losses that can't be are measured again.
        let is_possible = |known: &Self| {
            let mut losses = known.losses.iter();
            losses.all(|loss| loss.kl.is_finite() && loss.standard_error.is_finite())
        };
        known
            .filter(|known| is_same(known) && is_possible(known))
            .unwrap_or(Self {
                text_hash,
                seed,
                losses: Vec::new(),
            })
    }

    fn write(&self, path: &PathBuf) -> std::io::Result<()> {
        let new = path.with_extension("json.partial");
        let mut file = fs::File::create(&new)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        fs::rename(new, path)
    }
}

/// Each group's loss at rate 0 by the model 4^-R, with noise taken out: groups of one kind are moved toward their mean,
/// the more the noisier they are.
pub(super) fn sensitivities(groups: &[MatrixGroup], losses: &[GroupLoss]) -> Vec<f64> {
    let noisy: Vec<Sensitivity> = groups
        .iter()
        .zip(losses)
        .map(|(group, loss)| {
            let kl = loss.kl.max(f64::MIN_POSITIVE);
            Sensitivity {
                log: (kl / group.weights as f64).ln(),
                variance: (loss.standard_error / kl).powi(2),
                group_type: group.kind as usize,
            }
        })
        .collect();
    let each = groups.iter().zip(shrink(&noisy));
    each.map(|(group, log)| log.exp() * group.weights as f64 * (2.0 * BITS_MEASURED).exp2())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimization::GroupKind;

    #[test]
    fn measurements_are_found_again_for_the_same_texts_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mix.losses.json");
        let loss = GroupLoss {
            kl: 0.25,
            standard_error: 0.01,
        };
        let measured = Measured {
            text_hash: 7,
            seed: 1,
            losses: vec![loss],
        };
        measured.write(&path).unwrap();
        assert_eq!(Measured::read(&path, 7, 1).losses, [loss]);
        assert_eq!(Measured::read(&path, 8, 1).losses, []);
        assert_eq!(Measured::read(&path, 7, 2).losses, []);
        for wrong in [
            "",
            "{}",
            r#"{"text_hash":7,"seed":1,"losses":[{"kl":1e999,"standard_error":0}]}"#,
        ] {
            fs::write(&path, wrong).unwrap();
            assert_eq!(Measured::read(&path, 7, 1).losses, [], "{wrong}");
        }
    }

    #[test]
    fn a_loss_at_another_rate_follows_and_noise_is_taken_out() {
        let group = |layer| MatrixGroup {
            kind: GroupKind::Down,
            layer,
            tensors: vec![layer],
            weights: 1000,
        };
        let groups = [group(0), group(1), group(2)];
        let exact = |kl| GroupLoss {
            kl,
            standard_error: kl * 1e-6,
        };
        let found = sensitivities(&groups, &[exact(0.1), exact(0.4), exact(0.2)]);
        for (found, expected) in found.iter().zip([6.4, 25.6, 12.8]) {
            assert!((found / expected - 1.0).abs() < 1e-3, "{found} {expected}");
        }
        let noisy = |kl| GroupLoss {
            kl,
            standard_error: kl,
        };
        let found = sensitivities(&groups, &[noisy(0.1), noisy(0.4), noisy(0.2)]);
        assert!(found[1] / found[0] < 1.5, "{found:?}");
    }
}
