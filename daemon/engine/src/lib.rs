//! The engine of Sluice, a library: what `sluiced` runs and nothing of how it is reached.
//!
//! Modules stand in the order in which data meets them. The engine emits events and
//! returns errors; it does not print, read the environment or know about gRPC.

pub mod checkpoint;
pub mod format;
pub mod machine;
pub mod mapped;
pub mod noise;
pub mod page;
pub mod text;
pub mod weights;

pub mod device;
pub mod ledger;
pub mod plan;
pub mod residency;

pub mod measure;
pub mod ops;
pub mod ops_error;

pub mod model;

pub mod decode;

pub mod schedule;

pub mod admission;
pub mod check;
pub mod command;
pub mod engine;
pub mod error;
pub mod event;
pub mod request;

pub use command::{ApplyEvent, Change, LoadEvent, LoadedModel, Settings};
pub use engine::{Engine, Options, PARALLEL_DEFAULT, PARALLEL_MAX};
pub use error::{EngineError, RequestError};
pub use event::{Event, Outcome};
pub use ops_error::OpsError;
pub use request::{Compare, Generate, ModelId, Score, Slot, Work};

#[cfg(target_endian = "big")]
compile_error!("checkpoints are little-endian and are used as they lie on disk");
