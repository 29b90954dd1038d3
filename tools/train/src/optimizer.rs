//! AdamW (arXiv 1711.05101) with clipping by the global norm, and a moving average of the weights. Its state is plain
//! vectors, so that a checkpoint can hold it and a resumed run takes exactly the steps the first would have taken.

use anyhow::Result;
use candle_core::{Tensor, Var};
use serde::{Deserialize, Serialize};

use crate::{config::ModelConfig, model::Model};

/// The settings of the optimizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptimizerOptions {
    /// Decay of the mean of gradients.
    pub first_decay: f64,
    /// Decay of the mean of squared gradients.
    pub second_decay: f64,
    /// Pull of matrices towards zero, relative to the learning rate; vectors are left alone.
    pub weight_decay: f64,
    /// Largest norm of all gradients together.
    pub gradient_norm_max: f64,
    /// Decay of the average of weights, once the run is long enough; before, the average is over the run so far.
    pub average_decay: f64,
}

impl Default for OptimizerOptions {
    fn default() -> Self {
        Self {
            first_decay: 0.9,
            second_decay: 0.98,
            weight_decay: 0.05,
            gradient_norm_max: 1.0,
            average_decay: 0.999,
        }
    }
}

/// How variables are treated by name.
pub trait Rule {
    /// How the learning rate of a variable relates to that of the others.
    fn rate_scale(&self, name: &str) -> f64;

    /// Whether weight decay pulls a variable towards zero.
    fn decays(&self, name: &str, shape: &[usize]) -> bool;
}

impl Rule for ModelConfig {
    fn rate_scale(&self, name: &str) -> f64 {
        Self::rate_scale(self, name)
    }

    fn decays(&self, name: &str, shape: &[usize]) -> bool {
        Self::decays(self, name, shape)
    }
}

/// The running means of one variable.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Means {
    /// Mean of gradients.
    pub first: Vec<f32>,
    /// Mean of squared gradients.
    pub second: Vec<f32>,
    /// Mean of the weights themselves, which is what gets exported.
    pub average: Vec<f32>,
}

/// The optimizer with its state, one entry for each variable.
#[derive(Debug, Clone, Default)]
pub struct Optimizer {
    /// Decays and limits of a step; the learning rate is given with each.
    pub options: OptimizerOptions,
    /// Running means in the order of the variables.
    pub means: Vec<Means>,
    /// Steps taken so far.
    pub steps: u64,
}

impl Optimizer {
    /// An optimizer that has taken no step yet.
    pub fn new(options: OptimizerOptions, variables: &[(String, Var)]) -> Result<Self> {
        let means = variables
            .iter()
            .map(|(_, variable)| {
                let count = variable.elem_count();
                Ok(Means {
                    first: vec![0.0; count],
                    second: vec![0.0; count],
                    average: variable.flatten_all()?.to_vec1()?,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            options,
            means,
            steps: 0,
        })
    }

    /// A model of its own with the averaged weights.
    pub fn averaged(&self, model: &Model) -> Result<Model> {
        let weights = model
            .variables()
            .iter()
            .zip(&self.means)
            .map(|((name, _), means)| (name.clone(), means.average.clone()))
            .collect();
        Model::from_weights(model.config.clone(), weights, model.device())
    }

    /// Moves the variables against their gradients and returns the norm of the gradients before clipping.
    pub fn step(
        &mut self,
        rule: &dyn Rule,
        variables: &[(String, Var)],
        gradients: &[Vec<f32>],
        learning_rate: f64,
    ) -> Result<f64> {
        let square_sum: f64 = gradients
            .iter()
            .flatten()
            .map(|value| f64::from(*value).powi(2))
            .sum();
        let norm = square_sum.sqrt();
        self.steps += 1;
        // Adam's means start at zero; both corrections undo that bias.
        let options = &self.options;
        let steps = self.steps as i32;
        let mut update = Update {
            clip: (options.gradient_norm_max / norm).min(1.0) as f32,
            first_decay: options.first_decay as f32,
            second_decay: options.second_decay as f32,
            second_correction: (1.0 - options.second_decay.powi(steps)).sqrt().recip() as f32,
            rate: 0.0,
            // Grows with the run, so that the random initial weights are soon forgotten by the average.
            average_decay: options
                .average_decay
                .min(self.steps as f64 / (self.steps as f64 + 10.0))
                as f32,
        };
        for (((name, variable), gradient), means) in
            variables.iter().zip(gradients).zip(&mut self.means)
        {
            let decay = if rule.decays(name, variable.dims()) {
                options.weight_decay
            } else {
                0.0
            };
            let learning_rate = learning_rate * rule.rate_scale(name);
            update.rate = (learning_rate / (1.0 - options.first_decay.powi(steps))) as f32;
            let keep = (1.0 - learning_rate * decay) as f32;
            let mut values = variable.flatten_all()?.to_vec1::<f32>()?;
            update.apply(&mut values, gradient, means, keep);
            variable.set(&Tensor::from_vec(
                values,
                variable.shape(),
                variable.device(),
            )?)?;
        }
        Ok(norm)
    }
}

/// The factors of one step, which are the same for every weight but for the rate.
struct Update {
    clip: f32,
    first_decay: f32,
    second_decay: f32,
    second_correction: f32,
    rate: f32,
    average_decay: f32,
}

impl Update {
    fn apply(&self, values: &mut [f32], gradient: &[f32], means: &mut Means, keep: f32) {
        let means = means
            .first
            .iter_mut()
            .zip(&mut means.second)
            .zip(&mut means.average);
        for ((value, gradient), ((first, second), average)) in
            values.iter_mut().zip(gradient).zip(means)
        {
            let gradient = gradient * self.clip;
            *first = self.first_decay * *first + (1.0 - self.first_decay) * gradient;
            *second = self.second_decay * *second + (1.0 - self.second_decay) * gradient * gradient;
            let size = second.sqrt() * self.second_correction + 1e-8;
            *value = keep * *value - self.rate * *first / size;
            *average += (1.0 - self.average_decay) * (*value - *average);
        }
    }
}
