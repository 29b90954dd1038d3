//! What queries pay attention to, against sums in `f64`, and rows that are moved together.

use sluice_cuda::{AttentionSegment, Gpu, SalienceArgs, SalienceScratch};
use sluice_formats::DType;

use super::{
    formats::Random,
    support::{Buffer, assert_close, elements, narrow, on_gpu},
};

const ROWS: usize = 310;

/// The sums for these segments of keys, against sums in `f64`.
fn check_salience(
    gpu: &Gpu,
    random: &mut Random,
    number: DType,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    queries: usize,
    segments: &[(usize, usize)],
) {
    // Scores of some size, so that the largest is not always the first.
    let q: Vec<f32> = elements(random, number, queries * heads * head_dim)
        .into_iter()
        .map(|x| narrow(number, 3.0 * x))
        .collect();
    let k = elements(random, number, ROWS * kv_heads * head_dim);
    let rows: Vec<usize> = (segments.iter())
        .flat_map(|&(start, len)| start..start + len)
        .collect();
    let there: Vec<AttentionSegment> = (segments.iter())
        .map(|&(start, len)| AttentionSegment {
            start: start as u32,
            len: len as u32,
        })
        .collect();
    let sizes = SalienceScratch {
        heads,
        queries,
        keys: rows.len(),
    };
    let out = Buffer::new(gpu, rows.len() * 4);
    let scratch = Buffer::new(gpu, sizes.bytes());
    let (q_there, k_there, segments_there) = (
        Buffer::of_elements(gpu, number, &q),
        Buffer::of_elements(gpu, number, &k),
        Buffer::of(gpu, &there),
    );
    let salience = SalienceArgs {
        out: out.span(),
        scratch: scratch.span(),
        q: q_there.span(),
        k: k_there.span(),
        segments: segments_there.span(),
        segment_count: segments.len(),
        sizes,
        kv_heads,
        head_dim,
    };
    gpu.salience(number, salience).unwrap();
    let found = out.read_elements(gpu, DType::F32);
    scratch.read::<u8>(gpu);

    let mut expected = vec![0.0; rows.len()];
    for query in 0..queries {
        for head in 0..heads {
            let q = &q[(query * heads + head) * head_dim..][..head_dim];
            let weights = rows.iter().map(|row| {
                let k = &k[(row * kv_heads + head * kv_heads / heads) * head_dim..];
                let products = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k));
                (products.sum::<f64>() / (head_dim as f64).sqrt()).exp()
            });
            let weights: Vec<f64> = weights.collect();
            let total: f64 = weights.iter().sum();
            for (sum, weight) in expected.iter_mut().zip(&weights) {
                *sum += weight / total;
            }
        }
    }
    for (index, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
        // Elements are upcast exactly, whatever they are.
        assert_close(found, expected, 1e-5 * (1.0 + expected), || {
            format!("{} {head_dim}, key {index}", number.name())
        });
    }
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn what_queries_pay_attention_to() {
    on_gpu(|gpu| {
        let mut random = Random::new(12);
        let segments: [&[(usize, usize)]; 4] = [
            &[(0, ROWS)],
            &[(5, 100), (150, 1), (160, 140)],
            &[(7, 0), (9, 1), (20, 0)],
            &[(40, 128)],
        ];
        for number in DType::ALL {
            for (shape, queries) in [
                ((1, 1, 2), 1),
                ((4, 2, 10), 19),
                ((2, 2, 64), 8),
                ((3, 1, 66), 9),
                ((2, 1, 256), 5),
            ] {
                for segments in segments {
                    check_salience(gpu, &mut random, number, shape, queries, segments);
                }
            }
            check_salience(gpu, &mut random, number, (2, 1, 32), 0, &[(3, 10)]);
            check_salience(gpu, &mut random, number, (2, 1, 32), 4, &[]);
        }
    });
}

#[test]
#[ignore = "on the stand-in: cargo ci"]
fn rows_that_stay_are_moved_to_the_beginning() {
    on_gpu(|gpu| {
        let mut random = Random::new(13);
        let (layers, rows) = (3, 90);
        for (row_bytes, count) in [(4, 1), (12, 17), (1028, 40), (1028, 90), (8, 0)] {
            let before: Vec<u8> = (0..2 * layers * rows * row_bytes)
                .map(|_| random.between(0.0, 256.0) as u8)
                .collect();
            // Of each layer others; all of the first rows are among them for some.
            let kept: Vec<u32> = (0..layers)
                .flat_map(|layer| {
                    let spare = rows - count;
                    (0..count).map(move |index| (index + (index + layer).min(spare)) as u32)
                })
                .collect();
            let memory = Buffer::of(gpu, &before);
            let there = Buffer::of(gpu, &kept);
            gpu.keep_rows(memory.span(), layers, row_bytes, there.span(), count)
                .unwrap();
            let mut expected = before.clone();
            for matrix in 0..2 * layers {
                let start = matrix * rows * row_bytes;
                for index in 0..count {
                    let from = start + kept[matrix / 2 * count + index] as usize * row_bytes;
                    let to = start + index * row_bytes;
                    expected[to..to + row_bytes].copy_from_slice(&before[from..from + row_bytes]);
                }
            }
            assert!(memory.read::<u8>(gpu) == expected, "{row_bytes}, {count}");
        }
    });
}
