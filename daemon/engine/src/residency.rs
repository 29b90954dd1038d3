//! Where weights live and how computing gets them: [`Residency::acquire`] gives a guard
//! over one group of a layer, whatever its tier. All groups are resident for now.

use crate::{
    checkpoint::{Checkpoint, CheckpointError},
    error::EngineError,
    format::Format,
    ledger::{Buffer, Kind, Ledger},
};

/// The unit of residency: weights that are used together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// The embedding, gathered row by row.
    Embedding,
    /// A layer's attention with the norm before it.
    Attention,
    /// A layer's first MLP projections with the norm before them.
    GateUp,
    /// A layer's second MLP projection.
    Down,
    /// The output projection with the norm before it.
    Head,
}

/// A tensor's part in its layer, or in the model for those outside of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// [rows, width].
    Embedding,
    /// [1, width].
    AttentionNorm,
    /// [heads · head size, width].
    Query,
    /// [key-value heads · head size, width].
    Key,
    /// [key-value heads · head size, width].
    Value,
    /// [width, heads · head size].
    AttentionOutput,
    /// [1, width].
    MlpNorm,
    /// [MLP width, width]; goes through the activation.
    Gate,
    /// [MLP width, width].
    Up,
    /// [width, MLP width].
    Down,
    /// [1, width].
    FinalNorm,
    /// [rows, width].
    Head,
}

impl Part {
    const COUNT: usize = 12;

    /// The group it is read with.
    #[must_use]
    pub fn group(self) -> Group {
        match self {
            Self::Embedding => Group::Embedding,
            Self::AttentionNorm | Self::Query | Self::Key | Self::Value | Self::AttentionOutput => {
                Group::Attention
            }
            Self::MlpNorm | Self::Gate | Self::Up => Group::GateUp,
            Self::Down => Group::Down,
            Self::FinalNorm | Self::Head => Group::Head,
        }
    }
}

/// A tensor that a model needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Exact full name in the checkpoint.
    pub name: String,
    /// Shape there: one size for norms, two for matrices ([out, in]).
    pub shape: Vec<usize>,
    /// Layer, 0 for parts outside of layers.
    pub layer: usize,
    /// Its part there.
    pub part: Part,
}

/// A matrix or vector of weights, where it lies.
#[derive(Debug, Clone, Copy)]
pub struct Weight<'a> {
    /// How its numbers are stored.
    pub format: Format,
    /// Outputs; 1 for a vector.
    pub rows: usize,
    /// Inputs.
    pub width: usize,
    /// The numbers, row after row.
    pub bytes: &'a [u8],
    /// Number of the weights' state it belongs to.
    pub epoch: u64,
}

impl<'a> Weight<'a> {
    /// The rows `from..to` alone.
    ///
    /// # Panics
    /// When they lie outside.
    #[must_use]
    pub fn rows(&self, from: usize, to: usize) -> Weight<'a> {
        let stride = self.format.bytes(self.width);
        Weight {
            rows: to - from,
            bytes: &self.bytes[from * stride..to * stride],
            ..*self
        }
    }
}

/// All weights of a loaded model.
#[derive(Debug)]
pub struct Residency {
    arena: Buffer<u64>,
    /// By layer and part.
    places: Vec<Option<Place>>,
    epoch: u64,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    format: Format,
    rows: usize,
    width: usize,
    /// In the arena, in bytes.
    offset: usize,
}

/// Tensors start on cache lines.
const ALIGNMENT: usize = 64;

