//! Containers of such models.

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use sluice_checkpoint::compression::{CompressionMethod, Container, Lossless, Scheme};
use sluice_codec::{
    ColumnsEncoder, CompressedMatrix, Encoded,
    container::{ContainerPlan, ContainerWriter, FileRecord, PlannedTensor},
};

use crate::checkpoints::write_container;

/// Writes a container of the model that was written into this folder.
pub(crate) fn write_compressed(folder: &Path, how: CompressionMethod) -> PathBuf {
    let container = folder.join("model.sluice");
    write_container(&folder.join("model"), &container, how, 128);
    container
}

/// Writes a container of that model whose compressed matrices are quantized column by column: `compress` makes none.
pub(crate) fn write_columns(folder: &Path) -> PathBuf {
    let lossless = write_compressed(folder, CompressionMethod::Lossless(Lossless::Huffman));
    let from = Container::open(&lossless).unwrap();
    let header = from.header();
    let files = |records: &[FileRecord]| {
        let each = records.iter();
        each.map(|file| (file.name.clone(), from.read_file(file).unwrap()))
            .collect::<Vec<_>>()
    };
    let planned = header.tensors.iter().map(|tensor| PlannedTensor {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        dtype: tensor.dtype.clone(),
        extent: header.extents[tensor.extent].name.clone(),
    });
    let plan = ContainerPlan {
        tile: header.tile,
        tensors: planned.collect(),
        shards: files(&header.shards),
        files: files(&header.files),
        identity: "columns".to_owned(),
    };
    let container = folder.join("columns.sluice");
    let never = AtomicBool::new(false);
    let mut writer = ContainerWriter::begin(&container, plan, &never, &mut |_| {}).unwrap();
    let mut bytes = Vec::new();
    for tensor in &header.tensors {
        if tensor.scheme() == Some(Scheme::Plain) {
            writer.begin_tensor(Scheme::Plain).unwrap();
            bytes.resize(tensor.length as usize, 0);
            from.read_part(tensor, 0, &mut bytes).unwrap();
            writer.plain(&bytes).unwrap();
        } else {
            writer.begin_tensor(Scheme::Columns).unwrap();
            for chunk in from.chunks(tensor) {
                from.read_chunk(&chunk, &mut bytes).unwrap();
                let matrix = CompressedMatrix::new(chunk.layout, &bytes).unwrap();
                let quantized = by_columns(&matrix);
                writer.chunk(&quantized.layout, &quantized.bytes).unwrap();
            }
        }
        writer.end_tensor(tensor.original_hash).unwrap();
    }
    writer.finish(true).unwrap();
    container
}

/// Quantizes a chunk with steps that differ from column to column, about a quarter of a standard deviation.
fn by_columns(matrix: &CompressedMatrix<'_>) -> Encoded {
    let layout = matrix.layout();
    let (rows, width) = (layout.rows(), layout.width());
    let mut values = vec![0.0; rows * width];
    matrix.decompress_rows_f32(0..rows, &mut values).unwrap();
    let squares: f32 = values.iter().map(|value| value * value).sum();
    let step = 0.25 * (squares / values.len() as f32).sqrt();
    let sizes = vec![1.0; rows];
    let mut encoder = ColumnsEncoder::new(layout.dtype(), width, &sizes, step).unwrap();
    let mut decoded = vec![0.0; rows];
    for column in 0..width {
        let of_column: Vec<f32> = (0..rows).map(|row| values[row * width + column]).collect();
        let step = step * [1.0, 0.5, 1.3, 2.0][column % 4];
        encoder.quantize_column(column, &of_column, step, &mut decoded);
    }
    encoder.finish().unwrap()
}
