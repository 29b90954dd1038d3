//! Gradients, against sums in `f64`.

use sluice_cuda::{
    ATTEND_BACKWARD_FLOATS, ATTEND_BACKWARD_ROWS, AttentionBackwardArgs, AttentionBackwardTask,
    CrossEntropyState, Gpu, TransposedMatmul,
};
use sluice_formats::{DType, Format};

use super::{
    formats::Random,
    support::{Buffer, assert_close, elements, narrow, on_gpu, rounding},
};

/// Queries and keys of a sequence, and how many keys up to its own a query sees.
struct Sequence {
    queries: [usize; 2],
    keys: [usize; 2],
    window: Option<usize>,
}

impl Sequence {
    fn sees(&self, query: usize, key: usize) -> bool {
        self.window
            .is_none_or(|window| key <= query && key + window > query)
    }

    /// The tasks of one side, which begins at `own`.
    fn tasks(
        &self,
        own: [usize; 2],
        other: [usize; 2],
        near: [usize; 2],
    ) -> Vec<AttentionBackwardTask> {
        let starts = (0..own[1]).step_by(ATTEND_BACKWARD_ROWS);
        let [before, after] = match self.window {
            Some(_) => near.map(|near| near as u32),
            None => [u32::MAX; 2],
        };
        let tasks = starts.map(|index| AttentionBackwardTask {
            own_start: (own[0] + index) as u32,
            own_count: ATTEND_BACKWARD_ROWS.min(own[1] - index) as u32,
            own_index: index as u32,
            other_start: other[0] as u32,
            other_count: other[1] as u32,
            before,
            after,
        });
        tasks.collect()
    }
}

