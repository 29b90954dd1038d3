//! The format that a level gives each tensor.

use sluice_formats::Format;
use sluice_shared::level::{EmbeddingPlacement, Level};
use sluice_weights::{
    CompressedRange, SourceTensor, Storage, TensorPart, TensorPlan, Tier, WeightGroup,
    WeightGroupPlan,
};

use super::time::Machine;

/// Share of its bytes that a tensor in blocks must save to be rounded a second time: met by `q8_0` and `q6_k` to
/// `q4_k`, not by `q5_k` or `q4_1`, which would lose much for little.
const LEAST_SAVING: f64 = 0.2;

/// The forms beside the checkpoint's own that files have of a tensor.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OtherForms {
    /// Its lossless copy.
    copy: Option<CompressedRange>,
    /// Its quantized weights in the mix of level `optimized`.
    mixed: Option<CompressedRange>,
}

impl OtherForms {
    /// A table's rows are read one by one from the checkpoint, even where the tied LM head has the same tensor
    /// compressed or in the mix.
    fn of(tensor: &TensorPlan, sources: &[SourceTensor]) -> Self {
        if tensor.part.is_table() {
            return Self::default();
        }
        let source = &sources[tensor.tensor];
        Self {
            copy: source.compressed_copy_range(tensor.first_row, tensor.rows),
            mixed: source.mixed_range(tensor.first_row, tensor.rows),
        }
    }
}

/// How this tensor is stored at this level, which is not `auto`. Vectors stay as they are. A row length that blocks cannot divide takes the next format up, and nothing gets larger than it was.
/// What a GGUF file has in blocks already was rounded once; it is rounded again only where that saves a fifth of its
/// bytes.
pub(super) fn storage(
    level: Level,
    from: RecipeInput,
    tensor: &TensorPlan,
    forms: OtherForms,
) -> Storage {
    // A GPU gathers rows of tables as they are stored, so it keeps them plain.
    let is_read_by_row = from.is_gpu && tensor.part.is_table();
    // The index is for GPU kernels; on the CPU it would only take memory.
    let kept = |coding: CompressedRange| match from.is_gpu {
        true => coding,
        false => coding.without_index(),
    };
    let compressed = (tensor.compressed).filter(|_| from.can_decompress && !is_read_by_row);
    let compressed = compressed.map(kept);
    let source = match compressed {
        // A quantized tensor stays compressed at every level: decompressed it would be larger and no more exact.
        Some(coding) if !coding.is_lossless() => Storage::Compressed(coding),
        _ => Storage::Plain(tensor.source),
    };
    let wanted = match level {
        Level::Off | Level::Standard => return source,
        Level::Mild if let Some(coding) = compressed => return Storage::Compressed(coding),
        // What has neither a compressed original nor a copy is small, in blocks already, or read row by row.
        Level::Mild => {
            return forms
                .copy
                .map_or(source, |copy| Storage::Compressed(kept(copy)));
        }
        // What the mix leaves alone is the checkpoint's.
        Level::Optimized => {
            return (forms.mixed).map_or(source, |mixed| Storage::Compressed(kept(mixed)));
        }
        // KL divergence from the checkpoint 0.00027 with the demonstration model, 0.010 for the four bits below
        // (docs/levels.md).
        Level::Moderate => Format::Q8_0,
        // The LM head decides every token directly: two bits more there cost little.
        Level::Aggressive if tensor.part == TensorPart::LmHead => Format::Q6K,
        Level::Aggressive => Format::Q4K,
        Level::Auto => unreachable!("auto is resolved before a plan is made"),
    };
    let fitting = wanted.for_width(tensor.width);
    // What was rounded before needs a better reason to be rounded again.
    let was_rounded = tensor.source.block_len() > 1 || source != Storage::Plain(tensor.source);
    let source_bits =
        8.0 * source.bytes(tensor.rows, tensor.width) as f64 / tensor.elements() as f64;
    let saves_enough = match was_rounded {
        true => fitting.bits() <= (1.0 - LEAST_SAVING) * source_bits,
        false => fitting.bits() < source_bits,
    };
    if tensor.part.is_never_quantized() || !saves_enough {
        return source;
    }
    Storage::Plain(fitting)
}

/// What can be done with a model's weights; by default all are decompressed before the matmul.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RecipeInput {
    /// Whether compressed weights can stay compressed on the device.
    can_decompress: bool,
    /// Whether a GPU computes, whose kernels read rows of the embedding as they are stored.
    is_gpu: bool,
}

