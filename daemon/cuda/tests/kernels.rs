//! Every kernel against plain loops, in shapes that tiles don't divide. Memory around what a kernel is given holds no numbers,
//! so that a read outside shows in the result; a write outside shows there.

mod formats;
mod stand_in;

use bytemuck::Pod;
use formats::{Random, decode, stored};
use half::{bf16, f16};
use sluice_cuda::{
    ATTEND_QUERIES, Attend, CompareState, Format, Gpu, GpuMemory, HEAD_TOKENS, HeadChoice, HeadRow,
    HeadState, NO_TOKEN, Number, Product, Segment, Span, Task,
};

/// Bytes around a buffer; they keep it aligned.
const MARGIN: usize = 256;

/// In every float format no number, and far out of range as an index.
const POISON: u8 = 0xff;

/// Memory on the card with poison around it.
struct Buffer {
    memory: GpuMemory,
    len: usize,
}

/// Runs a test where there is a stand-in for the card.
fn on_card(body: impl FnOnce(&Gpu)) {
    if stand_in::open() {
        body(&Gpu::open(0).unwrap());
    }
}

impl Buffer {
    fn new(gpu: &Gpu, len: usize) -> Self {
        let memory = gpu.allocate(len + 2 * MARGIN).unwrap();
        gpu.fill(memory.span(), POISON).unwrap();
        Self { memory, len }
    }

    fn of<T: Pod>(gpu: &Gpu, values: &[T]) -> Self {
        let bytes = bytemuck::cast_slice(values);
        let buffer = Self::new(gpu, bytes.len());
        gpu.upload(buffer.span(), bytes).unwrap();
        buffer
    }

    /// Values as numbers that are computed in.
    fn of_numbers(gpu: &Gpu, number: Number, values: &[f32]) -> Self {
        match number {
            Number::F32 => Self::of(gpu, values),
            Number::F16 => {
                let values: Vec<u16> = values.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
                Self::of(gpu, &values)
            }
            Number::Bf16 => {
                let values: Vec<u16> = values
                    .iter()
                    .map(|&x| bf16::from_f32(x).to_bits())
                    .collect();
                Self::of(gpu, &values)
            }
        }
    }

    fn span(&self) -> Span {
        self.memory.span().part(MARGIN, self.len)
    }

    /// What it holds, once nothing around it was found to have changed.
    fn read<T: Pod>(&self, gpu: &Gpu) -> Vec<T> {
        let mut bytes = vec![0; self.len + 2 * MARGIN];
        gpu.download(self.memory.span(), &mut bytes).unwrap();
        let (before, rest) = bytes.split_at(MARGIN);
        let (values, after) = rest.split_at(self.len);
        assert!(
            before.iter().chain(after).all(|&byte| byte == POISON),
            "written outside"
        );
        values
            .chunks_exact(size_of::<T>())
            .map(bytemuck::pod_read_unaligned)
            .collect()
    }

    fn read_numbers(&self, gpu: &Gpu, number: Number) -> Vec<f32> {
        match number {
            Number::F32 => self.read(gpu),
            Number::F16 => self
                .read::<u16>(gpu)
                .into_iter()
                .map(|bits| f16::from_bits(bits).to_f32())
                .collect(),
            Number::Bf16 => self
                .read::<u16>(gpu)
                .into_iter()
                .map(|bits| bf16::from_bits(bits).to_f32())
                .collect(),
        }
    }
}

/// The nearest number that is computed in; in half precision the largest for what is beyond.
fn narrow(number: Number, value: f32) -> f32 {
    match number {
        Number::F32 => value,
        Number::F16 => f16::from_f32(value.clamp(-65504.0, 65504.0)).to_f32(),
        Number::Bf16 => bf16::from_f32(value).to_f32(),
    }
}

/// Half a step between neighbours, of a number of 1.
fn rounding(number: Number) -> f64 {
    match number {
        Number::F32 => 2f64.powi(-24),
        Number::F16 => 2f64.powi(-11),
        Number::Bf16 => 2f64.powi(-8),
    }
}

