use super::*;
use crate::noise::Noise;

fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let noise = Noise::new(seed);
    (0..count)
        .map(|i| (noise.uniform(0, i as u64, 0) * 256.0) as u8)
        .collect()
}

fn formats() -> impl Iterator<Item = Format> {
    (Format::ALL.into_iter()).filter(|format| format.interleaved_len().is_some())
}

/// A width of several blocks.
fn width(format: Format) -> usize {
    3 * format.block_len().max(16)
}

#[test]
fn pieces_are_as_long_as_blocks() {
    for format in formats() {
        let pieces = Pieces::of(format).unwrap();
        assert_eq!(pieces.bytes(), format.bytes(pieces.elements), "{format:?}");
    }
    assert!(!Format::Q2K.interleaves(256) && !Format::Bf16.interleaves(3));
}

#[test]
fn rows_come_back() {
    for format in formats() {
        let width = width(format);
        for rows in [1, 15, 16, 17, 50] {
            let stored = bytes(rows * format.bytes(width), 1);
            let mut moved = stored.clone();
            interleave(format, width, &mut moved, &mut Vec::new());
            assert_eq!(moved == stored, rows < ROWS, "{format:?}");
            let mut row = vec![0; format.bytes(width)];
            for index in 0..rows {
                copy_row(format, width, &moved, index, 0..width, &mut row);
                assert_eq!(row, stored[index * row.len()..][..row.len()]);
            }
            let block = format.block_len().max(2);
            let part = format.bytes(block)..format.bytes(2 * block);
            let mut middle = vec![0; part.len()];
            copy_row(
                format,
                width,
                &moved,
                rows - 1,
                block..2 * block,
                &mut middle,
            );
            assert_eq!(middle, stored[(rows - 1) * row.len()..][part]);
            restore(format, width, &mut moved, &mut Vec::new());
            assert_eq!(moved, stored);
        }
    }
}
