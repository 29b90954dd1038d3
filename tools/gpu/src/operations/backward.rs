//! Gradients on a device compared with the CPU's.

use sluice_formats::Format;
use sluice_ops::{AttentionShape, BackwardRange, RopeTable};
use sluice_weights::{Rope, RopePairs};

use super::DevicePair;
use sluice_engine::{EngineError, check::worse};

/// Results that are sums in `f32` of inputs which both devices have exactly.
const SUMS_TOLERANCE: f64 = 2e-5;

impl DevicePair<'_> {
    /// Gradients through norms, gates and rotations.
    pub(super) fn gradients_of_rows(&mut self) -> Result<(), EngineError> {
        for (rows, width, format) in [
            (1, 4096, Format::F32),
            (37, 250, Format::F16),
            (37, 250, Format::Bf16),
        ] {
            let weight = self.stored(1, width, format, 3.0)?;
            self.poison()?;
            let x = self.stream(rows, width, 8.0)?;
            let back = self.stream(rows, width, 2.0)?;
            let mut found = self.stream(rows, width, 2.0)?;
            for (side, ops) in [&self.cpu, &self.tried].into_iter().enumerate() {
                let weight = match side {
                    0 => weight.on_cpu(),
                    _ => weight.on_tried(),
                };
                ops.rms_norm_backward(&mut found[side], &x[side], &back[side], &weight, 1e-5)?;
            }
            let name = format!(
                "gradients of a norm, {rows} rows of {width}, {}",
                format.name()
            );
            self.check_within(SUMS_TOLERANCE, name, [&found[0], &found[1]])?;
        }

        self.poison()?;
        let mut gate = self.activations(33, 75, 30.0)?;
        let mut up = self.activations(33, 75, 4.0)?;
        let back = self.stream(33, 75, 2.0)?;
        for (side, ops) in [&self.cpu, &self.tried].into_iter().enumerate() {
            ops.silu_mul_backward(&mut gate[side], &mut up[side], &back[side])?;
        }
        for (what, found) in [("gate", gate), ("other factor", up)] {
            let name = format!("gradients of a gated activation, {what}");
            self.check(name, [&found[0], &found[1]])?;
        }

        for pairs in [RopePairs::HalfSplit, RopePairs::Interleaved] {
            let rope = Rope {
                pairs,
                ..Rope::plain(500_000.0, 18)
            };
            self.poison()?;
            let mut x = self.stream(5, 3 * 18, 4.0)?;
            for (side, ops) in [&self.cpu, &self.tried].into_iter().enumerate() {
                let table = RopeTable::new(&rope, 4096, ops)?;
                let positions = ops.indices([0, 1, 77, 4095, 2])?;
                ops.rope_backward(&mut x[side], &positions, &table)?;
            }
            let name = format!("gradients of a rotary embedding, {pairs:?}");
            self.check_within(SUMS_TOLERANCE, name, [&x[0], &x[1]])?;
        }
        Ok(())
    }

    /// Gradients through attention: in a window, and to few keys that all see.
    pub(super) fn gradients_of_attention(&mut self) -> Result<(), EngineError> {
        for (heads, kv_heads, head_dim) in [(4, 2, 64), (2, 2, 18), (2, 1, 128), (1, 1, 256)] {
            let shape = AttentionShape {
                heads,
                kv_heads,
                head_dim,
                is_scaled: true,
            };
            let windows = [0..70, 70..71, 71..200].map(|rows| BackwardRange {
                queries: rows.clone(),
                keys: rows,
                window: Some(40),
            });
            let latents = [(0..90, 0..3), (90..200, 3..43)].map(|(queries, keys)| BackwardRange {
                queries,
                keys,
                window: None,
            });
            for (what, ranges, keys) in [
                ("in a window", windows.to_vec(), 200),
                ("to few keys", latents.to_vec(), 43),
            ] {
                self.poison()?;
                let q = self.activations(200, heads * head_dim, 6.0)?;
                let k = self.activations(keys, kv_heads * head_dim, 6.0)?;
                let v = self.activations(keys, kv_heads * head_dim, 2.0)?;
                let back = self.stream(200, heads * head_dim, 2.0)?;
                let mut results = Vec::new();
                for (side, ops) in [&self.cpu, &self.tried].into_iter().enumerate() {
                    let tasks = ops.backward_tasks(ranges.clone())?;
                    let inputs = [&q[side], &k[side], &v[side]];
                    results.push(ops.attend_backward(inputs, &back[side], shape, &tasks)?);
                }
                for (part, name) in ["queries", "keys", "values"].into_iter().enumerate() {
                    let name = format!(
                        "gradients of attention {what}, {heads} heads over {kv_heads} of {head_dim}, {name}"
                    );
                    let both = [&results[0][part], &results[1][part]];
                    self.check_within(SUMS_TOLERANCE, name, both)?;
                }
            }
        }
        Ok(())
    }

    /// Gradients through matmuls, with weights in every format.
    pub(super) fn gradients_of_matmuls(&mut self) -> Result<(), EngineError> {
        for format in Format::ALL {
            for (rows, width, outputs) in [(1, 512, 300), (33, 256, 77), (150, 512, 600)] {
                let weight = self.stored(outputs, width, format, 1.0)?;
                self.poison()?;
                let x = self.stream(rows, outputs, 2.0)?;
                let mut found = self.stream(rows, width, 20.0)?;
                let mut added = Vec::new();
                for (side, ops) in [&self.cpu, &self.tried].into_iter().enumerate() {
                    let weight = match side {
                        0 => weight.on_cpu(),
                        _ => weight.on_tried(),
                    };
                    ops.linear_transposed_add(&mut found[side], &x[side], &weight)?;
                    added.push(ops.linear_transposed(&x[side], &weight)?);
                }
                let name = format!("gradients of linear, {rows} rows, {}", format.name());
                self.check(format!("{name}, added"), [&found[0], &found[1]])?;
                self.check(name, [&added[0], &added[1]])?;
            }
        }
        Ok(())
    }

    /// Cross-entropies by the LM head in two parts, with their gradients.
    pub(super) fn cross_entropies(&mut self) -> Result<(), EngineError> {
        const ROWS: usize = 40;
        const WIDTH: usize = 256;
        const PARTS: [usize; 2] = [700, 333];
        for format in [Format::F32, Format::Bf16, Format::Q8_0, Format::Q5K] {
            let parts = [
                self.stored(PARTS[0], WIDTH, format, 1.0)?,
                self.stored(PARTS[1], WIDTH, format, 1.0)?,
            ];
            self.poison()?;
            let x = self.activations(ROWS, WIDTH, 2.0)?;
            let vocabulary = PARTS[0] + PARTS[1];
            let targets: Vec<u32> = (0..ROWS)
                .map(|row| (row * 97 % vocabulary) as u32)
                .collect();
            let (mut losses, mut gradients) = (Vec::new(), Vec::new());
            for (side, ops) in [&self.cpu, &self.tried].into_iter().enumerate() {
                let mut all = ops.start_cross_entropy(&targets, WIDTH)?;
                for (part, first) in parts.iter().zip([0, PARTS[0]]) {
                    let head = match side {
                        0 => part.on_cpu(),
                        _ => part.on_tried(),
                    };
                    ops.add_cross_entropy(&mut all, &x[side], &head, first)?;
                }
                let (found, gradient) = ops.finish_cross_entropy(all)?;
                losses.push(found);
                gradients.push(gradient);
            }
            let name = format!("cross-entropies, {}", format.name());
            let pairs = losses[0].iter().zip(&losses[1]);
            let error = pairs.map(|(a, b)| ((a - b) / a).abs()).fold(0.0, worse);
            let tolerance = self.matmul_tolerance(format);
            self.record(name.clone(), error, tolerance);
            let name = format!("{name}, gradients");
            self.check_within(tolerance, name, [&gradients[0], &gradients[1]])?;
        }
        Ok(())
    }
}
