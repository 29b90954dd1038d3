//! NVIDIA's driver and Sluice's kernels, on the stand-in.

mod arena;
mod copies;
mod cublas;
mod driver;
mod emulation;
mod kernels;
mod memory;
mod properties;
