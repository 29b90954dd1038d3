//! A process of its own for tokenizing, which bounds memory and time.
//!
//! The process parses the files once and keeps them. For each session it forks: a worker does the work and may be killed
//! at any time, and a supervisor waits for it and tells how it ended. So no session pays for parsing, what one takes is
//! given back, and none harms another. Sessions come as descriptors over the socket that is the process's standard input.

pub(crate) mod client;
pub(crate) mod message;
mod serve;

use std::ffi::CStr;

pub use client::TextProcess;
pub use serve::serve;

/// The argument that makes a program call [`serve`], alone.
pub const ARGUMENT: &str = "tokenizer-process";

/// What lists of processes call it.
const NAME: &CStr = c"sluiced-text";
