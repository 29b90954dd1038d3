//! The formats that KV caches are kept in.

use sluice_formats::Format;
use sluice_machine::Profile;
use sluice_shared::level::KvCacheFormat;

use super::PlanError;

/// What keys and values are kept in on such a device: on the CPU what was asked for, and where nothing was, bf16, which
/// models compute them in when they are trained; on a card what it computes in.
///
/// # Errors
/// A card is asked for anything else.
pub fn resolve_kv_cache_format(
    kv_cache_format: KvCacheFormat,
    profile: &Profile,
) -> Result<Format, PlanError> {
    let asked = match kv_cache_format {
        KvCacheFormat::Auto => None,
        KvCacheFormat::F32 => Some(Format::F32),
        KvCacheFormat::Bf16 => Some(Format::Bf16),
        KvCacheFormat::Q8_0 => Some(Format::Q8_0),
    };
    let Some(card) = &profile.gpu else {
        return Ok(asked.unwrap_or(Format::Bf16));
    };
    let own = Format::from(card.dtype);
    match asked.is_none_or(|asked| asked == own) {
        true => Ok(own),
        false => Err(PlanError::KvCacheFormat {
            asked: kv_cache_format,
            dtype: own.name(),
        }),
    }
}

/// What keys and values of a canvas are kept in: as [`resolve_kv_cache_format`] has it, but where nothing was asked for, as they are
/// computed, so that what a pass leaves out is all that it approximates.
///
/// # Errors
/// As there.
pub fn resolve_canvas_kv_cache_format(
    requested: KvCacheFormat,
    profile: &Profile,
) -> Result<Format, PlanError> {
    match requested {
        KvCacheFormat::Auto => Ok(compute_format(profile)),
        requested => resolve_kv_cache_format(requested, profile),
    }
}

/// The format that keys and values are computed in.
#[must_use]
pub fn compute_format(profile: &Profile) -> Format {
    match &profile.gpu {
        Some(card) => card.dtype.into(),
        None => Format::F32,
    }
}
