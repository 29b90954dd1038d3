//! Any bytes as a compressed matrix with any header: what a header says of it comes first, its parts after that. It may be
//! refused or mean any elements; nothing may panic, run on, or take more memory than the bytes account for.

use sluice_codec::{CompressedMatrix, MatrixLayout, Scheme};
use sluice_formats::DType;

/// Longest matrix whose parts are made up where the input ends.
const BYTES_MAX: usize = 1 << 16;

/// Everything that is done with such bytes.
pub fn codec(input: &[u8]) {
    let Some((header, bytes)) = input.split_first_chunk::<14>() else {
        return;
    };
    let short = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let Some(scheme) = Scheme::from_id(header[0] % 6) else {
        return;
    };
    let dtype = DType::ALL[usize::from(header[1]) % 3];
    let tile = 64 << (header[2] % 5);
    // Some of the lengths as they must be, so that what needs them is reached.
    let (rows, width) = (short(4), short(6));
    let (codes, escapes) = match (header[3] % 4, scheme) {
        (0, _) => (short(8), short(10)),
        (_, Scheme::Plain) => (rows * width * dtype.bytes(), 0),
        (_, Scheme::Dictionary) => ((rows * width).div_ceil(2), short(10)),
        (_, Scheme::Huffman | Scheme::Trellis | Scheme::Columns) => (short(8), 0),
    };
    let Ok(layout) = MatrixLayout::new(scheme, dtype, rows, width, tile, codes, escapes) else {
        return;
    };
    let mut bytes = bytes.to_vec();
    if header[12] % 4 != 0 && layout.bytes() <= BYTES_MAX {
        bytes.resize(layout.bytes(), header[13]);
    }
    let Ok(compressed) = CompressedMatrix::new(layout, &bytes) else {
        return;
    };
    drop(compressed.check());
    let checked = compressed.check_tile_bounds();
    // All rows, and some.
    for rows in [0..rows, rows / 3..rows - rows / 4] {
        let numbers = rows.len() * width;
        drop(compressed.decompress_rows(rows.clone(), &mut vec![0; numbers * dtype.bytes()]));
        let mut values = vec![0.; numbers];
        let upcast = compressed.decompress_rows_f32(rows.clone(), &mut values);
        let first = rows.start;
        let in_pieces = compressed.decompress_pieces_f32(rows, |row, column, piece| {
            let start = (row - first) * width + column;
            let bits = |values: &[f32]| {
                values
                    .iter()
                    .map(|value| value.to_bits())
                    .collect::<Vec<_>>()
            };
            assert!(upcast.is_err() || bits(piece) == bits(&values[start..start + piece.len()]));
        });
        assert_eq!(upcast, in_pieces);
        // Whoever multiplies from compressed bytes relies on it.
        assert!(checked.is_err() || upcast.is_ok());
    }
    if scheme == Scheme::Columns {
        let mut values = vec![0.; rows * width];
        let by_column = compressed.decompress_columns_f32(0..width, &mut values);
        assert!(checked.is_err() || by_column.is_ok());
    }
    for tile in 0..=compressed.layout().tiles() {
        if let Ok(parts) = compressed.tile_bytes(tile) {
            for part in parts {
                assert!(bytes.get(part).is_some());
            }
        }
    }
}
