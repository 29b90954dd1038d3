//! Requests to an engine with a small model.

mod decoding;
mod packing;
mod phases;
mod world;
