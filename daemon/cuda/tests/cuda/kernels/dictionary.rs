//! Matmuls by dictionary-coded weights, against those by the same weights decompressed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sluice_cuda::{
    CompressedGpuMatrix, Compression, DictionaryMatmul, Gpu, GpuSpan, Matmul, dictionary_index,
    dictionary_index_bytes,
};
use sluice_formats::{DType, Format};

use super::{
    compressed::{Sample, bytes_of, weights},
    formats::Random,
    support::{Buffer, assert_close, elements, on_gpu, rounding},
};

/// Weights, of which some are far from all others, and a stretch is of any size.
fn sample(random: &mut Random, rows: usize, width: usize, tile: usize) -> (Sample, Vec<u8>) {
    let count = rows * width;
    let mut values = weights(random, count, true);
    for _ in 0..count.div_ceil(200) {
        values[random.below(count)] *= 2f32.powi(random.below(80) as i32 - 60);
    }
    let start = random.below(count);
    for value in values[start..].iter_mut().take(2 * tile) {
        *value = random.between(-1.0, 1.0) * 2f32.powi(random.below(64) as i32 - 60);
    }
    let chunks: Vec<usize> = (0..rows)
        .step_by(256)
        .map(|at| (rows - at).min(256))
        .collect();
    let bytes = bytes_of(DType::Bf16, &values);
    let sample = Sample::new(
        Compression::Dictionary,
        DType::Bf16,
        &chunks,
        width,
        tile,
        &bytes,
    );
    (sample, bytes)
}

/// Multiplies by compressed weights and by decompressed ones.
fn check(
    gpu: &Gpu,
    random: &mut Random,
    number: DType,
    (sample, bytes): &(Sample, Vec<u8>),
    rows: usize,
) {
    let (width, memory) = (sample.width, sample.upload(gpu));
    let compressed = sample.matrix(&memory);
    let outputs = compressed.rows();
    let index = dictionary_index(width, sample.tile, &sample.chunks, &sample.bytes).unwrap();
    assert!(index.len() * 4 <= dictionary_index_bytes(&sample.chunks));
    let index = Buffer::of(gpu, &index);
    let decoded = Buffer::of(gpu, bytes);
    let values = super::compressed::wide(DType::Bf16, bytes);
    let x = elements(random, number, rows * width);
    let x_there = Buffer::of_elements(gpu, number, &x);
    for (out_is_f32, accumulate, gap) in [(false, false, 0), (true, true, 5)] {
        let out_number = if out_is_f32 { DType::F32 } else { number };
        let out_stride = outputs + gap;
        let out_bytes = ((rows - 1) * out_stride + outputs) * out_number.bytes();
        let outs = [(); 3].map(|()| {
            let out = Buffer::new(gpu, out_bytes);
            gpu.fill(out.span(), 0x3c).unwrap();
            out
        });
        let product = DictionaryMatmul {
            out: outs[0].span(),
            out_is_f32,
            out_stride,
            x: x_there.span(),
            rows,
            weights: &compressed,
            index: index.span(),
            index_rows: outputs,
            first_row: 0,
            accumulate,
        };
        gpu.matmul_dictionary(number, product).unwrap();
        by_chunks(gpu, number, product, outs[2].span());
        let plain = Matmul {
            out: outs[1].span(),
            out_is_f32,
            x: x_there.span(),
            weights: decoded.span(),
            rows,
            outputs,
            out_stride,
            width,
            accumulate,
        };
        gpu.matmul_by_kernels(number, Format::Bf16, plain).unwrap();
        let [found, expected, by_chunks] = outs.map(|out| out.read_elements(gpu, out_number));
        assert!(found == by_chunks, "{rows}x{outputs}x{width} by chunks");
        for (place, (found, expected)) in found.into_iter().zip(expected).enumerate() {
            let (row, output) = (place / out_stride, place % out_stride);
            let what = || {
                let name = number.name();
                format!("{name} {rows}x{outputs}x{width} at {row},{output}")
            };
            if rows > 8 || output >= outputs {
                assert_eq!(found.to_bits(), expected.to_bits(), "{}", what());
                continue;
            }
            // Escapes come last here.
            let size: f64 = (0..width)
                .map(|k| f64::from((x[row * width + k] * values[output * width + k]).abs()))
                .sum();
            let tolerance =
                (size + 1.0) * 1e-6 + 2.0 * f64::from(expected.abs()) * rounding(out_number);
            assert_close(found, expected.into(), tolerance, what);
        }
    }
}

