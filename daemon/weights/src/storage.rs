//! How tensors are stored and where they live, as a plan decides it for each unit, and how a model's tensors are gathered
//! into units.

use std::sync::Arc;

use sluice_codec::Scheme;
use sluice_formats::Format;

use super::{CompressedTensor, TensorPart, TensorSpec, WeightGroup, layout};

/// A tensor of the checkpoint, and how it is stored there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceTensor {
    /// Which tensor.
    pub spec: TensorSpec,
    /// Its format there; of a coded one, what it is decoded to.
    pub format: Format,
    /// How it is coded there, if it is.
    pub compressed: Option<Arc<CompressedTensor>>,
    /// How a copy of it beside the checkpoint is coded without loss, or about how one would be; none where that saves nothing.
    pub compressed_copy: Option<Arc<CompressedTensor>>,
}

impl SourceTensor {
    /// How these rows are coded.
    fn compressed_range(&self, first_row: usize, rows: usize) -> Option<CompressedRange> {
        self.range_of(self.compressed.as_ref()?, first_row, rows)
    }

    /// How these rows of the copy are coded.
    pub fn compressed_copy_range(&self, first_row: usize, rows: usize) -> Option<CompressedRange> {
        self.range_of(self.compressed_copy.as_ref()?, first_row, rows)
    }

    fn range_of(
        &self,
        compressed: &CompressedTensor,
        first_row: usize,
        rows: usize,
    ) -> Option<CompressedRange> {
        let rows = first_row..first_row + rows;
        let bytes = compressed.compressed_bytes(&rows)?;
        Some(CompressedRange {
            scheme: compressed.scheme(),
            start: bytes.start,
            bytes: bytes.end - bytes.start,
            index_bytes: compressed.index_bytes(&rows),
            format: self.format,
            is_estimate: compressed.is_estimate(),
        })
    }
}

/// How a tensor is kept for computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// In a format that is multiplied from.
    Plain(Format),
    /// As a container has it, coded: decoded where it is multiplied.
    Compressed(CompressedRange),
}

/// How weights are stored, whatever their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightFormat {
    /// Of compressed weights, what they decompress to.
    pub format: Format,
    /// How they are compressed.
    pub scheme: Scheme,
}

/// Coded rows of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressedRange {
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

impl CompressedRange {
    /// Where the index begins, from their first byte on.
    pub fn index_start(self) -> u64 {
        self.bytes.next_multiple_of(layout::ALIGNMENT)
    }

    /// Bytes of both.
    fn stored_bytes(self) -> u64 {
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
        self.scheme != Scheme::Trellis
    }
}

impl Storage {
    /// The name that plans and screens use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain(format) => format.name(),
            Self::Compressed(CompressedRange { scheme, .. }) => match scheme {
                Scheme::Plain => "plain",
                Scheme::Huffman => "huffman",
                Scheme::Dictionary => "dictionary",
                Scheme::Trellis => "trellis",
            },
        }
    }

    /// The format, and how it is compressed.
    #[must_use]
    pub fn weight_format(self) -> WeightFormat {
        let scheme = match self {
            Self::Plain(_) => Scheme::Plain,
            Self::Compressed(CompressedRange { scheme, .. }) => scheme,
        };
        WeightFormat {
            format: self.format(),
            scheme,
        }
    }

    /// Bytes of `rows` rows of `width` numbers.
    #[must_use]
    pub fn bytes(self, rows: usize, width: usize) -> u64 {
        match self {
            Self::Plain(format) => (rows * format.bytes(width)) as u64,
            Self::Compressed(coding) => coding.stored_bytes(),
        }
    }

    /// The format that is multiplied from, or that it is decoded to for that.
    #[must_use]
    pub fn format(self) -> Format {
        match self {
            Self::Plain(format) | Self::Compressed(CompressedRange { format, .. }) => format,
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
    pub part: TensorPart,
    /// First of its rows that belong to the unit.
    pub first_row: usize,
    /// How many do.
    pub rows: usize,
    /// Numbers in a row.
    pub width: usize,
    /// How it is stored in the checkpoint; of a coded one, what it is decoded to.
    pub source: Format,
    /// How these rows are coded there, if they are and can be taken out of the tensor.
    pub compressed: Option<CompressedRange>,
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
    pub fn decompressed_from(&self) -> Option<(CompressedRange, u64)> {
        let coding = self.compressed?;
        (self.storage == Storage::Plain(self.source)).then(|| (coding, self.elements()))
    }

    /// How it is stored in the file that it is read from.
    #[must_use]
    pub fn storage_of_file(&self) -> Storage {
        match self.decompressed_from() {
            Some((coding, _)) => Storage::Compressed(coding),
            None => self.storage,
        }
    }

    /// Bytes that are read from files for it, where it is streamed.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        match (self.storage, self.decompressed_from()) {
            (Storage::Compressed(coding), _) | (_, Some((coding, _))) => coding.bytes,
            _ => self.bytes(),
        }
    }

    /// How many numbers it has.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.rows as u64 * self.width as u64
    }
}

