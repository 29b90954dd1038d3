//! What an interrupted run of a compression is recognised by: a run with another identity begins anew.

use sluice_codec::{
    Lossless, TrellisTarget,
    container::{Glob, Hasher, TensorFilter},
};

use super::{
    CompressError,
    files::ModelFiles,
    options::{CompressOptions, CompressionMethod},
};
use crate::Checkpoint;

/// Changed when the same options lead to other bytes, so that no container consists of two versions.
const REVISION: u32 = 3;

/// Identity of a run: the source, the files and all options that change the result.
pub(super) fn identity(
    checkpoint: &Checkpoint,
    options: &CompressOptions,
    files: &ModelFiles,
) -> Result<String, CompressError> {
    let mut hasher = Hasher::default();
    // The weights' fingerprint samples them; these files are small, and are hashed whole.
    for (name, bytes) in &files.taken {
        hasher.update(name.as_bytes());
        // Lengths separate the files, so that no two folders hash alike by concatenation.
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    Ok(format!(
        "revision {REVISION}, {} and {}, {}, tiles of {}, {}, {}",
        checkpoint.fingerprint()?,
        hasher.finish(),
        journal_name(options.method),
        options.tile,
        if options.all {
            "all"
        } else {
            "layers and head"
        },
        filter_name(&options.tensors),
    ))
}

/// The choice of tensors in journals. Choices that earlier versions did not have are named only where they are made, so that
/// their journals still fit.
fn filter_name(filter: &TensorFilter) -> String {
    let listed = |globs: &[Glob]| {
        let patterns: Vec<&str> = globs.iter().map(Glob::pattern).collect();
        format!("{patterns:?}")
    };
    let mut name = format!("keep {}", listed(&filter.keep));
    if !filter.only.is_empty() {
        name += &format!(", only {}", listed(&filter.only));
    }
    if filter.min_bytes > 0 {
        name += &format!(", at least {} bytes", filter.min_bytes);
    }
    name
}

/// The method's name in journals. An interrupted run is resumed only if the journal has the same words, so they never
/// change, whatever the types are called.
fn journal_name(how: CompressionMethod) -> String {
    match how {
        CompressionMethod::Lossless(Lossless::Plain) => "Lossless(Plain)".to_owned(),
        CompressionMethod::Lossless(Lossless::Huffman) => "Lossless(Huffman)".to_owned(),
        CompressionMethod::Lossless(Lossless::Dictionary) => "Lossless(Palette)".to_owned(),
        CompressionMethod::Trellis(TrellisTarget::Bits(bits)) => format!("Rate(Bits({bits:?}))"),
        CompressionMethod::Trellis(TrellisTarget::Error(error)) => {
            format!("Rate(Error({error:?}))")
        }
        CompressionMethod::Mix(mix) => format!("Mix({mix})"),
    }
}

#[cfg(test)]
mod tests {
    use sluice_shared::mix::MixId;

    use super::*;

    #[test]
    fn a_journal_names_how_it_is_compressed_as_it_always_did() {
        for (how, name) in [
            (
                CompressionMethod::Lossless(Lossless::Plain),
                "Lossless(Plain)",
            ),
            (
                CompressionMethod::Lossless(Lossless::Huffman),
                "Lossless(Huffman)",
            ),
            (
                CompressionMethod::Lossless(Lossless::Dictionary),
                "Lossless(Palette)",
            ),
            (
                CompressionMethod::Trellis(TrellisTarget::Bits(4.5)),
                "Rate(Bits(4.5))",
            ),
            (
                CompressionMethod::Trellis(TrellisTarget::Bits(4.0)),
                "Rate(Bits(4.0))",
            ),
            (
                CompressionMethod::Trellis(TrellisTarget::Error(0.1)),
                "Rate(Error(0.1))",
            ),
            (
                CompressionMethod::Mix(MixId::from_number(0x3f2a_91c4).unwrap()),
                "Mix(3f2a91c4)",
            ),
        ] {
            assert_eq!(journal_name(how), name);
        }
    }

    #[test]
    fn a_journal_names_a_choice_of_tensors_where_there_is_one() {
        let globs = |pattern: &str| vec![Glob::new(pattern)];
        let mut filter = TensorFilter {
            keep: globs("*.wte.*"),
            ..TensorFilter::default()
        };
        assert_eq!(filter_name(&filter), r#"keep ["*.wte.*"]"#);
        filter.only = globs("*ff*");
        filter.min_bytes = 7;
        assert_eq!(
            filter_name(&filter),
            r#"keep ["*.wte.*"], only ["*ff*"], at least 7 bytes"#
        );
    }
}
