//! Ways of decoding: they decide what stands in the canvas; how a
//! pass is computed is not their business, so that they can be tested with scripted models.

pub mod autoregressive;
pub mod compare;
mod denoiser;
pub mod diffusion;
mod policy;
pub mod sampling;
pub mod score;
mod visible;

pub use self::{
    denoiser::{Denoiser, Filling, Pass, Vocabulary, WeightsState},
    policy::{Step, commit_count},
    visible::Visible,
};
