//! GGUF files from their bytes to the tokens that come out of them.

mod convert;
mod hostile;
mod outputs;
mod refusals;
mod smollm;
mod tokenizer;
mod writer;
