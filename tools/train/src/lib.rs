//! The training program as a library: a text generator, a tokenizer trained on it, networks with gradients, their
//! objectives, and the way from a checkpoint to a Hugging Face folder.

// The configuration is one long JSON literal.
#![recursion_limit = "256"]

pub mod random;
pub mod text;

pub mod corpus;
pub mod vocabulary;

pub mod config;
pub mod device;
pub mod model;
pub mod ops;

pub mod auto_batch;
pub mod batch;
pub mod loader;
pub mod objective;

pub mod checkpoint;
pub mod file;
pub mod gradient;
pub mod latent;
pub mod likelihood;
pub mod likelihood_command;
pub mod log;
pub mod memory;
pub mod model_arguments;
pub mod optimizer;
pub mod parallel;
pub mod posteriors_command;
pub mod precision;
pub mod prior;
pub mod progress;
pub mod quantization;
pub mod report;
pub mod schedule;
pub mod step;
pub mod trainer;
pub mod training_command;
pub mod weights_file;

pub mod export;
pub mod judge;

pub mod card;
