//! The operations of sentence encoders on a device compared with the CPU's.

use sluice_engine::EngineError;
use sluice_formats::Format;

use super::{DevicePair, distance};

impl DevicePair<'_> {
    /// Sums of rows, biases in place, and means of rows.
    pub(super) fn encoder(&mut self) -> Result<(), EngineError> {
        for width in [1, 250, 1536] {
            self.poison()?;
            let [mut a, mut b] = self.stream(37, width, 8.0)?;
            let [other, other_tried] = self.stream(37, width, 4.0)?;
            self.cpu.add(&mut a, &other)?;
            self.tried.add(&mut b, &other_tried)?;
            self.check(format!("sum of rows, 37 of {width}"), [&a, &b])?;
            for format in [Format::F32, Format::F16, Format::Bf16] {
                let bias = self.stored(1, width, format, 2.0)?;
                self.cpu.add_bias(&mut a, &bias.on_cpu())?;
                self.tried.add_bias(&mut b, &bias.on_tried())?;
                let name = format!("bias in place, 37 rows of {width}, {}", format.name());
                self.check(name, [&a, &b])?;
            }
            let ranges = [0..1, 1..20, 20..20, 20..37];
            let expected = self.cpu.row_means(&a, &ranges)?;
            let found = self.tried.row_means(&b, &ranges)?;
            let tolerance = self.tolerance();
            let error = distance(&expected, &found);
            self.record(format!("means of rows of {width}"), error, tolerance);
        }
        Ok(())
    }
}
