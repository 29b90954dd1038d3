//! A card's kernels for coded weights, beside the codec.

use sluice_codec::{Coded, Encoded, Scheme};
use sluice_cuda::{CodedChunk, CodedMatrix, Coding, Gpu, Number, PaletteProduct, palette_index};

use super::Pair;
use crate::{
    device::{DeviceBuffer, coded_samples},
    error::EngineError,
    format::Format,
    ledger::Kind,
    ops::Activation,
    residency::{Data, Weight},
};

impl Pair<'_> {
    /// Each way of coding decoded, and multiplied from where a card does that.
    pub(super) fn coded(&mut self) -> Result<(), EngineError> {
        let Some(gpu) = self.tried.device().gpu().cloned() else {
            return Ok(());
        };
        for (scheme, encoded) in coded_samples() {
            self.poison()?;
            self.coded_matrix(&gpu, scheme, &encoded)?;
        }
        Ok(())
    }

    fn coded_matrix(
        &mut self,
        gpu: &Gpu,
        scheme: Scheme,
        encoded: &Encoded,
    ) -> Result<(), EngineError> {
        let Encoded { layout, bytes } = encoded;
        let (rows, width) = (layout.rows(), layout.width());
        let mut numbers = vec![0.0; rows * width];
        let coded = Coded::new(layout.clone(), bytes);
        let widened = coded.and_then(|coded| coded.widen_rows(0..rows, &mut numbers));
        widened.expect("it was coded here");
        let on_card = self.on_card(bytes)?;
        let chunks = [CodedChunk {
            start: 0,
            rows: rows as u32,
            codes_bytes: layout.codes_len() as u32,
            escapes_bytes: layout.escapes_len() as u32,
        }];
        let (coding, name) = match scheme {
            Scheme::Palette => (Coding::Palette, "palette"),
            Scheme::Rate => (Coding::Rate, "rate"),
            Scheme::Huffman | Scheme::Plain => (Coding::Huffman, "huffman"),
        };
        let matrix = CodedMatrix {
            coding,
            source: Number::Bf16,
            width,
            tile: layout.tile(),
            bytes: on_card.span(),
            chunks: &chunks,
        };
        let number = self.tried.device().number();
        let found = self.tried.matrix(rows, width, &numbers, number)?;
        gpu.fill(found.span(), 0xFF)?;
        gpu.decode(number, found.span(), &matrix)?;
        let expected = self.cpu.matrix(rows, width, &numbers, Number::F32)?;
        self.check(format!("decode, {name}"), [&expected, &found])?;
        if !matrix.is_multiplied() {
            return Ok(());
        }
        let index = palette_index(width, layout.tile(), &chunks, bytes);
        let index = self.on_card(bytemuck::cast_slice(&index.expect("it was coded here")))?;
        for inputs in [1, 8, 33, 300] {
            self.poison()?;
            let [a, b] = self.activations(inputs, width, 2.0)?;
            let weight = Weight {
                format: Format::F32,
                rows,
                width,
                data: Data::Host(bytemuck::cast_slice(&numbers)),
                epoch: 0,
            };
            let expected = self.cpu.linear(&a, &weight)?;
            let found = self
                .tried
                .matrix(inputs, rows, &vec![0.0; inputs * rows], number)?;
            gpu.fill(found.span(), 0xFF)?;
            gpu.multiply_palette(number, product(&found, &b, &matrix, &index))?;
            let tolerance = self.product_tolerance(weight.format);
            let name = format!("linear, {inputs} x {width} x {rows}, {name}");
            self.check_within(tolerance, name, [&expected, &found])?;
        }
        Ok(())
    }

    fn on_card(&self, bytes: &[u8]) -> Result<DeviceBuffer<u8>, EngineError> {
        let (device, ledger) = (self.tried.device(), self.tried.ledger());
        DeviceBuffer::filled(device, ledger, Kind::Weights, bytes.len(), |memory| {
            memory.copy_from_slice(bytes);
        })
    }
}

fn product<'a>(
    out: &Activation,
    x: &Activation,
    weights: &'a CodedMatrix<'a>,
    index: &DeviceBuffer<u8>,
) -> PaletteProduct<'a> {
    PaletteProduct {
        out: out.span(),
        out_is_f32: false,
        out_stride: weights.rows(),
        x: x.span(),
        rows: x.len(),
        weights,
        index: index.span(),
        index_rows: weights.rows(),
        first_row: 0,
        accumulate: false,
    }
}
