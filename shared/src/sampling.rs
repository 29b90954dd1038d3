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
pub enum KvCacheMode {
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
    /// The most probable so many; 0: all.
    pub top_k: Option<u32>,
    /// The most probable ones that have this much of the probability together; above 0, at most 1.
    pub top_p: Option<f64>,
    /// Those with at least this share of the most probable one's probability; from 0 to 1.
    pub min_p: Option<f64>,
    /// What logits of tokens that stand before are divided by, those below 0 multiplied; above 0, at most
    /// [`PENALTY_MAX`].
    pub repetition_penalty: Option<f64>,
}

/// How tokens are chosen: what somebody says of it. Unset: somebody else's to say.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SamplingOptions {
    /// Scale of the noise; 0: the most probable token.
    pub temperature: Option<f64>,
    /// What may be drawn.
    pub sampling: Sampling,
}

impl SamplingOptions {
    /// The most probable token each time, and nothing made less likely: all is said.
    #[must_use]
    pub fn greedy() -> Self {
        Self {
            temperature: Some(0.0),
            sampling: Sampling {
                top_k: Some(0),
                top_p: Some(1.0),
                min_p: Some(0.0),
                repetition_penalty: Some(1.0),
            },
        }
    }

    /// What this says, and for the rest what the other does.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let (this, that) = (self.sampling, other.sampling);
        Self {
            temperature: self.temperature.or(other.temperature),
            sampling: Sampling {
                top_k: this.top_k.or(that.top_k),
                top_p: this.top_p.or(that.top_p),
                min_p: this.min_p.or(that.min_p),
                repetition_penalty: this.repetition_penalty.or(that.repetition_penalty),
            },
        }
    }

    /// The first setting that makes no sense, by its name, and what it must be.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let temperature = self.temperature.and_then(temperature_problem);
        let temperature = temperature.map(|problem| ("temperature", problem));
        temperature.or_else(|| self.sampling.problem())
    }
}

/// A setting's path in a request, by its name.
#[must_use]
pub fn field_path(name: &'static str) -> &'static str {
    match name {
        "temperature" => "sampling.temperature",
        "top_k" => "sampling.top_k",
        "top_p" => "sampling.top_p",
        "min_p" => "sampling.min_p",
        "repetition_penalty" => "sampling.repetition_penalty",
        other => other,
    }
}

/// Greatest temperature: far beyond all use.
pub const TEMPERATURE_MAX: f64 = 1000.0;
/// Greatest repetition penalty: far beyond all use.
pub const PENALTY_MAX: f64 = 100.0;
/// Strings that end a text, at most.
pub const STOPS_MAX: usize = 16;
/// Bytes of such a string, at most.
pub const STOP_BYTES_MAX: usize = 256;

/// What is wrong with a temperature, if anything.
#[must_use]
pub fn temperature_problem(temperature: f64) -> Option<String> {
    let is_right = (0.0..=TEMPERATURE_MAX).contains(&temperature);
    (!is_right).then(|| format!("must be between 0 and {TEMPERATURE_MAX}, not {temperature}"))
}

impl Sampling {
    /// The same without settings that have no effect.
    #[must_use]
    pub fn effective(self) -> Self {
        Self {
            top_k: self.top_k.filter(|k| *k > 0),
            top_p: self.top_p.filter(|p| *p < 1.0),
            min_p: self.min_p.filter(|p| *p > 0.0),
            repetition_penalty: self.repetition_penalty.filter(|penalty| *penalty != 1.0),
        }
    }

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
        if let Some(found) = top_p {
            return Some((
                "top_p",
                format!("must be above 0 and at most 1, not {found}"),
            ));
        }
        if let Some(found) = min_p {
            return Some(("min_p", format!("must be between 0 and 1, not {found}")));
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
            top_k: Some(0),
            top_p: Some(1.0),
            min_p: Some(0.0),
            repetition_penalty: Some(0.5),
        };
        assert_eq!(name(all), None);
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
