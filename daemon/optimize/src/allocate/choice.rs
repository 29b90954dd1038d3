//! One candidate for each group, under limits: Lagrange multipliers over convex hulls, then what still fits.

use super::{
    AllocateError,
    hull::{Corners, Point, best_corners},
};

/// Rounds of bisection for the multiplier of time.
const ROUNDS: usize = 60;

/// A format that a group may be stored in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Bytes of the group in this format.
    pub bytes: u64,
    /// Predicted loss; losses of groups add up.
    pub loss: f64,
    /// Its share of a pass.
    pub seconds: f64,
}

/// What all groups together may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Bytes.
    pub bytes: u64,
    /// Seconds of a pass, if they are limited.
    pub seconds: Option<f64>,
}

/// A choice for all groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// The candidate of each group.
    pub choice: Vec<usize>,
    /// Bytes in all.
    pub bytes: u64,
    /// Loss in all.
    pub loss: f64,
    /// Seconds in all.
    pub seconds: f64,
    /// No choice within the limits has less loss than this.
    pub bound: f64,
}

impl Allocation {
    /// How far the loss may be above the optimum.
    #[must_use]
    pub fn gap(&self) -> f64 {
        (self.loss - self.bound).max(0.)
    }
}

/// Chooses a candidate for each group, with a loss as small as possible within the limits. Takes time in proportion to
/// the number of candidates and its logarithm, and with a limit of seconds sixty times as much.
///
/// # Errors
/// When a number can't be what it should, or nothing within the limits is found. A limit of seconds close to the least
/// possible may be missed.
pub fn choose(groups: &[Vec<Candidate>], limits: Limits) -> Result<Allocation, AllocateError> {
    for (at, candidates) in groups.iter().enumerate() {
        if candidates.is_empty() {
            return Err(AllocateError::NoCandidates(at));
        }
        let is_valid = |number: f64| number.is_finite() && number >= 0.;
        if !candidates
            .iter()
            .all(|one| is_valid(one.loss) && is_valid(one.seconds))
        {
            return Err(AllocateError::Group(at));
        }
    }
    let problem = Problem { groups, limits };
    let least = groups
        .iter()
        .map(|group| group.iter().map(|one| one.bytes).min());
    let least: u64 = least.map(|bytes| bytes.unwrap_or(0)).sum();
    if least > limits.bytes {
        return Err(AllocateError::Budget {
            budget: limits.bytes as f64,
            least: least as f64,
        });
    }
    let (choice, bound) = match limits.seconds {
        None => {
            let corners = problem.corners(0., 1.);
            (corners.choice, corners.bound)
        }
        Some(seconds) => problem.within_seconds(seconds)?,
    };
    Ok(problem.filled(choice, bound))
}

struct Problem<'a> {
    groups: &'a [Vec<Candidate>],
    limits: Limits,
}

