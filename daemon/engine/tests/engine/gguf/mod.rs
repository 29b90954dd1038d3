//! GGUF files from their bytes to the tokens that come out of them.

mod advice;
mod convert;
mod formats;
mod hostile;
mod outputs;
mod refusals;
mod run;
mod smollm;
mod tokenizer;
mod writer;
