//! Verifies a container against its checksums.

use std::sync::atomic::AtomicBool;

use sluice_codec::container::{Container, Damage};

use super::{CompressError, Progress, ProgressBytes};

/// Compares every byte of a container with its checksums. Returns all damage found, in file order.
///
/// # Errors
/// When a file operation fails, or `cancel` was set.
pub fn verify(
    container: &Container,
    cancel: &AtomicBool,
    progress: Progress<'_>,
) -> Result<Vec<Damage>, CompressError> {
    let header = container.header();
    let found = container.verify(cancel, &mut |done_bytes| {
        // Progress is a position in the file: the current tensor is the last one that begins before it.
        let begun = header
            .tensors
            .partition_point(|tensor| tensor.offset <= done_bytes);
        let tensor = header.tensors.get(begun.saturating_sub(1));
        let done = ProgressBytes {
            done_bytes,
            total_bytes: header.bytes,
        };
        progress(tensor.map_or("", |tensor| &tensor.name), done);
    });
    Ok(found?)
}
