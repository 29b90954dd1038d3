//! Requests to an engine with a small model.

mod batching;
mod blocks;
mod decoding;
mod grammars;
mod phases;
mod world;
