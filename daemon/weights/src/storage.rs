//! How tensors are stored and where they live, as a plan decides it for each unit, and how a model's tensors are gathered
//! into units.

use std::sync::Arc;

use sluice_codec::Scheme;
use sluice_formats::Format;

use super::{CodedTensor, Part, TensorSpec, Unit, layout};

/// A tensor of the checkpoint, and how it is stored there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceTensor {
    /// Which tensor.
    pub spec: TensorSpec,
    /// Its format there; of a coded one, what it is decoded to.
    pub format: Format,
    /// How it is coded there, if it is.
    pub coded: Option<Arc<CodedTensor>>,
    /// How a copy of it beside the checkpoint is coded without loss, or about how one would be; none where that saves nothing.
    pub copy: Option<Arc<CodedTensor>>,
}

impl SourceTensor {
    /// How these rows are coded.
    fn coding(&self, first_row: usize, rows: usize) -> Option<Coding> {
        self.coding_of(self.coded.as_ref()?, first_row, rows)
    }

    /// How these rows of the copy are coded.
    pub fn copied(&self, first_row: usize, rows: usize) -> Option<Coding> {
        self.coding_of(self.copy.as_ref()?, first_row, rows)
    }

    fn coding_of(&self, coded: &CodedTensor, first_row: usize, rows: usize) -> Option<Coding> {
        let rows = first_row..first_row + rows;
        let bytes = coded.coded_bytes(&rows)?;
        Some(Coding {
            scheme: coded.scheme(),
            start: bytes.start,
            bytes: bytes.end - bytes.start,
            index_bytes: coded.index_bytes(&rows),
            format: self.format,
            is_estimate: coded.is_estimate(),
        })
    }
}

/// How a tensor is kept for computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// In a format that is multiplied from.
    Plain(Format),
    /// As a container has it, coded: decoded where it is multiplied.
    Coded(Coding),
}

/// Coded rows of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coding {
    /// How they are coded.
    pub scheme: Scheme,
    /// Where they begin, from the tensor's first byte on.
    pub start: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of what is kept beside them, so that a card multiplies with them as they are; none elsewhere.
    pub index_bytes: u64,
    /// What they are decoded to.
    pub format: Format,
    /// Whether the bytes are an estimate: nobody has coded these rows yet.
    pub is_estimate: bool,
}

impl Coding {
    /// Where the index begins, from their first byte on.
    pub fn index_start(self) -> u64 {
        self.bytes.next_multiple_of(layout::ALIGNMENT)
    }

    /// Bytes of both.
    fn kept_bytes(self) -> u64 {
        match self.index_bytes {
            0 => self.bytes,
            bytes => self.index_start() + bytes,
        }
    }

    /// Without an index, as the CPU has them.
    pub fn without_index(self) -> Self {
        Self {
            index_bytes: 0,
            ..self
        }
    }

    /// Whether they are what they were before they were coded.
    #[must_use]
    pub fn is_lossless(&self) -> bool {
        self.scheme != Scheme::Rate
    }
}

impl Storage {
    /// The name that plans and screens use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain(format) => format.name(),
            Self::Coded(Coding { scheme, .. }) => match scheme {
                Scheme::Plain => "plain",
                Scheme::Huffman => "huffman",
                Scheme::Palette => "palette",
                Scheme::Rate => "rate",
            },
        }
    }

    /// Bytes of `rows` rows of `width` numbers.
    #[must_use]
    pub fn bytes(self, rows: usize, width: usize) -> u64 {
        match self {
            Self::Plain(format) => (rows * format.bytes(width)) as u64,
            Self::Coded(coding) => coding.kept_bytes(),
        }
    }

    /// The format that is multiplied from, or that it is decoded to for that.
    #[must_use]
    pub fn format(self) -> Format {
        match self {
            Self::Plain(format) | Self::Coded(Coding { format, .. }) => format,
        }
    }
}

/// Where a unit's bytes live between passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// In the device's memory.
    Device,
    /// In the host's memory; on the CPU, in files that the system's cache holds.
    Host,
    /// In files, read past the system's cache.
    Disk,
}

impl Tier {
    /// The name that plans and screens use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
        }
    }
}

/// A tensor, or some rows of it, in a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorPlan {
    /// Number of the tensor among the model's.
    pub tensor: usize,
    /// What it is used for.
    pub part: Part,
    /// First of its rows that belong to the unit.
    pub first_row: usize,
    /// How many do.
    pub rows: usize,
    /// Numbers in a row.
    pub width: usize,
    /// How it is stored in the checkpoint; of a coded one, what it is decoded to.
    pub source: Format,
    /// How these rows are coded there, if they are and can be taken out of the tensor.
    pub coded: Option<Coding>,
    /// How it is kept for computing.
    pub storage: Storage,
}

