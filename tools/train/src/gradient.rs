//! The gradients of a part, with the memory of the whole network or of a few of its blocks at a time.
//!
//! The tape of a pass holds every intermediate result until its gradient is known. Gradient checkpointing (arXiv
//! 1604.06174) keeps only what goes into each group of blocks, and computes a group again when its turn comes: one more
//! forward pass for the memory of one group.

use anyhow::{Context, Result};
use candle_core::{Tensor, Var, backprop::GradStore};

use crate::{batch::Part, model::Model, ops};

/// Another network that the trained one should stay close to beside its task.
pub struct Distillation<'a> {
    /// The other network, which computes the same rows with the same masks.
    pub teacher: &'a Model,
    /// Weight of the cross-entropy with the tokens.
    pub task_weight: f64,
    /// Weight of the KL divergence from the teacher.
    pub kl_weight: f64,
}

impl Distillation<'_> {
    /// The teacher's logits, without its tape.
    fn reference(&self, part: &Part) -> Result<Tensor> {
        let logits = self
            .teacher
            .logits(&part.ids, &part.pack, &part.positions)?;
        Ok(logits.detach())
    }
}

/// The loss of a part and its gradient for every variable of the model, in their order.
///
/// With an interval, blocks are computed again in groups of that many.
pub fn gradients(
    model: &Model,
    part: &Part,
    distillation: Option<&Distillation<'_>>,
    interval: Option<usize>,
) -> Result<(f64, Vec<Vec<f32>>)> {
    let layers = model.config.n_layers;
    let mut found = Found::new(model);
    let reference = distillation.map(|with| with.reference(part)).transpose()?;
    let head_loss = |x: &Tensor| -> Result<Tensor> {
        let logits = model.head(x, &part.positions)?;
        let task = ops::cross_entropy(&logits, part.targets.clone(), part.weights.clone())?;
        let (Some(with), Some(reference)) = (distillation, &reference) else {
            return Ok(task);
        };
        let divergence = ops::divergence(&logits, reference, part.weights.clone())?;
        Ok(((task * with.task_weight)? + (divergence * with.kl_weight)?)?)
    };
    let Some(interval) = interval else {
        let x = model.layers(model.embed(&part.ids)?, 0..layers, &part.pack)?;
        let loss = head_loss(&x)?;
        found.take(&mut loss.backward()?)?;
        return Ok((f64::from(loss.to_scalar::<f32>()?), found.into_vectors()?));
    };

    let groups: Vec<_> = (0..layers)
        .step_by(interval.max(1))
        .map(|start| start..(start + interval.max(1)).min(layers))
        .collect();
    let mut inputs = Vec::with_capacity(groups.len());
    // Detached, so that nothing behind a group's input is kept.
    let mut x = model.embed(&part.ids)?.detach();
    for group in &groups {
        inputs.push(x.clone());
        x = model.layers(x, group.clone(), &part.pack)?.detach();
    }
    // A variable, so that the loss has a gradient for it: the input of the backward pass through the blocks.
    let top = Var::from_tensor(&x)?;
    drop(x);
    let loss = head_loss(top.as_tensor())?;
    let mut above = found.take_with_input(&mut loss.backward()?, &top)?;
    let loss = f64::from(loss.to_scalar::<f32>()?);
    // From the last group to the first: each needs the gradient of its own output.
    for (group, input) in groups.into_iter().zip(inputs).rev() {
        let input = Var::from_tensor(&input)?;
        let x = model.layers(input.as_tensor().clone(), group, &part.pack)?;
        above = found.take_with_input(&mut pull(&x, &above)?, &input)?;
    }
    found.take(&mut pull(&model.embed(&part.ids)?, &above)?)?;
    Ok((loss, found.into_vectors()?))
}

/// Gradients of what `x` was computed from, given the gradient of `x`.
fn pull(x: &Tensor, above: &Tensor) -> Result<GradStore> {
    // The sum of x · above has exactly these gradients, and candle starts only from scalars.
    Ok((x * above)?.sum_all()?.backward()?)
}

/// Gradients found so far, by variable.
struct Found<'a> {
    model: &'a Model,
    gradients: Vec<Option<Tensor>>,
}

impl<'a> Found<'a> {
    fn new(model: &'a Model) -> Self {
        let gradients = vec![None; model.variables().len()];
        Self { model, gradients }
    }

    fn take(&mut self, store: &mut GradStore) -> Result<()> {
        for ((_, variable), found) in self.model.variables().iter().zip(&mut self.gradients) {
            if let Some(gradient) = store.remove(variable.as_tensor()) {
                *found = Some(gradient);
            }
        }
        Ok(())
    }

    /// Takes the gradients of variables, and returns the one of the input.
    fn take_with_input(&mut self, store: &mut GradStore, input: &Var) -> Result<Tensor> {
        self.take(store)?;
        let gradient = store.remove(input.as_tensor());
        Ok(gradient
            .context("a group of blocks ignores its input")?
            .detach())
    }

    fn into_vectors(self) -> Result<Vec<Vec<f32>>> {
        self.model
            .variables()
            .iter()
            .zip(self.gradients)
            .map(|((name, _), gradient)| {
                let gradient = gradient.with_context(|| format!("{name} has no gradient"))?;
                Ok(gradient.flatten_all()?.to_vec1()?)
            })
            .collect()
    }
}
