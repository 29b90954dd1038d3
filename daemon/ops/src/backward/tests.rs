//! Gradients against differences of the operations themselves.

use sluice_formats::{DType, Format, noise::Noise};
use sluice_weights::{Rope, WeightData};

use super::*;
use crate::{AttentionKeys, AttentionRange, KeyRows, KeySegment, device::Device, ledger::Ledger};

fn ops() -> Ops {
    Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap()
}

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let noise = Noise::new(seed);
    (0..count)
        .map(|i| 2.0 * noise.uniform(0, i as u64, 0) as f32 - 1.0)
        .collect()
}

fn matrix(ops: &Ops, rows: usize, values: &[f32]) -> Activation {
    ops.matrix(rows, values.len() / rows, values, DType::F32)
        .unwrap()
}

fn vector(values: &[f32]) -> Weight<'_> {
    Weight {
        format: Format::F32,
        rows: 1,
        width: values.len(),
        data: WeightData::Host(bytemuck::cast_slice(values)),
        weights_version: 0,
    }
}

/// Compares gradients of `Σ out · direction` with differences: `run` computes the outputs for some inputs.
fn check(inputs: &[f32], direction: &[f32], found: &[f32], run: &dyn Fn(&[f32]) -> Vec<f32>) {
    let value = |inputs: &[f32]| -> f64 {
        let out = run(inputs);
        let terms = out.iter().zip(direction);
        terms.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    // Every seventh input, and the last.
    for place in (0..inputs.len()).step_by(7).chain([inputs.len() - 1]) {
        let step = 4e-3;
        let at = |sign: f32| {
            let mut moved = inputs.to_vec();
            moved[place] += sign * step;
            value(&moved)
        };
        let slope = (at(1.0) - at(-1.0)) / f64::from(2.0 * step);
        let difference = (slope - f64::from(found[place])).abs();
        assert!(difference < 4e-3, "{place}: {} for {slope}", found[place]);
    }
}

#[test]
fn through_a_norm() {
    let ops = ops();
    let (rows, width, epsilon) = (3, 37, 1e-5);
    let (x, scale, d) = (
        numbers(rows * width, 1),
        numbers(width, 2),
        numbers(rows * width, 3),
    );
    let norm = |x: &[f32]| {
        let out = ops.rms_norm(&matrix(&ops, rows, x), 0..rows, &vector(&scale), epsilon);
        out.unwrap().values().to_vec()
    };
    // What is there is added to.
    let mut d_x = matrix(&ops, rows, &vec![5.0; rows * width]);
    let (there, back) = (matrix(&ops, rows, &x), matrix(&ops, rows, &d));
    ops.rms_norm_backward(&mut d_x, &there, &back, &vector(&scale), epsilon)
        .unwrap();
    let found: Vec<f32> = d_x.values().iter().map(|value| value - 5.0).collect();
    check(&x, &d, &found, &norm);
}

#[test]
fn through_a_gate() {
    let ops = ops();
    let (gate, up, d) = (numbers(60, 1), numbers(60, 2), numbers(60, 3));
    let [mut d_gate, mut d_up] = [&gate, &up].map(|values| matrix(&ops, 2, values));
    ops.silu_mul_backward(&mut d_gate, &mut d_up, &matrix(&ops, 2, &d))
        .unwrap();
    let run = |gate: &[f32], up: &[f32]| {
        let mut out = matrix(&ops, 2, gate);
        ops.silu_mul(&mut out, &matrix(&ops, 2, up)).unwrap();
        out.values().to_vec()
    };
    check(&gate, &d, d_gate.values(), &|gate| run(gate, &up));
    check(&up, &d, d_up.values(), &|up| run(&gate, up));
}

#[test]
fn a_rotation_is_undone() {
    let ops = ops();
    for rope in [
        Rope::plain(10_000.0, 12),
        Rope {
            pairs: sluice_weights::RopePairs::Interleaved,
            ..Rope::plain(10_000.0, 12)
        },
    ] {
        let table = RopeTable::new(&rope, 50, &ops).unwrap();
        let values = numbers(4 * 24, 1);
        let mut x = matrix(&ops, 4, &values);
        let positions = ops.indices([0, 3, 17, 49]).unwrap();
        ops.rope([(&mut x, &positions)], &table).unwrap();
        let moved = x.values().iter().zip(&values);
        assert!(moved.clone().any(|(a, b)| (a - b).abs() > 0.1));
        ops.rope_backward(&mut x, &positions, &table).unwrap();
        assert!(
            x.values()
                .iter()
                .zip(&values)
                .all(|(a, b)| (a - b).abs() < 1e-6)
        );
    }
}

/// Two sequences beside each other: within windows, and all queries to the same few keys.
#[test]
fn through_attention() {
    let ops = ops();
    let shape = AttentionShape {
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        is_scaled: true,
    };
    let (queries, kv) = (4 * 8, 2 * 8);
    for (window, lengths) in [(Some(5), [90, 13]), (None, [7, 70])] {
        let rows: usize = lengths.iter().sum();
        let keys_of = |index: usize| match window {
            Some(_) => lengths[..index].iter().sum()..lengths[..=index].iter().sum(),
            None => 3 * index..3 * index + 3,
        };
        let ranges: Vec<BackwardRange> = (0..2)
            .map(|index| BackwardRange {
                queries: lengths[..index].iter().sum()..lengths[..=index].iter().sum(),
                keys: keys_of(index),
                window,
            })
            .collect();
        let keys = ranges[1].keys.end;
        let inputs = [
            numbers(rows * queries, 1),
            numbers(keys * kv, 2),
            numbers(keys * kv, 3),
        ];
        let d = numbers(rows * queries, 4);
        let run = |inputs: [&[f32]; 3]| {
            let [q, k, v] = [rows, keys, keys]
                .into_iter()
                .zip(inputs)
                .map(|(rows, values)| matrix(&ops, rows, values))
                .collect::<Vec<_>>()
                .try_into()
                .unwrap_or_else(|_| unreachable!());
            let tasks = ranges.iter().map(|range| AttentionRange {
                queries: range.queries.clone(),
                keys: match window {
                    Some(window) => AttentionKeys::PassWindow {
                        rows: range.keys.clone(),
                        window,
                    },
                    None => AttentionKeys::Pass(vec![KeySegment {
                        start: range.keys.start,
                        len: range.keys.len(),
                    }]),
                },
            });
            let tasks = ops.attention_tasks(tasks.collect()).unwrap();
            let pass = KeyRows {
                pass: Some([&k, &v]),
                caches: &[],
                layer: 0,
            };
            let out = ops.attend(&q, &pass, shape, &tasks).unwrap();
            out.values().to_vec()
        };
        let [q, k, v] = [rows, keys, keys]
            .into_iter()
            .zip(&inputs)
            .map(|(rows, values)| matrix(&ops, rows, values))
            .collect::<Vec<_>>()
            .try_into()
            .unwrap_or_else(|_| unreachable!());
        let back = matrix(&ops, rows, &d);
        let tasks = ops.backward_tasks(ranges.clone()).unwrap();
        let found = ops.attend_backward([&q, &k, &v], &back, shape, &tasks);
        for (which, found) in found.unwrap().iter().enumerate() {
            check(&inputs[which], &d, found.values(), &|moved| {
                let mut all = inputs.each_ref().map(Vec::as_slice);
                all[which] = moved;
                run(all)
            });
        }
    }
}

#[test]
fn of_cross_entropies_in_parts() {
    let ops = ops();
    let (rows, width, vocabulary) = (4, 24, 50);
    let (x, head) = (
        numbers(rows * width, 1)
            .iter()
            .map(|x| 3.0 * x)
            .collect::<Vec<_>>(),
        numbers(vocabulary * width, 2),
    );
    let targets = [0, 49, 20, 19];
    let weight = Weight {
        rows: vocabulary,
        width,
        ..vector(&head)
    };
    let run = |x: &[f32]| {
        let x = matrix(&ops, rows, x);
        let mut all = ops.start_cross_entropy(&targets, width).unwrap();
        for (from, to) in [(0, 20), (20, 23), (23, 50)] {
            ops.add_cross_entropy(&mut all, &x, &weight.rows(from, to), from)
                .unwrap();
        }
        ops.finish_cross_entropy(all)
    };
    let (losses, gradient) = run(&x).unwrap();
    for (row, loss) in losses.iter().enumerate() {
        let logits: Vec<f64> = (head.chunks_exact(width))
            .map(|head| {
                let terms = head.iter().zip(&x[row * width..]);
                terms.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
            })
            .collect();
        let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
        let expected = sum.ln() - logits[targets[row] as usize];
        assert!((loss - expected).abs() < 1e-4, "{loss} for {expected}");
    }
    check(&x, &vec![1.0; rows], gradient.values(), &|x| {
        run(x).unwrap().0.iter().map(|&loss| loss as f32).collect()
    });
}