impl Problem<'_> {
    /// The best corners where a second costs `multiplier` of loss; `share` weighs the losses themselves.
    fn corners(&self, multiplier: f64, share: f64) -> Corners {
        let points: Vec<Vec<Point>> = self
            .groups
            .iter()
            .map(|group| {
                let point = |one: &Candidate| {
                    (
                        one.bytes as f64,
                        share * one.loss + multiplier * one.seconds,
                    )
                };
                group.iter().map(point).collect()
            })
            .collect();
        let corners = best_corners(&points, self.limits.bytes as f64);
        corners.expect("the smallest candidates fit")
    }

    /// Bisection on the multiplier of seconds. Each multiplier gives a bound: its best corners' cost, less what the
    /// limit itself costs.
    fn within_seconds(&self, limit: f64) -> Result<(Vec<usize>, f64), AllocateError> {
        let free = self.corners(0., 1.);
        if self.seconds(&free.choice) <= limit {
            return Ok((free.choice, free.bound));
        }
        let fastest = self.corners(1., 0.).choice;
        let least = self.seconds(&fastest);
        if least > limit {
            return Err(AllocateError::Time { limit, least });
        }
        let (mut best, mut bound) = (fastest, free.bound);
        // Multipliers are of any magnitude, so their logarithms are halved: from a trillionth of all losses per limit
        // to a trillion times as much.
        let losses: f64 = self.groups.iter().flatten().map(|one| one.loss).sum();
        let unit = losses.max(f64::MIN_POSITIVE) / limit.max(f64::MIN_POSITIVE);
        let (mut low, mut high) = (-40_f64, 40_f64);
        for _ in 0..ROUNDS {
            let middle = (low + high) / 2.;
            let multiplier = unit * middle.exp2();
            let corners = self.corners(multiplier, 1.);
            bound = bound.max(corners.bound - multiplier * limit);
            if self.seconds(&corners.choice) <= limit {
                high = middle;
                if self.loss(&corners.choice) < self.loss(&best) {
                    best = corners.choice;
                }
            } else {
                low = middle;
            }
        }
        Ok((best, bound))
    }

    /// Takes better candidates while they fit, first the ones that save most for their share of what is left.
    fn filled(&self, mut choice: Vec<usize>, bound: f64) -> Allocation {
        loop {
            let bytes_left = (self.limits.bytes - self.bytes(&choice)) as f64;
            let limit = self.limits.seconds.unwrap_or(f64::INFINITY);
            let seconds_left = limit - self.seconds(&choice);
            let mut best: Option<(f64, usize, usize)> = None;
            for (group, candidates) in self.groups.iter().enumerate() {
                let own = candidates[choice[group]];
                for (at, other) in candidates.iter().enumerate() {
                    let saved = own.loss - other.loss;
                    let bytes = other.bytes as f64 - own.bytes as f64;
                    let seconds = other.seconds - own.seconds;
                    if saved <= 0. || bytes > bytes_left || seconds > seconds_left {
                        continue;
                    }
                    let share = |more: f64, left: f64| if more > 0. { more / left } else { 0. };
                    let cost = share(bytes, bytes_left) + share(seconds, seconds_left);
                    let rate = saved / cost.max(f64::MIN_POSITIVE);
                    if best.is_none_or(|(most, ..)| rate > most) {
                        best = Some((rate, group, at));
                    }
                }
            }
            let Some((_, group, at)) = best else { break };
            choice[group] = at;
        }
        Allocation {
            bytes: self.bytes(&choice),
            loss: self.loss(&choice),
            seconds: self.seconds(&choice),
            choice,
            bound,
        }
    }

    fn chosen(&self, choice: &[usize]) -> impl Iterator<Item = Candidate> {
        let pairs = self.groups.iter().zip(choice);
        pairs.map(|(group, at)| group[*at])
    }

    fn bytes(&self, choice: &[usize]) -> u64 {
        self.chosen(choice).map(|one| one.bytes).sum()
    }

    fn loss(&self, choice: &[usize]) -> f64 {
        self.chosen(choice).map(|one| one.loss).sum()
    }

    fn seconds(&self, choice: &[usize]) -> f64 {
        self.chosen(choice).map(|one| one.seconds).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn candidate(bytes: u64, loss: f64, seconds: f64) -> Candidate {
        Candidate {
            bytes,
            loss,
            seconds,
        }
    }

    /// The least loss within the limits, by trying all choices.
    fn least_loss(groups: &[Vec<Candidate>], limits: Limits) -> Option<f64> {
        let mut all = vec![(0_u64, 0., 0.)];
        for group in groups {
            let added = |(bytes, loss, seconds): (u64, f64, f64)| {
                let of = move |one: &Candidate| {
                    (bytes + one.bytes, loss + one.loss, seconds + one.seconds)
                };
                group.iter().map(of).collect::<Vec<_>>()
            };
            all = all.into_iter().flat_map(added).collect();
        }
        all.into_iter()
            .filter(|(bytes, _, seconds)| {
                *bytes <= limits.bytes && limits.seconds.is_none_or(|limit| *seconds <= limit)
            })
            .map(|(_, loss, _)| loss)
            .reduce(f64::min)
    }

    fn problems() -> impl Strategy<Value = (Vec<Vec<Candidate>>, f64, f64)> {
        let one = (1_u64..60, 0_u32..100, 0_u32..20).prop_map(|(bytes, loss, seconds)| {
            candidate(bytes, f64::from(loss), f64::from(seconds))
        });
        (vec(vec(one, 1..5), 1..6), 0.0..1.0_f64, 0.0..1.0_f64)
    }

    fn between(groups: &[Vec<Candidate>], share: f64, value: impl Fn(&Candidate) -> f64) -> f64 {
        let total = |pick: fn(f64, f64) -> f64, first: f64| -> f64 {
            let of = |group: &Vec<Candidate>| group.iter().map(&value).fold(first, pick);
            groups.iter().map(of).sum()
        };
        let (least, most) = (total(f64::min, f64::MAX), total(f64::max, 0.));
        least + share * (most - least)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn the_bound_is_below_the_optimum_and_the_choice_within_the_gap((groups, share, _) in problems()) {
            let bytes = between(&groups, share, |one| one.bytes as f64) as u64;
            let limits = Limits { bytes, seconds: None };
            let optimum = least_loss(&groups, limits);
            let found = choose(&groups, limits);
            match optimum {
                None => {
                    let is_refused = matches!(found, Err(AllocateError::Budget { .. }));
                    prop_assert!(is_refused);
                }
                Some(optimum) => {
                    let found = found.unwrap();
                    prop_assert!(found.bytes <= bytes);
                    prop_assert!(found.bound <= optimum + 1e-9, "{} {optimum}", found.bound);
                    prop_assert!(found.loss >= optimum - 1e-9 && found.loss - optimum <= found.gap() + 1e-9);
                    // One step of a hull is all that the corners may miss.
                    let largest = groups.iter().flatten().map(|one| one.loss).fold(0., f64::max);
                    prop_assert!(found.gap() <= largest + 1e-9);
                }
            }
        }

        #[test]
        fn limits_of_time_are_kept_and_the_bound_holds((groups, share, slowness) in problems()) {
            let bytes = between(&groups, share, |one| one.bytes as f64) as u64;
            let limit = between(&groups, slowness, |one| one.seconds);
            let limits = Limits { bytes, seconds: Some(limit) };
            match choose(&groups, limits) {
                Ok(found) => {
                    let optimum = least_loss(&groups, limits).unwrap();
                    prop_assert!(found.bytes <= bytes && found.seconds <= limit);
                    prop_assert!(found.bound <= optimum + 1e-6, "{} {optimum}", found.bound);
                    prop_assert!(found.loss >= optimum - 1e-9);
                }
                // Two limits at once are a hard problem: near the edge a choice may be missed.
                Err(AllocateError::Time { least, .. }) => { prop_assert!(least > limit); }
                Err(other) => prop_assert!(least_loss(&groups, limits).is_none(), "{other}"),
            }
        }
    }

    #[test]
    fn a_large_problem_is_solved_nearly_exactly() {
        let groups: Vec<Vec<Candidate>> = (0..500_u64)
            .map(|group| {
                let size = 1_000_000 + group * 7919 % 500_000;
                let loss = 1. + (group * 31 % 97) as f64;
                [2.6, 3.4, 4.5, 5.5, 6.6, 8.5_f64]
                    .map(|bits| {
                        let bytes = (size as f64 * bits / 8.) as u64;
                        candidate(bytes, loss * (-2. * bits).exp2(), bits)
                    })
                    .to_vec()
            })
            .collect();
        let limits = Limits {
            bytes: 312_000_000,
            seconds: Some(1900.),
        };
        let found = choose(&groups, limits).unwrap();
        println!(
            "gap {:.5} of {:.5}, {} bytes, {} s",
            found.gap(),
            found.loss,
            found.bytes,
            found.seconds
        );
        assert!(found.gap() < 2e-3 * found.loss);
        let refused = Limits {
            seconds: Some(100.),
            ..limits
        };
        assert!(matches!(
            choose(&groups, refused),
            Err(AllocateError::Time { .. })
        ));
    }

    #[test]
    fn what_cannot_be_chosen_is_said() {
        let limits = Limits {
            bytes: 10,
            seconds: None,
        };
        assert_eq!(
            choose(&[vec![]], limits),
            Err(AllocateError::NoCandidates(0))
        );
        let groups = [vec![candidate(1, f64::NAN, 0.)]];
        assert_eq!(choose(&groups, limits), Err(AllocateError::Group(0)));
        let groups = [vec![candidate(6, 1., 0.)], vec![candidate(5, 1., 0.)]];
        let expected = AllocateError::Budget {
            budget: 10.,
            least: 11.,
        };
        assert_eq!(choose(&groups, limits), Err(expected));
    }
}
