//! What a calibration file holds and where: names and shapes of its tensors, and its metadata.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use serde_json::{Map, Value, json};
use sluice_formats::Format;
use sluice_weights::MatrixInput;

use super::PositionKind;
use crate::TensorEntry;

/// Version of this layout; a file of another one is refused.
const VERSION: &str = "1";
/// Longest name of a model or family.
const NAME_CHARS_MAX: usize = 200;
/// Most layers that a file may say: far beyond any model.
const LAYERS_MAX: usize = 4096;
/// Greatest width that a file may say.
const WIDTH_MAX: usize = 1 << 20;
/// Alignment of the first tensor.
const ALIGNMENT: usize = 64;

const VERSION_KEY: &str = "sluice.calibration";
const SOURCE_KEY: &str = "sluice.source";
const NAME_KEY: &str = "sluice.model";
const FAMILY_KEY: &str = "sluice.family";
const LAYERS_KEY: &str = "sluice.layers";
const HIDDEN_KEY: &str = "sluice.hidden_size";
const ATTENTION_KEY: &str = "sluice.attention_size";
const INTERMEDIATE_KEY: &str = "sluice.intermediate_size";
const PRUNED_KEY: &str = "sluice.pruned";
const TEXT_KEY: &str = "sluice.text_hash";
const TEXTS_KEY: &str = "sluice.texts";
const SEED_KEY: &str = "sluice.seed";
const PASSES_KEY: &str = "sluice.passes";
const POSITIONS_KEY: &str = "sluice.positions";
const FULL_KEY: &str = "sluice.full";
const LOSSLESS_KEY: &str = "sluice.lossless";

/// Which model a calibration is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelIdentity {
    /// Its name, for people.
    pub name: String,
    /// Its family, for people.
    pub family: String,
    /// The fingerprint of its checkpoint, as converted weights have it.
    pub fingerprint: String,
    /// Number of layers.
    pub layers: usize,
    /// Elements of a row between layers.
    pub hidden_size: usize,
    /// Elements of a row of all attention heads.
    pub attention_size: usize,
    /// Elements of a row inside the MLP.
    pub intermediate_size: usize,
    /// The inputs that have fewer elements, in pruned layers, and how many.
    pub pruned: BTreeMap<MatrixInput, usize>,
}

impl ModelIdentity {
    /// Elements of a row of an input.
    #[must_use]
    pub fn width(&self, input: MatrixInput) -> usize {
        let pruned = self.pruned.get(&input);
        pruned.copied().unwrap_or_else(|| self.width_of_kind(input))
    }

    /// Elements of a row of an input of this kind, in a layer that isn't pruned.
    fn width_of_kind(&self, input: MatrixInput) -> usize {
        match input {
            MatrixInput::Attention(_) | MatrixInput::Mlp(_) | MatrixInput::LmHead => {
                self.hidden_size
            }
            MatrixInput::AttentionOutput(_) => self.attention_size,
            MatrixInput::Down(_) => self.intermediate_size,
        }
    }

    /// Whether both are the same checkpoint, whatever it is called.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        let sizes = |model: &Self| {
            [
                model.layers,
                model.hidden_size,
                model.attention_size,
                model.intermediate_size,
            ]
        };
        let is_same_size = sizes(self) == sizes(other) && self.pruned == other.pruned;
        self.fingerprint == other.fingerprint && is_same_size
    }

    /// The pruned inputs by their names.
    fn pruned_to_json(&self) -> String {
        let pruned = self.pruned.iter();
        let each = pruned.map(|(input, width)| (input.to_string(), (*width).into()));
        Value::Object(each.collect()).to_string()
    }

    /// Takes them from there; `None` if an input or a width is impossible.
    fn with_pruned(mut self, json: &str) -> Option<Self> {
        let mut said: BTreeMap<String, usize> = serde_json::from_str(json).ok()?;
        for input in MatrixInput::all(self.layers) {
            if let Some(width) = said.remove(&input.to_string()) {
                let is_possible = (1..=self.width_of_kind(input)).contains(&width);
                is_possible.then(|| self.pruned.insert(input, width))?;
            }
        }
        said.is_empty().then_some(self)
    }
}

impl fmt::Display for ModelIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (checkpoint {}, {} layers of {})",
            self.name, self.fingerprint, self.layers, self.hidden_size
        )
    }
}

/// What a calibration was made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalibrationOrigin {
    /// The model.
    pub model: ModelIdentity,
    /// Hash of the token ids of the text.
    pub text_hash: u64,
    /// [`text_mark`] of each text that passes were made of, rising; empty where that was not written down.
    pub texts: Vec<u32>,
    /// Seed of masks and decodes.
    pub seed: u64,
    /// Number of passes.
    pub passes: u64,
    /// Positions of all passes.
    pub positions: u64,
    /// Whether it has whole matrices, and not only their diagonals.
    pub is_full: bool,
    /// Whether all passes had the checkpoint's own weights, bit for bit.
    pub is_lossless: bool,
}

