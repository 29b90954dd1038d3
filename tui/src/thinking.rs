//! The steps for a latent thought model's latents in words, as commands and dashboard tell it.

use sluice_proto::v1::GenerationThought;
use sluice_shared::units;

/// The bound of a step and its two parts, in nats a token; together they are the bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThoughtBound {
    /// Cross-entropy of the prompt.
    pub text: f64,
    /// KL divergence of the posterior from the prior.
    pub thoughts: f64,
}

impl ThoughtBound {
    /// The bound after a step.
    #[must_use]
    pub fn of(thought: &GenerationThought) -> Self {
        let each = |nats: f64| nats / f64::from(thought.tokens.max(1));
        Self {
            text: each(thought.nll),
            thoughts: each(thought.kl),
        }
    }

    /// The sum of both parts.
    #[must_use]
    pub fn sum(self) -> f64 {
        self.text + self.thoughts
    }
}

/// `bound 2.913 nats a token (text 2.700, thoughts 0.213)`.
#[must_use]
pub fn bound(thought: &GenerationThought) -> String {
    let bound = ThoughtBound::of(thought);
    format!(
        "bound {:.3} nats a token (text {:.3}, thoughts {:.3})",
        bound.sum(),
        bound.text,
        bound.thoughts
    )
}

/// `noise 1.25`: what is left of it after a step of sampling the learned prior.
#[must_use]
pub fn noise(level: f64) -> String {
    format!("noise {level:.2}")
}

/// The progress line of a step.
#[must_use]
pub fn step(thought: &GenerationThought) -> String {
    if let Some(level) = thought.noise_level {
        return format!(
            "sampling the prior: step {} of {}, {}",
            thought.step,
            thought.steps_max,
            noise(level)
        );
    }
    format!(
        "thinking: step {} of {}, {}",
        thought.step,
        thought.steps_max,
        bound(thought)
    )
}

/// The line that tells how inference ended, or sampling.
#[must_use]
pub fn last(thought: &GenerationThought) -> String {
    if thought.noise_level.is_some() {
        return format!(
            "sampled the prior in {} steps, {}",
            thought.step,
            units::duration_ms(thought.elapsed_ms)
        );
    }
    let settled = match thought.step < thought.steps_max {
        true => ", where the bound no longer falls",
        false => "",
    };
    format!(
        "thought for {} steps{settled}, {}: {}",
        thought.step,
        units::duration_ms(thought.elapsed_ms),
        bound(thought)
    )
}
