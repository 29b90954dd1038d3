//! Calibration files: the second moments of the inputs of a model's matrices, as passes of that model had them. Read one
//! input at a time; of a large model a single one may take a gigabyte.

mod error;
mod layout;
mod write;

use std::{collections::BTreeMap, fmt, path::Path};

use sluice_optimize::moments::Moments;
use sluice_weights::{MatrixInput, Shape, TensorSpec};

pub use self::{
    error::CalibrationError,
    layout::{CalibrationOrigin, InputRows, ModelIdentity, text_mark, text_marks},
    write::{CalibrationWriter, remove_abandoned},
};
use self::{
    layout::{Part, tensor_name},
    write::folder_of,
};
use super::{
    Source, TensorEntry,
    file::CheckpointFile,
    safetensors::{HeaderAllowance, read_header},
    weight_cache::read_metadata,
};

/// Fewest positions that a calibration is read or made of: below, its figures are those of a few sentences.
pub const POSITIONS_MIN: u64 = 512;
/// How far sums of products in `f32` may differ from those in `f64`, relative to what they are made of. Those of 100,000
/// positions differ by a millionth.
const TOLERANCE: f64 = 1e-3;

/// What stands at a position of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PositionKind {
    /// A mask, of a masked diffusion model.
    Masked,
    /// A token.
    Clean,
}

impl PositionKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Masked, Self::Clean];
}

impl fmt::Display for PositionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Masked => "masked",
            Self::Clean => "clean",
        })
    }
}

/// An open calibration file, whose header is consistent.
#[derive(Debug)]
pub struct Calibration {
    file: CheckpointFile,
    origin: CalibrationOrigin,
    tensors: BTreeMap<String, TensorEntry>,
}

impl Calibration {
    /// Opens a calibration and checks its header: every tensor and its shape, and that nothing else is there.
    ///
    /// # Errors
    /// When it can't be read, is damaged or none, or was made of too little text.
    pub fn open(path: &Path) -> Result<Self, CalibrationError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let file = CheckpointFile::open(&Source::Folder(folder_of(path).to_owned()), &name)?;
        let damaged = |cause: String| CalibrationError::Damaged {
            path: path.to_owned(),
            cause,
        };
        let tensors: BTreeMap<_, _> = read_header(&file, 0, &mut HeaderAllowance::default())?
            .into_iter()
            .collect();
        let origin = CalibrationOrigin::read(&read_metadata(&file)?).map_err(damaged)?;
        if origin.positions < POSITIONS_MIN {
            return Err(CalibrationError::TooLittle {
                what: path.display().to_string(),
                positions: origin.positions,
                needed: POSITIONS_MIN,
            });
        }
        check_tensors(&origin, &tensors).map_err(damaged)?;
        Ok(Self {
            file,
            origin,
            tensors,
        })
    }

    /// [`Calibration::open`], for the model that it has to be of.
    ///
    /// # Errors
    /// As there, and when it is of another model.
    pub fn open_for(path: &Path, model: &ModelIdentity) -> Result<Self, CalibrationError> {
        let calibration = Self::open(path)?;
        let own = &calibration.origin.model;
        match own.is_same_as(model) {
            true => Ok(calibration),
            false => Err(CalibrationError::AnotherModel {
                path: path.to_owned(),
                calibrated: Box::new(own.clone()),
                expected: Box::new(model.clone()),
            }),
        }
    }

    /// What it says of its making.
    #[must_use]
    pub fn origin(&self) -> &CalibrationOrigin {
        &self.origin
    }

    /// The statistics of an input at positions of a kind; `None` if no pass had any. Takes the memory of these alone.
    ///
    /// # Errors
    /// When they can't be read, or are no statistics of any input.
    pub fn input(
        &self,
        input: MatrixInput,
        kind: PositionKind,
    ) -> Result<Option<Moments>, CalibrationError> {
        let name = |part| tensor_name(input, kind, part);
        if !self.tensors.contains_key(&name(Part::Positions)) {
            return Ok(None);
        }
        let damaged = |cause: String| CalibrationError::Damaged {
            path: self.file.path.clone().into(),
            cause: format!("{input} at {kind} positions: {cause}"),
        };
        let width = self.origin.model.width(input);
        let [rows] = self.numbers(&name(Part::Positions), 0, 1, u64::from_le_bytes)?[..] else {
            return Err(damaged("its positions are missing".to_owned()));
        };
        let sums = self.numbers(&name(Part::Sums), 0, width, f64::from_le_bytes)?;
        let squares = self.numbers(&name(Part::Squares), 0, width, f64::from_le_bytes)?;
        check_sums(rows, &sums, &squares).map_err(damaged)?;
        let roots: Vec<f64> = squares.iter().map(|square| square.sqrt()).collect();
        let is_full = self.origin.is_full;
        let mut moments =
            Moments::from_sums(rows, sums, squares, is_full).map_err(|e| damaged(e.to_string()))?;
        if is_full {
            let mut start = 0;
            for row in 0..width {
                let values =
                    self.numbers(&name(Part::Products), start, row + 1, f32::from_le_bytes)?;
                check_products(row, &values, &roots).map_err(damaged)?;
                let set = moments.set_products_row(row, &values);
                set.map_err(|error| damaged(error.to_string()))?;
                start += row as u64 + 1;
            }
        }
        Ok(Some(moments))
    }

    /// Elements `first..first + count` of a tensor.
    fn numbers<T, const N: usize>(
        &self,
        tensor: &str,
        first: u64,
        count: usize,
        number: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, CalibrationError> {
        let mut bytes = vec![0; count * N];
        let offset = self.tensors[tensor].offset + first * N as u64;
        self.file.read_at(offset, &mut bytes)?;
        let (chunks, _) = bytes.as_chunks::<N>();
        Ok(chunks.iter().map(|chunk| number(*chunk)).collect())
    }
}

