//! Damaged and made-up bytes through every decoder: they may be refused or decoded to other elements, the same ones on
//! both code paths.

use std::{env, ops::Range};

use sluice_formats::DType;

use crate::{
    ColumnsEncoder, CompressedMatrix, Encoded, LayoutError, Lossless, MatrixLayout, Scheme,
    TrellisTarget, encode, quantize, simd::SimdPath,
};

/// Bytes of a made-up matrix at most.
const BYTES_MAX: usize = 1 << 14;

/// A xorshift64* generator (Vigna 2016).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end.max(1) as u128) >> 64) as usize
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Elements that are mostly alike, with some noise that makes escapes and whole tiles.
fn weights(random: &mut Random, elements: usize) -> Vec<f32> {
    (0..elements)
        .map(|at| {
            let noise = random.next();
            let near = (noise >> 40) as f32 / (1 << 24) as f32 - 0.5;
            match (at / 300 % 3, noise % 97) {
                (2, _) => f32::from_bits((noise as u32) & 0xbfff_ffff),
                (_, 0) => near * 1e-12,
                _ => near,
            }
        })
        .collect()
}

fn compressed(random: &mut Random, scheme: Scheme) -> Encoded {
    let (rows, width) = random.one_of(&[(1, 1), (3, 100), (2, 511), (7, 129), (1, 2000), (40, 33)]);
    let tile = random.one_of(&[128, 256, 512]);
    let number = random.one_of(&DType::ALL);
    let values = weights(random, rows * width);
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| match number {
            DType::Bf16 => value.to_le_bytes()[2..].to_vec(),
            DType::F16 => half::f16::from_f32(*value).to_le_bytes().to_vec(),
            DType::F32 => value.to_le_bytes().to_vec(),
        })
        .collect();
    let lossless = match scheme {
        Scheme::Plain => Lossless::Plain,
        Scheme::Huffman => Lossless::Huffman,
        Scheme::Dictionary => Lossless::Dictionary,
        Scheme::Trellis => {
            let target = TrellisTarget::Bits(4.);
            return quantize(number, rows, width, &values, target, tile)
                .unwrap()
                .encoded;
        }
        Scheme::Columns => return columns(random, number, rows, width, &values),
    };
    encode(number, rows, width, &bytes, lossless, tile).unwrap()
}

/// Columns of many steps, some of them zero.
fn columns(
    random: &mut Random,
    dtype: DType,
    rows: usize,
    width: usize,
    values: &[f32],
) -> Encoded {
    let mut encoder = ColumnsEncoder::new(dtype, width, &vec![1.; rows], 0.2).unwrap();
    let mut decoded = vec![0.; rows];
    for column in 0..width {
        let values: Vec<f32> = values.iter().skip(column).step_by(width).copied().collect();
        let step = random.one_of(&[0., 0.01, 0.1, 0.2, 0.2, 1., 30.]);
        encoder.quantize_column(column, &values, step, &mut decoded);
    }
    encoder.finish().unwrap()
}

/// All that can be asked of a matrix, and how much of it there was.
fn decompress_all(layout: &MatrixLayout, bytes: &[u8], some: Range<usize>) -> usize {
    let Ok(mut compressed) = CompressedMatrix::new(layout.clone(), bytes) else {
        return 0;
    };
    let mut good = usize::from(compressed.check().is_ok());
    let is_in_place = compressed.check_tile_bounds().is_ok();
    // Whoever multiplies from it relies on that.
    assert!(is_in_place || good == 0);
    let rows = layout.rows();
    for rows in [0..rows, some] {
        let numbers = rows.len() * layout.width();
        let results = SimdPath::all().into_iter().map(|path| {
            compressed.set_path(path);
            let mut original = vec![0xaa; numbers * layout.dtype().bytes()];
            let mut wide = vec![-1.; numbers];
            let decoded = compressed.decompress_rows(rows.clone(), &mut original);
            let widened = compressed.decompress_rows_f32(rows.clone(), &mut wide);
            let wide: Vec<u32> = wide.into_iter().map(f32::to_bits).collect();
            let widened = widened.map(|()| wide);
            let mut pieces = vec![0; numbers];
            let whole = compressed.decompress_pieces_f32(rows.clone(), |row, column, values| {
                let start = (row - rows.start) * layout.width() + column;
                let pieces = &mut pieces[start..start + values.len()];
                for (piece, value) in pieces.iter_mut().zip(values) {
                    *piece = value.to_bits();
                }
            });
            assert_eq!(widened, whole.map(|()| pieces));
            if layout.scheme() == Scheme::Columns {
                check_columns(&compressed, &rows, widened.as_deref().ok());
            }
            assert!(widened.is_ok() || !is_in_place);
            (decoded.map(|()| original), widened)
        });
        let results: Vec<_> = results.collect();
        assert!(results.iter().all(|result| *result == results[0]));
        good += usize::from(results[0].1.is_ok());
    }
    for tile in [0, layout.tiles() / 2, layout.tiles(), usize::MAX] {
        if let Ok(parts) = compressed.tile_bytes(tile) {
            assert!(parts.iter().all(|part| bytes.get(part.clone()).is_some()));
        }
    }
    good
}

