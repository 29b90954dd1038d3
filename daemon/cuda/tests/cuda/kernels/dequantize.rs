//! Stored weights as elements of the compute dtype.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sluice_formats::{DType, Format};

use super::{
    formats::{Random, dequantize, stored},
    support::{Buffer, narrow, on_gpu},
};

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn blocks_become_the_numbers_that_they_stand_for() {
    on_gpu(|gpu| {
        let mut random = Random::new(31);
        for format in Format::ALL {
            let block = format.block_len();
            // Fewer runs than a warp has lanes, more than a block of threads, and neither whole times those.
            for (rows, blocks) in [(1, 1), (3, 3), (7, 11)] {
                if block == 1 {
                    continue;
                }
                let width = blocks * block;
                let bytes = stored(&mut random, format, rows * width);
                let weights = Buffer::of(gpu, &bytes);
                for number in DType::ALL {
                    let out = Buffer::new(gpu, rows * width * number.bytes());
                    gpu.dequantize(number, format, out.span(), weights.span(), rows, width)
                        .unwrap();
                    let expected = dequantize(format, &bytes);
                    let found = out.read_elements(gpu, number);
                    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
                        assert_eq!(
                            found.to_bits(),
                            narrow(number, expected).to_bits(),
                            "{} {} at {place}",
                            number.name(),
                            format.name()
                        );
                    }
                }
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn scales_of_any_bits_stay_in_what_half_precision_has() {
    on_gpu(|gpu| {
        let mut random = Random::new(32);
        for format in Format::ALL {
            if format.block_len() == 1 {
                continue;
            }
            let count = 9 * format.block_len();
            let bytes: Vec<u8> = (0..format.bytes(count))
                .map(|_| random.next() as u8)
                .collect();
            let weights = Buffer::of(gpu, &bytes);
            for number in DType::ALL {
                let out = Buffer::new(gpu, count * number.bytes());
                gpu.dequantize(number, format, out.span(), weights.span(), 1, count)
                    .unwrap();
                let expected = dequantize(format, &bytes);
                let found = out.read_elements(gpu, number);
                for (found, expected) in found.iter().zip(expected) {
                    let expected = narrow(number, expected);
                    assert!(
                        found.to_bits() == expected.to_bits()
                            || found.is_nan() && expected.is_nan(),
                        "{} {}: {found} for {expected}",
                        number.name(),
                        format.name()
                    );
                }
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn what_has_no_blocks_is_refused() {
    on_gpu(|gpu| {
        let memory = Buffer::new(gpu, 1 << 10);
        let dequantize = |format, width| {
            catch_unwind(AssertUnwindSafe(|| {
                gpu.dequantize(DType::F16, format, memory.span(), memory.span(), 1, width)
                    .unwrap();
            }))
        };
        assert!(dequantize(Format::F16, 32).is_err());
        assert!(dequantize(Format::Q8_0, 33).is_err());
        assert!(dequantize(Format::Q8_0, 1 << 10).is_err());
        assert!(dequantize(Format::Q8_0, 0).is_ok());
    });
}