impl Residency {
    /// Checks every tensor of `specs` against the checkpoint's headers, reserves memory for
    /// all of them, then reads them one by one. `progress` is told the bytes read so far and
    /// those in all.
    ///
    /// # Errors
    /// A missing, wrong-shaped or unreadable tensor, or memory that can't be had.
    pub fn load(
        checkpoint: &Checkpoint,
        specs: &[TensorSpec],
        ledger: &Ledger,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, EngineError> {
        let mut reads = Vec::with_capacity(specs.len());
        let mut size = 0usize;
        for spec in specs {
            let (entry, format) = checked_entry(checkpoint, spec)?;
            let (rows, width) = match spec.shape[..] {
                [width] => (1, width),
                [rows, width] => (rows, width),
                _ => unreachable!("a model asks for vectors and matrices alone"),
            };
            let place = Place {
                format,
                rows,
                width,
                offset: size,
            };
            size += format.bytes(rows * width).next_multiple_of(ALIGNMENT);
            reads.push((spec, entry, place));
        }
        let mut residency = Self {
            arena: ledger.buffer(Kind::Weights, size.div_ceil(size_of::<u64>()))?,
            places: Vec::new(),
            epoch: 0,
        };
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut residency.arena);
        let mut done = 0;
        progress(done, size as u64);
        for (spec, entry, place) in reads {
            let len = place.format.bytes(place.rows * place.width);
            checkpoint.read(entry, &mut bytes[place.offset..place.offset + len])?;
            let slot = spec.layer * Part::COUNT + spec.part as usize;
            if residency.places.len() <= slot {
                residency.places.resize(slot + 1, None);
            }
            residency.places[slot] = Some(place);
            done += len.next_multiple_of(ALIGNMENT) as u64;
            progress(done, size as u64);
        }
        Ok(residency)
    }

    /// Waits for a group of a layer and holds it until the guard is dropped.
    #[must_use]
    pub fn acquire(&self, layer: usize, group: Group) -> Guard<'_> {
        Guard {
            residency: self,
            layer,
            group,
        }
    }

    /// Number of the weights' state; it changes with every swap of a group.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Bytes of all weights as they are stored.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        let bytes = |place: &Place| place.format.bytes(place.rows * place.width) as u64;
        self.places.iter().flatten().map(bytes).sum()
    }

    /// Formats met, without repetition.
    #[must_use]
    pub fn formats(&self) -> Vec<Format> {
        let mut formats: Vec<_> = self
            .places
            .iter()
            .flatten()
            .map(|place| place.format)
            .collect();
        formats.sort_unstable();
        formats.dedup();
        formats
    }
}

fn checked_entry<'a>(
    checkpoint: &'a Checkpoint,
    spec: &TensorSpec,
) -> Result<(&'a crate::checkpoint::TensorEntry, Format), CheckpointError> {
    let tensor = || spec.name.clone();
    let entry = checkpoint
        .tensor(&spec.name)
        .ok_or_else(|| CheckpointError::MissingTensor { tensor: tensor() })?;
    let format = entry
        .format
        .clone()
        .map_err(|found| CheckpointError::WrongFormat {
            tensor: tensor(),
            found,
        })?;
    if entry.shape != spec.shape {
        return Err(CheckpointError::WrongShape {
            tensor: tensor(),
            found: entry.shape.clone(),
            expected: spec.shape.clone(),
        });
    }
    Ok((entry, format))
}

/// A group of weights, held in place.
pub struct Guard<'a> {
    residency: &'a Residency,
    layer: usize,
    group: Group,
}

impl Guard<'_> {
    /// One of the group's weights.
    ///
    /// # Panics
    /// When the part belongs to another group, or the model has no such part.
    #[must_use]
    pub fn weight(&self, part: Part) -> Weight<'_> {
        assert_eq!(
            part.group(),
            self.group,
            "{part:?} is not in the group held"
        );
        let place = self.residency.places[self.layer * Part::COUNT + part as usize]
            .expect("a model acquires what its own specification named");
        let bytes: &[u8] = bytemuck::cast_slice(&self.residency.arena);
        Weight {
            format: place.format,
            rows: place.rows,
            width: place.width,
            bytes: &bytes
                [place.offset..place.offset + place.format.bytes(place.rows * place.width)],
            epoch: self.residency.epoch,
        }
    }
}