fn numbers(random: &mut Random, number: Number, count: usize) -> Vec<f32> {
    (0..count)
        .map(|_| narrow(number, random.between(-1.0, 1.0)))
        .collect()
}

#[track_caller]
fn assert_close(found: f32, expected: f64, tolerance: f64, what: impl FnOnce() -> String) {
    let difference = (f64::from(found) - expected).abs();
    assert!(
        difference <= tolerance,
        "{found} for {expected}, {difference} apart: {}",
        what()
    );
}

#[test]
fn weights_are_decoded_as_the_engine_decodes_them() {
    on_card(|gpu| {
        let mut random = Random::new(1);
        for format in Format::ALL {
            for blocks in [1, 7, 8, 9, 70] {
                let count = match format.block_len() {
                    1 => 37 * blocks,
                    block => blocks * block,
                };
                let bytes = stored(&mut random, format, count);
                let expected = decode(format, &bytes);
                let (weights, id) = (Buffer::of(gpu, &bytes), Buffer::of(gpu, &[0u32]));
                let out = Buffer::new(gpu, count * 4);
                gpu.embed(out.span(), id.span(), weights.span(), format, count, 1)
                    .unwrap();
                for (found, expected) in out.read::<f32>(gpu).iter().zip(&expected) {
                    assert_eq!(found.to_bits(), expected.to_bits());
                }
            }
        }
    });
}

#[test]
fn rows_of_a_table_are_picked_and_decoded() {
    on_card(|gpu| {
        let mut random = Random::new(2);
        for format in Format::ALL {
            for width in [1, 37, 64, 130] {
                let width = match format.block_len() {
                    1 => width,
                    block => block * (1 + width % 3),
                };
                let table = stored(&mut random, format, 9 * width);
                let ids = [3u32, 0, 8, 3];
                let expected = decode(format, &table);
                let out = Buffer::new(gpu, ids.len() * width * 4);
                let (ids_there, table_there) = (Buffer::of(gpu, &ids), Buffer::of(gpu, &table));
                gpu.embed(
                    out.span(),
                    ids_there.span(),
                    table_there.span(),
                    format,
                    width,
                    ids.len(),
                )
                .unwrap();
                let found = out.read::<f32>(gpu);
                for (row, id) in ids.into_iter().enumerate() {
                    let expected = &expected[id as usize * width..][..width];
                    let found = &found[row * width..][..width];
                    assert!(
                        found
                            .iter()
                            .map(|x| x.to_bits())
                            .eq(expected.iter().map(|x| x.to_bits())),
                        "{} {width}",
                        format.name()
                    );
                }
            }
        }
    });
}

#[test]
fn rows_are_taken_as_they_are() {
    on_card(|gpu| {
        let x: Vec<u32> = (0..7 * 301)
            .map(|i: u32| i.wrapping_mul(2_654_435_761))
            .collect();
        let rows = [6u32, 0, 0, 5];
        let (x_there, rows_there) = (Buffer::of(gpu, &x), Buffer::of(gpu, &rows));
        for (element_bytes, width) in [(4, 301), (2, 602), (2, 86)] {
            let row_bytes = element_bytes * width;
            let out = Buffer::new(gpu, rows.len() * row_bytes);
            gpu.take_rows(
                element_bytes,
                out.span(),
                x_there.span(),
                rows_there.span(),
                rows.len(),
                width,
            )
            .unwrap();
            let bytes: &[u8] = bytemuck::cast_slice(&x);
            let expected: Vec<u8> = rows
                .iter()
                .flat_map(|&row| &bytes[row as usize * row_bytes..][..row_bytes])
                .copied()
                .collect();
            assert_eq!(out.read::<u8>(gpu), expected);
        }
    });
}

