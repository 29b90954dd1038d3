//! Requests to an engine with a small model.

mod batching;
mod decoding;
mod phases;
mod world;
