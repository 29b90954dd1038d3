//! What an optimizer chose, and what it found out about the mix then, in a small file beside the mix's own: a container
//! that is written is not changed any more, and the same weights may be chosen again for another budget.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
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
        let text = is_short.then(|| fs::read(path).ok()).flatten()?;
        let known: Self = serde_json::from_slice(&text).ok()?;
        known.is_possible().then_some(known)
    }

    /// Anybody may have written there.
    fn is_possible(&self) -> bool {
        let predicted = self.prediction.iter().flat_map(|predicted| {
            let points = predicted.curve.iter();
            let points = points.flat_map(|point| [point.bits, point.kl_nats]);
            points.chain([predicted.kl_nats, predicted.uniform_kl_nats])
        });
        let measured = [self.measured_kl_nats, self.measured_kl_standard_error];
        let rates = self.record.groups.iter().map(|group| group.bits);
        let mut all = predicted.chain(measured).chain(rates);
        all.all(f64::is_finite)
    }

    /// Writes it in the place of an earlier one.
    pub(super) fn write(&self, mix: &Path) -> io::Result<()> {
        let path = choice_of(mix);
        let new = path.with_extension("json.partial");
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        fs::rename(new, path)
    }
}
