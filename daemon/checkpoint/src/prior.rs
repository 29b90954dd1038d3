//! The learned prior of a latent thought model: `prior.json` and `prior.safetensors` beside its weights, as
//! `sluice-train prior` writes them.

use std::{collections::BTreeMap, ops::Range};

use serde::Deserialize;
use sluice_formats::Format;
use sluice_weights::HIDDEN_SIZE_MAX;

use super::{
    CONFIG_BYTES_MAX, Checkpoint, CheckpointError,
    file::{self, CheckpointFile},
    parse_json,
    safetensors::{self, HeaderAllowance},
};

const CONFIG_NAME: &str = "prior.json";
const WEIGHTS_NAME: &str = "prior.safetensors";

/// Most layers; the trainer makes 4.
const LAYERS_MAX: usize = 64;
/// Largest width of the network; the trainer makes 256.
const WIDTH_MAX: usize = 4096;
/// Most elements of all tensors: 1 GiB.
const ELEMENTS_MAX: usize = 1 << 28;
/// The sizes of a prior's network: a diffusion transformer with a row for each latent vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct PriorShape {
    /// Latent vectors of a text.
    pub vectors: usize,
    /// Elements of a latent vector.
    pub latent_width: usize,
    /// Elements of a row between layers.
    pub width: usize,
    /// Number of layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
}

impl PriorShape {
    /// Names and shapes of all tensors, in the order in which [`PriorFile::read`] puts them.
    #[must_use]
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let Self {
            vectors,
            latent_width,
            width,
            ..
        } = *self;
        let mut tensors = vec![
            ("mean".to_owned(), vec![vectors, latent_width]),
            ("deviation".to_owned(), vec![vectors, latent_width]),
            ("places".to_owned(), vec![vectors, width]),
        ];
        let mut linear = |name: String, rows: usize, width: usize| {
            tensors.push((format!("{name}.weight"), vec![rows, width]));
            tensors.push((format!("{name}.bias"), vec![rows]));
        };
        linear("input".to_owned(), width, latent_width);
        linear("time.0".to_owned(), width, width);
        linear("time.1".to_owned(), width, width);
        for layer in 0..self.layers {
            linear(format!("layers.{layer}.modulation"), 6 * width, width);
            for part in ["query", "key", "value", "out"] {
                linear(format!("layers.{layer}.{part}"), width, width);
            }
            linear(format!("layers.{layer}.up"), 4 * width, width);
            linear(format!("layers.{layer}.down"), width, 4 * width);
        }
        linear("final.modulation".to_owned(), 2 * width, width);
        linear("output".to_owned(), latent_width, width);
        tensors
    }

    /// Refuses sizes that are not those of the model's latents, or beyond all reason.
    fn check(&self, [vectors, latent_width]: [usize; 2]) -> Result<(), String> {
        let Self {
            width,
            layers,
            heads,
            ..
        } = *self;
        if [self.vectors, self.latent_width] != [vectors, latent_width] {
            return Err(format!(
                "is the prior of another model: for {} latents of {} elements, and the model has {vectors} of {latent_width}",
                self.vectors, self.latent_width
            ));
        }
        let within = |name: &str, value: usize, max: usize| match (1..=max).contains(&value) {
            true => Ok(()),
            false => Err(format!("{name} is {value}, not from 1 to {max}")),
        };
        within("vectors", vectors, 1 << 16)?;
        within("latent_width", latent_width, HIDDEN_SIZE_MAX)?;
        within("width", width, WIDTH_MAX)?;
        within("layers", layers, LAYERS_MAX)?;
        within("heads", heads, WIDTH_MAX)?;
        if !width.is_multiple_of(2) || !width.is_multiple_of(heads) {
            return Err(format!(
                "width is {width}, which must be even and a multiple of the {heads} heads"
            ));
        }
        let elements: usize = (self.tensors().iter())
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum();
        match elements <= ELEMENTS_MAX {
            true => Ok(()),
            false => Err(format!(
                "has {elements} elements; the limit is {ELEMENTS_MAX}"
            )),
        }
    }
}