#[test]
fn what_is_too_large_for_half_precision_stays_the_largest() {
    on_card(|gpu| {
        let values = [
            0.0,
            -0.0,
            1.0,
            -2.5,
            65504.0,
            65519.9,
            65520.0,
            -7e4,
            1e-8,
            6e-5,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
        ];
        let x = Buffer::of(gpu, &values);
        for number in Number::ALL {
            let out = Buffer::new(gpu, values.len() * number.bytes());
            gpu.convert(number, out.span(), x.span(), values.len())
                .unwrap();
            let found = out.read_numbers(gpu, number);
            for (found, value) in found.into_iter().zip(values) {
                let expected = narrow(number, value);
                assert!(
                    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                    "{}: {found} for {value}",
                    number.name()
                );
            }
        }
    });
}

#[test]
fn products_too_large_for_half_precision_stay_the_largest_by_cublas_too() {
    on_card(|gpu| {
        const SIDE: usize = 32;
        assert!(gpu.blas().is_some());
        let factors = |value: f32| {
            Buffer::of_numbers(
                gpu,
                Number::F16,
                &vec![f16::from_f32(value).to_f32(); SIDE * SIDE],
            )
        };
        for (one, other, expected) in [
            (200.0, 200.0, 65504.0),
            (-200.0, 200.0, -65504.0),
            (2.0, 3.0, 192.0),
        ] {
            let (x, weights) = (factors(one), factors(other));
            let out = Buffer::new(gpu, SIDE * SIDE * 2);
            let product = Product {
                out: out.span(),
                out_is_f32: false,
                x: x.span(),
                weights: weights.span(),
                rows: SIDE,
                outputs: SIDE,
                width: SIDE,
                accumulate: false,
            };
            gpu.multiply(Number::F16, Format::F16, product).unwrap();
            let found = out.read_numbers(gpu, Number::F16);
            assert!(found.iter().all(|&sum| sum == expected), "{found:?}");
        }
    });
}

#[test]
fn elementwise_operations() {
    on_card(|gpu| {
        let mut random = Random::new(3);
        for number in Number::ALL {
            for count in [1, 255, 1000] {
                let gate = numbers(&mut random, number, count);
                let up = numbers(&mut random, number, count);
                let gate_there = Buffer::of_numbers(gpu, number, &gate);
                let up_there = Buffer::of_numbers(gpu, number, &up);
                gpu.silu_multiply(number, gate_there.span(), up_there.span(), count)
                    .unwrap();
                for (i, found) in gate_there.read_numbers(gpu, number).into_iter().enumerate() {
                    let gate = f64::from(gate[i]);
                    let expected = gate / (1.0 + (-gate).exp()) * f64::from(up[i]);
                    let tolerance = expected.abs() * (rounding(number) + 1e-6) + 1e-7;
                    assert_close(found, expected, tolerance, || number.name().to_owned());
                }

                let x = numbers(&mut random, Number::F32, count);
                let x_there = Buffer::of(gpu, &x);
                gpu.add(number, x_there.span(), up_there.span(), count)
                    .unwrap();
                let expected: Vec<f32> = x.iter().zip(&up).map(|(x, y)| x + y).collect();
                assert_eq!(x_there.read::<f32>(gpu), expected);
            }
        }
    });
}

#[test]
fn norm() {
    on_card(|gpu| {
        let mut random = Random::new(4);
        for number in Number::ALL {
            for format in [Format::F32, Format::F16, Format::Bf16] {
                for (rows, width) in [(1, 1), (3, 255), (2, 1031)] {
                    let x = numbers(&mut random, Number::F32, rows * width);
                    let weight = stored(&mut random, format, width);
                    let scale = decode(format, &weight);
                    let out = Buffer::new(gpu, x.len() * number.bytes());
                    let (x_there, weight_there) = (Buffer::of(gpu, &x), Buffer::of(gpu, &weight));
                    gpu.rms_norm(
                        number,
                        out.span(),
                        x_there.span(),
                        weight_there.span(),
                        format,
                        rows,
                        width,
                        1e-5,
                    )
                    .unwrap();
                    for (i, found) in out.read_numbers(gpu, number).into_iter().enumerate() {
                        let row = &x[i / width * width..][..width];
                        let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
                        let inverse = (squares / width as f64 + 1e-5).sqrt().recip();
                        let expected = f64::from(x[i]) * inverse * f64::from(scale[i % width]);
                        let tolerance = expected.abs() * (rounding(number) + 1e-6) + 1e-7;
                        assert_close(found, expected, tolerance, || {
                            format!("{} {} {width}", number.name(), format.name())
                        });
                    }
                }
            }
        }
    });
}

