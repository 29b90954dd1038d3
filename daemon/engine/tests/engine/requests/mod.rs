//! Requests to an engine with a small model.

mod anywhere;
mod batching;
mod blocks;
mod canvases;
mod decoding;
mod grammars;
mod phases;
mod world;
