//! The ways to quantize a model's matrices, each followed by dequantization.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use sluice_checkpoint::{
    Checkpoint, calibration::Calibration, quantize::MatrixQuantizer, weight_cache::MixRecord,
};
use sluice_codec::{CompressedMatrix, Encoded, TrellisTarget};
use sluice_formats::{DType, Format};
use sluice_measure::{
    Result,
    checkpoints::{source, upcast, write_with},
};
use sluice_optimize::blocks;
use sluice_weights::{MatrixInput, TensorSpec};

use crate::statistics::{Knowledge, Statistics};

/// Elements of a trellis code's tile.
const TILE_ELEMENTS: usize = 512;

/// Which matrices are quantized; the others are the checkpoint's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Those of layers.
    Layers,
    /// The LM head as well.
    All,
}

/// Matrices as they are after quantizing.
pub(crate) struct Quantized {
    /// Bits per quantized weight, everything included.
    pub(crate) bits: f64,
    values: HashMap<String, Vec<f32>>,
}

/// A model's matrices, in the order of a pass.
pub(crate) struct Matrices {
    model: PathBuf,
    checkpoint: Checkpoint,
    specs: Vec<(MatrixInput, TensorSpec)>,
}

impl Matrices {
    pub(crate) fn open(model: &Path) -> Result<Self> {
        let checkpoint = Checkpoint::open(&source(model))?;
        let sources = checkpoint.model_sources(&checkpoint.model()?.shape)?;
        let specs = sources.into_iter().filter_map(|source| {
            let input = MatrixInput::of(&source.spec)?;
            Some((input, source.spec))
        });
        Ok(Self {
            model: model.to_owned(),
            specs: specs.collect(),
            checkpoint,
        })
    }

    /// A folder of the model with these matrices.
    pub(crate) fn write(&self, quantized: &Quantized, to: &Path) -> Result<()> {
        write_with(&self.model, &quantized.values, to)
    }

    /// To a block format, by what is known.
    pub(crate) fn blocks(&self, format: Format, knowledge: Knowledge<'_>) -> Result<Quantized> {
        self.each(Scope::Layers, |input, spec| {
            let (_, width) = spec.size();
            let values = self.values(spec)?;
            let bytes = match (knowledge, format) {
                // As levels convert to it.
                (Knowledge::Nothing, Format::Q8_0 | Format::Q6K | Format::Q4K) => {
                    let mut bytes = vec![0; format.bytes(values.len())];
                    format.quantize(&values, &mut bytes);
                    bytes
                }
                _ => {
                    let statistics = Statistics::of(input, knowledge)?;
                    let importance = statistics.importance();
                    blocks::quantize(format, width, &values, importance, true)?.bytes
                }
            };
            Ok(dequantized(format, &bytes, values.len()))
        })
    }

    /// To `q3_k`, by candle.
    pub(crate) fn q3_k(&self) -> Result<Quantized> {
        self.each(Scope::Layers, |_, spec| {
            let values = self.values(spec)?;
            let mut bytes = vec![0; Format::Q3K.bytes(values.len())];
            quantize::store(Format::Q3K, &values, &mut bytes);
            Ok(dequantized(Format::Q3K, &bytes, values.len()))
        })
    }

    /// By trellis codes along the rows.
    pub(crate) fn trellis(&self, bits: f64) -> Result<Quantized> {
        self.each(Scope::Layers, |_, spec| {
            let (rows, width) = spec.size();
            let target = TrellisTarget::Bits(bits);
            let made = sluice_codec::quantize(
                DType::F32,
                rows,
                width,
                &self.values(spec)?,
                target,
                TILE_ELEMENTS,
            )?;
            Ok((decompressed(&made.encoded)?, made.bits))
        })
    }

    /// By columns at one rate, with what a calibration tells.
    pub(crate) fn columns(
        &self,
        bits: f64,
        calibration: Option<&Calibration>,
        scope: Scope,
    ) -> Result<Quantized> {
        self.by_columns(calibration, scope, |_| Some(bits))
    }

    /// By columns at a mix's rates.
    pub(crate) fn mix(&self, record: &MixRecord, calibration: &Calibration) -> Result<Quantized> {
        let groups = record.groups.iter();
        let rates: HashMap<&str, Option<f64>> = groups
            .flat_map(|group| {
                let bits = (!group.is_original).then_some(group.bits);
                group.tensors.iter().map(move |name| (name.as_str(), bits))
            })
            .collect();
        let bits = |name: &str| rates.get(name).copied().flatten();
        self.by_columns(Some(calibration), Scope::All, bits)
    }

    /// `bits` gives a matrix's rate, or nothing where it stays as it is.
    fn by_columns(
        &self,
        calibration: Option<&Calibration>,
        scope: Scope,
        bits: impl Fn(&str) -> Option<f64>,
    ) -> Result<Quantized> {
        let never = AtomicBool::new(false);
        let mut quantizer = MatrixQuantizer::new(&self.checkpoint, calibration, &never);
        self.each(scope, |_, spec| {
            let Some(bits) = bits(&spec.name) else {
                let entry = self.checkpoint.tensor(&spec.name);
                let format = entry.ok_or("a tensor is missing")?.format.clone()?;
                return Ok((self.values(spec)?, format.bits()));
            };
            let mut chunks = Vec::new();
            let made = quantizer.quantize(spec, bits, &mut |chunk| {
                chunks.push(chunk.clone());
                Ok(())
            })?;
            let mut values = Vec::new();
            for chunk in &chunks {
                values.extend(decompressed(chunk)?);
            }
            Ok((values, made.bits))
        })
    }

    /// Quantizes each matrix; `quantize` returns its elements afterwards, and the bits of each.
    fn each(
        &self,
        scope: Scope,
        mut quantize: impl FnMut(MatrixInput, &TensorSpec) -> Result<(Vec<f32>, f64)>,
    ) -> Result<Quantized> {
        let (mut all, mut count, mut bits) = (HashMap::new(), 0.0, 0.0);
        for (input, spec) in &self.specs {
            if *input == MatrixInput::LmHead && scope == Scope::Layers {
                continue;
            }
            let (values, own_bits) = quantize(*input, spec)?;
            count += values.len() as f64;
            bits += own_bits * values.len() as f64;
            all.insert(spec.name.clone(), values);
        }
        Ok(Quantized {
            bits: bits / count,
            values: all,
        })
    }

    fn values(&self, spec: &TensorSpec) -> Result<Vec<f32>> {
        let entry = self.checkpoint.tensor(&spec.name);
        upcast(&self.checkpoint, entry.ok_or("a tensor is missing")?)
    }
}

fn dequantized(format: Format, bytes: &[u8], count: usize) -> (Vec<f32>, f64) {
    let mut values = vec![0.0; count];
    format.dequantize(bytes, &mut values);
    (values, bytes.len() as f64 * 8.0 / count as f64)
}

fn decompressed(encoded: &Encoded) -> Result<Vec<f32>> {
    let matrix = CompressedMatrix::new(encoded.layout.clone(), &encoded.bytes)?;
    let rows = encoded.layout.rows();
    let mut values = vec![0.0; rows * encoded.layout.width()];
    matrix.decompress_rows_f32(0..rows, &mut values)?;
    Ok(values)
}
