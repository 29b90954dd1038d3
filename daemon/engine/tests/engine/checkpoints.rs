//! Checkpoints of this repository, and containers of them.

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use sluice_checkpoint::{
    Source,
    compression::{CompressOptions, CompressionMethod, compress},
};

/// The demonstration model.
pub(crate) fn demonstration() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model")
}

/// A checkpoint with its reference's outputs.
pub(crate) fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    fixtures.join(name)
}

/// Writes a container of the checkpoint in a folder, in the place of one that is there.
pub(crate) fn write_container(
    folder: &Path,
    target: &Path,
    method: CompressionMethod,
    tile: usize,
) {
    let options = CompressOptions {
        method,
        tile,
        tensors: Default::default(),
        all: false,
        threads: 2,
        replace: true,
    };
    let source = Source::Folder(folder.to_owned());
    let never = AtomicBool::new(false);
    compress(&source, target, &options, &never, &mut |_, _| {}).unwrap();
}
