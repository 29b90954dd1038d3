//! Checkpoints of this repository.

use std::path::{Path, PathBuf};

/// The demonstration model.
pub(crate) fn demonstration() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model")
}

/// A checkpoint with its reference's outputs.
pub(crate) fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    fixtures.join(name)
}
