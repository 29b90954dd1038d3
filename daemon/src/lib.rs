//! `sluiced` as a library: everything between the command line and the engine.
//!
//! Modules stand in the order in which the program's life meets them.

pub mod allocator;
pub mod background;
pub mod cli;
pub mod config;
pub mod logging;

pub mod check;
pub mod compression;
pub mod examine;
pub mod manual;
pub mod offline;
pub mod planning;
pub mod synth;

mod file_stamp;
pub mod listen;
pub mod systemd;

pub mod access;
mod atomic_file;
pub mod caller;
pub mod credential_file;
pub mod engines;
pub mod failure;
pub mod idle;
mod invisible;
pub mod library;
pub mod limits;
pub mod measurements;
pub mod memory;
pub mod model_name;
pub mod models;
pub mod operations;
pub mod requests;
mod reread;
pub mod settings;
pub mod stall;
pub mod state;
pub mod tls;
pub mod tokens;

/// Roles, their rules, and the tokens of a file.
pub use sluice_roles as role;

mod grammar;
pub mod prepare;
pub mod together;
pub mod translate;

pub mod events;

pub mod services;
pub mod telemetry;

mod gpu_fit;
mod learned_experts;
pub mod lifecycle;
mod renewal;
pub mod watchdog;
