//! How tensors are stored and where they live, as a plan decides it for each weight group, and how a model's tensors
//! are gathered into weight groups.

use std::{collections::HashMap, sync::Arc};

use sluice_codec::Scheme;
use sluice_formats::{Format, interleaved::ROWS};

use super::{CompressedTensor, KeptKvHeads, TensorPart, TensorSpec, WeightGroup, layout};

/// A tensor of the checkpoint, and how it is stored there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceTensor {
    /// The tensor that the model needs.
    pub spec: TensorSpec,
    /// Its format in the checkpoint; for a compressed tensor the format that it decompresses to.
    pub format: Format,
    /// How it is compressed in the checkpoint, if it is.
    pub compressed: Option<Arc<CompressedTensor>>,
    /// How its lossless copy in the converted-weight cache is compressed, or an estimate of it; `None` if a copy saves
    /// nothing.
    pub compressed_copy: Option<Arc<CompressedTensor>>,
    /// What takes its place at level `optimized`; `None` if the mix leaves it as it is.
    pub mixed: Option<MixedTensor>,
}

/// A tensor's quantized weights in a mix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixedTensor {
    /// The number of the mix, which is never 0.
    pub mix: u32,
    /// The weights, as the mix's file holds them.
    pub compressed: Arc<CompressedTensor>,
}

impl SourceTensor {
    /// The compression of these rows in the checkpoint.
    fn compressed_range(&self, first_row: usize, rows: usize) -> Option<CompressedRange> {
        self.range_of(self.compressed.as_ref()?, first_row, rows)
    }

    /// The compression of these rows in the copy.
    pub fn compressed_copy_range(&self, first_row: usize, rows: usize) -> Option<CompressedRange> {
        self.range_of(self.compressed_copy.as_ref()?, first_row, rows)
    }

    /// These rows in the mix.
    pub fn mixed_range(&self, first_row: usize, rows: usize) -> Option<CompressedRange> {
        let mixed = self.mixed.as_ref()?;
        let range = self.range_of(&mixed.compressed, first_row, rows)?;
        Some(CompressedRange {
            mix: mixed.mix,
            format: mixed.compressed.format(),
            ..range
        })
    }

    fn range_of(
        &self,
        compressed: &CompressedTensor,
        first_row: usize,
        rows: usize,
    ) -> Option<CompressedRange> {
        let rows = first_row..first_row + rows;
        // Only whole chunks can be taken out of a tensor.
        let bytes = compressed.compressed_bytes(&rows)?;
        Some(CompressedRange {
            scheme: compressed.scheme(),
            start: bytes.start,
            bytes: bytes.end - bytes.start,
            index_bytes: compressed.index_bytes(&rows),
            format: self.format,
            mix: 0,
            is_estimate: compressed.is_estimate(),
        })
    }
}

/// How a tensor is stored for computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// In a plain or block format.
    Plain(Format),
    /// Compressed as in a container; decompressed where it is multiplied.
    Compressed(CompressedRange),
}

/// Format and scheme of weights, whatever their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightFormat {
    /// The format; for compressed weights the one that they decompress to.
    pub format: Format,
    /// The compression scheme; [`Scheme::Plain`] if there is none.
    pub scheme: Scheme,
}

/// Compressed rows of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressedRange {
    /// The compression scheme.
    pub scheme: Scheme,
    /// Offset of their first byte from the tensor's.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Bytes of the index that lets a GPU multiply by them directly; 0 elsewhere.
    pub index_bytes: u64,
    /// The format that they decompress to.
    pub format: Format,
    /// The number of the mix whose file holds them; 0 for the checkpoint and its lossless copy.
    pub mix: u32,
    /// Whether `bytes` is an estimate, because nobody has compressed these rows yet.
    pub is_estimate: bool,
}

impl CompressedRange {
    /// Offset of the index from their first byte.
    pub fn index_start(self) -> u64 {
        // On a cache line, as tensors are, however many bytes the codes have.
        self.bytes.next_multiple_of(layout::ALIGNMENT)
    }

    /// Bytes of compressed rows and index together.
    fn stored_bytes(self) -> u64 {
        match self.index_bytes {
            0 => self.bytes,
            bytes => self.index_start() + bytes,
        }
    }

