//! Any elements, shape and tile: what is compressed losslessly comes back bit by bit, and upcast as it would have been.

use half::{bf16, f16};
use proptest::prelude::*;
use sluice_codec::{CompressedMatrix, DecompressError, Encoded, Lossless, encode};
use sluice_formats::DType;

const SCHEMES: [Lossless; 3] = [Lossless::Plain, Lossless::Huffman, Lossless::Dictionary];
const TILES: [usize; 3] = [128, 256, 512];

/// Each element as the bits of an `f32`, by an independent conversion.
fn wide(number: DType, bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks(number.bytes())
        .map(|bytes| match number {
            // `bf16` would make some of NaN quiet.
            DType::Bf16 => u32::from(bf16::from_le_bytes([bytes[0], bytes[1]]).to_bits()) << 16,
            DType::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32().to_bits(),
            DType::F32 => u32::from_le_bytes(bytes.try_into().unwrap()),
        })
        .collect()
}

fn assert_comes_back(number: DType, rows: usize, width: usize, bytes: &[u8]) {
    let expected = wide(number, bytes);
    for (scheme, tile) in SCHEMES.into_iter().flat_map(|s| TILES.map(|t| (s, t))) {
        let what = format!("{number:?} {scheme:?} {rows} x {width} by {tile}");
        let Encoded {
            layout,
            bytes: compressed,
        } = encode(number, rows, width, bytes, scheme, tile).unwrap();
        let compressed = CompressedMatrix::new(layout, &compressed).unwrap();
        assert_eq!(compressed.check(), Ok(()), "{what}");

        let some = [
            0..rows,
            0..0,
            rows..rows,
            rows / 3..rows - rows / 4,
            rows.saturating_sub(1)..rows,
        ];
        for rows in some {
            let numbers = rows.start * width..rows.end * width;
            let part = &bytes[numbers.start * number.bytes()..numbers.end * number.bytes()];
            let mut out = vec![0xcc; part.len()];
            compressed.decompress_rows(rows.clone(), &mut out).unwrap();
            assert!(out == part, "{what}: rows {rows:?}");

            let mut out = vec![-1.; numbers.len()];
            compressed
                .decompress_rows_f32(rows.clone(), &mut out)
                .unwrap();
            let out: Vec<u32> = out.into_iter().map(f32::to_bits).collect();
            assert!(out == expected[numbers], "{what}: rows {rows:?} wide");
        }
    }
}

/// Elements as a model has them: around zero, small ones the most frequent.
fn like_weights(number: DType, count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = move || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as f32 / (1_u64 << 31) as f32
    };
    (0..count)
        .flat_map(|_| {
            let value = ((0..12).map(|_| next()).sum::<f32>() - 6.) * 0.02;
            match number {
                DType::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
                DType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
                DType::F32 => value.to_le_bytes().to_vec(),
            }
        })
        .collect()
}

#[test]
fn odd_shapes_come_back() {
    for number in DType::ALL {
        for (rows, width) in [
            (0, 0),
            (0, 7),
            (7, 0),
            (1, 1),
            (1, 127),
            (1, 128),
            (1, 513),
            (1000, 1),
            (3, 777),
            (33, 255),
            (129, 257),
            (64, 1024),
        ] {
            let bytes = like_weights(number, rows * width, 1);
            assert_comes_back(number, rows, width, &bytes);
        }
    }
}

#[test]
fn equal_numbers_come_back() {
    for number in DType::ALL {
        for byte in [0, 0x3f, 0x80, 0xff] {
            assert_comes_back(number, 5, 300, &vec![byte; 1500 * number.bytes()]);
        }
    }
}

#[test]
fn every_16_bits_come_back() {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    assert_comes_back(DType::Bf16, 256, 256, &bytes);
    assert_comes_back(DType::F16, 256, 256, &bytes);
    assert_comes_back(DType::F32, 128, 256, &bytes);
}

/// A tile of noise among tiles of few symbols is longer compressed than as it is.
#[test]
fn tiles_that_codes_would_lengthen_come_back() {
    for number in DType::ALL {
        let mut bytes = like_weights(number, 64 * 1024, 2);
        let mut seed = 1_u32;
        for byte in &mut bytes[5000..15000] {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (seed >> 24) as u8;
        }
        assert_comes_back(number, 64, 1024, &bytes);
    }
}

#[test]
fn weights_get_shorter() {
    let bytes = like_weights(DType::Bf16, 1 << 18, 3);
    let size = |scheme| {
        let encoded = encode(DType::Bf16, 512, 512, &bytes, scheme, 256).unwrap();
        encoded.bytes.len() as f64 * 8. / f64::from(1 << 18)
    };

    assert_eq!(size(Lossless::Plain), 16.);
    assert!((10.5..10.8).contains(&size(Lossless::Huffman)));
    assert!((12. ..12.1).contains(&size(Lossless::Dictionary)));
}

#[test]
fn what_is_asked_wrongly_is_refused() {
    let bytes = like_weights(DType::Bf16, 600, 4);
    let encoded = encode(DType::Bf16, 3, 200, &bytes, Lossless::Huffman, 256).unwrap();
    let compressed = CompressedMatrix::new(encoded.layout.clone(), &encoded.bytes).unwrap();

    assert!(encode(DType::Bf16, 3, 201, &bytes, Lossless::Huffman, 256).is_err());
    assert!(encode(DType::Bf16, 3, 200, &bytes, Lossless::Huffman, 100).is_err());
    assert!(encode(DType::Bf16, usize::MAX, 2, &bytes, Lossless::Plain, 256).is_err());
    assert_eq!(
        compressed.decompress_rows(1..2, &mut [0; 399]),
        Err(DecompressError::Space {
            expected: 400,
            found: 399
        })
    );
    let rows = |from, to| DecompressError::Rows { from, to, rows: 3 };
    assert_eq!(
        compressed.decompress_rows(2..4, &mut [0; 800]),
        Err(rows(2, 4))
    );
    #[expect(clippy::reversed_empty_ranges)]
    let backwards = compressed.decompress_rows(2..1, &mut []);
    assert_eq!(backwards, Err(rows(2, 1)));
    assert!(CompressedMatrix::new(encoded.layout, &encoded.bytes[1..]).is_err());
}

fn shapes() -> impl Strategy<Value = (usize, usize)> {
    prop_oneof![
        (1..40_usize, 1..300_usize),
        (Just(1), 1..3000_usize),
        (1..3000_usize, Just(1)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_bits_come_back(
        number in prop::sample::select(&DType::ALL[..]),
        (rows, width) in shapes(),
        seed in any::<u64>(),
        // Of each byte, which bits may be set: fewer symbols are compressed, more of them are not.
        mask in any::<[u8; 4]>(),
    ) {
        let mut state = seed | 1;
        let bytes: Vec<u8> = (0..rows * width * number.bytes())
            .map(|i| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8 & mask[i % number.bytes()]
            })
            .collect();
        assert_comes_back(number, rows, width, &bytes);
    }
}
