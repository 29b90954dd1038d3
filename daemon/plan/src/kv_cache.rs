//! The formats that KV caches are kept in.

use sluice_formats::Format;
use sluice_machine::Profile;
use sluice_shared::level::KvCacheFormat;

use super::PlanError;

/// The format in which an autoregressive model's KV cache is kept on such a device. On the CPU what was requested, by
/// default bf16, in which models compute keys and values when they are trained; on a GPU the dtype in which it
/// computes.
///
/// # Errors
/// When another format is requested of a GPU.
pub fn resolve_kv_cache_format(
    kv_cache_format: KvCacheFormat,
    profile: &Profile,
) -> Result<Format, PlanError> {
    let asked = match kv_cache_format {
        KvCacheFormat::Auto => None,
        KvCacheFormat::F32 => Some(Format::F32),
        KvCacheFormat::Bf16 => Some(Format::Bf16),
        KvCacheFormat::Q8_0 => Some(Format::Q8_0),
        KvCacheFormat::Q5_0 => Some(Format::Q5_0),
        KvCacheFormat::Q4_0 => Some(Format::Q4_0),
    };
    let Some(gpu) = &profile.gpu else {
        return Ok(asked.unwrap_or(Format::Bf16));
    };
    let own = Format::from(gpu.dtype);
    // A GPU's kernels read keys and values in the dtype that they compute in, and in no other.
    match asked.is_none_or(|asked| asked == own) {
        true => Ok(own),
        false => Err(PlanError::KvCacheFormat {
            asked: kv_cache_format,
            dtype: own.name(),
        }),
    }
}

/// The format in which a canvas's KV cache is kept: as [`resolve_kv_cache_format`] has it, but by default as keys and
/// values are computed, so that the approximation is only in what a pass leaves out.
///
/// # Errors
/// As [`resolve_kv_cache_format`].
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
        Some(gpu) => gpu.dtype.into(),
        None => Format::F32,
    }
}