impl RecipeInput {
    fn new(machine: &Machine) -> Self {
        Self {
            can_decompress: true,
            is_gpu: machine.device.gpu.is_some(),
        }
    }
}

/// Applies a level: formats, and by default the embedding's rows on the host at all levels but `off`.
pub(super) fn apply(
    level: Level,
    embedding: EmbeddingPlacement,
    machine: &Machine,
    sources: &[SourceTensor],
    groups: &mut [WeightGroupPlan],
) {
    let is_on_host = match embedding {
        // A pass reads a row of it for each token, so its memory is better spent on layers. `off` promises all weights
        // on the device.
        EmbeddingPlacement::Auto => level != Level::Off,
        EmbeddingPlacement::Host => true,
        EmbeddingPlacement::Device => false,
    };
    let from = RecipeInput::new(machine);
    for group in groups {
        for tensor in &mut group.tensors {
            tensor.storage = storage(level, from, tensor, OtherForms::of(tensor, sources));
        }
        group.tier = match group.group {
            WeightGroup::Embedding if is_on_host => Tier::Host,
            _ => Tier::Device,
        };
    }
}

/// The other levels, `off` excepted, that store all of these tensors as this one does.
pub(super) fn equal_levels(
    level: Level,
    machine: &Machine,
    sources: &[SourceTensor],
    groups: &[WeightGroupPlan],
) -> Vec<Level> {
    let from = RecipeInput::new(machine);
    let is_same = |other: Level| {
        let mut tensors = groups.iter().flat_map(|group| &group.tensors);
        tensors.all(|tensor| {
            let forms = OtherForms::of(tensor, sources);
            storage(level, from, tensor, forms) == storage(other, from, tensor, forms)
        })
    };
    // `off` and `standard` store the same weights by definition, which is no news to anybody.
    let own = [Level::Off, Level::Standard].contains(&level);
    let others = [
        Level::Standard,
        Level::Mild,
        Level::Moderate,
        Level::Aggressive,
    ];
    let others = others.into_iter().filter(|other| {
        let is_itself = *other == level || own && *other == Level::Standard;
        !is_itself && is_same(*other)
    });
    others.collect()
}

/// A weight group as a GPU streams it: tensors that are compressed in the checkpoint and plain at this level cross the
/// bus compressed.
pub(super) fn compressed(group: &WeightGroupPlan) -> WeightGroupPlan {
    let mut compressed = group.clone();
    for tensor in &mut compressed.tensors {
        if let (Storage::Plain(format), Some(coding)) = (tensor.storage, tensor.compressed)
            && format == tensor.source
            && !tensor.part.is_table()
        {
            tensor.storage = Storage::Compressed(coding);
        }
    }
    compressed
}

