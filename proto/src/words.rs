//! Levels, formats and words of decoding as the wire has them, beside those that people type.

use std::fmt;

use sluice_shared::{
    decoding::CanvasGrowth,
    level::{CpuExperts, EmbeddingPlacement, KvCacheFormat, Level},
    preset::Preset,
    prior::PriorSolver,
    pruning::PruneScore,
    sampling::{EosPolicy, KvCacheMode, Remasking},
};

use crate::v1;

/// Conversions between an enum of the schema and the checked one, which has no unspecified value.
macro_rules! same_values {
    ($name:ident as $other:ident: $($wire:ident = $checked:ident),+) => {
        impl From<$other> for v1::$name {
            fn from(value: $other) -> Self {
                match value {
                    $($other::$checked => Self::$wire,)+
                }
            }
        }

        impl v1::$name {
            /// The same value as people type it; `None`: it is unspecified, or only reported.
            #[must_use]
            pub fn checked(self) -> Option<$other> {
                match self {
                    $(Self::$wire => Some($other::$checked),)+
                    _ => None,
                }
            }
        }
    };
}

same_values!(Level as Level: Off = Off, Standard = Standard, Mild = Mild, Moderate = Moderate, Aggressive = Aggressive, Optimized = Optimized, Auto = Auto);
same_values!(EmbeddingPlacement as EmbeddingPlacement: Auto = Auto, Host = Host, Device = Device);
same_values!(CpuExperts as CpuExperts: Off = Off, Auto = Auto);
same_values!(KvCacheFormat as KvCacheFormat: Auto = Auto, F32 = F32, Bf16 = Bf16, Q80 = Q8_0, Q50 = Q5_0, Q40 = Q4_0);
same_values!(DecodingPreset as Preset: Exact = Exact, Quality = Quality, Balanced = Balanced, Fast = Fast, Auto = Auto);
same_values!(Remasking as Remasking: LowConfidence = LowConfidence, Random = Random, Margin = Margin, Entropy = Entropy);
same_values!(EosPolicy as EosPolicy: Stop = Stop, Suppress = Suppress, Keep = Keep);
same_values!(
    KvCacheMode as KvCacheMode:
    None = None, Prefix = Prefix, Dual = Dual, Vicinity = Vicinity, Blocks = Blocks
);
same_values!(PruneScore as PruneScore: L2 = L2, Magnitude = Magnitude, Wanda = Wanda, Flap = Flap, Obs = Obs);
same_values!(PriorSolver as PriorSolver: None = None, DpmSolverPp2m = DpmSolverPp2m, Heun = Heun, AdaptiveHeun = AdaptiveHeun);
same_values!(CanvasGrowth as CanvasGrowth: Fixed = Fixed, Append = Append, Insert = Insert);

/// The format of uncompressed weights with this dtype.
impl From<v1::Dtype> for v1::WeightFormat {
    fn from(dtype: v1::Dtype) -> Self {
        Self {
            dtype: dtype.into(),
            compression: v1::Compression::None.into(),
        }
    }
}

/// How weights are compressed, or their dtype where they are not.
impl fmt::Display for v1::WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.compression() {
            v1::Compression::None | v1::Compression::Unspecified => self.dtype().fmt(f),
            compression => compression.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_that_people_type() {
        for level in Level::ALL {
            let wire = v1::Level::from(level);
            assert_eq!(
                (wire.to_string(), wire.checked()),
                (level.name().to_owned(), Some(level))
            );
        }
        for place in EmbeddingPlacement::ALL {
            let wire = v1::EmbeddingPlacement::from(place);
            assert_eq!(
                (wire.to_string(), wire.checked()),
                (place.name().to_owned(), Some(place))
            );
        }
        for value in CpuExperts::ALL {
            let wire = v1::CpuExperts::from(value);
            assert_eq!(
                (wire.to_string(), wire.checked()),
                (value.name().to_owned(), Some(value))
            );
        }
        for kv in KvCacheFormat::ALL {
            let wire = v1::KvCacheFormat::from(kv);
            assert_eq!(
                (wire.to_string(), wire.checked()),
                (kv.name().to_owned(), Some(kv))
            );
        }
        assert_eq!(v1::KvCacheFormat::F16.checked(), None);
        assert_eq!(v1::Level::Unspecified.checked(), None);
    }

    #[test]
    fn a_weight_format_is_its_compression_or_else_its_dtype() {
        let format = |dtype: v1::Dtype, compression: v1::Compression| {
            let (dtype, compression) = (dtype.into(), compression.into());
            v1::WeightFormat { dtype, compression }.to_string()
        };
        assert_eq!(v1::WeightFormat::from(v1::Dtype::Q80).to_string(), "q8_0");
        assert_eq!(
            format(v1::Dtype::Bf16, v1::Compression::Unspecified),
            "bf16"
        );
        assert_eq!(format(v1::Dtype::Bf16, v1::Compression::Huffman), "huffman");
        assert_eq!(v1::WeightFormat::default().to_string(), "unspecified");
        // A newer daemon's format is not taken for one that is known.
        let newer = v1::WeightFormat {
            dtype: 99,
            compression: 99,
        };
        assert_eq!(newer.to_string(), "unspecified");
        assert_eq!(
            format!("{:>6}", v1::WeightFormat::from(v1::Dtype::F16)),
            "   f16"
        );
    }
}
