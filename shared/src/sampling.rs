//! Settings of the sampler that command line, wire and engine name alike.

/// How the masked positions of a pass are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Remasking {
    /// By the probability of their candidate.
    #[default]
    LowConfidence,
    /// By a seeded random number.
    Random,
    /// By how much the most probable token is more probable than the next one.
    Margin,
    /// By the entropy of their distribution, the lowest first.
    Entropy,
}

/// How an end-of-sequence token is treated.
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

/// Which positions the KV cache keeps between passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvCacheMode {
    /// None: every pass computes the whole canvas.
    #[default]
    None,
    /// Those before the block.
    Prefix,
    /// Those before and after the block.
    Dual,
    /// Those outside the block and the positions around it.
    Vicinity,
    /// Those of finished blocks, in block diffusion models: exact, since no block sees a later one.
    Blocks,
}

/// Which tokens of an autoregressive model may be drawn. Unset: all of them, by their probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sampling {
    /// Only the `k` most probable; 0: all.
    pub top_k: Option<u32>,
    /// Only the most probable ones that together have this much probability; above 0, at most 1.
    pub top_p: Option<f64>,
    /// Only those with at least this share of the most probable one's probability; from 0 to 1.
    pub min_p: Option<f64>,
    /// The divisor of logits of tokens that occurred before; negative logits are multiplied by it. Above 0, at most
    /// [`PENALTY_MAX`].
    pub repetition_penalty: Option<f64>,
}

/// Sampling options of one source; what is unset, the next source decides.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SamplingOptions {
    /// Scale of the noise; 0: the most probable token.
    pub temperature: Option<f64>,
    /// Which tokens may be drawn.
    pub sampling: Sampling,
}

impl SamplingOptions {
    /// Greedy decoding: the most probable token each time, no penalty. Every option is set.
    #[must_use]
    pub fn greedy() -> Self {
        Self {
            temperature: Some(0.0),
            sampling: Sampling {
                // Values without effect, since the model's own defaults would fill unset ones.
                top_k: Some(0),
                top_p: Some(1.0),
                min_p: Some(0.0),
                repetition_penalty: Some(1.0),
            },
        }
    }

    /// These options, completed by the other ones.
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

    /// The name of the first setting that makes no sense, and what it must be; `None` where all do.
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

/// Highest temperature: far beyond any use.
pub const TEMPERATURE_MAX: f64 = 1000.0;
/// Highest repetition penalty: far beyond any use.
pub const PENALTY_MAX: f64 = 100.0;
/// Most stop strings of a request.
pub const STOPS_MAX: usize = 16;
/// Most bytes of a stop string.
pub const STOP_BYTES_MAX: usize = 256;

/// Most bytes of a grammar.
pub const GRAMMAR_BYTES_MAX: usize = 512 << 10;
/// Most tokens whose log-probabilities are told beside a chosen token's.
pub const TOP_LOGPROBS_MAX: usize = 20;
/// Most log-probabilities of a request, all its tokens together: some 9 MiB of the daemon's memory.
pub const LOGPROBS_MAX: usize = 1 << 17;
/// Most log-probabilities of a block, which one message has.
pub const BLOCK_LOGPROBS_MAX: usize = 1 << 13;

/// What is wrong with asking for the log-probabilities of each token and of the `top` most probable ones, in a text of at most
/// `length` tokens whose blocks have `block`; `None` if nothing is.
#[must_use]
pub fn logprobs_problem(top: usize, length: usize, block: usize) -> Option<String> {
    if top > TOP_LOGPROBS_MAX {
        return Some(format!("must be at most {TOP_LOGPROBS_MAX}, not {top}"));
    }
    [("a text", length, LOGPROBS_MAX), ("a block", block, BLOCK_LOGPROBS_MAX)]
        .into_iter()
        .find(|(_, tokens, max)| tokens.saturating_mul(1 + top) > *max)
        .map(|(what, tokens, max)| {
            let most = max / (1 + top);
            format!("{what} of {tokens} tokens has too many log-probabilities; at most {most} tokens may have {top} and their own")
        })
}

/// What is wrong with a temperature; `None` if nothing is.
#[must_use]
pub fn temperature_problem(temperature: f64) -> Option<String> {
    let is_right = (0.0..=TEMPERATURE_MAX).contains(&temperature);
    (!is_right).then(|| format!("must be between 0 and {TEMPERATURE_MAX}, not {temperature}"))
}

impl Sampling {
    /// The settings without those that have no effect.
    #[must_use]
    pub fn effective(self) -> Self {
        Self {
            top_k: self.top_k.filter(|k| *k > 0),
            top_p: self.top_p.filter(|p| *p < 1.0),
            min_p: self.min_p.filter(|p| *p > 0.0),
            repetition_penalty: self.repetition_penalty.filter(|penalty| *penalty != 1.0),
        }
    }

    /// The name of the first setting that makes no sense, and what it must be; `None` where all do.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, String)> {
        // Written so that NaN fails.
        let top_p = self.top_p.filter(|p| !(*p > 0.0 && *p <= 1.0));
        let min_p = self.min_p.filter(|p| !(0.0..=1.0).contains(p));
        // Above 0, because positive logits are divided by it.
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

    #[test]
    fn log_probabilities_are_bounded_by_text_and_block() {
        assert_eq!(logprobs_problem(20, 6241, 390), None);
        assert_eq!(logprobs_problem(0, LOGPROBS_MAX, BLOCK_LOGPROBS_MAX), None);
        let text = logprobs_problem(20, 6242, 390).unwrap();
        assert!(
            text.starts_with("a text of 6242 tokens has too many"),
            "{text}"
        );
        let block = logprobs_problem(20, 6241, 391).unwrap();
        assert!(
            block.ends_with("at most 390 tokens may have 20 and their own"),
            "{block}"
        );
    }
}