/// A weight group on the device with its losslessly compressed tensors decompressed; others as they are.
pub(super) fn decompressed(group: &WeightGroupPlan) -> WeightGroupPlan {
    let mut decoded = group.clone();
    for tensor in &mut decoded.tensors {
        // Streamed groups stay compressed: fewer bytes cross the bus or are read.
        if let (Tier::Device, Storage::Compressed(coding)) = (group.tier, tensor.storage)
            && coding.is_lossless()
        {
            tensor.storage = Storage::Plain(tensor.source);
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use sluice_codec::Scheme;

    use super::*;

    fn tensor(part: TensorPart, rows: usize, width: usize, source: Format) -> TensorPlan {
        TensorPlan {
            tensor: 0,
            part,
            first_row: 0,
            rows,
            width,
            source,
            compressed: None,
            storage: Storage::Plain(source),
        }
    }

    #[test]
    fn columns_stay_compressed_wherever_they_are_multiplied() {
        let columns = CompressedRange {
            scheme: Scheme::Columns,
            start: 0,
            bytes: 100_000,
            index_bytes: 0,
            format: Format::F32,
            mix: 0,
            is_estimate: false,
        };
        let query = TensorPlan {
            compressed: Some(columns),
            ..tensor(TensorPart::Query, 512, 512, Format::F32)
        };
        let kept = Storage::Compressed(columns);
        for level in [
            Level::Off,
            Level::Standard,
            Level::Mild,
            Level::Optimized,
            Level::Moderate,
        ] {
            for is_gpu in [false, true] {
                let from = RecipeInput {
                    can_decompress: true,
                    is_gpu,
                };
                let found = storage(level, from, &query, OtherForms::default());
                assert_eq!(found, kept, "{level:?}");
            }
        }
        let group = WeightGroupPlan {
            group: WeightGroup::Attention(0),
            tier: Tier::Device,
            kept_kv_heads: None,
            tensors: vec![TensorPlan {
                storage: kept,
                ..query
            }],
        };
        // Streamed they cross the bus as they are, and with room to spare they stay so: they are no more exact as `f32`.
        assert_eq!(compressed(&group), group);
        assert_eq!(decompressed(&group), group);
    }

    #[test]
    fn each_level_keeps_each_tensor_in_its_format() {
        use Format::{Bf16, F16, F32, Q2K, Q4_0, Q4_1, Q4K, Q5_1, Q5K, Q6K, Q8_0};
        use Storage::{Compressed, Plain};
        let query = tensor(TensorPart::Query, 512, 512, Bf16);
        let odd = tensor(TensorPart::Down, 64, 160, Bf16);
        let odder = tensor(TensorPart::Down, 64, 72, F32);
        let half = tensor(TensorPart::Down, 64, 72, F16);
        let head = tensor(TensorPart::LmHead, 1024, 512, Bf16);
        let norm = tensor(TensorPart::MlpNorm, 1, 512, Bf16);
        let embedding = tensor(TensorPart::Embedding, 1024, 512, Bf16);
        let stored = |format| tensor(TensorPart::Query, 512, 512, format);
        let copy = CompressedRange {
            scheme: Scheme::Dictionary,
            start: 0,
            bytes: 400_000,
            index_bytes: 0,
            format: Bf16,
            mix: 0,
            is_estimate: true,
        };
        let mixed = CompressedRange {
            scheme: Scheme::Trellis,
            bytes: 100_000,
            mix: 7,
            is_estimate: false,
            ..copy
        };
        let narrow = tensor(TensorPart::Query, 576, 576, Q4_1);
        for (level, tensor, expected) in [
            (Level::Off, query, Plain(Bf16)),
            (Level::Standard, query, Plain(Bf16)),
            (Level::Mild, query, Compressed(copy)),
            (Level::Mild, odder, Plain(F32)),
            (Level::Mild, norm, Plain(Bf16)),
            (Level::Moderate, query, Plain(Q8_0)),
            (Level::Moderate, norm, Plain(Bf16)),
            (Level::Moderate, embedding, Plain(Bf16)),
            (Level::Aggressive, query, Plain(Q4K)),
            (Level::Aggressive, head, Plain(Q6K)),
            (Level::Aggressive, odd, Plain(Q8_0)),
            (Level::Aggressive, odder, Plain(Bf16)),
            (Level::Aggressive, half, Plain(F16)),
            // As GGUF files have them: smaller already, larger, and of a width that the level's blocks cannot divide.
            (Level::Mild, stored(Q5_1), Plain(Q5_1)),
            (Level::Moderate, stored(Q8_0), Plain(Q8_0)),
            (Level::Moderate, stored(Q6K), Plain(Q6K)),
            (Level::Moderate, stored(Q4_1), Plain(Q4_1)),
            (Level::Aggressive, stored(Q8_0), Plain(Q4K)),
            (Level::Aggressive, stored(Q6K), Plain(Q4K)),
            (Level::Aggressive, stored(Q5K), Plain(Q5K)),
            (Level::Aggressive, stored(Q4_1), Plain(Q4_1)),
            (Level::Aggressive, stored(Q4_0), Plain(Q4_0)),
            (Level::Aggressive, stored(Q2K), Plain(Q2K)),
            (Level::Aggressive, narrow, Plain(Q4_1)),
            // What the mix has, and what it leaves alone.
            (Level::Optimized, query, Compressed(mixed)),
            (Level::Optimized, head, Plain(Bf16)),
            (Level::Optimized, stored(Q4K), Plain(Q4K)),
        ] {
            let is_query = tensor == query;
            let forms = OtherForms {
                copy: is_query.then_some(copy),
                mixed: is_query.then_some(mixed),
            };
            assert_eq!(
                storage(level, RecipeInput::default(), &tensor, forms),
                expected,
                "{level} {tensor:?}"
            );
        }
    }
}
