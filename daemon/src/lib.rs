//! `sluiced` as a library: everything between the command line and the engine.
//!
//! Modules stand in the order in which the program's life meets them.

pub mod allocator;
pub mod background;
pub mod cli;
pub mod config;
pub mod logging;

pub mod check;
pub mod coded;
pub mod offline;
pub mod planning;
pub mod synth;

pub mod listen;
pub mod systemd;

pub mod applies;
pub mod failure;
pub mod idle;
pub mod jobs;
mod keeping;
pub mod library;
pub mod measurements;
pub mod model_name;
pub mod models;
pub mod registry;
pub mod settings;

pub mod prepare;
pub mod translate;

pub mod events;

pub mod services;
pub mod telemetry;

pub mod life;
mod unfit;
