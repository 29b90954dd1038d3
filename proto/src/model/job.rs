//! Requests for jobs, checked.

use std::path::PathBuf;

use sluice_shared::compression::{
    self, Coder, TILE_ELEMENTS_DEFAULT, check_bits_per_weight, check_pattern_count,
    check_tensor_pattern, check_tile_elements,
};

use super::{InvalidField, ModelSubject, at_least_one, invalid};
use crate::v1;

/// Longest path, as the system has it.
const PATH_BYTES_MAX: usize = 4096;

/// A checked [`v1::CompressRequest`].
#[derive(Debug, Clone, PartialEq)]
pub struct CompressJob {
    /// What to code; a path is absolute.
    pub source: ModelSubject,
    /// File to write: absolute, with an ending of its own.
    pub output: PathBuf,
    /// How numbers are coded.
    pub method: CompressionMethod,
    /// Numbers of a tile, one of those that there are.
    pub tile_elements: u32,
    /// Patterns of tensors that stay as they are; few and short.
    pub keep_tensors: Vec<String>,
    /// Whether embeddings are coded, too, and with bits the head.
    pub all_tensors: bool,
    /// Threads, at least 1; `None`: the daemon's choice.
    pub threads: Option<u32>,
}

/// How numbers are coded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CompressionMethod {
    /// Every bit is kept.
    Lossless(Coder),
    /// To so many bits, within the limits.
    BitsPerWeight(f64),
}

/// A checked [`v1::DecompressRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecompressJob {
    /// A coded file, absolute.
    pub file: PathBuf,
    /// Folder to write, absolute.
    pub output: PathBuf,
    /// Threads, at least 1; `None`: the daemon's choice.
    pub threads: Option<u32>,
}

/// A checked [`v1::VerifyRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyJob {
    /// A coded file, absolute.
    pub file: PathBuf,
}

impl TryFrom<v1::CompressRequest> for CompressJob {
    type Error = InvalidField;

    fn try_from(wire: v1::CompressRequest) -> Result<Self, InvalidField> {
        use v1::compress_request::How as Wire;

        bounded("name", &wire.name)?;
        if !wire.path.is_empty() {
            absolute("path", &wire.path)?;
        }
        let how = match wire.how {
            Some(Wire::BitsPerWeight(bits)) => CompressionMethod::BitsPerWeight(
                check_bits_per_weight(bits).map_err(|problem| invalid("bits", problem))?,
            ),
            Some(Wire::Coder(coder)) => {
                CompressionMethod::Lossless(match v1::Coder::try_from(coder) {
                    Ok(v1::Coder::Unspecified) => Coder::default(),
                    Ok(v1::Coder::Huffman) => Coder::Huffman,
                    Ok(v1::Coder::Palette) => Coder::Dictionary,
                    Err(_) => return Err(invalid("coder", format!("{coder} is unknown"))),
                })
            }
            None => CompressionMethod::Lossless(Coder::default()),
        };
        let tile = check_tile_elements(wire.tile_elements.unwrap_or(TILE_ELEMENTS_DEFAULT));
        Ok(Self {
            source: ModelSubject::new(wire.name, wire.path)?,
            output: container_path("output", &wire.output_path)?,
            method: how,
            tile_elements: tile.map_err(|problem| invalid("tile", problem))?,
            keep_tensors: keep_patterns(wire.keep_tensors)?,
            all_tensors: wire.all_tensors,
            threads: at_least_one("threads", wire.threads)?,
        })
    }
}

impl TryFrom<v1::DecompressRequest> for DecompressJob {
    type Error = InvalidField;

    fn try_from(wire: v1::DecompressRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            file: absolute("path", &wire.input_path)?,
            output: absolute("output", &wire.output_path)?,
            threads: at_least_one("threads", wire.threads)?,
        })
    }
}

impl TryFrom<v1::VerifyRequest> for VerifyJob {
    type Error = InvalidField;

    fn try_from(wire: v1::VerifyRequest) -> Result<Self, InvalidField> {
        Ok(Self {
            file: absolute("path", &wire.input_path)?,
        })
    }
}

fn bounded(field: &'static str, text: &str) -> Result<(), InvalidField> {
    match text.len() > PATH_BYTES_MAX {
        true => Err(invalid(
            field,
            format!("has {} bytes; the limit is {PATH_BYTES_MAX}", text.len()),
        )),
        false => Ok(()),
    }
}

