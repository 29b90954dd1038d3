//! Formats, tiers and kinds of the engine, as the wire has them. Every value is named here, so that the compiler asks for the
//! wire's counterpart of a new one.

use sluice_checkpoint::compression::Scheme;
use sluice_formats::Format;
use sluice_machine::MemoryKind;
use sluice_proto::v1;
use sluice_weights::{Tier, WeightFormat, WeightGroup};

/// A format of elements or blocks.
#[must_use]
pub fn dtype(format: Format) -> v1::Dtype {
    match format {
        Format::F32 => v1::Dtype::F32,
        Format::F16 => v1::Dtype::F16,
        Format::Bf16 => v1::Dtype::Bf16,
        Format::Q8_0 => v1::Dtype::Q80,
        Format::Q6K => v1::Dtype::Q6K,
        Format::Q5K => v1::Dtype::Q5K,
        Format::Q5_1 => v1::Dtype::Q51,
        Format::Q5_0 => v1::Dtype::Q50,
        Format::Q4K => v1::Dtype::Q4K,
        Format::Q4_1 => v1::Dtype::Q41,
        Format::Q4_0 => v1::Dtype::Q40,
        Format::Q3K => v1::Dtype::Q3K,
        Format::Q2K => v1::Dtype::Q2K,
    }
}

/// How weights are compressed.
#[must_use]
pub fn compression(scheme: Scheme) -> v1::Compression {
    match scheme {
        Scheme::Plain => v1::Compression::None,
        Scheme::Huffman => v1::Compression::Huffman,
        Scheme::Dictionary => v1::Compression::Dictionary,
        Scheme::Trellis => v1::Compression::Trellis,
        Scheme::Columns => v1::Compression::Columns,
    }
}

/// How weights are stored.
#[must_use]
pub fn weight_format(stored: WeightFormat) -> v1::WeightFormat {
    v1::WeightFormat {
        dtype: dtype(stored.format).into(),
        compression: compression(stored.scheme).into(),
    }
}

/// The format of a KV cache; unspecified for those that no cache has.
#[must_use]
pub fn kv_cache_format(format: Format) -> v1::KvCacheFormat {
    match format {
        Format::F32 => v1::KvCacheFormat::F32,
        Format::F16 => v1::KvCacheFormat::F16,
        Format::Bf16 => v1::KvCacheFormat::Bf16,
        Format::Q8_0 => v1::KvCacheFormat::Q80,
        Format::Q5_0 => v1::KvCacheFormat::Q50,
        Format::Q4_0 => v1::KvCacheFormat::Q40,
        Format::Q6K
        | Format::Q5K
        | Format::Q5_1
        | Format::Q4K
        | Format::Q4_1
        | Format::Q3K
        | Format::Q2K => v1::KvCacheFormat::Unspecified,
    }
}

/// Where a weight group's bytes live.
#[must_use]
pub fn tier(tier: Tier) -> v1::Tier {
    match tier {
        Tier::Device => v1::Tier::Device,
        Tier::Host => v1::Tier::Host,
        Tier::Disk => v1::Tier::Disk,
    }
}

/// What a weight group does.
#[must_use]
pub fn weight_group_kind(group: WeightGroup) -> v1::WeightGroupKind {
    match group {
        WeightGroup::Embedding => v1::WeightGroupKind::Embedding,
        WeightGroup::EmbeddingEnd => v1::WeightGroupKind::EmbeddingEnd,
        WeightGroup::SelfConditioning => v1::WeightGroupKind::SelfConditioning,
        WeightGroup::Attention(_) => v1::WeightGroupKind::Attention,
        WeightGroup::CrossAttention(_) => v1::WeightGroupKind::CrossAttention,
        WeightGroup::GateUp(_) => v1::WeightGroupKind::GateUp,
        WeightGroup::Down(_) => v1::WeightGroupKind::Down,
        WeightGroup::Router(_) => v1::WeightGroupKind::Router,
        WeightGroup::Expert(..) => v1::WeightGroupKind::Expert,
        WeightGroup::SharedExpert(_) => v1::WeightGroupKind::SharedExpert,
        WeightGroup::LayerEnd(_) => v1::WeightGroupKind::LayerEnd,
        WeightGroup::FinalNorm => v1::WeightGroupKind::FinalNorm,
        WeightGroup::LmHead(_) => v1::WeightGroupKind::LmHead,
    }
}

/// What the device's memory is held for.
#[must_use]
pub fn memory_kind(kind: MemoryKind) -> v1::MemoryKind {
    match kind {
        MemoryKind::Context => v1::MemoryKind::Context,
        MemoryKind::Weights => v1::MemoryKind::Weights,
        MemoryKind::StagingBuffers => v1::MemoryKind::StagingBuffers,
        MemoryKind::Activations => v1::MemoryKind::Activations,
        MemoryKind::KvCache => v1::MemoryKind::KvCache,
        MemoryKind::State => v1::MemoryKind::State,
        MemoryKind::Logits => v1::MemoryKind::Logits,
        MemoryKind::Scratch => v1::MemoryKind::Scratch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words that plans, logs and the commands of both programs have are the same.
    #[test]
    fn the_wires_words_are_the_engines() {
        for format in Format::ALL {
            assert_eq!(dtype(format).to_string(), format.name());
        }
        for format in [
            Format::F32,
            Format::F16,
            Format::Bf16,
            Format::Q8_0,
            Format::Q5_0,
            Format::Q4_0,
        ] {
            assert_eq!(kv_cache_format(format).to_string(), format.name());
        }
        for kind in MemoryKind::ALL {
            assert_eq!(memory_kind(kind).to_string(), kind.name());
        }
        for place in [Tier::Device, Tier::Host, Tier::Disk] {
            assert_eq!(tier(place).to_string(), place.name());
        }
        let words = ["bf16", "huffman", "dictionary", "trellis", "columns"];
        for (scheme, word) in Scheme::ALL.into_iter().zip(words) {
            let format = Format::Bf16;
            let stored = WeightFormat { format, scheme };
            assert_eq!(weight_format(stored).to_string(), word);
        }
    }
}
