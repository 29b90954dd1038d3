//! Where a run is between its first step and its last, and what the learning rate is there.

use std::f64::consts::PI;

use crate::progress::Progress;

/// The learning rate of the part with rounded weights, relative to the usual one: weights are to move to better places
/// of the grid, not to learn anew.
const QUANTIZED_RATE: f64 = 0.1;

/// A place in a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Phase {
    /// With weights in full precision; how much of that part is over, from 0 to 1.
    Full(f64),
    /// With the weights of a level; how much of that part is over.
    Quantized(f64),
}

/// How much of a run is over, from 0 to 1: of its steps, or of its time.
#[must_use]
pub fn done(progress: &Progress) -> f64 {
    let done = match progress.seconds_planned {
        Some(seconds) => progress.train_seconds / seconds.max(1) as f64,
        None => progress.step as f64 / progress.steps_planned.max(1) as f64,
    };
    done.min(1.0)
}

/// The part of the run that the next step belongs to.
#[must_use]
pub fn phase(progress: &Progress) -> Phase {
    let done = done(progress);
    let quantization = progress.quantization.as_ref();
    let share = quantization.map_or(0.0, |quantization| quantization.share);
    let full = 1.0 - share;
    if done < full {
        Phase::Full(done / full)
    } else if share > 0.0 {
        Phase::Quantized((done - full) / share)
    } else {
        Phase::Full(1.0)
    }
}

/// Linear warm-up, then half a cosine down to a fiftieth; again from a tenth where weights are rounded.
#[must_use]
pub fn learning_rate(progress: &Progress) -> f64 {
    let warm = (progress.step + 1) as f64 / progress.warm_up_steps.max(1) as f64;
    let (highest, over) = match phase(progress) {
        Phase::Full(over) => (progress.learning_rate, over),
        Phase::Quantized(over) => (QUANTIZED_RATE * progress.learning_rate, over),
    };
    let fallen = 0.02 + 0.98 * 0.5 * (1.0 + (PI * over).cos());
    highest * warm.min(1.0) * fallen
}

#[cfg(test)]
mod tests {
    use sluice_shared::level::Level;

    use super::*;
    use crate::{
        batch::BatchOptions, config::TransformerConfig, objective::Objective,
        optimizer::OptimizerOptions, precision::Precision, quantization::QuantizationOptions,
    };

    fn progress(step: u64, share: Option<f64>) -> Progress {
        Progress {
            config: TransformerConfig::demonstration(512).into(),
            batch: BatchOptions {
                text: None,
                seed: 1,
                objective: Objective::Diffusion,
                parts: 1,
                part_tokens: 100,
                length_max: 512,
                length_warm_up_steps: 0,
                exercise_steps: 0,
            },
            learning_rate: 0.01,
            warm_up_steps: 10,
            step,
            steps_planned: 1000,
            tokens: 0,
            train_seconds: 30.0,
            seconds_planned: None,
            began_with: None,
            latent: None,
            optimizer: OptimizerOptions::default(),
            precision: Precision::F32,
            quantization: share.map(|share| QuantizationOptions {
                level: Level::Aggressive,
                share,
                task_weight: 0.5,
                kl_weight: 0.5,
            }),
        }
    }

    #[test]
    fn each_part_of_a_run_has_a_rate_that_falls_to_its_end() {
        let rate = |step, share| learning_rate(&progress(step, share)) / 0.01;
        for (step, share, expected) in [
            (0, None, 0.1),
            (500, None, 0.51),
            (1000, None, 0.02),
            (450, Some(0.1), 0.51),
            (899, Some(0.1), 0.02),
            (900, Some(0.1), 0.1),
            (950, Some(0.1), 0.051),
            (1000, Some(0.1), 0.002),
            // All of a run: warm-up, and a tenth from the beginning.
            (0, Some(1.0), 0.01),
            (500, Some(1.0), 0.051),
        ] {
            let found = rate(step, share);
            assert!(
                (found - expected).abs() < 1e-3 * expected + 1e-5,
                "step {step} with {share:?}: {found}"
            );
        }
    }

    #[test]
    fn a_run_by_the_clock_changes_when_its_time_has_come() {
        let timed = |seconds| Progress {
            seconds_planned: Some(60),
            train_seconds: seconds,
            ..progress(3, Some(0.25))
        };
        assert_eq!(phase(&timed(45.0)), Phase::Quantized(0.0));
        assert!(matches!(phase(&timed(44.9)), Phase::Full(over) if over > 0.99));
        assert_eq!(phase(&timed(99.0)), Phase::Quantized(1.0));
    }
}
