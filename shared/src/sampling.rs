//! Settings of the sampler that command line, wire and engine name alike.

/// How the masked positions of a pass are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Remasking {
    /// By the probability of their token.
    #[default]
    LowConfidence,
    /// By a seeded random number.
    Random,
    /// By how much the most probable token is more probable than the next one.
    Margin,
    /// By how certain the position is altogether: the least entropy first.
    Entropy,
}

/// What an end-of-sequence token does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EosPolicy {
    /// Ends the text once nothing before it is masked; words after it are dropped.
    #[default]
    Stop,
    /// Is never chosen.
    Suppress,
    /// Is a token like any other, as in the reference sampler.
    Keep,
}

/// Keys and values kept between passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cache {
    /// None: every pass computes the whole canvas.
    #[default]
    None,
    /// Those before the block.
    Prefix,
    /// Those before and after the block.
    Dual,
    /// Those away from the block.
    Vicinity,
}

/// What of a causal model's tokens may be drawn. Unset: all of them, as they are.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sampling {
    /// The most probable so many; at least 1.
    pub top_k: Option<u32>,
    /// The most probable ones that have this much of the probability together; above 0, at most 1.
    pub top_p: Option<f64>,
    /// Those with at least this share of the most probable one's probability; from 0 to 1.
    pub min_p: Option<f64>,
    /// What logits of tokens that stand before are divided by, those below 0 multiplied; above 0, at most
    /// [`PENALTY_MAX`].
    pub repetition_penalty: Option<f64>,
}

/// Greatest repetition penalty: far beyond all use.
pub const PENALTY_MAX: f64 = 100.0;
/// Strings that end a text, at most.
pub const STOPS_MAX: usize = 16;
/// Bytes of such a string, at most.
pub const STOP_BYTES_MAX: usize = 256;

impl Sampling {
    /// The first setting that makes no sense, by its name, and what it must be.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, String)> {
        // Written so that NaN fails.
        let top_p = self.top_p.filter(|p| !(*p > 0.0 && *p <= 1.0));
        let min_p = self.min_p.filter(|p| !(0.0..=1.0).contains(p));
        let is_penalty = |penalty: &f64| *penalty > 0.0 && *penalty <= PENALTY_MAX;
        let penalty = self
            .repetition_penalty
            .filter(|penalty| !is_penalty(penalty));
        if self.top_k == Some(0) {
            return Some(("top_k", "must be at least 1, not 0".to_owned()));
        }
        if let Some(found) = top_p {
            return Some((
                "top_p",
                format!("must be above 0 and at most 1, not {found}"),
            ));
        }
        if let Some(found) = min_p {
            return Some(("min_p", format!("must lie between 0 and 1, not {found}")));
        }
        let problem = |found| format!("must be above 0 and at most {PENALTY_MAX}, not {found}");
        penalty.map(|found| ("repetition_penalty", problem(found)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_named() {
        let name = |sampling: Sampling| sampling.problem().map(|(name, _)| name);
        assert_eq!(name(Sampling::default()), None);
        let all = Sampling {
            top_k: Some(1),
            top_p: Some(1.0),
            min_p: Some(0.0),
            repetition_penalty: Some(0.5),
        };
        assert_eq!(name(all), None);
        assert_eq!(
            name(Sampling {
                top_k: Some(0),
                ..all
            }),
            Some("top_k")
        );
        for wrong in [0.0, 1.1, f64::NAN] {
            let top_p = Some(wrong);
            assert_eq!(name(Sampling { top_p, ..all }), Some("top_p"));
        }
        let min_p = Some(-0.1);
        assert_eq!(name(Sampling { min_p, ..all }), Some("min_p"));
        for wrong in [0.0, 101.0, f64::INFINITY] {
            let repetition_penalty = Some(wrong);
            let wrong = Sampling {
                repetition_penalty,
                ..all
            };
            assert_eq!(name(wrong), Some("repetition_penalty"));
        }
    }
}
