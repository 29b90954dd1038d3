//! Selects which tensors are compressed.

use std::{collections::HashSet, ops::RangeInclusive};

use super::{
    CHUNK_ELEMENTS_MAX, CHUNK_ROWS,
    header::{dtype, elements, matrix},
};

/// Least number of elements: a smaller matrix isn't worth a table.
const ELEMENTS_MIN: usize = 64 << 10;
/// Supported widths. Shorter rows would have too much overhead each; longer rows would make chunks that readers refuse.
const WIDTHS: RangeInclusive<usize> = 128..=CHUNK_ELEMENTS_MAX / CHUNK_ROWS;

/// A name pattern: `*` stands for any characters, `?` for any one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    /// A pattern as people write it.
    #[must_use]
    pub fn new(pattern: &str) -> Self {
        Self(pattern.to_owned())
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.0
    }

    /// Whether the pattern matches the whole name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut at, mut of) = (0, 0);
        // Position of the last star and the end of what it matched so far. A mismatch makes it match one more
        // character; earlier stars never need another try, so the time is at most the product of both lengths.
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

/// Which of the tensors that are worth it may be compressed; by default all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorFilter {
    /// Names of tensors that stay plain, whatever `only` says.
    pub keep: Vec<Glob>,
    /// Names of the only tensors that are compressed; none: of all.
    pub only: Vec<Glob>,
    /// Tensors with fewer bytes in the checkpoint stay plain.
    pub min_bytes: u64,
}

impl TensorFilter {
    /// Whether `only` names this tensor, or none.
    #[must_use]
    pub fn is_among(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|glob| glob.matches(name))
    }

    fn allows(&self, name: &str, bytes: u64) -> bool {
        bytes >= self.min_bytes
            && self.is_among(name)
            && !self.keep.iter().any(|glob| glob.matches(name))
    }
}

/// The user's choices, and the model's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompressionRules {
    /// Which tensors may be compressed.
    pub tensors: TensorFilter,
    /// Whether matrices are trellis-quantized rather than compressed losslessly.
    pub is_trellis: bool,
    /// Whether embeddings are compressed too, and the LM head is trellis-quantized where the layers are.
    pub all: bool,
    /// Names of tensors that are compressed losslessly even then: routers of mixtures.
    pub unquantized: HashSet<String>,
}

/// How a tensor is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorTreatment {
    /// It is stored uncompressed.
    Plain,
    /// It is compressed losslessly.
    Lossless,
    /// It is trellis-quantized.
    Trellis,
}

impl CompressionRules {
    /// How to store a tensor of this name, shape and dtype (as safetensors names it, in lower case).
    #[must_use]
    pub fn treatment(&self, name: &str, shape: &[usize], numbers_name: &str) -> TensorTreatment {
        let is_matrix = matrix(shape).is_some_and(|(_, width)| WIDTHS.contains(&width));
        let elements = elements(shape).filter(|elements| is_matrix && *elements >= ELEMENTS_MIN);
        let bytes = elements
            .zip(dtype(numbers_name))
            .map(|(elements, dtype)| elements as u64 * dtype.bytes() as u64);
        if !bytes.is_some_and(|bytes| self.tensors.allows(name, bytes))
            || (!self.all && is_embedding(name))
        {
            TensorTreatment::Plain
        } else if self.is_trellis
            && (self.all || layer_of(name).is_some())
            && !self.unquantized.contains(name)
        {
            TensorTreatment::Trellis
        } else {
            // Outside of the layers is the LM head; there and in routers, loss costs most.
            TensorTreatment::Lossless
        }
    }
}

/// Whether single rows of a tensor are read, which is cheap only in an uncompressed tensor.
fn is_embedding(name: &str) -> bool {
    layer_of(name).is_none()
        && name.split('.').any(|part| {
            // GGUF says `token_embd`, Hugging Face `embed_tokens`, GPT-2 and LLaDA `wte`.
            part.contains("embd") || part.contains("embed") || matches!(part, "wte" | "wpe")
        })
}

/// The extent that a tensor belongs to: its layer's, or its own name.
#[must_use]
pub fn extent_name(name: &str) -> &str {
    layer_of(name).unwrap_or(name)
}

/// A name up to its first numeric part, such as `model.layers.3`.
fn layer_of(name: &str) -> Option<&str> {
    let mut end = 0;
    for part in name.split('.') {
        let start = end;
        end += part.len();
        // A name that begins with a number, such as `0.weight`, has no layer in front.
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
            tensors: TensorFilter {
                keep: vec![Glob::new("*.kept.*")],
                ..TensorFilter::default()
            },
            ..CompressionRules::default()
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
        let router = "model.layers.0.mlp.gate.weight";
        assert_eq!(treat(&rate, router), TensorTreatment::Trellis);
        let all = CompressionRules {
            all: true,
            unquantized: [router.to_owned()].into(),
            ..rate
        };
        assert_eq!(treat(&all, router), TensorTreatment::Lossless);
        assert_eq!(treat(&all, "lm_head.weight"), TensorTreatment::Trellis);
        assert_eq!(treat(&all, "embed.weight"), TensorTreatment::Trellis);
    }

    #[test]
    fn only_large_tensors_of_these_names_are_compressed() {
        let rules = |keep: &[&str], only: &[&str], min_bytes| {
            let globs = |patterns: &[&str]| patterns.iter().map(|one| Glob::new(one)).collect();
            CompressionRules {
                tensors: TensorFilter {
                    keep: globs(keep),
                    only: globs(only),
                    min_bytes,
                },
                ..CompressionRules::default()
            }
        };
        let is_plain = |rules: CompressionRules, name, dtype| {
            rules.treatment(name, &[256, 256], dtype) == TensorTreatment::Plain
        };
        let (up, out) = ("layers.0.up.w", "layers.0.out.w");
        let only = || rules(&[], &["*.up.*", "*.down.*"], 0);
        assert!(!is_plain(only(), up, "bf16") && is_plain(only(), out, "bf16"));
        let both = rules(&["layers.0.*"], &["*.up.*"], 0);
        assert!(is_plain(both, up, "bf16"), "what is kept stays plain");
        // What would be too small anyway, or is an embedding, is not compressed because it is named.
        assert!(is_plain(rules(&[], &["*"], 0), "wte.weight", "bf16"));
        assert_eq!(
            rules(&[], &["*"], 1).treatment(up, &[255, 256], "bf16"),
            TensorTreatment::Plain
        );
        for (dtype, min_bytes, plain) in [
            ("bf16", 128 << 10, false),
            ("bf16", (128 << 10) + 1, true),
            ("f32", (128 << 10) + 1, false),
        ] {
            let large = rules(&[], &[], min_bytes);
            assert_eq!(is_plain(large, up, dtype), plain, "{dtype} {min_bytes}");
        }
    }
}
