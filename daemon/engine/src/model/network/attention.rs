//! Attention with its norm and its residual.

use sluice_ops::{Activation, KeyRows, Ops, OpsError, PassRun};
use sluice_weights::{MatrixInput, TensorPart, WeightGroup};

use super::{
    Network, Observer, acquire, observe,
    rows::{BatchKeys, BatchRows, CachedRows},
};
use crate::{
    error::EngineError,
    residency::{Residency, WeightGuard},
};

/// The matrices of queries, keys and values, each with its bias.
pub(super) const QUERY: [TensorPart; 2] = [TensorPart::Query, TensorPart::QueryBias];
pub(super) const KEY: [TensorPart; 2] = [TensorPart::Key, TensorPart::KeyBias];
pub(super) const VALUE: [TensorPart; 2] = [TensorPart::Value, TensorPart::ValueBias];

impl Network {
    /// Attention with its residual. In the last layer, keys and values are computed for all rows, but queries and
    /// results only for the wanted ones.
    pub(super) fn attention(
        &self,
        ops: &Ops,
        weights: &Residency,
        layer: usize,
        mut hidden: Activation,
        (rows, seen): (&BatchRows<'_>, &mut BatchKeys<'_>),
        observer: Observer<'_, '_>,
    ) -> Result<Activation, EngineError> {
        let is_last = layer + 1 == self.config.shape.layers;
        let group = acquire(ops, weights, WeightGroup::Attention(layer))?;
        let norm = group.weight(TensorPart::AttentionNorm);
        let all = 0..hidden.len();
        let mut x = ops.rms_norm(&hidden, all, &norm, self.config.epsilon)?;
        observe(observer, ops, MatrixInput::Attention(layer), &x)?;
        let shape = self.attention_shape(layer);
        let kv_heads = shape.kv_heads;
        // KV caches have one layout in all plans and layers, so that they outlive a switch between plans whose layers
        // have different heads.
        let spread = |x: Activation| match group.kept_kv_heads() {
            Some(kept) => ops.spread_heads(x, kept, kv_heads),
            None => Ok(x),
        };
        let mut query_positions = &rows.positions;
        let has_values = self.config.shape.has_values(layer);
        let [q, k, v] = match (is_last, has_values) {
            (false, true) => self.projections(ops, &group, &x, [QUERY, KEY, VALUE])?,
            (false, false) => {
                let [q, k] = self.projections(ops, &group, &x, [QUERY, KEY])?;
                let v = ops.copy(&k)?;
                [q, k, v]
            }
            (true, _) => {
                // Keys and values are needed of all rows.
                let [k, v] = match has_values {
                    true => self.projections(ops, &group, &x, [KEY, VALUE])?,
                    false => {
                        let [k] = self.projections(ops, &group, &x, [KEY])?;
                        let v = ops.copy(&k)?;
                        [k, v]
                    }
                };
                x = ops.take_rows(&x, &rows.wanted)?;
                // The residual shrinks as well: nothing behind this layer reads the other rows.
                hidden = ops.take_rows(&hidden, &rows.wanted)?;
                query_positions = &rows.wanted_positions;
                let [q] = self.projections(ops, &group, &x, [QUERY])?;
                [q, k, v]
            }
        };
        // Given back to the arena before attention takes its output: the order of drops is part of the planned peak.
        drop(x);
        let (mut q, mut k, mut v) = (spread(q)?, spread(k)?, spread(v)?);
        if self.config.shape.qk_norms {
            // Heads that were pruned are zeros before and after.
            for (x, norm) in [
                (&mut q, TensorPart::QueryNorm),
                (&mut k, TensorPart::KeyNorm),
            ] {
                ops.rms_norm_heads(x, &group.weight(norm), self.config.epsilon)?;
            }
        }
        if self.gemma().is_some() {
            ops.bare_norm_heads(&mut v, shape.head_dim, self.config.epsilon)?;
        }
        match self.ropes(layer) {
            (Some(of_keys), Some(of_queries)) => {
                ops.rope([(&mut q, query_positions)], of_queries)?;
                ops.rope([(&mut k, &rows.positions)], of_keys)?;
            }
            // Queries and keys together, in one launch on a GPU.
            (Some(of_both), None) => {
                let rotated = [(&mut q, query_positions), (&mut k, &rows.positions)];
                ops.rope(rotated, of_both)?;
            }
            (None, _) => {}
        }
        let is_of_caches = seen.is_of_caches;
        let (kind, layer_of_kind) = self.kind(layer);
        let seen = seen.of_kind(kind);
        // Before attention: queries read the cache even for keys of this pass, so that no result depends on how a
        // prompt was cut. Where the latest positions are kept in more bits, queries read the pass's rows, rounded as
        // the cache has them.
        for CachedRows { cache, runs, .. } in &mut seen.caches {
            for PassRun { rows, start } in runs {
                ops.put_kv(cache, layer_of_kind, [&k, &v], rows.clone(), *start)?;
                if cache.shape().keeps_recent {
                    for x in [&mut k, &mut v] {
                        ops.round_recent(&cache.shape(), x, rows.clone());
                    }
                }
            }
        }
        // If all queries read the cache, this pass's keys and values have been copied and are no longer needed.
        let pass = match is_of_caches {
            true => {
                drop((k, v));
                None
            }
            false => Some([k, v]),
        };
        let caches: Vec<_> = seen.caches.iter().map(|kept| &*kept.cache).collect();
        let keys = KeyRows {
            pass: pass.as_ref().map(|rows| rows.each_ref()),
            caches: &caches,
            layer: layer_of_kind,
        };
        let attended = ops.attend(&q, &keys, shape, seen.tasks(is_last))?;
        if let Some([k, v]) = &pass {
            for CachedRows { cache, runs, .. } in &mut seen.caches {
                for PassRun { rows, start } in runs {
                    ops.put_recent(cache, layer_of_kind, [k, v], rows.clone(), *start);
                }
            }
        }
        drop(pass);
        for kept in &mut seen.caches {
            // The last layer has queries of the wanted rows only, so the choice rests on those there.
            if let Some((places, count)) = kept.selects {
                let queries = kept.queries(is_last);
                let cache = &mut *kept.cache;
                ops.choose_salient(cache, layer_of_kind, &q, queries, shape, places, *count)?;
            }
        }
        // Given back before heads are gathered into rows of their own.
        drop(q);
        let attended = match group.kept_kv_heads() {
            Some(kept) => ops.gather_heads(attended, kept, kv_heads)?,
            None => attended,
        };
        observe(
            observer,
            ops,
            MatrixInput::AttentionOutput(layer),
            &attended,
        )?;
        let output = group.weight(TensorPart::AttentionOutput);
        match self.gemma() {
            None => ops.linear_add(&mut hidden, 0, &attended, &output)?,
            Some(_) => {
                // In `f32`, as a residual would have it.
                let mut out = ops.zeros(hidden.len(), hidden.width())?;
                ops.linear_add(&mut out, 0, &attended, &output)?;
                drop(attended);
                let norm = group.weight(TensorPart::AttentionPostNorm);
                ops.add_rms_norm(&mut hidden, &out, &norm, self.config.epsilon)?;
            }
        }
        Ok(hidden)
    }

    /// `x` times these matrices, each with its bias where the model has some.
    pub(super) fn projections<const N: usize>(
        &self,
        ops: &Ops,
        group: &WeightGuard<'_>,
        x: &Activation,
        parts: [[TensorPart; 2]; N],
    ) -> Result<[Activation; N], OpsError> {
        match self.config.shape.biases {
            true => {
                let weights = parts.map(|parts| parts.map(|part| group.weight(part)));
                ops.linear_biased_each(x, weights.each_ref().map(|both| both.each_ref()))
            }
            false => {
                let weights = parts.map(|[part, _]| group.weight(part));
                ops.linear_each(x, weights.each_ref())
            }
        }
    }
}
