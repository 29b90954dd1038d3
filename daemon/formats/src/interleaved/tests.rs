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

/// All that a half can be.
#[test]
fn halves_are_exact() {
    let stored: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let mut found = vec![[0.0; ROWS]; stored.len() / 2 / ROWS];
    dequantize(Format::F16, &stored, &mut found, 1);
    let mut expected = vec![0.0; stored.len() / 2];
    // From a vector of elements, since they must be aligned.
    let elements: Vec<u16> = (0..=u16::MAX).collect();
    Format::F16.dequantize(bytemuck::cast_slice(&elements), &mut expected);
    for (found, expected) in found.as_flattened().iter().zip(expected) {
        let same = found.to_bits() == expected.to_bits();
        assert!(same || found.is_nan() && expected.is_nan());
    }
}

#[test]
fn quants_are_those_of_each_row() {
    for (format, step) in formats().flat_map(|format| [(format, 1), (format, 2)]) {
        let Some(groups) = format.groups() else {
            continue;
        };
        let width = width(format);
        let stored = bytes(ROWS * format.bytes(width), 2);
        let mut moved = stored.clone();
        interleave(format, width, &mut moved, &mut Vec::new());
        let mut words = vec![[7; ROWS]; width / 4 * step];
        let mut scales = vec![[7.0; ROWS]; width / groups.len * step];
        let mut minima = scales.clone();
        let panel = Panel {
            words: &mut words,
            scales: &mut scales,
            minima: &mut minima,
            step,
        };
        quants(format, &moved, panel);
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        for (row, stored) in stored.chunks_exact(format.bytes(width)).enumerate() {
            let mut expected = vec![0; width];
            let mut expected_scales = vec![0.0; width / groups.len];
            let mut expected_minima = expected_scales.clone();
            format.quants(
                stored,
                &mut expected,
                &mut expected_scales,
                &mut expected_minima,
            );
            for (word, expected) in words.iter().step_by(step).zip(expected.as_chunks().0) {
                assert_eq!(word[row].to_le_bytes(), *expected, "{format:?}");
            }
            let numbers = scales.iter().zip(&minima).step_by(step);
            let expected = expected_scales.iter().zip(&expected_minima);
            for ((scale, minimum), expected) in numbers.zip(expected) {
                assert!(same(scale[row], *expected.0) && same(minimum[row], *expected.1));
            }
        }
    }
}

#[test]
fn elements_are_those_of_each_row() {
    let formats = [Format::F32, Format::F16, Format::Bf16, Format::Q8_0];
    for (format, step) in formats
        .into_iter()
        .flat_map(|format| [(format, 1), (format, 2)])
    {
        let width = width(format);
        // As words, since elements must be aligned.
        let noise = bytes(ROWS * format.bytes(width), 3);
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&noise);
        let stored: &[u8] = bytemuck::cast_slice(&words);
        let mut expected = vec![0.0; ROWS * width];
        format.dequantize(stored, &mut expected);
        let mut moved = stored.to_vec();
        interleave(format, width, &mut moved, &mut Vec::new());
        let mut found = vec![[7.0; ROWS]; width * step];
        dequantize(format, &moved, &mut found, step);
        for (column, found) in found.iter().step_by(step).enumerate() {
            for (row, found) in found.iter().enumerate() {
                let expected = expected[row * width + column];
                let same = found.to_bits() == expected.to_bits();
                assert!(same || found.is_nan() && expected.is_nan(), "{format:?}");
            }
        }
    }
}
