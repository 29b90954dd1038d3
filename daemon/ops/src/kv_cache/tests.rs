//! Attention to what is kept, beside attention to what is there: the same keys and values, in any pieces.

use sluice_formats::{DType, Format, noise::Noise};

use super::*;
use crate::{
    AttentionKeys, AttentionRange, AttentionShape, KeyRows, KeySegment, PassRun, device::Device,
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
                own: None,
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
        keeps_recent: false,
        window: None,
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
    is_scaled: true,
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
        is_scaled: true,
    };
    for shape in [GROUPED, wide] {
        let mut before = 0.0;
        for (format, bound) in [
            (Format::Bf16, 3e-2),
            (Format::Q8_0, 8e-2),
            (Format::Q5_0, 0.4),
            (Format::Q4_0, 0.8),
        ] {
            let worst = difference(format, shape, &[300, 1, 399]);
            assert!(
                worst < bound && worst > before,
                "{worst} in {format:?}, {before} before"
            );
            before = worst;
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
        keeps_recent: false,
        window: None,
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
        keeps_recent: false,
        window: None,
    };
    let (width, kv) = (6 * 16, 2 * 16);
    let all: usize = lengths.iter().map(|(_, next)| next).sum();
    let q = filled(&ops, all, width, 1);
    let k = filled(&ops, all, kv, 2);
    let v = filled(&ops, all, kv, 3);
    for format in [Format::F32, Format::Q8_0, Format::Q4_0] {
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

/// Queries of the rows from the cache's end on, as a model has them: what is put is kept in more bits, too.
fn read_on(ops: &Ops, cache: &mut KvCache, [q, k, v]: [&Activation; 3], rows: usize) -> Vec<f32> {
    let start = cache.len();
    let places = ops.indices(start..start + rows).unwrap();
    let [q, mut k, mut v] = [q, k, v].map(|x| ops.take_rows(x, &places).unwrap());
    ops.put_kv(cache, 0, [&k, &v], 0..rows, start).unwrap();
    for x in [&mut k, &mut v] {
        ops.round_recent(&cache.shape(), x, 0..rows);
    }
    let tasks = ops.attention_tasks(vec![AttentionRange {
        queries: 0..rows,
        keys: AttentionKeys::Causal {
            cache: 0,
            positions: (start..start + rows).collect(),
            own: Some(PassRun {
                rows: 0..rows,
                start,
            }),
        },
    }]);
    let keys = KeyRows {
        pass: Some([&k, &v]),
        caches: &[cache],
        layer: 0,
    };
    let attended = ops.attend(&q, &keys, GROUPED, &tasks.unwrap()).unwrap();
    let attended = ops.read(&attended).unwrap();
    ops.put_recent(cache, 0, [&k, &v], 0..rows, start);
    cache.advance(rows);
    attended
}

fn recent_shape(format: Format) -> KvCacheShape {
    KvCacheShape {
        layers: 1,
        kv_heads: GROUPED.kv_heads,
        head_dim: GROUPED.head_dim,
        format,
        keeps_recent: true,
        window: None,
    }
}

fn worst(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    pairs.fold(0.0, |worst, (a, b)| worst.max((a - b).abs()))
}

fn mean(found: &[f32], expected: &[f32]) -> f32 {
    let pairs = found.iter().zip(expected);
    pairs.map(|(a, b)| (a - b).abs()).sum::<f32>() / found.len() as f32
}

#[test]
fn the_first_and_the_latest_are_read_in_more_bits_in_any_pieces() {
    let ops = ops();
    let q = filled(&ops, POSITIONS, 6 * 16, 1);
    let [k, v] = [2, 3].map(|seed| filled(&ops, POSITIONS, 2 * 16, seed));
    let read = |format, pieces: &[usize]| {
        let mut cache = ops.kv_cache(recent_shape(format), POSITIONS).unwrap();
        let rows = |rows: &usize| read_on(&ops, &mut cache, [&q, &k, &v], *rows);
        pieces.iter().flat_map(rows).collect::<Vec<_>>()
    };
    for format in [Format::Q4_0, Format::Q5_0] {
        let whole = read(format, &[POSITIONS]);
        let mut pieces = vec![1; 200];
        pieces.extend([3, 60, 37, 100, 200, 1, 99]);
        for pieces in [&pieces[..], &[33, 31, 64, 72, 300, 200], &[500, 200]] {
            let worst = worst(&read(format, pieces), &whole);
            assert!(worst < 2e-5, "{worst} in {pieces:?} of {format:?}");
        }
        // Up to 64 positions all are in the first block, the query's own or the one before it.
        let shape = KvCacheShape {
            keeps_recent: false,
            ..recent_shape(Format::Q8_0)
        };
        let mut cache = ops.kv_cache(shape, POSITIONS).unwrap();
        let expected = read_on(&ops, &mut cache, [&q, &k, &v], POSITIONS);
        let width = 6 * 16;
        assert!(worst(&whole[..64 * width], &expected[..64 * width]) < 2e-5);
        assert!(worst(&whole[96 * width..], &expected[96 * width..]) > 1e-2);
    }
}

#[test]
fn a_copy_takes_along_what_is_kept_in_more_bits() {
    let ops = ops();
    let q = filled(&ops, 300, 6 * 16, 1);
    let [k, v] = [2, 3].map(|seed| filled(&ops, 300, 2 * 16, seed));
    let rows = [&q, &k, &v];
    let shape = recent_shape(Format::Q4_0);
    assert_eq!(shape.bytes(300), 2 * 2 * (300 * 18 + 96 * 34));
    assert_eq!(shape.bytes(40), 2 * 2 * 40 * (18 + 34));
    let mut from = ops.kv_cache(shape, 200).unwrap();
    read_on(&ops, &mut from, rows, 190);
    for (kept, is_near) in [(190, true), (170, true), (120, false), (20, true)] {
        let mut to = ops.kv_cache(shape, 300).unwrap();
        ops.copy_kv_cache(&mut to, &from, kept).unwrap();
        assert_eq!(to.bytes(), shape.bytes(300).next_multiple_of(4096) as u64);
        let mut fresh = ops.kv_cache(shape, 300).unwrap();
        read_on(&ops, &mut fresh, rows, kept);
        let [found, expected] = [&mut to, &mut fresh].map(|cache| read_on(&ops, cache, rows, 30));
        let worst = worst(&found, &expected);
        // The latest positions before 120 are there in four bits alone: others had taken their place.
        assert_eq!(worst < 2e-5, is_near, "{worst} after {kept}");
        assert!(worst < 1.0, "{worst} after {kept}");
    }
}

#[test]
fn a_pass_that_failed_leaves_no_wrong_rows() {
    let ops = ops();
    let q = filled(&ops, 300, 6 * 16, 1);
    let [k, v] = [2, 3].map(|seed| filled(&ops, 300, 2 * 16, seed));
    let other = filled(&ops, 300, 2 * 16, 9);
    let shape = recent_shape(Format::Q4_0);
    let mut cache = ops.kv_cache(shape, 300).unwrap();
    read_on(&ops, &mut cache, [&q, &k, &v], 100);
    let mut fresh = ops.kv_cache(shape, 300).unwrap();
    read_on(&ops, &mut fresh, [&q, &k, &v], 100);
    // It had put rows where the latest ones were.
    ops.put_kv(&mut cache, 0, [&other, &other], 100..250, 100)
        .unwrap();
    ops.put_recent(&mut cache, 0, [&other, &other], 100..250, 100);
    let [found, expected] =
        [&mut cache, &mut fresh].map(|cache| read_on(&ops, cache, [&q, &k, &v], 60));
    let worst_of_first = worst(&found, &expected);
    // Read in four bits: near, and not the same.
    assert!(
        worst_of_first > 1e-4 && worst_of_first < 0.5,
        "{worst_of_first}"
    );
    let [found, expected] =
        [&mut cache, &mut fresh].map(|cache| read_on(&ops, cache, [&q, &k, &v], 140));
    assert!(worst(&found[80 * 96..], &expected[80 * 96..]) < 2e-5);
}

#[test]
fn a_canvas_reads_its_own_rows_as_they_were_computed() {
    let ops = ops();
    let q = filled(&ops, 90, 6 * 16, 1);
    let [k, v] = [2, 3].map(|seed| filled(&ops, 400, 2 * 16, seed));
    for format in [Format::Q8_0, Format::Q5_0, Format::Q4_0] {
        let shape = KvCacheShape {
            keeps_recent: false,
            ..recent_shape(format)
        };
        let exact = KvCacheShape {
            format: Format::F32,
            ..shape
        };
        // Rows of the pass stand at 300 to 350 and at 20 to 60, in this order.
        let runs = [(0..50, 300), (50..90, 20)];
        let own = runs.clone().map(|(rows, start)| PassRun { rows, start });
        let read = |shape: KvCacheShape, own: &[PassRun], seen: &[(usize, usize)]| {
            let mut cache = ops.kv_cache(shape, 400).unwrap();
            ops.put_kv(&mut cache, 0, [&k, &v], 0..400, 0).unwrap();
            let places = runs
                .iter()
                .flat_map(|(rows, start)| *start..start + rows.len());
            let places = ops.indices(places).unwrap();
            let [k, v] = [&k, &v].map(|x| ops.take_rows(x, &places).unwrap());
            let segments = seen.iter().map(|&(start, len)| KeySegment { start, len });
            let keys = AttentionKeys::Cached {
                cache: 0,
                segments: segments.collect(),
                own: own.to_vec(),
            };
            let tasks = ops.attention_tasks(vec![AttentionRange {
                queries: 0..90,
                keys,
            }]);
            let keys = KeyRows {
                pass: Some([&k, &v]),
                caches: &[&cache],
                layer: 0,
            };
            let attended = ops.attend(&q, &keys, GROUPED, &tasks.unwrap()).unwrap();
            ops.read(&attended).unwrap()
        };
        let inside = [(22, 30), (310, 40)];
        let expected = read(exact, &own, &inside);
        assert!(worst(&read(shape, &own, &inside), &expected) < 2e-5);
        let all = [(0, 400)];
        let expected = read(exact, &own, &all);
        let own_unrounded = mean(&read(shape, &own, &all), &expected);
        let all_rounded = mean(&read(shape, &[], &all), &expected);
        assert!(
            0.0 < own_unrounded && own_unrounded < all_rounded,
            "{own_unrounded}, {all_rounded} in {format:?}"
        );
    }
}

#[test]
fn a_copy_after_a_pass_that_was_cancelled_trusts_nothing_that_it_wrote_over() {
    let ops = ops();
    let q = filled(&ops, 300, 6 * 16, 1);
    let [k, v] = [2, 3].map(|seed| filled(&ops, 300, 2 * 16, seed));
    let other = filled(&ops, 300, 2 * 16, 9);
    let shape = recent_shape(Format::Q4_0);
    for kept in [100, 90] {
        let next = |is_cancelled: bool| {
            let mut from = ops.kv_cache(shape, 300).unwrap();
            read_on(&ops, &mut from, [&q, &k, &v], 100);
            if is_cancelled {
                let rows = [&other, &other];
                ops.put_kv(&mut from, 0, rows, 100..250, 100).unwrap();
                ops.put_recent(&mut from, 0, rows, 100..250, 100);
            }
            let mut to = ops.kv_cache(shape, 300).unwrap();
            ops.copy_kv_cache(&mut to, &from, kept).unwrap();
            read_on(&ops, &mut to, [&q, &k, &v], 60)
        };
        let [found, expected] = [true, false].map(next);
        // Read in four bits: near, and not the same.
        let worst = worst(&found, &expected);
        assert!(worst > 1e-4 && worst < 0.5, "{worst} after {kept}");
    }
}

#[test]
fn a_prompt_that_is_asked_again_is_answered_as_before() {
    let ops = ops();
    let q = filled(&ops, 300, 6 * 16, 1);
    let [k, v] = [2, 3].map(|seed| filled(&ops, 300, 2 * 16, seed));
    for format in [Format::Q4_0, Format::Q5_0] {
        let shape = recent_shape(format);
        for len in [64, 96, 97, 128, 130, 256] {
            for pieces in [vec![len], vec![1; len], vec![len - 5, 5]] {
                let mut from = ops.kv_cache(shape, 300).unwrap();
                let read = pieces
                    .iter()
                    .map(|&rows| read_on(&ops, &mut from, [&q, &k, &v], rows));
                let all: Vec<f32> = read.flatten().collect();
                let mut to = ops.kv_cache(shape, 300).unwrap();
                ops.copy_kv_cache(&mut to, &from, len - 1).unwrap();
                let again = read_on(&ops, &mut to, [&q, &k, &v], 1);
                let worst = worst(&again, &all[(len - 1) * 96..]);
                assert!(worst < 2e-5, "{worst} after {len} in {format:?}");
            }
        }
    }
}
