//! Headers of safetensors files. The crate parses and checks them; tensors stay on disk.

use safetensors::{Dtype, tensor::Metadata};
use sluice_formats::Format;

use super::{CheckpointError, TensorEntry, file::CheckpointFile};

/// The crate's own limit, checked before a header is allocated.
pub(super) const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Every tensor of a file with its absolute offset.
pub(super) fn read_header(
    file: &CheckpointFile,
    index: usize,
) -> Result<Vec<(String, TensorEntry)>, CheckpointError> {
    let malformed = |cause: String| CheckpointError::MalformedFile {
        path: file.path.clone(),
        cause,
    };
    if file.len < 8 {
        return Err(malformed("too short for a safetensors header".to_owned()));
    }
    let mut length = [0; 8];
    file.read_at(0, &mut length)?;
    let header_bytes = u64::from_le_bytes(length);
    // Any file's first eight bytes are some length: a wrong kind of file is recognized here, before memory is
    // allocated.
    if header_bytes > HEADER_BYTES_MAX {
        return Err(malformed(format!(
            "its header would have {header_bytes} bytes; this is no safetensors file"
        )));
    }
    // No overflow: the length was just bounded.
    if header_bytes + 8 > file.len {
        return Err(CheckpointError::WrongLength {
            path: file.path.clone(),
            expected: header_bytes + 8,
            found: file.len,
        });
    }
    let mut header = vec![0; header_bytes as usize];
    file.read_at(8, &mut header)?;
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| malformed(error.to_string()))?;
    let start = header_bytes + 8;
    let expected = start
        .checked_add(metadata.data_len() as u64)
        .ok_or_else(|| malformed("its tensors would exceed any file".to_owned()))?;
    // The format allows neither gaps nor bytes after the last tensor, so any other length means damage.
    if expected != file.len {
        return Err(CheckpointError::WrongLength {
            path: file.path.clone(),
            expected,
            found: file.len,
        });
    }
    let entries = metadata.tensors().into_iter().map(|(name, info)| {
        let (from, to) = info.data_offsets;
        let entry = TensorEntry {
            format: format_of(info.dtype),
            shape: info.shape.clone(),
            file: index,
            offset: start + from as u64,
            bytes: (to - from) as u64,
            interleaved: None,
            compressed: None,
        };
        (name, entry)
    });
    Ok(entries.collect())
}

fn format_of(dtype: Dtype) -> Result<Format, String> {
    match dtype {
        Dtype::F32 => Ok(Format::F32),
        Dtype::F16 => Ok(Format::F16),
        Dtype::BF16 => Ok(Format::Bf16),
        other => Err(format!("{other:?}").to_lowercase()),
    }
}
