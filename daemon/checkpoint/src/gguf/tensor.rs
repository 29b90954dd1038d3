//! The tensor table of a GGUF file: names, shapes, types and offsets.

use sluice_formats::Format;

use super::{super::CheckpointError, cursor::Cursor};

/// Most tensors of a file: models of thousands of layers have fewer.
const TENSORS_MAX: usize = 1 << 16;
/// Longest name in bytes; the format's own tools stop at 64.
const NAME_BYTES_MAX: usize = 256;
/// Most dimensions of a tensor.
const DIMENSIONS_MAX: u32 = 4;
/// Bytes of an entry with the shortest name and one dimension.
pub(super) const ENTRY_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;

/// A tensor as the table describes it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tensor {
    pub(super) name: String,
    /// Dimensions, outermost first.
    pub(super) shape: Vec<usize>,
    /// The storage format, or the name of a type that isn't supported.
    pub(super) format: Result<Format, String>,
    /// Offset from the beginning of the data.
    pub(super) offset: u64,
    /// Length in bytes; 0 for unsupported types, whose size isn't known.
    pub(super) bytes: u64,
}

impl Tensor {
    /// Reads the whole table.
    pub(super) fn read_all(
        cursor: &mut Cursor<'_>,
        count: usize,
    ) -> Result<Vec<Self>, CheckpointError> {
        if count > TENSORS_MAX {
            return Err(cursor.malformed(format!(
                "it would have {count} tensors; files have up to {TENSORS_MAX}"
            )));
        }
        (0..count).map(|_| Self::read(cursor)).collect()
    }

    fn read(cursor: &mut Cursor<'_>) -> Result<Self, CheckpointError> {
        let name = cursor.name("tensor", NAME_BYTES_MAX)?;
        let dimensions = cursor.u32()?;
        if dimensions == 0 || dimensions > DIMENSIONS_MAX {
            return Err(cursor.malformed(format!(
                "tensor {name} would have {dimensions} dimensions, not 1 to {DIMENSIONS_MAX}"
            )));
        }
        let mut shape = Vec::new();
        let mut numbers = Some(1u64);
        for _ in 0..dimensions {
            let size = cursor.u64()?;
            numbers = numbers
                // Checked products: a hostile shape must not overflow to a small size.
                .and_then(|numbers| numbers.checked_mul(size))
                .filter(|&numbers| numbers > 0);
            shape.push(size as usize);
        }
        // GGUF lists the innermost dimension first.
        shape.reverse();
        let kind = cursor.u32()?;
        let offset = cursor.u64()?;
        let Some(numbers) = numbers else {
            return Err(cursor.malformed(format!("tensor {name} would have the shape {shape:?}")));
        };
        let format = format_of(kind);
        let mut bytes = 0;
        if let Ok(format) = format {
            let width = *shape.last().expect("there is a dimension");
            // Blocks never span rows.
            if !format.fits(width) {
                return Err(cursor.malformed(format!(
                    "tensor {name} has rows of {width} elements, not a multiple of its block length {}",
                    format.name()
                )));
            }
            bytes = (numbers / format.block_len() as u64)
                .checked_mul(format.block_bytes() as u64)
                .ok_or_else(|| cursor.malformed(format!("tensor {name} would exceed any file")))?;
        }
        Ok(Self {
            name,
            shape,
            format,
            offset,
            bytes,
        })
    }
}

/// The format of a type's number; the type's name if it isn't supported.
fn format_of(kind: u32) -> Result<Format, String> {
    // Numbers of ggml's `enum ggml_type`; 4 and 5 were formats that it has removed.
    let other = match kind {
        0 => return Ok(Format::F32),
        1 => return Ok(Format::F16),
        2 => return Ok(Format::Q4_0),
        3 => return Ok(Format::Q4_1),
        6 => return Ok(Format::Q5_0),
        7 => return Ok(Format::Q5_1),
        8 => return Ok(Format::Q8_0),
        10 => return Ok(Format::Q2K),
        11 => return Ok(Format::Q3K),
        12 => return Ok(Format::Q4K),
        13 => return Ok(Format::Q5K),
        14 => return Ok(Format::Q6K),
        30 => return Ok(Format::Bf16),
        9 => "q8_1",
        15 => "q8_k",
        16 => "iq2_xxs",
        17 => "iq2_xs",
        18 => "iq3_xxs",
        19 => "iq1_s",
        20 => "iq4_nl",
        21 => "iq3_s",
        22 => "iq2_s",
        23 => "iq4_xs",
        24 => "i8",
        25 => "i16",
        26 => "i32",
        27 => "i64",
        28 => "f64",
        29 => "iq1_m",
        34 => "tq1_0",
        35 => "tq2_0",
        39 => "mxfp4",
        40 => "nvfp4",
        unknown => return Err(format!("type {unknown}")),
    };
    Err(other.to_owned())
}
