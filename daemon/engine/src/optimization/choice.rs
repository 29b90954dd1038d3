//! What each group may be stored in, what that costs and loses, and the choice under a budget.

use std::{collections::HashMap, iter::Sum};

use sluice_checkpoint::weight_cache::MixedGroup;
use sluice_optimize::allocate::{AllocateError, Allocation, Candidate, Limits, choose};
use sluice_plan::Plan;
use sluice_weights::{SourceTensor, TensorPlan};

use super::{BITS_MAX, BITS_MIN, LossPoint, MatrixGroup};

/// Steps between the rates of a group.
const STEPS_A_BIT: usize = 16;
/// Steps between the mean rates of the curve.
const POINTS_A_BIT: usize = 4;
/// Mean rate that the curve ends with, beyond the highest rate of a group: some are the checkpoint's own then.
const CURVE_BITS_MAX: f64 = 8.0;

/// What a plan stores of each group, and how long a pass's matmuls with it take.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GroupCosts {
    pub(super) bytes: Vec<u64>,
    /// `None` where a rate of the machine is not known.
    pub(super) seconds: Option<Vec<f64>>,
}

impl GroupCosts {
    pub(super) fn of(
        plan: &Plan,
        seconds: Option<&HashMap<usize, f64>>,
        groups: &[MatrixGroup],
    ) -> Self {
        let mut bytes: HashMap<usize, u64> = HashMap::new();
        for tensor in plan.groups.iter().flat_map(|group| &group.tensors) {
            *bytes.entry(tensor.tensor).or_default() += TensorPlan::bytes(tensor);
        }
        Self {
            bytes: by_group(groups, &bytes),
            seconds: seconds.map(|seconds| by_group(groups, seconds)),
        }
    }

    /// With seconds that are so many times as long.
    pub(super) fn corrected(mut self, factor: f64) -> Self {
        for seconds in self.seconds.iter_mut().flatten() {
            *seconds *= factor;
        }
        self
    }

    fn seconds_of(&self, group: usize) -> f64 {
        self.seconds.as_ref().map_or(0.0, |seconds| seconds[group])
    }
}

/// What the tensors of each group have together.
fn by_group<T>(groups: &[MatrixGroup], each: &HashMap<usize, T>) -> Vec<T>
where
    T: for<'a> Sum<&'a T>,
{
    let sum = |group: &MatrixGroup| {
        let tensors = group.tensors.iter();
        tensors.filter_map(|tensor| each.get(tensor)).sum()
    };
    groups.iter().map(sum).collect()
}

/// How a group is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Form {
    /// At so many bits per weight.
    Quantized(f64),
    /// As the checkpoint has it.
    Original,
}

impl Form {
    pub(super) fn bits(self) -> Option<f64> {
        match self {
            Self::Quantized(bits) => Some(bits),
            Self::Original => None,
        }
    }
}

/// The forms that every group may have.
pub(super) struct Choices<'a> {
    groups: &'a [MatrixGroup],
    /// Losses at rate 0, from which others follow as 4^-R.
    sensitivities: Vec<f64>,
    candidates: Vec<Vec<Candidate>>,
}

/// What was chosen.
pub(super) struct Chosen {
    pub(super) forms: Vec<Form>,
    pub(super) allocation: Allocation,
}

impl<'a> Choices<'a> {
    /// `original` are costs of the checkpoint's own weights, `quantized` of a mix.
    pub(super) fn new(
        groups: &'a [MatrixGroup],
        sensitivities: Vec<f64>,
        original: &GroupCosts,
        quantized: &GroupCosts,
    ) -> Self {
        let candidates = groups.iter().zip(&sensitivities).enumerate();
        let candidates = candidates.map(|(at, (group, &sensitivity))| {
            let at_rate = rates().map(|bits| Candidate {
                bytes: bytes_of(group, bits),
                loss: loss(sensitivity, bits),
                seconds: quantized.seconds_of(at),
            });
            let own = Candidate {
                bytes: original.bytes[at],
                loss: 0.0,
                seconds: original.seconds_of(at),
            };
            at_rate.chain([own]).collect()
        });
        Self {
            groups,
            candidates: candidates.collect(),
            sensitivities,
        }
    }

    /// The choice that loses least within these limits.
    pub(super) fn within(&self, limits: Limits) -> Result<Chosen, AllocateError> {
        let allocation = choose(&self.candidates, limits)?;
        let rates: Vec<f64> = rates().collect();
        let form = |&at: &usize| match rates.get(at) {
            Some(&bits) => Form::Quantized(bits),
            None => Form::Original,
        };
        Ok(Chosen {
            forms: allocation.choice.iter().map(form).collect(),
            allocation,
        })
    }

    /// What was chosen for each group, to be kept with the mix.
    pub(super) fn record(&self, chosen: &Chosen, sources: &[SourceTensor]) -> Vec<MixedGroup> {
        let each = chosen.forms.iter().zip(&chosen.allocation.choice);
        let each = each.zip(self.groups.iter().zip(&self.candidates));
        each.map(|((form, &at), (group, candidates))| {
            let Candidate { bytes, loss, .. } = candidates[at];
            MixedGroup {
                tensors: group.names(sources),
                bits: (form.bits()).unwrap_or(bytes as f64 * 8.0 / group.weights as f64),
                is_original: *form == Form::Original,
                bytes,
                predicted_kl_nats: Some(loss),
            }
        })
        .collect()
    }

