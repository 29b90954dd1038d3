//! How fast each coder decompresses on one core, as a share of copying the decompressed bytes in the same run, and its bits
//! per weight: `cargo bench -p sluice-measure --bench decode`. Weights of a file as well, with
//! `SLUICE_BENCH_FILE=model.safetensors` before it.
//!
//! The variants are run in turn, and the best time of each counts, so that other programs disturb all alike. Hence the loop
//! of its own.

use std::{env, error::Error, fs, hint::black_box, time::Instant};

use half::bf16;
use sluice_codec::{CompressedMatrix, Encoded, Lossless, TrellisTarget, encode, quantize};
use sluice_formats::DType;
use zstd::{bulk, zstd_safe::CParameter};

/// A square projection of a model of eight billion weights.
const WIDTH: usize = 4096;
const TURNS: usize = 25;
/// Rows that are decompressed at a time where a matmul would read them next.
const SOME_ROWS: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo test --benches` runs it too, and wants to know only whether it does.
    if !env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let mut random = Random(1);
    let gaussian = Matrix::bf16(WIDTH, || 0.02 * random.gaussian());
    let mut random = Random(2);
    let student = Matrix::bf16(WIDTH, || 0.02 * random.student());
    bench("gaussian, bf16, 4096 x 4096", &gaussian)?;
    bench("student-t of 5 degrees, bf16, 4096 x 4096", &student)?;
    if let Some(path) = env::var_os("SLUICE_BENCH_FILE") {
        let file = fs::read(&path)?;
        for (name, matrix) in largest(&file)? {
            bench(&format!("{name} of {}", path.display()), &matrix)?;
        }
    }
    Ok(())
}

struct Matrix {
    number: DType,
    rows: usize,
    width: usize,
    bytes: Vec<u8>,
}

impl Matrix {
    fn bf16(width: usize, mut next: impl FnMut() -> f64) -> Self {
        let bytes = (0..width * width)
            .flat_map(|_| bf16::from_f64(next()).to_le_bytes())
            .collect();
        Self {
            number: DType::Bf16,
            rows: width,
            width,
            bytes,
        }
    }

    fn numbers(&self) -> usize {
        self.rows * self.width
    }

    fn bits(&self, bytes: usize) -> f64 {
        bytes as f64 * 8. / self.numbers() as f64
    }

    /// The bytes of each element at one place in it: `places` of them, from `from` on.
    fn plane(&self, from: usize, places: usize) -> Vec<u8> {
        let numbers = self.bytes.chunks(self.number.bytes());
        numbers
            .flat_map(|number| &number[from..from + places])
            .copied()
            .collect()
    }

    /// Symbols and the rest, as the codec splits elements of 16 bits.
    fn split(&self) -> (Vec<u8>, Vec<u8>) {
        if self.number != DType::Bf16 {
            return (self.plane(1, 1), self.plane(0, 1));
        }
        let numbers = self.bytes.as_chunks::<2>().0.iter();
        numbers
            .map(|number| u16::from_le_bytes(*number))
            .map(|bits| ((bits >> 7) as u8, ((bits >> 8) & 0x80 | bits & 0x7f) as u8))
            .unzip()
    }
}

/// A way to decompress the matrix: its bits per weight, and its best time.
struct Way<'a> {
    name: String,
    bits: f64,
    run: Box<dyn FnMut() + 'a>,
    seconds: f64,
}

fn bench(name: &str, matrix: &Matrix) -> Result<(), Box<dyn Error>> {
    let (rows, width, number) = (matrix.rows, matrix.width, matrix.number);
    let size = number.bytes();
    let mut ways: Vec<Way<'_>> = Vec::new();
    let mut way = |name: &str, bits, run: Box<dyn FnMut()>| {
        ways.push(Way {
            name: name.to_owned(),
            bits,
            run,
            seconds: f64::INFINITY,
        });
    };

    // Leaked: the closures below live as long as the list of ways.
    let plain: &'static [u8] = Vec::leak(matrix.bytes.clone());
    let mut out = vec![1; plain.len()];
    way(
        "copy",
        matrix.bits(plain.len()),
        Box::new(move || black_box(&mut out[..]).copy_from_slice(plain)),
    );
    let mut out = vec![1; SOME_ROWS * width * size];
    way(
        "copy, some rows at a time",
        matrix.bits(plain.len()),
        Box::new(move || {
            for some in plain.chunks(out.len()) {
                black_box(&mut out[..some.len()]).copy_from_slice(some);
            }
        }),
    );
    let values = widened(number, rows, width, plain)?;
    let mut compressed = Vec::new();
    for scheme in [Lossless::Dictionary, Lossless::Huffman] {
        for tile in [128, 256, 512] {
            let encoded = encode(number, rows, width, plain, scheme, tile)?;
            compressed.push((format!("{scheme:?} {tile}").to_lowercase(), encoded));
        }
    }
    for bits in [3., 4.] {
        let quantized = quantize(number, rows, width, &values, TrellisTarget::Bits(bits), 256)?;
        compressed.push((format!("rate {bits}"), quantized.encoded));
    }
    for (name, encoded) in compressed {
        let bits = matrix.bits(encoded.bytes.len());
        let lossless = !name.starts_with("trellis");
        let Encoded { layout, bytes } = encoded;
        let compressed = CompressedMatrix::new(layout, Vec::leak(bytes))?;
        if lossless {
            let mut out = vec![1; plain.len()];
            let one = compressed.clone();
            let run = move || {
                let out = black_box(&mut out[..]);
                one.decompress_rows(0..rows, out).expect("coded here");
            };
            way(&name, bits, Box::new(run));
            let mut out = vec![1; SOME_ROWS * width * size];
            let one = compressed.clone();
            let run = move || {
                for row in (0..rows).step_by(SOME_ROWS) {
                    let some = row..rows.min(row + SOME_ROWS);
                    let out = &mut out[..some.len() * width * size];
                    one.decompress_rows(some, black_box(out))
                        .expect("coded here");
                }
            };
            way(&format!("{name}, some rows at a time"), bits, Box::new(run));
        }
        let mut out = vec![1.; SOME_ROWS * width];
        let run = move || {
            for row in (0..rows).step_by(SOME_ROWS) {
                let some = row..rows.min(row + SOME_ROWS);
                let out = &mut out[..some.len() * width];
                compressed
                    .decompress_rows_f32(some, black_box(out))
                    .expect("coded here");
            }
        };
        way(&format!("{name}, some rows widened"), bits, Box::new(run));
    }

    // Zstandard's own Huffman coder is not available alone; without matches it is what remains.
    let packed = compress(plain, None)?;
    let mut out = vec![1; plain.len()];
    let bits = matrix.bits(packed.len());
    way(
        "zstd 1 of the bytes",
        bits,
        Box::new(move || decompress(&packed, black_box(&mut out))),
    );
    let mut entropy = 0.;
    if size == 2 {
        let (symbols, rest) = matrix.split();
        entropy = order_0(&symbols) + 8.;
        for (name, match_bytes) in [
            ("zstd 1 of planes", None),
            ("huff0 in zstd, planes", Some(7)),
        ] {
            let packed = compress(&symbols, match_bytes)?;
            let packed_rest = compress(&rest, match_bytes)?;
            let bits = matrix.bits(packed.len() + packed_rest.len());
            let (mut symbols, rest) = (symbols.clone(), rest.clone());
            let mut out = vec![1_u8; plain.len()];
            // The rest is nearly incompressible, and taken as it is.
            let run = move || {
                decompress(&packed, &mut symbols);
                let out = black_box(&mut out[..]).as_chunks_mut::<2>().0.iter_mut();
                for ((out, symbol), rest) in out.zip(&symbols).zip(&rest) {
                    let (symbol, rest) = (u16::from(*symbol), u16::from(*rest));
                    *out = ((rest & 0x80) << 8 | symbol << 7 | rest & 0x7f).to_le_bytes();
                }
            };
            way(name, bits, Box::new(run));
        }
    }

    for _ in 0..TURNS {
        for way in &mut ways {
            let start = Instant::now();
            (way.run)();
            way.seconds = way.seconds.min(start.elapsed().as_secs_f64());
        }
    }
    println!("\n{name}: {entropy:.3} bits per weight by order-0 entropy of its symbols");
    println!("{:40} {:>8} {:>8} {:>8}", "", "bits", "GB/s", "of copy");
    let copy = ways[0].seconds;
    for way in &ways {
        println!(
            "{:40} {:8.3} {:8.2} {:8.2}",
            way.name,
            way.bits,
            plain.len() as f64 / way.seconds / 1e9,
            copy / way.seconds
        );
    }
    Ok(())
}

fn widened(
    number: DType,
    rows: usize,
    width: usize,
    bytes: &[u8],
) -> Result<Vec<f32>, Box<dyn Error>> {
    let plain = encode(number, rows, width, bytes, Lossless::Plain, 256)?;
    let mut values = vec![0.; rows * width];
    CompressedMatrix::new(plain.layout, &plain.bytes)?.decompress_rows_f32(0..rows, &mut values)?;
    Ok(values)
}

fn compress(bytes: &[u8], match_bytes: Option<u32>) -> std::io::Result<Vec<u8>> {
    let mut compressor = bulk::Compressor::new(1)?;
    if let Some(bytes) = match_bytes {
        compressor.set_parameter(CParameter::MinMatch(bytes))?;
    }
    compressor.compress(bytes)
}

fn decompress(bytes: &[u8], out: &mut [u8]) {
    let length = bulk::decompress_to_buffer(bytes, out).expect("compressed here");
    assert_eq!(length, out.len());
}

fn order_0(symbols: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    for symbol in symbols {
        counts[usize::from(*symbol)] += 1;
    }
    let all = symbols.len() as f64;
    let shares = counts.iter().map(|count| f64::from(*count) / all);
    shares
        .filter(|share| *share > 0.)
        .map(|share| -share * share.log2())
        .sum()
}

/// The largest matrices of a safetensors file, a few of them.
fn largest(file: &[u8]) -> Result<Vec<(String, Matrix)>, Box<dyn Error>> {
    let (length, rest) = file
        .split_first_chunk::<8>()
        .ok_or("a file without a header")?;
    let length = usize::try_from(u64::from_le_bytes(*length))?;
    let (header, data) = rest
        .split_at_checked(length)
        .ok_or("a header without an end")?;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header)?;
    let mut found: Vec<(String, Matrix)> = header
        .iter()
        .filter_map(|(name, entry)| {
            let number = match entry["dtype"].as_str()? {
                "BF16" => DType::Bf16,
                "F16" => DType::F16,
                "F32" => DType::F32,
                _ => return None,
            };
            let place = |i: usize| usize::try_from(entry["data_offsets"][i].as_u64()?).ok();
            let shape: Vec<usize> = entry["shape"]
                .as_array()?
                .iter()
                .filter_map(|size| usize::try_from(size.as_u64()?).ok())
                .collect();
            let [rows, width] = shape[..] else {
                return None;
            };
            let bytes = data.get(place(0)?..place(1)?)?.to_vec();
            let matrix = Matrix {
                number,
                rows,
                width,
                bytes,
            };
            Some((name.clone(), matrix))
        })
        .collect();
    found.sort_by_key(|(_, matrix)| std::cmp::Reverse(matrix.numbers()));
    found.truncate(3);
    Ok(found)
}

/// xorshift64*, good enough for weights.
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        (bits as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn gaussian(&mut self) -> f64 {
        let radius = (-2. * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Student's t of five degrees of freedom.
    fn student(&mut self) -> f64 {
        let squares: f64 = (0..5).map(|_| self.gaussian().powi(2)).sum();
        self.gaussian() / (squares / 5.).sqrt()
    }
}
