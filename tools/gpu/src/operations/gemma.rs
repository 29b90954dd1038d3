//! What only DiffusionGemma's layers need on a device compared with the CPU's.

use sluice_engine::EngineError;
use sluice_formats::Format;

use super::DevicePair;

impl DevicePair<'_> {
    pub(super) fn rows_of_canvases(&mut self) -> Result<(), EngineError> {
        self.poison()?;
        let [mut expected, mut found] = self.activations(33, 75, 12.0)?;
        let [a, b] = self.activations(33, 75, 4.0)?;
        self.cpu.gelu_mul(&mut expected, &a)?;
        self.tried.gelu_mul(&mut found, &b)?;
        self.check("gated activation, GELU".to_owned(), [&expected, &found])?;

        for (heads, head_dim) in [(8, 256), (2, 512), (5, 24)] {
            let [mut expected, mut found] = self.activations(37, heads * head_dim, 8.0)?;
            self.cpu.bare_norm_heads(&mut expected, head_dim, 1e-6)?;
            self.tried.bare_norm_heads(&mut found, head_dim, 1e-6)?;
            let name = format!("norm without weights, {heads} heads of {head_dim}");
            self.check(name, [&expected, &found])?;
        }

        for format in [Format::F32, Format::F16, Format::Bf16] {
            for (rows, width) in [(1, 2816), (37, 250)] {
                let weight = self.stored(1, width, format, 3.0)?;
                let scalars = [
                    self.stored(1, 1, format, 3.0)?,
                    self.stored(1, 1, Format::F32, 3.0)?,
                ];
                let [a, b] = self.stream(rows, width, 8.0)?;
                let [mut expected, mut found] = self.stream(rows, width, 8.0)?;
                (self.cpu).add_rms_norm(&mut expected, &a, &weight.on_cpu(), 1e-6)?;
                (self.tried).add_rms_norm(&mut found, &b, &weight.on_tried(), 1e-6)?;
                let name = format!("rms norm, added, {rows} rows of {width}, {}", format.name());
                self.check_within(1e-5, name, [&expected, &found])?;

                let of = || (0..rows).map(|row| row % 3 / 2);
                let (chosen, chosen_tried) = (self.cpu.indices(of())?, self.tried.indices(of())?);
                let on_cpu = scalars.each_ref().map(|scalar| scalar.on_cpu());
                let on_tried = scalars.each_ref().map(|scalar| scalar.on_tried());
                self.cpu.scale(&mut expected, 0.3)?;
                self.tried.scale(&mut found, 0.3)?;
                (self.cpu).scale_rows(&mut expected, on_cpu.each_ref(), &chosen)?;
                (self.tried).scale_rows(&mut found, on_tried.each_ref(), &chosen_tried)?;
                let name = format!("factors, {rows} rows of {width}, {}", format.name());
                self.check_within(1e-5, name, [&expected, &found])?;
            }
        }
        Ok(())
    }
}