/// Whether the tensors are those of some inputs of the model, whole and with their shapes, and no others.
fn check_tensors(
    origin: &CalibrationOrigin,
    tensors: &BTreeMap<String, TensorEntry>,
) -> Result<(), String> {
    let mut known = 0;
    for input in MatrixInput::all(origin.model.layers) {
        let width = origin.model.width(input);
        let has =
            |kind: &PositionKind| tensors.contains_key(&tensor_name(input, *kind, Part::Positions));
        let mut kinds = PositionKind::ALL.into_iter().filter(has).peekable();
        // Every pass has rows of every input.
        if kinds.peek().is_none() {
            return Err(format!("{input} is missing"));
        }
        for kind in kinds {
            for part in Part::all(origin.is_full) {
                let name = tensor_name(input, kind, part);
                match tensors.get(&name) {
                    Some(entry) if part.is(entry, width) => known += 1,
                    Some(entry) => {
                        let (found, expected) = (&entry.shape, part.elements(width));
                        return Err(format!(
                            "tensor {name} has shape {found:?}, or another dtype; expected is [{expected}]"
                        ));
                    }
                    None => return Err(format!("tensor {name} is missing")),
                }
            }
        }
    }
    match tensors.len() {
        all if all == known => Ok(()),
        all => Err(format!("{known} of its {all} tensors belong to its model")),
    }
}

/// Sums and sums of squares that some rows can have.
fn check_sums(rows: u64, sums: &[f64], squares: &[f64]) -> Result<(), String> {
    if rows == 0 {
        return Err("they are of no position".to_owned());
    }
    for (column, (sum, square)) in sums.iter().zip(squares).enumerate() {
        // Written so that NaN fails. The square of a mean is at most the mean square.
        let is_possible = square.is_finite()
            && *square >= 0.0
            && sum * sum <= rows as f64 * square * (1.0 + TOLERANCE);
        if !is_possible {
            return Err(format!("column {column} has impossible sums"));
        }
    }
    Ok(())
}

/// A row of products up to the diagonal: there the squares again, elsewhere at most what Cauchy and Schwarz allow.
fn check_products(row: usize, values: &[f32], roots: &[f64]) -> Result<(), String> {
    for (column, value) in values.iter().enumerate() {
        let (value, most) = (f64::from(*value), roots[row] * roots[column]);
        let is_possible = match column == row {
            true => (value - most).abs() <= most * TOLERANCE,
            false => value.abs() <= most * (1.0 + TOLERANCE),
        };
        if !is_possible {
            return Err(format!(
                "row {row}, column {column} has an impossible product"
            ));
        }
    }
    Ok(())
}

impl ModelIdentity {
    /// The identity of a model of this shape with these tensors, which may be pruned.
    #[must_use]
    pub fn new<'a>(
        name: &str,
        family: &str,
        fingerprint: String,
        shape: &Shape,
        tensors: impl IntoIterator<Item = &'a TensorSpec>,
    ) -> Self {
        let width = |spec: &TensorSpec| Some((MatrixInput::of(spec)?, *spec.shape.get(1)?));
        let widths = tensors.into_iter().filter_map(width);
        Self {
            name: name.to_owned(),
            family: family.to_owned(),
            fingerprint,
            layers: shape.layers,
            hidden_size: MatrixInput::LmHead.width(shape),
            attention_size: MatrixInput::AttentionOutput(0).width(shape),
            intermediate_size: MatrixInput::Down(0).width(shape),
            pruned: widths
                .filter(|(input, width)| *width != input.width(shape))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests;