#[test]
fn rotary_embedding() {
    on_card(|gpu| {
        let mut random = Random::new(5);
        for number in Number::ALL {
            for (rows, heads, half) in [(1, 1, 1), (5, 3, 7), (3, 2, 64)] {
                let table = numbers(&mut random, Number::F32, 11 * 2 * half);
                let positions: Vec<u32> = (0..rows).map(|_| random.below(11) as u32).collect();
                let x = numbers(&mut random, number, rows * heads * 2 * half);
                let x_there = Buffer::of_numbers(gpu, number, &x);
                let table_there = Buffer::of(gpu, &table);
                let positions_there = Buffer::of(gpu, &positions);
                gpu.rope(
                    number,
                    x_there.span(),
                    table_there.span(),
                    positions_there.span(),
                    rows,
                    heads,
                    half,
                )
                .unwrap();
                for (i, found) in x_there.read_numbers(gpu, number).into_iter().enumerate() {
                    let position = positions[i / (heads * 2 * half)] as usize;
                    let (cos, sin) = table[position * 2 * half..][..2 * half].split_at(half);
                    let place = i % (2 * half);
                    let (cos, sin) = (f64::from(cos[place % half]), f64::from(sin[place % half]));
                    let expected = if place < half {
                        f64::from(x[i]) * cos - f64::from(x[i + half]) * sin
                    } else {
                        f64::from(x[i]) * cos + f64::from(x[i - half]) * sin
                    };
                    let tolerance = expected.abs() * rounding(number) + 2e-7;
                    assert_close(found, expected, tolerance, || number.name().to_owned());
                }
            }
        }
    });
}

/// One multiplication, against sums in `f64`.
fn check_multiply(
    gpu: &Gpu,
    random: &mut Random,
    number: Number,
    format: Format,
    (rows, outputs, width): (usize, usize, usize),
) {
    let x = numbers(random, number, rows * width);
    let bytes = stored(random, format, outputs * width);
    // Few rows are multiplied with weights as decoded; tiles hold them in the numbers of `x`.
    let mut weights = decode(format, &bytes);
    if rows > 8 || !(width * 2).is_multiple_of(16) {
        for weight in &mut weights {
            *weight = narrow(number, *weight);
        }
    }
    let x_there = Buffer::of_numbers(gpu, number, &x);
    let weights_there = Buffer::of(gpu, &bytes);
    for (out_is_f32, accumulate) in [(false, false), (true, false), (true, true)] {
        let out_number = if out_is_f32 { Number::F32 } else { number };
        // What is not added to is poison.
        let out = if accumulate {
            Buffer::of(gpu, &vec![0.5f32; rows * outputs])
        } else {
            Buffer::new(gpu, rows * outputs * out_number.bytes())
        };
        let product = Product {
            out: out.span(),
            out_is_f32,
            x: x_there.span(),
            weights: weights_there.span(),
            rows,
            outputs,
            width,
            accumulate,
        };
        gpu.multiply_by_kernels(number, format, product).unwrap();
        for (i, found) in out.read_numbers(gpu, out_number).into_iter().enumerate() {
            let (row, output) = (i / outputs, i % outputs);
            let (mut sum, mut size) = (0.0, 0.0);
            for k in 0..width {
                let term = f64::from(x[row * width + k]) * f64::from(weights[output * width + k]);
                sum += term;
                size += term.abs();
            }
            let expected = sum + if accumulate { 0.5 } else { 0.0 };
            let tolerance = (size + 1.0) * 1e-6 + expected.abs() * rounding(out_number);
            assert_close(found, expected, tolerance, || {
                format!(
                    "{} {} {rows}x{outputs}x{width} at {row},{output}",
                    number.name(),
                    format.name()
                )
            });
        }
    }
}

