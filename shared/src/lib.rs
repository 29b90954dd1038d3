//! What `sluiced`, its engine and `sluice` all need and gRPC does not carry.
//!
//! No I/O happens here: what depends on the environment takes it as an argument.

pub mod address;
pub mod bandwidth;
pub mod compression;
pub mod decoding;
pub mod level;
pub mod mix;
pub mod names;
pub mod options;
pub mod origin;
pub mod policy;
pub mod preset;
pub mod prior;
pub mod pruning;
pub mod renames;
pub mod sampling;

pub mod units;

/// Exit codes of both programs; scripts rely on them.
pub mod exit {
    /// All went well.
    pub const OK: u8 = 0;
    /// Anything without a code of its own.
    pub const FAILURE: u8 = 1;
    /// Wrong usage of the command line (`EX_USAGE`).
    pub const USAGE: u8 = 64;
    /// The daemon could not be reached (`EX_UNAVAILABLE`).
    pub const UNREACHABLE: u8 = 69;
    /// Ctrl-C ended it, as shells report a program that SIGINT killed (128 + 2).
    pub const INTERRUPTED: u8 = 130;
    /// The configuration is wrong (`EX_CONFIG`); systemd does not restart on it.
    pub const CONFIG: u8 = 78;
}
