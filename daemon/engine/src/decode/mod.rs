//! Ways of decoding: they decide what stands in the canvas; how a
//! pass is computed is not their business, so that they can be tested with scripted models.

pub mod autoregressive;
mod denoiser;
pub mod diffusion;
pub mod fidelity;
pub mod policy;
mod reach;
pub mod sampling;
pub mod score;
mod visible;

pub use self::{
    denoiser::{Denoiser, DiffusionRequest, Pass, PassRequest, RequestMemory, Vocabulary},
    reach::{PassReach, most_rows},
    visible::VisibleText,
};
