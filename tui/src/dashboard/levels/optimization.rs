//! What `sluice optimize` and `sluice quantize` found out about a model: the mix that was chosen last, and the loss that other
//! budgets would lead to.

use sluice_proto::v1::{
    LossPoint, LossPrediction, Mix, Operation, OperationState, operation::Outcome,
};
use sluice_shared::mix::MixId;

/// The mix that was chosen last.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimization {
    /// The mix.
    pub mix: MixId,
    /// Its mean bits per weight.
    pub bits_per_weight: f64,
    /// What was predicted for it; `None` where a rate was asked for.
    pub predicted: Option<PredictedLoss>,
    /// What was measured; `None` where the daemon was killed before that.
    pub measured: Option<MeasuredLoss>,
    /// Mixes for other budgets, by rising bytes; each loss is finite and above 0, so that it has a logarithm. Of an earlier
    /// optimization where this one asked for a rate, and empty where there was none.
    pub curve: Vec<LossPoint>,
}

/// Divergences from the checkpoint that were predicted, in nats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictedLoss {
    /// Of the mix.
    pub kl_nats: f64,
    /// Of one rate for all matrices, in as many bytes.
    pub uniform_kl_nats: f64,
}

/// A divergence that was measured, in nats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredLoss {
    /// Its mean.
    pub kl_nats: f64,
    /// Its standard error.
    pub standard_error: f64,
}

impl Optimization {
    /// The result of an operation; `None` of other kinds, and where it has not ended well.
    #[must_use]
    pub fn of(operation: &Operation) -> Option<Self> {
        let Some(Outcome::Optimize(made)) = &operation.outcome else {
            return None;
        };
        if operation.state() != OperationState::Done {
            return None;
        }
        let measured = MeasuredLoss {
            kl_nats: made.measured_kl_nats,
            standard_error: made.measured_kl_standard_error,
        };
        let (bits, prediction) = (made.bits_per_weight, made.prediction.as_ref());
        Self::new(made.mix, bits, prediction, Some(measured))
    }

    /// The last of the mixes that the daemon keeps of a model; `None` where it keeps none.
    #[must_use]
    pub fn last_of(kept: &[Mix]) -> Option<Self> {
        let last = kept.last()?;
        let measured = last.measured_kl_nats.map(|kl_nats| MeasuredLoss {
            kl_nats,
            standard_error: last.measured_kl_standard_error.unwrap_or_default(),
        });
        let (bits, prediction) = (last.bits_per_weight, last.prediction.as_ref());
        let known = Self::new(last.mix, bits, prediction, measured)?;
        // What other budgets lead to is the same for all mixes of a model, so that of an earlier one will do.
        let curves = kept.iter().rev().filter_map(|mix| mix.prediction.as_ref());
        Some(known.with_curve(curves.map(curve).find(|curve| !curve.is_empty())))
    }

    fn new(
        mix: u32,
        bits_per_weight: f64,
        prediction: Option<&LossPrediction>,
        measured: Option<MeasuredLoss>,
    ) -> Option<Self> {
        Some(Self {
            mix: MixId::from_number(mix)?,
            bits_per_weight,
            predicted: prediction.map(|prediction| PredictedLoss {
                kl_nats: prediction.kl_nats,
                uniform_kl_nats: prediction.uniform_kl_nats,
            }),
            measured,
            curve: prediction.map(curve).unwrap_or_default(),
        })
    }

    /// With this curve, unless it has one of its own.
    #[must_use]
    pub fn with_curve(mut self, curve: Option<Vec<LossPoint>>) -> Self {
        if self.curve.is_empty() {
            self.curve = curve.unwrap_or_default();
        }
        self
    }

    /// Device memory of the mix's plan, by the curve; `None` where the curve does not reach its rate.
    #[must_use]
    pub fn plan_bytes(&self) -> Option<u64> {
        let bits = self.bits_per_weight;
        let mut pairs = self.curve.windows(2);
        pairs.find_map(|pair| {
            let (low, high) = (&pair[0], &pair[1]);
            let span = high.bits_per_weight - low.bits_per_weight;
            let share = (bits - low.bits_per_weight) / span;
            let bytes = (high.bytes - low.bytes) as f64 * share;
            (0.0..=1.0)
                .contains(&share)
                .then(|| low.bytes + bytes as u64)
        })
    }

