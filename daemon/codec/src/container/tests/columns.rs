//! A container of columns: what is damaged in it is named.

use super::*;
use crate::{ColumnsEncoder, CompressedMatrix};

/// A chunk of columns of two steps.
fn columns(rows: usize, width: usize, random: &mut Random) -> (Encoded, Vec<u8>) {
    let mut encoder = ColumnsEncoder::new(DType::F32, width, &vec![1.; rows], 0.1).unwrap();
    let mut decoded = vec![0.; rows];
    for column in 0..width {
        let values: Vec<f32> = (0..rows)
            .map(|_| random.below(200) as f32 / 100. - 1.)
            .collect();
        let step = if column % 9 == 4 { 0.4 } else { 0.1 };
        encoder.quantize_column(column, &values, step, &mut decoded);
    }
    (encoder.finish().unwrap(), vec![0; 4 * rows * width])
}

#[test]
fn damage_of_columns_is_named_by_tile() {
    let random = &mut Random(11);
    let planned = PlannedTensor {
        name: "layers.0.up".to_owned(),
        shape: vec![265, 20],
        dtype: "f32".to_owned(),
        extent: "layers.0".to_owned(),
    };
    let chunks = [256, 9].map(|rows| columns(rows, 20, random)).to_vec();
    let model = Model {
        tensors: vec![(planned, Content::Compressed(chunks.clone()))],
    };
    let mut bytes = model.container();

    let container = read(&bytes).unwrap();
    let tensor = &container.header().tensors[0];
    assert_eq!(tensor.scheme(), Some(Scheme::Columns));
    let found: Vec<Chunk> = container.chunks(tensor).collect();
    assert_eq!(damage(&container), []);
    let mut first_tile = 0;
    for (chunk, (encoded, _)) in found.iter().zip(&chunks) {
        assert_eq!(chunk.layout, encoded.layout);
        let matrix = CompressedMatrix::new(encoded.layout.clone(), &encoded.bytes).unwrap();
        let layout = matrix.layout();
        // Three tiles: eight columns, eight, and four.
        assert_eq!(layout.tiles(), 3);
        let tensor = || "layers.0.up".to_owned();
        let mut check = |at: usize, expected: Damage| {
            let at = chunk.offset as usize + at;
            bytes[at] ^= 0x10;
            assert_eq!(damage(&read(&bytes).unwrap()), [expected], "byte {at}");
            bytes[at] ^= 0x10;
        };
        for tile in 0..3 {
            let [codes, ..] = matrix.tile_bytes(tile).unwrap();
            for at in [codes.start, codes.start + codes.len() / 2, codes.end - 1] {
                let tile = first_tile + tile;
                let tensor = tensor();
                check(at, Damage::Tile { tensor, tile });
            }
        }
        for part in [
            layout.table(),
            layout.steps(),
            layout.offsets(),
            layout.lengths(),
        ] {
            for at in [part.start, part.end - 1] {
                let tensor = tensor();
                let tile = first_tile;
                check(at, Damage::Tables { tensor, tile });
            }
        }
        first_tile += 3;
    }
}
