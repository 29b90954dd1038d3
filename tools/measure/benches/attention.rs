//! Attention of an autoregressive decoding step, and of 256 rows of a prompt, by the format of the KV cache and its length:
//! `cargo bench -p sluice-measure --bench attention`, with `--profile dev` as tests and daemon are built.

use divan::{Bencher, counter::ItemsCount};
use sluice_formats::{DType, Format, noise::Noise};
use sluice_ops::{
    Activation, AttentionKeys, AttentionRange, AttentionShape, KeyRows, KvCacheShape, Ops, PassRun,
    device::Device, ledger::Ledger,
};

/// Heads of Llama 3 8B.
const SHAPE: AttentionShape = AttentionShape {
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    is_scaled: true,
};

/// Heads of Llama 2 7B: none share keys.
const UNSHARED: AttentionShape = AttentionShape {
    kv_heads: 32,
    ..SHAPE
};

const CASES: [(Format, usize); 14] = [
    (Format::Q8_0, 512),
    (Format::Q4_0, 512),
    (Format::F32, 1024),
    (Format::Bf16, 1024),
    (Format::Q8_0, 1024),
    (Format::Q5_0, 1024),
    (Format::Q4_0, 1024),
    (Format::Q8_0, 2048),
    (Format::Q4_0, 2048),
    (Format::F32, 4096),
    (Format::Bf16, 4096),
    (Format::Q8_0, 4096),
    (Format::Q5_0, 4096),
    (Format::Q4_0, 4096),
];

fn main() {
    divan::main();
}

#[divan::bench(args = CASES)]
fn step(bencher: Bencher<'_, '_>, case: (Format, usize)) {
    attend(bencher, case, SHAPE, 1);
}

#[divan::bench(args = CASES)]
fn prompt(bencher: Bencher<'_, '_>, case: (Format, usize)) {
    attend(bencher, case, SHAPE, 256);
}

#[divan::bench(args = CASES)]
fn prompt_unshared(bencher: Bencher<'_, '_>, case: (Format, usize)) {
    attend(bencher, case, UNSHARED, 256);
}

fn attend(
    bencher: Bencher<'_, '_>,
    (format, positions): (Format, usize),
    shape: AttentionShape,
    queries: usize,
) {
    let ops = Ops::new(Device::cpu(1).unwrap(), Ledger::default()).unwrap();
    let q = filled(&ops, queries, shape.heads * shape.head_dim);
    let kv = filled(&ops, positions, shape.kv_heads * shape.head_dim);
    let mut cache = ops
        .kv_cache(
            KvCacheShape {
                layers: 1,
                kv_heads: shape.kv_heads,
                head_dim: shape.head_dim,
                format,
                keeps_recent: matches!(format, Format::Q5_0 | Format::Q4_0),
                window: None,
            },
            positions,
        )
        .unwrap();
    let start = positions - queries;
    for (rows, first) in [(0..start, 0), (start..positions, start)] {
        ops.put_kv(&mut cache, 0, [&kv, &kv], rows.clone(), first)
            .unwrap();
        if first == 0 {
            ops.put_recent(&mut cache, 0, [&kv, &kv], rows, first);
            cache.advance(start);
        }
    }
    let tasks = ops.attention_tasks(vec![AttentionRange {
        queries: 0..queries,
        keys: AttentionKeys::Causal {
            cache: 0,
            positions: (start..positions).collect(),
            own: Some(PassRun {
                rows: start..positions,
                start,
            }),
        },
    }]);
    let tasks = tasks.unwrap();
    let keys = KeyRows {
        pass: Some([&kv, &kv]),
        caches: &[&cache],
        layer: 0,
    };
    bencher
        .counter(ItemsCount::new(positions))
        .bench_local(|| ops.attend(&q, &keys, shape, &tasks).unwrap());
}

fn filled(ops: &Ops, rows: usize, width: usize) -> Activation {
    let noise = Noise::new(1);
    let values: Vec<f32> = (0..rows * width)
        .map(|place| noise.uniform(0, place as u64, 0) as f32 * 2.0 - 1.0)
        .collect();
    ops.matrix(rows, width, &values, DType::F32).unwrap()
}