/// Some columns mean what they mean among all.
fn check_columns(compressed: &CompressedMatrix<'_>, rows: &Range<usize>, all: Option<&[u32]>) {
    let (count, width) = (compressed.layout().rows(), compressed.layout().width());
    let columns = width / 3..width - width / 4;
    let mut out = vec![-1.; columns.len() * count];
    let found = compressed.decompress_columns_f32(columns.clone(), &mut out);
    let Some(all) = all.filter(|_| !rows.is_empty()) else {
        return;
    };
    // Tiles before them may be damaged where these are not, but not the other way.
    found.unwrap();
    for (column, values) in columns.zip(out.chunks(count)) {
        for (row, values) in rows.clone().zip(&values[rows.clone()]) {
            assert_eq!(values.to_bits(), all[(row - rows.start) * width + column]);
        }
    }
}

/// A matrix that was compressed, damaged in one way or another.
fn damaged(random: &mut Random, from: &Encoded) -> Result<Encoded, LayoutError> {
    let Encoded { layout, bytes } = from;
    let mut bytes = bytes.clone();
    let mut layout = layout.clone();
    if random.below(4) == 0 {
        let small = random.one_of(&[usize::MAX, 1 << 40, 1 << 33, 0, 1, 7, 64]);
        let mut fields = [
            layout.rows(),
            layout.width(),
            layout.tile(),
            layout.codes_len(),
            layout.escapes_len(),
        ];
        let at = random.below(fields.len());
        fields[at] = match random.below(3) {
            0 => small,
            1 => random.below(2 * fields[at]),
            _ => fields[at].wrapping_add(random.below(5)).wrapping_sub(2),
        };
        if at < 2 && random.below(2) == 0 {
            fields.swap(0, 1);
        }
        let (scheme, number) = match random.below(2) {
            0 => (layout.scheme(), layout.dtype()),
            _ => (random.one_of(&Scheme::ALL), random.one_of(&DType::ALL)),
        };
        let [rows, width, tile, mut codes, mut escapes] = fields;
        let numbers = rows.saturating_mul(width);
        // What follows from the shape would be refused, unless it follows.
        match scheme {
            Scheme::Plain => (codes, escapes) = (numbers.saturating_mul(number.bytes()), 0),
            Scheme::Dictionary => codes = numbers.div_ceil(2),
            _ => escapes = 0,
        }
        layout = MatrixLayout::new(scheme, number, rows, width, tile, codes, escapes)?;
        if layout.bytes() <= BYTES_MAX {
            let fill = random.one_of(&[0, 0, 0x11, 0xff]);
            bytes.resize(layout.bytes(), fill);
        }
    }
    for _ in 0..random.below(4) {
        let part = match random.below(8) {
            0 => layout.table(),
            1 => layout.offsets(),
            2 | 3 => layout.lengths(),
            4 | 5 => layout.codes(),
            6 => layout.escapes(),
            _ => 0..bytes.len(),
        };
        let length = random.one_of(&[1, 1, 1, 2, 8, 64]);
        let start = part.start + random.below(part.len());
        let kind = random.below(4);
        for byte in bytes.iter_mut().skip(start).take(length) {
            *byte = match kind {
                0 => *byte ^ 1 << random.below(8),
                1 => random.next() as u8,
                2 => 0xff,
                _ => 0,
            };
        }
    }
    if random.below(64) == 0 {
        let length = random.below(bytes.len());
        bytes.truncate(length);
    }
    Ok(Encoded { layout, bytes })
}

