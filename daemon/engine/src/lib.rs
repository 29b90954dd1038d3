//! The engine of Sluice, a library: what `sluiced` runs, without the ways to reach it.
//!
//! Modules stand in the order in which data meets them. The engine emits events and
//! returns errors; it does not print, read the environment or know about gRPC.

pub mod residency;

pub mod model;

pub mod decode;

mod device_turn;
pub mod fair;
pub mod grammar;
pub mod heartbeat;
pub mod schedule;

pub mod admission;
pub mod calibration;
pub mod check;
pub mod command;
pub mod error;
pub mod event;
pub mod optimization;
pub mod posterior;
pub mod prior;
pub mod request;
pub mod runtime;
pub mod saved_state;
mod turns;

pub use command::{
    ApplyEvent, Budget, CommandEvent, CommandStage, FitFn, LoadEvent, LoadRoom, LoadedModel,
    PlanOptions, PlanSettings,
};
pub use error::{EngineError, RequestError};
pub use event::{Event, Outcome};
pub use fair::ShareKey;
pub use request::{
    CanvasSlot, CollectInputs, Embed, Generate, MatrixKey, MeasureFidelity, MeasureMix, ModelId,
    Score, Work,
};
pub use runtime::{Engine, EngineOptions, PARALLEL_DEFAULT, PARALLEL_MAX};
