//! How an autoregressive model's next token is sampled from its logits.
//!
//! Reference: the processors of transformers' `generate`, in its order: repetition penalty, temperature, top-k, top-p,
//! min-p. Differences: noise belongs to position and token, so the same seed gives the same text whatever else differs;
//! ties go to the lower id.
//!
//! Log-probabilities that are told are the model's own, of the logits as they come (as vLLM's `raw_logprobs`).

use sluice_formats::noise::Noise;
use sluice_shared::sampling::Sampling;
use sluice_tokenizer::grammar::AllowedTokens;

use crate::event::TokenLogprobs;
use crate::grammar::restrict;

/// What the choice of a token depends on besides its logits.
#[derive(Debug, Clone, Copy)]
pub struct DrawInput<'a> {
    /// Scale of the noise; 0: the most probable token.
    pub temperature: f64,
    /// Which tokens may be drawn.
    pub sampling: &'a Sampling,
    /// The generator of the noise.
    pub noise: Noise,
    /// The token's index in its sequence, which determines its noise.
    pub position: usize,
    /// Ids of the tokens before it, rising and without repetition.
    pub seen: &'a [u32],
    /// Ids whose logit counts as −∞, for choice and probability alike.
    pub banned: &'a [u32],
    /// By a grammar, the tokens that may come next, and those that end a text where it may end: all others count as banned.
    pub allowed: Option<(&'a AllowedTokens, &'a [u32])>,
    /// How many of the most probable tokens are told with their log-probabilities, beside the chosen one; `None`: none.
    pub top_logprobs: Option<usize>,
}

/// The next token of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct ChosenToken {
    /// The token.
    pub token: u32,
    /// Its probability by the un-noised, un-tempered, un-penalized logits of the tokens that may be chosen.
    pub confidence: f64,
    /// Its log-probability and the highest ones, where they were asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// First guess of how many tokens top-p keeps: usually few, and sorting the whole vocabulary would take longer than all
/// else.
const LIKELY_KEPT: usize = 64;

/// Chooses from `logits`, which it overwrites with scores; `order` has the same length and is overwritten. `None` where
/// all logits are NaN or −∞.
#[must_use]
pub fn choose(logits: &mut [f32], order: &mut [u32], draw: &DrawInput<'_>) -> Option<ChosenToken> {
    // Before all that changes logits.
    let own = match draw.top_logprobs {
        Some(count) => Some((top(logits, count), log_sum(logits)?)),
        None => None,
    };
    for &id in draw.banned {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
    if let Some((allowed, ends)) = draw.allowed {
        restrict(logits, allowed, ends);
    }
    // Before the penalty: confidence is the model's own probability, whatever the settings change.
    let log_sum = log_sum(logits)?;
    let penalty = draw.sampling.repetition_penalty.unwrap_or(1.0) as f32;
    for &id in draw.seen {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit *= penalized(*logit, penalty);
        }
    }
    let token = match draw.temperature > 0.0 {
        true => drawn(logits, order, draw),
        false => best(logits),
    }?;
    // The chosen logit is the penalized one; undone, so that its confidence matches the log-sum above.
    let mut logit = f64::from(logits[token as usize]);
    if draw.seen.binary_search(&token).is_ok() {
        logit /= f64::from(penalized(logits[token as usize], penalty));
    }
    Some(ChosenToken {
        token,
        confidence: (logit - log_sum).exp(),
        logprobs: own.map(|(top, log_sum)| {
            let mut logprobs = TokenLogprobs {
                chosen: (logit - log_sum) as f32,
                top: Vec::with_capacity(top.len()),
            };
            for (id, logit) in top {
                let logprob = (f64::from(logit) - log_sum) as f32;
                // Undoing the penalty rounds; one token must not have two log-probabilities.
                if id == token {
                    logprobs.chosen = logprob;
                }
                logprobs.top.push((id, logprob));
            }
            logprobs
        }),
    })
}

