//! What the fuzzers' targets do with bytes. Apart from these, so that a bounded sample runs without a fuzzer, on any
//! compiler (`tests/sample`).

mod codec;
mod container;
mod gguf;
mod http;
mod pth;
mod tokens;

pub use self::{
    codec::codec,
    container::container,
    gguf::gguf,
    http::{HttpOutcome, POSTS, http_body, http_connection},
    pth::{archive, pth},
    tokens::tokens,
};
