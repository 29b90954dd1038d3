//! A GPU's kernels for compressed weights, compared with the codec.

use sluice_codec::{CompressedMatrix, Encoded};
use sluice_cuda::{CompressedGpuMatrix, DictionaryMatmul, Gpu};
use sluice_formats::{DType, Format};
use sluice_ops::{
    Activation,
    device::DeviceBuffer,
    measure::{CompressedSample, GpuSample},
};
use sluice_weights::{Weight, WeightData};

use super::DevicePair;
use sluice_engine::EngineError;

/// Rows of a chunk; the rows' last tile is not whole.
const CHUNK_ROWS: usize = 256;
const WIDTH: usize = 768;
/// So many chunks that a matmul has as many large tiles as those of large models.
const CHUNKS: usize = 17;

impl DevicePair<'_> {
    /// Decompresses each scheme, and multiplies from it where a GPU can.
    pub(super) fn compressed(&mut self) -> Result<(), EngineError> {
        let Some(gpu) = self.tried.device().gpu().cloned() else {
            return Ok(());
        };
        for sample in CompressedSample::all(CHUNK_ROWS, WIDTH) {
            self.poison()?;
            self.compressed_matrix(&gpu, &sample)?;
        }
        Ok(())
    }

    fn compressed_matrix(
        &mut self,
        gpu: &Gpu,
        sample: &CompressedSample,
    ) -> Result<(), EngineError> {
        let Encoded { layout, bytes } = &sample.encoded;
        let (rows, width) = (CHUNKS * CHUNK_ROWS, WIDTH);
        let mut numbers = vec![0.0; CHUNK_ROWS * width];
        let compressed = CompressedMatrix::new(layout.clone(), bytes);
        let widened = compressed
            .and_then(|compressed| compressed.decompress_rows_f32(0..CHUNK_ROWS, &mut numbers));
        widened.expect("it was coded here");
        let numbers = numbers.repeat(CHUNKS);
        let (device, ledger) = (self.tried.device(), self.tried.ledger());
        let on_gpu = GpuSample::new(device, ledger, sample, CHUNKS)?;
        let matrix = on_gpu.matrix();
        let name = matrix.compression.name();
        let number = self.tried.device().dtype();
        let found = self.tried.matrix(rows, width, &numbers, number)?;
        gpu.fill(found.span(), 0xFF)?;
        gpu.decompress(number, found.span(), &matrix)?;
        let expected = self.cpu.matrix(rows, width, &numbers, DType::F32)?;
        self.check(format!("decode, {name}"), [&expected, &found])?;
        if !matrix.has_matmul() {
            return Ok(());
        }
        let (device, ledger) = (self.tried.device(), self.tried.ledger());
        let index = on_gpu.index(device, ledger)?;
        for inputs in [1, 8, 33, 300] {
            self.poison()?;
            let [a, b] = self.activations(inputs, width, 2.0)?;
            let weight = Weight {
                format: Format::F32,
                rows,
                width,
                data: WeightData::Host(bytemuck::cast_slice(&numbers)),
                weights_version: 0,
            };
            let expected = self.cpu.linear(&a, &weight)?;
            let found = self
                .tried
                .matrix(inputs, rows, &vec![0.0; inputs * rows], number)?;
            gpu.fill(found.span(), 0xFF)?;
            gpu.matmul_dictionary(number, matmul(&found, &b, &matrix, &index))?;
            let tolerance = self.matmul_tolerance(weight.format);
            let name = format!("linear, {inputs} x {width} x {rows}, {name}");
            self.check_within(tolerance, name, [&expected, &found])?;
        }
        Ok(())
    }
}

fn matmul<'a>(
    out: &Activation,
    x: &Activation,
    weights: &'a CompressedGpuMatrix<'a>,
    index: &DeviceBuffer<u32>,
) -> DictionaryMatmul<'a> {
    DictionaryMatmul {
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
