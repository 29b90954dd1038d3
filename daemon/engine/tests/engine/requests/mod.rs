//! Requests to an engine with a small model.

mod batching;
mod decoding;
mod grammars;
mod phases;
mod world;
