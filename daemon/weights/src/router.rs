//! Routers of mixtures of experts: which experts a row goes through, and what each counts.

/// How a router chooses from its logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Router {
    /// The most probable experts, each counting as much as its probability.
    Softmax {
        /// Whether the probabilities of those that were chosen are divided by their sum.
        renormalizes: bool,
    },
    /// The best experts of the best groups. An expert counts as much as its sigmoid's share of those chosen.
    SigmoidGroups {
        /// Equal groups of neighbouring experts.
        groups: usize,
        /// Groups that are chosen from: those whose two best experts have the largest sum.
        kept_groups: usize,
        /// What the shares are multiplied by.
        scale: f32,
    },
    /// The most probable experts. An expert counts as much as its share of those chosen, times a number of its own.
    ScaledSoftmax {
        /// What logits are multiplied by.
        logit_scale: f32,
    },
}

impl Router {
    /// Puts the experts of a row of logits that it goes through into `chosen`, the best first, and what each counts into
    /// `weights`. Where experts have a number of their `own`, it is a bias, which decides which are chosen and not what they
    /// count, or with [`Self::ScaledSoftmax`] a factor of what they count. Of equal experts the first is better.
    ///
    /// # Panics
    /// When there are fewer experts than are to be chosen, or groups don't divide them.
    pub fn choose(
        &self,
        logits: &mut [f32],
        own: Option<&[f32]>,
        chosen: &mut [u32],
        weights: &mut [f32],
    ) {
        match *self {
            Self::Softmax { .. } => softmax(logits),
            Self::ScaledSoftmax { logit_scale } => {
                logits.iter_mut().for_each(|logit| *logit *= logit_scale);
                softmax(logits);
            }
            Self::SigmoidGroups { .. } => {
                for logit in logits.iter_mut() {
                    *logit = 1.0 / (1.0 + (-*logit).exp());
                }
            }
        }
        let scores = &*logits;
        let mut choice = scores.to_vec();
        let (bias, factors) = match self {
            Self::ScaledSoftmax { .. } => (None, own),
            Self::Softmax { .. } | Self::SigmoidGroups { .. } => (own, None),
        };
        for (score, bias) in choice.iter_mut().zip(bias.into_iter().flatten()) {
            *score += bias;
        }
        if let Self::SigmoidGroups {
            groups,
            kept_groups,
            ..
        } = *self
        {
            leave_groups(&mut choice, groups, kept_groups);
        }
        take_best(&mut choice, chosen);
        for (weight, &expert) in weights.iter_mut().zip(&*chosen) {
            *weight = scores[expert as usize];
        }
        let (shares, scale) = match *self {
            Self::Softmax { renormalizes } => (renormalizes, 1.0),
            Self::ScaledSoftmax { .. } => (true, 1.0),
            Self::SigmoidGroups { scale, .. } => (true, scale),
        };
        if shares {
            // As the references have it: it matters only where all sigmoids are 0.
            let sum = weights.iter().sum::<f32>() + 1e-20;
            for weight in weights.iter_mut() {
                *weight = *weight / sum * scale;
            }
        }
        if let Some(factors) = factors {
            for (weight, &expert) in weights.iter_mut().zip(&*chosen) {
                *weight *= factors[expert as usize];
            }
        }
    }
}

fn softmax(row: &mut [f32]) {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for value in row.iter_mut() {
        *value = (*value - most).exp();
    }
    let sum: f32 = row.iter().sum();
    for value in row {
        *value /= sum;
    }
}

/// Puts the indices of the best scores into `best`, in falling order, and takes those out of the scores.
fn take_best(scores: &mut [f32], best: &mut [u32]) {
    for place in best {
        let mut found = 0;
        for (index, score) in scores.iter().enumerate() {
            if *score > scores[found] {
                found = index;
            }
        }
        scores[found] = f32::NEG_INFINITY;
        *place = found as u32;
    }
}