    /// What all lose with one rate in so many bytes, which is the highest one at most.
    pub(super) fn uniform_loss(&self, bytes: u64) -> f64 {
        let bits = (bytes as f64 * 8.0 / self.weights() as f64).min(BITS_MAX);
        let each = self.sensitivities.iter();
        each.map(|&sensitivity| loss(sensitivity, bits)).sum()
    }

    pub(super) fn weights(&self) -> u64 {
        self.groups.iter().map(|group| group.weights).sum()
    }

    /// Predicted losses from the lowest mean rate on, until nothing is lost.
    pub(super) fn curve(&self, other_bytes: u64) -> Result<Vec<LossPoint>, AllocateError> {
        let count = ((CURVE_BITS_MAX - BITS_MIN) * POINTS_A_BIT as f64) as usize;
        let mut points: Vec<LossPoint> = Vec::with_capacity(count + 1);
        for step in 0..=count {
            let bits = BITS_MIN + step as f64 / POINTS_A_BIT as f64;
            let bytes =
                (bits * self.weights() as f64 / 8.0).ceil() as u64 + self.groups.len() as u64;
            let chosen = self.within(Limits {
                bytes,
                seconds: None,
            })?;
            // With more bytes there is always the choice of the point before.
            let before = points.last().map_or(f64::INFINITY, |last| last.kl_nats);
            points.push(LossPoint {
                bits,
                bytes: other_bytes + bytes,
                kl_nats: chosen.allocation.loss.min(before),
            });
            if chosen.allocation.loss == 0.0 {
                break;
            }
        }
        Ok(points)
    }
}

/// Bytes of a group at so many bits per weight.
pub(super) fn bytes_of(group: &MatrixGroup, bits: f64) -> u64 {
    (group.weights as f64 * bits / 8.0).ceil() as u64
}

fn rates() -> impl Iterator<Item = f64> {
    let count = ((BITS_MAX - BITS_MIN) * STEPS_A_BIT as f64) as usize;
    (0..=count).map(|step| BITS_MIN + step as f64 / STEPS_A_BIT as f64)
}

fn loss(sensitivity: f64, bits: f64) -> f64 {
    sensitivity * (-2.0 * bits).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimization::GroupKind;

    const WEIGHTS: u64 = 4096;

    fn groups() -> Vec<MatrixGroup> {
        let group = |layer| MatrixGroup {
            kind: GroupKind::Down,
            layer,
            tensors: vec![layer],
            weights: WEIGHTS,
        };
        (0..4).map(group).collect()
    }

    fn choices(groups: &[MatrixGroup]) -> Choices<'_> {
        let costs = |bytes, seconds| GroupCosts {
            bytes: vec![bytes; 4],
            seconds: Some(vec![seconds; 4]),
        };
        let sensitivities = vec![1.0, 4.0, 16.0, 100.0];
        Choices::new(
            groups,
            sensitivities,
            &costs(2 * WEIGHTS, 0.1),
            &costs(0, 0.4),
        )
    }

    fn bytes(bits: f64) -> u64 {
        (4.0 * WEIGHTS as f64 * bits / 8.0) as u64
    }

    #[test]
    fn who_loses_more_gets_more_bits_and_the_bound_is_near() {
        let groups = groups();
        let choices = choices(&groups);
        let limits = Limits {
            bytes: bytes(4.0),
            seconds: None,
        };
        let chosen = choices.within(limits).unwrap();
        let bits: Vec<f64> = chosen.forms.iter().filter_map(|form| form.bits()).collect();
        // A factor of four is a bit.
        assert_eq!(bits.len(), 4);
        assert!(
            (bits[1] - bits[0] - 1.0).abs() < 0.13 && (bits[2] - bits[1] - 1.0).abs() < 0.13,
            "{bits:?}"
        );
        assert!(chosen.allocation.bytes <= limits.bytes);
        assert!(chosen.allocation.gap() < 0.02 * chosen.allocation.loss);
        assert!(chosen.allocation.loss < 0.5 * choices.uniform_loss(limits.bytes));
    }

    #[test]
    fn bytes_beyond_the_highest_rate_keep_the_checkpoints_own_weights() {
        let groups = groups();
        let choices = choices(&groups);
        let at = |bits| {
            let limits = Limits {
                bytes: bytes(bits),
                seconds: None,
            };
            choices.within(limits).unwrap()
        };
        let chosen = at(10.5);
        assert_eq!(chosen.forms[3], Form::Original);
        assert!(chosen.forms[0].bits().is_some());
        assert!(at(16.0).forms.iter().all(|form| *form == Form::Original));
        let curve = choices.curve(1000).unwrap();
        assert!(
            curve
                .windows(2)
                .all(|pair| pair[0].bytes < pair[1].bytes && pair[0].kl_nats >= pair[1].kl_nats)
        );
        assert!(curve.last().unwrap().kl_nats < curve[16].kl_nats / 2.0);
    }

    #[test]
    fn a_limit_of_time_keeps_weights_that_need_no_decompression() {
        let groups = groups();
        let choices = choices(&groups);
        let within = |seconds| {
            choices.within(Limits {
                bytes: bytes(9.0),
                seconds: Some(seconds),
            })
        };
        // Three quantized groups at most.
        let chosen = within(1.3).unwrap();
        assert!(chosen.allocation.seconds <= 1.3);
        assert!(chosen.forms.contains(&Form::Original));
        // Two of them as they are, within the bytes.
        assert!(within(1.0).is_ok());
        assert!(matches!(within(0.3), Err(AllocateError::Time { .. })));
    }
}