/// The `count` largest logits with their ids, the largest first, of equal ones the lower id; fewer where the others are −∞.
fn top(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    let mut least = f32::NEG_INFINITY;
    for (id, &logit) in logits.iter().enumerate() {
        // Ids rise, so an equal one goes after those that are there.
        if logit > least {
            let place = top.partition_point(|(_, other)| *other >= logit);
            top.insert(place, (id as u32, logit));
            top.truncate(count);
            if top.len() == count {
                least = top.last().map_or(f32::INFINITY, |(_, logit)| *logit);
            }
        }
    }
    top
}

/// The factor for the logit of a token that occurred before; it lowers the logit, whatever its sign.
fn penalized(logit: f32, penalty: f32) -> f32 {
    match logit < 0.0 {
        true => penalty,
        false => penalty.recip(),
    }
}

/// The log-sum-exp of the logits; `None` where it is not finite.
fn log_sum(logits: &[f32]) -> Option<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|&logit| f64::from(logit - max).exp())
        .sum();
    let log_sum = f64::from(max) + sum.ln();
    log_sum.is_finite().then_some(log_sum)
}

/// The id of the largest logit; the first of equal ones.
fn best(logits: &[f32]) -> Option<u32> {
    let mut best = (f32::NEG_INFINITY, None);
    for (id, &logit) in logits.iter().enumerate() {
        if logit > best.0 {
            best = (logit, Some(id as u32));
        }
    }
    best.1
}

/// Draws from the tokens that the settings leave.
fn drawn(logits: &[f32], order: &mut [u32], draw: &DrawInput<'_>) -> Option<u32> {
    for (place, id) in order.iter_mut().enumerate() {
        *id = place as u32;
    }
    let sampling = draw.sampling;
    let by_logit = |a: &u32, b: &u32| {
        let [x, y] = [a, b].map(|id| logits[*id as usize]);
        y.total_cmp(&x).then(a.cmp(b))
    };
    let max = f64::from(logits[best(logits)? as usize]);
    // The largest logit is subtracted first: at low temperatures its exponential would overflow.
    let weight = |id: u32| ((f64::from(logits[id as usize]) - max) / draw.temperature).exp();
    let mut kept = order;
    if let Some(top_k) = sampling.top_k.map(|k| k as usize)
        && top_k < kept.len()
    // A partial selection: only the set matters so far, and the vocabulary is large.
    {
        kept.select_nth_unstable_by(top_k, by_logit);
        kept = &mut kept[..top_k];
    }
    if let Some(top_p) = sampling.top_p.filter(|top_p| *top_p < 1.0) {
        let count = nucleus(kept, top_p, by_logit, weight);
        kept = &mut kept[..count];
    }
    // Weights are relative to the most probable token's, whose own is 1.
    let least = sampling.min_p.unwrap_or(0.0);
    // Gumbel-max: the largest of logit + temperature · Gumbel noise is a draw from the softmax, without summing it up.
    let score = |id: u32| {
        // By position and token alone, so that neither a kept prefix nor a shared pass changes a draw.
        let noise = draw.noise.gumbel(0, draw.position as u64, u64::from(id));
        f64::from(logits[id as usize]) + draw.temperature * noise
    };
    let mut chosen: Option<(f64, u32)> = None;
    for &id in kept.iter().filter(|&&id| weight(id) >= least) {
        let score = score(id);
        // `kept` is in no order of ids, so ties are decided here.
        let is_better = |&(best, at): &(f64, u32)| score > best || (score == best && id < at);
        if logits[id as usize] > f32::NEG_INFINITY && chosen.as_ref().is_none_or(is_better) {
            chosen = Some((score, id));
        }
    }
    chosen.map(|(_, id)| id)
}