#[test]
fn multiply_few_rows() {
    on_card(|gpu| {
        let mut random = Random::new(6);
        for number in Number::ALL {
            for format in Format::ALL {
                for rows in 1..=8 {
                    let width = match format.block_len() {
                        1 => [8, 40, 264, 520][rows % 4],
                        block => block * (1 + rows % 4),
                    };
                    let outputs = 1 + random.below(40);
                    check_multiply(gpu, &mut random, number, format, (rows, outputs, width));
                }
            }
        }
    });
}

#[test]
fn multiply_in_small_tiles() {
    on_card(|gpu| {
        let mut random = Random::new(7);
        for number in Number::ALL {
            for format in Format::ALL {
                // The first two are few rows that loads of 16 bytes can't read.
                for (rows, outputs, width) in [
                    (1, 1, 1),
                    (8, 70, 37),
                    (9, 65, 64),
                    (64, 64, 32),
                    (63, 130, 33),
                    (65, 3, 100),
                    (130, 66, 31),
                ] {
                    let width = match format.block_len() {
                        1 => width,
                        block => block * (1 + width % 3),
                    };
                    check_multiply(gpu, &mut random, number, format, (rows, outputs, width));
                }
            }
        }
    });
}

#[test]
fn multiply_in_large_tiles() {
    on_card(|gpu| {
        let mut random = Random::new(8);
        for number in Number::ALL {
            for format in Format::ALL {
                let width = match format.block_len() {
                    1 => 37,
                    32 => 96,
                    block => block,
                };
                check_multiply(gpu, &mut random, number, format, (130, 31 * 128 + 5, width));
            }
            check_multiply(gpu, &mut random, number, Format::Bf16, (128, 64 * 128, 64));
        }
    });
}

#[test]
fn the_same_shape_gives_the_same_bits() {
    on_card(|gpu| {
        let mut random = Random::new(9);
        let (outputs, width) = (70, 512);
        let bytes = stored(&mut random, Format::Q4K, outputs * width);
        let weights = Buffer::of(gpu, &bytes);
        let x = numbers(&mut random, Number::F16, 100 * width);
        let x = Buffer::of_numbers(gpu, Number::F16, &x);
        for rows in [5, 100] {
            let run = || {
                let out = Buffer::new(gpu, rows * outputs * 4);
                let product = Product {
                    out: out.span(),
                    out_is_f32: true,
                    x: x.span(),
                    weights: weights.span(),
                    rows,
                    outputs,
                    width,
                    accumulate: false,
                };
                gpu.multiply_by_kernels(Number::F16, Format::Q4K, product)
                    .unwrap();
                out.read::<u32>(gpu)
            };
            assert_eq!(run(), run());
        }
    });
}

/// First row and rows of queries, and the segments of keys that they see.
type Queries<'a> = (u32, u32, &'a [(u32, u32)]);