/// The same product, chunk after chunk of the weights, by the index of all.
fn by_chunks(gpu: &Gpu, number: DType, product: DictionaryMatmul<'_>, out: GpuSpan) {
    let out_bytes = match product.out_is_f32 {
        true => 4,
        false => number.bytes(),
    };
    let mut first = 0;
    for chunk in product.weights.chunks {
        let start = first * out_bytes;
        let weights = CompressedGpuMatrix {
            chunks: std::slice::from_ref(chunk),
            ..*product.weights
        };
        let some = DictionaryMatmul {
            out: out.part(start, out.bytes() - start),
            weights: &weights,
            first_row: first,
            ..product
        };
        gpu.matmul_dictionary(number, some).unwrap();
        first += chunk.rows as usize;
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn few_rows_are_multiplied_by_compressed_weights() {
    on_gpu(|gpu| {
        let mut random = Random::new(51);
        for number in DType::ALL {
            for (rows, (outputs, width, tile)) in [
                (1, (1, 16, 128)),
                (3, (300, 528, 256)),
                (7, (257, 1040, 128)),
                (8, (513, 48, 512)),
            ] {
                let sample = sample(&mut random, outputs, width, tile);
                check(gpu, &mut random, number, &sample, rows);
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn tiles_are_multiplied_by_compressed_weights_to_the_same_bits() {
    on_gpu(|gpu| {
        let mut random = Random::new(52);
        for number in DType::ALL {
            for (rows, (outputs, width, tile)) in [
                (9, (1, 16, 128)),
                (65, (300, 176, 512)),
                (64, (256, 1008, 256)),
                // Large tiles.
                (130, (31 * 128 + 5, 48, 512)),
                (128, (64 * 128, 32, 128)),
            ] {
                let sample = sample(&mut random, outputs, width, tile);
                check(gpu, &mut random, number, &sample, rows);
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn more_chunks_than_a_launch_takes_are_multiplied() {
    on_gpu(|gpu| {
        let mut random = Random::new(53);
        let sample = sample(&mut random, 129 * 256 + 40, 16, 256);
        for rows in [2, 9] {
            check(gpu, &mut random, DType::F16, &sample, rows);
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn escapes_of_rows_are_indexed_in_order() {
    let mut random = Random::new(54);
    let (sample, bytes) = sample(&mut random, 300, 80, 512);
    let index = dictionary_index(80, 512, &sample.chunks, &sample.bytes).unwrap();
    assert!(index.len() * 4 <= dictionary_index_bytes(&sample.chunks));
    let (starts, escapes) = index.split_at(301);
    let mut count = 0;
    for (row, places) in starts.windows(2).enumerate() {
        let [found @ .., u32::MAX] = &escapes[places[0] as usize..places[1] as usize] else {
            panic!("row {row} has no end");
        };
        assert!(found.is_sorted_by(|one, other| one >> 16 < other >> 16));
        for escape in found {
            let at = 2 * (80 * row + (escape >> 16) as usize);
            assert_eq!(
                escape & 0xffff,
                u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
            );
            count += 1;
        }
    }
    assert!(count > 100);
    assert_eq!(escapes.last(), Some(&u32::MAX));
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn damaged_bytes_have_an_index_within_its_bound_or_none() {
    let mut random = Random::new(55);
    let (whole, _) = sample(&mut random, 20, 64, 256);
    let mut refused = 0;
    for _ in 0..300 {
        let mut sample = whole.clone();
        let len = sample.bytes.len();
        let end = if random.below(2) == 0 { len } else { 300 };
        for _ in 0..1 << random.below(6) {
            sample.bytes[random.below(end)] = random.next() as u8;
        }
        match dictionary_index(64, 256, &sample.chunks, &sample.bytes) {
            Ok(index) => assert!(index.len() * 4 <= dictionary_index_bytes(&sample.chunks)),
            Err(error) => {
                assert_eq!(error.chunk, 0);
                refused += 1;
            }
        }
    }
    assert!((1..300).contains(&refused));
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn weights_that_must_be_decoded_are_not_multiplied() {
    on_gpu(|gpu| {
        let (sample, _) = sample(&mut Random::new(56), 300, 32, 128);
        let memory = sample.upload(gpu);
        let good = sample.matrix(&memory);
        assert!(good.has_matmul());
        let short = [sample.chunks[1], sample.chunks[0]];
        let out = Buffer::new(gpu, 300 * 4);
        for weights in [
            CompressedGpuMatrix { width: 24, ..good },
            CompressedGpuMatrix {
                dtype: DType::F16,
                ..good
            },
            CompressedGpuMatrix {
                compression: Compression::Huffman,
                ..good
            },
            CompressedGpuMatrix {
                chunks: &short,
                ..good
            },
            CompressedGpuMatrix {
                chunks: &[],
                ..good
            },
        ] {
            assert!(!weights.has_matmul());
            let multiply = || {
                let product = DictionaryMatmul {
                    out: out.span(),
                    out_is_f32: true,
                    out_stride: 300,
                    x: out.span(),
                    rows: 1,
                    weights: &weights,
                    index: out.span(),
                    index_rows: weights.rows(),
                    first_row: 0,
                    accumulate: false,
                };
                gpu.matmul_dictionary(DType::F32, product).unwrap();
            };
            assert!(catch_unwind(AssertUnwindSafe(multiply)).is_err());
        }
    });
}
