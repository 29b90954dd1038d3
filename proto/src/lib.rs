//! The wire between `sluiced` and its clients.
//!
//! [`v1`] is generated from `proto/sluice/v1`. [`model`] holds the types that the
//! receiving side turns messages into, with every invariant checked once; past that
//! point they can be trusted. [`client`] connects to a daemon.
//!
//! Both sides depend on this crate, so it stays slim.

pub mod client;
mod json;
pub mod model;
pub mod operations;
mod words;

/// Generated messages and services of package `sluice.v1`.
#[allow(missing_docs, clippy::all, unused_qualifications)]
pub mod v1 {
    tonic::include_proto!("sluice.v1");
    include!(concat!(env!("OUT_DIR"), "/words.rs"));
}

/// The schema as a `FileDescriptorSet`, for the reflection service.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/sluice_descriptors.bin"));

/// Raised when daemon and client of different numbers would misread each other; sent in `DaemonStatus.protocol_version`.
pub const PROTOCOL: u32 = 2;

/// The header in which a client says which protocol it speaks. A daemon that speaks another refuses its calls before it does
/// anything, but the one that tells versions and process.
pub const PROTOCOL_HEADER: &str = "sluice-protocol";
