//! What `sluice optimize` found out about a model: the mix that it chose, and the loss that other budgets would lead to.

use sluice_proto::v1::{LossPoint, Operation, OperationState, operation::Outcome};
use sluice_shared::mix::MixId;

/// The result of an optimization.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimization {
    /// The mix that was made.
    pub mix: MixId,
    /// Its mean bits per weight.
    pub bits_per_weight: f64,
    /// Divergence from the checkpoint that was predicted for it, in nats.
    pub predicted_kl_nats: f64,
    /// The same of one rate for all matrices, in as many bytes.
    pub uniform_kl_nats: f64,
    /// The mix's divergence that was measured, in nats.
    pub measured_kl_nats: f64,
    /// Standard error of what was measured.
    pub measured_kl_standard_error: f64,
    /// Mixes for other budgets, by rising bytes; each loss is finite and above 0, so that it has a logarithm.
    pub curve: Vec<LossPoint>,
}

impl Optimization {
    /// The result of an operation; `None` of other kinds, where it has not ended well, and where nothing was predicted.
    #[must_use]
    pub fn of(operation: &Operation) -> Option<Self> {
        let Some(Outcome::Optimize(made)) = &operation.outcome else {
            return None;
        };
        if operation.state() != OperationState::Done {
            return None;
        }
        let prediction = made.prediction.as_ref()?;
        let points = prediction.curve.iter().copied();
        let mut curve: Vec<_> = points
            .filter(|point| is_loss(point.predicted_kl_nats))
            .collect();
        curve.sort_by_key(|point| point.bytes);
        Some(Self {
            mix: MixId::from_number(made.mix)?,
            bits_per_weight: made.bits_per_weight,
            predicted_kl_nats: prediction.kl_nats,
            uniform_kl_nats: prediction.uniform_kl_nats,
            measured_kl_nats: made.measured_kl_nats,
            measured_kl_standard_error: made.measured_kl_standard_error,
            curve,
        })
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
        format!(
            "{:.2} bits per weight; KL {} nats predicted, {} ± {} measured; with one rate for all matrices {} predicted",
            self.bits_per_weight,
            nats(self.predicted_kl_nats),
            nats(self.measured_kl_nats),
            nats(self.measured_kl_standard_error),
            nats(self.uniform_kl_nats),
        )
    }
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
    use sluice_proto::v1::{LossPrediction, OptimizeResult};

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
}
