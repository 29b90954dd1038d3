//! Attention on a device compared with the CPU's.

use std::ops::Range;

use sluice_ops::{
    Activation, AttentionKeys, AttentionRange, AttentionShape, KeyRows, KeySegment, KvCacheShape,
    Ops,
};
use sluice_plan::compute_format;

use super::DevicePair;
use sluice_engine::EngineError;

impl DevicePair<'_> {
    pub(super) fn attention(&mut self) -> Result<(), EngineError> {
        for (heads, kv_heads, head_dim, is_scaled) in [
            (4, 2, 64, true),
            (2, 2, 18, true),
            (2, 1, 128, true),
            (1, 1, 256, true),
            (2, 1, 512, true),
            (4, 2, 256, false),
            (2, 2, 400, false),
        ] {
            let shape = AttentionShape {
                heads,
                kv_heads,
                head_dim,
                is_scaled,
            };
            // Scores that aren't scaled are of the same size.
            let size = if is_scaled { 6.0 } else { 0.4 };
            let keys = |start, len| KeySegment { start, len };
            let ranges = vec![
                AttentionRange {
                    queries: 0..100,
                    keys: AttentionKeys::Pass(vec![keys(0, 7), keys(50, 60), keys(199, 1)]),
                },
                AttentionRange {
                    queries: 100..101,
                    keys: AttentionKeys::Pass(vec![keys(120, 80)]),
                },
            ];
            self.poison()?;
            let [q, q_tried] = self.activations(101, heads * head_dim, size)?;
            let [k, k_tried] = self.activations(200, kv_heads * head_dim, 6.0)?;
            let [v, v_tried] = self.activations(200, kv_heads * head_dim, 2.0)?;
            let attend = |ops: &Ops, q: &Activation, k: &Activation, v: &Activation| {
                let keys = KeyRows {
                    pass: Some([k, v]),
                    caches: &[],
                    layer: 0,
                };
                let tasks = ops.attention_tasks(ranges.clone())?;
                ops.attend(q, &keys, shape, &tasks)
            };
            let expected = attend(&self.cpu, &q, &k, &v)?;
            let found = attend(&self.tried, &q_tried, &k_tried, &v_tried)?;
            let scores = if is_scaled {
                ""
            } else {
                ", scores as they are"
            };
            let name = format!("attention, {heads} heads over {kv_heads} of {head_dim}{scores}");
            self.check(name, [&expected, &found])?;
        }
        Ok(())
    }

    /// Queries of several sequences at once, each of which sees its own KV cache.
    pub(super) fn sequences(&mut self) -> Result<(), EngineError> {
        let shape = AttentionShape {
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            is_scaled: true,
        };
        // Positions before this pass, and in it.
        let lengths = [(0, 33), (70, 1), (5, 0), (20, 2), (9, 140)];
        let before: usize = lengths.iter().map(|(before, _)| before).sum();
        let next: usize = lengths.iter().map(|(_, next)| next).sum();
        self.poison()?;
        let q = self.activations(next, shape.heads * shape.head_dim, 6.0)?;
        let kept = self.activations(before, shape.kv_heads * shape.head_dim, 2.0)?;
        let k = self.activations(next, shape.kv_heads * shape.head_dim, 6.0)?;
        let v = self.activations(next, shape.kv_heads * shape.head_dim, 2.0)?;
        let mut results = Vec::new();
        for (side, ops) in [&self.cpu, &self.tried].into_iter().enumerate() {
            // Random elements are exact in the tested device's dtype, so both caches hold the same.
            let cache_shape = KvCacheShape {
                layers: 2,
                kv_heads: shape.kv_heads,
                head_dim: shape.head_dim,
                format: compute_format(&ops.device().profile()),
                keeps_recent: false,
                window: None,
            };
            let (mut from, mut start) = (0, 0);
            let (mut caches, mut ranges) = (Vec::new(), Vec::new());
            for (index, (before, next)) in lengths.into_iter().enumerate() {
                let mut cache = ops.kv_cache(cache_shape, before + next + 3)?;
                let rows = from..from + before;
                ops.put_kv(&mut cache, 1, [&kept[side], &kept[side]], rows, 0)?;
                let rows = start..start + next;
                ops.put_kv(&mut cache, 1, [&k[side], &v[side]], rows.clone(), before)?;
                // The third sequence has no queries, in the fourth each query sees everything, and those of the last
                // are out of order.
                let keys = match index {
                    3 => AttentionKeys::Cached {
                        cache: index,
                        segments: vec![KeySegment {
                            start: 1,
                            len: before + next - 1,
                        }],
                        own: Vec::new(),
                    },
                    4 => AttentionKeys::Causal {
                        cache: index,
                        positions: (before + 71..before + next)
                            .chain(before..before + 71)
                            .collect(),
                        own: None,
                    },
                    _ => AttentionKeys::Causal {
                        cache: index,
                        positions: (before..before + next).collect(),
                        own: None,
                    },
                };
                ranges.push(AttentionRange {
                    queries: rows,
                    keys,
                });
                caches.push(cache);
                from += before;
                start += next;
            }
            let tasks = ops.attention_tasks(ranges)?;
            let caches: Vec<_> = caches.iter().collect();
            let keys = KeyRows {
                pass: None,
                caches: &caches,
                layer: 1,
            };
            results.push(ops.attend(&q[side], &keys, shape, &tasks)?);
        }
        self.check(
            "attention, of several sequences to what is kept".to_owned(),
            [&results[0], &results[1]],
        )
    }

    /// Queries that see the latest keys alone: of their own pass, and of caches in which positions take turns.
    pub(super) fn windows(&mut self) -> Result<(), EngineError> {
        const WINDOW: usize = 40;
        for (heads, head_dim) in [(3, 64), (2, 18), (1, 256), (1, 512)] {
            let shape = AttentionShape {
                heads,
                kv_heads: heads,
                head_dim,
                is_scaled: true,
            };
            let width = heads * head_dim;
            self.poison()?;
            let q = self.activations(300, width, 6.0)?;
            let k = self.activations(300, width, 6.0)?;
            let v = self.activations(300, width, 2.0)?;
            let mut results = Vec::new();
            for (side, ops) in [&self.cpu, &self.tried].into_iter().enumerate() {
                let rows = |rows: Range<usize>| AttentionRange {
                    queries: rows.clone(),
                    keys: AttentionKeys::PassWindow {
                        rows,
                        window: WINDOW,
                    },
                };
                let tasks = ops.attention_tasks(vec![rows(0..1), rows(1..140), rows(140..300)])?;
                let keys = KeyRows {
                    pass: Some([&k[side], &v[side]]),
                    caches: &[],
                    layer: 0,
                };
                let of_pass = ops.attend(&q[side], &keys, shape, &tasks)?;

                // So many positions that later ones overwrite the first, in two passes.
                let cache_shape = KvCacheShape {
                    layers: 1,
                    kv_heads: heads,
                    head_dim,
                    format: compute_format(&ops.device().profile()),
                    keeps_recent: false,
                    window: Some(WINDOW),
                };
                let mut cache = ops.kv_cache(cache_shape, 4096)?;
                for start in [0, 300, 600] {
                    ops.put_kv(&mut cache, 0, [&k[side], &v[side]], 0..300, start)?;
                    cache.advance(300);
                }
                let tasks = ops.attention_tasks(vec![AttentionRange {
                    queries: 0..300,
                    keys: AttentionKeys::Causal {
                        cache: 0,
                        positions: (600..900).collect(),
                        own: None,
                    },
                }])?;
                let keys = KeyRows {
                    pass: None,
                    caches: &[&cache],
                    layer: 0,
                };
                results.push([of_pass, ops.attend(&q[side], &keys, shape, &tasks)?]);
            }
            let [expected, found] = &results[..] else {
                unreachable!("both devices computed")
            };
            for (what, (expected, found)) in
                ["a pass", "a cache"].iter().zip(expected.iter().zip(found))
            {
                let name = format!("attention in a window of {what}, {heads} heads of {head_dim}");
                self.check(name, [expected, found])?;
            }
        }
        Ok(())
    }

    /// Attention to the keys of a cache that get most of the attention.
    pub(super) fn chosen_keys(&mut self) -> Result<(), EngineError> {
        let shape = AttentionShape {
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            is_scaled: true,
        };
        const PLACES: usize = 200;
        let places = [3..90, 110..111, 140..199];
        self.poison()?;
        let q = self.activations(21, shape.heads * shape.head_dim, 6.0)?;
        let k = self.activations(PLACES, shape.kv_heads * shape.head_dim, 6.0)?;
        let v = self.activations(PLACES, shape.kv_heads * shape.head_dim, 2.0)?;
        let mut results = Vec::new();
        for (side, ops) in [&self.cpu, &self.tried].into_iter().enumerate() {
            let mut cache = ops.kv_cache(
                KvCacheShape {
                    layers: 2,
                    kv_heads: shape.kv_heads,
                    head_dim: shape.head_dim,
                    format: compute_format(&ops.device().profile()),
                    keeps_recent: false,
                    window: None,
                },
                PLACES,
            )?;
            for layer in 0..2 {
                ops.put_kv(&mut cache, layer, [&k[side], &v[side]], 0..PLACES, 0)?;
                // Each layer has other queries, so that layers keep different keys.
                let queries = 10 * layer..10 * layer + 11;
                ops.choose_salient(&mut cache, layer, &q[side], queries, shape, &places, 60)?;
            }
            ops.keep_salient(&mut cache)?;
            let attended = (0..2).map(|layer| {
                let tasks = ops.attention_tasks(vec![AttentionRange {
                    queries: 0..21,
                    keys: AttentionKeys::Cached {
                        cache: 0,
                        segments: vec![KeySegment { start: 0, len: 60 }],
                        own: Vec::new(),
                    },
                }])?;
                let keys = KeyRows {
                    pass: None,
                    caches: &[&cache],
                    layer,
                };
                ops.attend(&q[side], &keys, shape, &tasks)
            });
            results.push(attended.collect::<Result<Vec<_>, _>>()?);
        }
        for (layer, (expected, found)) in results[0].iter().zip(&results[1]).enumerate() {
            let name = format!("attention to chosen keys, layer {layer}");
            self.check(name, [expected, found])?;
        }
        Ok(())
    }
}
