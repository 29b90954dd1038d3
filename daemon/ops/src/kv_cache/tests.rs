//! Attention to what is kept, beside attention to what is there: the same keys and values, in any pieces.

use sluice_formats::{DType, Format, noise::Noise};

use super::*;
use crate::{
    AttentionKeys, AttentionRange, AttentionShape, KeyRows, KeySegment, device::Device,
    ledger::Ledger,
};

const POSITIONS: usize = 700;

fn ops() -> Ops {
    Ops::new(Device::cpu(2).unwrap(), Ledger::default()).unwrap()
}

fn filled(ops: &Ops, rows: usize, width: usize, seed: u64) -> Activation {
    let noise = Noise::new(seed);
    let values: Vec<f32> = (0..rows * width)
        .map(|place| noise.uniform(0, place as u64, 0) as f32 * 4.0 - 2.0)
        .collect();
    ops.matrix(rows, width, &values, DType::F32).unwrap()
}

/// Attention of each query to the places of its cache up to its own.
fn attend(
    ops: &Ops,
    q: &Activation,
    caches: &[&KvCache],
    layer: usize,
    shape: AttentionShape,
    places: &[Range<usize>],
) -> Vec<f32> {
    let mut end = 0;
    let ranges = places.iter().enumerate().map(|(cache, places)| {
        let queries = end..end + places.len();
        end = queries.end;
        let places = places.clone().collect();
        AttentionRange {
            queries,
            keys: AttentionKeys::Causal {
                cache,
                positions: places,
            },
        }
    });
    let tasks = ops.attention_tasks(ranges.collect()).unwrap();
    let keys = KeyRows {
        pass: None,
        caches,
        layer,
    };
    ops.read(&ops.attend(q, &keys, shape, &tasks).unwrap())
        .unwrap()
}

/// The largest difference between attention to a cache, filled in these pieces, and attention to the rows themselves.
fn difference(format: Format, shape: AttentionShape, pieces: &[usize]) -> f32 {
    let ops = ops();
    let (width, kv) = (
        shape.heads * shape.head_dim,
        shape.kv_heads * shape.head_dim,
    );
    let q = filled(&ops, POSITIONS, width, 1);
    let k = filled(&ops, POSITIONS, kv, 2);
    let v = filled(&ops, POSITIONS, kv, 3);
    let ranges = (0..POSITIONS).map(|query| AttentionRange {
        queries: query..query + 1,
        keys: AttentionKeys::Pass(vec![KeySegment {
            start: 0,
            len: query + 1,
        }]),
    });
    let tasks = ops.attention_tasks(ranges.collect()).unwrap();
    let keys = KeyRows {
        pass: Some([&k, &v]),
        caches: &[],
        layer: 0,
    };
    let expected = ops.read(&ops.attend(&q, &keys, shape, &tasks).unwrap());
    let expected = expected.unwrap();

    let cache_shape = KvCacheShape {
        layers: 2,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        format,
    };
    let mut cache = ops.kv_cache(cache_shape, POSITIONS + 3).unwrap();
    let mut worst = 0f32;
    for &rows in pieces {
        let start = cache.len();
        let places = ops.indices(start..start + rows).unwrap();
        let piece = |x: &Activation| ops.take_rows(x, &places).unwrap();
        // The other layer's must not be read.
        let [k, v] = [piece(&k), piece(&v)];
        ops.put_kv(&mut cache, 0, [&v, &k], 0..rows, start).unwrap();
        ops.put_kv(&mut cache, 1, [&k, &v], 0..rows, start).unwrap();
        let places = start..start + rows;
        let places = std::slice::from_ref(&places);
        let found = attend(&ops, &piece(&q), &[&cache], 1, shape, places);
        cache.advance(rows);
        let pairs = found.iter().zip(&expected[start * width..]);
        worst = pairs.fold(worst, |worst, (a, b)| worst.max((a - b).abs()));
    }
    assert_eq!(cache.len(), POSITIONS);
    worst
}

const GROUPED: AttentionShape = AttentionShape {
    heads: 6,
    kv_heads: 2,
    head_dim: 16,
};

