//! Kernels that process rows or elements one by one.

use sluice_cuda::{ElementFunction, Matmul, RopeArgs, RopeRows};
use sluice_formats::{DType, Format};

use super::{
    formats::{Random, dequantize, stored},
    support::{Buffer, assert_close, elements, narrow, on_gpu, rounding},
};

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn weights_are_decoded_as_the_engine_decodes_them() {
    on_gpu(|gpu| {
        let mut random = Random::new(1);
        for format in Format::ALL {
            for blocks in [1, 7, 8, 9, 70] {
                let count = match format.block_len() {
                    1 => 37 * blocks,
                    block => blocks * block,
                };
                let bytes = stored(&mut random, format, count);
                let expected = dequantize(format, &bytes);
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
#[ignore = "on the stand-in: cargo ci"]
fn rows_of_a_table_are_picked_and_decoded() {
    on_gpu(|gpu| {
        let mut random = Random::new(2);
        for format in Format::ALL {
            for width in [1, 37, 64, 130] {
                let width = match format.block_len() {
                    1 => width,
                    block => block * (1 + width % 3),
                };
                let table = stored(&mut random, format, 9 * width);
                let ids = [3u32, 0, 8, 3];
                let expected = dequantize(format, &table);
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
#[ignore = "on the stand-in: cargo ci"]
fn rows_are_taken_as_they_are() {
    on_gpu(|gpu| {
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
#[ignore = "on the stand-in: cargo ci"]
fn elementwise_operations() {
    on_gpu(|gpu| {
        let mut random = Random::new(3);
        for number in DType::ALL {
            for count in [1, 255, 1000] {
                let gate = elements(&mut random, number, count);
                let up = elements(&mut random, number, count);
                let gate_there = Buffer::of_elements(gpu, number, &gate);
                let up_there = Buffer::of_elements(gpu, number, &up);
                gpu.silu_mul(number, gate_there.span(), up_there.span(), count)
                    .unwrap();
                for (i, found) in gate_there
                    .read_elements(gpu, number)
                    .into_iter()
                    .enumerate()
                {
                    let gate = f64::from(gate[i]);
                    let expected = gate / (1.0 + (-gate).exp()) * f64::from(up[i]);
                    let tolerance = expected.abs() * (rounding(number) + 1e-6) + 1e-7;
                    assert_close(found, expected, tolerance, || number.name().to_owned());
                }

                let gate_there = Buffer::of_elements(gpu, number, &gate);
                gpu.gelu_mul(number, gate_there.span(), up_there.span(), count)
                    .unwrap();
                let found = gate_there.read_elements(gpu, number).into_iter();
                for ((found, gate), up) in found.zip(&gate).zip(&up) {
                    let gate = f64::from(*gate);
                    let inner =
                        (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3));
                    let expected = 0.5 * gate * (1.0 + inner.tanh()) * f64::from(*up);
                    let tolerance = expected.abs() * (rounding(number) + 1e-6) + 1e-7;
                    assert_close(found, expected, tolerance, || number.name().to_owned());
                }

                let x = elements(&mut random, DType::F32, count);
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
#[ignore = "on the stand-in: cargo ci"]
fn norm() {
    on_gpu(|gpu| {
        let mut random = Random::new(4);
        for number in DType::ALL {
            for format in [Format::F32, Format::F16, Format::Bf16] {
                for (rows, width) in [(1, 1), (3, 255), (2, 1031)] {
                    let x = elements(&mut random, DType::F32, rows * width);
                    let weight = stored(&mut random, format, width);
                    let scale = dequantize(format, &weight);
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
                    for (i, found) in out.read_elements(gpu, number).into_iter().enumerate() {
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
#[ignore = "on the stand-in: cargo ci"]
fn norm_to_mean_and_variance() {
    on_gpu(|gpu| {
        let mut random = Random::new(41);
        for number in DType::ALL {
            for (rows, width) in [(1, 1), (3, 255), (2, 1031)] {
                // A mean that is large beside the spread.
                let x = elements(&mut random, DType::F32, rows * width);
                let x: Vec<f32> = x.iter().map(|x| 20.0 + x).collect();
                let scales = [(); 2].map(|()| elements(&mut random, DType::F32, width));
                let out = Buffer::new(gpu, x.len() * number.bytes());
                let x_there = Buffer::of(gpu, &x);
                let scales_there = scales.each_ref().map(|scale| Buffer::of(gpu, scale));
                gpu.layer_norm(
                    number,
                    out.span(),
                    x_there.span(),
                    scales_there.each_ref().map(Buffer::span),
                    rows,
                    width,
                    1e-5,
                )
                .unwrap();
                for (i, found) in out.read_elements(gpu, number).into_iter().enumerate() {
                    let row = &x[i / width * width..][..width];
                    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
                    let squares = row.iter().map(|&x| (f64::from(x) - mean).powi(2));
                    let inverse = (squares.sum::<f64>() / width as f64 + 1e-5).sqrt().recip();
                    let [scale, bias] = scales.each_ref().map(|s| f64::from(s[i % width]));
                    let expected = (f64::from(x[i]) - mean) * inverse * scale + bias;
                    let tolerance = expected.abs() * rounding(number) + 1e-5;
                    assert_close(found, expected, tolerance, || {
                        format!("{} {width}", number.name())
                    });
                }
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn functions_of_elements() {
    on_gpu(|gpu| {
        let mut random = Random::new(42);
        for number in DType::ALL {
            for (function, exact) in [
                (ElementFunction::Tanh, f64::tanh as fn(f64) -> f64),
                (ElementFunction::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
                (ElementFunction::SquaredRelu, |x| x.max(0.0).powi(2)),
            ] {
                for count in [1, 255, 1000] {
                    let x = elements(&mut random, number, count);
                    // From nearly linear to the ends; the square of the largest is out of half precision's range.
                    let size = |i: usize| [0.01, 1.0, 8.0, 300.0][i % 4];
                    let x: Vec<f32> = (x.iter().enumerate())
                        .map(|(i, x)| narrow(number, x * size(i)))
                        .collect();
                    let there = Buffer::of_elements(gpu, number, &x);
                    gpu.element_function(number, there.span(), function, count)
                        .unwrap();
                    for (i, found) in there.read_elements(gpu, number).into_iter().enumerate() {
                        let expected = exact(f64::from(x[i]));
                        let expected = match number {
                            DType::F16 => expected.min(65504.0),
                            _ => expected,
                        };
                        let tolerance = expected.abs() * (rounding(number) + 1e-6) + 1e-7;
                        assert_close(found, expected, tolerance, || {
                            format!("{} {function:?} of {}", number.name(), x[i])
                        });
                    }
                }
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn vectors_of_any_plain_format_become_rows() {
    on_gpu(|gpu| {
        let mut random = Random::new(43);
        let formats = [Format::F32, Format::F16, Format::Bf16];
        for (count, width) in [(1, 1), (3, 257), (8, 64)] {
            let vectors: Vec<_> = (0..count)
                .map(|index| {
                    let format = formats[index % 3];
                    (format, stored(&mut random, format, width))
                })
                .collect();
            let there: Vec<_> = (vectors.iter())
                .map(|(format, bytes)| (Buffer::of(gpu, bytes), *format))
                .collect();
            let spans: Vec<_> = (there.iter())
                .map(|(buffer, format)| (buffer.span(), *format))
                .collect();
            let out = Buffer::new(gpu, count * width * 4);
            gpu.stack_vectors(out.span(), &spans, width).unwrap();
            let expected: Vec<f32> = (vectors.iter())
                .flat_map(|(format, bytes)| dequantize(*format, bytes))
                .collect();
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&out.read::<f32>(gpu)), bits(&expected));
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn rotary_embedding() {
    on_gpu(|gpu| {
        let mut random = Random::new(5);
        for number in DType::ALL {
            // Whole heads, half-split and neighbours, and heads of which a part is in pairs.
            let cases = [
                (1, 1, 1, [2, 1]),
                (5, 3, 7, [14, 1]),
                (3, 2, 64, [128, 64]),
                (4, 1, 9, [18, 1]),
                (2, 2, 32, [64, 32]),
                (3, 3, 4, [16, 4]),
                (4, 2, 4, [32, 16]),
            ];
            for (case, (rows, heads, half, [head_dim, pair_distance])) in
                cases.into_iter().enumerate()
            {
                let is_backward = case > 2;
                let table = elements(&mut random, DType::F32, 11 * 2 * half);
                let positions: Vec<u32> = (0..rows).map(|_| random.below(11) as u32).collect();
                let x = elements(&mut random, number, rows * heads * head_dim);
                // Queries, and keys that are fewer and stand elsewhere.
                let rotated = [
                    (rows, heads, &positions[..]),
                    (rows - 1, 1, &positions[1..]),
                ];
                let there = rotated.map(|(rows, heads, positions)| {
                    let x = &x[..rows * heads * head_dim];
                    (
                        Buffer::of_elements(gpu, number, x),
                        Buffer::of(gpu, positions),
                    )
                });
                let table_there = Buffer::of(gpu, &table);
                let matrix = |index: usize| RopeRows {
                    x: there[index].0.span(),
                    positions: there[index].1.span(),
                    rows: rotated[index].0,
                    heads: rotated[index].1,
                };
                let rope = RopeArgs {
                    table: table_there.span(),
                    half,
                    head_dim,
                    pair_distance,
                    is_backward,
                };
                gpu.rope(number, [0, 1].map(matrix), rope).unwrap();
                for ((there, _), (_, heads, positions)) in there.iter().zip(rotated) {
                    for (i, found) in there.read_elements(gpu, number).into_iter().enumerate() {
                        let position = positions[i / (heads * head_dim)] as usize;
                        let (cos, sin) = table[position * 2 * half..][..2 * half].split_at(half);
                        let step = if pair_distance == 1 { 2 } else { 1 };
                        let place = i % head_dim;
                        let mut pairs = (0..half).map(|pair| (pair, pair * step));
                        let expected = match pairs.find_map(|(pair, low)| {
                            (place == low)
                                .then_some((pair, true, i + pair_distance))
                                .or_else(|| {
                                    (place == low + pair_distance).then_some((
                                        pair,
                                        false,
                                        i.wrapping_sub(pair_distance),
                                    ))
                                })
                        }) {
                            Some((pair, is_first, other)) => {
                                let (cos, sin) = (f64::from(cos[pair]), f64::from(sin[pair]));
                                let sin = if is_first != is_backward { -sin } else { sin };
                                f64::from(x[i]) * cos + f64::from(x[other]) * sin
                            }
                            None => f64::from(x[i]),
                        };
                        let tolerance = expected.abs() * rounding(number) + 2e-7;
                        assert_close(found, expected, tolerance, || number.name().to_owned());
                    }
                }
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn products_and_their_bias() {
    on_gpu(|gpu| {
        let mut random = Random::new(14);
        for number in DType::ALL {
            for (format, stored) in [
                (Format::F32, DType::F32),
                (Format::F16, DType::F16),
                (Format::Bf16, DType::Bf16),
            ] {
                let (rows, width) = (7, 45);
                // Some are beyond the largest number of half precision.
                let x: Vec<f32> = (0..rows * width)
                    .map(|_| random.between(-70_000.0, 70_000.0))
                    .collect();
                let bias = elements(&mut random, stored, width);
                let bias: Vec<f32> = bias.iter().map(|x| narrow(stored, 300.0 * x)).collect();
                let x_there = Buffer::of(gpu, &x);
                let bias_there = Buffer::of_elements(gpu, stored, &bias);
                let own = Buffer::new(gpu, rows * width * number.bytes());
                // In `f32` where the products lie.
                let out = if number == DType::F32 { &x_there } else { &own };
                gpu.add_bias(
                    number,
                    out.span(),
                    x_there.span(),
                    bias_there.span(),
                    format,
                    rows,
                    width,
                )
                .unwrap();
                for (i, found) in out.read_elements(gpu, number).into_iter().enumerate() {
                    assert_eq!(found, narrow(number, x[i] + bias[i % width]), "at {i}");
                }
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn keys_and_values_are_put_to_their_places() {
    on_gpu(|gpu| {
        for words in [1, 255, 1000] {
            let rows = [1, 2].map(|seed| {
                let mut random = Random::new(seed);
                elements(&mut random, DType::F32, words)
            });
            let there = rows.each_ref().map(|rows| Buffer::of(gpu, rows));
            let places = [(); 2].map(|()| Buffer::new(gpu, 4 * words));
            gpu.put_rows(
                places.each_ref().map(Buffer::span),
                there.each_ref().map(Buffer::span),
            )
            .unwrap();
            for (places, rows) in places.iter().zip(&rows) {
                assert_eq!(&places.read::<f32>(gpu), rows);
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn nothing_is_sent_for_nothing() {
    on_gpu(|gpu| {
        let none = Buffer::new(gpu, 0);
        let span = none.span();
        gpu.embed(span, span, span, Format::F32, 4, 0).unwrap();
        gpu.add(DType::F16, span, span, 0).unwrap();
        gpu.take_rows(2, span, span, span, 0, 9).unwrap();
        gpu.stack_vectors(span, &[], 9).unwrap();
        gpu.element_function(DType::Bf16, span, ElementFunction::Tanh, 0)
            .unwrap();
        let product = Matmul {
            out: span,
            out_is_f32: true,
            x: span,
            weights: span,
            rows: 0,
            outputs: 0,
            out_stride: 0,
            width: 256,
            accumulate: false,
        };
        gpu.matmul(DType::F32, Format::Q6K, product).unwrap();
        none.read::<u8>(gpu);
    });
}
