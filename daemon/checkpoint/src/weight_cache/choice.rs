//! What an optimizer chose, and what it found out about the mix then, in a small file beside the mix's own: a container
//! that is written is not changed any more, and the same weights may be chosen again for another budget.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

/// Longest file: the record, and a hundred points of a curve.
const BYTES_MAX: u64 = 8 << 20;

/// Where it is kept.
pub(super) fn choice_of(mix: &Path) -> PathBuf {
    mix.with_extension("choice.json")
}

/// The latest choice that led to a mix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MixChoice {
    /// When that was, in milliseconds since 1970.
    pub chosen_unix_ms: u64,
    /// What was chosen, and for what budget.
    pub record: MixRecord,
    /// What was predicted; `None` where a rate was given.
    pub prediction: Option<LossPrediction>,
    /// The divergence that was measured, in nats.
    pub measured_kl_nats: f64,
    /// Its standard error.
    pub measured_kl_standard_error: f64,
}

/// What was chosen, and by what.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MixRecord {
    /// Hash of the calibration that the weights were quantized by; empty: none.
    pub calibration: String,
    /// Device memory that the plan was to fit in; `None` where a rate was given.
    pub budget_bytes: Option<u64>,
    /// The groups that a format was chosen for, in the order of a pass.
    pub groups: Vec<MixedGroup>,
}

impl MixRecord {
    /// Mean bits per weight of all matrices.
    #[must_use]
    pub fn bits(&self) -> f64 {
        let weights = |group: &MixedGroup| 8.0 * group.bytes as f64 / group.bits;
        let bits: f64 = self
            .groups
            .iter()
            .map(|group| 8.0 * group.bytes as f64)
            .sum();
        bits / self.groups.iter().map(weights).sum::<f64>()
    }
}

/// Matrices that have one format, and what that costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MixedGroup {
    /// Names of the checkpoint's tensors.
    pub tensors: Vec<String>,
    /// Bits per weight.
    pub bits: f64,
    /// Whether they are the checkpoint's own, which the mix's file does not have.
    #[serde(default)]
    pub is_original: bool,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Its part of the predicted KL divergence from the checkpoint, in nats; `None` where a rate was given.
    pub predicted_kl_nats: Option<f64>,
}

/// What was predicted of a choice, and of others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LossPrediction {
    /// Divergence of the mix, in nats.
    pub kl_nats: f64,
    /// How far that may be above the best choice's, in nats.
    pub gap_kl_nats: f64,
    /// Divergence with the same rate for all matrices in as many bytes, in nats.
    pub uniform_kl_nats: f64,
    /// Divergence by bytes of the plan, from the lowest mean rate on.
    pub curve: Vec<LossPoint>,
}

/// A point of the curve of loss against bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossPoint {
    /// Mean bits per weight.
    pub bits: f64,
    /// Bytes of the plan.
    pub bytes: u64,
    /// Predicted divergence, in nats.
    pub kl_nats: f64,
}

impl MixChoice {
    /// What lies beside a mix's file; `None` where nothing does, or nothing that was written by [`MixChoice::write`].
    pub(super) fn read(mix: &Path) -> Option<Self> {
        let path = choice_of(mix);
        let is_short = fs::metadata(&path).is_ok_and(|file| file.len() <= BYTES_MAX);
        let text = is_short.then(|| fs::read(&path).ok()).flatten()?;
        let mut known: Self = serde_json::from_slice(&text).ok()?;
        let now_unix_ms = unix_ms(SystemTime::now())?;
        if known.chosen_unix_ms > now_unix_ms {
            // It would be the latest for ever. It was written when the file says, and not later than now.
            let written = fs::metadata(&path).and_then(|file| file.modified()).ok()?;
            known.chosen_unix_ms = unix_ms(written)?.min(now_unix_ms);
        }
        known.is_possible().then_some(known)
    }

    /// Whether all of it can be. Anybody may have written there, and `serde_json` writes `null` for what is not finite, which it
    /// does not read.
    fn is_possible(&self) -> bool {
        let points = self.prediction.iter().flat_map(|known| &known.curve);
        let rates = self.record.groups.iter().map(|group| group.bits);
        let mut rates = rates.chain(points.clone().map(|point| point.bits));
        let predicted = self.prediction.iter().flat_map(|known| {
            let LossPrediction {
                kl_nats,
                gap_kl_nats,
                uniform_kl_nats,
                ..
            } = *known;
            [kl_nats, gap_kl_nats, uniform_kl_nats]
        });
        let measured = [self.measured_kl_nats, self.measured_kl_standard_error];
        let of_groups = (self.record.groups.iter()).filter_map(|group| group.predicted_kl_nats);
        let losses = predicted.chain(measured).chain(of_groups);
        let mut losses = losses.chain(points.map(|point| point.kl_nats));
        rates.all(|bits| bits.is_finite() && bits > 0.0)
            && losses.all(|nats| nats.is_finite() && nats >= 0.0)
    }

