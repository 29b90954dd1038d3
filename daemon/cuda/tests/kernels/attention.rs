//! Attention, against sums in `f64`.

use sluice_cuda::{ATTEND_QUERIES, Attend, Gpu, Number, Segment, Task};

use crate::{
    formats::Random,
    support::{Buffer, assert_close, narrow, numbers, on_card},
};

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
