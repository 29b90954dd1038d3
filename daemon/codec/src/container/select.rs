//! Which tensors are coded, and which are kept as they are.

use std::ops::RangeInclusive;

use super::{
    CHUNK_ELEMENTS_MAX, CHUNK_ROWS,
    header::{dtype, elements, matrix},
};

/// Fewer numbers than this aren't worth a table.
const ELEMENTS_MIN: usize = 64 << 10;
/// In shorter rows, what a row has beside its numbers would be much; longer ones make chunks that nobody reads.
const WIDTHS: RangeInclusive<usize> = 128..=CHUNK_ELEMENTS_MAX / CHUNK_ROWS;

/// A name with `*` for any letters and `?` for any one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    /// From how people write it.
    #[must_use]
    pub fn new(pattern: &str) -> Self {
        Self(pattern.to_owned())
    }

    /// As it was written.
    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.0
    }

    /// Whether it stands for the whole of this name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut at, mut of) = (0, 0);
        // The last star, and what it stood for so far: a mismatch makes it stand for one more.
        let mut star: Option<(usize, usize)> = None;
        while of < name.len() {
            match pattern.get(at) {
                Some(b'*') => {
                    star = Some((at, of));
                    at += 1;
                }
                Some(&letter) if letter == b'?' || letter == name[of] => {
                    at += 1;
                    of += 1;
                }
                _ => match &mut star {
                    None => return false,
                    Some((place, end)) => {
                        *end += 1;
                        (at, of) = (*place + 1, *end);
                    }
                },
            }
        }
        pattern[at..].iter().all(|&letter| letter == b'*')
    }
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressionRules {
    /// Names of tensors that stay plain.
    pub keep: Vec<Glob>,
    /// Whether numbers are coded to a rate, not without loss.
    pub is_trellis: bool,
    /// Whether embeddings are coded, too, and the head to a rate where that was asked for.
    pub all: bool,
}

/// What becomes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorTreatment {
    /// It stays as it is.
    Plain,
    /// It is coded without loss.
    Lossless,
    /// It is coded to a rate.
    Trellis,
}

impl CompressionRules {
    /// What becomes of a tensor of this name and shape, and of numbers that safetensors call so in small letters.
    #[must_use]
    pub fn treatment(&self, name: &str, shape: &[usize], numbers_name: &str) -> TensorTreatment {
        let is_large = matrix(shape).is_some_and(|(_, width)| WIDTHS.contains(&width))
            && elements(shape).is_some_and(|numbers| numbers >= ELEMENTS_MIN);
        if !is_large
            || dtype(numbers_name).is_none()
            || self.keep.iter().any(|glob| glob.matches(name))
            || (!self.all && is_embedding(name))
        {
            TensorTreatment::Plain
        } else if self.is_trellis && (self.all || layer_of(name).is_some()) {
            TensorTreatment::Trellis
        } else {
            // Outside of layers is the head, whose loss costs most.
            TensorTreatment::Lossless
        }
    }
}

/// Whether single rows of a tensor are read, which the file has at hand where it is plain.
fn is_embedding(name: &str) -> bool {
    layer_of(name).is_none()
        && name.split('.').any(|part| {
            part.contains("embd") || part.contains("embed") || matches!(part, "wte" | "wpe")
        })
}

/// The extent that a tensor belongs to: its layer's, or one of its own.
#[must_use]
pub fn extent_name(name: &str) -> &str {
    layer_of(name).unwrap_or(name)
}

/// A name up to its first part that is a number, as `model.layers.3`.
fn layer_of(name: &str) -> Option<&str> {
    let mut end = 0;
    for part in name.split('.') {
        let start = end;
        end += part.len();
        if start > 0 && !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(&name[..end]);
        }
        end += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_letters() {
        for (pattern, name, is_match) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("*.wte.*", "model.wte.weight", true),
            ("model.*.weight", "model.a.b.weight", true),
            ("model.*.weight", "model.a.bias", false),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "a1b2b3", false),
            ("layer.?", "layer.7", true),
            ("layer.?", "layer.17", false),
            ("**a", "bba", true),
        ] {
            assert_eq!(
                Glob::new(pattern).matches(name),
                is_match,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn a_layer_is_its_names_beginning() {
        for (name, extent) in [
            ("model.layers.3.mlp.up.weight", "model.layers.3"),
            (
                "model.transformer.blocks.12.ff_out.weight",
                "model.transformer.blocks.12",
            ),
            (
                "model.transformer.ff_out.weight",
                "model.transformer.ff_out.weight",
            ),
            ("h.0.attn", "h.0"),
            ("0.weight", "0.weight"),
            ("a..b", "a..b"),
            ("layers.1.experts.7.w", "layers.1"),
        ] {
            assert_eq!(extent_name(name), extent);
        }
    }

    #[test]
    fn small_narrow_and_strange_tensors_stay_plain() {
        let lossless = CompressionRules {
            keep: vec![Glob::new("*.kept.*")],
            is_trellis: false,
            all: false,
        };
        let layer = "model.layers.0.w";
        for (name, shape, number, treatment) in [
            (layer, &[256, 256][..], "bf16", TensorTreatment::Lossless),
            (layer, &[8, 32, 256], "bf16", TensorTreatment::Lossless),
            (layer, &[255, 256], "bf16", TensorTreatment::Plain),
            (layer, &[4096, 127], "bf16", TensorTreatment::Plain),
            (layer, &[1 << 20], "bf16", TensorTreatment::Plain),
            (layer, &[1, 1 << 18], "bf16", TensorTreatment::Lossless),
            (layer, &[1, 1 << 19], "bf16", TensorTreatment::Plain),
            (layer, &[256, 256], "i64", TensorTreatment::Plain),
            (
                layer,
                &[usize::MAX, usize::MAX],
                "bf16",
                TensorTreatment::Plain,
            ),
            ("a.0.kept.w", &[256, 256], "f32", TensorTreatment::Plain),
            (
                "lm_head.weight",
                &[256, 256],
                "f16",
                TensorTreatment::Lossless,
            ),
            (
                "model.embed_tokens.weight",
                &[256, 256],
                "f16",
                TensorTreatment::Plain,
            ),
            (
                "model.transformer.wte.weight",
                &[256, 256],
                "f16",
                TensorTreatment::Plain,
            ),
        ] {
            assert_eq!(
                lossless.treatment(name, shape, number),
                treatment,
                "{name} {shape:?}"
            );
        }
        let rate = CompressionRules {
            is_trellis: true,
            ..lossless
        };
        assert_eq!(
            rate.treatment(layer, &[256, 256], "bf16"),
            TensorTreatment::Trellis
        );
        let treat = |rules: &CompressionRules, name| rules.treatment(name, &[256, 256], "bf16");
        assert_eq!(treat(&rate, "lm_head.weight"), TensorTreatment::Lossless);
        assert_eq!(treat(&rate, "embed.weight"), TensorTreatment::Plain);
        let all = CompressionRules { all: true, ..rate };
        assert_eq!(treat(&all, "lm_head.weight"), TensorTreatment::Trellis);
        assert_eq!(treat(&all, "embed.weight"), TensorTreatment::Trellis);
    }
}