/// A prior's open file, whose header is that of its shape.
#[derive(Debug)]
pub struct PriorFile {
    /// The network's sizes.
    pub shape: PriorShape,
    file: CheckpointFile,
    /// Of each tensor its name, its elements among those of all, and the offset of its bytes.
    tensors: Vec<(String, Range<usize>, u64)>,
}

impl Checkpoint {
    /// The learned prior beside a model with so many latents of so many elements, if it has one. Single files that hold
    /// a whole model have none.
    ///
    /// # Errors
    /// When one of its two files is missing, or it is not a prior of such latents.
    pub fn prior(&self, latents: [usize; 2]) -> Result<Option<PriorFile>, CheckpointError> {
        if self.gguf.is_some() || self.is_container() {
            return Ok(None);
        }
        let Some(config) = self.small_file(CONFIG_NAME, CONFIG_BYTES_MAX)? else {
            return Ok(None);
        };
        let shape: PriorShape = parse_json(&self.source, CONFIG_NAME, &config)?;
        let malformed = |cause| CheckpointError::MalformedFile {
            path: file::describe(&self.source, CONFIG_NAME),
            cause,
        };
        shape.check(latents).map_err(malformed)?;
        let file = CheckpointFile::open(&self.source, WEIGHTS_NAME)?;
        PriorFile::new(shape, file).map(Some)
    }
}

impl PriorFile {
    fn new(shape: PriorShape, file: CheckpointFile) -> Result<Self, CheckpointError> {
        let malformed = |cause| CheckpointError::MalformedFile {
            path: file.path.clone(),
            cause,
        };
        let header = safetensors::read_header(&file, 0, &mut HeaderAllowance::default())?;
        let expected = shape.tensors();
        let mut tensors = Vec::with_capacity(expected.len());
        let mut elements = 0;
        let mut found: BTreeMap<_, _> = header.into_iter().collect();
        for (tensor, shape) in expected {
            let Some(entry) = found.remove(&tensor) else {
                return Err(malformed(format!("tensor {tensor} is missing")));
            };
            if entry.format != Ok(Format::F32) {
                let format = entry
                    .format
                    .map_or_else(|name| name, |format| format.name().to_owned());
                return Err(malformed(format!("tensor {tensor} is {format}, not f32")));
            }
            if entry.shape != shape {
                return Err(malformed(format!(
                    "tensor {tensor} has shape {:?}; {CONFIG_NAME} requires {shape:?}",
                    entry.shape
                )));
            }
            let count: usize = shape.iter().product();
            tensors.push((tensor, elements..elements + count, entry.offset));
            elements += count;
        }
        match found.into_keys().next() {
            Some(tensor) => Err(malformed(format!("tensor {tensor} is not that of a prior"))),
            None => Ok(Self {
                shape,
                file,
                tensors,
            }),
        }
    }

    /// Elements of all tensors.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.tensors.last().map_or(0, |(_, range, _)| range.end)
    }

    /// Reads all tensors, one after another in the order of [`PriorShape::tensors`].
    ///
    /// # Errors
    /// When the file is shorter than its header says, an element is not finite, or a deviation is not positive.
    ///
    /// # Panics
    /// When `out` has not [`PriorFile::elements`] elements.
    pub fn read(&self, out: &mut [f32]) -> Result<(), CheckpointError> {
        assert_eq!(out.len(), self.elements());
        for (tensor, range, offset) in &self.tensors {
            let values = &mut out[range.clone()];
            (self.file).read_at(*offset, bytemuck::cast_slice_mut(values))?;
            let broken = |what: &str| CheckpointError::MalformedFile {
                path: self.file.path.clone(),
                cause: format!("tensor {tensor} has {what}"),
            };
            if !values.iter().all(|value| value.is_finite()) {
                return Err(broken("elements that are not finite"));
            }
            if tensor == "deviation" && !values.iter().all(|&value| value > 0.0) {
                return Err(broken("elements that are not positive"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
