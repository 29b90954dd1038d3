//! The gradients of a part, with the memory of the whole network or of a few of its layers at a time.
//!
//! The tape of a pass holds every intermediate result until its gradient is known. Gradient checkpointing (arXiv
//! 1604.06174) keeps only what goes into each group of layers, and computes a group again when its turn comes: one more
//! forward pass for the memory of one group.

use anyhow::{Context as _, Result, ensure};
use candle_core::{Tensor, Var, backprop::GradStore};

use crate::{
    batch::Part,
    model::{Context, Model, Stream},
    ops,
};

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
    fn reference(&self, part: &Part, context: Context<'_>) -> Result<Tensor> {
        let logits = self.teacher.logits(&part.ids, context, &part.positions)?;
        Ok(logits.detach())
    }
}

/// The loss of a part and its gradient for every variable of the model, in their order.
///
/// With an interval, layers are computed again in groups of that many.
pub fn gradients(
    model: &Model,
    part: &Part,
    context: Context<'_>,
    distillation: Option<&Distillation<'_>>,
    interval: Option<usize>,
) -> Result<(f64, Vec<Vec<f32>>)> {
    let reference = distillation
        .map(|with| with.reference(part, context))
        .transpose()?;
    let head_loss = |x: &Tensor| -> Result<Tensor> {
        let logits = model.head(x, &part.positions)?;
        let task = ops::cross_entropy(&logits, part.targets.clone(), part.weights.clone())?;
        let (Some(with), Some(reference)) = (distillation, &reference) else {
            return Ok(task);
        };
        let divergence = ops::divergence(&logits, reference, part.weights.clone())?;
        Ok(((task * with.task_weight)? + (divergence * with.kl_weight)?)?)
    };
    let variables: Vec<&Var> = model.variables().iter().map(|(_, var)| var).collect();
    let (loss, found) = backward(model, &part.ids, context, &variables, interval, &head_loss)?;
    let found = model
        .variables()
        .iter()
        .zip(found)
        .map(|((name, _), gradient)| {
            let gradient = gradient.with_context(|| format!("{name} has no gradient"))?;
            Ok(gradient.flatten_all()?.to_vec1()?)
        });
    Ok((loss, found.collect::<Result<_>>()?))
}

/// The value of a loss of the last layer's output, and its gradients for `leaves`, which may be weights of the model or
/// go into its context.
pub fn backward(
    model: &Model,
    ids: &[u32],
    context: Context<'_>,
    leaves: &[&Var],
    interval: Option<usize>,
    loss: &dyn Fn(&Tensor) -> Result<Tensor>,
) -> Result<(f64, Vec<Option<Tensor>>)> {
    let layers = model.config.layers();
    let mut found = Found::new(leaves);
    let Some(interval) = interval else {
        let stream = model.layers(model.embed(ids)?, 0..layers, context)?;
        let loss = loss(&stream.x)?;
        found.take(&mut loss.backward()?)?;
        return Ok((f64::from(loss.to_scalar::<f32>()?), found.gradients));
    };

    ensure!(interval > 0, "a group of layers needs at least one");
    let groups: Vec<_> = (0..layers)
        .step_by(interval)
        .map(|start| start..(start + interval).min(layers))
        .collect();
    let mut inputs = Vec::with_capacity(groups.len());
    // Detached, so that nothing behind a group's input is kept.
    let mut stream = model.embed(ids)?.detached();
    for group in &groups {
        inputs.push(stream.clone());
        stream = model.layers(stream, group.clone(), context)?.detached();
    }
    // Variables, so that the loss has gradients for them: the input of the backward pass through the layers.
    let top = Inputs::new(&stream)?;
    drop(stream);
    let loss = loss(&top.stream()?.x)?;
    let mut above = found.take_with_inputs(&mut loss.backward()?, &top)?;
    let loss = f64::from(loss.to_scalar::<f32>()?);
    // From the last group to the first: each needs the gradients of its own output.
    for (group, input) in groups.into_iter().zip(inputs).rev() {
        let input = Inputs::new(&input)?;
        let output = model.layers(input.stream()?, group, context)?;
        above = found.take_with_inputs(&mut pull(&output, &above)?, &input)?;
    }
    found.take(&mut pull(&model.embed(ids)?, &above)?)?;
    Ok((loss, found.gradients))
}

/// Gradients of what a stream was computed from, given the gradients of its tensors; what is not read above has none.
fn pull(stream: &Stream, above: &[Option<Tensor>]) -> Result<GradStore> {
    // The sum of x · above has exactly these gradients, and candle starts only from scalars.
    let mut sum: Option<Tensor> = None;
    for (tensor, above) in stream.tensors().into_iter().zip(above) {
        let Some(above) = above else { continue };
        let term = (tensor * above)?.sum_all()?;
        sum = Some(match sum {
            Some(sum) => (sum + term)?,
            None => term,
        });
    }
    Ok(sum.context("a group of layers is not read")?.backward()?)
}

/// The tensors of a stream as variables.
struct Inputs(Vec<Var>);

impl Inputs {
    fn new(stream: &Stream) -> Result<Self> {
        let tensors = stream.tensors().into_iter();
        Ok(Self(
            tensors.map(Var::from_tensor).collect::<Result<_, _>>()?,
        ))
    }

    fn stream(&self) -> Result<Stream> {
        Stream::from_tensors(self.0.iter().map(|var| var.as_tensor().clone()))
    }
}

/// Gradients found so far, by leaf.
struct Found<'a> {
    leaves: &'a [&'a Var],
    gradients: Vec<Option<Tensor>>,
}

impl<'a> Found<'a> {
    fn new(leaves: &'a [&'a Var]) -> Self {
        let gradients = vec![None; leaves.len()];
        Self { leaves, gradients }
    }

    fn take(&mut self, store: &mut GradStore) -> Result<()> {
        for (leaf, found) in self.leaves.iter().zip(&mut self.gradients) {
            if let Some(gradient) = store.remove(leaf.as_tensor()) {
                // A tied LM head is the embedding, too, and every group of layers may read the same leaf.
                *found = Some(match found.take() {
                    Some(before) => (before + gradient)?,
                    None => gradient,
                });
            }
        }
        Ok(())
    }

    /// Takes the gradients of leaves, and returns those of the inputs.
    fn take_with_inputs(
        &mut self,
        store: &mut GradStore,
        inputs: &Inputs,
    ) -> Result<Vec<Option<Tensor>>> {
        self.take(store)?;
        let gradients = inputs.0.iter().map(|input| store.remove(input.as_tensor()));
        Ok(gradients
            .map(|found| found.map(|tensor| tensor.detach()))
            .collect())
    }
}