/// The daemon has a current folder of its own.
fn absolute(field: &'static str, path: &str) -> Result<PathBuf, InvalidField> {
    bounded(field, path)?;
    if path.is_empty() {
        return Err(invalid(field, "is missing"));
    }
    if !path.starts_with('/') {
        return Err(invalid(field, format!("must be absolute, not '{path}'")));
    }
    if path.contains('\0') {
        return Err(invalid(field, "has a zero byte, which no path has"));
    }
    Ok(path.into())
}

fn container_path(field: &'static str, path: &str) -> Result<PathBuf, InvalidField> {
    compression::check_container_path(absolute(field, path)?)
        .map_err(|problem| invalid(field, problem))
}

fn keep_patterns(keep: Vec<String>) -> Result<Vec<String>, InvalidField> {
    let refused = |problem| invalid("keep", problem);
    check_pattern_count(keep.len()).map_err(refused)?;
    let each = keep.iter().map(|pattern| check_tensor_pattern(pattern));
    each.collect::<Result<_, _>>().map_err(refused)
}

#[cfg(test)]
mod tests {
    use v1::compress_request::How as Wire;

    use super::*;

    fn compress() -> v1::CompressRequest {
        v1::CompressRequest {
            path: "/m".to_owned(),
            output_path: "/a.sluice".to_owned(),
            ..Default::default()
        }
    }

    #[test]
    fn what_nobody_says_has_a_default() {
        let asked = CompressJob::try_from(compress()).unwrap();
        assert_eq!(asked.source, ModelSubject::Path("/m".to_owned()));
        assert_eq!(asked.method, CompressionMethod::Lossless(Coder::Huffman));
        assert_eq!(
            (asked.tile_elements, asked.threads),
            (TILE_ELEMENTS_DEFAULT, None)
        );
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let field = |change: fn(&mut v1::CompressRequest)| {
            let mut wire = compress();
            change(&mut wire);
            CompressJob::try_from(wire).unwrap_err().field
        };
        assert_eq!(field(|wire| wire.name = "a".to_owned()), "name");
        assert_eq!(field(|wire| wire.name = "a".repeat(5000)), "name");
        assert_eq!(field(|wire| wire.path = "m".to_owned()), "path");
        assert_eq!(field(|wire| wire.path = "/m\0".to_owned()), "path");
        for output in [
            "",
            "a.sluice",
            "/",
            "/a",
            "/.sluice",
            "/a.sluice/..",
            "/a.gguf",
        ] {
            let wire = v1::CompressRequest {
                output_path: output.to_owned(),
                ..compress()
            };
            assert_eq!(CompressJob::try_from(wire).unwrap_err().field, "output");
        }
        assert_eq!(
            field(|wire| wire.output_path = format!("/{}.sluice", "a".repeat(5000))),
            "output"
        );
        assert_eq!(
            field(|wire| wire.how = Some(Wire::BitsPerWeight(0.5))),
            "bits"
        );
        assert_eq!(
            field(|wire| wire.how = Some(Wire::BitsPerWeight(f64::NAN))),
            "bits"
        );
        assert_eq!(field(|wire| wire.how = Some(Wire::Coder(9))), "coder");
        assert_eq!(field(|wire| wire.tile_elements = Some(100)), "tile");
        assert_eq!(field(|wire| wire.threads = Some(0)), "threads");
        assert_eq!(
            field(|wire| wire.keep_tensors = vec!["*".to_owned(); 65]),
            "keep"
        );
        assert_eq!(
            field(|wire| wire.keep_tensors = vec!["*".repeat(257)]),
            "keep"
        );
        assert_eq!(
            field(|wire| wire.keep_tensors = vec![String::new()]),
            "keep"
        );
    }

    #[test]
    fn files_and_folders_are_absolute() {
        let wire = |path: &str, output: &str| v1::DecompressRequest {
            input_path: path.to_owned(),
            output_path: output.to_owned(),
            threads: None,
        };
        assert!(DecompressJob::try_from(wire("/a.sluice", "/m")).is_ok());
        let field = |path, output| {
            DecompressJob::try_from(wire(path, output))
                .unwrap_err()
                .field
        };
        assert_eq!(field("", "/m"), "path");
        assert_eq!(field("/a.sluice", "m"), "output");
        let path = "a".to_owned();
        assert_eq!(
            VerifyJob::try_from(v1::VerifyRequest { input_path: path })
                .unwrap_err()
                .field,
            "path"
        );
    }
}