impl TensorPlan {
    /// Bytes as kept for computing.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.storage.bytes(self.rows, self.width)
    }

    /// How its rows are coded in the file, and how many numbers they are, where they are decoded as they are read.
    #[must_use]
    pub fn decoded_from(&self) -> Option<(Coding, u64)> {
        let coding = self.coded?;
        (self.storage == Storage::Plain(self.source)).then(|| (coding, self.numbers()))
    }

    /// How it is stored in the file that it is read from.
    #[must_use]
    pub fn storage_of_file(&self) -> Storage {
        match self.decoded_from() {
            Some((coding, _)) => Storage::Coded(coding),
            None => self.storage,
        }
    }

    /// Bytes that are read from files for it, where it is streamed.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        match (self.storage, self.decoded_from()) {
            (Storage::Coded(coding), _) | (_, Some((coding, _))) => coding.bytes,
            _ => self.bytes(),
        }
    }

    /// How many numbers it has.
    #[must_use]
    pub fn numbers(&self) -> u64 {
        self.rows as u64 * self.width as u64
    }
}

/// What a plan says of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitPlan {
    /// Which unit.
    pub unit: Unit,
    /// Where its bytes live.
    pub tier: Tier,
    /// Its tensors.
    pub tensors: Vec<TensorPlan>,
}

impl UnitPlan {
    /// Bytes as kept for computing.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(TensorPlan::bytes).sum()
    }

    /// Bytes that are read from files for it, where it is streamed.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.tensors.iter().map(TensorPlan::file_bytes).sum()
    }

    /// Whether its bytes go through a slot in every pass.
    #[must_use]
    pub fn is_streamed(&self) -> bool {
        self.tier != Tier::Device && self.unit != Unit::Embedding
    }

    /// The format of its largest tensor.
    #[must_use]
    pub fn storage(&self) -> Storage {
        self.tensors
            .iter()
            .max_by_key(|tensor| tensor.numbers())
            .expect("a unit has tensors")
            .storage
    }

    /// Bytes of each tensor, as kept for computing.
    pub fn sizes(&self) -> impl Iterator<Item = u64> {
        self.tensors.iter().map(TensorPlan::bytes)
    }

    /// Bytes of the device's memory that it takes all the time.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        match self.tier {
            Tier::Device => layout::resident(self.sizes()).bytes,
            Tier::Host | Tier::Disk => 0,
        }
    }

    /// Bytes of a slot that it can go through.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        layout::slot(self.sizes()).bytes
    }
}

/// Rows of a part of the head are whole multiples of this, but for the last part's.
const HEAD_ROWS: usize = 256;

/// Gathers a model's tensors into units, as the checkpoint stores them and all on the device. Where units begin and end
/// depends on the model alone, never on a plan, so that results do not.
#[must_use]
pub fn units(sources: &[SourceTensor]) -> Vec<UnitPlan> {
    let largest_in_layers = units_of(sources, usize::MAX)
        .iter()
        .filter(|unit| unit.unit.layer().is_some())
        .map(|unit| unit.tensors.iter().map(TensorPlan::numbers).sum::<u64>())
        .max()
        .unwrap_or(u64::MAX);
    units_of(
        sources,
        usize::try_from(largest_in_layers).unwrap_or(usize::MAX),
    )
}

fn units_of(sources: &[SourceTensor], head_numbers_max: usize) -> Vec<UnitPlan> {
    let mut units: Vec<UnitPlan> = Vec::new();
    let mut add = |unit: Unit, tensor: TensorPlan| match units
        .iter_mut()
        .rev()
        .find(|known| known.unit == unit)
    {
        Some(known) => known.tensors.push(tensor),
        None => units.push(UnitPlan {
            unit,
            tier: Tier::Device,
            tensors: vec![tensor],
        }),
    };
    for (index, source) in sources.iter().enumerate() {
        let (rows, width) = source.spec.size();
        let whole = TensorPlan {
            tensor: index,
            part: source.spec.part,
            first_row: 0,
            rows,
            width,
            source: source.format,
            coded: None,
            storage: Storage::Plain(source.format),
        };
        if source.spec.part != Part::Head {
            let coded = source.coding(0, rows);
            let unit = source.spec.part.unit(source.spec.layer);
            add(unit, TensorPlan { coded, ..whole });
            continue;
        }
        let step = (head_numbers_max / width / HEAD_ROWS * HEAD_ROWS).max(HEAD_ROWS);
        for (number, first_row) in (0..rows).step_by(step).enumerate() {
            let rows = step.min(rows - first_row);
            add(
                Unit::Head(number),
                TensorPlan {
                    first_row,
                    rows,
                    coded: source.coding(first_row, rows),
                    ..whole
                },
            );
        }
    }
    units.sort_by_key(|unit| order(unit.unit));
    units
}

/// In the order of a pass.
fn order(unit: Unit) -> (usize, usize, usize) {
    match unit {
        Unit::Embedding => (0, 0, 0),
        Unit::Attention(layer) => (1, layer, 0),
        Unit::GateUp(layer) => (1, layer, 1),
        Unit::Down(layer) => (1, layer, 2),
        Unit::FinalNorm => (2, 0, 0),
        Unit::Head(part) => (3, part, 0),
    }
}
