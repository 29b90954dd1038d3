//! Containers of such models.

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use sluice_checkpoint::{
    Source,
    coded::{Compression, How, compress},
};

/// Writes a container of the model that was written into this folder.
pub(crate) fn write_coded(folder: &Path, how: How) -> PathBuf {
    let container = folder.join("model.sluice");
    let options = Compression {
        how,
        tile: 128,
        keep: Vec::new(),
        all: false,
        threads: 1,
        replace: true,
    };
    let source = Source::Folder(folder.join("model"));
    let never = AtomicBool::new(false);
    compress(&source, &container, &options, &never, &mut |_, _| {}).unwrap();
    container
}