    /// The same without an index, as the CPU stores them.
    pub fn without_index(self) -> Self {
        Self {
            index_bytes: 0,
            ..self
        }
    }

    /// Whether they decompress to their original values.
    #[must_use]
    pub fn is_lossless(&self) -> bool {
        self.scheme.is_lossless()
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
                Scheme::Columns => "columns",
            },
        }
    }

    /// The number of the mix whose file holds it; 0 where it is none's.
    #[must_use]
    pub fn mix(self) -> u32 {
        match self {
            Self::Plain(_) => 0,
            Self::Compressed(range) => range.mix,
        }
    }

    /// Format and scheme.
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

    /// Bytes of `rows` rows of `width` elements.
    #[must_use]
    pub fn bytes(self, rows: usize, width: usize) -> u64 {
        match self {
            Self::Plain(format) => (rows * format.bytes(width)) as u64,
            Self::Compressed(coding) => coding.stored_bytes(),
        }
    }

    /// The format that is multiplied from, or that it decompresses to.
    #[must_use]
    pub fn format(self) -> Format {
        match self {
            Self::Plain(format) | Self::Compressed(CompressedRange { format, .. }) => format,
        }
    }
}

/// Where a weight group's bytes live between passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// In the device's memory.
    Device,
    /// In host memory; on the CPU, in files that the page cache holds.
    Host,
    /// In files, read past the page cache.
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

/// A tensor or some of its rows, as part of a weight group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorPlan {
    /// Index of the tensor among the model's.
    pub tensor: usize,
    /// Its role in the group.
    pub part: TensorPart,
    /// First of its rows that belong to the group.
    pub first_row: usize,
    /// Number of rows that belong to the group.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Its format in the checkpoint; for a compressed tensor the format that it decompresses to.
    pub source: Format,
    /// How these rows are compressed in the checkpoint; `None` if they aren't, or don't begin and end with a chunk.
    pub compressed: Option<CompressedRange>,
    /// How it is stored for computing.
    pub storage: Storage,
}

impl TensorPlan {
    /// Bytes as stored for computing.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.storage.bytes(self.rows, self.width)
    }

    /// Whether its rows lie [beside each other](sluice_formats::interleaved) where the CPU's kernels read them so: what
    /// is multiplied, and not compressed.
    #[must_use]
    pub fn is_interleaved(&self) -> bool {
        // A pass reads single rows of tables.
        !self.part.is_table()
            && self.rows >= ROWS
            && matches!(self.storage, Storage::Plain(format) if format.interleaves(self.width))
    }

    /// If its rows are decompressed while they are read: how the file stores them, and how many elements they have.
    #[must_use]
    pub fn decompressed_from(&self) -> Option<(CompressedRange, u64)> {
        let coding = self.compressed?;
        // Compressed in the file, plain in memory: at `off`, and for what the CPU streams.
        (self.storage == Storage::Plain(self.source)).then(|| (coding, self.elements()))
    }

    /// How the file that it is read from stores it.
    #[must_use]
    pub fn storage_of_file(&self) -> Storage {
        match self.decompressed_from() {
            Some((coding, _)) => Storage::Compressed(coding),
            None => self.storage,
        }
    }

    /// Bytes that are read from files for it when it is streamed.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        match (self.storage, self.decompressed_from()) {
            // Without the index, which no file has: it is made from these bytes when they are read.
            (Storage::Compressed(coding), _) | (_, Some((coding, _))) => coding.bytes,
            _ => self.bytes(),
        }
    }

    /// Number of its elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.rows as u64 * self.width as u64
    }
}

/// A plan's decisions for a weight group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightGroupPlan {
    /// The weight group.
    pub group: WeightGroup,
    /// Where its bytes live between passes.
    pub tier: Tier,
    /// Its tensors, in the order of their use.
    pub tensors: Vec<TensorPlan>,
    /// The KV heads that a pruned layer's attention has; `None` where it has the shape's.
    pub kept_kv_heads: Option<KeptKvHeads>,
}