/// Attention of all tasks, against sums in `f64`.
fn check_attend(
    gpu: &Gpu,
    random: &mut Random,
    number: Number,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    tasks: &[Queries<'_>],
) {
    let (rows, keys) = (200, 210);
    // Scores of some size, so that the largest is not always the first.
    let q: Vec<f32> = numbers(random, number, rows * heads * head_dim)
        .into_iter()
        .map(|x| narrow(number, 3.0 * x))
        .collect();
    let k = numbers(random, number, keys * kv_heads * head_dim);
    let v = numbers(random, number, keys * kv_heads * head_dim);
    let segments: Vec<Segment> = tasks
        .iter()
        .flat_map(|(_, _, segments)| *segments)
        .map(|&(start, len)| Segment { start, len })
        .collect();
    let mut before = 0;
    let tasks_there: Vec<Task> = tasks
        .iter()
        .map(|&(query_start, query_count, segments)| {
            let segment_count = segments.len() as u32;
            before += segment_count;
            Task {
                query_start,
                query_count,
                segment_start: before - segment_count,
                segment_count,
            }
        })
        .collect();
    let out = Buffer::new(gpu, q.len() * number.bytes());
    let (q_there, k_there, v_there) = (
        Buffer::of_numbers(gpu, number, &q),
        Buffer::of_numbers(gpu, number, &k),
        Buffer::of_numbers(gpu, number, &v),
    );
    let (tasks_there, segments_there) = (Buffer::of(gpu, &tasks_there), Buffer::of(gpu, &segments));
    let attend = Attend {
        out: out.span(),
        q: q_there.span(),
        k: k_there.span(),
        v: v_there.span(),
        tasks: tasks_there.span(),
        task_count: tasks.len(),
        segments: segments_there.span(),
        heads,
        kv_heads,
        head_dim,
    };
    gpu.attend(number, attend).unwrap();
    let found = out.read_numbers(gpu, number);

    let tolerance = match number {
        Number::F32 => 1e-5,
        Number::F16 => 2e-3,
        Number::Bf16 => 1.2e-2,
    };
    let mut written = vec![false; rows];
    for &(query_start, query_count, segments) in tasks {
        let seen: Vec<usize> = segments
            .iter()
            .flat_map(|&(start, len)| start as usize..(start + len) as usize)
            .collect();
        for query in query_start as usize..(query_start + query_count) as usize {
            written[query] = true;
            for head in 0..heads {
                let at = |row: usize| (row * kv_heads + head * kv_heads / heads) * head_dim;
                let q = &q[(query * heads + head) * head_dim..][..head_dim];
                let weights: Vec<f64> = seen
                    .iter()
                    .map(|&key| {
                        let products = q.iter().zip(&k[at(key)..]);
                        let score: f64 = products.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                        (score / (head_dim as f64).sqrt()).exp()
                    })
                    .collect();
                let total: f64 = weights.iter().sum();
                for i in 0..head_dim {
                    let values = seen.iter().map(|&key| f64::from(v[at(key) + i]));
                    let sum: f64 = values.zip(&weights).map(|(value, w)| value * w).sum();
                    let expected = if seen.is_empty() { 0.0 } else { sum / total };
                    let found = found[(query * heads + head) * head_dim + i];
                    assert_close(found, expected, tolerance, || {
                        format!("{} {head_dim} at {query},{head},{i}", number.name())
                    });
                }
            }
        }
    }
    for (row, written) in written.into_iter().enumerate() {
        let row = &found[row * heads * head_dim..][..heads * head_dim];
        assert!(written || row.iter().all(|x| x.is_nan()), "rows of no task");
    }
}

#[test]
fn attention() {
    on_card(|gpu| {
        let mut random = Random::new(10);
        let whole = ATTEND_QUERIES as u32;
        let tasks: &[Queries<'_>] = &[
            (0, whole, &[(0, 7), (50, 0), (60, 61)]),
            (whole, 1, &[(209, 1)]),
            (70, 33, &[(0, 0), (10, 32), (100, 64), (3, 1)]),
            (110, 17, &[]),
            (140, 60, &[(0, 210)]),
        ];
        for number in Number::ALL {
            for shape in [
                (1, 1, 2),
                (4, 2, 10),
                (2, 2, 64),
                (3, 1, 66),
                (2, 1, 128),
                (2, 2, 130),
                (1, 1, 256),
            ] {
                check_attend(gpu, &mut random, number, shape, tasks);
            }
        }
    });
}

/// The engine's noise.
mod noise {
    fn mix(mut z: u64) -> u64 {
        z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn gumbel(key: u64, pass: u64, position: u64, token: u64) -> f64 {
        let place = key ^ mix((pass << 32) | position);
        let bits = mix(place.wrapping_add(token.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        let uniform = ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        -(-uniform.ln()).ln()
    }
}

/// What the engine makes of a piece of a row's logits.
fn reduce(
    state: &mut HeadState,
    logits: &mut [f32],
    first: usize,
    row: &HeadRow,
    choice: &HeadChoice,
) {
    let len = logits.len();
    let inside = |id: u32| (id as usize).checked_sub(first).filter(|&i| i < len);
    for &id in &choice.suppressed[..choice.suppressed_count as usize] {
        if let Some(i) = inside(id) {
            logits[i] = f32::NEG_INFINITY;
        }
    }
    if let Some(i) = inside(row.target) {
        state.target_logit = logits[i];
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max > state.max {
        state.sum *= f64::from((state.max - max).exp());
        state.max = max;
    }
    if state.max > f32::NEG_INFINITY {
        let terms = logits.iter().map(|x| f64::from((x - state.max).exp()));
        state.sum += terms.sum::<f64>();
    }
    let ends = &choice.ends[..choice.end_count as usize];
    for &id in [choice.mask]
        .iter()
        .chain(ends.iter().filter(|_| row.may_end == 0))
    {
        if let Some(i) = inside(id) {
            logits[i] = f32::NEG_INFINITY;
        }
    }
    for (i, &logit) in logits.iter().enumerate() {
        let token = first + i;
        if token >= choice.vocabulary as usize {
            break;
        }
        let mut score = f64::from(logit);
        if choice.temperature > 0.0 && logit > f32::NEG_INFINITY {
            score += choice.temperature
                * noise::gumbel(
                    choice.noise_key,
                    choice.pass,
                    row.position.into(),
                    token as u64,
                );
        }
        if score > state.best_score {
            state.best_score = score;
            state.best = token as u32;
            state.best_logit = logit;
        }
    }
}

#[test]
fn the_head_is_reduced_as_the_engine_reduces_it() {
    on_card(|gpu| {
        const COLUMNS: usize = 3001;
        const ROWS: usize = 5;
        let mut random = Random::new(11);
        let tokens = |ids: &[u32]| {
            let mut all = [NO_TOKEN; HEAD_TOKENS];
            all[..ids.len()].copy_from_slice(ids);
            all
        };
        for (temperature, guidance, vocabulary, infinite) in [
            (0.0, None, 3001, false),
            (0.7, None, 2990, false),
            (0.0, Some(1.5), 1200, false),
            (1.3, Some(0.4), 3001, true),
        ] {
            let choice = HeadChoice {
                temperature,
                noise_key: 0x1234_5678_9abc_def0,
                pass: 17,
                guidance: guidance.unwrap_or(0.0),
                has_guidance: guidance.is_some().into(),
                vocabulary,
                mask: 5,
                end_count: 2,
                suppressed_count: 3,
                ends: tokens(&[7, 1500]),
                suppressed: tokens(&[0, 999, 1000]),
            };
            let rows: Vec<HeadRow> = (0..ROWS as u32)
                .map(|row| HeadRow {
                    position: 31 * row,
                    may_end: row % 2,
                    target: [NO_TOKEN, 999, 2999, 7, 3000][row as usize],
                })
                .collect();
            let branches = if guidance.is_some() { 2 } else { 1 };
            // Few values, so that there are ties; the forbidden ones are among the largest.
            let mut logits: Vec<Vec<f32>> = (0..branches * ROWS)
                .map(|_| {
                    (0..COLUMNS)
                        .map(|_| random.below(40) as f32 * 0.25 - 5.0)
                        .collect()
                })
                .collect();
            for row in &mut logits {
                for id in [0, 5, 7, 999, 1500, 3000] {
                    row[id] = 6.0;
                }
                // The largest come last, so that what was summed before has to shrink.
                row[2920] = 6.5;
                row[2950] = 6.5;
            }
            if infinite {
                logits[1].fill(f32::NEG_INFINITY);
                logits[ROWS + 1].fill(1.0);
                logits[2][77] = f32::NAN;
            }
            let states = Buffer::of(gpu, &[HeadState::START; ROWS]);
            let rows_there = Buffer::of(gpu, &rows);
            let mut expected = [HeadState::START; ROWS];
            for (from, to) in [(0, 1), (1, 1000), (1000, 2900), (2900, COLUMNS)] {
                let piece: Vec<f32> = logits
                    .iter()
                    .flat_map(|row| &row[from..to])
                    .copied()
                    .collect();
                let piece = Buffer::of(gpu, &piece);
                gpu.head_reduce(
                    states.span(),
                    piece.span(),
                    rows_there.span(),
                    ROWS,
                    to - from,
                    from,
                    &choice,
                )
                .unwrap();
                piece.read::<f32>(gpu);
                for (index, state) in expected.iter_mut().enumerate() {
                    let mut row = logits[index][from..to].to_vec();
                    if guidance.is_some() {
                        for (c, u) in row.iter_mut().zip(&logits[ROWS + index][from..to]) {
                            *c = u + (choice.guidance + 1.0) * (*c - u);
                        }
                    }
                    reduce(state, &mut row, from, &rows[index], &choice);
                }
            }
            for (found, expected) in states.read::<HeadState>(gpu).iter().zip(&expected) {
                let same = |a: f64, b: f64, relative: f64| {
                    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= relative * b.abs()
                };
                assert!(
                    found.max == expected.max
                        && found.best == expected.best
                        && found.best_logit == expected.best_logit
                        && found.target_logit.to_bits() == expected.target_logit.to_bits()
                        && same(found.sum, expected.sum, 1e-6)
                        && same(found.best_score, expected.best_score, 1e-12),
                    "{found:?} for {expected:?}"
                );
            }
        }
    });
}

#[test]
fn heads_are_compared_as_the_engine_compares_them() {
    on_card(|gpu| {
        const COLUMNS: usize = 1009;
        const ROWS: usize = 3;
        let mut random = Random::new(12);
        // Ties among the largest, which come last, so that what was summed before has to shrink.
        let logits: [Vec<f32>; 2] = [0, 1].map(|_| {
            (0..ROWS * COLUMNS)
                .map(|i| match i % COLUMNS {
                    700 | 900 => 5.0,
                    _ => random.below(64) as f32 * 0.125 - 4.0,
                })
                .collect()
        });
        let targets = [0u32, 1008, NO_TOKEN];
        let states = Buffer::of(gpu, &[CompareState::START; ROWS]);
        let targets_there = Buffer::of(gpu, &targets);
        for (from, to) in [(0, 500), (500, 501), (501, COLUMNS)] {
            let [one, other] = [0, 1].map(|side| {
                let rows = logits[side].chunks_exact(COLUMNS);
                let piece: Vec<f32> = rows.flat_map(|row| &row[from..to]).copied().collect();
                Buffer::of(gpu, &piece)
            });
            gpu.compare_reduce(
                states.span(),
                one.span(),
                other.span(),
                targets_there.span(),
                ROWS,
                to - from,
                from,
            )
            .unwrap();
        }
        for (row, found) in states.read::<CompareState>(gpu).into_iter().enumerate() {
            let [one, other] = [0, 1].map(|side: usize| &logits[side][row * COLUMNS..][..COLUMNS]);
            for (side, logits) in [one, other].into_iter().enumerate() {
                let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let top = logits.iter().position(|&logit| logit == max).unwrap();
                let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
                assert_eq!((found.max[side], found.top[side]), (max, top as u32));
                assert!((found.sum[side] - sum).abs() <= 1e-12 * sum);
                let target = logits.get(targets[row] as usize);
                assert_eq!(
                    found.target[side],
                    target.copied().unwrap_or(f32::NEG_INFINITY)
                );
            }
            let terms = one
                .iter()
                .zip(other)
                .map(|(a, b)| f64::from(a - found.max[0]).exp() * (f64::from(*a) - f64::from(*b)));
            let difference: f64 = terms.sum();
            assert!((found.difference - difference).abs() <= 1e-10);
        }
    });
}

#[test]
fn nothing_is_sent_for_nothing() {
    on_card(|gpu| {
        let none = Buffer::new(gpu, 0);
        let span = none.span();
        gpu.embed(span, span, span, Format::F32, 4, 0).unwrap();
        gpu.add(Number::F16, span, span, 0).unwrap();
        gpu.take_rows(2, span, span, span, 0, 9).unwrap();
        let product = Product {
            out: span,
            out_is_f32: true,
            x: span,
            weights: span,
            rows: 0,
            outputs: 0,
            width: 256,
            accumulate: false,
        };
        gpu.multiply(Number::F32, Format::Q6K, product).unwrap();
        none.read::<u8>(gpu);
    });
}
