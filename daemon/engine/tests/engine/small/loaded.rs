//! What such models are loaded by, and with.

use std::path::Path;

use sluice_checkpoint::Source;
use sluice_engine::{Engine, EngineError, EngineOptions};
use sluice_formats::DType;
use sluice_ops::device::DeviceChoice;
use sluice_plan::PlanError;
use sluice_shared::level::Level;

use crate::loading::settings;

/// An engine that computes in `f32`.
pub(crate) fn engine(device: DeviceChoice) -> Engine {
    let options = EngineOptions {
        device,
        compute_dtype: Some(DType::F32),
        threads: 1,
        ..EngineOptions::default()
    };
    Engine::start(options).unwrap()
}

/// The least budget that a model can be loaded with at level standard.
pub(crate) fn least_bytes(engine: &Engine, path: &Path) -> u64 {
    let source = Source::Folder(path.to_owned());
    match engine.load_now(source, settings(Level::Standard, Some(1))) {
        Err(EngineError::Plan(PlanError::BudgetTooSmall { least_bytes, .. })) => least_bytes,
        other => panic!("{:?}", other.err()),
    }
}
