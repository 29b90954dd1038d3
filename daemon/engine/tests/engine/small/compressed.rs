//! Containers of such models.

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use sluice_checkpoint::{
    Source,
    compression::{CompressOptions, CompressionMethod, compress},
};

/// Writes a container of the model that was written into this folder.
pub(crate) fn write_compressed(folder: &Path, how: CompressionMethod) -> PathBuf {
    let container = folder.join("model.sluice");
    let options = CompressOptions {
        method: how,
        tile: 128,
        tensors: Default::default(),
        all: false,
        threads: 1,
        replace: true,
    };
    let source = Source::Folder(folder.join("model"));
    let never = AtomicBool::new(false);
    compress(&source, &container, &options, &never, &mut |_, _| {}).unwrap();
    container
}
