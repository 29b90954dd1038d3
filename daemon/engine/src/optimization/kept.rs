//! The mixes of the present model that lie in the folder of converted weights.

use std::{fs, sync::Arc};

use sluice_checkpoint::weight_cache::MixChoice;
use sluice_shared::mix::MixId;

use crate::{error::EngineError, runtime::Engine};

/// A mix, and what is known of it.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptMix {
    /// Its name.
    pub mix: MixId,
    /// Mean bits per weight of all matrices.
    pub bits: f64,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// How it was chosen last; `None` where the optimizer was killed before it had measured the mix.
    pub choice: Option<MixChoice>,
}

/// The mixes of the present model; the one that was chosen last is the last one. Reads files.
///
/// # Errors
/// When no model is loaded.
pub fn kept_mixes(engine: &Engine) -> Result<Vec<KeptMix>, EngineError> {
    let planner = engine.planner().ok_or(EngineError::NoModel)?;
    let Some(mixes) = planner.mixes.files() else {
        return Ok(Vec::new());
    };
    let each = mixes.all().into_iter().filter_map(|mix| {
        let choice = mixes.choice(mix);
        // One that cannot be read is of no use, and whoever asks for it is told why.
        let record = match &choice {
            Some(choice) => Arc::new(choice.record.clone()),
            None => mixes.record(mix).ok()?,
        };
        let bits = record.bits();
        bits.is_finite().then_some(())?;
        Some(KeptMix {
            mix,
            bits,
            file_bytes: fs::metadata(mixes.path(mix)).ok()?.len(),
            choice,
        })
    });
    Ok(each.collect())
}