    /// Its figures, in a line.
    #[must_use]
    pub fn words(&self) -> String {
        let mut words = format!("{:.2} bits per weight", self.bits_per_weight);
        let mut losses = Vec::new();
        losses.extend(
            self.predicted
                .map(|loss| format!("{} nats predicted", nats(loss.kl_nats))),
        );
        losses.extend(self.measured.map(|loss| {
            let (mean, error) = (nats(loss.kl_nats), nats(loss.standard_error));
            // The unit stands with the first figure.
            let unit = if self.predicted.is_some() {
                ""
            } else {
                " nats"
            };
            format!("{mean} ± {error}{unit} measured")
        }));
        if !losses.is_empty() {
            words += &format!("; KL {}", losses.join(", "));
        }
        if let Some(loss) = self.predicted {
            let uniform = nats(loss.uniform_kl_nats);
            words += &format!("; with one rate for all matrices {uniform} predicted");
        }
        words
    }
}

/// The points of a prediction that have a logarithm.
fn curve(prediction: &LossPrediction) -> Vec<LossPoint> {
    let points = prediction.curve.iter().copied();
    let mut curve: Vec<_> = points
        .filter(|point| is_loss(point.predicted_kl_nats))
        .collect();
    curve.sort_by_key(|point| point.bytes);
    curve
}

/// Whether a divergence has a place on a logarithmic axis.
pub(in super::super) fn is_loss(kl_nats: f64) -> bool {
    kl_nats.is_finite() && kl_nats > 0.0
}

fn nats(kl_nats: f64) -> String {
    format!("{kl_nats:.4}")
}

#[cfg(test)]
mod tests {
    use sluice_proto::v1::OptimizeResult;

    use super::*;

    fn operation(bits_per_weight: f64) -> Operation {
        let point = |bits_per_weight: f64, bytes, predicted_kl_nats| LossPoint {
            bits_per_weight,
            bytes,
            predicted_kl_nats,
        };
        Operation {
            state: OperationState::Done.into(),
            outcome: Some(Outcome::Optimize(OptimizeResult {
                mix: 7,
                bits_per_weight,
                prediction: Some(LossPrediction {
                    curve: vec![
                        point(4.0, 4_000, 0.01),
                        point(2.0, 2_000, 0.1),
                        point(6.0, 6_000, 0.0),
                    ],
                    ..Default::default()
                }),
                ..Default::default()
            })),
            ..Default::default()
        }
    }

    #[test]
    fn the_memory_of_a_mix_is_found_on_the_curve() {
        let made = |bits| Optimization::of(&operation(bits)).expect("it is one");
        assert_eq!(made(2.5).plan_bytes(), Some(2_500));
        assert_eq!(made(4.0).plan_bytes(), Some(4_000));
        // A loss of 0 has no logarithm, so the curve ends before it.
        assert_eq!(made(5.0).plan_bytes(), None);
    }

    #[test]
    fn what_failed_or_names_no_mix_is_none() {
        let mut failed = operation(4.0);
        failed.state = OperationState::Failed.into();
        assert_eq!(Optimization::of(&failed), None);
        let mut unnamed = operation(4.0);
        unnamed.outcome = Some(Outcome::Optimize(OptimizeResult::default()));
        assert_eq!(Optimization::of(&unnamed), None);
        assert_eq!(Optimization::of(&Operation::default()), None);
    }

    #[test]
    fn the_last_mix_that_is_kept_counts_with_an_earlier_curve() {
        let Some(Outcome::Optimize(made)) = operation(3.0).outcome else {
            unreachable!("it is one");
        };
        let optimized = Mix {
            mix: 7,
            prediction: made.prediction,
            measured_kl_nats: Some(0.02),
            ..Default::default()
        };
        let quantized = Mix {
            mix: 8,
            bits_per_weight: 3.0,
            ..Default::default()
        };
        assert_eq!(Optimization::last_of(&[]), None);
        let known = Optimization::last_of(&[optimized, quantized.clone()]).expect("there are two");
        assert_eq!(known.mix.number(), 8);
        assert_eq!((known.predicted, known.measured), (None, None));
        assert_eq!(known.plan_bytes(), Some(3_000));
        assert_eq!(known.words(), "3.00 bits per weight");
        let alone = Optimization::last_of(&[quantized]).expect("there is one");
        assert_eq!((alone.curve.len(), alone.plan_bytes()), (0, None));
    }
}
