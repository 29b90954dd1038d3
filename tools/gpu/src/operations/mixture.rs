//! Mixtures of experts on a device compared with the CPU's.

use sluice_engine::EngineError;
use sluice_formats::Format;
use sluice_ops::{Activation, Ops, OpsError};
use sluice_weights::{Router, Weight};

use super::{DevicePair, distance};

impl DevicePair<'_> {
    /// Products of rows by expert, of whom some have none: few rows, many, and so many that they are multiplied by themselves.
    pub(super) fn grouped(&mut self) -> Result<(), EngineError> {
        const OFFSETS: [usize; 8] = [0, 3, 3, 4, 37, 107, 240, 240];
        const OUTPUTS: usize = 130;
        const ROWS: usize = OFFSETS[7];
        fn experts(all: Weight<'_>) -> [Weight<'_>; 7] {
            [0, 1, 2, 3, 4, 5, 6].map(|expert| all.rows(expert * OUTPUTS, (expert + 1) * OUTPUTS))
        }
        for format in Format::ALL {
            let tolerance = self.matmul_tolerance(format);
            let all = self.stored(7 * OUTPUTS, 256, format, 1.0)?;
            // As in a pass of a block, and of a prompt.
            for pass_rows in [40, ROWS] {
                self.poison()?;
                let [a, b] = self.activations(ROWS, 256, 2.0)?;
                let [on_cpu, on_tried] = [all.on_cpu(), all.on_tried()].map(experts);
                let expected = (self.cpu).grouped_linear(&a, &on_cpu, &OFFSETS, pass_rows)?;
                let found = (self.tried).grouped_linear(&b, &on_tried, &OFFSETS, pass_rows)?;
                let name = format!("linear, grouped, pass of {pass_rows}, {}", format.name());
                self.check_within(tolerance, name.clone(), [&expected, &found])?;
                // An expert by itself gives the same bits: which others go with it depends on what is there.
                let together = self.tried.read(&found)?;
                let mut alone = Vec::new();
                for (expert, &[from, to]) in on_tried.iter().zip(OFFSETS.array_windows()) {
                    let these = self.tried.indices(from..to)?;
                    let rows = self.tried.take_rows(&b, &these)?;
                    let ends = [0, rows.len()];
                    let expert = std::slice::from_ref(expert);
                    let out = (self.tried).grouped_linear(&rows, expert, &ends, pass_rows)?;
                    alone.extend(self.tried.read(&out)?);
                }
                self.record(format!("{name}, alone"), distance(&together, &alone), 0.0);
            }
        }
        Ok(())
    }

    /// What routers choose, as the sum of what experts make of rows shows it.
    pub(super) fn routers(&mut self) -> Result<(), EngineError> {
        const WIDTH: usize = 256;
        let groups = |groups, kept_groups| Router::SigmoidGroups {
            groups,
            kept_groups,
            scale: 2.5,
        };
        let softmax = |renormalizes| Router::Softmax { renormalizes };
        let scaled = Router::ScaledSoftmax { logit_scale: 0.25 };
        for (rows, experts, per_row, router, has_own) in [
            (1, 8, 2, softmax(false), false),
            (37, 128, 8, softmax(true), false),
            (37, 256, 8, groups(8, 4), true),
            (9, 64, 3, groups(64, 40), true),
            (130, 40, 5, groups(1, 1), true),
            (33, 128, 8, scaled, true),
        ] {
            for format in [Format::F32, Format::Bf16] {
                let matrix = self.stored(experts, WIDTH, format, 1.0)?;
                let own = self.stored(1, experts, Format::F32, 0.5)?;
                self.poison()?;
                let [a, b] = self.activations(rows, WIDTH, 2.0)?;
                let [x, y] = self.activations(rows * per_row, 75, 2.0)?;
                let own_on_cpu = has_own.then(|| own.on_cpu());
                let own_on_tried = has_own.then(|| own.on_tried());
                let sum =
                    |ops: &Ops, rows: &Activation, of_experts, matrix: &_, own: Option<&_>| {
                        let routing = ops.route(rows, &router, matrix, own, per_row, 32)?;
                        let mut out = ops.zeros(rows.len(), 75)?;
                        let places = 0..rows.len() * per_row;
                        ops.add_routed(&mut out, of_experts, &routing, places)?;
                        Ok::<_, OpsError>(out)
                    };
                let [on_cpu, on_tried] = [matrix.on_cpu(), matrix.on_tried()];
                let expected = sum(&self.cpu, &a, &x, &on_cpu, own_on_cpu.as_ref())?;
                let found = sum(&self.tried, &b, &y, &on_tried, own_on_tried.as_ref())?;
                let name = format!(
                    "router {router:?}, {rows} rows, {per_row} of {experts}, {}",
                    format.name()
                );
                self.check_within(1e-5, name, [&expected, &found])?;
            }
        }
        Ok(())
    }
}
