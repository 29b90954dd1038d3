//! Decoding: decides which tokens stand in the canvas. How a pass is computed lies elsewhere, so that decoding can be
//! tested with scripted models.

pub mod autoregressive;
mod denoiser;
pub mod diffusion;
pub mod draft;
pub mod fidelity;
pub mod inputs;
pub mod policy;
mod reach;
mod renoise;
pub mod sampling;
pub mod score;
mod visible;
mod written;

pub use self::{
    denoiser::{
        Denoiser, DiffusionRequest, FinishedBlocks, Pass, PassRequest, RenoisedPass, RequestMemory,
        SoftPredictions, Vocabulary,
    },
    reach::{BlockSight, PassReach, most_rows},
    renoise::RenoisedText,
    visible::VisibleText,
};
