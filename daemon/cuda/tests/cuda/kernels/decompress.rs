//! Compressed matrices, decompressed as the codec does it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sluice_cuda::{CompressedChunk, Compression, Gpu};
use sluice_formats::DType;

use super::{
    compressed::{Sample, bytes_of, weights},
    formats::Random,
    support::{Buffer, narrow, on_gpu},
};

const CODINGS: [Compression; 4] = [
    Compression::Huffman,
    Compression::Dictionary,
    Compression::Trellis,
    Compression::Columns,
];
const TILES: [usize; 3] = [128, 256, 512];

/// Decompresses to every dtype, and compares with the codec; with the original bytes where the dtype stays the same.
fn check(gpu: &Gpu, sample: &Sample, original: &[u8]) {
    let expected = sample.values();
    let memory = sample.upload(gpu);
    for number in DType::ALL {
        let what = format!(
            "{:?} {:?} to {number:?}, {} chunks, rows of {} by {}",
            sample.compression,
            sample.source,
            sample.chunks.len(),
            sample.width,
            sample.tile
        );
        let out = Buffer::new(gpu, expected.len() * number.bytes());
        gpu.decompress(number, out.span(), &sample.matrix(&memory))
            .unwrap();
        let is_lossless =
            [Compression::Huffman, Compression::Dictionary].contains(&sample.compression);
        if number == sample.source && is_lossless {
            assert!(out.read::<u8>(gpu) == original, "{what}");
            continue;
        }
        let found = out.read_elements(gpu, number);
        for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let expected = narrow(number, *expected);
            assert!(
                found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                "{what}: {found} for {expected} at {place}"
            );
        }
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn compressed_matrices_are_decoded_as_the_codec_does_it() {
    on_gpu(|gpu| {
        let mut random = Random::new(41);
        for coding in CODINGS {
            for source in DType::ALL {
                for (i, tile) in TILES.into_iter().enumerate() {
                    // More strips than a block has warps, whole tiles and rows, and neither, and hardly anything.
                    let shapes: [(&[usize], usize); 5] = [
                        (&[64, 64, 3], 640),
                        (&[5, 5, 1], 777),
                        (&[1], 1),
                        (&[3, 0, 256], 3),
                        (&[16], 512),
                    ];
                    for (rows, width) in shapes {
                        let count = rows.iter().sum::<usize>() * width;
                        let values = weights(&mut random, count, i % 2 == 1);
                        let bytes = bytes_of(source, &values);
                        let sample = Sample::new(coding, source, rows, width, tile, &bytes);
                        check(gpu, &sample, &bytes);
                    }
                }
            }
        }
    });
}

/// Tiles of noise are kept as they are, and in others there are escapes.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn numbers_of_any_bits_come_back() {
    on_gpu(|gpu| {
        let mut random = Random::new(42);
        for coding in [Compression::Huffman, Compression::Dictionary] {
            for source in DType::ALL {
                for tile in TILES {
                    let (rows, width) = (&[40, 7][..], 257);
                    let values = weights(&mut random, 47 * width, true);
                    let mut bytes = bytes_of(source, &values);
                    let noise = bytes.len() / 5..bytes.len() / 3;
                    bytes[noise].fill_with(|| random.next() as u8);
                    for _ in 0..60 {
                        let at = random.below(bytes.len());
                        bytes[at] = random.next() as u8;
                    }
                    let sample = Sample::new(coding, source, rows, width, tile, &bytes);
                    let count = |length: u8| {
                        sample
                            .chunks
                            .iter()
                            .zip(&sample.layouts)
                            .any(|(chunk, layout)| {
                                let bytes = &sample.bytes[chunk.start as usize..][layout.lengths()];
                                bytes.contains(&length)
                            })
                    };
                    // A dictionary's tile can have 254 escapes, which smaller ones don't come to.
                    assert_eq!(count(255), coding == Compression::Huffman || tile == 512);
                    check(gpu, &sample, &bytes);
                }
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn more_chunks_than_a_launch_takes_are_decoded() {
    on_gpu(|gpu| {
        let mut random = Random::new(43);
        let (rows, width) = (vec![2; 259], 40);
        let values = weights(&mut random, 2 * 259 * width, false);
        let bytes = bytes_of(DType::Bf16, &values);
        for coding in CODINGS {
            let sample = Sample::new(coding, DType::Bf16, &rows, width, 128, &bytes);
            check(gpu, &sample, &bytes);
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn rows_of_all_sizes_have_their_steps() {
    on_gpu(|gpu| {
        let mut random = Random::new(44);
        let (rows, width) = (&[33][..], 61);
        let mut values = weights(&mut random, 33 * width, true);
        for (row, values) in values.chunks_exact_mut(width).enumerate() {
            let size = [1.0, 1e-3, 0.0, 300.0, 0.1][row % 5];
            values.iter_mut().for_each(|value| *value *= size);
        }
        // What is far from all others has levels that grow with it.
        values[77] = 90.0;
        let bytes = bytes_of(DType::F32, &values);
        let sample = Sample::new(Compression::Trellis, DType::F32, rows, width, 256, &bytes);
        check(gpu, &sample, &bytes);
    });
}

/// Narrow ones and wide ones, columns of zeros, and symbols that no code has.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn columns_of_all_spreads_are_decoded() {
    on_gpu(|gpu| {
        let mut random = Random::new(47);
        for (rows, width) in [(&[256, 256][..], 534), (&[255, 97], 264), (&[31, 2], 8)] {
            let count = rows.iter().sum::<usize>() * width;
            let mut values = weights(&mut random, count, width == 534);
            for _ in 0..count / 300 {
                values[random.below(count)] *= 2f32.powi(random.below(40) as i32 - 20);
            }
            let bytes = bytes_of(DType::F32, &values);
            let sample = Sample::new(Compression::Columns, DType::F32, rows, width, 256, &bytes);
            check(gpu, &sample, &bytes);
        }
    });
}

/// Classes that no encoder would choose, longest headers, and columns that end beyond their tile.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn any_bits_are_the_columns_that_the_codec_sees() {
    on_gpu(|gpu| {
        let mut random = Random::new(48);
        for (rows, width) in [(&[256, 40][..], 300), (&[7], 259)] {
            let count = rows.iter().sum::<usize>() * width;
            let bytes = bytes_of(DType::F32, &weights(&mut random, count, false));
            let mut sample =
                Sample::new(Compression::Columns, DType::F32, rows, width, 256, &bytes);
            for _ in 0..6 {
                for (chunk, layout) in sample.chunks.iter().zip(&sample.layouts) {
                    let start = chunk.start as usize + layout.codes().start;
                    let codes = &mut sample.bytes[start..start + layout.codes_len()];
                    codes.fill_with(|| random.next() as u8);
                }
                check(gpu, &sample, &bytes);
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn damaged_bytes_are_decoded_to_something() {
    on_gpu(|gpu| {
        let mut random = Random::new(45);
        for coding in CODINGS {
            for source in DType::ALL {
                let (rows, width, tile) = (&[9, 2][..], 300, TILES[random.below(3)]);
                let values = weights(&mut random, 11 * width, true);
                let bytes = bytes_of(source, &values);
                let whole = Sample::new(coding, source, rows, width, tile, &bytes);
                for _ in 0..60 {
                    let mut sample = whole.clone();
                    let len = sample.bytes.len();
                    // Tables, places and lengths come first; there damage does most.
                    let end = if random.below(2) == 0 { len } else { 700 };
                    for _ in 0..1 << random.below(8) {
                        sample.bytes[random.below(end)] = random.next() as u8;
                    }
                    let memory = sample.upload(gpu);
                    let number = DType::ALL[random.below(3)];
                    let out = Buffer::new(gpu, 11 * width * number.bytes());
                    gpu.decompress(number, out.span(), &sample.matrix(&memory))
                        .unwrap();
                    // Nothing around it was written.
                    out.read::<u8>(gpu);
                }
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn chunks_outside_of_their_bytes_are_refused() {
    on_gpu(|gpu| {
        let values = weights(&mut Random::new(46), 8 * 100, false);
        let bytes = bytes_of(DType::F16, &values);
        for coding in CODINGS {
            let sample = Sample::new(coding, DType::F16, &[8], 100, 128, &bytes);
            let memory = sample.upload(gpu);
            let out = Buffer::new(gpu, 800 * 4);
            let decodes = |chunk: CompressedChunk| {
                let mut matrix = sample.matrix(&memory);
                let chunks = [chunk];
                matrix.chunks = &chunks;
                let decode = || gpu.decompress(DType::F32, out.span(), &matrix).unwrap();
                catch_unwind(AssertUnwindSafe(decode)).is_ok()
            };
            let good = sample.chunks[0];
            assert!(decodes(good));
            for wrong in [
                CompressedChunk { start: 64, ..good },
                CompressedChunk { rows: 9, ..good },
                CompressedChunk {
                    start: u64::MAX - 63,
                    ..good
                },
                CompressedChunk {
                    codes_bytes: good.codes_bytes + 128,
                    ..good
                },
            ] {
                assert!(!decodes(wrong), "{coding:?} {wrong:?}");
            }
        }
        gpu.synchronize().unwrap();
    });
}