/// What a plan says of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightGroupPlan {
    /// Which unit.
    pub group: WeightGroup,
    /// Where its bytes live.
    pub tier: Tier,
    /// Its tensors.
    pub tensors: Vec<TensorPlan>,
}

impl WeightGroupPlan {
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
        self.tier != Tier::Device && self.group != WeightGroup::Embedding
    }

    /// The format of its largest tensor.
    #[must_use]
    pub fn storage(&self) -> Storage {
        self.tensors
            .iter()
            .max_by_key(|tensor| tensor.elements())
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
    pub fn staging_bytes(&self) -> u64 {
        layout::staging(self.sizes()).bytes
    }
}

/// Rows of a part of the head are whole multiples of this, but for the last part's.
const LM_HEAD_ROWS: usize = 256;

/// Gathers a model's tensors into units, as the checkpoint stores them and all on the device. Where units begin and end
/// depends on the model alone, never on a plan, so that results do not.
#[must_use]
pub fn weight_groups(sources: &[SourceTensor]) -> Vec<WeightGroupPlan> {
    let largest_in_layers = weight_groups_of(sources, usize::MAX)
        .iter()
        .filter(|unit| unit.group.layer().is_some())
        .map(|unit| unit.tensors.iter().map(TensorPlan::elements).sum::<u64>())
        .max()
        .unwrap_or(u64::MAX);
    weight_groups_of(
        sources,
        usize::try_from(largest_in_layers).unwrap_or(usize::MAX),
    )
}

fn weight_groups_of(sources: &[SourceTensor], head_numbers_max: usize) -> Vec<WeightGroupPlan> {
    let mut units: Vec<WeightGroupPlan> = Vec::new();
    let mut add = |unit: WeightGroup, tensor: TensorPlan| match units
        .iter_mut()
        .rev()
        .find(|known| known.group == unit)
    {
        Some(known) => known.tensors.push(tensor),
        None => units.push(WeightGroupPlan {
            group: unit,
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
            compressed: None,
            storage: Storage::Plain(source.format),
        };
        if source.spec.part != TensorPart::LmHead {
            let coded = source.compressed_range(0, rows);
            let unit = source.spec.part.group(source.spec.layer);
            add(
                unit,
                TensorPlan {
                    compressed: coded,
                    ..whole
                },
            );
            continue;
        }
        let step = (head_numbers_max / width / LM_HEAD_ROWS * LM_HEAD_ROWS).max(LM_HEAD_ROWS);
        for (number, first_row) in (0..rows).step_by(step).enumerate() {
            let rows = step.min(rows - first_row);
            add(
                WeightGroup::LmHead(number),
                TensorPlan {
                    first_row,
                    rows,
                    compressed: source.compressed_range(first_row, rows),
                    ..whole
                },
            );
        }
    }
    units.sort_by_key(|unit| order(unit.group));
    units
}

/// In the order of a pass.
fn order(group: WeightGroup) -> (usize, usize, usize) {
    match group {
        WeightGroup::Embedding => (0, 0, 0),
        WeightGroup::Attention(layer) => (1, layer, 0),
        WeightGroup::GateUp(layer) => (1, layer, 1),
        WeightGroup::Down(layer) => (1, layer, 2),
        WeightGroup::FinalNorm => (2, 0, 0),
        WeightGroup::LmHead(part) => (3, part, 0),
    }
}
