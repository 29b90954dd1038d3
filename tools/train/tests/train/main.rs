//! The training program and what it is made of.

mod runs;

mod export;
mod judge;
mod kill;
mod kinds;
mod latent;
mod networks;
mod prior;
mod quantization;
mod training;
