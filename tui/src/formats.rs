//! Formats and sizes of a model's files and weights, in words.

use sluice_proto::v1::{FileFormat, GenerationDone, Model, ModelShape};
use sluice_shared::units;

/// The formats that a model's weights are stored in: `q4_k + bf16`.
#[must_use]
pub fn weight_formats(shape: &ModelShape) -> String {
    let formats: Vec<_> = shape.formats.iter().map(ToString::to_string).collect();
    formats.join(" + ")
}

/// Format of a model's files, or of its weights where it has no files; `None` where neither is known.
#[must_use]
pub fn file_format(model: &Model) -> Option<String> {
    match (model.file_format(), &model.shape) {
        (FileFormat::Unspecified, shape) => shape.as_ref().map(weight_formats),
        (format, _) => Some(format.to_string()),
    }
}

/// Size and format of a model's files: `3.00 GiB of safetensors`.
#[must_use]
pub fn files(model: &Model) -> String {
    let size = units::bytes(model.disk_bytes);
    match model.file_format() {
        FileFormat::Unspecified => size,
        format => format!("{size} of {format}"),
    }
}
/// How many committed tokens were replaced by others; `None` where none was.
#[must_use]
pub fn edits(done: &GenerationDone) -> Option<String> {
    match done.edits {
        0 => None,
        1 => Some("1 edit".to_owned()),
        edits => Some(format!("{} edits", units::count(edits.into()))),
    }
}
