//! Headers of safetensors files. The crate checks them; tensors stay on disk.
//!
//! The crate's own parser takes minutes and gigabytes for a header of a million tensors that fits its limit, so headers
//! are parsed here, in one walk and within bounds.

use std::fmt;

use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};
use serde::{
    Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};
use sluice_formats::Format;

use super::{CheckpointError, TensorEntry, file::CheckpointFile, stored_order::StoredOrder};

/// Bytes of the headers of all files of a checkpoint: of [`TENSORS_MAX`] tensors, several times.
pub const HEADER_BYTES_MAX: u64 = 32 << 20;
/// Tensors of all files of a checkpoint. A diffusion model of 100 billion parameters in 256 experts a layer has 25,000.
pub const TENSORS_MAX: usize = 1 << 16;
/// Bytes of a tensor's name.
pub const NAME_BYTES_MAX: usize = 1024;
/// Dimensions of a tensor.
pub const DIMENSIONS_MAX: usize = 16;

/// What the headers of a checkpoint's files may still take.
#[derive(Debug)]
pub struct HeaderAllowance {
    bytes: u64,
    tensors: usize,
}

impl Default for HeaderAllowance {
    fn default() -> Self {
        Self {
            bytes: HEADER_BYTES_MAX,
            tensors: TENSORS_MAX,
        }
    }
}

/// Every tensor of a file with its absolute offset.
pub(super) fn read_header(
    file: &CheckpointFile,
    index: usize,
    allowance: &mut HeaderAllowance,
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
            "its header would have {header_bytes} bytes, more than the limit of {HEADER_BYTES_MAX}; this is no safetensors file"
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
    allowance.take_bytes(header_bytes).map_err(malformed)?;
    let mut header = vec![0; header_bytes as usize];
    file.read_at(8, &mut header)?;
    let metadata = parse(&header, allowance).map_err(malformed)?;
    drop(header);
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
            order: StoredOrder::Rows,
            compressed: None,
        };
        (name, entry)
    });
    Ok(entries.collect())
}

impl HeaderAllowance {
    /// Takes the bytes of a header before they are read.
    ///
    /// # Errors
    /// When the headers of the checkpoint's files have too many together.
    pub fn take_bytes(&mut self, bytes: u64) -> Result<(), String> {
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.ok_or_else(|| {
            format!("the headers of all files have more than {HEADER_BYTES_MAX} bytes")
        })?;
        Ok(())
    }
}

/// The tensors of a header, checked by the crate: contiguous, and as long as their shapes say.
///
/// # Errors
/// What is wrong with the header, or the bound that it exceeds.
pub fn parse(header: &[u8], allowance: &mut HeaderAllowance) -> Result<Metadata, String> {
    let mut json = serde_json::Deserializer::from_slice(header);
    let tensors = json.deserialize_map(Tensors {
        max: allowance.tensors,
    });
    let mut tensors = tensors.map_err(|error| error.to_string())?;
    json.end().map_err(|error| error.to_string())?;
    allowance.tensors -= tensors.len();
    tensors.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
    if let Some(twice) = tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(format!("it describes the tensor {} twice", twice[0].0));
    }
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    Metadata::new(None, tensors).map_err(|error| error.to_string())
}

/// Collects the tensors of a header, but not what else it says.
struct Tensors {
    max: usize,
}

impl<'de> Visitor<'de> for Tensors {
    type Value = Vec<(String, TensorInfo)>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut tensors = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if tensors.len() == self.max {
                return Err(A::Error::custom(format_args!(
                    "the headers of all files describe more than {TENSORS_MAX} tensors"
                )));
            }
            if name.len() > NAME_BYTES_MAX {
                return Err(A::Error::custom(format_args!(
                    "a tensor's name has more than {NAME_BYTES_MAX} bytes"
                )));
            }
            let info: TensorInfo = map.next_value()?;
            if info.shape.len() > DIMENSIONS_MAX {
                return Err(A::Error::custom(format_args!(
                    "the tensor {name} has more than {DIMENSIONS_MAX} dimensions"
                )));
            }
            tensors.push((name, info));
        }
        Ok(tensors)
    }
}

fn format_of(dtype: Dtype) -> Result<Format, String> {
    match dtype {
        Dtype::F32 => Ok(Format::F32),
        Dtype::F16 => Ok(Format::F16),
        Dtype::BF16 => Ok(Format::Bf16),
        other => Err(format!("{other:?}").to_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header of so many empty tensors, each with what `more` adds to its name.
    fn header(tensors: usize, more: &str, shape: &str) -> String {
        let tensors = (0..tensors).map(|index| {
            format!(r#""t{index}{more}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,0]}}"#)
        });
        format!("{{{}}}", tensors.collect::<Vec<_>>().join(","))
    }

    fn refusal(header: &str) -> String {
        parse(header.as_bytes(), &mut HeaderAllowance::default()).unwrap_err()
    }

    #[test]
    fn bounds_are_those_of_all_files_together() {
        let mut allowance = HeaderAllowance::default();
        let half = header(TENSORS_MAX / 2, "", "0");
        for _ in 0..2 {
            let metadata = parse(half.as_bytes(), &mut allowance).unwrap();
            assert_eq!(metadata.tensors().len(), TENSORS_MAX / 2);
        }
        let error = parse(header(1, "", "0").as_bytes(), &mut allowance).unwrap_err();
        assert!(error.contains("more than 65536 tensors"), "{error}");
        allowance.take_bytes(HEADER_BYTES_MAX).unwrap();
        assert!(allowance.take_bytes(1).is_err());
    }

    #[test]
    fn names_and_shapes_are_bounded() {
        let error = refusal(&header(1, &"x".repeat(NAME_BYTES_MAX), "0"));
        assert!(error.contains("more than 1024 bytes"), "{error}");
        let error = refusal(&header(1, "", &["0"; DIMENSIONS_MAX + 1].join(",")));
        assert!(error.contains("more than 16 dimensions"), "{error}");
    }

    #[test]
    fn a_tensor_is_described_once() {
        let one = r#""a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
        let error = refusal(&format!("{{{one},{one}}}"));
        assert!(error.contains("the tensor a twice"), "{error}");
        let metadata = format!(r#"{{"__metadata__":{{"made":"by"}},{one}}}"#);
        let found = parse(metadata.as_bytes(), &mut HeaderAllowance::default());
        assert_eq!(found.unwrap().tensors().len(), 1);
        assert!(!refusal(&format!("{{{one}}} {{}}")).is_empty());
    }
}
