//! States of recurrent models outside of the engine: what a request gives back in the end, and what another goes on from.

use std::{fmt, sync::Arc};

use sluice_ops::StateShape;

use crate::error::RequestError;

/// Largest magnitude of an element. A model's inputs and heads stay below some thousands, since its norms see to that. What is
/// larger is no state, and would overflow on its way: a layer multiplies a few projections of it with each other, and its
/// norms square the result. From here that stays finite in f32, or is scaled to 0.
const VALUE_MAX: f32 = 1e6;

/// Which model a state is of. States mean nothing to other weights, also of the same sizes; how the weights are stored
/// does not matter, so a state goes from one level to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateModel {
    /// What tells its checkpoint from others: [`sluice_checkpoint::Checkpoint::content_fingerprint`].
    pub fingerprint: String,
    /// The sizes of its states.
    pub shape: StateShape,
}

impl fmt::Display for StateModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fingerprint, shape } = self;
        let StateShape {
            layers,
            hidden_size,
        } = shape;
        write!(
            f,
            "checkpoint {fingerprint}, {layers} layers of {hidden_size}"
        )
    }
}

/// A state that was read from the device, or is to be written there.
#[derive(Clone, PartialEq)]
pub struct SavedState {
    /// The model that it is of.
    pub model: StateModel,
    /// Tokens that it has read, from the beginning of its sequence.
    pub read_tokens: u64,
    /// The last token of its sequence, where that is yet to be read: the next request begins with it.
    pub unread_token: Option<u32>,
    /// Whether all of it was computed with the checkpoint's own weights, bit for bit, and rows that were not rounded.
    pub is_lossless: bool,
    /// Its elements, as [`sluice_ops::Ops::read_state`] gives them.
    pub values: Vec<f32>,
}

impl fmt::Debug for SavedState {
    /// Without its elements, which are millions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SavedState")
            .field("model", &self.model)
            .field("read_tokens", &self.read_tokens)
            .field("unread_token", &self.unread_token)
            .finish_non_exhaustive()
    }
}

/// What a request to a recurrent model has to do with states outside of the engine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StateOptions {
    /// The state that it goes on from, in the place of an empty one: its prompt follows what that has read.
    pub start: Option<Arc<SavedState>>,
    /// Whether its result has the state in the end.
    pub returns_state: bool,
}

impl StateOptions {
    /// Checks them for a model whose states are these; `None`: it has none.
    ///
    /// # Errors
    /// When the model has no state, or the state cannot be one of its own.
    pub(crate) fn check(&self, model: Option<&StateModel>) -> Result<(), RequestError> {
        if let Some(start) = &self.start {
            check_model(&start.model, model)?;
            check_values(start)?;
        }
        match (self.returns_state, model) {
            (true, None) => Err(RequestError::OnlyRecurrent {
                what: "return_state",
            }),
            _ => Ok(()),
        }
    }
}

/// Checks that a state of the model `of` is one of the loaded model.
///
/// # Errors
/// When the loaded model has no state, or it is another model.
pub fn check_model(of: &StateModel, loaded: Option<&StateModel>) -> Result<(), RequestError> {
    let loaded = loaded.ok_or(RequestError::OnlyRecurrent { what: "state" })?;
    match of == loaded {
        true => Ok(()),
        false => Err(broken(format!(
            "this is the state of another model ({of}); the loaded one is {loaded}"
        ))),
    }
}

fn check_values(state: &SavedState) -> Result<(), RequestError> {
    let (found, expected) = (state.values.len(), state.model.shape.elements());
    if found != expected {
        return Err(broken(format!(
            "it has {found} elements; a state of this model has {expected}"
        )));
    }
    let is_fine = |value: &f32| value.abs() <= VALUE_MAX;
    match state.values.iter().position(|value| !is_fine(value)) {
        Some(at) if state.values[at].is_finite() => Err(broken(format!(
            "its element {at} is {:e}; elements of states are {VALUE_MAX:e} at most",
            state.values[at]
        ))),
        Some(at) => Err(broken(format!("its element {at} is no finite number"))),
        None => Ok(()),
    }
}

fn broken(problem: String) -> RequestError {
    RequestError::Sampling {
        what: "state",
        problem,
    }
}

#[cfg(test)]
mod tests;
