//! The daemon as others meet it: a real process, a socket of its own, a true client.

mod bad_checkpoints;
mod bad_requests;
mod causal;
mod check;
mod clients;
mod compressed_files;
mod configuration;
mod decoding;
mod fidelity;
mod generating;
mod gpu;
mod jobs;
mod library;
mod memory;
mod planning;
mod plans;
mod predictions;
mod requests;
mod services;
mod settings;
mod shutdown;
mod sockets;
mod support;
mod synth;
mod systemd;
mod waiting;