#[test]
fn what_is_kept_whole_gives_the_same_numbers_in_any_pieces() {
    for pieces in [
        &[POSITIONS][..],
        &[1, 1, 1, 2, 95, 100, 500],
        &[300, 1, 399],
    ] {
        let worst = difference(Format::F32, GROUPED, pieces);
        assert!(worst < 2e-5, "{worst} in {pieces:?}");
    }
}

#[test]
fn shorter_numbers_cost_what_they_cost() {
    let wide = AttentionShape {
        heads: 4,
        kv_heads: 4,
        head_dim: 64,
    };
    for (format, bound) in [(Format::Bf16, 3e-2), (Format::Q8_0, 8e-2)] {
        for shape in [GROUPED, wide] {
            let worst = difference(format, shape, &[300, 1, 399]);
            assert!(worst < bound && worst > 0.0, "{worst} in {format:?}");
        }
    }
}

#[test]
fn a_copy_goes_on_as_the_original_would() {
    let ops = ops();
    let shape = KvCacheShape {
        layers: 2,
        kv_heads: 2,
        head_dim: 16,
        format: Format::Q8_0,
    };
    let mut from = ops.kv_cache(shape, 8).unwrap();
    for layer in 0..2 {
        let rows = filled(&ops, 8, 32, layer as u64);
        ops.put_kv(&mut from, layer, [&rows, &rows], 0..8, 0)
            .unwrap();
    }
    from.advance(8);
    let mut to = ops.kv_cache(shape, 20).unwrap();
    ops.copy_kv_cache(&mut to, &from, 5).unwrap();
    assert_eq!(to.len(), 5);
    for (layer, which) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let bytes = 5 * shape.bytes(1) / 4;
        let [to, from] = [&to, &from].map(|cache| &cache.rows(layer, which)[..bytes]);
        assert_eq!(to, from);
    }
    // Heads of 16 take a block of 32 each.
    assert_eq!(shape.bytes(20), 2 * 2 * 20 * 2 * 34);
    assert_eq!(to.bytes(), 8192);
}

#[test]
fn sequences_beside_each_other_see_their_own_alone() {
    let ops = ops();
    // What is kept of each sequence, and its next queries: a prompt's, none, and one alone.
    let lengths = [(5, 150), (90, 0), (300, 1)];
    let shape = |format| KvCacheShape {
        layers: 1,
        kv_heads: GROUPED.kv_heads,
        head_dim: GROUPED.head_dim,
        format,
    };
    let (width, kv) = (6 * 16, 2 * 16);
    let all: usize = lengths.iter().map(|(_, next)| next).sum();
    let q = filled(&ops, all, width, 1);
    let k = filled(&ops, all, kv, 2);
    let v = filled(&ops, all, kv, 3);
    for format in [Format::F32, Format::Q8_0] {
        let mut start = 0;
        let (mut caches, mut places, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (kept, next)) in lengths.into_iter().enumerate() {
            let mut cache = ops.kv_cache(shape(format), kept + next).unwrap();
            let before = filled(&ops, kept, kv, 10 + index as u64);
            ops.put_kv(&mut cache, 0, [&before, &before], 0..kept, 0)
                .unwrap();
            let rows = start..start + next;
            ops.put_kv(&mut cache, 0, [&k, &v], rows.clone(), kept)
                .unwrap();
            let its = ops.take_rows(&q, &ops.indices(rows).unwrap()).unwrap();
            let own = kept..kept + next;
            alone.extend(attend(
                &ops,
                &its,
                &[&cache],
                0,
                GROUPED,
                std::slice::from_ref(&own),
            ));
            places.push(own);
            caches.push(cache);
            start += next;
        }
        let caches: Vec<_> = caches.iter().collect();
        let together = attend(&ops, &q, &caches, 0, GROUPED, &places);
        for (together, alone) in together.iter().zip(&alone) {
            let near = 1e-6 * alone.abs().max(1.0);
            assert!((together - alone).abs() <= near, "{together} for {alone}");
        }
    }
}