impl CalibrationOrigin {
    pub(super) fn to_metadata(&self) -> Map<String, Value> {
        let name = |name: &str| name.chars().take(NAME_CHARS_MAX).collect::<String>();
        let pairs = [
            (VERSION_KEY, VERSION.to_owned()),
            (SOURCE_KEY, self.model.fingerprint.clone()),
            (NAME_KEY, name(&self.model.name)),
            (FAMILY_KEY, name(&self.model.family)),
            (LAYERS_KEY, self.model.layers.to_string()),
            (HIDDEN_KEY, self.model.hidden_size.to_string()),
            (ATTENTION_KEY, self.model.attention_size.to_string()),
            (INTERMEDIATE_KEY, self.model.intermediate_size.to_string()),
            (PRUNED_KEY, self.model.pruned_to_json()),
            (TEXT_KEY, format!("{:016x}", self.text_hash)),
            (TEXTS_KEY, to_digits(&self.texts)),
            (SEED_KEY, self.seed.to_string()),
            (PASSES_KEY, self.passes.to_string()),
            (POSITIONS_KEY, self.positions.to_string()),
            (FULL_KEY, self.is_full.to_string()),
            (LOSSLESS_KEY, self.is_lossless.to_string()),
        ];
        let pairs = pairs.into_iter();
        pairs
            .map(|(key, value)| (key.to_owned(), value.into()))
            .collect()
    }

    /// What a file's metadata says, within bounds.
    pub(super) fn read(said: &HashMap<String, String>) -> Result<Self, String> {
        let text = |key: &str| said.get(key).ok_or_else(|| format!("{key} is missing"));
        let version = text(VERSION_KEY)?;
        if version != VERSION {
            let version: String = version.chars().take(20).collect();
            return Err(format!(
                "its version is {version:?}; this program reads version {VERSION}"
            ));
        }
        let wrong = |key: &str| format!("{key} is no possible value");
        let number = |key: &str| text(key)?.parse::<u64>().map_err(|_| wrong(key));
        let size = |key: &str, max: usize| match number(key)? {
            size if (1..=max as u64).contains(&size) => Ok(size as usize),
            _ => Err(wrong(key)),
        };
        let name = |key| -> Result<String, String> {
            Ok(text(key)?.chars().take(NAME_CHARS_MAX).collect())
        };
        let flag = |key: &str| text(key)?.parse().map_err(|_| wrong(key));
        let hash = u64::from_str_radix(text(TEXT_KEY)?, 16);
        let mut model = ModelIdentity {
            name: name(NAME_KEY)?,
            family: name(FAMILY_KEY)?,
            fingerprint: name(SOURCE_KEY)?,
            layers: size(LAYERS_KEY, LAYERS_MAX)?,
            hidden_size: size(HIDDEN_KEY, WIDTH_MAX)?,
            attention_size: size(ATTENTION_KEY, WIDTH_MAX)?,
            intermediate_size: size(INTERMEDIATE_KEY, WIDTH_MAX)?,
            pruned: BTreeMap::new(),
        };
        if let Some(pruned) = said.get(PRUNED_KEY) {
            model = model.with_pruned(pruned).ok_or_else(|| wrong(PRUNED_KEY))?;
        }
        Ok(Self {
            model,
            text_hash: hash.map_err(|_| wrong(TEXT_KEY))?,
            texts: match said.get(TEXTS_KEY) {
                Some(digits) => of_digits(digits).ok_or_else(|| wrong(TEXTS_KEY))?,
                None => Vec::new(),
            },
            seed: number(SEED_KEY)?,
            passes: number(PASSES_KEY)?,
            positions: number(POSITIONS_KEY)?,
            is_full: flag(FULL_KEY)?,
            is_lossless: flag(LOSSLESS_KEY)?,
        })
    }
}

/// Tells a text from others, by its ids: whoever measures on a text must know whether a calibration has seen it.
#[must_use]
pub fn text_mark(ids: &[u32]) -> u32 {
    // FNV-1a: a file is read by other versions of this program.
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ hash >> 32) as u32
}

/// The marks of some texts, as [`CalibrationOrigin::texts`] has them.
#[must_use]
pub fn text_marks<'a>(texts: impl IntoIterator<Item = &'a Vec<u32>>) -> Vec<u32> {
    let mut marks: Vec<u32> = texts.into_iter().map(|ids| text_mark(ids)).collect();
    marks.sort_unstable();
    marks.dedup();
    marks
}

/// Eight hexadecimal digits for each.
fn to_digits(marks: &[u32]) -> String {
    marks.iter().map(|mark| format!("{mark:08x}")).collect()
}

