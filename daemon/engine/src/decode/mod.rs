//! Ways of decoding: they decide what stands in the canvas; how a
//! pass is computed is not their business, so that they can be tested with scripted models.

pub mod autoregressive;
pub mod compare;
mod denoiser;
pub mod diffusion;
pub mod policy;
mod reach;
pub mod sampling;
pub mod score;
mod visible;

pub use self::{
    denoiser::{Asked, Denoiser, Filling, Memory, Pass, Vocabulary},
    reach::{Reach, most_rows},
    visible::Visible,
};
