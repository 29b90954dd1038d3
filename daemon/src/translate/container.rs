//! Coded files, and what came of making them, as the wire has them.

use std::collections::BTreeMap;

use prost::Message;
use sluice_checkpoint::{
    compression::{CompressResult, Container, Damage, DecompressResult, TensorRecord},
    pruning::{PruneResult, PruningRecord},
};
use sluice_proto::{client::MESSAGE_BYTES_MAX, v1};

use super::format;

/// Lines of a list of what a user should know; the rest is counted.
const LINES_MAX: usize = 100;
/// Bytes of tensors and files that go into a message, so that whatever a header has it can be sent.
const LIST_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 4;

/// The contents of a compressed file.
#[must_use]
pub fn contents(container: &Container) -> v1::ContainerContents {
    let header = container.header();
    let mut schemes: BTreeMap<u8, v1::CompressionSummary> = BTreeMap::new();
    for tensor in &header.tensors {
        let sum = schemes.entry(tensor.scheme).or_default();
        sum.compression = compression(tensor).into();
        sum.tensors += 1;
        sum.elements = sum.elements.saturating_add(elements(tensor));
        sum.bytes = sum.bytes.saturating_add(tensor.length);
        sum.original_bytes = sum.original_bytes.saturating_add(tensor.original_bytes());
    }
    let originals = schemes.values().map(|sum| sum.original_bytes);
    let tensors = header.tensors.iter().map(|tensor| v1::ContainerTensor {
        name: tensor.name.clone(),
        shape: tensor.shape.iter().map(|size| *size as u64).collect(),
        dtype: tensor.dtype.clone(),
        compression: compression(tensor).into(),
        extent: header.extents[tensor.extent].name.clone(),
        bytes: tensor.length,
        original_bytes: tensor.original_bytes(),
        hash: tensor.hash.to_string(),
        original_hash: tensor.original_hash.to_string(),
    });
    let shards = header.shards.iter().map(|file| (file, true));
    let files = shards.chain(header.files.iter().map(|file| (file, false)));
    let files = files.map(|(file, is_header)| v1::ContainerFile {
        name: file.name.clone(),
        bytes: file.length,
        hash: file.hash.to_string(),
        is_header,
    });
    v1::ContainerContents {
        path: container.path().to_owned(),
        file_bytes: header.bytes,
        original_bytes: originals.fold(0, u64::saturating_add),
        source_hash: header.source_hash.to_string(),
        tile_elements: header.tile as u32,
        extents: header.extents.len() as u32,
        summaries: schemes.into_values().collect(),
        tensors: within_limit(tensors),
        files: within_limit(files),
        pruning: PruningRecord::of_container(container).as_ref().map(pruning),
    }
}

/// A file that was made.
#[must_use]
pub fn compress_result(made: &CompressResult) -> v1::CompressResult {
    v1::CompressResult {
        file_bytes: made.bytes,
        original_bytes: made.original_bytes,
        resumed_tensors: made.resumed as u64,
        omitted_files: made.skipped_files.iter().take(LINES_MAX).cloned().collect(),
        relative_error: made.error,
    }
}

/// A pruned file that was made.
#[must_use]
pub fn prune_result(made: &PruneResult) -> v1::PruneResult {
    v1::PruneResult {
        file_bytes: made.bytes,
        original_bytes: made.original_bytes,
        kept_bytes: made.kept_bytes,
        pruning: Some(pruning(&made.record)),
        resumed_tensors: made.resumed as u64,
        omitted_files: made.skipped_files.iter().take(LINES_MAX).cloned().collect(),
    }
}

/// What a pruned file lacks.
fn pruning(record: &PruningRecord) -> v1::PruningSummary {
    let (removed_kv_heads, kv_heads) = record.removed_kv_heads();
    let (removed_channels, channels) = record.removed_channels();
    v1::PruningSummary {
        removed_kv_heads: removed_kv_heads as u64,
        kv_heads: kv_heads as u64,
        removed_channels: removed_channels as u64,
        channels: channels as u64,
        score: v1::PruneScore::from(record.score).into(),
        source_hash: record.source_hash.clone(),
        head_share: record.shares.heads,
        channel_share: record.shares.channels,
        calibration_hash: record.calibration_hash.clone().unwrap_or_default(),
        is_compensated: record.is_compensated,
    }
}

/// A folder that was made.
#[must_use]
pub fn decompress_result(made: &DecompressResult) -> v1::DecompressResult {
    v1::DecompressResult {
        original_bytes: made.original_bytes,
        files: made.files as u64,
    }
}

/// What a comparison with the checksums found.
#[must_use]
pub fn verify_result(container: &Container, found: &[Damage]) -> v1::VerifyResult {
    v1::VerifyResult {
        file_bytes: container.header().bytes,
        tensors: container.header().tensors.len() as u64,
        damage: found
            .iter()
            .take(LINES_MAX)
            .map(ToString::to_string)
            .collect(),
        damaged_places: found.len() as u64,
    }
}

/// The first of these, as far as there is room.
fn within_limit<M: Message>(messages: impl Iterator<Item = M>) -> Vec<M> {
    let mut room = LIST_BYTES_MAX;
    let fits = |message: &M| {
        // With its tag and its length.
        let left = room.checked_sub(message.encoded_len() + 8);
        room = left.unwrap_or(0);
        left.is_some()
    };
    messages.take_while(fits).collect()
}

fn elements(tensor: &TensorRecord) -> u64 {
    tensor.elements().unwrap_or(0) as u64
}

/// How a tensor is compressed; unspecified for a scheme that this program does not know.
pub(crate) fn compression(tensor: &TensorRecord) -> v1::Compression {
    let scheme = tensor.scheme();
    scheme.map_or(v1::Compression::Unspecified, format::compression)
}