fn of_digits(digits: &str) -> Option<Vec<u32>> {
    let (marks, rest) = digits.as_bytes().as_chunks::<8>();
    let mark = |digits: &[u8; 8]| u32::from_str_radix(str::from_utf8(digits).ok()?, 16).ok();
    rest.is_empty().then(|| marks.iter().map(mark).collect())?
}

/// How many rows of an input have positions of a kind; at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputRows {
    /// The input.
    pub input: MatrixInput,
    /// The kind of their positions.
    pub kind: PositionKind,
    /// How many.
    pub rows: u64,
}

/// The tensors of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The number of positions.
    Positions,
    /// Σ x.
    Sums,
    /// Σ x².
    Squares,
    /// The lower triangle of Σ x xᵀ, row after row up to the diagonal.
    Products,
}

impl Part {
    /// All that an input has.
    pub(super) fn all(is_full: bool) -> impl Iterator<Item = Self> {
        let products = is_full.then_some(Self::Products);
        [Self::Positions, Self::Sums, Self::Squares]
            .into_iter()
            .chain(products)
    }

    /// Its elements for an input of this width.
    pub(super) fn elements(self, width: usize) -> usize {
        match self {
            Self::Positions => 1,
            Self::Sums | Self::Squares => width,
            Self::Products => width * (width + 1) / 2,
        }
    }

    fn bytes(self, width: usize) -> u64 {
        let element = match self {
            Self::Products => size_of::<f32>(),
            Self::Positions | Self::Sums | Self::Squares => size_of::<u64>(),
        };
        (self.elements(width) * element) as u64
    }

    fn dtype(self) -> &'static str {
        match self {
            Self::Positions => "U64",
            Self::Sums | Self::Squares => "F64",
            Self::Products => "F32",
        }
    }

    /// Whether a header's tensor is this part of an input of this width.
    pub(super) fn is(self, entry: &TensorEntry, width: usize) -> bool {
        let has_dtype = match &entry.format {
            Ok(format) => self == Self::Products && *format == Format::F32,
            Err(other) => other.eq_ignore_ascii_case(self.dtype()),
        };
        has_dtype && entry.shape == [self.elements(width)]
    }

    fn name(self) -> &'static str {
        match self {
            Self::Positions => "positions",
            Self::Sums => "sums",
            Self::Squares => "squares",
            Self::Products => "products",
        }
    }
}

/// A tensor's name, such as `layers.0.down_input.masked.products`.
pub(super) fn tensor_name(input: MatrixInput, kind: PositionKind, part: Part) -> String {
    format!("{input}.{kind}.{}", part.name())
}

/// The header of a file, and where its tensors lie.
#[derive(Debug)]
pub(super) struct FileLayout {
    /// The offset of each tensor from the beginning of the file.
    pub(super) offsets: HashMap<String, u64>,
    /// Bytes of the file.
    pub(super) bytes: u64,
    tensors: Map<String, Value>,
    /// Bytes before the first tensor.
    data_start: usize,
}

impl FileLayout {
    /// The layout of a file with these inputs.
    pub(super) fn new(origin: &CalibrationOrigin, inputs: &[InputRows]) -> Self {
        let (mut tensors, mut offsets, mut end) = (Map::new(), HashMap::new(), 0);
        let mut add = |of: &InputRows, part: Part| {
            let width = origin.model.width(of.input);
            let (name, start) = (tensor_name(of.input, of.kind, part), end);
            end += part.bytes(width);
            offsets.insert(name.clone(), start);
            let tensor = json!({
                "dtype": part.dtype(),
                "shape": [part.elements(width)],
                "data_offsets": [start, end],
            });
            tensors.insert(name, tensor);
        };
        for of in inputs {
            Part::all(false).for_each(|part| add(of, part));
        }
        // After all others, whose elements are longer, so that all are aligned.
        if origin.is_full {
            inputs.iter().for_each(|of| add(of, Part::Products));
        }
        let mut layout = Self {
            offsets,
            bytes: 0,
            tensors,
            data_start: 0,
        };
        // The longer of both words: which one it is, is known only when all passes are done.
        let longest = CalibrationOrigin {
            is_lossless: false,
            ..origin.clone()
        };
        layout.data_start = (8 + layout.text(&longest).len()).next_multiple_of(ALIGNMENT);
        layout.bytes = layout.data_start as u64 + end;
        for offset in layout.offsets.values_mut() {
            *offset += layout.data_start as u64;
        }
        layout
    }

    fn text(&self, origin: &CalibrationOrigin) -> String {
        let mut header = self.tensors.clone();
        let metadata = Value::Object(origin.to_metadata());
        header.insert("__metadata__".to_owned(), metadata);
        Value::Object(header).to_string()
    }

    /// The header. Spaces at its end belong to it.
    pub(super) fn header(&self, origin: &CalibrationOrigin) -> Vec<u8> {
        let mut bytes = ((self.data_start - 8) as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(self.text(origin).as_bytes());
        bytes.resize(self.data_start, b' ');
        bytes
    }
}
