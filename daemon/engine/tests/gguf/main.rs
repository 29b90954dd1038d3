//! GGUF files from their bytes to the tokens that come out of them.

mod llada;
mod writer;
