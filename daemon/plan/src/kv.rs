//! The formats that KV caches are kept in.

use sluice_formats::Format;
use sluice_machine::Profile;
use sluice_shared::level::Kv;

use super::PlanError;

/// What keys and values are kept in on such a device: on the CPU what was asked for, and where nothing was, bf16, which
/// models compute them in when they are trained; on a card what it computes in.
///
/// # Errors
/// A card is asked for anything else.
pub fn cache_format(kv: Kv, profile: &Profile) -> Result<Format, PlanError> {
    let asked = match kv {
        Kv::Auto => None,
        Kv::F32 => Some(Format::F32),
        Kv::Bf16 => Some(Format::Bf16),
        Kv::Q8_0 => Some(Format::Q8_0),
    };
    let Some(card) = &profile.card else {
        return Ok(asked.unwrap_or(Format::Bf16));
    };
    let own = Format::from(card.number);
    match asked.is_none_or(|asked| asked == own) {
        true => Ok(own),
        false => Err(PlanError::CacheFormat {
            asked: kv,
            number: own.name(),
        }),
    }
}

/// What keys and values of a canvas are kept in: as [`cache_format`] has it, but where nothing was asked for, as they are
/// computed, so that what a pass leaves out is all that it approximates.
///
/// # Errors
/// As there.
pub fn canvas_cache_format(kv: Kv, profile: &Profile) -> Result<Format, PlanError> {
    match kv {
        Kv::Auto => Ok(computed_format(profile)),
        asked => cache_format(asked, profile),
    }
}

/// The format that keys and values are computed in.
#[must_use]
pub fn computed_format(profile: &Profile) -> Format {
    match &profile.card {
        Some(card) => card.number.into(),
        None => Format::F32,
    }
}