    /// Writes it in the place of an earlier one; refuses what would not be read again.
    pub(super) fn write(&self, mix: &Path) -> io::Result<()> {
        if !self.is_possible() {
            let problem = "a loss or a rate is no number that can be";
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        let path = choice_of(mix);
        let new = path.with_extension("json.partial");
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        let written = write();
        if written.is_err() {
            // A disk may be full; whoever asked is told of the first error.
            drop(fs::remove_file(&new));
        }
        written
    }
}

/// Milliseconds since 1970.
pub(super) fn unix_ms(time: SystemTime) -> Option<u64> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn choice() -> MixChoice {
        MixChoice {
            chosen_unix_ms: 1_700_000_000_000,
            record: MixRecord {
                groups: vec![MixedGroup {
                    tensors: vec!["up".to_owned()],
                    bits: 3.5,
                    is_original: false,
                    bytes: 7,
                    predicted_kl_nats: Some(0.25),
                }],
                ..MixRecord::default()
            },
            prediction: Some(LossPrediction {
                kl_nats: 0.25,
                gap_kl_nats: 0.0,
                uniform_kl_nats: 0.5,
                curve: vec![LossPoint {
                    bits: 2.0,
                    bytes: 9,
                    kl_nats: 1.0,
                }],
            }),
            measured_kl_nats: 0.125,
            measured_kl_standard_error: 0.0625,
        }
    }

    /// Everything that can be wrong with a number of a choice.
    fn impossible(lossy: f64, rate: f64) -> impl Iterator<Item = MixChoice> {
        let alter: [fn(&mut MixChoice, f64, f64); 8] = [
            |it, _, rate| it.record.groups[0].bits = rate,
            |it, loss, _| it.record.groups[0].predicted_kl_nats = Some(loss),
            |it, loss, _| it.prediction.as_mut().unwrap().kl_nats = loss,
            |it, loss, _| it.prediction.as_mut().unwrap().gap_kl_nats = loss,
            |it, loss, _| it.prediction.as_mut().unwrap().uniform_kl_nats = loss,
            |it, _, rate| it.prediction.as_mut().unwrap().curve[0].bits = rate,
            |it, loss, _| it.prediction.as_mut().unwrap().curve[0].kl_nats = loss,
            |it, loss, _| it.measured_kl_nats = loss,
        ];
        alter.into_iter().map(move |alter| {
            let mut altered = choice();
            alter(&mut altered, lossy, rate);
            altered
        })
    }

    #[test]
    fn what_cannot_be_is_neither_read_nor_written() {
        let folder = TempDir::new().unwrap();
        let mix = folder.path().join("a.sluice");
        choice().write(&mix).unwrap();
        assert_eq!(MixChoice::read(&mix), Some(choice()));
        for (loss, rate) in [(-0.5, 0.0), (-1e-9, -3.0), (f64::NAN, f64::INFINITY)] {
            for altered in impossible(loss, rate) {
                altered.write(&mix).unwrap_err();
                assert_eq!(MixChoice::read(&mix), Some(choice()), "{altered:?}");
                fs::write(choice_of(&mix), serde_json::to_vec(&altered).unwrap()).unwrap();
                let read = MixChoice::read(&mix);
                // A prediction of a group may be left out, as `null` says.
                let is_left_out = read.as_ref().is_some_and(|read| {
                    loss.is_nan() && read.record.groups[0].predicted_kl_nats.is_none()
                });
                assert!(read.is_none() || is_left_out, "{altered:?}");
                choice().write(&mix).unwrap();
            }
        }
        let names = fs::read_dir(folder.path()).unwrap();
        assert_eq!(names.count(), 1, "nothing is left of what was refused");
    }

    #[test]
    fn a_choice_of_the_future_is_as_old_as_its_file() {
        let folder = TempDir::new().unwrap();
        let mix = folder.path().join("a.sluice");
        let future = MixChoice {
            chosen_unix_ms: u64::MAX,
            ..choice()
        };
        future.write(&mix).unwrap();
        let at = UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
        let file = File::options().write(true).open(choice_of(&mix)).unwrap();
        file.set_modified(at).unwrap();
        assert_eq!(MixChoice::read(&mix), Some(choice()));
    }
}
