use std::ops::Range;

use sluice_formats::{DType, Format, noise::Noise};
use sluice_machine::{InstructionSet, Instructions};

use crate::{
    Activation, AttentionKeys, AttentionRange, AttentionShape, KeyRows, KeySegment, KvCacheShape,
    Ops, device::Device, ledger::Ledger,
};

const KEYS: usize = 700;
const QUERIES: usize = 100;

/// One of each kind that has kernels of its own.
fn kinds() -> Vec<Instructions> {
    let kind =
        |set: &Instructions| [InstructionSet::Avx2, InstructionSet::Avx512].map(|s| set.has(s));
    let mut all = Instructions::all().to_vec();
    all.dedup_by_key(|set| kind(set));
    all
}

fn ops(threads: usize, instructions: Instructions) -> Ops {
    let device = Device::cpu(threads)
        .unwrap()
        .with_instructions(instructions);
    Ops::new(device, Ledger::default()).unwrap()
}

fn filled(ops: &Ops, rows: usize, width: usize, seed: u64) -> Activation {
    let noise = Noise::new(seed);
    let values: Vec<f32> = (0..rows * width)
        .map(|place| noise.uniform(0, place as u64, 0) as f32 * 4.0 - 2.0)
        .collect();
    ops.matrix(rows, width, &values, DType::F32).unwrap()
}

/// Queries of these numbers, as many at a time, equal each query alone, bit by bit.
fn equal_alone(
    ops: &[Ops; 2],
    shape: AttentionShape,
    cache: KvCacheShape,
    keys_of: impl Fn(Range<usize>) -> AttentionKeys,
) {
    let of = |ops: &Ops, parts: Vec<Range<usize>>| {
        let q = filled(ops, QUERIES, shape.heads * shape.head_dim, 1);
        let kv = [2, 3].map(|seed| filled(ops, KEYS, shape.kv_heads * shape.head_dim, seed));
        let mut cache = ops.kv_cache(cache, KEYS).unwrap();
        for from in (0..KEYS).step_by(50) {
            // With a window, later positions take the places of the earliest.
            let rows = from..from + 50;
            ops.put_kv(&mut cache, 0, [&kv[0], &kv[1]], rows, from)
                .unwrap();
        }
        let ranges = parts.into_iter().map(|queries| AttentionRange {
            keys: keys_of(queries.clone()),
            queries,
        });
        let tasks = ops.attention_tasks(ranges.collect()).unwrap();
        let keys = KeyRows {
            pass: None,
            caches: &[&cache],
            layer: 0,
        };
        let out = ops.attend(&q, &keys, shape, &tasks).unwrap();
        let bits = out.values().iter().map(|value| value.to_bits());
        bits.collect::<Vec<_>>()
    };
    let alone = of(
        &ops[0],
        (0..QUERIES).map(|query| query..query + 1).collect(),
    );
    for count in [2, 5, 16, 33, QUERIES] {
        let starts = (0..QUERIES).step_by(count);
        let parts = starts
            .map(|start| start..QUERIES.min(start + count))
            .collect();
        let together = of(&ops[usize::from(count % 2 == 0)], parts);
        let differing = together.iter().zip(&alone).filter(|(a, b)| a != b).count();
        let name = ops[0].device().instructions().name();
        assert_eq!(
            differing, 0,
            "{count} queries, {name}, {shape:?}, {cache:?}"
        );
    }
}

#[test]
fn a_query_has_the_same_bits_alone_and_beside_others() {
    for instructions in kinds() {
        let ops = [1, 2].map(|threads| ops(threads, instructions));
        for (format, dim, heads) in [
            Format::F32,
            Format::F16,
            Format::Bf16,
            Format::Q8_0,
            Format::Q4_0,
        ]
        .into_iter()
        .flat_map(|format| [64, 128, 80, 20].map(|dim| (format, dim)))
        .flat_map(|(format, dim)| [1, 4, 7].map(|heads| (format, dim, heads)))
        {
            let shape = AttentionShape {
                heads,
                kv_heads: 1,
                head_dim: dim,
                is_scaled: true,
            };
            let cache = KvCacheShape {
                layers: 1,
                kv_heads: 1,
                head_dim: dim,
                format,
                keeps_recent: false,
                window: None,
            };
            let segments = vec![
                KeySegment { start: 0, len: 3 },
                KeySegment {
                    start: 10,
                    len: KEYS - 10,
                },
            ];
            equal_alone(&ops, shape, cache, |_| AttentionKeys::Cached {
                cache: 0,
                segments: segments.clone(),
                own: Vec::new(),
            });
            // The first of them see one tile, the others two, the second of which is short.
            equal_alone(&ops, shape, cache, |queries| AttentionKeys::Causal {
                cache: 0,
                positions: (queries.start + 200..queries.end + 200).collect(),
                own: None,
            });
        }
    }
}

#[test]
fn a_query_with_a_window_has_the_same_bits_alone_and_beside_others() {
    for instructions in kinds() {
        let ops = [1, 2].map(|threads| ops(threads, instructions));
        for (window, heads) in [(5, 1), (100, 4), (130, 1), (300, 3)] {
            let shape = AttentionShape {
                heads,
                kv_heads: 1,
                head_dim: 64,
                is_scaled: true,
            };
            let cache = KvCacheShape {
                layers: 1,
                kv_heads: 1,
                head_dim: 64,
                format: Format::F32,
                keeps_recent: false,
                window: Some(window),
            };
            equal_alone(&ops, shape, cache, |queries| AttentionKeys::Causal {
                cache: 0,
                positions: (queries.start + 590..queries.end + 590).collect(),
                own: None,
            });
        }
    }
}
