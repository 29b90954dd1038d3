//! RWKV-7's kernels against plain loops in `f64`, with states between poison: runs of one row and of several blocks of
//! tokens, more runs than a launch takes, and runs that go on from others.

use std::ops::Range;

use sluice_cuda::{Gpu, GpuSpan, StateRun, TIME_MIX_HEAD_DIM, TimeMixArgs};
use sluice_formats::DType;

use super::{
    formats::Random,
    support::{Buffer, assert_close, elements, narrow, on_gpu, rounding},
};

/// Rows of so many each, one run after another.
fn rows_of(lens: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    let next = |len| {
        end += len;
        end - len..end
    };
    lens.iter().copied().map(next).collect()
}

/// The rows of runs and the vectors that go before them.
struct Shift {
    x: Vec<f32>,
    shares: Vec<f32>,
    kept: Vec<Vec<f32>>,
    width: usize,
}

impl Shift {
    fn new(random: &mut Random, number: DType, rows: usize, width: usize, runs: usize) -> Self {
        Self {
            x: elements(random, number, rows * width),
            shares: elements(random, DType::F32, width),
            kept: (0..runs)
                .map(|_| elements(random, DType::F32, width))
                .collect(),
            width,
        }
    }

    /// `follows` says which runs go on from the row before.
    fn check(&self, gpu: &Gpu, number: DType, runs: &[Range<usize>], follows: &[usize]) {
        let width = self.width;
        let x = Buffer::of_elements(gpu, number, &self.x);
        let shares = Buffer::of(gpu, &self.shares);
        let kept: Vec<_> = self.kept.iter().map(|kept| Buffer::of(gpu, kept)).collect();
        let after: Vec<_> = runs.iter().map(|_| Buffer::new(gpu, width * 4)).collect();
        let there: Vec<_> = (runs.iter().enumerate())
            .map(|(index, rows)| StateRun {
                rows: rows.clone(),
                before: (!follows.contains(&index)).then(|| kept[index].span()),
                after: after[index].span(),
            })
            .collect();
        let all = runs.last().map_or(0, |run| run.end);
        // All rows, one at each end left out, and a single one.
        for rows in [0..all, 1..all - 1, all - 1..all, 3..3] {
            let out = Buffer::new(gpu, rows.len() * width * number.bytes());
            let (from, to) = (shares.span(), out.span());
            gpu.shift_mix(number, to, x.span(), from, rows.clone(), width, &there)
                .unwrap();
            for (i, found) in out.read_elements(gpu, number).into_iter().enumerate() {
                let (row, column) = (rows.start + i / width, i % width);
                let run = runs.iter().position(|run| run.contains(&row)).unwrap();
                let before = match row == runs[run].start && !follows.contains(&run) {
                    true => self.kept[run][column],
                    false => self.x[(row - 1) * width + column],
                };
                let value = self.x[row * width + column];
                let expected = narrow(number, value + (before - value) * self.shares[column]);
                assert_eq!(found, expected, "row {row} of {rows:?}, {}", number.name());
            }
        }
        gpu.keep_inputs(number, x.span(), width, &there).unwrap();
        for (rows, after) in runs.iter().zip(&after) {
            let last = &self.x[(rows.end - 1) * width..rows.end * width];
            assert_eq!(after.read::<f32>(gpu), last);
        }
        for (kept, there) in self.kept.iter().zip(&kept) {
            assert_eq!(&there.read::<f32>(gpu), kept, "read only");
        }
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn rows_are_mixed_with_those_before_them() {
    on_gpu(|gpu| {
        let mut random = Random::new(31);
        for number in DType::ALL {
            for (lens, width, follows) in [
                (vec![5], 1, vec![]),
                (vec![1, 1, 7, 2], 257, vec![2]),
                (vec![3, 40, 1], 64, vec![1, 2]),
                // Two launches and a part of a third.
                ([1, 2].repeat(35), 65, vec![32, 33]),
            ] {
                let runs = rows_of(&lens);
                let all = lens.iter().sum();
                let shift = Shift::new(&mut random, number, all, width, runs.len());
                shift.check(gpu, number, &runs, &follows);
            }
        }
    });
}

#[test]
#[should_panic(expected = "runs lack row 4")]
#[ignore = "on the stand-in: cargo ci"]
fn rows_of_no_run_are_refused() {
    on_gpu(|gpu| {
        let memory = Buffer::new(gpu, 1024);
        let span = memory.span();
        let run = |rows| StateRun {
            rows,
            before: Some(span),
            after: span,
        };
        let runs = [run(0..4), run(5..9)];
        gpu.shift_mix(DType::F32, span, span, span, 2..8, 4, &runs)
            .unwrap();
    });
}

const DIM: usize = TIME_MIX_HEAD_DIM;

/// What a time mix reads, on the CPU.
struct Mix {
    /// Receptance, decay, key, value, learning rate, gate, first value, share of it.
    rows: [Vec<f32>; 8],
    vectors: Vec<f32>,
    heads: usize,
    has_first: bool,
}

const EPSILON: f32 = 64e-5;

impl Mix {
    fn new(random: &mut Random, number: DType, rows: usize, heads: usize, has_first: bool) -> Self {
        let width = heads * DIM;
        let count = if has_first { 8 } else { 7 };
        Self {
            rows: [3.0, 6.0, 2.0, 2.0, 4.0, 1.0, 2.0, 3.0].map(|size: f32| {
                let values = elements(random, number, rows * width).into_iter();
                values.map(|value| narrow(number, value * size)).collect()
            }),
            vectors: elements(random, DType::F32, count * width),
            heads,
            has_first,
        }
    }

    /// The output of rows, and their state after them, which was `state` before.
    fn expected(&self, rows: Range<usize>, state: &mut [f64]) -> Vec<f64> {
        let width = self.heads * DIM;
        let mut out = Vec::new();
        for row in rows {
            for head in 0..self.heads {
                let state = &mut state[head * DIM * DIM..][..DIM * DIM];
                let of = |input: usize, channel: usize| {
                    f64::from(self.rows[input][row * width + head * DIM + channel])
                };
                let vector = |input: usize, channel: usize| {
                    f64::from(self.vectors[input * width + head * DIM + channel])
                };
                let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
                let channels = || 0..DIM;
                let rate: Vec<_> = channels()
                    .map(|c| sigmoid(of(4, c) + vector(1, c)))
                    .collect();
                let decay: Vec<_> = channels()
                    .map(|c| (-(-0.5f64).exp() * sigmoid(of(1, c) + vector(0, c))).exp())
                    .collect();
                let scaled: Vec<_> = channels().map(|c| of(2, c) * vector(2, c)).collect();
                let length = scaled.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
                let key: Vec<_> = channels()
                    .map(|c| of(2, c) * (1.0 + (rate[c] - 1.0) * vector(3, c)))
                    .collect();
                let value: Vec<_> = channels()
                    .map(|c| match self.has_first {
                        true => {
                            let share = sigmoid(of(7, c) + vector(7, c));
                            of(3, c) + (of(6, c) - of(3, c)) * share
                        }
                        false => of(3, c),
                    })
                    .collect();
                let mut y = vec![0.0; DIM];
                for column in channels() {
                    let removed: f64 = channels()
                        .map(|k| state[k * DIM + column] * -scaled[k] / length)
                        .sum();
                    for k in channels() {
                        let at = &mut state[k * DIM + column];
                        let replaced = removed * scaled[k] / length * rate[k];
                        *at = *at * decay[k] + value[column] * key[k] + replaced;
                        y[column] += *at * of(0, k);
                    }
                }
                let mean = y.iter().sum::<f64>() / DIM as f64;
                let squares: f64 = y.iter().map(|y| (y - mean).powi(2)).sum();
                let inverse = (squares / DIM as f64 + f64::from(EPSILON)).sqrt().recip();
                let present: f64 = channels().map(|c| of(0, c) * key[c] * vector(4, c)).sum();
                out.extend(channels().map(|c| {
                    let normed = (y[c] - mean) * inverse * vector(5, c) + vector(6, c);
                    (normed + present * value[c]) * of(5, c)
                }));
            }
        }
        out
    }

    fn check(&self, gpu: &Gpu, number: DType, random: &mut Random, runs: &[Range<usize>]) {
        let width = self.heads * DIM;
        let all = self.rows[0].len() / width;
        let rows: Vec<_> = (self.rows.iter())
            .map(|rows| Buffer::of_elements(gpu, number, rows))
            .collect();
        let vectors = Buffer::of(gpu, &self.vectors);
        let out = Buffer::new(gpu, all * width * number.bytes());
        let states: Vec<_> = (runs.iter())
            .map(|_| elements(random, DType::F32, width * DIM))
            .collect();
        let before: Vec<_> = states.iter().map(|state| Buffer::of(gpu, state)).collect();
        let after: Vec<_> = runs
            .iter()
            .map(|_| Buffer::new(gpu, width * DIM * 4))
            .collect();
        let there: Vec<_> = (runs.iter().zip(before.iter().zip(&after)))
            .map(|(rows, (before, after))| StateRun {
                rows: rows.clone(),
                before: Some(before.span()),
                after: after.span(),
            })
            .collect();
        let span = |input: usize| rows[input].span();
        let mix = TimeMixArgs {
            out: out.span(),
            receptance: span(0),
            decay: span(1),
            key: span(2),
            value: span(3),
            learning_rate: span(4),
            gate: span(5),
            first_value: self.has_first.then(|| [span(6), span(7)]),
            vectors: vectors.span(),
            heads: self.heads,
            epsilon: EPSILON,
        };
        gpu.time_mix(number, &mix, &there).unwrap();
        let found = out.read_elements(gpu, number);
        for (index, rows) in runs.iter().enumerate() {
            let mut state: Vec<_> = states[index].iter().map(|&x| f64::from(x)).collect();
            let expected = self.expected(rows.clone(), &mut state);
            let found = &found[rows.start * width..rows.end * width];
            for (i, (&found, expected)) in found.iter().zip(expected).enumerate() {
                let tolerance = expected.abs() * rounding(number) + 5e-5 * (1.0 + expected.abs());
                assert_close(found, expected, tolerance, || {
                    format!("{} run {index}, element {i}", number.name())
                });
            }
            let found = after[index].read::<f32>(gpu);
            let largest = state.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            for (i, (&found, expected)) in found.iter().zip(state).enumerate() {
                assert_close(found, expected, 1e-5 * largest, || {
                    format!("{} run {index}, state {i}", number.name())
                });
            }
            assert_eq!(before[index].read::<f32>(gpu), states[index], "read only");
        }
        // Rows of no run.
        let none = (0..all).filter(|row| !runs.iter().any(|run| run.contains(row)));
        for row in none {
            assert!(found[row * width..][..width].iter().all(|x| x.is_nan()));
        }
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn heads_go_through_their_tokens() {
    on_gpu(|gpu| {
        let mut random = Random::new(32);
        for number in DType::ALL {
            for (lens, heads, has_first) in [
                (vec![1], 1, false),
                (vec![8], 1, true),
                (vec![7, 1, 9, 27], 3, true),
                (vec![16, 2], 2, false),
            ] {
                let all = lens.iter().sum();
                let mix = Mix::new(&mut random, number, all, heads, has_first);
                mix.check(gpu, number, &mut random, &rows_of(&lens));
            }
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn more_runs_than_a_launch_takes_and_rows_of_none() {
    on_gpu(|gpu| {
        let mut random = Random::new(33);
        let mut runs = rows_of(&[1, 2].repeat(17));
        runs.remove(5);
        let mix = Mix::new(&mut random, DType::F32, 51, 1, true);
        mix.check(gpu, DType::F32, &mut random, &runs);
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn a_key_of_zeros_removes_nothing() {
    on_gpu(|gpu| {
        let mut random = Random::new(34);
        let mut mix = Mix::new(&mut random, DType::F32, 3, 1, false);
        mix.rows[2].fill(0.0);
        mix.check(gpu, DType::F32, &mut random, &rows_of(&[3]));
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn nothing_is_sent_without_runs_or_rows() {
    on_gpu(|gpu| {
        let none = Buffer::new(gpu, 0);
        let span: GpuSpan = none.span();
        gpu.shift_mix(DType::F32, span, span, span, 0..0, 0, &[])
            .unwrap();
        gpu.keep_inputs(DType::F32, span, 64, &[]).unwrap();
        let mix = TimeMixArgs {
            out: span,
            receptance: span,
            decay: span,
            key: span,
            value: span,
            learning_rate: span,
            gate: span,
            first_value: None,
            vectors: span,
            heads: 0,
            epsilon: EPSILON,
        };
        gpu.time_mix(DType::F16, &mix, &[]).unwrap();
        none.read::<u8>(gpu);
    });
}
