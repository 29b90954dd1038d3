//! What the fuzzers' targets do with bytes. Apart from these, so that a bounded sample runs without a fuzzer, on any
//! compiler (`tests/sample.rs`).

mod codec;
mod container;
mod gguf;
mod pth;
mod tokens;

pub use self::{
    codec::codec,
    container::container,
    gguf::gguf,
    pth::{archive, pth},
    tokens::tokens,
};