impl WeightGroupPlan {
    /// Bytes as stored for computing.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(TensorPlan::bytes).sum()
    }

    /// Bytes that are read from files for it when it is streamed.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.tensors.iter().map(TensorPlan::file_bytes).sum()
    }

    /// Whether it goes through a staging buffer in every pass.
    #[must_use]
    pub fn is_streamed(&self) -> bool {
        // A pass reads single rows of the embedding where it lies, on any tier.
        self.tier != Tier::Device && self.group != WeightGroup::Embedding
    }

    /// The storage of its largest tensor, which stands for the group on screens.
    #[must_use]
    pub fn storage(&self) -> Storage {
        self.tensors
            .iter()
            .max_by_key(|tensor| tensor.elements())
            .expect("a unit has tensors")
            .storage
    }

    /// Bytes of each tensor, as stored for computing.
    pub fn sizes(&self) -> impl Iterator<Item = u64> {
        self.tensors.iter().map(TensorPlan::bytes)
    }

    /// Bytes of device memory that it occupies between passes.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        match self.tier {
            Tier::Device => layout::resident(self.sizes()).bytes,
            // Staging buffers are shared by all streamed groups, so the plan counts them.
            Tier::Host | Tier::Disk => 0,
        }
    }

    /// Bytes of a staging buffer that fits it.
    #[must_use]
    pub fn staging_bytes(&self) -> u64 {
        layout::staging(self.sizes()).bytes
    }
}

/// Rows of a part of the LM head are multiples of this, but for the last part's.
const LM_HEAD_ROWS: usize = 256;

/// Gathers a model's tensors into weight groups, stored as in the checkpoint and all on the device. The groups depend
/// on the model alone, never on a plan, so that results don't depend on plans either.
#[must_use]
pub fn weight_groups(sources: &[SourceTensor]) -> Vec<WeightGroupPlan> {
    // The LM head is cut into parts no larger than the largest group of a layer: staging buffers must fit every group,
    // and one for a whole vocabulary would be much larger than all others.
    let largest_in_layers = weight_groups_of(sources, usize::MAX)
        .iter()
        .filter(|group| group.group.layer().is_some())
        .map(|group| group.tensors.iter().map(TensorPlan::elements).sum::<u64>())
        .max()
        .unwrap_or(u64::MAX);
    weight_groups_of(
        sources,
        usize::try_from(largest_in_layers).unwrap_or(usize::MAX),
    )
}

fn weight_groups_of(sources: &[SourceTensor], head_numbers_max: usize) -> Vec<WeightGroupPlan> {
    let mut groups: Vec<WeightGroupPlan> = Vec::new();
    let mut places: HashMap<WeightGroup, usize> = HashMap::new();
    let mut add = |unit: WeightGroup, tensor: TensorPlan| {
        let kept = &sources[tensor.tensor].spec.kept_kv_heads;
        match places.get(&unit) {
            Some(&place) => {
                let known = &mut groups[place];
                known.tensors.push(tensor);
                // The norm before them has none of its own.
                known.kept_kv_heads = known.kept_kv_heads.take().or_else(|| kept.clone());
            }
            None => {
                places.insert(unit, groups.len());
                groups.push(WeightGroupPlan {
                    group: unit,
                    tier: Tier::Device,
                    tensors: vec![tensor],
                    kept_kv_heads: kept.clone(),
                });
            }
        }
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
            add(
                source.spec.group,
                TensorPlan {
                    compressed: coded,
                    ..whole
                },
            );
            continue;
        }
        // Whole chunks of a container, so that each part of a compressed LM head can be taken out.
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
    groups.sort_by_key(|unit| order(unit.group));
    groups
}

/// Sort key: the order of a pass.
fn order(group: WeightGroup) -> (usize, usize, usize) {
    match group {
        WeightGroup::Embedding => (0, 0, 0),
        WeightGroup::EmbeddingEnd => (0, 0, 1),
        WeightGroup::SelfConditioning => (0, 0, 2),
        WeightGroup::Attention(layer) => (1, layer, 0),
        WeightGroup::CrossAttention(layer) => (1, layer, 1),
        WeightGroup::GateUp(layer) => (1, layer, 2),
        WeightGroup::Down(layer) => (1, layer, 3),
        WeightGroup::Router(layer) => (1, layer, 4),
        WeightGroup::SharedExpert(layer) => (1, layer, 5),
        WeightGroup::Expert(layer, expert) => (1, layer, 6 + expert),
        WeightGroup::LayerEnd(layer) => (1, layer, usize::MAX),
        WeightGroup::FinalNorm => (2, 0, 0),
        WeightGroup::LmHead(part) => (3, part, 0),
    }
}