fn damage(scheme: Scheme, count: u64) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ u64::from(scheme.id()));
    let mut from = compressed(&mut random, scheme);
    let (mut refused, mut good) = (0, 0);
    for i in 0..count {
        if i % 50 == 0 {
            from = compressed(&mut random, scheme);
        }
        let Ok(Encoded { layout, bytes }) = damaged(&mut random, &from) else {
            refused += 1;
            continue;
        };
        // No allocation exceeds what the bytes account for.
        let rows = layout.rows();
        let start = random.below(rows + 1);
        let end = start + random.below(rows - start + 1);
        let found = decompress_all(&layout, &bytes, start..end);
        if found > 0 { good += 1 } else { refused += 1 }
    }
    println!("{scheme:?}: {count} inputs, {refused} refused, {good} decoded in part at least");
    assert!(good > 0 && refused > 0);
}

#[test]
fn damaged_matrices_do_no_harm() {
    for scheme in Scheme::ALL {
        damage(scheme, 3000);
    }
}

/// `SLUICE_HOSTILE_INPUTS=10000000 cargo test -p sluice-codec --release --lib -- --ignored --nocapture hostile`
#[test]
#[ignore = "takes as long as there are inputs"]
fn many_damaged_matrices_do_no_harm() {
    let count = env::var("SLUICE_HOSTILE_INPUTS").map_or(1_000_000, |count| {
        count.parse().expect("a number of inputs")
    });
    std::thread::scope(|scope| {
        for scheme in Scheme::ALL {
            scope.spawn(move || damage(scheme, count));
        }
    });
}

#[test]
fn no_truncation_is_taken_and_no_flipped_byte_does_harm() {
    let mut random = Random(3);
    for scheme in Scheme::ALL {
        let Encoded { layout, mut bytes } = loop {
            let encoded = compressed(&mut random, scheme);
            if (100..2000).contains(&encoded.layout.elements()) {
                break encoded;
            }
        };
        let rows = layout.rows();
        assert_eq!(decompress_all(&layout, &bytes, 0..rows), 3);
        for length in 0..bytes.len() {
            assert!(CompressedMatrix::new(layout.clone(), &bytes[..length]).is_err());
        }
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                bytes[at] ^= flip;
                decompress_all(&layout, &bytes, rows / 2..rows);
                bytes[at] ^= flip;
            }
        }
    }
}

#[test]
fn a_flipped_bit_of_what_is_compressed_is_noticed_or_meant() {
    // Wherever a bit of codes or lengths is flipped, either `check` reports it or the elements differ.
    let mut random = Random(5);
    for scheme in [Scheme::Huffman, Scheme::Dictionary] {
        let values = weights(&mut random, 1200);
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let lossless = if scheme == Scheme::Huffman {
            Lossless::Huffman
        } else {
            Lossless::Dictionary
        };
        let mut from = encode(DType::F32, 3, 400, &bytes, lossless, 256).unwrap();
        let whole: Vec<Range<usize>> = {
            let lengths = &from.bytes[from.layout.lengths()];
            let tiles = (0..lengths.len()).filter(|tile| lengths[*tile] == 255);
            let codes = from.layout.codes().start;
            let place = |tile| from.layout.tile_elements(tile);
            // Indices of a tile that isn't indexed mean nothing.
            tiles
                .filter(|_| scheme == Scheme::Dictionary)
                .map(|tile| codes + place(tile).start / 2..codes + place(tile).end / 2)
                .collect()
        };
        for part in [from.layout.lengths(), from.layout.codes()] {
            for at in part.filter(|at| !whole.iter().any(|tile| tile.contains(at))) {
                from.bytes[at] ^= 4;
                let noticed = CompressedMatrix::new(from.layout.clone(), &from.bytes).map_or(
                    true,
                    |compressed| {
                        let mut out = vec![0; bytes.len()];
                        compressed.check().is_err()
                            || compressed.decompress_rows(0..3, &mut out).is_err()
                            || out != bytes
                    },
                );
                assert!(noticed, "{scheme:?}: byte {at}");
                from.bytes[at] ^= 4;
            }
        }
    }
}

#[test]
fn a_header_alone_takes_no_memory() {
    for scheme in Scheme::ALL {
        let numbers: usize = 1 << 50;
        let (codes, escapes) = match scheme {
            Scheme::Plain => (numbers * 2, 0),
            Scheme::Dictionary => (numbers / 2, u32::MAX as usize),
            _ => (u32::MAX as usize, 0),
        };
        let (rows, width) = match scheme {
            Scheme::Columns => (1 << 8, 1 << 42),
            _ => (1 << 25, 1 << 25),
        };
        let layout =
            MatrixLayout::new(scheme, DType::Bf16, rows, width, 128, codes, escapes).unwrap();
        assert!(CompressedMatrix::new(layout, &[0; 4096]).is_err());
    }
}