/// How many of the most probable tokens hold `top_p` of the weight; they come first in `kept`.
fn nucleus(
    kept: &mut [u32],
    top_p: f64,
    by_logit: impl Fn(&u32, &u32) -> std::cmp::Ordering,
    weight: impl Fn(u32) -> f64,
) -> usize {
    // A share of what top-k has left, as in the reference, where the processors follow each other.
    let wanted = top_p * kept.iter().map(|&id| weight(id)).sum::<f64>();
    let (mut sorted, mut sum) = (0, 0.0);
    // Sorts a prefix of growing length, doubling each time: the nucleus rarely reaches beyond the first few dozen.
    while sorted < kept.len() {
        let rest = &mut kept[sorted..];
        let count = sorted.max(LIKELY_KEPT).min(rest.len());
        if count < rest.len() {
            rest.select_nth_unstable_by(count, &by_logit);
        }
        let next = &mut rest[..count];
        next.sort_unstable_by(&by_logit);
        for (place, &id) in next.iter().enumerate() {
            sum += weight(id);
            if sum >= wanted {
                return sorted + place + 1;
            }
        }
        sorted += count;
    }
    kept.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 6] = [1.0, 3.0, -2.0, 2.5, 0.0, 3.0];

    fn draw<'a>(sampling: &'a Sampling, temperature: f64, position: usize) -> DrawInput<'a> {
        DrawInput {
            temperature,
            sampling,
            noise: Noise::new(9),
            position,
            seen: &[],
            banned: &[],
            allowed: None,
            top_logprobs: None,
        }
    }

    fn chosen(draw: &DrawInput<'_>) -> ChosenToken {
        choose(&mut LOGITS.clone(), &mut [0; 6], draw).unwrap()
    }

    /// How often each token is drawn in so many draws.
    fn counts(sampling: &Sampling, temperature: f64, draws: usize) -> [usize; 6] {
        let mut counts = [0; 6];
        for position in 0..draws {
            counts[chosen(&draw(sampling, temperature, position)).token as usize] += 1;
        }
        counts
    }

    #[test]
    fn without_temperature_the_first_of_the_largest_is_chosen() {
        let candidate = chosen(&draw(&Sampling::default(), 0.0, 0));
        assert_eq!(candidate.token, 1);
        let sum: f64 = LOGITS.iter().map(|&logit| f64::from(logit).exp()).sum();
        assert!((candidate.confidence - 3f64.exp() / sum).abs() < 1e-9);
    }

    #[test]
    fn what_is_banned_is_neither_chosen_nor_counted() {
        let sampling = Sampling::default();
        let candidate = chosen(&DrawInput {
            banned: &[1, 5, 99],
            ..draw(&sampling, 0.0, 0)
        });
        let sum: f64 = [1.0, -2.0, 2.5, 0.0].map(f64::exp).iter().sum();
        assert_eq!(candidate.token, 3);
        assert!((candidate.confidence - 2.5f64.exp() / sum).abs() < 1e-9);
    }

    #[test]
    fn log_probabilities_are_of_the_logits_as_they_come() {
        let sum: f64 = LOGITS.iter().map(|&logit| f64::from(logit).exp()).sum();
        let logprob = |id: usize| (f64::from(LOGITS[id]) - sum.ln()) as f32;
        let sampling = Sampling {
            repetition_penalty: Some(1.7),
            top_k: Some(1),
            ..Sampling::default()
        };
        // The most probable is banned, the next made less likely; neither changes what the model said.
        let input = DrawInput {
            banned: &[1],
            seen: &[5],
            ..draw(&sampling, 2.0, 0)
        };
        let told = |count| {
            let input = DrawInput {
                top_logprobs: Some(count),
                ..input
            };
            let chosen = chosen(&input);
            assert_eq!(chosen.token, 3);
            chosen.logprobs.unwrap()
        };
        assert_eq!(told(0).top, []);
        assert_eq!(told(0).chosen, logprob(3));
        let top = [1, 5, 3, 0, 4, 2].map(|id| (id as u32, logprob(id)));
        for count in 1..=8 {
            let told = told(count);
            assert_eq!(told.top, top[..count.min(6)]);
            assert_eq!(told.chosen, logprob(3));
        }
        assert_eq!(chosen(&input).logprobs, None);
        // A penalized token's is not the penalized one.
        let all = DrawInput {
            seen: &[0, 1, 2, 3, 4, 5],
            top_logprobs: Some(0),
            ..draw(&sampling, 0.0, 0)
        };
        let told = chosen(&all);
        let error = told.logprobs.unwrap().chosen - logprob(told.token as usize);
        assert!(error.abs() < 1e-6, "{error}");
    }

    #[test]
    fn what_cannot_be_chosen_is_not_told() {
        let sampling = Sampling::default();
        let mut logits = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 1.0];
        let input = DrawInput {
            top_logprobs: Some(4),
            ..draw(&sampling, 0.0, 0)
        };
        let told = choose(&mut logits, &mut [0; 4], &input).unwrap();
        let half = 0.5f32.ln();
        assert_eq!(told.logprobs.unwrap().top, [(1, half), (3, half)]);
    }

    #[test]
    fn draws_follow_the_soft_max_at_their_temperature() {
        // Chi-square of five degrees of freedom; the bound is its 0.1 % point.
        let draws = 20_000;
        let found = counts(&Sampling::default(), 1.5, draws);
        let weights = LOGITS.map(|logit| (f64::from(logit) / 1.5).exp());
        let total: f64 = weights.iter().sum();
        let chi_square: f64 = (0..6)
            .map(|token| {
                let expected = weights[token] / total * draws as f64;
                (found[token] as f64 - expected).powi(2) / expected
            })
            .sum();
        assert!(chi_square < 20.5, "{chi_square} with {found:?}");
    }

    #[test]
    fn the_settings_leave_what_they_say() {
        let kept = |sampling: Sampling| {
            let found = counts(&sampling, 1.0, 3000);
            (0..6).filter(|&token| found[token] > 0).collect::<Vec<_>>()
        };
        let top_k = |k| Sampling {
            top_k: Some(k),
            ..Sampling::default()
        };
        assert_eq!(kept(top_k(1)), [1]);
        assert_eq!(kept(top_k(2)), [1, 5]);
        assert_eq!(kept(top_k(3)), [1, 3, 5]);
        // Probabilities are 0.368, 0.368, 0.223, 0.05, 0.018 and 0.002.
        let top_p = |p| Sampling {
            top_p: Some(p),
            ..Sampling::default()
        };
        assert_eq!(kept(top_p(0.3)), [1]);
        assert_eq!(kept(top_p(0.5)), [1, 5]);
        assert_eq!(kept(top_p(0.8)), [1, 3, 5]);
        assert_eq!(kept(top_p(0.97)), [0, 1, 3, 5]);
        let min_p = |p| Sampling {
            min_p: Some(p),
            ..Sampling::default()
        };
        assert_eq!(kept(min_p(0.7)), [1, 5]);
        assert_eq!(kept(min_p(0.5)), [1, 3, 5]);
        assert_eq!(kept(min_p(0.1)), [0, 1, 3, 5]);
    }

    #[test]
    fn top_p_is_found_among_many() {
        // All alike: half of the weight is half of the tokens, the lower ids.
        let sampling = Sampling {
            top_p: Some(0.5),
            ..Sampling::default()
        };
        let mut highest = 0;
        for position in 0..2000 {
            let mut order = vec![0; 1000];
            let draw = draw(&sampling, 1.0, position);
            let candidate = choose(&mut vec![0.5; 1000], &mut order, &draw).unwrap();
            highest = highest.max(candidate.token);
        }
        assert!((450..500).contains(&highest), "{highest}");
    }

    #[test]
    fn what_stands_before_is_made_less_likely_whatever_its_sign() {
        let sampling = Sampling {
            repetition_penalty: Some(2.0),
            ..Sampling::default()
        };
        let plain = chosen(&draw(&sampling, 0.0, 0));
        let penalized = |seen: &[u32]| {
            chosen(&DrawInput {
                seen,
                ..draw(&sampling, 0.0, 0)
            })
        };
        assert_eq!(penalized(&[1, 2]).token, 5);
        let all = penalized(&[0, 1, 2, 3, 4, 5]);
        // All alike: the order stays, and the probability is that of the model.
        assert_eq!(all.token, 1);
        assert!((all.confidence - plain.confidence).abs() < 1e-6);
        let mut negative = [-1.0, -1.5];
        let draw = DrawInput {
            seen: &[0],
            ..draw(&sampling, 0.0, 0)
        };
        assert_eq!(choose(&mut negative, &mut [0; 2], &draw).unwrap().token, 1);
    }

    #[test]
    fn no_numbers_no_token() {
        let sampling = Sampling::default();
        for bad in [f32::NAN, f32::NEG_INFINITY] {
            for temperature in [0.0, 1.0] {
                let draw = draw(&sampling, temperature, 0);
                assert!(choose(&mut [bad; 3], &mut [0; 3], &draw).is_none());
            }
        }
    }
}