fn check_attention(
    gpu: &Gpu,
    random: &mut Random,
    number: DType,
    (heads, kv_heads, dim): (usize, usize, usize),
    sequences: &[Sequence],
) {
    let (rows, keys) = (130, 130);
    let [q, k, v] = [(rows, heads), (keys, kv_heads), (keys, kv_heads)]
        .map(|(rows, heads)| elements(random, number, rows * heads * dim));
    let d_out = elements(random, DType::F32, rows * heads * dim);
    // In f64, sequence by sequence; rows of none stay as they are.
    let mut expected = [q.len(), k.len(), v.len()].map(|len| vec![f64::NAN; len]);
    for sequence in sequences {
        let ([q_start, q_len], [k_start, k_len]) = (sequence.queries, sequence.keys);
        for key in k_start..k_start + k_len {
            for gradient in &mut expected[1..] {
                gradient[key * kv_heads * dim..(key + 1) * kv_heads * dim].fill(0.0);
            }
        }
        for (query, head) in (0..q_len).flat_map(|query| (0..heads).map(move |head| (query, head)))
        {
            let of_query = ((q_start + query) * heads + head) * dim;
            let of_key = |key: usize| ((k_start + key) * kv_heads + head * kv_heads / heads) * dim;
            let dot = |a: &[f32], b: &[f32]| -> f64 {
                let products = a[..dim].iter().zip(b);
                products.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
            };
            let scale = (dim as f64).sqrt().recip();
            let seen: Vec<_> = (0..k_len)
                .filter(|&key| sequence.sees(query, key))
                .collect();
            let each = |matrix: &[f32], rows: &[f32]| -> Vec<f64> {
                seen.iter()
                    .map(|&key| dot(&rows[of_query..], &matrix[of_key(key)..]))
                    .collect()
            };
            let weights: Vec<_> = each(&k, &q)
                .iter()
                .map(|score| (score * scale).exp())
                .collect();
            let sum: f64 = weights.iter().sum();
            let slopes = each(&v, &d_out);
            let mean: f64 = weights.iter().zip(&slopes).map(|(a, b)| a / sum * b).sum();
            expected[0][of_query..of_query + dim].fill(0.0);
            for ((&key, weight), slope) in seen.iter().zip(&weights).zip(&slopes) {
                let weight = weight / sum;
                let slope = weight * (slope - mean) * scale;
                for i in 0..dim {
                    expected[0][of_query + i] += slope * f64::from(k[of_key(key) + i]);
                    expected[1][of_key(key) + i] += slope * f64::from(q[of_query + i]);
                    expected[2][of_key(key) + i] += weight * f64::from(d_out[of_query + i]);
                }
            }
        }
    }
    let of_queries: Vec<_> = (sequences.iter())
        .flat_map(|all| all.tasks(all.queries, all.keys, [all.window.unwrap_or(1) - 1, 0]))
        .collect();
    let of_keys: Vec<_> = (sequences.iter())
        .flat_map(|all| all.tasks(all.keys, all.queries, [0, all.window.unwrap_or(1) - 1]))
        .collect();
    let inputs = [&q, &k, &v].map(|values| Buffer::of_elements(gpu, number, values));
    let found = [&q, &k, &v].map(|values| Buffer::new(gpu, values.len() * 4));
    let back = Buffer::of(gpu, &d_out);
    let weights = Buffer::new(gpu, rows * heads * ATTEND_BACKWARD_FLOATS * 4);
    let tasks = [&of_queries, &of_keys].map(|tasks| Buffer::of(gpu, tasks));
    let args = AttentionBackwardArgs {
        found: found.each_ref().map(Buffer::span),
        weights: weights.span(),
        inputs: inputs.each_ref().map(Buffer::span),
        d_out: back.span(),
        tasks: tasks.each_ref().map(Buffer::span),
        task_counts: [of_queries.len(), of_keys.len()],
        heads,
        kv_heads,
        head_dim: dim,
    };
    gpu.attend_backward(number, args).unwrap();
    for (which, (found, expected)) in found.iter().zip(&expected).enumerate() {
        for (at, (found, expected)) in found.read::<f32>(gpu).into_iter().zip(expected).enumerate()
        {
            match expected.is_nan() {
                true => assert!(found.is_nan(), "a row of no task"),
                false => assert_close(found, *expected, 2e-5, || {
                    format!("{} {dim}: {which} at {at}", number.name())
                }),
            }
        }
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn through_attention() {
    let alike = |start, len, window| Sequence {
        queries: [start, len],
        keys: [start, len],
        window: Some(window),
    };
    let windows = [alike(0, 50, 20), alike(50, 1, 3), alike(51, 70, 64)];
    let latents =
        [(0, 40, 0, 7), (40, 3, 7, 100), (45, 33, 110, 1)].map(|(q, len, k, count)| Sequence {
            queries: [q, len],
            keys: [k, count],
            window: None,
        });
    on_gpu(|gpu| {
        let mut random = Random::new(21);
        for number in DType::ALL {
            for shape in [(2, 1, 18), (1, 1, 64), (4, 2, 66), (1, 1, 256)] {
                check_attention(gpu, &mut random, number, shape, &windows);
                check_attention(gpu, &mut random, number, shape, &latents);
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn through_products() {
    on_gpu(|gpu| {
        let mut random = Random::new(22);
        for number in DType::ALL {
            for (rows, outputs, depth, more) in [(1, 1, 1, 0), (70, 65, 33, 5), (5, 130, 200, 0)] {
                for stored in DType::ALL {
                    let x = elements(&mut random, number, rows * (depth + more));
                    let weights = elements(&mut random, stored, depth * outputs);
                    let before = elements(&mut random, DType::F32, rows * outputs);
                    let (x_there, weights_there) = (
                        Buffer::of_elements(gpu, number, &x),
                        Buffer::of_elements(gpu, stored, &weights),
                    );
                    for (accumulate, by_kernel) in [(false, true), (true, true), (true, false)] {
                        let out = match accumulate {
                            true => Buffer::of(gpu, &before),
                            false => Buffer::new(gpu, rows * outputs * 4),
                        };
                        let product = TransposedMatmul {
                            out: out.span(),
                            x: x_there.span(),
                            x_stride: depth + more,
                            weights: weights_there.span(),
                            rows,
                            outputs,
                            depth,
                            accumulate,
                        };
                        let format = Format::from(stored);
                        match by_kernel {
                            true => gpu.matmul_transposed_by_kernel(number, format, product),
                            false => gpu.matmul_transposed(number, format, product),
                        }
                        .unwrap();
                        for (at, found) in out.read::<f32>(gpu).into_iter().enumerate() {
                            let (row, output) = (at / outputs, at % outputs);
                            let products = (0..depth).map(|k| {
                                let x = x[row * (depth + more) + k];
                                f64::from(x) * f64::from(weights[k * outputs + output])
                            });
                            let sum: f64 = products.sum();
                            let expected = sum
                                + if accumulate {
                                    f64::from(before[at])
                                } else {
                                    0.0
                                };
                            assert_close(found, expected, 2e-5, || {
                                format!("{} at {at}", number.name())
                            });
                        }
                    }
                }
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn through_norms_and_gates() {
    on_gpu(|gpu| {
        let mut random = Random::new(23);
        let (rows, width, epsilon) = (3, 300, 1e-5);
        let [d_x, x, d_out] = [0; 3].map(|_| elements(&mut random, DType::F32, rows * width));
        for stored in DType::ALL {
            let weight = elements(&mut random, stored, width);
            let out = Buffer::of(gpu, &d_x);
            let inputs = [&x, &d_out].map(|values| Buffer::of(gpu, values));
            let weight_there = Buffer::of_elements(gpu, stored, &weight);
            gpu.rms_norm_backward(
                out.span(),
                inputs.each_ref().map(Buffer::span),
                (weight_there.span(), stored.into()),
                rows,
                width,
                epsilon,
            )
            .unwrap();
            for (at, found) in out.read::<f32>(gpu).into_iter().enumerate() {
                let row = at / width * width..(at / width + 1) * width;
                let values = || x[row.clone()].iter().map(|x| f64::from(*x));
                let squares: f64 = values().map(|x| x * x).sum();
                let inverse = (squares / width as f64 + f64::from(epsilon)).sqrt().recip();
                let scaled = |i: usize| f64::from(d_out[row.start + i]) * f64::from(weight[i]);
                let products: f64 = values().enumerate().map(|(i, x)| x * scaled(i)).sum();
                let along = products * inverse.powi(3) / width as f64;
                let i = at - row.start;
                let expected = f64::from(d_x[at]) + scaled(i) * inverse - f64::from(x[at]) * along;
                assert_close(found, expected, 3e-6, || format!("norm at {at}"));
            }
        }
        for number in DType::ALL {
            let count = 700;
            let [gate, up] = [0; 2].map(|_| elements(&mut random, number, count));
            let d_out = elements(&mut random, DType::F32, count);
            let there = [&gate, &up].map(|values| Buffer::of_elements(gpu, number, values));
            let back = Buffer::of(gpu, &d_out);
            gpu.silu_mul_backward(
                number,
                there.each_ref().map(Buffer::span),
                back.span(),
                count,
            )
            .unwrap();
            let found = there.map(|there| there.read_elements(gpu, number));
            for at in 0..count {
                let [gate, up, d] = [gate[at], up[at], d_out[at]].map(f64::from);
                let share = 1.0 / (1.0 + (-gate).exp());
                let expected = [
                    d * up * (share + gate * share * (1.0 - share)),
                    d * gate * share,
                ];
                for (found, expected) in [found[0][at], found[1][at]].into_iter().zip(expected) {
                    let tolerance = expected.abs() * rounding(number) + 5e-7;
                    assert_close(found, expected, tolerance, || format!("gate at {at}"));
                }
            }
        }
    });
}

/// In pieces, of which a later one has the largest logit.
#[test]
#[ignore = "on the stand-in: cargo ci"]
fn through_the_lm_head() {
    on_gpu(|gpu| {
        let mut random = Random::new(24);
        let (rows, width, vocabulary, cut) = (4, 300, 700, 300);
        for stored in DType::ALL {
            let head = elements(&mut random, stored, vocabulary * width);
            let logits: Vec<f32> = (0..rows * vocabulary)
                .map(|at| {
                    random.between(-9.0, 9.0) + if at % vocabulary > 500 { 20.0 } else { 0.0 }
                })
                .collect();
            let targets = [0_u32, 299, 300, 699];
            let head_there = Buffer::of_elements(gpu, stored, &head);
            let targets_there = Buffer::of(gpu, &targets);
            let states = Buffer::of(gpu, &vec![CrossEntropyState::START; rows]);
            let weighted = Buffer::of(gpu, &vec![0.0_f32; rows * width]);
            let own = Buffer::new(gpu, rows * width * 4);
            for piece in [0..cut, cut..vocabulary] {
                let columns = piece.len();
                let values: Vec<f32> = (0..rows)
                    .flat_map(|row| &logits[row * vocabulary..][piece.clone()])
                    .copied()
                    .collect();
                let there = Buffer::of(gpu, &values);
                let part = head_there.span().part(
                    piece.start * width * stored.bytes(),
                    columns * width * stored.bytes(),
                );
                gpu.weigh_logits(
                    states.span(),
                    (there.span(), columns),
                    (weighted.span(), width),
                    targets_there.span(),
                    rows,
                    piece.start,
                )
                .unwrap();
                let product = TransposedMatmul {
                    out: weighted.span(),
                    x: there.span(),
                    x_stride: columns,
                    weights: part,
                    rows,
                    outputs: width,
                    depth: columns,
                    accumulate: true,
                };
                gpu.matmul_transposed(DType::F32, stored.into(), product)
                    .unwrap();
                gpu.take_targets(
                    own.span(),
                    targets_there.span(),
                    (part, stored.into()),
                    (piece.start, columns),
                    rows,
                    width,
                )
                .unwrap();
            }
            gpu.finish_cross_entropy(weighted.span(), own.span(), states.span(), rows, width)
                .unwrap();
            let found = weighted.read::<f32>(gpu);
            for (row, state) in states
                .read::<CrossEntropyState>(gpu)
                .into_iter()
                .enumerate()
            {
                let own = &logits[row * vocabulary..][..vocabulary];
                let weights: Vec<f64> = own.iter().map(|&logit| f64::from(logit).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let target = targets[row] as usize;
                let loss = f64::from(state.max) + state.sum.ln() - f64::from(state.target_logit);
                let expected = sum.ln() - f64::from(own[target]);
                assert!((loss - expected).abs() < 1e-5, "{loss} for {expected}");
                for i in 0..width {
                    let mean: f64 = (weights.iter().enumerate())
                        .map(|(token, weight)| weight / sum * f64::from(head[token * width + i]))
                        .sum();
                    let expected = mean - f64::from(narrow(stored, head[target * width + i]));
                    assert_close(found[row * width + i], expected, 1e-5, || {
                        format!("{row}, {i}")
                    });
                }
            }
        }
    });
}
