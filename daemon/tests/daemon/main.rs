//! The daemon as others meet it: a real process, a socket of its own, a true client.

#[path = "../../cuda/tests/stand_in/mod.rs"]
mod stand_in;
mod support;

#[path = "../../hub/tests/hub/mod.rs"]
mod hub;

mod bad_checkpoints;
mod bad_requests;
mod card;
mod card_ends;
mod causal;
mod clients;
mod coded;
mod configuration;
mod decoding;
mod fidelity;
mod generating;
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
mod synth;
mod systemd;
mod waiting;