/// Takes all groups but the best out of the scores.
fn leave_groups(scores: &mut [f32], groups: usize, kept: usize) {
    let len = scores.len() / groups;
    let two_best = |group: &[f32]| {
        let mut two = [f32::NEG_INFINITY; 2];
        for &score in group {
            match score {
                _ if score > two[0] => two = [score, two[0]],
                _ if score > two[1] => two[1] = score,
                _ => {}
            }
        }
        // A group of one expert has no second.
        two[0] + if group.len() > 1 { two[1] } else { 0.0 }
    };
    let mut sums: Vec<f32> = scores.chunks_exact(len).map(two_best).collect();
    let mut best = vec![0; kept];
    take_best(&mut sums, &mut best);
    for (number, group) in scores.chunks_exact_mut(len).enumerate() {
        if !best.contains(&(number as u32)) {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(router: Router, logits: &[f32], bias: Option<&[f32]>) -> (Vec<u32>, Vec<f32>) {
        let (mut chosen, mut weights) = (vec![0; 2], vec![0.0; 2]);
        router.choose(&mut logits.to_vec(), bias, &mut chosen, &mut weights);
        (chosen, weights)
    }

    fn close(found: &[f32], expected: &[f32]) {
        let pairs = found.iter().zip(expected);
        assert!(
            pairs.clone().all(|(a, b)| (a - b).abs() < 1e-6),
            "{found:?}"
        );
    }

    #[test]
    fn probabilities_count_as_they_are_or_by_their_shares() {
        let logits = [1f32.ln(), 4f32.ln(), 2f32.ln(), 3f32.ln()];
        let raw = Router::Softmax {
            renormalizes: false,
        };
        let (chosen, weights) = choose(raw, &logits, None);
        assert_eq!(chosen, [1, 3]);
        close(&weights, &[0.4, 0.3]);
        let shared = Router::Softmax { renormalizes: true };
        close(&choose(shared, &logits, None).1, &[4.0 / 7.0, 3.0 / 7.0]);
    }

    #[test]
    fn of_equal_experts_the_first_is_better() {
        let router = Router::Softmax { renormalizes: true };
        assert_eq!(choose(router, &[0.0, 1.0, 1.0, 1.0], None).0, [1, 2]);
    }

    #[test]
    fn a_bias_chooses_and_does_not_count() {
        let router = Router::SigmoidGroups {
            groups: 1,
            kept_groups: 1,
            scale: 2.5,
        };
        let logits = [0.0, 1.0, 2.0, -1.0];
        let bias = [0.0, 0.0, 0.0, 9.0];
        let (chosen, weights) = choose(router, &logits, Some(&bias));
        assert_eq!(chosen, [3, 2]);
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        let sum = sigmoid(-1.0) + sigmoid(2.0);
        close(
            &weights,
            &[2.5 * sigmoid(-1.0) / sum, 2.5 * sigmoid(2.0) / sum],
        );
    }

    #[test]
    fn what_shares_count_may_have_factors() {
        let router = Router::ScaledSoftmax { logit_scale: 0.5 };
        let logits = [1f32.ln(), 16f32.ln(), 4f32.ln(), 9f32.ln()];
        let (chosen, weights) = choose(router, &logits, Some(&[9.0, 2.0, 9.0, 0.5]));
        assert_eq!(chosen, [1, 3]);
        close(&weights, &[4.0 / 7.0 * 2.0, 3.0 / 7.0 * 0.5]);
    }

    #[test]
    fn experts_are_chosen_from_the_best_groups() {
        let router = Router::SigmoidGroups {
            groups: 3,
            kept_groups: 1,
            scale: 1.0,
        };
        // The best expert is in the first group, the two best together in the last.
        let logits = [3.0, -3.0, 0.0, 0.0, 1.5, 1.0];
        assert_eq!(choose(router, &logits, None).0, [4, 5]);
    }
}
