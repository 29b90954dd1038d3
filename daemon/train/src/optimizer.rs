//! AdamW (arXiv 1711.05101) with clipping by the global norm. Its moments are plain vectors, so that a checkpoint can
//! hold them and a resumed run takes exactly the steps the first would have taken.

use anyhow::{Context, Result};
use candle_core::{Tensor, Var, backprop::GradStore};

/// What the optimizer is told once.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimizerOptions {
    /// Decay of the mean of gradients.
    pub first_decay: f64,
    /// Decay of the mean of squared gradients.
    pub second_decay: f64,
    /// Pull of matrices towards zero, relative to the learning rate; vectors are left alone.
    pub weight_decay: f64,
    /// Largest norm of all gradients together.
    pub gradient_norm_max: f64,
}

impl Default for OptimizerOptions {
    fn default() -> Self {
        Self {
            first_decay: 0.9,
            second_decay: 0.98,
            weight_decay: 0.05,
            gradient_norm_max: 1.0,
        }
    }
}

/// The running means of one variable.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Moments {
    /// Mean of gradients.
    pub first: Vec<f32>,
    /// Mean of squared gradients.
    pub second: Vec<f32>,
}

/// The optimizer with its state, one entry for each variable.
#[derive(Debug, Clone, Default)]
pub struct Optimizer {
    /// What it was told.
    pub options: OptimizerOptions,
    /// Running means in the order of the variables.
    pub moments: Vec<Moments>,
    /// Steps taken so far.
    pub steps: u64,
}

impl Optimizer {
    /// An optimizer that has taken no step yet.
    #[must_use]
    pub fn new(options: OptimizerOptions, variables: &[(String, Var)]) -> Self {
        let moments = variables
            .iter()
            .map(|(_, variable)| {
                let count = variable.elem_count();
                Moments {
                    first: vec![0.0; count],
                    second: vec![0.0; count],
                }
            })
            .collect();
        Self {
            options,
            moments,
            steps: 0,
        }
    }

    /// Moves the variables against their gradients and returns the norm of the gradients before clipping.
    pub fn step(
        &mut self,
        variables: &[(String, Var)],
        gradients: &GradStore,
        learning_rate: f64,
    ) -> Result<f64> {
        let gradients = variables
            .iter()
            .map(|(name, variable)| {
                let gradient = gradients
                    .get(variable)
                    .with_context(|| format!("{name} has no gradient"))?;
                Ok(gradient.flatten_all()?.to_vec1::<f32>()?)
            })
            .collect::<Result<Vec<_>>>()?;
        let square_sum: f64 = gradients
            .iter()
            .flatten()
            .map(|value| f64::from(*value).powi(2))
            .sum();
        let norm = square_sum.sqrt();
        let clip = (self.options.gradient_norm_max / norm).min(1.0) as f32;

        self.steps += 1;
        let first_decay = self.options.first_decay as f32;
        let second_decay = self.options.second_decay as f32;
        let steps = self.steps as i32;
        let second_correction = (1.0 - self.options.second_decay.powi(steps)).sqrt().recip() as f32;
        let rate = (learning_rate / (1.0 - self.options.first_decay.powi(steps))) as f32;
        for (((_, variable), gradient), moments) in
            variables.iter().zip(&gradients).zip(&mut self.moments)
        {
            let decay = if variable.rank() > 1 {
                self.options.weight_decay
            } else {
                0.0
            };
            let keep = (1.0 - learning_rate * decay) as f32;
            let mut values = variable.flatten_all()?.to_vec1::<f32>()?;
            let means = moments.first.iter_mut().zip(&mut moments.second);
            for ((value, gradient), (first, second)) in values.iter_mut().zip(gradient).zip(means) {
                let gradient = gradient * clip;
                *first = first_decay * *first + (1.0 - first_decay) * gradient;
                *second = second_decay * *second + (1.0 - second_decay) * gradient * gradient;
                *value = keep * *value - rate * *first / (second.sqrt() * second_correction + 1e-8);
            }
            variable.set(&Tensor::from_vec(
                values,
                variable.shape(),
                variable.device(),
            )?)?;
        }
        Ok(norm)
    }
}
